//! TiExec waits once for several calls, and ends the wait by a signal that is ignored by default. The program never
//! sees that signal of TiExec's, and loses no signal of its own.

use support::attaching::{attach, is_switched, ok, revert, switched};
use support::{Held, Kind, Run, program};

fn starts(how: &str) -> Held {
    Run::new(program("signals", Kind::DynamicPie), [how]).plain().hold()
}

/// Attaches and reverts several times. Returns the program's counts.
fn counted(how: &str) -> String {
    let mut held = starts(how);
    let pid = held.pid();
    for round in 0..5 {
        ok(&attach(pid));
        assert!(is_switched(pid), "{how} {round}");
        ok(&revert(pid));
        assert_eq!(switched(pid), 0, "{how} {round}");
    }
    held.write(b"\n");
    let done = held.finish();
    done.assert_code(7);
    done.out().lines().skip_while(|line| !line.starts_with("urg")).collect::<Vec<_>>().join(" ")
}

#[test]
fn no_handler_is_called() {
    assert_eq!(counted("handles"), "urg 0 winch 0");
    assert_eq!(counted("handles_urg"), "urg 0 winch 0");
}

#[test]
fn what_is_blocked_and_pending_stays_so() {
    assert_eq!(counted("blocks"), "urg 1 winch 1");
}

/// The kernel discards the signal before it stops the thread, which then goes home by itself. TiExec repeats the work
/// with one call at a time.
#[test]
fn another_thread_has_them_discarded() {
    let mut held = starts("flips");
    let pid = held.pid();
    for round in 0..10 {
        ok(&attach(pid));
        assert!(is_switched(pid), "{round}");
        let done = revert(pid);
        ok(&done);
        assert_eq!(switched(pid), 0, "{round}");
    }
    held.write(b"\n");
    held.finish().assert_code(7);
}
