//! Any bytes as `/proc/PID/status`.
#![no_main]

use tiexec_core::proc::status;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let status = status::parse(text);
    assert!(status.name.len() <= text.len());
    // Unknown lines do not change the result.
    let more = [text, b"\nNoSuchField:\t1\n"].concat();
    assert_eq!(status::parse(&more), status);
});
