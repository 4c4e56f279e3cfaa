//! What others see of an attach and of a revert: in the program's `/proc` directory, as its parent, and in `/run`.

use std::sync::atomic::{AtomicBool, Ordering};

use support::attaching::{assert_switched, attach, descriptors, held, ok, revert, small, switched};
use support::child::soon;
use support::smaps::{children, mappings, status_field};
use support::store::names;
use support::{Kind, is_root, require};

/// Says what `/proc` shows of the program besides its mappings.
fn facts(pid: i32) -> Vec<String> {
    // These change by themselves. SigQ counts the signals of all processes of the user.
    let counters = ["State", "Vm", "Rss", "HugetlbPages", "SigQ", "voluntary", "nonvoluntary"];
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let status = read("status");
    let lines = status.lines().filter(|line| !counters.iter().any(|one| line.starts_with(one)));
    let mut facts: Vec<String> = lines.map(str::to_owned).collect();
    let files = ["environ", "cmdline", "limits", "cgroup", "oom_score_adj", "coredump_filter"];
    facts.extend(files.map(|file| format!("{file}: {}", read(file))));
    // SAFETY: the call takes a number only.
    let policy = unsafe { libc::sched_getscheduler(pid) };
    facts.push(format!("scheduling policy {policy}"));
    facts.push(format!("children {:?}", children(pid)));
    facts.extend(descriptors(pid));
    facts
}

/// Says what the parent of a process could reap or hear of now.
fn told_to_its_parent(pid: i32) -> i32 {
    let events = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: all zero is a value of this structure.
    let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call.
    let done = unsafe { libc::waitid(libc::P_PID, pid as u32, &raw mut told, events) };
    assert_eq!(done, 0, "waitid: {}", std::io::Error::last_os_error());
    // SAFETY: waitid has filled it in, or left it at zero.
    unsafe { told.si_pid() }
}

#[test]
fn the_program_and_its_parent_see_nothing_else() {
    let copy = small("hold", Kind::DynamicPie);
    let held = held(&copy);
    let pid = held.pid();
    let before = facts(pid);
    assert!(before.contains(&"TracerPid:\t0".to_owned()), "{before:?}");
    for _ in 0..3 {
        ok(&attach(pid));
        assert_switched(pid);
        assert_eq!((facts(pid), told_to_its_parent(pid)), (before.clone(), 0));
        ok(&revert(pid));
        assert_eq!((facts(pid), told_to_its_parent(pid)), (before.clone(), 0));
    }
    held.finish().assert_code(7).assert_silent();
}

/// The stop is short. So a thread looks without a pause while the program is attached to and reverted by turns.
#[test]
fn whoever_looks_at_that_moment_sees_a_tracer() {
    let copy = small("hold", Kind::DynamicPie);
    let held = held(&copy);
    let pid = held.pid();
    let tracer = || status_field(pid, "TracerPid").expect("it lives");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if tracer() != "0" {
                    return true;
                }
            }
            false
        });
        soon(|| {
            ok(&attach(pid));
            ok(&revert(pid));
            looks.is_finished()
        });
        over.store(true, Ordering::Relaxed);
        assert!(looks.join().expect("it does not panic"), "nobody saw the tracer");
    });
    assert_eq!(tracer(), "0");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn two_mappings_more_and_the_copy_as_shared_memory() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    let shared = || status_field(pid, "RssShmem").expect("Linux 4.5");
    let before = mappings(pid).len();
    assert_eq!(shared(), "0 kB");
    ok(&attach(pid));
    assert_eq!(shared(), format!("{} kB", switched(pid) >> 10));
    assert_eq!(mappings(pid).len(), before + 2);
    ok(&revert(pid));
    assert_eq!(shared(), "0 kB");
    assert!(mappings(pid).len() <= before + 2);
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn the_directory_of_locks_is_all_that_stays_in_run() {
    require!(is_root(), "a /run of its own needs root");
    const OURS: &str = "/run/tiexec";
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    ok(&attach(pid));
    assert_eq!(names(OURS), ["lock"]);
    // The file says when the directory was last tidied up.
    assert_eq!(names(format!("{OURS}/lock")), [".swept"]);
    ok(&revert(pid));
    assert_eq!(names(OURS), ["lock"]);
    // A record of the revert may stay while the process lives.
    let locks = names(format!("{OURS}/lock"));
    let of_it = |name: &String| name == ".swept" || name.contains(&format!("-{pid}-"));
    assert!(locks.len() <= 2 && locks.iter().all(of_it), "{locks:?}");
    held.finish().assert_code(7).assert_silent();
}
