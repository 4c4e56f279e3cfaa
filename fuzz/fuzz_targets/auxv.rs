//! Any bytes as `/proc/PID/auxv`.
#![no_main]

use tiexec_core::proc::auxv;

libfuzzer_sys::fuzz_target!(|vector: &[u8]| {
    assert_eq!(auxv::get(vector, auxv::AT_NULL), None);
    for key in [auxv::AT_PHDR, auxv::AT_BASE, auxv::AT_ENTRY, auxv::AT_SECURE, u64::MAX] {
        if let Some(value) = auxv::get(vector, key) {
            let pair = [key.to_ne_bytes(), value.to_ne_bytes()].concat();
            assert!(vector.chunks_exact(16).any(|entry| entry == pair));
        }
    }
});
