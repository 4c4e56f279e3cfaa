//! An agent that is killed at any moment harms no program, and the next agent takes over everything that it left.

use support::attaching::{joined, staged, switched};
use support::{Held, Random, is_root, require};

use crate::{Files, eventually_switched, has_guard, hold};

#[test]
fn at_random_moments() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let mut random = Random::new();
    let mut helds: Vec<Held> = Vec::new();
    let mut maps: Vec<Option<Vec<String>>> = Vec::new();
    for _ in 0..support::extent::rounds(10) {
        helds.push(hold(&copy));
        maps.push(None);
        let agent = files.agent();
        random.spin(900_000);
        agent.signal(libc::SIGKILL);
        agent.finish().assert_signal(libc::SIGKILL);
        for (held, before) in helds.iter().zip(&mut maps) {
            let pid = held.pid();
            if let Some(before) = before {
                assert_eq!(&joined(pid), before, "nothing is attached to twice");
            } else if switched(pid) > 0 && staged(pid, &copy).is_empty() {
                *before = Some(joined(pid));
            }
        }
        if let Ok(state) = std::fs::read(files.state().join("state.json")) {
            serde_json::from_slice::<serde_json::Value>(&state).expect("the state is whole");
        }
    }
    let agent = files.agent();
    for held in &helds {
        eventually_switched(held);
    }
    crate::stop(agent);
    for held in helds {
        assert!(staged(held.pid(), &copy).is_empty(), "nothing is left");
        held.finish().assert_code(7);
    }
}

#[test]
fn a_second_agent_ends_and_a_dead_ones_socket_is_replaced() {
    require!(support::is_root(), "only root's agent has a socket");
    let files = Files::new();
    let socket = std::path::Path::new("/run/tiexec/agent.sock");
    let listens = || std::os::unix::net::UnixStream::connect(socket).is_ok();
    let first = files.agent();
    support::child::eventually("the agent listens", listens);
    let of_the_same_state = format!("another tiexecd (process {}) has its state in ", first.pid());
    let elsewhere = Files::new();
    for (files, says) in [
        (&files, of_the_same_state.as_str()),
        (&elsewhere, "another tiexecd listens at /run/tiexec/agent.sock; fix: "),
    ] {
        let second = support::Run::new(support::tiexecd(), files.args()).plain().output();
        second.assert_code(1);
        assert!(second.err().contains(says), "{second}");
        assert!(listens(), "the first one goes on");
    }
    first.signal(libc::SIGKILL);
    first.finish().assert_signal(libc::SIGKILL);
    assert!(socket.exists(), "a killed agent leaves its socket");
    let next = files.agent();
    support::child::eventually("the next one listens", listens);
    crate::stop(next);
}

/// A child of a killed agent has its socket until it ends.
#[test]
fn a_child_of_a_dead_agent_keeps_no_other_from_its_socket() {
    require!(support::is_root(), "only root's agent has a socket");
    require!(support::installed("python3").is_some(), "no python3");
    let files = Files::new();
    crate::stop(files.agent());
    let socket = "/run/tiexec/agent.sock";
    let script = "
import os, signal, socket, sys
os.unlink(sys.argv[1])
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print('ready', flush=True)
if os.fork():
    sys.stdin.readline()
    os._exit(7)
signal.pause()
";
    let mut dead = support::Run::new("python3", ["-c", script, socket]).plain().start();
    dead.wait_line("ready");
    let second = support::Run::new(support::tiexecd(), files.args()).plain().output();
    assert!(second.err().contains("another tiexecd listens"), "{second}");
    dead.write(b"end\n");
    support::child::eventually("it has ended", || dead.has_ended());
    assert!(std::os::unix::net::UnixStream::connect(socket).is_ok(), "its child has the socket");
    crate::stop(files.agent());
}

/// An agent of an ordinary user has no socket, so only the lock in the state directory excludes the others.
#[test]
fn of_several_that_begin_at_once_one_runs() {
    require!(support::is_root(), "root can be another user");
    let files = Files::new();
    std::os::unix::fs::chown(files.state(), Some(65534), Some(65534)).expect("root may");
    let tiexecd = files.public.add(support::tiexecd(), "tiexecd", 0o755);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned);
    let words = nobody.into_iter().chain([tiexecd.display().to_string()]).chain(files.args());
    let words: Vec<String> = words.collect();
    let begin = || support::Run::new("setpriv", &words).plain().start();
    let mut agents: Vec<support::Held> = (0..5).map(|_| begin()).collect();
    support::child::eventually("all but one have ended", || {
        agents.iter_mut().map(|agent| agent.has_ended()).filter(|ended| !ended).count() == 1
    });
    let (mut ended, mut running) = (Vec::new(), Vec::new());
    for mut agent in agents {
        if agent.has_ended() { ended.push(agent) } else { running.push(agent) }
    }
    let running = running.pop().expect("one runs");
    let says = format!("another tiexecd (process {}) has its state in ", running.pid());
    for agent in ended {
        let done = agent.finish();
        done.assert_code(1);
        assert!(done.err().contains(&says) && done.err().contains("; fix: "), "{done}");
    }
    crate::stop(running);
}
