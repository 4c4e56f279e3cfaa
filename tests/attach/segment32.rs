//! TiExec leaves a thread alone that runs 32-bit code in a 64-bit program, or makes a 32-bit system call.
#![cfg(target_arch = "x86_64")]

use support::attaching::{
    Before, assert_switched, assert_untouched, attach, ok, revert, switched, wait_call,
};
use support::{Held, Kind, Run, program, require};

/// Starts the program; none if the kernel has no such segment.
fn starts(args: &[&str]) -> Held {
    let mut held = Run::new(program("segment32", Kind::DynamicPie), args).plain().start();
    held.wait_line("ready");
    held
}

fn has_segments() -> bool {
    Kind::Bare32.can_build() && {
        let done = Run::new(program("foreign32", Kind::Bare32), [""; 0]).plain().output();
        done.status.code() == Some(32)
    }
}

/// Asserts that TiExec stops and releases the thread, which keeps all its registers.
fn is_left_alone(how: &str, call: Option<&str>, reasons: &[&str]) {
    let held = starts(&[how]);
    let pid = held.pid();
    if let Some(call) = call {
        wait_call(pid, call);
    }
    let before = Before::of(pid);
    for _ in 0..3 {
        let done = attach(pid);
        done.assert_code(1);
        let reason = done.err().split(": ").nth(2).unwrap_or_default().to_owned();
        assert!(reasons.contains(&&*reason), "{how}: {done}");
        assert_untouched(pid, &before);
    }
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn running() {
    require!(has_segments(), "no 32-bit programs here");
    is_left_alone("spin", None, &["register_state"]);
}

/// Call 7 is waitpid; to a 64-bit program it would be poll.
#[test]
fn asleep_in_what_looks_like_another_call() {
    require!(has_segments(), "no 32-bit programs here");
    is_left_alone("waitpid", Some("7"), &["register_state"]);
    is_left_alone("int80", Some("7"), &["register_state"]);
}

/// Call 29 is pause; to a 64-bit program it would be shmget, which is not known to survive a stop unchanged.
#[test]
fn asleep_in_what_looks_like_no_call_to_stop_in() {
    require!(has_segments(), "no 32-bit programs here");
    is_left_alone("pause", Some("29"), &["no_thread"]);
}

/// TiExec chooses another thread.
#[test]
fn beside_a_thread_that_runs_its_own_code() {
    require!(has_segments(), "no 32-bit programs here");
    let held = starts(&["spin", "thread"]);
    let pid = held.pid();
    let before = Before::of(pid);
    for _ in 0..3 {
        ok(&attach(pid));
        assert_switched(pid);
        ok(&revert(pid));
        assert!(switched(pid) == 0);
        assert_untouched(pid, &before);
    }
    held.finish().assert_code(7).assert_silent();
}
