//! The agent scans the machine once a day, and `tiexecctl status` shows which programs would gain.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use support::attaching::ctl;
use support::child::eventually;
use support::{Run, is_root, require, tiexecd};

use crate::{Files, stop};

/// The agent's part of `tiexecctl status`.
fn told() -> Value {
    let told = ctl(["status", "--json"]);
    told.assert_code(0);
    serde_json::from_str::<Value>(&told.out()).expect("JSON")["agent"].take()
}

#[test]
fn the_table_outlives_the_agent() {
    require!(is_root(), "sampling of all processes needs root");
    let files = Files::new();
    // Two seconds after the start.
    let agent =
        || Run::new(tiexecd(), files.args()).plain().env("TIEXEC_TEST_CLOCK", "300").start();
    let first = agent();
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
    let second = agent();
    eventually("the next agent answers", || told()["scan"] == seen);
    stop(second);
    // Nobody else's file is shown.
    support::chmod(&kept, 0o666);
    let third = agent();
    eventually("the third agent answers", || told().is_object());
    assert!(told()["scan"] != seen);
    stop(third);
}
