//! A uprobe on a function of a running program fires each time through attach and revert, also if it is hit during the
//! switch.

use support::attaching::{attach, json, revert, small, switched};
use support::uprobe::{Uprobe, call, events};
use support::{Kind, Run, is_root, pmd_size, require};

#[test]
fn keeps_firing() {
    require!(is_root(), "uprobes need root");
    require!(
        events().exists(),
        "no uprobe_events: tracefs is not mounted, or the kernel has no uprobes"
    );
    let copy = small("traced", Kind::OneSegmentNoPie);
    let mut held = Run::new(copy.path(), [""; 0]).plain().hold();
    let pid = held.pid();
    let offset = held.said("offset").and_then(|o| u64::from_str_radix(&o, 16).ok());
    let probe = Uprobe::set("attach", copy.path(), offset.expect("where its function is"));
    require!(probe.is_some(), "the kernel takes no uprobe here");
    let probe = probe.expect("just looked");
    call(&mut held, 3);
    assert_eq!(probe.new_hits(), 3);
    let mut calls = 3;
    for _ in 0..10 {
        // The test does not wait, so that the program makes these calls during the attach.
        held.write("call\n".repeat(50).as_bytes());
        let done = attach(pid);
        done.assert_code(0);
        let report = json(&done).to_string();
        assert!(report.contains("modified_text"), "{report}");
        assert!(switched(pid) >= pmd_size(), "the other huge pages: {report}");
        held.write("call\n".repeat(50).as_bytes());
        revert(pid).assert_code(0);
        assert_eq!(switched(pid), 0);
        calls += 100;
    }
    let done = |held: &support::Held| held.out_text().lines().filter(|l| *l == "done").count();
    while done(&held) < calls + 1 {
        held.wait_more();
    }
    assert_eq!(probe.new_hits(), calls - 3);
    drop(probe);
    held.finish().assert_code(7);
}
