//! A user's processes and connections take their own share of the agent's time, and nobody else's.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use support::attaching::switched;
use support::child::eventually;
use support::smaps::children;
use support::{Held, Run, installed, is_root, require, tiexecd};

use crate::{Files, attach_rule, eventually_switched, has_guard, hold, stop};

const OTHER_USER: [&str; 4] = ["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"];

/// Before, the agent waited for each client in turn, so that each of these was gone before the last one had its answer.
#[test]
fn clients_that_ask_half_do_not_delay_the_others() {
    require!(is_root(), "the agent listens for root");
    let files = Files::new();
    let args = files.args().into_iter().chain(["--metrics-address=127.0.0.1:0".to_owned()]);
    let mut agent = Run::new(tiexecd(), args).plain().start();
    let mut said = String::new();
    eventually("it listens", || {
        said = agent.err_text();
        said.contains("answers /metrics at ")
    });
    let address = said.split_once("answers /metrics at ").expect("it says where").1;
    let address = address.lines().next().expect("a line").to_owned();
    let connect = || TcpStream::connect(&address).expect("it listens");
    let is_open = |mut client: &TcpStream| {
        client.set_nonblocking(true).expect("a socket");
        client.read(&mut [0; 16]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    eventually("half-open clients outlast a whole one", || {
        let half_open: Vec<TcpStream> = (0..200)
            .map(|_| {
                let mut client = connect();
                client.write_all(b"GET /metrics HTTP/1.1\r\nX: ").expect("it takes them");
                client
            })
            .collect();
        let mut client = connect();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it takes it");
        let mut text = String::new();
        let read = client.read_to_string(&mut text);
        assert!(read.is_ok() && text.starts_with("HTTP/1.0 200 OK\r\n"), "{read:?}: {text}");
        half_open.iter().any(is_open)
    });
    stop(agent);
}

/// A client that reads nothing and one that sends a byte now and then hold up nobody.
#[test]
fn clients_that_do_not_read_do_not_delay_the_others() {
    require!(is_root(), "the agent listens for root");
    let files = Files::new();
    let agent = files.agent();
    let connect = || std::os::unix::net::UnixStream::connect("/run/tiexec/agent.sock");
    eventually("it listens", || connect().is_ok());
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut client = connect().expect("it listens");
        // More requests than the answers to which the socket's buffers hold.
        let _full = client.set_nonblocking(true);
        let _sent = client.write(b"GET /status HTTP/1.1\r\n\r\nGET /status HTTP/1.1\r\n\r\n");
        slow.push(client);
        if slow.len() % 100 == 0 {
            let mut client = connect().expect("it listens");
            client.write_all(b"GET /status HTTP/1.1\r\n\r\n").expect("it takes it");
            let mut text = String::new();
            client.read_to_string(&mut text).expect("an answer");
            assert!(text.contains("\"kind\":\"agent\""), "{text}");
        }
    }
    stop(agent);
}

/// Thirty processes of a user wait for the agent, and five of root's. Whatever the order in which the agent finds them,
/// root's do not wait until all others are done.
#[test]
fn a_users_many_processes_do_not_come_before_roots() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    // A second process of a program waits until the first one has proved it, so each has a program of its own.
    let start = |name: String, behind: &[&str]| {
        let copy = files.program("hold", 4, &name);
        Run::new(&copy, ["7"]).plain().behind(behind.iter().copied()).hold()
    };
    let theirs: Vec<Held> = (0..30).map(|at| start(format!("a/{at}"), &OTHER_USER)).collect();
    let roots: Vec<Held> = (0..5).map(|at| start(format!("a/root{at}"), &[])).collect();
    files.attach_below("a", "a");
    let mut agent = files.agent();
    let mut said = String::new();
    eventually("all are switched", || {
        said = agent.err_text();
        said.lines().filter(|line| line.contains("attach done")).count() == 35
    });
    let place = |held: &Held| {
        let pid = format!(" {} (rule a)", held.pid());
        said.lines()
            .filter(|line| line.contains("attach done"))
            .position(|line| line.contains(&pid))
    };
    let last = roots.iter().map(place).max().flatten().expect("root's are switched");
    let before = theirs.iter().filter(|held| place(held).is_some_and(|at| at < last)).count();
    assert!(before <= 15, "{before} of the user's came before the last of root's: {said}");
    stop(agent);
    for held in theirs.into_iter().chain(roots) {
        held.finish().assert_code(7);
    }
}

/// The work on a process of a container's root does not end. For an hour the agent begins no other process of that root, whose ID
/// is the machine's root's. It still works for the machine.
#[test]
fn the_penalty_of_a_containers_root_is_not_roots() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    require!(installed("unshare").is_some(), "no unshare");
    let files = Files::new();
    let slow = files.program("hostile/large", 4, "a/slow");
    let [first, theirs, ours] =
        ["first", "theirs", "ours"].map(|name| files.program("hold", 4, &format!("a/{name}")));
    files.attach_below("a", "a");
    let mut agent = files.agent();
    // The agent has counted the copies of earlier agents by then, and has no other child.
    let first = hold(&first);
    eventually_switched(&first);
    let contained = ["unshare", "--pid", "--fork", "--kill-child"];
    let slow = Run::new(&slow, ["texts"]).plain().behind(contained).hold();
    let mut said = String::new();
    eventually("its tracer is killed", || {
        for tracer in children(agent.pid()) {
            let tracer = rustix::process::Pid::from_raw(tracer).expect("a PID");
            let _ended = rustix::process::kill_process(tracer, rustix::process::Signal::KILL);
        }
        said = agent.err_text();
        said.contains("cannot attach slow ")
    });
    let theirs = Run::new(&theirs, ["7"]).plain().behind(contained).hold();
    let ours = hold(&ours);
    eventually_switched(&ours);
    let [inner] = children(theirs.pid())[..] else { panic!("one process in the container") };
    assert_eq!(switched(inner), 0, "{}", agent.err_text());
    stop(agent);
    for held in [first, slow, theirs, ours] {
        held.finish().assert_code(7);
    }
}

/// The work on a user's process takes long, because it has as much text in as many pieces as it may have. A service of root's
/// that starts meanwhile does not wait for its end.
#[test]
fn a_users_slow_process_does_not_delay_roots() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let slow = files.program("hostile/large", 4, "a/slow");
    files.attach_below("a", "a");
    let mut agent = files.agent();
    let mut beside = 0;
    for round in 0..6 {
        let theirs = Run::new(&slow, ["texts"]).plain().behind(OTHER_USER).hold();
        let done =
            |agent: &mut Held, pid: i32| agent.err_text().contains(&format!(" {pid} (rule a)"));
        // The tracer of that work, if the agent does not take too long to see the process.
        let mut tracer = None;
        eventually("the agent works on the user's process, or has", || {
            tracer = children(agent.pid()).first().copied();
            tracer.is_some() || done(&mut agent, theirs.pid())
        });
        let roots = files.program("hold", 4, &format!("a/root{round}"));
        let roots = Run::new(&roots, ["7"]).plain().hold();
        eventually("root's is switched", || done(&mut agent, roots.pid()));
        let goes_on = tracer.is_some_and(|tracer| children(agent.pid()).contains(&tracer));
        beside += usize::from(goes_on && !done(&mut agent, theirs.pid()));
        roots.finish().assert_code(7);
        theirs.finish().assert_code(7);
        if beside > 0 {
            break;
        }
    }
    assert!(beside > 0, "root's always waited for the user's: {}", agent.err_text());
    stop(agent);
}

/// A program's path may have 4 KiB. A matcher that goes back takes longer than anybody's life for such a path.
#[test]
fn a_long_path_and_a_pattern_of_many_stars() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    let mut to = PathBuf::from("a");
    to.extend(std::iter::repeat_n("a".repeat(200), 17));
    let to = to.join("a".repeat(200));
    let copy = files.program("hold", 4, to.to_str().expect("UTF-8"));
    let held = hold(&copy);
    let stars = files.public.path().join(format!("**/{}b", "*a".repeat(100)));
    files.write("stars.toml", &attach_rule("stars", &stars));
    files.write("then.toml", &attach_rule("then", &files.public.path().join("**")));
    let mut args = vec!["rules".to_owned(), "check".to_owned(), held.pid().to_string()];
    args.extend(files.args());
    let done = Run::new(support::tiexecctl(), args).plain().output();
    assert!(done.out().contains("then") && !done.out().contains("stars"), "{done}");
    held.finish().assert_code(7);
}
