//! If the kernel refuses any of TiExec's calls in the process, the process is unchanged, and the next attempt works.

use support::attaching::{
    attach, attach_run, descriptors, is_switched, joined, ok, revert_run, switched,
};
use support::{Kind, Run, program};

/// Makes each call fail in turn. Returns the number of calls.
fn each_call_refused(pid: i32, command: fn(i32) -> Run) -> u32 {
    let (maps, fds) = (joined(pid), descriptors(pid));
    for n in 1..100 {
        let done = command(pid).env("TIEXEC_FAULT", format!("fail-call:{n}")).output();
        if done.status.code() == Some(0) {
            return n - 1;
        }
        done.assert_code(1);
        assert!(done.err().contains("ENOMEM") || done.err().contains("Cannot allocate"), "{done}");
        assert_eq!(joined(pid), maps, "{n}: {done}");
        assert_eq!(descriptors(pid), fds, "{n}: {done}");
    }
    panic!("it never succeeds");
}

#[test]
fn in_each_kind_of_program() {
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let held = Run::new(program("hold", kind), ["7"]).plain().hold();
        let pid = held.pid();
        let before = joined(pid);
        let calls = each_call_refused(pid, attach_run);
        assert!(calls >= 5, "{calls} calls: is fault injection built in?");
        assert!(is_switched(pid));
        let calls = each_call_refused(pid, revert_run);
        assert!(calls >= 5, "{calls} calls");
        assert!(switched(pid) == 0);
        assert_eq!(joined(pid), before);
        ok(&attach(pid));
        held.finish().assert_code(7);
    }
}

#[test]
fn while_its_threads_run_in_that_text() {
    let held = Run::new(program("spinner", Kind::DynamicPie), ["spin"]).plain().hold();
    let pid = held.pid();
    assert!(each_call_refused(pid, attach_run) >= 5);
    assert!(each_call_refused(pid, revert_run) >= 5);
    held.finish().assert_code(7).assert_silent();
}
