//! Launches that hand over their program: an agent works on what comes after the start, and no process stays beside it.

use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;
use support::attaching::{MARK, companion, switched};
use support::child::{Held, eventually};
use support::{Kind, Run, is_root, require};

use crate::told::ask;
use crate::{Files, has_guard, stop};

const SOCKET: &str = "/run/tiexec/launch.sock";
/// The user of the launches that are not root's.
const USER: &str = "--reuid=1717";

/// An agent that has begun.
fn agent(files: &Files) -> Held {
    let agent = files.agent();
    eventually("the agent listens", || UnixStream::connect(SOCKET).is_ok());
    agent
}

/// A launch of a shell that executes the program, which is the text that comes after the start.
fn launch(files: &Files, program: &Path, mark: &str) -> Run {
    let script = ["-c".as_ref(), "exec \"$0\" 7".as_ref(), program.as_os_str()];
    // On a busy machine the agent may take longer than a launch usually waits.
    let run = Run::new("/bin/sh", script).binary(files.public.tiexec()).env(MARK, mark);
    run.env("TIEXEC_TEST_ANSWER", "3000")
}

fn as_user(run: Run) -> Run {
    run.behind(["setpriv", USER, "--regid=1717", "--clear-groups"])
}

/// Ends a `hold`, whose text is to be right.
fn end(mut held: Held) {
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

/// Waits until the agent tells that it has worked on the process, and the text is huge.
fn eventually_treated(held: &Held) {
    eventually("the agent tells of it", || is_told_of(held.pid()));
    eventually("its text is huge", || support::coverage(held.pid()).is_full());
}

fn is_told_of(pid: i32) -> bool {
    let told: Value = serde_json::from_str(&ask("/status").1).expect("JSON");
    let mut all = told["processes"].as_array().expect("a list").iter();
    all.any(|one| one["pid"] == pid && one["rule"] == "(launched)" && one["result"] == "ok")
}

#[test]
fn the_agent_works_and_no_process_stays() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let agent = agent(&files);
    let drops = "exec setpriv --reuid=1717 --regid=1717 --clear-groups \"$0\" 7";
    let script = ["-c".as_ref(), drops.as_ref(), program.as_os_str()];
    let root = launch(&files, &program, "root");
    let dropped = Run::new("/bin/sh", script).binary(files.public.tiexec()).env(MARK, "dropped");
    let ways = [
        ("root", root),
        ("user", as_user(launch(&files, &program, "user"))),
        ("dropped", dropped.env("TIEXEC_TEST_ANSWER", "3000")),
    ];
    for (way, run) in ways {
        let held = run.hold();
        assert_eq!(companion(way), None, "{way}");
        eventually_treated(&held);
        end(held);
    }
    let said = stop(agent);
    assert_eq!(said.matches("(rule (launched)): attach done").count(), 3, "{said}");
}

/// A limit on processes does not keep the program on base pages where an agent runs.
#[test]
fn where_somebody_counts() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let agent = agent(&files);
    let run = launch(&files, &program, "counted").options(["-v"]);
    let mut held = run.prep(support::Prep::Rlimit(libc::RLIMIT_NPROC, 1000)).hold();
    assert_eq!(companion("counted"), None);
    eventually_treated(&held);
    let said = held.err_text();
    assert!(!said.contains("no process watches its start"), "{said}");
    held.write(b"\n");
    held.finish().assert_code(7);
    stop(agent);
}

/// A companion starts if the launch has an option about its text, and if the agent is drained, stopped or gone.
#[test]
fn a_companion_stays_where_the_agent_does_not_take_it() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let agent = agent(&files);
    let by_companion = |run: Run, mark: &str| {
        let held = run.hold();
        assert!(companion(mark).is_some(), "{mark}");
        end(held);
    };
    let image = launch(&files, &program, "image").options(["--backing=image"]);
    by_companion(image, "image");
    std::fs::write("/run/tiexec/drained", "").expect("a file in a /run of its own");
    by_companion(launch(&files, &program, "drained"), "drained");
    std::fs::remove_file("/run/tiexec/drained").expect("just written");
    agent.signal(libc::SIGSTOP);
    agent.wait_stopped();
    let stopped = launch(&files, &program, "stopped").env("TIEXEC_TEST_ANSWER", "1");
    by_companion(stopped, "stopped");
    agent.signal(libc::SIGCONT);
    stop(agent);
    by_companion(launch(&files, &program, "ended"), "ended");
}

#[test]
fn a_rule_that_says_never_holds() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let never = files.program("hold", 6, "never/hold");
    let other = files.program("hold", 6, "a/hold");
    let exe = never.display();
    files
        .write("n.toml", &format!("[[rule]]\nname = \"n\"\nexe = \"{exe}\"\naction = \"never\"\n"));
    let agent = agent(&files);
    let left = launch(&files, &never, "never").hold();
    let taken = launch(&files, &other, "taken").hold();
    eventually_treated(&taken);
    assert_eq!((switched(left.pid()), companion("never")), (0, None));
    [left, taken].into_iter().for_each(end);
    stop(agent);
}

/// A user hands over a program that gains rights by its exec: a companion could not have touched it, and the agent does not.
#[test]
fn a_program_that_gains_rights_is_left_alone() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let [user, group, capable] =
        [0o4755, 0o2755, 0o755].map(|mode| files.public.add(&program, &format!("{mode:o}"), mode));
    require!(support::give_capability(&capable), "the file system takes no file capabilities");
    let agent = agent(&files);
    let left = [user, group, capable].map(|file| as_user(launch(&files, &file, "gains")).hold());
    let taken = as_user(launch(&files, &program, "taken")).hold();
    eventually_treated(&taken);
    for held in &left {
        assert!(switched(held.pid()) == 0 && !is_told_of(held.pid()), "{}", held.command);
    }
    left.into_iter().chain([taken]).for_each(end);
    let said = stop(agent);
    assert_eq!(said.matches("(rule (launched))").count(), 1, "{said}");
}

/// Somebody keeps more connections open than the agent serves. The launch of another user is still answered.
#[test]
fn many_who_connect_and_say_nothing() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let agent = agent(&files);
    let connect = |_| UnixStream::connect(SOCKET).expect("it listens");
    let crowd: Vec<UnixStream> = (0..200).map(connect).collect();
    let held = as_user(launch(&files, &program, "beside")).hold();
    assert_eq!(companion("beside"), None);
    eventually_treated(&held);
    end(held);
    drop(crowd);
    stop(agent);
}

/// A filter may kill a process that opens a socket. The launch tries that in a child first.
#[test]
fn under_a_filter_that_kills() {
    require!(is_root(), "an agent's socket is root's");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let filter = support::program("seccomp_exec", Kind::DynamicPie);
    let agent = agent(&files);
    for calls in ["socket", "connect"] {
        let run = launch(&files, &program, calls);
        let mut held = run.behind([filter.as_os_str(), "kill".as_ref(), calls.as_ref()]).hold();
        held.write(b"\n");
        held.finish().assert_code(7);
    }
    stop(agent);
}
