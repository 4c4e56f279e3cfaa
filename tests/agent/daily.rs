//! The agent scans the machine once a day, and `tiexecctl status` shows which programs would gain.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use support::attaching::ctl;
use support::child::{eventually, state};
use support::smaps::child_with;
use support::{Held, Run, is_root, require, tiexecd};

use crate::{Files, stop};

/// The agent's part of `tiexecctl status`.
fn told() -> Value {
    let told = ctl(["status", "--json"]);
    told.assert_code(0);
    serde_json::from_str::<Value>(&told.out()).expect("JSON")["agent"].take()
}

/// An agent that scans two seconds after its start.
fn scanning_agent(files: &Files) -> Held {
    Run::new(tiexecd(), files.args()).plain().env("TIEXEC_TEST_CLOCK", "300").start()
}

/// Waits until the agent scans. Returns the process that does it.
fn scan_of(agent: &Held) -> i32 {
    let mut scan = None;
    eventually("the agent scans", || {
        scan = child_with(agent.pid(), "scan");
        scan.is_some()
    });
    scan.expect("just found")
}

#[test]
fn a_killed_scan_harms_no_agent() {
    require!(is_root(), "sampling of all processes needs root");
    let files = Files::new();
    let agent = scanning_agent(&files);
    let scan = scan_of(&agent);
    // SAFETY: kill takes numbers, and the agent has not reaped its child.
    unsafe { libc::kill(scan, libc::SIGKILL) };
    eventually("the agent has reaped it", || state(scan).is_none());
    assert_eq!(told()["scan"], Value::Null);
    let log = stop(agent);
    let line = log.lines().find(|line| line.contains("cannot scan"));
    assert!(line.is_some_and(|line| line.contains("SIGKILL")), "{log}");
    assert!(!files.state().join("scan.json").exists());
}

#[test]
fn a_scan_ends_with_its_agent() {
    require!(is_root(), "sampling of all processes needs root");
    let files = Files::new();
    for kill in [false, true] {
        let agent = scanning_agent(&files);
        let scan = scan_of(&agent);
        if kill {
            agent.signal(libc::SIGKILL);
            agent.finish();
        } else {
            stop(agent);
        }
        eventually("the scan has ended", || matches!(state(scan), None | Some('Z')));
    }
}

#[test]
fn the_table_outlives_the_agent() {
    require!(is_root(), "sampling of all processes needs root");
    let files = Files::new();
    let first = scanning_agent(&files);
    let mut seen = Value::Null;
    eventually("the agent has scanned", || {
        seen = told()["scan"].take();
        seen["when"].is_u64()
    });
    assert_eq!(seen["table"]["kind"], "scan", "{seen}");
    assert!(seen["table"]["programs"].is_array(), "{seen}");
    let shown = ctl(["status"]).out();
    assert!(
        shown.lines().any(|line| line.starts_with("scan     ") && line.contains(" ago: ")),
        "{shown}"
    );
    let kept = files.state().join("scan.json");
    let mode = std::fs::metadata(&kept).expect("its table").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let log = stop(first);
    assert!(!log.contains("cannot scan"), "{log}");
    // The next agent has the table at once, and scans a day later.
    let second = scanning_agent(&files);
    eventually("the next agent answers", || told()["scan"] == seen);
    stop(second);
    // Nobody else's file is shown.
    support::chmod(&kept, 0o666);
    let third = scanning_agent(&files);
    eventually("the third agent answers", || told().is_object());
    assert!(told()["scan"] != seen);
    stop(third);
}

/// The times of jumps show the TLB. Without a record, the agent measures them at its start.
#[test]
fn the_jumps_are_timed_at_the_start() {
    require!(is_root(), "another /run needs root");
    const RECORD: &str = "/run/tiexec/machine/jumps";
    let files = Files::new();
    let agent = Run::new(tiexecd(), files.args()).plain();
    std::fs::remove_file(RECORD).expect("the record that all tests share");
    let first = agent.start();
    eventually("the jumps are timed", || Path::new(RECORD).exists());
    stop(first);
    let measured = std::fs::read_to_string(RECORD).expect("the record");
    assert!(measured.lines().count() >= 20, "{measured}");
    // A record is used as it is.
    let record = "8192 4.00 50.00 10.00 -\n";
    std::fs::write(RECORD, record).expect("a record");
    let second = agent.start();
    eventually("the next agent answers", || told().is_object());
    stop(second);
    assert_eq!(std::fs::read_to_string(RECORD).expect("the record"), record);
}
