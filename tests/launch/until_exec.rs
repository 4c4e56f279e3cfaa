//! `--until-exec=NAME` stays through the execs of one process, treats that program, and detaches.

use std::path::Path;

use support::child::eventually;
use support::smaps::{children, status_field};
use support::{Kind, Run, installed, is_root, program, require};

fn name(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

/// Holds the last program of a chain of execs, and checks that it is treated and has no other process.
fn assert_treated(run: &Run) {
    let held = run.hold();
    assert_eq!(held.said_pid(), held.pid(), "one PID throughout");
    assert!(held.coverage().is_full(), "{}: {:?}", held.command, held.coverage());
    assert_eq!(status_field(held.pid(), "TracerPid").as_deref(), Some("0"));
    assert_eq!(children(held.pid()), Vec::<i32>::new());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn through_a_shell() {
    for kind in support::programs::COMMON {
        let hold = program("hold", kind);
        let option = format!("--until-exec={}", name(&hold));
        let script = format!("exec '{}' 7", hold.display());
        assert_treated(&Run::new("sh", ["-c", &script]).options([&option]));
        // The shell first starts children, a pipeline and a subshell.
        let script = format!(
            "true; (exit 3); x=$(echo a | cat); test \"$x\" = a || exit 1; exec '{}' 7",
            hold.display()
        );
        assert_treated(&Run::new("sh", ["-c", &script]).options([&option]));
    }
}

#[test]
fn through_many_execs_and_scripts() {
    let hold = program("hold", Kind::DynamicPie);
    let option = format!("--until-exec={}", name(&hold));
    let reexec = program("reexec", Kind::DynamicPie);
    let hold = hold.as_os_str();
    assert_treated(&Run::new(&reexec, ["0".as_ref(), hold, "7".as_ref()]).options([&option]));
    assert_treated(&Run::new(&reexec, ["30".as_ref(), hold, "7".as_ref()]).options([&option]));
    assert_treated(
        &Run::new("env", ["A=b".as_ref(), "nice".as_ref(), "nohup".as_ref(), hold, "7".as_ref()])
            .options([&option]),
    );
    let dir = tempfile::tempdir().expect("a directory");
    let entrypoint = dir.path().join("entrypoint.sh");
    support::write_program(&entrypoint, b"#!/bin/sh\nset -e\n: work\nexec \"$@\"\n", 0o755);
    assert_treated(&Run::new(&entrypoint, [hold, "7".as_ref()]).options([&option]));
    // The option comes from the environment, as in a container's settings.
    let value = option.trim_start_matches("--").to_owned();
    assert_treated(&Run::new(&entrypoint, [hold, "7".as_ref()]).env("TIEXEC", value));
}

#[test]
fn the_program_itself_may_be_the_one() {
    let hold = program("hold", Kind::DynamicPie);
    let option = format!("--until-exec={}", name(&hold));
    assert_treated(&Run::new(&hold, ["7"]).options([&option]));
}

#[test]
fn through_a_change_of_user() {
    require!(is_root() && installed("setpriv").is_some(), "becoming another user needs root");
    let public = support::Public::new();
    let hold = public.add(&program("hold", Kind::DynamicPie), "hold-public", 0o755);
    let args =
        ["--reuid", "65534", "--regid", "65534", "--clear-groups", &hold.to_string_lossy(), "7"]
            .map(str::to_owned);
    assert_treated(&Run::new("setpriv", args).options(["--until-exec=hold-public"]));
}

#[test]
fn a_name_that_never_comes() {
    let option = "--until-exec=never-to-come";
    Run::new("sh", ["-c", "exit 9"]).options([option]).output().assert_code(9);
    Run::new("sh", ["-c", "kill -TERM $$"]).options([option]).output().assert_signal(libc::SIGTERM);
    // The execs of other programs are unharmed and not treated.
    let hold = program("hold", Kind::DynamicPie);
    let held =
        Run::new("sh", ["-c", &format!("exec '{}' 7", hold.display())]).options([option]).hold();
    assert_eq!(held.coverage().huge, 0);
    held.finish().assert_code(7);
    let subreaper = program("subreaper", Kind::DynamicPie);
    let done = Run::new("sh", ["-c", "exit 9"]).options([option]).behind([&subreaper]).output();
    assert!(done.out().starts_with("exited 9\n"), "{done}");
}

/// With a wrong name, the program is traced only until the time limit of a start.
#[test]
fn a_name_that_does_not_come_in_time() {
    let hold = program("hold", Kind::DynamicPie);
    let script = format!("exec '{}' 7", hold.display());
    let run = Run::new("sh", ["-c", &script]).options(["--until-exec=never-to-come"]);
    let held = run.env("TIEXEC_TEST_CLOCK", "4").hold();
    let tracer = || status_field(held.pid(), "TracerPid");
    assert_ne!(tracer().as_deref(), Some("0"));
    eventually("it is no longer traced", || tracer().as_deref() == Some("0"));
    let done = held.finish();
    done.assert_code(7);
    assert!(done.err().contains("never-to-come was not reached: not within 15 s"), "{done}");
}

#[test]
fn other_processes_of_that_name_are_left_alone() {
    let hold = program("hold", Kind::DynamicPie);
    // A child of the shell executes a program of that name first. That program runs, but only the shell's own exec
    // counts.
    let script = format!(
        "'{0}' 3 </dev/null >/dev/null; test $? = 3 || exit 1; exec '{0}' 7",
        hold.display()
    );
    assert_treated(
        &Run::new("sh", ["-c", &script]).options([format!("--until-exec={}", name(&hold))]),
    );
}

#[test]
fn signals_and_stops_on_the_way_are_the_shells() {
    let hold = program("hold", Kind::DynamicPie);
    let option = format!("--until-exec={}", name(&hold));
    let script = format!(
        "trap 'echo trapped' USR1; kill -USR1 $$; kill -USR1 $$; exec '{}' 7",
        hold.display()
    );
    let held = Run::new("sh", ["-c", &script]).options([&option]).hold();
    assert_eq!(
        held.out_text().lines().filter(|l| *l == "trapped").count(),
        2,
        "{}",
        held.out_text()
    );
    assert!(held.coverage().is_full());
    held.finish().assert_code(7).assert_silent();

    let script =
        format!("echo stopping; kill -STOP $$; echo continued; exec '{}' 7", hold.display());
    let mut held = Run::new("sh", ["-c", &script]).options([&option]).start();
    held.wait_line("stopping");
    assert_eq!(held.wait_stopped(), libc::SIGSTOP);
    held.signal(libc::SIGCONT);
    held.wait_line("ready");
    assert!(held.out_text().contains("continued\n"));
    assert!(held.coverage().is_full());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn the_time_before_the_exec_does_not_count() {
    let hold = program("hold", Kind::DynamicPie);
    let script = format!("read line; exec '{}' 7", hold.display());
    let mut held = Run::new("sh", ["-c", &script])
        .options([format!("--until-exec={}", name(&hold)), "--deadline=100ms".to_owned()])
        .start();
    // The shell waits for longer than the deadline, which limits only staging.
    let pid = held.pid();
    eventually("the shell is there", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c == "sh\n")
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    held.write(b"go\n");
    held.wait_line("ready");
    assert!(held.coverage().is_full(), "{:?}", held.coverage());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn an_exec_that_fails_on_the_way_is_not_the_one() {
    let hold = program("hold", Kind::DynamicPie);
    let script =
        format!("(exec /nonexistent/{1}) 2>/dev/null; exec '{0}' 7", hold.display(), name(&hold));
    assert_treated(
        &Run::new("sh", ["-c", &script]).options([format!("--until-exec={}", name(&hold))]),
    );
}
