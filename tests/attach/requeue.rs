//! A thread that waits on a futex may have been requeued from another futex, and would return to the first futex after
//! a stop. TiExec does not stop such a thread if another thread is suitable.

use support::attaching::{attach, is_switched, json, ok, revert, switched};
use support::child::eventually;
use support::{Held, Kind, Run, program};

fn starts(how: &str) -> Held {
    let held = Run::new(program("requeue", Kind::DynamicPie), [how]).plain().hold();
    let call = || std::fs::read_to_string(format!("/proc/{}/syscall", held.pid()));
    let number = libc::SYS_futex.to_string();
    eventually("its first thread waits on a futex", || {
        call().is_ok_and(|text| text.split(' ').next() == Some(&number))
    });
    held
}

#[test]
fn who_was_moved_stays_there() {
    let mut held = starts("move");
    let pid = held.pid();
    for round in 0..5 {
        let done = attach(pid);
        ok(&done);
        assert!(is_switched(pid), "{round}");
        assert_ne!(json(&done)["attach"]["thread"], pid, "{round}: {done}");
        ok(&revert(pid));
        assert!(switched(pid) == 0, "{round}");
    }
    held.write(b"\n");
    let done = held.finish();
    assert!(done.out().contains("woken 1"), "{done}");
    done.assert_code(7).assert_silent();
}

/// A thread that waits for the end of another thread is never requeued, and is a better choice than a running thread.
#[test]
fn who_waits_for_a_thread_is_chosen() {
    let mut held = starts("join");
    let pid = held.pid();
    let done = attach(pid);
    ok(&done);
    assert_eq!(json(&done)["attach"]["thread"], pid, "{done}");
    ok(&revert(pid));
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}
