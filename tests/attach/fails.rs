//! If the kernel refuses any of TiExec's calls in the process, the process is unchanged, and the next attempt works.

use support::attaching::{
    attach, attach_run, descriptors, files_joined, is_switched, joined, ok, revert, revert_run,
    switched,
};
use support::extent::is_whole;
use support::{Kind, Run, program};

/// Makes the call `n` fail. Returns false if the command succeeded all the same; else the process must be unchanged.
fn is_refused(pid: i32, command: fn(i32) -> Run, n: u32) -> bool {
    let (maps, fds) = (joined(pid), descriptors(pid));
    let done = command(pid).env("TIEXEC_FAULT", format!("fail-call:{n}")).output();
    assert_eq!(descriptors(pid), fds, "{n}: {done}");
    if done.status.code() == Some(0) {
        return false;
    }
    done.assert_code(1);
    assert!(done.err().contains("ENOMEM") || done.err().contains("Cannot allocate"), "{done}");
    assert_eq!(joined(pid), maps, "{n}: {done}");
    true
}

/// Makes every `step`th call of an attach fail in turn. Returns the number of the first call that there was not.
fn each_call_refused(pid: i32, step: usize) -> u32 {
    let mut calls = (1..100).step_by(step);
    calls.find(|&n| !is_refused(pid, attach_run, n)).expect("an attach makes fewer calls")
}

/// Makes every `step`th call of a revert fail in turn, and reverts at last. If the file's own pages beside a copy cannot be mapped
/// anew, a revert succeeds without them.
fn reverted_with_each_call_refused(pid: i32, step: usize) {
    ok(&revert(pid));
    let (before, mut refused) = (files_joined(pid), 0);
    for n in (1..20).step_by(step) {
        if switched(pid) == 0 {
            ok(&attach(pid));
        }
        let is_refused = is_refused(pid, revert_run, n);
        refused += usize::from(is_refused);
        assert!(is_refused || files_joined(pid) == before, "call {n}: {:#?}", joined(pid));
    }
    assert!(refused * step >= 2, "{refused} calls were refused");
    if switched(pid) == 0 {
        ok(&attach(pid));
    }
    ok(&revert(pid));
    assert_eq!(switched(pid), 0);
}

#[test]
fn in_each_kind_of_program() {
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let held = Run::new(program("hold", kind), ["7"]).plain().hold();
        let pid = held.pid();
        let before = joined(pid);
        let beyond = each_call_refused(pid, 1);
        assert!(beyond > 5, "no call {beyond}: is fault injection built in?");
        assert!(is_switched(pid));
        reverted_with_each_call_refused(pid, 1);
        assert_eq!(joined(pid), before);
        ok(&attach(pid));
        held.finish().assert_code(7);
    }
}

/// The busy program has every third call of those above, because it uses both processors all the time.
#[test]
fn while_its_threads_run_in_that_text() {
    let step = if is_whole() { 1 } else { 3 };
    let held = Run::new(program("spinner", Kind::DynamicPie), ["spin"]).plain().hold();
    let pid = held.pid();
    assert!(each_call_refused(pid, step) > 5);
    reverted_with_each_call_refused(pid, step);
    held.finish().assert_code(7).assert_silent();
}
