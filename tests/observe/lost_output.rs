//! If standard output is closed or full, the commands fail and report it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::attaching::{ctl, held, small};
use support::{Kind, program, tiexec, tiexecctl, tiexecd};

/// Runs a tool by the shell, with standard output redirected.
fn with(redirection: &str, tool: &Path, words: &[&str]) -> Output {
    let script = format!("exec \"$@\" {redirection}");
    let mut shell = Command::new("bash");
    shell.args(["-c", &script, "bash"]).arg(tool).args(words).output().expect("bash")
}

/// Asserts that the tool fails with this status and prints one line with the cause.
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

/// `/dev/stdout` names the closed standard output too. Another file may have its number by then.
#[test]
fn of_a_file_that_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let bench = dir.path().join("bench.json");
    let bench = bench.to_str().expect("a path");
    let off = "--option=--backing=off";
    let measured =
        ctl(["bench", "-r", "6", "-w", "0", off, "--export-json", bench, "--", "/bin/true"]);
    measured.assert_code(0);
    let output = with(">&-", tiexecctl(), &["report", "-o", "/dev/stdout", bench]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(told.contains("cannot write /dev/stdout: bad file descriptor (EBADF)"), "{told}");
}

/// A reader may close the pipe before the end of the output. The command succeeds then.
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
