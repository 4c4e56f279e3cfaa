//! This very process attaches to itself and reverts: its own text becomes huge while its threads execute it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tiexec_core::config::EdgePolicy;
use tiexec_core::plan::Backing;
use tiexec_core::select::Select;
use tiexec_remap::attach::{AttachOrder, attach_here, calls_here, revert_here};
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_remap::sources::Sources;
use tiexec_remap::verify::report;
use tiexec_remap::workers::Workers;
use tiexec_sys::local::Calls;
use tiexec_sys::{process, thp};
use tiexec_tracee::executor::Local;
use tiexec_tracee::target::Target;

// Text enough for whole huge pages, wherever the program lies. Each page of it begins with a return.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".text", ".globl much_text", "much_text:", ".fill 6291456, 1, 0xc3");
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(".text", ".globl much_text", "much_text:", ".fill 1572864, 4, 0xd65f03c0");

unsafe extern "C" {
    fn much_text();
}

/// Executes text all over this program, by examining this process.
fn look() -> usize {
    // SAFETY: it returns at once.
    unsafe { much_text() };
    let (target, ()) = Target::open(process::this(), |_| Ok(())).expect("this process");
    let maps = target.space.maps().expect("its mappings");
    tiexec_core::proc::maps::parse(&maps).expect("lines of maps").len()
}

fn local() -> Local {
    // SAFETY: the attach leaves all text as it is, on other pages.
    Local::new(unsafe { Calls::new() })
}

#[test]
fn own_text_becomes_huge_while_threads_execute_it() {
    let (target, ()) = Target::open(process::this(), |_| Ok(())).expect("this process");
    let workers = Workers::none();
    let policy = Policy {
        pages: thp::pages().expect("huge pages"),
        sources: Sources { pagecache: false, store: false, copy: Some(Backing::Image) },
        select: Select::default(),
        edges: EdgePolicy::default(),
        numa: None,
        evict: false,
        deadline: Duration::from_secs(30),
        dry_run: false,
    };
    let order = AttachOrder::new(&target, &workers, policy);
    let (ended, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let maps = || {
        let maps = target.space.maps().expect("its mappings");
        String::from_utf8_lossy(&maps).into_owned()
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert!(look() > 0);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _ends_them_also_if_this_fails = Ends(&ended);
        for turn in 0..3 {
            let mut attached =
                attach_here(&order, &mut Images::default(), local()).expect("attached");
            assert_eq!(attached.failure, None);
            let planned = attached.plan.huge_bytes();
            assert!(planned > 0, "{:?}", attached.plan);
            let report = report(&order, &mut attached);
            assert_eq!(report.reason, None, "{report:?}");
            assert!(maps().contains("/memfd:tiexec:"), "{}", maps());
            // All of it is huge already, so nothing is left to do.
            let again = attach_here(&order, &mut Images::default(), local()).expect("attached");
            assert_eq!((again.failure, again.plan.huge_bytes(), again.bytes_copied), (None, 0, 0));
            let after = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) < after + 10 {
                std::thread::yield_now();
            }
            // In the last turn, the calls are tried first, as under filters.
            let last = if turn == 2 {
                // SAFETY: as above.
                Local::under_filters(unsafe { Calls::new() }, &calls_here()).expect("no filter")
            } else {
                local()
            };
            let reverted = revert_here(&order, last).expect("reverted");
            assert_eq!((reverted.failure, reverted.stop), (None, None));
            assert_eq!((reverted.found, reverted.reverted), (planned, planned));
            assert!(!maps().contains("/memfd:tiexec:"), "{}", maps());
        }
    });
}

/// Ends the threads.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
