//! Whichever call the kernel refuses to the process: it is as it was before, and the next attempt works.

mod support;

use support::attached::{attach, descriptors, is_clean, is_switched, map_lines, ok, revert};
use support::{Kind, Run, program};

/// Has each call refused in turn; returns how many there are.
fn each_call_refused(pid: i32, command: fn(i32) -> Run) -> u32 {
    let (maps, fds) = (map_lines(pid), descriptors(pid));
    for n in 1..100 {
        let done = command(pid).env("TIEXEC_FAULT", format!("fail-call:{n}")).output();
        if done.status.code() == Some(0) {
            return n - 1;
        }
        done.assert_code(1);
        assert!(done.err().contains("ENOMEM") || done.err().contains("Cannot allocate"), "{done}");
        assert_eq!(map_lines(pid), maps, "{n}: {done}");
        assert_eq!(descriptors(pid), fds, "{n}: {done}");
    }
    panic!("it never succeeds");
}

#[test]
fn in_each_kind_of_program() {
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let held = Run::new(program("hold", kind), ["7"]).plain().hold();
        let pid = held.pid();
        let before = map_lines(pid);
        let calls = each_call_refused(pid, attach);
        assert!(calls >= 5, "{calls} calls: is fault injection built in?");
        assert!(is_switched(pid));
        let calls = each_call_refused(pid, revert);
        assert!(calls >= 5, "{calls} calls");
        assert!(is_clean(pid));
        assert_eq!(map_lines(pid), before);
        ok(&attach(pid).output());
        held.finish().assert_code(7);
    }
}

#[test]
fn while_its_threads_run_in_that_text() {
    let held = Run::new(program("spinner", Kind::DynamicPie), ["spin"]).plain().limit(110).hold();
    let pid = held.pid();
    assert!(each_call_refused(pid, attach) >= 5);
    assert!(each_call_refused(pid, revert) >= 5);
    held.finish().assert_code(7).assert_silent();
}
