//! All commands print the same message about a process without text, and exit with the same status.

use std::process::Command;

use support::attaching::ctl;
use support::child::{eventually, state};
use support::{Kind, Run, program, require};

/// Runs each command that takes a PID, and asserts its message and its status.
fn every_command_says(pid: i32, cause: &str, status: i32) {
    let state_dir = tempfile::tempdir().expect("a directory");
    let state_dir = state_dir.path().to_str().expect("UTF-8");
    let commands: &[&[&str]] = &[
        &["inspect"],
        &["advise"],
        &["report"],
        &["doctor"],
        &["attach"],
        &["revert"],
        &["bench", "--metric", "date", "--attach"],
        &["canary", "--state-dir", state_dir, "--counter", "date"],
        &["rules", "check"],
    ];
    let pid = pid.to_string();
    for command in commands {
        let done = ctl(command.iter().copied().chain([pid.as_str()]));
        done.assert_code(status);
        assert!(done.err().contains(&format!("process {pid}: ")), "{command:?}: {done}");
        assert!(done.err().ends_with(&format!(": {cause}\n")), "{command:?}: {done}");
        assert!(done.out().is_empty(), "{command:?}: {done}");
    }
}

#[test]
fn no_process() {
    // PID_MAX_LIMIT of include/linux/threads.h: no process has this PID.
    every_command_says(4 << 20, "there is no such process", 4);
}

#[test]
fn a_zombie() {
    let mut child = Command::new("/bin/true").spawn().expect("a child");
    let pid = child.id().cast_signed();
    eventually("it has ended", || state(pid) == Some('Z'));
    every_command_says(pid, "it has ended, and waits for its parent (a zombie)", 4);
    child.wait().expect("a child");
}

#[test]
fn a_kernel_thread() {
    let is_there = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    require!(is_there, "this PID namespace shows no thread of the kernel");
    every_command_says(2, "it is a kernel thread: it has no text", 1);
}

/// `/proc/PID` shows no data of such a process, but its other threads continue.
#[test]
fn a_process_without_its_first_thread_is_there() {
    let held = Run::new(program("situations", Kind::DynamicPie), ["leader"]).plain().hold();
    let pid = held.pid();
    eventually("the first thread has ended", || state(pid) == Some('Z'));
    for command in ["inspect", "doctor"] {
        let done = ctl([command, &pid.to_string()]);
        done.assert_code(0).assert_silent();
        assert!(!done.out().contains("text 0.0 MiB"), "{done}");
        assert!(!done.out().contains(" 0.0 MiB, 0.0 MiB of it huge"), "{done}");
    }
    held.finish().assert_code(7);
}
