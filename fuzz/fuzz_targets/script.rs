//! Any bytes as the beginning of a script.
#![no_main]

use tiexec_core::script;

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let Some(name) = script::interpreter(file) else { return };
    assert!(file.starts_with(b"#!"));
    assert!(!name.is_empty() && name.len() <= script::PREFIX - 2);
    assert!(!name.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | 0)));
    // The parser ignores all bytes beyond the kernel's prefix.
    let prefix = &file[..file.len().min(script::PREFIX)];
    assert_eq!(script::interpreter(prefix), Some(name));
});
