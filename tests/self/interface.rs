//! The C API: sizes, mistakes of the caller, reports.

use serde_json::Value;
use support::attaching::collapses;
use support::{Kind, require};

use super::library::{calls_itself, situation};

#[test]
fn sizes_and_mistakes() {
    require!(collapses(), "the kernel has no MADV_COLLAPSE");
    let copy = calls_itself("libtiexec.so", Kind::DynamicPie);
    let held = situation(&copy, &["interface"]).hold();
    let out = held.out_text();
    assert!(out.contains("calls_itself") && out.contains("REST BECAUSE"), "{out}");
    let json = out.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
    let report: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(report["pid"], held.pid());
    assert!(report["huge_bytes"].as_u64() >= Some(4 << 20), "{report}");
    held.finish().assert_code(7).assert_silent();
}
