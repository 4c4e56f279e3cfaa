//! A thread that waits under the signal mask of its call, such as ppoll, continues to wait under that mask with any
//! pending signal. Afterwards the thread has its own mask again.

use std::time::Duration;

use support::attaching::{
    Before, assert_untouched, attach, attach_run, descriptors, is_switched, ok, revert, revert_run,
    switched, wait_call,
};
use support::child::{Held, eventually, patience, said, state};
use support::extent::{Share, rounds};
use support::smaps::status_field;
use support::{Kind, Random, Run, is_root, program, require};

/// Calls with masks. The calls that have always returned EINTR after SIGSTOP come last.
const CALLS: [&str; 6] =
    ["sigsuspend", "ppoll", "pselect", "epoll_pwait", "epoll_pwait2", "io_uring_enter"];
const UNSEEN_STOPS: usize = 3;

fn masked(args: &[&str]) -> Run {
    Run::new(program("masked", Kind::DynamicPie), args).plain()
}

/// Starts the program and waits until it sleeps in its call.
fn waiting(run: Run) -> Held {
    let mut held = run.start();
    held.wait_line("ready");
    sleeps(&held);
    held
}

fn sleeps(held: &Held) {
    wait_call(held.pid(), &held.said("call").expect("the call's number"));
}

/// Ends the program's call, and waits until the program reports that for the `count`th time.
fn wake(held: &mut Held, count: u32) {
    held.signal(libc::SIGUSR1);
    held.wait_line(&format!("woke {count}"));
}

/// Ends the program. Returns its counts.
fn end(held: Held) -> String {
    held.signal(libc::SIGTERM);
    let done = held.finish();
    done.assert_code(7).assert_silent();
    said(&done.out(), "end").unwrap_or_else(|| panic!("{done}"))
}

/// A signal that the call blocks, and the thread does not, is pending.
#[test]
fn what_the_call_blocks_stays_pending() {
    for call in CALLS {
        let mut held = waiting(masked(&[call]));
        let pid = held.pid();
        for round in 1..4 {
            held.signal(libc::SIGUSR2);
            ok(&attach(pid));
            assert!(is_switched(pid), "{call} {round}: {:?}", held.coverage());
            sleeps(&held);
            ok(&revert(pid));
            assert!(switched(pid) == 0, "{call} {round}");
            sleeps(&held);
            assert!(!held.has_said(&format!("woke {round}")), "{call} {round}");
            wake(&mut held, round);
            sleeps(&held);
        }
        assert_eq!(end(held), "ones 3 early 0 spurious 0 masks 0", "{call}");
    }
}

/// With attaches and reverts without pause, the call still ends in time. On a busy machine they take longer, and so must the
/// call.
#[test]
fn the_remaining_time_is_kept() {
    for call in ["ppoll", "pselect"] {
        let mut limit = patience(Duration::from_millis(1500));
        while attached_in_a_wait(call, limit) < 2 {
            limit *= 2;
        }
    }
}

/// Attaches to and reverts a program during one call with this timeout. Returns how often.
fn attached_in_a_wait(call: &str, limit: Duration) -> usize {
    let mut held = waiting(masked(&[call, &limit.as_millis().to_string()]));
    let pid = held.pid();
    held.signal(libc::SIGUSR2);
    let mut rounds = 0;
    while !held.has_said("over") {
        ok(&attach(pid));
        ok(&revert(pid));
        rounds += 1;
    }
    assert_eq!(held.said("over").as_deref(), Some("0 early 0 long 1"), "{call}");
    held.finish().assert_code(7).assert_silent();
    rounds
}

/// The signal that ends the call arrives at a random moment of an attach or a revert. The call ends exactly once.
#[test]
fn a_signal_at_any_moment() {
    let mut random = Random::new();
    for call in CALLS {
        let mut held = waiting(masked(&[call]));
        let pid = held.pid();
        let rounds = rounds(12) as u32;
        for round in 1..=rounds {
            held.signal(libc::SIGUSR2);
            let run = if switched(pid) == 0 { attach_run(pid) } else { revert_run(pid) };
            let tool = run.start();
            random.spin(30_000);
            wake(&mut held, round);
            ok(&tool.finish());
        }
        let expected = format!("ones {rounds} early 0 spurious 0 masks 0");
        assert_eq!(end(held), expected, "{call}");
    }
}

/// SIGSTOP stops the program at a random moment, and SIGCONT continues it. SIGSTOP may cause a signal that the call
/// blocks to be handled early.
#[test]
fn sigstop_at_any_moment() {
    let mut random = Random::new();
    for call in &CALLS[..UNSEEN_STOPS] {
        let mut held = waiting(masked(&[call]));
        let pid = held.pid();
        let rounds = rounds(10) as u32;
        for round in 1..=rounds {
            held.signal(libc::SIGUSR2);
            let run = if switched(pid) == 0 { attach_run(pid) } else { revert_run(pid) };
            let tool = run.start();
            random.spin(30_000);
            held.signal(libc::SIGSTOP);
            ok(&tool.finish());
            assert_eq!(held.wait_stopped(), libc::SIGSTOP);
            held.signal(libc::SIGCONT);
            wake(&mut held, round);
        }
        let saw = end(held);
        assert!(saw.starts_with(&format!("ones {rounds} early ")), "{call}: {saw}");
        assert!(saw.ends_with(" spurious 0 masks 0"), "{call}: {saw}");
    }
}

/// A program that was stopped by a signal before stays stopped, and waits on once it is continued.
#[test]
fn stopped_before() {
    for call in &CALLS[..UNSEEN_STOPS] {
        let mut held = waiting(masked(&[call]));
        let pid = held.pid();
        held.signal(libc::SIGSTOP);
        assert_eq!(held.wait_stopped(), libc::SIGSTOP);
        held.signal(libc::SIGUSR2);
        ok(&attach(pid));
        eventually("it is stopped again", || state(pid) == Some('T'));
        ok(&revert(pid));
        eventually("it is stopped again", || state(pid) == Some('T'));
        held.signal(libc::SIGCONT);
        sleeps(&held);
        wake(&mut held, 1);
        let saw = end(held);
        assert!(saw.starts_with("ones 1 early "), "{call}: {saw}");
        assert!(saw.ends_with(" spurious 0 masks 0"), "{call}: {saw}");
    }
}

/// The attacher dies at each place. The thread waits on, as after SIGSTOP and SIGCONT.
fn killed_at_each_place(index: u32, call: &str) {
    // There are four calls below.
    let share = Share { index, of: 4 };
    let mut held = waiting(masked(&[call]));
    let pid = held.pid();
    let fds = descriptors(pid);
    let (mut woken, mut shown) = (0, 0);
    for (run, name) in [(attach_run as fn(i32) -> Run, "attach"), (revert_run, "revert")] {
        for point in ["setregs", "stop", "write", "setmask"] {
            let least = if point == "setmask" { 2 } else { 4 };
            share.sweep(least, &format!("{call}: {name}, {point}"), |n| {
                let when = format!("{call}: {name} {point}:{n}");
                if name == "revert" {
                    ok(&attach(pid));
                }
                held.signal(libc::SIGUSR2);
                let done = run(pid).env("TIEXEC_FAULT", format!("die-after-{point}:{n}")).output();
                assert!(state(pid) != Some('Z'), "{when}: it ended; {done}");
                eventually(&when, || status_field(pid, "TracerPid").as_deref() == Some("0"));
                sleeps(&held);
                woken += 1;
                wake(&mut held, woken);
                let died = done.end().1 == Some(libc::SIGKILL);
                if !died {
                    ok(&done);
                }
                ok(&revert(pid));
                assert_eq!((switched(pid), descriptors(pid)), (0, fds.clone()), "{when}");
                if !died {
                    return false;
                }
                // At these places the thread is stopped and unchanged. epoll_pwait returns EINTR then, as after
                // SIGSTOP.
                shown += u32::from(
                    call == "epoll_pwait" && ["stop", "write"].contains(&point) && n == 1,
                );
                true
            });
        }
    }
    let saw = end(held);
    assert!(saw.starts_with(&format!("ones {woken} early ")), "{call}: {saw}");
    assert!(saw.ends_with(&format!(" spurious {shown} masks 0")), "{call}: {saw}");
}

#[test]
fn killed_in_sigsuspend() {
    killed_at_each_place(3, "sigsuspend");
}

#[test]
fn killed_in_ppoll() {
    killed_at_each_place(1, "ppoll");
}

#[test]
fn killed_in_pselect() {
    killed_at_each_place(2, "pselect");
}

#[test]
fn killed_in_epoll_pwait() {
    killed_at_each_place(0, "epoll_pwait");
}

/// TiExec releases a thread at the entry of its repeated call, which has an argument that the kernel refuses. If a
/// filter might object to that argument, TiExec looks for another thread, and here there is no other.
#[test]
fn filters_that_look_at_the_arguments() {
    require!(is_root(), "only root may read filters");
    let filter = program("seccomp_exec", Kind::StaticNoPie);
    let behind = |words: [&str; 2]| {
        let front = [filter.as_os_str(), words[0].as_ref(), words[1].as_ref()];
        waiting(masked(&["ppoll"]).behind(front))
    };
    let mut held = behind(["kill", "ppoll/4=0"]);
    let pid = held.pid();
    let before = Before::of(pid);
    for round in 1..3 {
        // After it has woken, it must be in its call again.
        sleeps(&held);
        let done = attach(pid);
        done.assert_code(1);
        assert!(done.err().contains(": seccomp: ") && done.err().contains("ppoll"), "{done}");
        assert_untouched(pid, &before);
        sleeps(&held);
        wake(&mut held, round);
    }
    assert_eq!(end(held), "ones 2 early 0 spurious 0 masks 0");

    let mut held = behind(["log", "ppoll"]);
    held.signal(libc::SIGUSR2);
    ok(&attach(held.pid()));
    wake(&mut held, 1);
    assert_eq!(end(held), "ones 1 early 0 spurious 0 masks 0");
}
