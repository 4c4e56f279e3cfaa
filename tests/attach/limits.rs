//! If staged text exceeds a limit, TiExec reaches the limit and is charged, and the program continues unchanged.

use std::path::PathBuf;

use support::attaching::{
    Before, assert_switched, assert_untouched, attach, attach_run, is_switched, json, ok, revert,
    small, started, switched,
};
use support::machine::{
    FELT, Groups, Machine, inside, is_throwaway, memory_controller, shared_memory,
};
use support::{
    Done, Kind, Public, Run, installed, is_root, pmd_size, program_big, require, require_of_machine,
};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Two memory cgroups and the name of the limit's file.
fn groups(cgroups: &mut Groups) -> Option<([PathBuf; 2], &'static str)> {
    let (parent, limit) = memory_controller()?;
    Some(([cgroups.group(&parent)?, cgroups.group(&parent)?], limit))
}

#[test]
fn memory_cgroups() {
    require!(is_root(), "cgroups need root");
    let mut cgroups = Groups::new();
    let groups = groups(&mut cgroups);
    require!(groups.is_some(), "no memory controller");
    let ([own, theirs], limit) = groups.expect("just looked");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = inside(&theirs, Run::new(copy.path(), ["7"]).plain()).hold();
    let pid = held.pid();
    let before = Before::of(pid);

    // TiExec's own cgroup is too full.
    std::fs::write(own.join(limit), (48_u64 << 20).to_string()).expect("a limit");
    let done = inside(&own, attach_run(pid)).output();
    done.assert_code(1);
    for part in ["memcg_headroom", &own.to_string_lossy(), "memory.max"] {
        assert!(done.err().contains(part), "{part}: {done}");
    }
    assert_untouched(pid, &before);
    assert_eq!((shared_memory(&own), shared_memory(&theirs)), (0, 0));

    // The program's cgroup is full, and is not charged.
    std::fs::write(own.join(limit), (400_u64 << 20).to_string()).expect("a limit");
    let used = if limit == "memory.max" { "memory.current" } else { "memory.usage_in_bytes" };
    let used: u64 = std::fs::read_to_string(theirs.join(used))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .expect("its use");
    std::fs::write(theirs.join(limit), (used + (1 << 20)).to_string()).expect("a limit");
    ok(&inside(&own, attach_run(pid)).output());
    assert_switched(pid);
    assert_eq!((shared_memory(&own), shared_memory(&theirs)), (2 * pmd_size(), 0));
    ok(&inside(&own, Run::new(support::tiexecctl(), ["revert", &pid.to_string()]).plain())
        .output());
    assert_untouched(pid, &before);
    // The record of the revert stays in /run, which is a tmpfs on most machines: one page.
    let record = 4096;
    assert!([0, record].contains(&shared_memory(&own)), "it is given back");
    assert_eq!(shared_memory(&theirs), 0);
    held.finish().assert_code(7);
}

fn in_a_strict_machine(left: u64, judge: impl FnOnce(&Done, i32, &Before)) {
    let public = Public::new();
    let binary = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let program = public.add(&program_big("hold", Kind::DynamicNoPie, 64), "hold", 0o755);
    support::warm::cache_small(&program);
    let mut machine = Machine::lock();
    let held = Run::new(&program, ["7"]).plain().behind(NOBODY).hold();
    let pid = held.pid();
    let before = Before::of(pid);
    let args = ["attach", "--backing=image", "--json", &pid.to_string()];
    // Other processes may free memory meanwhile, so that there is room. In that case the test tries again.
    let mut attempts = 8;
    let done = loop {
        if !machine.no_overcommit(left) {
            return support::skip("the kernel does not let vm.overcommit_memory be set");
        }
        let done = started(&NOBODY, &binary, args).finish();
        attempts -= 1;
        if left >= 64 || done.status.code() != Some(0) || attempts == 0 {
            break done;
        }
        ok(&revert(pid));
    };
    drop(machine);
    judge(&done, pid, &before);
    ok(&revert(pid));
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

#[test]
fn no_overcommit_and_room() {
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root() && installed("setpriv").is_some(), "sysctls need root");
    in_a_strict_machine(1 << 10, |done, pid, _| {
        ok(done);
        assert_switched(pid);
    });
}

#[test]
fn no_overcommit_and_no_room() {
    require_of_machine!(is_throwaway(), FELT);
    require!(is_root() && installed("setpriv").is_some(), "sysctls need root");
    in_a_strict_machine(32, |done, pid, before| {
        assert!(
            ["no_huge_page", "fork_failed"].iter().any(|why| done.err().contains(why)),
            "{done}"
        );
        // Attach uses the available memory, if that is enough for a start.
        if switched(pid) > 0 {
            done.assert_code(3);
            assert_eq!(json(done)["outcome"], "partial", "{done}");
            assert!(switched(pid) < 64 << 20, "{done}");
        } else {
            done.assert_code(1);
            assert_untouched(pid, before);
        }
        // Without the limit, attach works.
        attach(pid).assert_code(0);
        assert!(is_switched(pid));
    });
}
