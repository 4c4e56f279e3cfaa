//! Under another tracer the program runs plain, and tiexec says why. After a launch, a tracer finds a normal program.

use std::path::Path;
use std::process::{Command, Stdio};

use support::child::eventually;
use support::smaps::status_field;
use support::{Kind, Run, installed, program, require};

#[test]
fn under_strace() {
    require!(installed("strace").is_some(), "no strace");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let log = log.to_string_lossy();
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        for options in [&["-f"][..], &[], &["-ff"]] {
            let mut front = vec!["strace", "-o", &log];
            front.extend(options);
            let run = Run::new(program("exits", kind), ["code", "7"]).options(["--backing=image"]);
            let done = run.behind(&front).output();
            done.assert_code(7).assert_failed_open(&["already_traced"]);
            assert_eq!(done.out(), "ran\n", "{done}");
        }
    }
    let done = Run::new(program("exits", Kind::DynamicPie), ["signal", "15"])
        .behind(["strace", "-f", "-o", &log])
        .output();
    done.assert_signal(libc::SIGTERM);
}

#[test]
fn a_small_program_is_two_execs_and_no_fork() {
    require!(installed("strace").is_some(), "no strace");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let done = Run::new("/bin/true", [""; 0])
        .options(["--settle=0"])
        .behind(["strace", "-f", "-o", &log.to_string_lossy()])
        .output();
    done.assert_code(0).assert_silent();
    let log = std::fs::read_to_string(&log).expect("strace's log");
    let count = |call: &str| log.lines().filter(|l| l.contains(&format!(" {call}("))).count();
    assert_eq!(count("execve"), 2, "{log}");
    for call in ["clone", "clone3", "fork", "vfork", "ptrace", "memfd_create"] {
        assert_eq!(count(call), 0, "{call}: {log}");
    }
}

#[test]
fn under_gdb() {
    require!(installed("gdb").is_some(), "no gdb");
    let gdb = [
        "gdb",
        "-nx",
        "-batch",
        "-ex",
        "set startup-with-shell off",
        "-ex",
        "set confirm off",
        "-ex",
        "run",
        "--args",
    ];
    // Without a shell, gdb takes a blank for the end of an argument.
    let (tool, exits) = (support::without_blanks(support::tiexec()), |kind| {
        support::without_blanks(&program("exits", kind))
    });
    let run = Run::new(exits(Kind::StaticNoPie), ["code", "7"]).binary(&tool);
    let done = run.options(["--backing=image"]).behind(gdb).output();
    done.assert_code(0);
    assert!(done.out().contains("exited with code 07"), "{done}");
    assert!(done.out().contains("ran"), "{done}");
    assert!(done.err().contains("already_traced"), "{done}");
    let done =
        Run::new(exits(Kind::DynamicPie), ["signal", "11"]).binary(&tool).behind(gdb).output();
    assert!(done.out().contains("SIGSEGV"), "{done}");
}

/// Runs a debugger's commands on a held program.
fn gdb(pid: i32, program: &Path, commands: &[&str]) -> String {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    for c in commands {
        command.args(["-ex", c]);
    }
    let output = command
        .arg("-p")
        .arg(pid.to_string())
        .arg(program)
        .stdin(Stdio::null())
        .output()
        .expect("gdb");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn gdb_attaches_and_breaks_in_switched_text() {
    require!(installed("gdb").is_some(), "no gdb");
    let path = program("hold", Kind::StaticNoPie);
    let mut held = Run::new(&path, ["7"]).hold();
    assert!(held.coverage().is_full());
    // big_middle lies in the middle of the huge text, and runs again once the program continues.
    held.write(b"\n");
    let said = gdb(held.pid(), &path, &["x/i big_middle", "print (unsigned) big_middle(7)"]);
    drop(said);
    held.finish().assert_code(7).assert_silent();

    let held = Run::new(&path, ["7"]).hold();
    let want = ((7_u32.wrapping_mul(16_777_619)) ^ (6 * 4096 / 2)).rotate_left(5);
    let said = gdb(
        held.pid(),
        &path,
        &[
            "break *big_middle",
            "print ((unsigned (*)(unsigned)) big_middle)(7)",
            "finish",
            "delete",
            "detach",
        ],
    );
    assert!(said.contains("Breakpoint 1"), "{said}");
    assert!(
        said.contains("stopped in a function called from GDB") || said.contains("big_middle"),
        "{said}"
    );
    let said =
        gdb(held.pid(), &path, &["print ((unsigned (*)(unsigned)) big_middle)(7)", "detach"]);
    assert!(said.contains(&format!("= {want}")), "{want}: {said}");
    // The program runs its whole text again, so the breakpoint is gone and the text unchanged.
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn strace_attaches_after_the_launch() {
    require!(installed("strace").is_some(), "no strace");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let held = Run::new(program("hold", Kind::DynamicPie), ["7"]).hold();
    let pid = held.pid();
    let mut strace = Command::new("strace")
        .args(["-q", "-o"])
        .arg(&log)
        .args(["-p", &pid.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("strace");
    eventually("strace has attached", || {
        status_field(pid, "TracerPid").is_some_and(|t| t == strace.id().to_string())
    });
    held.finish().assert_code(7).assert_silent();
    strace.wait().expect("an own child");
    let log = std::fs::read_to_string(&log).expect("strace's log");
    assert!(log.contains("exit_group(7)") && log.contains("exited with 7"), "{log}");
}

#[test]
fn perf_and_friends_see_a_named_mapping() {
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]).options(["--backing", "image"]);
    let held = run.hold();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", held.pid())).expect("maps");
    assert!(
        maps.lines()
            .any(|l| l.contains(" r-xp ")
                && l.ends_with("/memfd:tiexec:hold-dynamicpie-6 (deleted)")),
        "{maps}"
    );
    held.finish().assert_code(7).assert_silent();
}
