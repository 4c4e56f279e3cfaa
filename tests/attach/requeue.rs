//! A thread that waits on a futex may have been moved there from another futex, and would return to that one if it were stopped. TiExec
//! does not stop such a thread while another will do.

use support::attaching::{attach, is_switched, json, ok, revert, switched};
use support::child::eventually;
use support::{Held, Kind, Run, program};

fn starts(how: &str) -> Held {
    let held = Run::new(program("requeue", Kind::DynamicPie), [how]).plain().limit(60).hold();
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

/// Nobody moves a thread that waits for another one's end: it takes a stop better than one that runs.
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
