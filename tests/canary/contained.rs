//! A canary of root's runs its commands as nobody. They get nothing of root's, and leave nothing behind.

use support::{Done, Run, is_root, require, tiexecctl};

use crate::Server;

/// Runs a canary with this counter, from an environment and with a descriptor that are root's secrets.
fn with_secrets(server: &Server, counter: &str) -> Done {
    let script = "exec 9</etc/shadow && exec \"$@\"";
    let front = ["env", "PASSWORD=secret", "sh", "-c", script, "sh"];
    let args = server.with_counter(&["--counter", counter]);
    Run::new(tiexecctl(), args).plain().behind(front).output()
}

#[test]
fn a_command_gets_nothing_of_roots() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    for (is_there, what) in [
        ("[ -n \"$PASSWORD\" ]", "the environment"),
        ("[ -e /proc/self/fd/9 ]", "a descriptor"),
        ("[ \"$(ps -o pgid= -p $$ | tr -d ' ')\" != $$ ]", "another process group"),
        ("[ -z \"$PATH\" ] || [ \"$HOME\" != / ]", "no path of programs, or root's home"),
    ] {
        let done = with_secrets(&server, &format!("{is_there} && exit 66; exit 3"));
        assert!(done.err().contains("it failed: exit status: 3"), "{what}: {done}");
    }
    server.finish();
}

/// Returns whether a process has this argument.
fn runs(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut lines = processes.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    lines.any(|line| line.split(|&byte| byte == 0).any(|word| word == argument.as_bytes()))
}

#[test]
fn a_command_leaves_no_process() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let time = format!("100.{}", std::process::id());
    // The process has a session of its own, and its parent has ended. It closed the pipes that the canary reads.
    let leaves =
        format!("setsid sh -c 'sleep {time} & sleep {time}' >/dev/null 2>&1 & sleep 0.3; exit 3");
    let done = with_secrets(&server, &leaves);
    assert!(done.err().contains("it failed: exit status: 3"), "{done}");
    assert!(!runs(&time), "a process is left");
    server.finish();
}
