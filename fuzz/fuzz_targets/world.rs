//! Any bytes as a process with contradictory facts.
#![no_main]

#[path = "../../crates/core/tests/world/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _had = check::check(input);
});
