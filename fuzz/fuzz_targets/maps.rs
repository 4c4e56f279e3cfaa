//! Any bytes as `/proc/PID/maps`.
#![no_main]

use tiexec_core::proc::maps;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    match maps::parse(text) {
        Ok(vmas) => {
            for vma in vmas {
                assert!(vma.range.start() <= vma.range.end());
                assert!(vma.name.ends_with(vma.path()) || vma.name.starts_with(vma.path()));
                let _ = vma.display_path();
            }
        }
        Err(error) => assert!(error.line > 0 && !error.to_string().is_empty()),
    }
});
