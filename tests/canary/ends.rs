//! After every end of a canary, by a signal, by the guard or by its death, the server has its own text back.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use support::attaching::{Before, eventually_untouched, json, small, switched, wait_call};
use support::child::eventually;
use support::smaps::status_field;
use support::tmux::Screen;
use support::{Kind, Public, Run, installed, is_root, require, tiexecctl};

use crate::{Server, export, started};

#[test]
fn by_a_signal() {
    require!(is_root(), "files in a directory of root's");
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let server = Server::start(100, 1);
        let canary = server.in_a_canary(&[]);
        canary.signal(signal);
        let done = canary.finish();
        done.assert_code(128 + signal);
        assert!(done.out().contains("undecided (it was ended)"), "{done}");
        assert_eq!(switched(server.pid()), 0, "{done}");
        assert!(!server.state().join("canary.json").exists(), "{done}");
        assert_eq!(export(&server)["verdicts"], serde_json::json!([]));
        server.finish();
    }
}

/// A terminal shows how long the first pair takes, and Ctrl-C leaves nothing of that.
#[test]
fn before_the_first_pair_on_a_terminal() {
    require!(is_root(), "files in a directory of root's");
    require!(installed("tmux").is_some(), "no tmux");
    let server = Server::start(100, 1);
    let mut args = server.args(&[]);
    let slice = args.iter_mut().find(|word| word.starts_with("--slice="));
    *slice.expect("a slice") = "--slice=10s".to_owned();
    let words = args.iter().map(|word| format!(" '{}'", word.replace('\'', "'\\''")));
    let command = format!("trap : INT; '{}'{}", tiexecctl().display(), words.collect::<String>());
    let screen = Screen::new(80, 24, &command, &[]);
    screen.go().wait_for("measures the first pair: on copies now, ");
    screen.keys(&["C-c"]);
    let text = screen.wait_for("ended 130");
    assert!(!text.contains("measures the first pair"), "{text}");
    assert_eq!(switched(server.pid()), 0, "{text}");
    server.finish();
}

#[test]
fn by_the_guard() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let bad = server.public.path().join("bad").display().to_string();
    let guard = format!("--guard=test ! -e '{bad}'");
    let canary = server.in_a_canary(&[&guard]);
    std::fs::write(&bad, "").expect("a file");
    let done = canary.finish();
    done.assert_code(7);
    assert!(done.out().contains("(the guard objected: "), "{done}");
    assert_eq!(switched(server.pid()), 0, "{done}");
    // If the guard objects from the beginning, the canary does not change the server at all.
    let done = server.canary(&[&guard]);
    done.assert_code(7);
    assert!(done.err().contains("before anything was changed"), "{done}");
    server.finish();
}

#[test]
fn by_the_end_of_the_service() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let canary = server.in_a_canary(&[]);
    server.held.signal(libc::SIGKILL);
    let done = canary.finish();
    done.assert_code(4);
    assert!(done.out().contains("(the service has ended, or was restarted)"), "{done}");
    assert_eq!(export(&server)["verdicts"], serde_json::json!([]));
    server.held.finish().assert_signal(libc::SIGKILL);
}

/// A pair of this counter takes more than five seconds, so there is time for a few pairs only.
#[test]
fn before_a_pair_that_cannot_end_in_time() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let counter = format!("sleep 1; {}", server.counter());
    let more = ["--counter", &counter, "--max=15s", "--keep-above=2", "--json"];
    let done = started(&server.with_counter(&more)).finish();
    done.assert_code(6);
    let found = json(&done);
    assert_eq!((&found["ended"], &found["verdict_kept"]), (&"time".into(), &false.into()));
    // Three pairs alone would take the whole time.
    assert!(found["pairs"].as_u64().is_some_and(|pairs| pairs < 3), "{found}");
    let reason = found["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("it takes 10 pairs; fix: use --max="), "{found}");
    assert!(found["switches"].as_u64().is_some_and(|switches| switches > 0), "{found}");
    let number = |key: &str| found[key].as_f64().expect("a number");
    let (all, longest) = (number("switching_s"), number("longest_switch_s"));
    assert!(0.0 < longest && longest <= all, "{found}");
    assert_eq!(switched(server.pid()), 0);
    assert_eq!(export(&server)["verdicts"], serde_json::json!([]));
    server.finish();
}

/// An attach would search 2 s for a moment to stop this server. The clock of the test makes the limit of a switch
/// shorter.
#[test]
fn by_a_switch_that_takes_too_long() {
    require!(is_root(), "files in a directory of root's");
    let (copy, public) = (small("blocked", Kind::DynamicNoPie), Public::new());
    let mut held = Run::new(copy.path(), ["write"]).plain().start();
    held.wait_line("ready");
    wait_call(held.pid(), &held.said("call").expect("the call's number"));
    let (pid, state) = (held.pid().to_string(), public.path().join("state"));
    let dir = state.display().to_string();
    let words = ["canary", "--counter", "echo 1", "--state-dir", &dir, &pid];
    let done = Run::new(tiexecctl(), words).plain().env("TIEXEC_TEST_CLOCK", "20").output();
    done.assert_code(1);
    let says = format!(
        "cannot alternate {}: a switch to copies took more than 1.5s; fix: ",
        copy.path().display()
    );
    assert!(done.err().contains(&says), "{done}");
    assert!(done.out().contains("undecided (it failed)"), "{done}");
    assert_eq!(switched(held.pid()), 0);
    assert!(!state.join("canary.json").exists(), "{done}");
    held.write(b"\n");
    held.finish().assert_code(7);
}

/// Kills a canary while the server is on copies.
fn killed(server: &Server) {
    let canary = server.in_a_canary(&[]);
    let other = server.canary(&["--max=2s"]);
    other.assert_code(1);
    // The fix must not spoil the first one.
    let says = format!(
        "cannot begin a canary: the canary of process {} alternates process {} ({}",
        canary.pid(),
        server.pid(),
        server.copy.path().display()
    );
    assert!(other.err().contains(&says), "{other}");
    assert!(other.err().contains(" UTC; fix: wait for its end, at about "), "{other}");
    canary.signal(libc::SIGKILL);
    canary.finish().assert_signal(libc::SIGKILL);
    assert!(server.state().join("canary.json").exists(), "the record");
}

/// Returns a server on copies, as a killed canary leaves it. The loop is needed because a canary that is killed on base
/// pages leaves no trace.
fn left_on_copies() -> Server {
    left_on_copies_beside(|_| ()).0
}

/// As [`left_on_copies`], while something else runs beside the server.
fn left_on_copies_beside<T>(other: impl Fn(&Server) -> T) -> (Server, T) {
    loop {
        let server = Server::start(100, 1);
        let beside = other(&server);
        killed(&server);
        if switched(server.pid()) > 0 {
            return (server, beside);
        }
        drop(beside);
        server.finish();
    }
}

#[test]
fn by_its_death_and_the_next_one_reverts() {
    require!(is_root(), "files in a directory of root's");
    let server = left_on_copies();
    let done = server.canary(&["--max=6s", "--keep-above=2"]);
    done.assert_code(6);
    let says = format!("reverted process {}, which a killed canary had left", server.pid());
    assert!(done.err().contains(&says), "{done}");
    assert_eq!(switched(server.pid()), 0);
    assert!(!server.state().join("canary.json").exists());
    server.finish();
}

/// The message says why a process could not be reverted, although another process of TiExec's has tried it.
#[test]
fn by_its_death_while_another_tracer_holds_the_server() {
    require!(is_root(), "files in a directory of root's");
    require!(installed("strace").is_some(), "no strace");
    let server = left_on_copies();
    let pid = server.pid();
    let mut tracer = Command::new("strace");
    let tracer = tracer.args(["-qq", "-f", "-o", "/dev/null", "-p", &pid.to_string()]);
    let mut tracer = tracer.stdin(Stdio::null()).spawn().expect("strace");
    let is_traced = || status_field(pid, "TracerPid").is_some_and(|tracer| tracer != "0");
    eventually("strace has the server", is_traced);
    let done = server.canary(&["--max=6s", "--keep-above=2"]);
    done.assert_code(1);
    let says =
        format!("cannot revert process {pid}, which a killed canary has left: already_traced: ");
    assert!(done.err().contains(&says), "{done}");
    assert!(switched(pid) > 0);
    // SAFETY: an own child, not reaped yet.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGTERM) };
    let _status = tracer.wait();
    eventually("strace has let the server go", || !is_traced());
    server.canary(&["--max=6s", "--keep-above=2"]).assert_code(6);
    assert_eq!(switched(pid), 0);
    server.finish();
}

/// The agent began before the canary died, and has no rules.
#[test]
fn by_its_death_and_the_agent_reverts() {
    require!(is_root(), "files in a directory of root's");
    let (server, agent) = left_on_copies_beside(|server| {
        let agent = server.agent();
        eventually("the agent has begun", || UnixStream::connect("/run/tiexec/agent.sock").is_ok());
        agent
    });
    server.eventually_plain();
    eventually("the record is gone", || !server.state().join("canary.json").exists());
    agent.signal(libc::SIGTERM);
    let done = agent.finish();
    let says = format!("{}: reverted, because its canary was killed", server.pid());
    assert!(done.err().contains(&says), "{done}");
    server.finish();
}

#[test]
fn a_torn_record_is_set_aside() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    std::fs::create_dir(server.state()).expect("a directory");
    std::fs::write(server.state().join("canary.json"), "{\"version\":1,").expect("a file");
    let done = server.canary(&["--max=6s", "--keep-above=2"]);
    done.assert_code(6);
    assert!(done.err().contains("set aside as canary.json.aside"), "{done}");
    // The PID in the record belongs to another process now, which must not be touched.
    let other = format!("{{\"version\":1,\"boot\":\"x\",\"members\":[[{},1]]}}", server.pid());
    std::fs::write(server.state().join("canary.json"), other).expect("a file");
    let done = server.canary(&["--max=6s", "--keep-above=2"]);
    done.assert_code(6);
    assert!(!done.err().contains("reverted process"), "{done}");
    server.finish();
}

#[test]
fn before_it_begins_without_time_for_a_pair() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let before = Before::of(server.pid());
    for (options, says) in [
        (&["--max=700ms"][..], "--max 700ms is shorter than a pair of slices (800ms)"),
        (&["--max=1s"], "--max 1s is shorter than a pair of slices, and the time before"),
    ] {
        let done = server.canary(options);
        done.assert_code(2);
        assert!(done.err().contains(says), "{done}");
        // A slice of 400 ms and a sixth of that before it, 21 times, and a tenth more.
        assert!(done.err().contains("; fix: use --max=11s, or a shorter --slice"), "{done}");
        eventually_untouched(server.pid(), &before);
    }
    server.finish();
}
