//! Any bytes as `/proc/PID/numa_maps`.
#![no_main]

use tiexec_core::numa::sum;
use tiexec_core::proc::numa_maps;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(entries) = numa_maps::parse(text) else { return };
    let nodes = sum(entries.iter().flat_map(|entry| entry.nodes.iter().copied()));
    assert!(nodes.is_sorted_by(|a, b| a.node < b.node));
});
