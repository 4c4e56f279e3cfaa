//! TiExec's child processes do not show the command line of the program that they work for, so that `pgrep -f` and
//! `pkill -f` find only the program.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use support::attaching::{small, switched};
use support::child::eventually;
use support::smaps::children;
use support::{Held, Kind, Run, program};

fn text(pid: i32, file: &str) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

fn every_process() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the processes of these programs and of TiExec that have this among their arguments, as `pgrep -f` sees it.
/// (A scan of all processes might block on a process of another test.)
fn found_by(word: &str, programs: &[&Path]) -> Vec<i32> {
    let runs = |pid: &i32| {
        std::fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|exe| exe == support::tiexec() || programs.contains(&&*exe))
    };
    let has = |pid: &i32| String::from_utf8_lossy(&text(*pid, "cmdline")).contains(word);
    every_process().into_iter().filter(runs).filter(has).collect()
}

/// The process of this name with the environment of the launch.
fn called(name: &str, environment: &str) -> Option<i32> {
    every_process().into_iter().find(|&pid| {
        let is_of_it = |one: &[u8]| one == environment.as_bytes();
        text(pid, "comm") == format!("{name}\n").as_bytes()
            && text(pid, "environ").split(|&byte| byte == 0).any(is_of_it)
    })
}

/// A kill by the program's command line kills only the program, and the program reports the death of no other process.
fn killed_alone(held: Held, word: &str, programs: &[&Path]) {
    let found = found_by(word, programs);
    assert_eq!(found, [held.pid()]);
    for pid in found {
        // SAFETY: kill has no memory conditions.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
    held.finish().assert_signal(libc::SIGTERM);
}

#[test]
fn the_helper_of_a_launch() {
    let hold = program("hold", Kind::DynamicPie);
    let sh = std::fs::canonicalize("/bin/sh").expect("a shell");
    // The helper stays until the shell has become the program.
    let script = format!("echo begun; read go; exec '{}' 7", hold.display());
    let word = format!("helper-{}", std::process::id());
    let run = Run::new("sh", ["-c", &script, &word])
        .options([format!("--until-exec={}", hold.display())]);
    let begun = || {
        let mut held = run.start();
        held.wait_line("begun");
        let helper = children(held.pid());
        assert_eq!(helper.len(), 1, "{helper:?}");
        assert_eq!(text(helper[0], "comm"), b"tiexec-helper\n");
        assert_eq!(text(helper[0], "cmdline"), b"tiexec-helper\0");
        assert_eq!(found_by(&word, &[&sh]), [held.pid()]);
        (held, helper[0])
    };
    let (mut held, _) = begun();
    held.write(b"\n");
    held.wait_line("ready");
    held.assert_full();
    held.finish().assert_code(7).assert_silent();

    let (held, helper) = begun();
    killed_alone(held, &word, &[&sh]);
    eventually("the helper ends with the program", || text(helper, "comm").is_empty());
}

#[test]
fn the_companion_of_a_program() {
    let hold = program("hold", Kind::DynamicPie);
    for options in [&["--follow"][..], &["--settle=60s"]] {
        let word = format!("companion-{}{}", std::process::id(), options[0]);
        let environment = format!("MARK={word}");
        let run = Run::new(&hold, ["7", &word]).options(options).env("MARK", &word);
        let held = run.hold();
        let companion = called("tiexec-follower", &environment).expect("there is a companion");
        assert_eq!(text(companion, "cmdline"), b"tiexec-follower\0");
        killed_alone(held, &word, &[&hold]);
        eventually("it ends with the program", || text(companion, "comm").is_empty());
    }
}

/// Runs `t ./a`, with these arguments in between and only this environment.
fn short(dir: &Path, options: &[&str], environment: &[(&str, &str)]) -> Held {
    let mut command = Command::new(dir.join("t"));
    command.arg0("t").args(options).arg("./a").current_dir(dir);
    command.env_clear().envs(environment.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut held = Held::spawn(command, "t ./a".to_owned(), support::child::LONGEST, true);
    held.wait_line("ready");
    held
}

/// If the command line has less room than the helper's name, the helper still reads the environment behind the command
/// line.
#[test]
fn a_name_that_is_longer_than_the_command_line() {
    let copy = small("hold", Kind::DynamicNoPie);
    let dir = copy.dir();
    std::fs::rename(copy.path(), dir.join("a")).expect("an own directory");
    symlink(support::tiexec(), dir.join("t")).expect("an own directory");
    for (when, struck) in [("1", true), ("199", false)] {
        let fault = format!("die-after-setregs:{when}");
        let held = short(dir, &[], &[("TIEXEC_FAULT", &fault), ("TIEXEC", "backing=image")]);
        assert_eq!(switched(held.pid()) == 0, struck, "{fault}");
        held.finish().assert_code(0);
    }
    let program = dir.join("a");
    for environment in
        [&[][..], &[("A", "b")], &[("SOME", "thing"), ("MORE", "things, and a few more")]]
    {
        let held = short(dir, &["-f"], environment);
        assert_eq!(found_by("./a\0", &[&program]), [held.pid()]);
        held.finish().assert_code(0);
    }
}
