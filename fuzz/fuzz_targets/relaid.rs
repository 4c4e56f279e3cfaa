//! Any bytes as a whole ELF file that is laid out again.
#![no_main]

#[path = "../../crates/core/tests/relaid/check.rs"]
mod check;

use tiexec_core::relaid::Layout;

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    if let Ok(layout) = Layout::read(file, check::PAGES) {
        check::check(&layout, file);
    }
});
