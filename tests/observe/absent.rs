//! All commands print the same message about a process without text, and exit with the same status.

use std::process::Command;

use support::attaching::{ctl, json};
use support::child::{eventually, state};
use support::{Kind, Run, installed, is_root, program, require};

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

/// An init of a PID namespace waits for the end of its last child, after it has lost its memory (`zap_pid_ns_processes` in
/// `kernel/pid_namespace.c`). The child's tracer is stopped, so the child stays a zombie.
#[test]
fn a_process_that_is_ending() {
    require!(is_root(), "a PID namespace needs root");
    require!(installed("strace").is_some(), "no strace");
    let children = |pid: i32| -> Vec<i32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let text = text.unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let script = "sleep 600 & echo ready; wait";
    let argv = ["--pid", "--fork", "--kill-child", "sh", "-c", script];
    let mut unshare = Run::new("unshare", argv).plain().start();
    unshare.wait_line("ready");
    let init = children(unshare.pid())[0];
    let child = children(init)[0];
    let mut strace =
        Run::new("strace", ["-o", "/dev/null", "-p", &child.to_string()]).plain().start();
    eventually("strace traces it", || strace.err_text().contains(" attached"));
    let tracer = strace.pid();
    // SAFETY: kill takes numbers; all of these are processes of this test.
    let kill = |pid: i32, signal: i32| assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "{pid}");
    kill(tracer, libc::SIGSTOP);
    eventually("strace is stopped", || state(tracer) == Some('T'));
    kill(init, libc::SIGKILL);
    eventually("init has no memory", || {
        std::fs::read_to_string(format!("/proc/{init}/status"))
            .is_ok_and(|status| !status.contains("VmSize:"))
    });
    assert_ne!(state(init), Some('Z'));
    every_command_says(init, "it is ending", 4);
    strace.signal(libc::SIGKILL);
    strace.finish().assert_signal(libc::SIGKILL);
    drop(unshare);
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
    // No other process of the tests runs this file.
    let directory = tempfile::tempdir().expect("a directory");
    let copy = directory.path().join("leader");
    std::fs::copy(program("situations", Kind::DynamicPie), &copy).expect("a copy");
    let held = Run::new(&copy, ["leader"]).plain().hold();
    let pid = held.pid();
    eventually("the first thread has ended", || state(pid) == Some('Z'));
    for command in ["inspect", "doctor"] {
        let done = ctl([command, &pid.to_string()]);
        done.assert_code(0).assert_silent();
        assert!(!done.out().contains("text 0.0 MiB"), "{done}");
        assert!(!done.out().contains(" 0.0 MiB, 0.0 MiB of it huge"), "{done}");
    }
    let status = json(&ctl(["status", "--json"]));
    let programs = status["programs"].as_array().expect("programs");
    let is_its = |row: &&serde_json::Value| row["exe"] == copy.to_string_lossy().as_ref();
    let row = programs.iter().find(is_its).expect("a row of its program");
    assert!(row["text_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{row}");
    held.finish().assert_code(7);
}
