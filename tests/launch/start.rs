//! TiExec watches the start of a program: text that it executes or loads in its first seconds also becomes huge, or a
//! line names the fix.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::attaching::{MARK, companion, ctl_named, revert, switched};
use support::child::{Held, eventually, soon};
use support::fresh::{NO_HUGE_FOLIOS, huge_folios, keep_small};
use support::journal;
use support::pty::Pty;
use support::smaps::{Vma, children, vmas};
use support::store::names;
use support::{
    Fresh, Kind, Pinned, Prep, Run, busy_java, installed, is_root, program, require, warm,
};

/// A library with this many MiB of text, which stays in the page cache in small folios.
pub(crate) fn library(dir: &Path, mib: u32) -> PathBuf {
    let library = cold_library(dir, mib);
    keep_small(&library);
    library
}

/// The same, not cached.
fn cold_library(dir: &Path, mib: u32) -> PathBuf {
    let (source, made) = (support::sources().join("late.c"), dir.join("late.so"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-DLIBRARY", &format!("-DBIG_MIB={mib}"), "-o"]);
    cc.args([&made, &source]);
    let built = cc.output().expect("cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let copies = dir.join("copies");
    std::fs::create_dir(&copies).expect("a directory");
    warm::cold(&made, &copies)
}

/// A program that works for a moment and then loads that library.
pub(crate) fn loads(library: &Path) -> Run {
    Run::new(program("late", Kind::DynamicPie), ["busy".as_ref(), library.as_os_str()])
}

/// Bytes of the library's text that are huge.
pub(crate) fn huge_of(pid: i32, library: &Path) -> u64 {
    let name = library.file_name().expect("a name").to_string_lossy().into_owned();
    let is_its = |vma: &Vma| vma.path.contains(&name);
    vmas(pid).iter().filter(|vma| is_its(vma)).map(Vma::huge).sum()
}

/// Ends a program that has loaded a library, and checks that its text is unchanged.
fn end(mut held: Held) {
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

/// Waits for the line about text that is left on base pages.
fn line_of(journal: &UnixDatagram) -> String {
    loop {
        let text = journal::record(journal);
        if text.contains("TIEXEC_ACTION=start") {
            let line = text.lines().find_map(|line| line.strip_prefix("MESSAGE="));
            return line.expect("a message").to_owned();
        }
    }
}

/// Returns the commands of a fix, before and after `; for later starts: `.
fn fixes(line: &str) -> (&str, &str) {
    let (_, fix) = line.split_once("; fix: ").unwrap_or_else(|| panic!("no fix: {line}"));
    let (now, later) = fix.split_once("; for later starts: ").expect("two commands");
    (now, later.strip_prefix("once it has ended, ").unwrap_or(later))
}

#[test]
fn a_program_that_a_shell_executes() {
    // The script works for a moment first, like a real program.
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exec \"$0\" busy \"$1\"";
    let late = program("late", Kind::DynamicPie);
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 4);
    let args = ["-c".into(), script.into()];
    let args = args.into_iter().chain([late.clone().into_os_string(), library.into()]);
    let mut held = Run::new("sh", args).hold();
    held.wait_line("loaded");
    let pid = held.pid();
    let own = late.file_name().expect("a name").to_string_lossy().into_owned();
    let is_its = |vma: &Vma| vma.path.contains(&own) && vma.huge() > 0;
    eventually("its own text is huge", || vmas(pid).iter().any(is_its));
    end(held);
}

#[test]
fn node_behind_a_shell() {
    let node = Fresh::installed("node");
    require!(node.is_some(), "no node");
    let node = node.expect("just looked");
    let script = "exec \"$0\" -e 'const t=Date.now(); while (Date.now()-t<300); console.log(\"ready\"); process.stdin.once(\"data\", () => process.exit(7))'";
    let args = ["-c".as_ref(), script.as_ref(), node.path().as_os_str()];
    let mut held = Run::new("sh", args).hold();
    let pid = held.pid();
    eventually("its text is huge", || vmas(pid).iter().map(Vma::huge).sum::<u64>() >= 8 << 20);
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_warm_library_that_is_loaded_later() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let dir = warm::directory();
    let library = cold_library(dir.path(), 6);
    let _pinned = Pinned::huge(&library);
    let mut held = loads(&library).start();
    held.wait_line("loaded");
    let pid = held.pid();
    assert!(soon(|| huge_of(pid, &library) >= 4 << 20), "{} bytes", huge_of(pid, &library));
    end(held);
}

#[test]
fn java() {
    let java = busy_java();
    require!(java.is_some(), "no JDK");
    let (java, dir) = java.expect("just looked");
    let args = ["-cp", &dir.path().to_string_lossy(), "Busy"];
    let held = Run::new(java, args).hold();
    let pid = held.pid();
    let jvm = |vma: &Vma| vma.path.contains("libjvm.so");
    let huge = || vmas(pid).iter().filter(|vma| jvm(vma)).map(Vma::huge).sum::<u64>();
    assert!(soon(|| huge() >= 8 << 20), "{} bytes of libjvm are huge", huge());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn text_that_is_left_and_what_makes_it_huge() {
    require!(is_root(), "a journal in a /run of its own needs root");
    let dir = warm::directory();
    require!(warm::has_large_folios(dir.path()), "this file system has no large folios");
    let journal = journal::listen();
    // The library exceeds the limit of copies for one start.
    let library = library(dir.path(), 70);
    let late = dir.path().join("late");
    support::install(&program("late", Kind::DynamicPie), &late, 0o755);
    let run = Run::new(&late, ["busy".as_ref(), library.as_os_str()]);
    // No store takes files that not everybody may read.
    for private in [true, false] {
        support::chmod(dir.path(), if private { 0o700 } else { 0o755 });
        // TiExec writes the line once a day for each program.
        let _none = std::fs::remove_dir_all("/run/tiexec/told");
        let mut held = run.start();
        held.wait_line("loaded");
        let pid = held.pid();
        let line = line_of(&journal);
        assert!(line.contains(" MiB text stay on base pages: "), "{line}");
        assert_eq!(huge_of(pid, &library), 0, "{line}");
        let (now, later) = fixes(&line);
        ctl_named(now).assert_code(0);
        assert!(huge_of(pid, &library) >= 60 << 20, "{line}: {} bytes", huge_of(pid, &library));
        end(held);
        let by_copy = later.starts_with("tiexec --backing=image late");
        assert!(by_copy || !private, "{line}");
        let run = if by_copy { run.clone().options(["--backing=image"]) } else { run.clone() };
        if !by_copy {
            ctl_named(later).assert_code(0);
        }
        let mut held = run.start();
        held.wait_line("loaded");
        let pid = held.pid();
        let is_huge = soon(|| huge_of(pid, &library) >= 60 << 20);
        assert!(is_huge, "{line}: {} bytes", huge_of(pid, &library));
        end(held);
    }
}

#[test]
fn the_line_comes_to_a_terminal_once_a_day_and_to_no_pipe() {
    require!(is_root(), "a journal in a /run of its own needs root");
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 70);
    let journal = journal::listen();
    let mut pty = Pty::new();
    let run = loads(&library).prep(Prep::Terminal).same_group();
    let tty = pty.slave_fd();
    let held = run.stdio([tty, tty, tty]).start();
    // The terminal folds it.
    let seen = pty.wait_for("for later starts: ");
    let words: Vec<&str> = seen.split_whitespace().collect();
    assert!(words.join(" ").contains("MiB text stay on base pages: "), "{seen}");
    assert!(line_of(&journal).contains("tiexecctl attach"));
    assert_eq!(names("/run/tiexec/told").len(), 1, "a note of the day");
    pty.type_keys("\n");
    held.finish().assert_code(7);
    // The next start on that day, and a start whose standard error is a pipe, are silent.
    journal.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
    // The companion looks at the program ten seconds after its last change, on this clock after one.
    let mut held = loads(&library).env("TIEXEC_TEST_CLOCK", "10").start();
    held.wait_line("loaded");
    std::thread::sleep(Duration::from_secs(3));
    end(held);
    let mut record = [0; 4096];
    while let Ok(len) = journal.recv(&mut record) {
        let text = String::from_utf8_lossy(&record[..len]);
        assert!(!text.contains("TIEXEC_ACTION=start"), "{text}");
    }
}

/// The number of voluntary context switches of a process.
fn sleeps(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// Starts a watched program, and waits until its text is huge.
fn watched(name: &str, run: Run, ready: &str, is_huge: impl Fn(i32) -> bool) -> (Held, String) {
    let mark = format!("{name}-{}", std::process::id());
    let mut held = run.options(["--backing=image"]).env(MARK, &mark).start();
    held.wait_line(ready);
    let pid = held.pid();
    eventually("its text is huge", || is_huge(pid));
    assert!(companion(&mark).is_some(), "it is watched");
    (held, mark)
}

/// Reverts a watched program. Its companion must end, and the program must keep its own text.
fn reverted_for_good((held, mark): (Held, String)) {
    let pid = held.pid();
    // A revert is refused while the companion is at work.
    eventually("it is reverted", || {
        let _or_refused = revert(pid);
        switched(pid) == 0
    });
    eventually("its companion leaves it alone", || companion(&mark).is_none());
    assert_eq!(switched(pid), 0);
    end(held);
}

#[test]
fn a_program_that_is_reverted_stays_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 4);
    let is_huge = |pid| huge_of(pid, &library) > 0 && switched(pid) > 4 << 20;
    reverted_for_good(watched("reverted", loads(&library), "loaded", is_huge));
}

/// The program has not used enough processor time to be examined.
#[test]
fn an_idle_program_that_is_reverted_stays_so() {
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]);
    let watched = watched("idle", run, "ready", |pid| switched(pid) > 0);
    let companion = companion(&watched.1).expect("it is watched");
    // The companion sees the copies when it wakes next, so before its second sleep from now on.
    let before = sleeps(companion);
    eventually("the companion has looked", || sleeps(companion) >= before + 2);
    reverted_for_good(watched);
}

#[test]
fn a_program_that_is_reverted_while_it_settles_stays_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 4);
    let run = loads(&library).options(["--settle=100s"]);
    let is_huge = |pid| switched(pid) > 4 << 20;
    reverted_for_good(watched("settling", run, "loaded", is_huge));
}

#[test]
fn settle_0_turns_it_off() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = library(dir.path(), 6);
    let (run, off) = (loads(&library), loads(&library).options(["--settle=0"]));
    let mut held = off.start();
    held.wait_line("loaded");
    let (off, before) = (held.pid(), switched(held.pid()));
    // The watched program beside it shows how long to wait.
    let mut watched = run.start();
    watched.wait_line("loaded");
    let pid = watched.pid();
    eventually("the watched one's library is huge", || huge_of(pid, &library) > 0);
    assert_eq!(switched(off), before);
    end(held);
    end(watched);
}

/// If process 1 does not reap, a companion would stay a zombie for ever.
#[test]
fn nothing_is_left_to_a_process_1_that_does_not_reap() {
    left_to_process_1("subprocess.run(sys.argv[1:], check=True)");
}

/// A program may block all signals while it starts another one.
#[test]
fn nothing_is_left_to_a_process_1_that_blocks_signals_while_it_runs() {
    left_to_process_1(
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
        child = subprocess.Popen(sys.argv[1:])\n\
        while not os.path.exists(sys.argv[-1]): pass\n\
        child.wait()",
    );
}

fn left_to_process_1(start: &str) {
    require!(is_root(), "a PID namespace needs root");
    require!(installed("python3").is_some(), "no python3");
    let script = format!(
        "import os, signal, subprocess, sys, time\n\
        {start}\n\
        time.sleep(1)\n\
        left = [p for p in os.listdir('/proc') if p.isdigit() and p != '1']\n\
        print('left', left)"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let made = dir.path().join("made");
    let run = Run::new("/bin/touch", [&made]).behind([
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "python3",
        "-c",
        &script,
    ]);
    let done = run.output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "left []\n", "{done}");
}

#[test]
fn as_process_1_it_is_one_child_that_no_plain_wait_sees() {
    require!(is_root(), "a PID namespace needs root");
    let run = Run::new(program("identity", Kind::DynamicPie), [""; 0]);
    let held = run.behind(["unshare", "--pid", "--fork", "--mount-proc"]).hold();
    assert_eq!(held.said("wait_plain").as_deref(), Some("No child processes"), "{}", held.command);
    let unshare = held.pid();
    let init = children(unshare)[0];
    assert_eq!(children(init).len(), 1, "{}", held.command);
    held.finish().assert_code(0).assert_silent();
}

#[test]
fn whoever_is_left_alone_is_not_watched() {
    require!(installed("strace").is_some(), "no strace");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let count = |options: &[&str]| {
        let run = Run::new("/bin/true", [""; 0]).options(options);
        let done = run.behind(["strace", "-o", &log.to_string_lossy()]).output();
        done.assert_code(0).assert_silent();
        let log = std::fs::read_to_string(&log).expect("strace's log");
        log.lines().filter(|line| line.starts_with("clone(")).count()
    };
    assert_eq!(count(&[]), 1);
    assert_eq!(count(&["--settle=0"]), 0);
    assert_eq!(count(&["--backing=off"]), 0);
}

/// The launching process may work for longer than the companion waits before its first look, for example to fill the
/// page cache. The companion leaves it alone until it has exec'ed the program.
#[test]
fn a_launch_that_takes_long() {
    let hold = program("hold", Kind::DynamicPie);
    for options in [&["-v"][..], &["-v", "--settle=60s"]] {
        let run = Run::new(&hold, ["7"]).options(options);
        let mut held = run.env("TIEXEC_FAULT", "work-before-arming:1").start();
        let exe = || std::fs::read_link(format!("/proc/{}/exe", held.pid())).expect("it runs");
        let mut looks = 0;
        while exe() != hold {
            assert_eq!(switched(held.pid()), 0, "{options:?}: text of tiexec");
            looks += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(looks > 10, "the launch took no time");
        held.wait_line("ready");
        held.assert_full();
        let done = held.finish();
        done.assert_code(7);
        assert!(!done.err().contains("stay on base pages"), "{done}");
    }
}
