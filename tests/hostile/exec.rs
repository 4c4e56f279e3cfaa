//! If the target executes a set-user-ID program after the examination and before the stop, the attacker gains nothing
//! from the new program.

use crate::ATTACKER;
use support::attaching::{attach, switched};
use support::extent::{met, rounds};
use support::{Kind, Public, Random, Run, installed, is_root, program, require};

/// Runs the attack many times.
fn attacked(how: &str, work: impl Fn(i32, usize) -> Option<i32>) {
    let rounds = rounds(40);
    let built = program("hostile/setuid_exec", Kind::StaticNoPie);
    let public = Public::new();
    let attacker = public.add(&built, "attacker", 0o755);
    let victim = public.add(&built, "victim", 0o4755);
    let mut random = Random::new();
    let mut changed = 0;
    for round in 0..rounds {
        // The delay starts at the first open of the target's file. The copy takes milliseconds.
        let delay = random.below(3000).to_string();
        let args = [how.as_ref(), victim.as_os_str(), delay.as_ref()];
        let mut held = Run::new(&attacker, args).plain().behind(ATTACKER).hold();
        let pid = held.pid();
        if work(pid, round) == Some(3) {
            changed += 1;
        }
        held.wait_line("victim");
        assert_eq!(switched(pid), 0, "round {round}: text of ours in a program with privileges");
        // The program has checked its text.
        held.finish().assert_code(7);
    }
    met(changed, rounds, "the exec came between the look and the stop");
}

fn attach_is_attacked(how: &str) {
    require!(is_root() && installed("setpriv").is_some(), "a set-user-ID program needs root");
    attacked(how, |pid, round| {
        let done = attach(pid);
        let code = done.status.code();
        if code == Some(3) {
            assert!(done.err().contains("changed: "), "round {round}: {done}");
        } else {
            // The exec came before the examination, or after the last step.
            assert!(matches!(code, Some(0 | 4)), "round {round}: {done}");
        }
        code
    });
}

#[test]
fn of_the_first_thread() {
    attach_is_attacked("leader");
}

#[test]
fn of_another_thread() {
    attach_is_attacked("thread");
}
