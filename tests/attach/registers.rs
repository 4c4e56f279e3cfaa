//! On x86-64 a thread keeps its vector registers, its masks, its x87 registers and its protection-key rights after an
//! attach, a revert, and the attacher's death.
#![cfg(target_arch = "x86_64")]

use support::attaching::{
    Before, assert_untouched, attach, attach_run, cycle, ok, revert, revert_run,
};
use support::child::{eventually, state};
use support::extent::{ALL, Share};
use support::smaps::status_field;
use support::{Held, Kind, Run, program, require_of_machine};

/// Starts the program, which spins; none if the processor has no such registers.
fn holds(args: &[&str]) -> Option<Held> {
    let held = Run::new(program("registers", Kind::DynamicPie), args).plain().hold();
    held.said("no").is_none().then_some(held)
}

fn goes_on(held: Held) {
    cycle(held.pid(), 5);
    ends_well(held);
}

fn ends_well(held: Held) {
    let done = held.finish();
    assert!(!done.out().contains("wrong"), "{done}");
    done.assert_code(7).assert_silent();
}

/// The tracer dies at each register write and each stop, in an attach and in a revert.
fn outlives_the_tracer(share: Share, held: Held) {
    let pid = held.pid();
    for (run, name) in [(attach_run as fn(i32) -> Run, "attach"), (revert_run, "revert")] {
        for point in ["setregs", "stop"] {
            share.sweep(4, &format!("{name} {point}"), |n| {
                if name == "revert" {
                    ok(&attach(pid));
                }
                let done = run(pid).env("TIEXEC_FAULT", format!("die-after-{point}:{n}")).output();
                assert!(state(pid) != Some('Z'), "{name} {point}:{n}: it ended; {done}");
                eventually("it is let go", || {
                    status_field(pid, "TracerPid").as_deref() == Some("0")
                });
                ok(&revert(pid));
                done.end().1 == Some(libc::SIGKILL)
            });
        }
    }
    ends_well(held);
}

#[test]
fn vectors_and_masks() {
    goes_on(holds(&[]).expect("every processor has some"));
}

#[test]
fn vectors_and_masks_when_the_tracer_dies() {
    outlives_the_tracer(ALL, holds(&[]).expect("every processor has some"));
}

#[test]
fn rights_of_protection_keys() {
    let held = holds(&["keys"]);
    require_of_machine!(held.is_some(), "the processor has no protection keys");
    goes_on(held.expect("just looked"));
}

#[test]
fn rights_of_protection_keys_when_the_tracer_dies() {
    let held = holds(&["keys"]);
    require_of_machine!(held.is_some(), "the processor has no protection keys");
    outlives_the_tracer(Share { index: 0, of: 2 }, held.expect("just looked"));
}

/// The stack can be accessed only with the thread's own key rights.
#[test]
fn a_stack_with_a_key_when_the_tracer_dies() {
    let held = holds(&["key_stack"]);
    require_of_machine!(held.is_some(), "the processor has no protection keys");
    outlives_the_tracer(Share { index: 1, of: 2 }, held.expect("just looked"));
}

/// TiExec's signal frames cannot hold tiles in use, so the thread is left alone.
#[test]
fn tiles() {
    let held = holds(&["tiles"]);
    require_of_machine!(held.is_some(), "the processor has no tiles");
    let held = held.expect("just looked");
    let before = Before::of(held.pid());
    let done = attach(held.pid());
    done.assert_code(1);
    assert!(done.err().contains(": register_state: "), "{done}");
    assert_untouched(held.pid(), &before);
    ends_well(held);
}
