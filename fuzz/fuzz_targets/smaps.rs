//! Any bytes as `/proc/PID/smaps`, up to the printed report.
#![no_main]

use tiexec_core::addr::{PageSize, Pages};
use tiexec_core::coverage::coverage;
use tiexec_core::smaps;
use tiexec_core::report::{Kind, Report};

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(entries) = smaps::parse(text) else { return };
    let size = |bytes| PageSize::new(bytes).expect("a power of two");
    let pages = Pages { base: size(4 << 10), pmd: size(2 << 20) };
    let files = coverage(&entries, pages, &[], &[]);
    for file in &files {
        assert!(file.huge_bytes <= file.text_bytes);
        let rest: u64 = file.rest.iter().map(|rest| rest.bytes).sum();
        assert_eq!(rest + file.huge_bytes, file.text_bytes);
    }
    let report = Report::new(Kind::Inspect, 1, "fuzz".to_owned(), files);
    assert!(!report.to_string().is_empty());
    assert!(!report.to_json().contains('\n'));
});
