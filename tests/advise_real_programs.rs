//! `tiexecctl advise` on real programs at work: it names their text and comes to a verdict.

mod support;

use serde_json::Value;

use support::attaching::{ctl, json};
use support::{Run, installed, require};

/// Advises on a busy process; returns the share of samples in files whose path ends like this.
fn in_file(pid: i32, name: &str) -> f64 {
    let done = ctl(["advise", "--json", "--duration", "2s", &pid.to_string()]);
    done.assert_code(0);
    let advice: Value = json(&done);
    assert!(advice["judgement"]["verdict"].is_string(), "{advice}");
    assert!(advice["text"]["samples"].as_u64().is_some_and(|samples| samples > 20), "{advice}");
    let files = advice["files"].as_array().expect("files").clone();
    let of = files.iter().filter(|file| file["path"].as_str().is_some_and(|path| path.contains(name)));
    of.map(|file| file["share"].as_f64().expect("a share")).sum()
}

#[test]
fn node() {
    require!(installed("node").is_some(), "no node");
    let script = "for (;;) JSON.parse(JSON.stringify([...Array(500).keys()].map(i => ({ i, s: 'x' + i }))))";
    let held = Run::new("node", ["-e", script]).plain().start();
    assert!(in_file(held.pid(), "node") > 0.2, "node spends its time in its own text");
}

#[test]
fn python() {
    require!(installed("python3").is_some(), "no python3");
    let script = "import json\nwhile True: json.loads(json.dumps([str(i) for i in range(500)]))";
    let python = support::child::tool(&["python3", "-c", "import sys; print(sys.executable)"]);
    let python = String::from_utf8_lossy(&python.stdout).trim().to_owned();
    let held = Run::new(&python, ["-c", script]).plain().start();
    assert!(in_file(held.pid(), "python") > 0.2, "python spends its time in its own text");
}
