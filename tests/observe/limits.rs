//! Limits of the commands themselves: the message names each limit, and no limit kills a command.

use std::process::{Command, Output};

use support::attaching::{held, small};
use support::{Kind, is_root, require, tiexecctl};

/// Runs tiexecctl by the shell, after `ulimit`.
fn under(limit: &str, words: &[&str]) -> Output {
    let script = format!("ulimit {limit} && exec \"$@\"");
    let shell =
        Command::new("bash").args(["-c", &script, "bash"]).arg(tiexecctl()).args(words).output();
    shell.expect("bash")
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn open_files() {
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    for most in 4..9 {
        for words in [&["inspect", &pid][..], &["attach", "-n", &pid], &["doctor"]] {
            let output = under(&format!("-n {most}"), words);
            let said = said(&output);
            for wrong in ["ulimit -u", "fix: mount", "target_gone", "no such process"] {
                assert!(!said.contains(wrong), "{most} {words:?}: {said}");
            }
        }
    }
    let said = said(&under("-n 4", &["inspect", &pid]));
    assert!(said.contains("(EMFILE); fix: raise the limit on open files (ulimit -n)"), "{said}");
    held.finish().assert_code(7);
}

#[test]
fn processes() {
    require!(is_root(), "the limit on processes is a user's own");
    let public = support::Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let script = "ulimit -u 1 && exec \"$0\" doctor";
    let front = ["--reuid=65533", "--regid=65533", "--clear-groups", "bash", "-c", script];
    let output = Command::new("setpriv").args(front).arg(ctl).output().expect("setpriv");
    let said = said(&output);
    let line =
        said.lines().find(|line| line.contains(" ptrace ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("(EAGAIN); fix: raise the limit on processes (ulimit -u)"), "{line}");
}

#[test]
fn address_space() {
    let output = under("-v 20000", &["doctor"]);
    let said = said(&output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(said.contains(" gain        not measured: "), "{said}");
    assert!(said.contains("cannot allocate memory (ENOMEM)"), "{said}");
}

#[test]
fn file_size() {
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html").display().to_string();
    let json = dir.path().join("bench.json").display().to_string();
    let bench = [
        "bench",
        "-r",
        "6",
        "-w",
        "0",
        "--option=--backing=off",
        "--export-json",
        &json,
        "--",
        "true",
    ];
    for words in [&["report", "--duration", "100ms", "-o", &page, &pid][..], &bench] {
        let output = under("-f 0", words);
        let said = said(&output);
        // There is nothing to report about an idle process.
        if !said.contains("nothing to sample") {
            assert!(said.contains("file too large (EFBIG)"), "{output:?}");
        }
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    let script = format!("ulimit -f 0; \"$0\" inspect {pid} > {page}");
    let output =
        Command::new("bash").args(["-c", &script]).arg(tiexecctl()).output().expect("bash");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("standard output: file too large (EFBIG)"), "{output:?}");
    held.finish().assert_code(7);
}

/// A program that a command starts has the default action of SIGXFSZ, which kills it.
#[test]
fn file_size_of_a_program_that_is_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    let script = format!("echo too much > '{}'", out.display());
    let words =
        ["bench", "-r", "6", "-w", "0", "--option=--backing=off", "--", "bash", "-c", &script];
    let output = under("-f 0", &words);
    assert!(said(&output).contains("signal: 25"), "{output:?}");
}

#[test]
fn a_file_is_no_directory_to_install_to() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("UTF-8");
    let output = under("-c 0", &["install-to", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("is not a directory; fix: name another directory"),
        "{output:?}"
    );
}

#[test]
fn errors_of_files_have_symbols() {
    for words in [
        &["report", "-o", "/dev/full", "1"][..],
        &["report", "/nonexistent/bench.json"],
        &["install-to", "/proc/no"],
        &["advise", "--", "/nonexistent/program"],
        &["bench", "--", "/nonexistent/program"],
    ] {
        let output = under("-c 0", words);
        assert!(!said(&output).contains("os error"), "{words:?}: {output:?}");
    }
    let output = under("-c 0", &["report", "/nonexistent/bench.json"]);
    assert!(said(&output).contains("no such file or directory (ENOENT)"), "{output:?}");
}
