//! Attaches to real programs at full load and reverts them, many times. Their results stay right.

use std::path::Path;
use std::time::Instant;

use support::attaching::{ctl, descriptors, json, switched};
use support::child::eventually;
use support::databases::Postgres;
use support::programs::{Cgo, build_go};
use support::smaps::{Vma, mappings, vmas};
use support::{Fresh, Held, Run, busy_java, installed, is_root, require, write_program};

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
    let dir = tempfile::tempdir().expect("a directory");
    let binary = dir.path().join("crowd");
    build_go(&support::sources().join("go_crowd"), Cgo::With, &[], &binary)
        .expect("go builds the test program");
    // A linker's large writes leave huge folios in the page cache.
    let copy = Fresh::small(&binary);
    let held = Run::new(copy.path(), [""; 0]).plain().hold();
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
    let node = Fresh::installed("node");
    require!(node.is_some(), "no node");
    let node = node.expect("just looked");
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
    let held = Run::new(node.path(), [source]).plain().hold();
    let pid = held.pid();
    cycles(held, pid);
}

/// Node can move its own text onto huge pages of anonymous memory. TiExec counts these for node's file, and changes nothing.
#[test]
fn node_that_has_moved_its_own_text() {
    let node = installed("node");
    require!(node.is_some(), "no node");
    let source = "process.stdin.on('data', () => process.exit(7)); console.log('ready');";
    let words = ["--use-largepages=silent", "-e", source];
    let mut held = Run::new(node.expect("just looked"), words).plain().hold();
    let pid = held.pid();
    let moved: u64 = vmas(pid)
        .iter()
        .filter(|vma| vma.perms == "r-xp" && vma.path.is_empty())
        .map(|vma| vma.counter("AnonHugePages"))
        .sum();
    require!(moved > 0, "this node moves no text, or the machine has no THP");
    let before = (image(pid), descriptors(pid));
    let seen = ctl(["inspect", "--json", &pid.to_string()]);
    let files = json(&seen)["files"].take();
    let of_node = files.as_array().and_then(|all| {
        all.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with("/node")))
    });
    let of_node = of_node.unwrap_or_else(|| panic!("{seen}"));
    assert_eq!(of_node["huge_bytes"], moved, "{seen}");
    assert_eq!(of_node["backings"], serde_json::json!(["anon"]), "{seen}");
    assert_eq!(json(&seen)["jit"].as_array().map_or(0, Vec::len), 0, "{seen}");
    let done = ctl(["attach", &pid.to_string()]);
    done.assert_code(0);
    assert!(done.out().contains("; nothing to do") && !done.out().contains("too_small"), "{done}");
    assert_eq!((image(pid), descriptors(pid)), before);
    held.write(b"end\n");
    held.finish().assert_code(7);
}

/// The mappings from the program's first segment to its last. Node maps and unmaps its heap beside them at any time.
fn image(pid: i32) -> Vec<Vma> {
    let own = std::fs::read_link(format!("/proc/{pid}/exe")).expect("an own child's program");
    let all = mappings(pid);
    let is_own = |vma: &&Vma| Path::new(&vma.path) == own;
    let first = all.iter().find(is_own).expect("the first segment").start;
    let last = all.iter().rfind(is_own).expect("the last segment").end;
    all.into_iter().filter(|vma| first <= vma.start && vma.end <= last).collect()
}

/// The processes of PostgreSQL run under load, and new ones start during the attach. No transaction fails, and no
/// connection is lost.
#[test]
fn postgres() {
    let bin = Postgres::installed();
    require!(is_root() && bin.is_some(), "no postgres, or not root");
    let postgres = Postgres::start(bin.expect("just looked"));
    let server = postgres.server().to_string_lossy();
    postgres.run("pgbench", &[&postgres.to()[..], &["-i", "-q", "bench"]].concat());
    // The load runs until the test ends it.
    let load = [&postgres.to()[..], &["-S", "-c4", "-T3600", "bench"]].concat();
    let load = postgres.command("pgbench", &load).limit(600).start();

    let pid = postgres.pid();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("its program");
    assert_eq!(exe.to_string_lossy(), server);
    let psql = || postgres.ask("select 6*7");
    // pgbench's first connection asks other questions, and ends.
    let busy = "select string_agg(pid::text, ',') from pg_stat_activity where query like 'SELECT abalance%'";
    let mut pids: Vec<String> = Vec::new();
    eventually("its four clients", || {
        pids = postgres.ask(busy).trim().split(',').map(str::to_owned).collect();
        pids.len() == 4
    });
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
    // This covers all processes, also those that sleep with a time limit, because they catch signals. On a busy machine TiExec
    // may not see in time that a stopped wait has begun again. Such a thread is left alone until its wait is over.
    for args in [&["attach", "-q", "--backing=image", "--exe"][..], &["revert", "-q", "--exe"]] {
        let done = ctl([args, &[&*server]].concat());
        if done.status.code() != Some(0) {
            done.assert_code(3);
            let waits = |line: &str| line.contains("no_thread") && line.contains("epoll_wait");
            let expected = |line: &&str| line.contains("target_gone") || waits(line);
            assert!(done.err().lines().all(|line| expected(&line)), "{done}");
        }
        assert_eq!(psql(), "42\n");
    }
    // pgbench ends as if its time were over.
    load.signal(libc::SIGALRM);
    let done = load.finish();
    done.assert_code(0);
    assert!(done.out().contains("number of failed transactions: 0 "), "{done}");
    postgres.stop();
}
