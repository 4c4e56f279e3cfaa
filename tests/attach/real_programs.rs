//! Attaches to real programs at full load and reverts them, many times. Their results stay right.

use std::path::{Path, PathBuf};
use std::time::Instant;

use support::attaching::{ctl, started, switched};
use support::child::eventually;
use support::smaps::children;
use support::{Held, Public, Run, busy_java, installed, is_root, require, write_program};

const CYCLES: usize = 20;

/// Attaches and reverts while the program computes. The program ends with 7 if its results are right.
fn cycles(mut held: Held, pid: i32) {
    for cycle in 0..CYCLES {
        let done = ctl(["attach", "--backing=image", "--json", &pid.to_string()]);
        done.assert_code(0);
        assert!(switched(pid) > 0, "cycle {cycle}: {done}");
        let done = ctl(["revert", "--json", &pid.to_string()]);
        done.assert_code(0);
        assert_eq!(switched(pid), 0, "cycle {cycle}: {done}");
    }
    held.write(b"end\n");
    held.finish().assert_code(7);
}

fn script(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    write_program(&path, text.as_bytes(), 0o644);
    path.to_string_lossy().into_owned()
}

/// Go has preemption signals, and 4000 stacks below which no data may be written.
#[test]
fn go_with_4000_goroutines() {
    require!(installed("go").is_some(), "no go");
    let source = support::sources().join("go_crowd");
    let dir = tempfile::tempdir().expect("a directory");
    let binary = dir.path().join("crowd");
    let built = std::process::Command::new(installed("go").expect("just looked"))
        .args(["build", "-o"])
        .arg(&binary)
        .arg(".")
        .current_dir(source)
        .output()
        .expect("go");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let held = Run::new(&binary, [""; 0]).plain().hold();
    let pid = held.pid();
    cycles(held, pid);
}

/// Java has a just-in-time compiler with safepoints in SIGSEGV handlers, and garbage collection.
#[test]
fn java() {
    let java = busy_java();
    require!(java.is_some(), "no JDK");
    let (java, dir) = java.expect("just looked");
    let held = Run::new(java, ["-cp", &dir.path().to_string_lossy(), "Busy"]).plain().hold();
    let pid = held.pid();
    cycles(held, pid);
}

#[test]
fn node() {
    let node = installed("node");
    require!(node.is_some(), "no node");
    let dir = tempfile::tempdir().expect("a directory");
    let source = script(
        dir.path(),
        "busy.js",
        "const {createHash} = require('crypto');
         function round() {
             let h = 'x';
             for (let i = 0; i < 2000; i++) h = createHash('sha1').update(h + i).digest('hex');
             return h;
         }
         const want = round();
         setInterval(() => { if (round() !== want) process.exit(1); }, 1);
         process.stdin.on('data', () => process.exit(7));
         console.log('ready');",
    );
    let held = Run::new(node.expect("just looked"), [source]).plain().hold();
    let pid = held.pid();
    cycles(held, pid);
}

/// The processes of PostgreSQL run under load, and new ones start during the attach. No transaction fails, and no
/// connection is lost.
#[test]
fn postgres() {
    let bin = ["16", "17", "15", "14", "13"]
        .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
        .into_iter()
        .find(|bin| bin.join("pgbench").exists() && bin.join("initdb").exists());
    require!(is_root() && bin.is_some(), "no postgres, or not root");
    let bin = bin.expect("just looked");
    let public = Public::new();
    // The server is a private copy, so that other servers and tests do not use it. The copy still finds its libraries.
    let server = public.add(&bin.join("postgres"), "postgres", 0o755);
    let server = server.to_string_lossy();
    let dir = public.path().join("cluster");
    std::fs::create_dir(&dir).expect("a directory");
    let (data, at) = (dir.join("data").display().to_string(), dir.display().to_string());
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).expect("chown");
    let front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp"];
    let start = |name: &str, args: &[&str]| started(&front, &bin.join(name), args);
    let run = |name: &str, args: &[&str]| start(name, args).finish().assert_code(0).out();
    run("initdb", &["-D", &data, "-A", "trust", "-U", "tester"]);
    let options = format!("-c listen_addresses= -k {at}");
    let log = dir.join("log");
    let log_text = log.display().to_string();
    run("pg_ctl", &["-D", &data, "-p", &server, "-o", &options, "-l", &log_text, "-w", "start"]);
    let to = ["-h", &at, "-U", "tester"];
    run("createdb", &[&to[..], &["bench"]].concat());
    run("pgbench", &[&to[..], &["-i", "-q", "bench"]].concat());
    // The load runs until the test ends it.
    let load = [&to[..], &["-S", "-c4", "-T3600", "bench"]].concat();
    let load = Run::new(bin.join("pgbench"), load).plain().behind(front).limit(600).start();

    let pid = std::fs::read_to_string(dir.join("data/postmaster.pid")).expect("a postmaster");
    let pid: i32 = pid.lines().next().and_then(|pid| pid.parse().ok()).expect("its id");
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("its program");
    assert_eq!(exe.to_string_lossy(), server);
    let psql = || run("psql", &[&to[..], &["-Atc", "select 6*7", "bench"]].concat());
    let busy = |child: &i32| {
        let shown = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        shown.contains("tester bench")
    };
    eventually("its four clients", || {
        children(pid).iter().filter(|&child| busy(child)).count() == 4
    });
    let mut pids: Vec<String> =
        children(pid).iter().filter(|&child| busy(child)).map(i32::to_string).collect();
    pids.push(pid.to_string());
    // On a busy machine all cycles would take too long.
    let begun = Instant::now();
    for _ in (0..CYCLES).take_while(|&cycle| cycle < 3 || begun.elapsed().as_secs() < 10) {
        ctl([&["attach", "-q", "--backing=image"][..], &[&*pids.join(",")]].concat())
            .assert_code(0);
        assert!(pids.iter().all(|pid| switched(pid.parse().expect("a number")) > 0));
        assert_eq!(psql(), "42\n");
        ctl(["revert", "-q", &*pids.join(",")]).assert_code(0);
        assert!(pids.iter().all(|pid| switched(pid.parse().expect("a number")) == 0));
    }
    // This covers all processes, also those that sleep with a time limit, because they catch signals.
    for args in [&["attach", "-q", "--backing=image", "--exe"][..], &["revert", "-q", "--exe"]] {
        let done = ctl([args, &[&*server]].concat());
        if done.status.code() != Some(0) {
            done.assert_code(3);
            let expected = |line: &&str| line.contains("target_gone");
            assert!(done.err().lines().all(|line| expected(&line)), "{done}");
        }
        assert_eq!(psql(), "42\n");
    }
    // pgbench ends as if its time were over.
    load.signal(libc::SIGALRM);
    let done = load.finish();
    done.assert_code(0);
    assert!(done.out().contains("number of failed transactions: 0 "), "{done}");
    run("pg_ctl", &["-D", &data, "-m", "fast", "-w", "stop"]);
    let log = std::fs::read_to_string(log).expect("its log");
    for word in ["FATAL", "PANIC", "ERROR", "terminated"] {
        assert!(!log.contains(word), "{log}");
    }
}
