//! Tests the Rust API on this test's own text, while a thread executes it.

use std::sync::atomic::{AtomicBool, Ordering};

use tiexec_self::Settings;

// Text enough for whole huge pages, wherever the program lies. Each page of it begins with a return.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".text", ".globl much_text", "much_text:", ".fill 6291456, 1, 0xc3");
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(".text", ".globl much_text", "much_text:", ".fill 1572864, 4, 0xd65f03c0");

unsafe extern "C" {
    fn much_text();
}

#[test]
fn there_and_back() {
    let mut settings = Settings::default();
    settings.take_setting("backing", "image").expect("a setting");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: the function returns at once.
                unsafe { much_text() };
                assert!(std::fs::read_to_string("/proc/self/maps").is_ok());
            }
        });
        let report = tiexec_self::attach(&settings);
        let seen = tiexec_self::report();
        let reverted = tiexec_self::revert();
        let after = tiexec_self::report();
        ended.store(true, Ordering::Relaxed);
        let (report, seen) = (report.expect("attached"), seen.expect("seen"));
        assert_eq!(report.reason, None);
        assert!(report.huge_bytes >= 4 << 20, "{report}");
        assert_eq!(seen.huge_bytes, report.huge_bytes);
        let reverted = reverted.expect("reverted");
        assert_eq!(reverted.failure, None);
        assert!(reverted.reverted >= 4 << 20, "{reverted:?}");
        assert!(after.expect("seen").huge_bytes < report.huge_bytes);
    });
    settings.off = true;
    assert_eq!(tiexec_self::attach(&settings).expect_err("off").reason.as_str(), "disabled");
}
