//! If TiExec dies at any instant of an attach or a revert, the program continues undisturbed, and a later attach or
//! revert works.

use support::attaching::{
    FAULT_POINTS, attach, attach_run, descriptors, is_switched, joined, ok, revert, revert_run,
    staged, switched, wait_call,
};
use support::child::{Held, eventually, state};
use support::extent::{Share, met, rounds, several, sweep};
use support::smaps::status_field;
use support::{Kind, Random, Run, program};

fn spinner(first_thread: &str) -> Held {
    Run::new(program("spinner", Kind::DynamicPie), [first_thread, "2"]).plain().limit(600).hold()
}

fn sleeper(situation: &str) -> Held {
    let mut held =
        Run::new(program("blocked", Kind::DynamicPie), [situation]).plain().limit(600).start();
    held.wait_line("ready");
    wait_call(held.pid(), &held.said("call").expect("the call's number"));
    held
}

/// Waits until no process traces the program and the program has no descriptor of TiExec's.
fn let_go(pid: i32, fds: &[String], when: &str) {
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"), "{when}");
    eventually(&format!("{when}: no descriptor of ours: {:?}, {fds:?}", descriptors(pid)), || {
        descriptors(pid) == fds
    });
}

/// The shares of the four situations below. Those whose threads all run have fewer, because they use both processors all the time.
const SHARES: u32 = 8;

/// Kills TiExec at each place of an attach and then of a revert of one process.
fn at_each_place(shares: &[Share], mut held: Held, say: Option<&str>) {
    let pid = held.pid();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("an own child's program");
    let (maps, fds) = (joined(pid), descriptors(pid));
    for (run, name) in [(attach_run as fn(i32) -> Run, "attach"), (revert_run, "revert")] {
        for point in FAULT_POINTS {
            // Every attach and revert sets the mask twice.
            let least = if point == FAULT_POINTS[3] { 2 } else { 4 };
            sweep(shares, least, &format!("{name}, {point}"), |n| {
                let when = format!("{name}, {point}:{n}");
                let fault = format!("{point}:{n}");
                let done = run(pid).env("TIEXEC_FAULT", fault).output();
                if state(pid) == Some('Z') {
                    panic!("{when}: it ended; {done}");
                }
                let_go(pid, &fds, &when);
                let left = || format!("{when}: {:#?}", staged(pid, &exe));
                eventually(&left(), || staged(pid, &exe).is_empty());
                assert!(!say.is_some_and(|word| held.has_said(word)), "{when}: it woke");
                if done.end().1 != Some(libc::SIGKILL) {
                    return false;
                }
                // An attach restores the initial state of a half-done revert.
                if name == "revert" {
                    ok(&attach(pid));
                } else {
                    ok(&revert(pid));
                    assert!(switched(pid) == 0, "{when}: {:#?}", joined(pid));
                }
                true
            });
            // The next fault begins at the same state.
            if name == "attach" {
                ok(&revert(pid));
            } else {
                ok(&attach(pid));
                assert!(is_switched(pid));
            }
        }
        if name == "attach" {
            ok(&attach(pid));
        }
    }
    ok(&revert(pid));
    assert_eq!(joined(pid), maps);
    if say.is_some() {
        held.write(b"\n");
        while !held.has_said("saw") {
            held.wait_more();
        }
        let saw = held.said("saw").expect("it was waited for");
        assert!(saw.contains("intact 1"), "{saw}");
    }
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn while_the_thread_sleeps() {
    at_each_place(&several(0..3, SHARES), sleeper("futex"), Some("saw"));
}

#[test]
fn while_the_thread_waits_for_a_signal_under_another_mask() {
    at_each_place(&several(3..6, SHARES), sleeper("sigsuspend"), Some("saw"));
}

#[test]
fn while_all_threads_run() {
    at_each_place(&several(6..7, SHARES), spinner("spin"), None);
}

#[test]
fn in_a_thread_of_its_own() {
    at_each_place(&several(7..8, SHARES), spinner("wait"), None);
}

#[test]
fn at_random_moments() {
    let mut random = Random::new();
    let held = spinner("spin");
    let pid = held.pid();
    let fds = descriptors(pid);
    let mut killed = 0;
    let rounds = rounds(20);
    for round in 0..rounds {
        let run = if switched(pid) == 0 { attach_run(pid) } else { revert_run(pid) };
        let tool = run.start();
        random.spin(20_000);
        tool.signal(libc::SIGKILL);
        killed += usize::from(tool.finish().end().1 == Some(libc::SIGKILL));
        let_go(pid, &fds, &format!("round {round}"));
    }
    met(killed, rounds, "killed");
    ok(&revert(pid));
    assert!(switched(pid) == 0, "{:#?}", joined(pid));
    ok(&attach(pid));
    assert!(is_switched(pid));
    held.finish().assert_code(7).assert_silent();
}
