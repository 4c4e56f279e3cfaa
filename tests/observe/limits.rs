//! Limits of the commands themselves: each is called by its name, and none kills a command.

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
    assert!(said.contains(" gain       not measured: "), "{said}");
    assert!(said.contains("cannot allocate memory (ENOMEM)"), "{said}");
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
