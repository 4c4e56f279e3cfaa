//! Counters that give false numbers, hang, or print without end make a canary end. They never block it, and never
//! decide it.

use std::io::{Read, Write};
use std::net::TcpListener;

use support::attaching::{joined, json, switched};
use support::{Run, is_root, require, tiexecctl};

use crate::{Server, started};

#[test]
fn that_have_no_number_change_nothing() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let before = joined(server.pid());
    for (counter, says) in [
        ("echo none", "it printed no number"),
        ("echo nan", "it printed no number"),
        ("echo 5; exit 3", "it failed: exit status: 3"),
        ("yes 1", "it prints without end"),
        ("kill -9 $$", "it failed: signal: 9"),
        // If the canary runs as root, the command runs as nobody.
        ("test $(id -u) = 0 && echo 5", "it failed: exit status: 1"),
        ("printf '\\033[31m'; exit 1", "it failed: exit status: 1"),
        ("sleep 100", "it took more than 10 s"),
        ("trap '' TERM HUP; echo 5; sleep 100", "it took more than 10 s"),
    ] {
        let args = server.with_counter(&["--counter", counter]);
        let done = started(&args).finish();
        done.assert_code(1);
        assert!(
            done.err().contains("cannot read --counter ") && done.err().contains(says),
            "{done}"
        );
        assert!(!done.err().contains('\u{1b}'), "{done}");
        assert_eq!(joined(server.pid()), before, "{counter}");
    }
    server.finish();
}

#[test]
fn that_cannot_be_run_are_named() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let before = joined(server.pid());
    let says = |option: &str| format!("cannot run {option} './cq' in / as nobody: ");
    let counter = started(&server.with_counter(&["--counter", "./cq"])).finish();
    let guard = server.canary(&["--guard", "./cq"]);
    for (done, option) in [(counter, "--counter"), (guard, "--guard")] {
        done.assert_code(1);
        assert!(done.err().contains(&says(option)), "{done}");
        assert!(done.err().contains("not found; fix: name it by its whole path"), "{done}");
    }
    assert_eq!(joined(server.pid()), before);
    server.finish();
}

#[test]
fn that_fall_are_no_figure() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let args =
        server.with_counter(&["--counter", "echo $((9000000000000 - $(date +%s%N) / 1000000))"]);
    let done = started(&args).finish();
    done.assert_code(1);
    assert!(done.err().contains("it fell from "), "{done}");
    assert!(done.out().contains("undecided (it failed)"), "{done}");
    assert_eq!(switched(server.pid()), 0);
    server.finish();
}

#[test]
fn that_break_on_the_way_end_it() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let gone = server.public.path().join("gone").display().to_string();
    let counter = format!("test ! -e '{gone}' && {}", server.counter());
    let args = server.with_counter(&["--counter", &counter, "--keep-above=2"]);
    let mut canary = started(&args);
    server.eventually_on_copies(&mut canary);
    std::fs::write(&gone, "").expect("a file");
    let done = canary.finish();
    done.assert_code(1);
    assert!(done.err().contains("cannot measure by --counter "), "{done}");
    assert_eq!(switched(server.pid()), 0);
    server.finish();
}

/// Answers each request with what `answer` makes of the count's file.
fn serve(answer: impl Fn() -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 2048];
            let _request = stream.read(&mut request);
            let _gone = stream.write_all(answer().as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn a_prometheus_server_is_asked() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(300, 0);
    let count = server.public.path().join("count");
    let url = serve(move || {
        let count = std::fs::read_to_string(&count).unwrap_or_default();
        let count: u64 = count.trim().parse().unwrap_or(0);
        format!(
            "HTTP/1.0 200 OK\r\n\r\n{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\
             \"result\":[{{\"metric\":{{}},\"value\":[1,\"{count}\"]}}]}}}}"
        )
    });
    // A name may have more addresses than the one that the server listens to.
    let url = url.replace("127.0.0.1", "two-addresses");
    let hosts = server.public.path().join("hosts").display().to_string();
    let script = "printf '%s two-addresses\\n' ::1 127.0.0.1 >\"$0\"; mount --bind \"$0\" /etc/hosts; exec \"$@\"";
    let args = server.with_counter(&["--json", "--prometheus", &url, "--query", "sum(x)"]);
    let run = Run::new(tiexecctl(), args).plain();
    let done = run.behind(["unshare", "-m", "sh", "-ec", script, &hosts]).output();
    done.assert_code(0);
    assert_eq!(json(&done)["verdict"], "better", "{done}");
    server.finish();
}

#[test]
fn a_server_that_is_none_changes_nothing() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let before = joined(server.pid());
    let error = "{\"status\":\"error\",\"error\":\"bad \\u001b[31m query\"}";
    for (answer, says) in [
        ("220 mail ESMTP\r\n".to_owned(), "the answer is not HTTP"),
        ("HTTP/1.0 200 OK\r\n\r\n<html>".to_owned(), "the answer is not Prometheus's"),
        (format!("HTTP/1.0 400 Bad\r\n\r\n{error}"), "bad \\x1b[31m query"),
        ("x".repeat(2 << 20), "the answer is too long"),
    ] {
        let url = serve(move || answer.clone());
        let args = server.with_counter(&["--prometheus", &url, "--query", "x"]);
        let done = started(&args).finish();
        done.assert_code(1);
        assert!(done.err().contains(says), "{says}: {done}");
        assert_eq!(joined(server.pid()), before, "{says}");
    }
    let args = server.with_counter(&["--prometheus", "https://x", "--query", "x"]);
    started(&args).finish().assert_code(2);
    server.finish();
}
