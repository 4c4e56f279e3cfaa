//! `tiexecctl advise` on real programs at work: it names their text and comes to a verdict.

use serde_json::Value;

use support::attaching::{ctl, json, started};
use support::child::eventually;
use support::programs::python;
use support::{Fresh, Public, Run, installed, is_root, require};

/// Clock ticks that a process has spent in user mode (proc_pid_stat(5), field 14).
fn user_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let after_name = stat.rsplit(')').next().expect("a name in brackets");
    let ticks = after_name.split_ascii_whitespace().nth(11).expect("field 14");
    ticks.parse().expect("a number")
}

/// Advises on a busy process. Returns the share of samples in files whose path has this end.
fn in_file(pid: i32, name: &str) -> f64 {
    // On a busy machine a program may take seconds to start.
    eventually("it is at work", || user_ticks(pid) > 20);
    let done = ctl(["advise", "--json", "--duration", "2s", &pid.to_string()]);
    done.assert_code(0);
    let advice: Value = json(&done);
    assert!(advice["judgement"]["verdict"].is_string(), "{advice}");
    assert!(advice["text"]["samples"].as_u64().is_some_and(|samples| samples > 20), "{advice}");
    let files = advice["files"].as_array().expect("files").clone();
    let of =
        files.iter().filter(|file| file["path"].as_str().is_some_and(|path| path.contains(name)));
    of.map(|file| file["share"].as_f64().expect("a share")).sum()
}

#[test]
fn node() {
    let node = Fresh::installed("node");
    require!(node.is_some(), "no node");
    let node = node.expect("just looked");
    let script =
        "for (;;) JSON.parse(JSON.stringify([...Array(500).keys()].map(i => ({ i, s: 'x' + i }))))";
    // node can move its text into anonymous memory itself. It is node's text there, too.
    for option in ["--use-largepages=off", "--use-largepages=silent"] {
        let held = Run::new(node.path(), [option, "-e", script]).plain().start();
        // Debian's node has its text in libnode.so.
        assert!(in_file(held.pid(), "node") > 0.2, "{option}: node's time in its own text");
    }
}

/// The text of Python has a long head and tail, so `--edges=pad` reaches more of its samples than a plain attach.
#[test]
fn python_and_its_edges() {
    let python = python();
    require!(python.is_some(), "no Python of the distribution's");
    let python = python.expect("just looked");
    let script = "import json\nwhile True: json.loads(json.dumps([str(i) for i in range(500)]))";
    let held = Run::new(python.path(), ["-c", script]).plain().start();
    eventually("it is at work", || user_ticks(held.pid()) > 20);
    let pid = held.pid().to_string();
    let done = ctl(["advise", "--json", "--duration", "2s", &pid]);
    done.assert_code(0);
    let advice = json(&done);
    let ways = advice["ways"].as_array().expect("ways");
    let reached = |command: String| {
        let way = ways.iter().find(|way| way["command"] == command);
        way.map(|way| way["on_huge"].as_f64().expect("a share"))
    };
    let plain = reached(format!("tiexecctl attach {pid}")).expect("an attach");
    let edges = reached(format!("tiexecctl attach --edges=pad {pid}"));
    assert!(edges.is_none_or(|edges| edges > plain), "{advice}");
    let table = ctl(["advise", "--duration", "1s", &pid]).out();
    let last = table.lines().last().expect("lines");
    assert!(last.starts_with("next  "), "{table}");
}

#[test]
fn python_at_work() {
    let python = python();
    require!(python.is_some(), "no Python of the distribution's");
    let python = python.expect("just looked");
    let script = "import json\nwhile True: json.loads(json.dumps([str(i) for i in range(500)]))";
    let held = Run::new(python.path(), ["-c", script]).plain().start();
    assert!(in_file(held.pid(), "python") > 0.2, "python spends its time in its own text");
}

/// A single server process, without its relatives. It does not run as root.
#[test]
fn postgres() {
    let bin = ["17", "16", "15", "14", "13"]
        .map(|version| std::path::PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
        .into_iter()
        .find(|bin| bin.join("initdb").exists());
    require!(is_root() && bin.is_some(), "no postgres, or not root");
    let bin = bin.expect("just looked");
    let public = Public::new();
    let dir = public.path().join("cluster");
    std::fs::create_dir(&dir).expect("a directory");
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).expect("chown");
    let data = dir.join("data").display().to_string();
    let front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp"];
    started(&front, &bin.join("initdb"), ["-D", &data, "-A", "trust"]).finish().assert_code(0);
    let mut held = started(&front, &bin.join("postgres"), ["--single", "-D", &data, "postgres"]);
    held.write(b"select sum(length(md5(i::text))) from generate_series(1, 1000000000) i\n");
    let pid = held.pid();
    eventually("it is at its query", || {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
        let files = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let written =
            files.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok());
        // The function's rows go to a temporary file first.
        exe.is_ok_and(|exe| exe.ends_with("postgres"))
            && written.is_some_and(|bytes| bytes > 1 << 20)
    });
    assert!(in_file(pid, "/postgres") > 0.2, "postgres spends its time in its own text");
}

/// rustc's code lies in libraries, which a launch leaves alone without an image store.
#[test]
fn rustc() {
    require!(installed("rustc").is_some(), "no rustc");
    require!(is_root(), "a mount needs root");
    // This is the compiler itself, not rustup's proxy.
    let sysroot = support::child::tool(&["rustc", "--print", "sysroot"]);
    let rustc = format!("{}/bin/rustc", String::from_utf8_lossy(&sysroot.stdout).trim());
    support::store::own_run();
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("functions.rs");
    let function = |index: u32| {
        format!(
            "pub fn f{index}(v: &[u64]) -> Vec<String> {{ v.iter().map(|x| format!(\"{{}}\", x % {index})).collect() }}\n"
        )
    };
    std::fs::write(&source, (1..100).map(function).collect::<String>()).expect("a file");
    let output = dir.path().join("functions.o").display().to_string();
    let source = source.display().to_string();
    let command = [&rustc, "-O", "--crate-type=lib", "--emit=obj", "-o", &output, &source];
    let words = ["advise", "--follow", "--json", "--"].into_iter().chain(command);
    // The limit is long, because a compiler is slow on a busy machine.
    let done = Run::new(support::tiexecctl(), words).plain().output();
    done.assert_code(0);
    let advice = json(&done);
    let judgement = &advice["judgement"];
    let reasons = judgement["reasons"].as_array().expect("reasons");
    let named = |reason: &Value| reason.as_str().is_some_and(|text| text.contains("store setup"));
    assert_eq!(reasons.iter().any(named), judgement["verdict"] != "not_worth_it", "{judgement}");
    let next = advice["next"].as_str().unwrap_or_default();
    assert!(next.is_empty() || next.starts_with("tiexecctl store setup && tiexec "), "{next}");
}
