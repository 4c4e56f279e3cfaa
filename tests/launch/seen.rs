//! What others see of a launch and of its companion, in the kernel's counters, the cgroup, the journal and `/run`.

use support::attaching::{MARK, companion, switched};
use support::child::eventually;
use support::journal;
use support::machine::{Groups, inside, memory_controller, shared_memory};
use support::smaps::{children, stat_field, status_field};
use support::store::names;
use support::{Kind, Run, is_root, program, require};

/// A launch with a copy of the text, which works with every state of the page cache, and with no companion.
fn copied() -> Run {
    Run::new(program("hold", Kind::DynamicPie), ["7"]).options(["--backing=image", "--settle=0"])
}

/// `cminflt` of proc_pid_stat(5): the page faults of the children that a process has reaped.
const FAULTS_OF_CHILDREN: usize = 11;
/// `session` of proc_pid_stat(5).
const SESSION: usize = 6;

#[test]
fn the_reaped_helper_counts_as_a_child() {
    let (plain, launched) = (copied().plain().hold(), copied().hold());
    assert_eq!(stat_field(plain.pid(), FAULTS_OF_CHILDREN), 0);
    assert!(stat_field(launched.pid(), FAULTS_OF_CHILDREN) > 0);
    assert_eq!(children(launched.pid()), [0; 0]);
    for held in [plain, launched] {
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn a_copy_is_shared_memory_of_the_program_and_of_its_cgroup() {
    let plain = copied().plain().hold();
    assert_eq!(status_field(plain.pid(), "RssShmem").as_deref(), Some("0 kB"));
    plain.finish().assert_code(7);
    require!(is_root(), "cgroups need root");
    let mut cgroups = Groups::new();
    let group = memory_controller().and_then(|(parent, _)| cgroups.group(&parent));
    require!(group.is_some(), "no memory controller");
    let group = group.expect("just looked");
    assert_eq!(shared_memory(&group), 0);
    let held = inside(&group, copied()).hold();
    let copy = switched(held.pid());
    assert!(copy > 0);
    let shown = format!("{} kB", copy >> 10);
    assert_eq!(status_field(held.pid(), "RssShmem"), Some(shown));
    assert_eq!(shared_memory(&group), copy);
    held.finish().assert_code(7).assert_silent();
    eventually("the memory is given back", || shared_memory(&group) == 0);
}

#[test]
fn no_file_and_no_record_stay() {
    require!(is_root(), "a journal in a /run of its own needs root");
    let journal = journal::listen();
    let before = names("/run");
    let held = copied().hold();
    assert!(switched(held.pid()) > 0);
    assert_eq!(names("/run"), before);
    held.finish().assert_code(7).assert_silent();
    journal::assert_empty(&journal);
}

/// The start of an idle program is over after a minute.
#[test]
fn the_companion_ends_when_the_start_is_over() {
    // The shorter the minute is, the sooner the test ends, and the less time there is to find the companion.
    for seconds_in_one in [20, 10, 5] {
        let mark = format!("ends-{}-{seconds_in_one}", std::process::id());
        let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).env(MARK, &mark);
        let held = run.env("TIEXEC_TEST_CLOCK", seconds_in_one.to_string()).hold();
        let was_there = companion(&mark).is_some();
        eventually("it has ended", || companion(&mark).is_none());
        assert_eq!(status_field(held.pid(), "TracerPid").as_deref(), Some("0"), "it lives");
        held.finish().assert_code(7).assert_silent();
        if was_there {
            return;
        }
    }
    panic!("nobody saw the companion");
}

#[test]
fn the_companion_is_beside_the_program_and_in_its_cgroup() {
    let mark = format!("beside-{}", std::process::id());
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).env(MARK, &mark);
    let held = run.options(["-q", "--settle=60s"]).hold();
    let pid = held.pid();
    let companion = companion(&mark).expect("there is a companion");
    let cgroup = |pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroup");
    assert_eq!(cgroup(companion), cgroup(pid));
    assert_ne!(stat_field(companion, SESSION), stat_field(pid, SESSION));
    assert_eq!(children(pid), [0; 0]);
    for (key, value) in [("TracerPid", "0"), ("Threads", "1")] {
        assert_eq!(status_field(pid, key).as_deref(), Some(value), "{key}");
    }
    held.finish().assert_code(7).assert_silent();
}
