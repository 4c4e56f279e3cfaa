//! A thread keeps its scalable vectors, its predicates and ZA after an attach, a revert, and the attacher's death.
#![cfg(target_arch = "aarch64")]

use support::attaching::{attach_run, cycle, ok, revert, small};
use support::extent::ALL;
use support::{Held, Kind, Run, pmd_size, require, require_of_machine};

/// Starts the program, which holds vectors of up to a number of bytes; none if the processor has no such registers.
fn holds(args: &[&str]) -> Option<Held> {
    let copy = small("scalable", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), args).plain().hold();
    held.said("no").is_none().then_some(held)
}

fn goes_on(args: &[&str]) {
    require!(pmd_size() <= 2 << 20, "huge pages too large for the program");
    let held = holds(args);
    require_of_machine!(held.is_some(), "the processor has no such registers");
    let held = held.expect("just looked");
    cycle(held.pid(), 5);
    ends_well(held);
}

fn ends_well(held: Held) {
    let done = held.finish();
    assert!(!done.out().contains("wrong"), "{done}");
    done.assert_code(7).assert_silent();
}

#[test]
fn of_every_length() {
    for length in ["16", "32", "64", "128", "256"] {
        goes_on(&[length]);
    }
}

#[test]
fn with_an_array_beside() {
    goes_on(&["256", "za"]);
}

#[test]
fn when_the_tracer_dies() {
    require!(pmd_size() <= 2 << 20, "huge pages too large for the program");
    let held = holds(&["256", "za"]);
    require_of_machine!(held.is_some(), "the processor has no such registers");
    let held = held.expect("just looked");
    let pid = held.pid();
    ALL.sweep(3, "die-after-setregs", |n| {
        let done = attach_run(pid).env("TIEXEC_FAULT", format!("die-after-setregs:{n}")).output();
        if done.end().1.is_none() {
            return false;
        }
        assert_eq!(done.end().1, Some(libc::SIGKILL), "{done}");
        ok(&revert(pid));
        true
    });
    ends_well(held);
}
