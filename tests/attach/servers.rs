//! Attaches to servers under load and reverts them, many times. No request fails, and no connection is lost.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::attaching::{ctl, joined, json, ok, switched};
use support::child::eventually;
use support::databases::Mariadb;
use support::extent::is_whole;
use support::smaps::children;
use support::{Fresh, Held, Run, installed, is_root, require, write_program};

/// The cycles of one server. The loads last about as long.
fn cycles_of_one() -> usize {
    if is_whole() { 20 } else { 8 }
}

/// Starts a program of the machine with these arguments. The program lives for at most two minutes.
fn start(name: &str, args: &[&str]) -> Held {
    start_file(&installed(name).unwrap_or_else(|| panic!("no {name}")), args)
}

fn start_file(path: &Path, args: &[&str]) -> Held {
    Run::new(path, args).plain().start()
}

fn have(names: &[&str]) -> bool {
    names.iter().all(|name| installed(name).is_some())
}

fn at(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_string_lossy().into_owned()
}

/// Attaches to the server and reverts it, many times. Returns how often there was text to switch.
fn cycles(pid: i32) -> usize {
    let mut all = 0;
    for cycle in 0..cycles_of_one() {
        let before = text(pid);
        let done = ctl(["attach", "--backing=image", "--json", &pid.to_string()]);
        ok(&done);
        let report = json(&done);
        let is_switched = switched(pid) > 0;
        assert_eq!(report["outcome"] == "switched", is_switched, "{cycle}: {report}");
        assert_eq!(report["attach"].is_object(), is_switched, "{cycle}: {report}");
        if !is_switched {
            assert_eq!(text(pid), before, "{cycle}");
        }
        all += usize::from(is_switched);
        ok(&ctl(["revert", "--json", &pid.to_string()]));
        assert_eq!(switched(pid), 0, "{cycle}");
        assert_eq!(text(pid), before, "{cycle}");
    }
    all
}

/// The mappings of text from files. Other mappings of a server change all the time, also compiled code.
fn text(pid: i32) -> Vec<String> {
    let mut all = joined(pid);
    all.retain(|line| {
        line.split(' ').nth(1).is_some_and(|perms| perms.contains('x')) && line.contains(" /")
    });
    all
}

/// Requests a page on a new connection. Panics unless the page is complete.
fn get(socket: &Path) {
    let mut stream = UnixStream::connect(socket).expect("it accepts");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains(" 200 OK") && answer.ends_with("all is well\n"), "{answer:?}");
}

/// Does `work` while clients request pages without a pause. Returns the result of `work`.
fn under_requests<T>(socket: &Path, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = || {
            let mut asked = 0;
            while !over.load(Ordering::Relaxed) {
                get(socket);
                asked += 1;
            }
            asked
        };
        let clients = [scope.spawn(ask), scope.spawn(ask)];
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        for client in clients {
            let asked: usize = client.join().expect("no request failed");
            assert!(asked > 0, "the load was one");
        }
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The text of nginx and of its libraries fills no huge page, so TiExec does nothing.
#[test]
fn nginx() {
    require!(is_root() && have(&["nginx"]), "no nginx, or not root");
    let dir = tempfile::tempdir().expect("a directory");
    let socket = at(&dir, "socket");
    write_program(&dir.path().join("index.html"), b"all is well\n", 0o644);
    let conf = format!(
        "daemon off; user root; worker_processes 1; pid {pid}; error_log {log};
         events {{}}
         http {{ access_log off; server {{ listen unix:{socket}; root {root}; }} }}\n",
        pid = at(&dir, "pid"),
        log = at(&dir, "log"),
        root = dir.path().display(),
    );
    write_program(&dir.path().join("conf"), conf.as_bytes(), 0o644);
    let server = start("nginx", &["-c", &at(&dir, "conf")]);
    let socket = Path::new(&socket);
    eventually("it listens", || UnixStream::connect(socket).is_ok());
    // After the first answer the server is set up.
    get(socket);
    let worker = children(server.pid())[0];
    under_requests(socket, || {
        cycles(worker);
        cycles(server.pid());
    });
    server.signal(libc::SIGTERM);
    server.finish().assert_code(0);
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    assert!(!log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
}

#[test]
fn redis() {
    require!(have(&["redis-server", "redis-benchmark"]), "no redis");
    let dir = tempfile::tempdir().expect("a directory");
    let socket = at(&dir, "socket");
    let dir_path = dir.path().display().to_string();
    let args = ["--port", "0", "--unixsocket", &socket, "--dir", &dir_path, "--save", ""];
    let server = start("redis-server", &args);
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    let requests = (7500 * cycles_of_one()).to_string();
    let args = ["-s", &socket, "-n", &requests, "-c", "20", "-q", "-t", "set,get"];
    let load = start("redis-benchmark", &args);
    cycles(server.pid());
    let done = load.finish();
    done.assert_code(0);
    assert_eq!(done.out().matches("requests per second").count(), 2, "{done}");
    server.signal(libc::SIGTERM);
    server.finish().assert_code(0);
}

/// node, a server with much text, answers requests.
#[test]
fn node() {
    let node = Fresh::installed("node");
    require!(node.is_some(), "no node");
    let node = node.expect("just looked");
    let dir = tempfile::tempdir().expect("a directory");
    let socket = at(&dir, "socket");
    let script = format!(
        "require('http').createServer((q, a) => a.end('all is well\\n')).listen('{socket}');
         process.on('SIGTERM', () => process.exit(7));"
    );
    write_program(&dir.path().join("server.js"), script.as_bytes(), 0o644);
    let server = start_file(node.path(), &[&at(&dir, "server.js")]);
    let socket = Path::new(&socket);
    eventually("it listens", || UnixStream::connect(socket).is_ok());
    let pid = server.pid();
    let switched = under_requests(socket, || cycles(pid));
    assert_eq!(switched, cycles_of_one());
    server.signal(libc::SIGTERM);
    server.finish().assert_code(7).assert_silent();
}

#[test]
fn mariadbd_under_sysbench() {
    require!(
        is_root() && Mariadb::is_installed() && have(&["sysbench"]),
        "no mariadbd or no sysbench, or not root"
    );
    let server = Mariadb::start();
    server.admin(&["create", "sbtest"]).assert_code(0);
    let sysbench = |test: &str, threads: &str, what: &str| {
        let socket = format!("--mysql-socket={}", server.socket());
        let args = [test, "--db-driver=mysql", &socket, "--mysql-user=root", "--tables=2"];
        let time = format!("--time={}", cycles_of_one() * 3 / 5);
        let more = ["--table-size=2000", "--mysql-ignore-errors=none", &time, threads, what];
        start("sysbench", &[&args[..], &more].concat())
    };
    sysbench("oltp_read_only", "--threads=1", "prepare").finish().assert_code(0);
    // Each transaction changes one row, so that transactions cannot deadlock.
    let loads = [
        sysbench("oltp_read_only", "--threads=4", "run"),
        sysbench("oltp_update_non_index", "--threads=2", "run"),
    ];
    assert_eq!(cycles(server.pid()), cycles_of_one());
    for load in loads {
        let done = load.finish();
        done.assert_code(0);
        let out = done.out();
        let of = |what: &str| {
            let line =
                out.lines().find_map(|line| line.trim().strip_prefix(what)?.strip_prefix(':'));
            let number = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
            number.unwrap_or_else(|| panic!("no {what}: {done}"))
        };
        let numbers: [u64; 3] = ["transactions", "ignored errors", "reconnects"].map(of);
        assert!(numbers[0] > 0 && numbers[1..] == [0, 0], "{done}");
    }
    server.stop();
}
