//! A process may have as many mappings as the kernel allows, named like TiExec's copies. Root's revert examines them
//! quickly, and removes none.

use crate::ATTACKER;
use support::attaching::revert;
use support::smaps::vmas;
use support::{Kind, Public, Run, installed, is_root, program, require};

#[test]
fn as_many_as_can_be_do_not_hold_a_revert() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    let public = Public::new();
    let built = program("hostile/many_copies", Kind::DynamicPie);
    let path = public.add(&built, "many_copies", 0o755);
    let held = Run::new(&path, [""; 0]).plain().behind(ATTACKER).hold();
    let mapped: usize = held.said("mapped").and_then(|n| n.parse().ok()).expect("a number");
    assert!(mapped > 50_000, "it mapped {mapped} only");
    // The time limit of a command is 40 s. A quadratic comparison of the mappings took more than 60 s.
    let done = revert(held.pid());
    assert!(done.err().contains("file_gone: "), "{done}");
    done.assert_code(1);
    assert_eq!(vmas(held.pid()).iter().filter(|vma| vma.is_switched()).count(), mapped);
    held.finish().assert_code(7);
}
