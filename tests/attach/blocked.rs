//! A thread that sleeps in a system call notices no attach and no revert: not in the result, not in the time, not in
//! its registers. If the thread would notice, attach refuses and changes nothing.

use support::attaching::{
    attach, attach_run, descriptors, is_switched, joined, json, ok, revert, switched, wait_call,
};
use support::child::{Held, eventually, state};
use support::{Kind, Run, program};

/// Starts the program and waits until it sleeps in its call.
fn asleep(situation: &str) -> Held {
    let mut held = Run::new(program("blocked", Kind::DynamicPie), [situation]).plain().start();
    held.wait_line("ready");
    wait_call(held.pid(), &held.said("call").expect("the call's number"));
    held
}

/// Wakes the program, returns its observations, and checks its end.
fn woken(mut held: Held) -> String {
    if held.said("saw").is_none() {
        held.write(b"\n");
    }
    while held.said("saw").is_none() {
        held.wait_more();
    }
    let saw = held.said("saw").expect("it was waited for");
    held.finish().assert_code(7);
    assert!(saw.contains("intact 1"), "registers: {saw}");
    saw
}

/// Returns the program's view of its call without an attach.
fn undisturbed(situation: &str) -> String {
    woken(asleep(situation))
}

/// Attaches and reverts several times while the program sleeps. The program notices nothing and sleeps on.
fn sees_nothing(situation: &str) {
    let mut held = asleep(situation);
    let pid = held.pid();
    let (maps, fds) = (joined(pid), descriptors(pid));
    for round in 0..3 {
        ok(&attach(pid));
        assert!(is_switched(pid), "{situation} {round}: {:?}", held.coverage());
        ok(&revert(pid));
        assert!(switched(pid) == 0, "{situation} {round}");
        assert_eq!(joined(pid), maps, "{situation} {round}");
        assert_eq!(descriptors(pid), fds, "{situation} {round}");
    }
    assert!(!held.has_said("saw"), "{situation}: still asleep");
    let call = held.said("call").expect("the call's number");
    wait_call(pid, &call);
    ok(&attach(pid));
    // On a busy machine the program may return to its sleep only now. If the futex were woken earlier, its value would
    // have changed before the sleep (EAGAIN).
    wait_call(pid, &call);
    assert_eq!(woken(held), undisturbed(situation), "{situation}");
}

/// Attaches and reverts without pause while the program sleeps for a time. The program still wakes in time.
fn wakes_in_time(situation: &str) {
    let mut held = asleep(situation);
    let pid = held.pid();
    let mut rounds = 0;
    while !held.has_said("saw") {
        ok(&attach(pid));
        ok(&revert(pid));
        rounds += 1;
    }
    assert!(rounds > 0, "{situation}: it was never interrupted");
    assert_eq!(woken(held), undisturbed(situation), "{situation}");
}

/// The program would notice an interruption, so attach refuses.
fn refused(situation: &str) {
    let mut held = asleep(situation);
    let pid = held.pid();
    let (maps, fds) = (joined(pid), descriptors(pid));
    let done = attach(pid);
    // The call may have ended while attach waited for a better moment.
    if !held.has_said("saw") {
        done.assert_code(1);
        assert!(done.err().contains("no_thread"), "{situation}: {done}");
        assert_eq!((joined(pid), descriptors(pid)), (maps, fds), "{situation}");
    }
    assert_eq!(woken(held), undisturbed(situation), "{situation}");
}

/// An interruption would end the wait. Attach has the kernel make the call again, whose timeout then begins again. It does
/// so only until the wait would have ended anyway. So the program wakes, also if it is attached to without pause.
fn waits_again(situation: &str) {
    let mut held = asleep(situation);
    let pid = held.pid();
    let done = attach(pid);
    ok(&done);
    assert_eq!(json(&done)["attach"]["interrupted"], false, "{done}");
    assert!(is_switched(pid), "{situation}: {:?}", held.coverage());
    while !held.has_said("saw") {
        for done in [revert(pid), attach(pid)] {
            // Nothing is stopped once the wait is overdue.
            assert!(done.end().0 == Some(0) || done.err().contains("no_thread"), "{done}");
        }
    }
    assert_eq!(woken(held), undisturbed(situation), "{situation}");
}

macro_rules! situations {
    ($check:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $check(stringify!($name));
        }
    )+};
}

situations!(sees_nothing: futex poll ppoll_signal select pselect_signal read read_eventfd recv accept wait4 waitid sigsuspend msgrcv flock);
// If a call shows EINTR and waits without a limit, attach repeats the call.
situations!(sees_nothing: epoll_wait epoll_pwait epoll_wait_signal epoll_pwait_signal io_uring_enter semop sigwait);
situations!(wakes_in_time: futex_timeout nanosleep clock_nanosleep poll_timeout ppoll_timeout select_timeout read_timerfd pause_itimer);
situations!(waits_again: epoll_wait_timeout semtimedop sigtimedwait epoll_wait_catching);
situations!(refused: write recv_all recv_at_least);
// The registers of aarch64 do not show whether a socket had a timeout.
#[cfg(target_arch = "x86_64")]
situations!(waits_again: recv_timeout accept_timeout);
#[cfg(not(target_arch = "x86_64"))]
situations!(refused: recv_timeout accept_timeout);

/// The wait begins after TiExec has looked at the thread, and before TiExec stops it. TiExec knows the end of this wait, too, so
/// the revert may stop the thread in it.
#[test]
fn a_wait_that_begins_meanwhile() {
    let mut held =
        Run::new(program("waits_anew", Kind::DynamicPie), [] as [&str; 0]).plain().start();
    held.wait_line("ready");
    let pid = held.pid();
    eventually("the program waits", || state(pid) == Some('S'));
    ok(&attach_run(pid).env("TIEXEC_FAULT", "continue-before-seize:1").output());
    assert!(is_switched(pid), "{:?}", held.coverage());
    ok(&revert(pid));
    assert_eq!(switched(pid), 0);
    held.signal(libc::SIGKILL);
    assert_eq!(held.finish().out(), "ready\nanew\n");
}

#[test]
fn restart_syscall() {
    let mut held = asleep("nanosleep");
    let pid = held.pid();
    held.signal(libc::SIGSTOP);
    assert_eq!(held.wait_stopped(), libc::SIGSTOP);
    held.signal(libc::SIGCONT);
    // The test does not wait for the sleep, because the sleep is short and only its result counts.
    while !held.has_said("saw") {
        ok(&attach(pid));
        ok(&revert(pid));
    }
    assert_eq!(woken(held), undisturbed("nanosleep"));
}
