//! A product that standard output does not take is never lost in silence, be that closed or full.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::attaching::{ctl, held, small};
use support::{Kind, program, tiexec, tiexecctl, tiexecd};

/// Runs it by the shell, with standard output redirected.
fn with(redirection: &str, tool: &Path, words: &[&str]) -> Output {
    let script = format!("exec \"$@\" {redirection}");
    let mut shell = Command::new("bash");
    shell.args(["-c", &script, "bash"]).arg(tool).args(words).output().expect("bash")
}

/// Each must fail with the status, and say why in one line.
fn assert_told(tool: &Path, words: &[&str], status: i32, subject: &str) {
    for (redirection, why) in
        [(">&-", "bad file descriptor (EBADF)"), (">/dev/full", "no space left on device (ENOSPC)")]
    {
        let output = with(redirection, tool, words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?} {redirection}: {output:?}");
        let line = format!("cannot write {subject}: {why}; fix: write ");
        assert_eq!(told.matches(&line).count(), 1, "{words:?} {redirection}: {told}");
    }
}

const OUTPUT: &str = "to standard output";

#[test]
fn of_commands() {
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    let none = tempfile::tempdir().expect("a directory");
    let rules = none.path().to_str().expect("a path");
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["inspect", &pid],
        &["attach", "--dry-run", &pid],
        &["revert", &pid],
        &["rules", "check", "--conf-dir", rules, "--state-dir", rules, &pid, &pid],
        &["store", "setup", "--unit"],
    ] {
        assert_told(tiexecctl(), words, 1, OUTPUT);
    }
    assert_told(tiexec(), &["--dry-run", "-p", &pid], 1, OUTPUT);
    held.finish().assert_code(7);
}

#[test]
fn of_help() {
    for word in ["--help", "--version"] {
        assert_told(tiexec(), &[word], 125, OUTPUT);
        assert_told(tiexecctl(), &[word], 1, OUTPUT);
        assert_told(tiexecd(), &[word], 1, OUTPUT);
    }
}

#[test]
fn of_a_dry_run() {
    for program in [program("hold", Kind::DynamicNoPie), PathBuf::from("/bin/true")] {
        let subject = format!("the plan of {}", program.display());
        assert_told(tiexec(), &["--dry-run", &program.to_string_lossy()], 125, &subject);
    }
}

/// Not by its name, either: its number may be another file's by then.
#[test]
fn of_a_file_that_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let bench = dir.path().join("bench.json");
    let bench = bench.to_str().expect("a path");
    let off = "--option=--backing=off";
    let measured =
        ctl(["bench", "-r", "4", "-w", "0", off, "--export-json", bench, "--", "/bin/true"]);
    measured.assert_code(0);
    let output = with(">&-", tiexecctl(), &["report", "-o", "/dev/stdout", bench]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(told.contains("cannot write /dev/stdout: bad file descriptor (EBADF)"), "{told}");
}

/// A reader that has seen enough is no failure.
#[test]
fn a_broken_pipe_is_none() {
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    for (tool, words) in [
        (tiexecctl(), &["status"][..]),
        (tiexecctl(), &["--help"]),
        (tiexec(), &["--help"]),
        (tiexec(), &["--dry-run", "-p", &pid]),
    ] {
        let output = with("> >(exec 0<&-; exec sleep 0)", tool, words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{words:?}: {output:?}");
    }
    held.finish().assert_code(7);
}
