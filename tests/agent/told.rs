//! The socket reports the agent's work, and a user's programs cannot inflate the report.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::attaching::{Before, assert_untouched, ctl, switched};
use support::child::eventually;
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::smaps::touch_text;
use support::tmux::Screen;
use support::{Fresh, Kind, Run, installed, is_root, pmd_size, program, require, tiexecd};

use crate::{Files, attach_rule, eventually_switched, has_guard, hold, stop};

const SOCKET: &str = "/run/tiexec/agent.sock";

/// The answer to a request: its status line, and its content.
pub(crate) fn ask(path: &str) -> (String, String) {
    ask_on(UnixStream::connect(SOCKET).expect("an agent listens"), path)
}

fn ask_on(mut socket: impl Read + Write, path: &str) -> (String, String) {
    write!(socket, "GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n").expect("it reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers");
    let (head, content) = text.split_once("\r\n\r\n").expect("a head");
    support::schema::check(content.as_bytes(), path);
    (head.lines().next().expect("a line").to_owned(), content.to_owned())
}

/// The answer of `tiexecctl status` about the machine.
fn status_of_machine() -> Value {
    let told = ctl(["status", "--json"]);
    told.assert_code(0);
    serde_json::from_str(&told.out()).expect("JSON")
}

/// The row of a program.
fn row(told: &Value, program: &Path) -> Value {
    let rows = told["programs"].as_array().expect("a list");
    let is_its = |row: &&Value| row["exe"] == program.to_string_lossy().as_ref();
    rows.iter().find(is_its).unwrap_or_else(|| panic!("no row: {told}")).clone()
}

/// The metrics that a monitoring file names.
fn metrics_of(file: &str) -> Vec<String> {
    let path = support::sources().join("../../monitoring").join(file);
    let text = std::fs::read_to_string(path).expect("a file of the project");
    let of_a_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
    let names = text.split(|byte| !of_a_name(byte)).filter(|word| word.starts_with("tiexec_"));
    let names: Vec<String> = names.map(str::to_owned).collect();
    assert!(names.len() >= 5, "{file}: {names:?}");
    names
}

/// `tiexecctl top` shows the rule and the outcome in the process's row and in its detail view.
fn on_the_screen(pid: i32) {
    let command = format!("'{}' top -d 0.3", support::tiexecctl().display());
    let screen = Screen::new(200, 50, &command, &[]);
    screen.go().wait_for("agent at work; 1 rule");
    screen.keys(&["/"]).wait_for("filter:");
    screen.keys(&[&pid.to_string()]).wait_for("1 match");
    let text = screen.wait_for("  a             ok, ");
    assert!(text.contains("RULE") && text.contains("OUTCOME"), "{text}");
    screen.keys(&["Enter"]).wait_for("agent    rule a: ok, ");
    screen.keys(&["q", "q"]).wait_for("ended 0");
}

#[test]
fn alerts_and_dashboard() {
    let monitoring = support::sources().join("../../monitoring");
    let dashboard = std::fs::read(monitoring.join("grafana.json")).expect("a file of the project");
    let dashboard: Value = serde_json::from_slice(&dashboard).expect("JSON");
    assert_eq!(dashboard["uid"], "tiexec");
    require!(installed("promtool").is_some(), "no promtool");
    let alerts = monitoring.join("alerts.yml");
    let done = Command::new("promtool").args(["check", "rules"]).arg(alerts).output();
    let done = done.expect("promtool");
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn status_and_metrics() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let held = hold(&copy);
    let user = Run::new(&copy, ["7"]).plain();
    let user = user.behind(["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"]).hold();
    let figures = files.public.path().join("tiexec.prom");
    let options =
        [format!("--textfile={}", figures.display()), "--metrics-address=127.0.0.1:0".to_owned()];
    let agent = Run::new(tiexecd(), files.args().into_iter().chain(options));
    let mut agent = agent.plain().start();
    eventually_switched(&held);
    eventually_switched(&user);
    let meta = std::fs::metadata(SOCKET).expect("the socket");
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (0, 0o660));

    let mut told = Value::Null;
    eventually("both are told of", || {
        told = serde_json::from_str(&ask("/status").1).expect("JSON");
        told["processes"].as_array().is_some_and(|all| all.len() == 2)
    });
    assert_eq!((&told["kind"], &told["rules"]), (&"agent".into(), &1.into()), "{told}");
    let all = told["processes"].as_array().expect("a list");
    let of = |pid: i32| all.iter().find(|one| one["pid"] == pid).expect("it is told of");
    let one = of(held.pid());
    assert_eq!((&one["rule"], &one["result"]), (&"a".into(), &"ok".into()), "{one}");
    assert!(one["huge"]["image"].as_u64().expect("bytes") >= pmd_size(), "{one}");
    assert_eq!(of(user.pid())["unit"], Value::Null, "a user's units are no label");

    let (status, text) = ask("/metrics");
    assert_eq!(status, "HTTP/1.0 200 OK");
    // At the TCP address every client may ask, but the answer names no process.
    let said = agent.err_text();
    let address = said.split_once("answers /metrics at ").expect("it says where").1;
    let address = address.lines().next().expect("a line");
    let ask_there = |path| ask_on(TcpStream::connect(address).expect("it listens"), path);
    let (status, there) = ask_there("/metrics");
    assert_eq!(status, "HTTP/1.0 200 OK");
    assert!(there.contains("tiexec_attach_total{"), "{there}");
    assert_eq!(ask_there("/status").0, "HTTP/1.0 404 Not Found");
    for metric in [
        "tiexec_text_bytes{rule=\"a\",unit=\"",
        "tiexec_text_huge_bytes{rule=\"a\",unit=\"other\",backing=\"image\"}",
        "tiexec_attach_total{outcome=\"ok\",reason=\"none\"} 2\n",
        "tiexec_stop_seconds_count 2\n",
        // One copy for each user.
        &format!("tiexec_copies_bytes {}\n", switched(held.pid()) + switched(user.pid())),
        "tiexec_drained 0\n",
        "tiexec_host_splits ",
        "tiexec_last_look_timestamp_seconds 1",
        "tiexec_store_bytes 0\n",
        "tiexec_quarantined 0\n",
        "tiexec_reconcile_seconds ",
        "tiexec_figures_timestamp_seconds 1",
        "tiexec_build_info{version=\"",
    ] {
        assert!(text.contains(metric), "{metric}: {text}");
    }
    assert!(!text.contains(&held.pid().to_string()), "no process is a label: {text}");
    if installed("promtool").is_some() {
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool");
        let mut pipe = promtool.stdin.take().expect("a pipe was asked for");
        pipe.write_all(text.as_bytes()).expect("it reads");
        drop(pipe);
        let done = promtool.wait_with_output().expect("it ends");
        assert!(done.status.success(), "{done:?}\n{text}");
    }
    let shown = row(&status_of_machine(), &copy);
    let when = shown["when"].as_u64().expect("a time");
    assert_eq!((&shown["rule"], &shown["result"]), (&"a".into(), &"ok".into()), "{shown}");
    assert_eq!(shown["processes"], 2, "{shown}");
    assert!(when > 1_700_000_000, "{shown}");
    let shown = ctl(["status"]);
    assert!(shown.out().contains("agent    at work; 1 rule, 0 builds in quarantine"), "{shown}");
    if installed("tmux").is_some() {
        on_the_screen(held.pid());
    }
    for file in ["alerts.yml", "grafana.json"] {
        for metric in metrics_of(file) {
            assert!(
                text.contains(&format!("{metric}{{")) || text.contains(&format!("{metric} ")),
                "{file}: {metric}"
            );
        }
    }
    eventually("a collector reads the same", || {
        let text = std::fs::read_to_string(&figures).unwrap_or_default();
        text.contains("tiexec_attach_total{outcome=\"ok\",reason=\"none\"} 2\n")
    });
    let mode = std::fs::metadata(&figures).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    assert_eq!(ask("/other").0, "HTTP/1.0 404 Not Found");
    // A silent client delays the agent only briefly.
    let silent = UnixStream::connect(SOCKET).expect("it listens");
    let late = hold(&copy);
    eventually_switched(&late);
    drop(silent);
    let tmp = files.public.path();
    stop(agent);
    assert!(!figures.exists(), "no collector reads the figures of an agent that has ended");
    let left = std::fs::read_dir(tmp).expect("a directory").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("prom")), "{left:?}");
    // Without the agent, `status` has only the kernel's data.
    let told = status_of_machine();
    let shown = row(&told, &copy);
    assert_eq!((&told["agent"], &shown["rule"]), (&Value::Null, &Value::Null), "{told}");
    assert_eq!(shown["processes"], 3, "{shown}");
    assert!(shown["huge_bytes"].as_u64().expect("bytes") >= 3 * pmd_size(), "{shown}");
    assert!(shown["backings"]["image"].as_u64().expect("bytes") >= 3 * pmd_size(), "{shown}");
    assert!(ctl(["status"]).out().contains("fix: systemctl enable --now tiexecd"));
    for held in [held, user, late] {
        held.finish().assert_code(7);
    }
}

/// Text that is huge without TiExec stays as it is. The log says that there was nothing to do, and `status` shows the backing.
#[test]
fn text_that_is_huge_by_itself() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    require!(huge_folios(), "{}", NO_HUGE_FOLIOS);
    let copy = Fresh::copy(&program("hold", Kind::DynamicNoPie));
    let held = hold(copy.path());
    let pid = held.pid();
    touch_text(pid);
    require!(held.coverage().is_full(), "the kernel maps no huge folios of files by PMD entries");
    let before = Before::of(pid);
    let files = Files::new();
    files.write("a.toml", &attach_rule("a", copy.path()));
    let agent = files.agent();
    let told = || status_of_machine()["programs"].as_array().cloned().unwrap_or_default();
    let is_its =
        |row: &Value| row["exe"] == copy.path().to_string_lossy().as_ref() && row["rule"] == "a";
    eventually("the agent has looked at it", || told().iter().any(is_its));
    let shown = told().into_iter().find(is_its).expect("just seen");
    assert!(shown["backings"]["pagecache"].as_u64() >= Some(pmd_size()), "{shown}");
    let said = stop(agent);
    assert!(said.contains(&format!("{pid} (rule a): nothing to do, huge ")), "{said}");
    assert!(!said.contains("attach done"), "{said}");
    assert_untouched(pid, &before);
    held.finish().assert_code(7).assert_silent();
}
