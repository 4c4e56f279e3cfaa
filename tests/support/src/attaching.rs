//! Helpers for running programs: attaches, reverts, and the mappings of a program before and after.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::child::{Done, Held, eventually, soon};
use super::fresh::Fresh;
use super::launch::Run;
use super::programs::{Kind, program};
use super::smaps::{Vma, mappings, pmd_size, vmas};

/// The kinds of moments at which `TIEXEC_FAULT` lets TiExec die while a thread is stopped.
pub const FAULT_POINTS: [&str; 4] =
    ["die-after-setregs", "die-after-stop", "die-after-write", "die-after-setmask"];

/// Runs `tiexecctl` with these arguments.
pub fn ctl<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Done {
    let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
    let samples = |command: &OsString| ["advise", "report", "scan"].iter().any(|it| command == it);
    if args.first().is_some_and(samples) {
        share_jumps();
    }
    ctl_behind(&[], args)
}

/// Gives this test's own `/run` the times of jumps on this machine. One test of a run measures them: that takes a second of a processor.
pub fn share_jumps() {
    // `cargo test` gives each test a thread, and each thread has its own `/run`.
    thread_local! { static SHARED: Cell<bool> = const { Cell::new(false) }; }
    const MACHINE: &str = "/run/tiexec/machine";
    if SHARED.replace(true) || !super::is_root() {
        return;
    }
    super::store::own_run();
    let copy = |from: &Path, to: &Path| super::warm::run("cp", &[Path::new("-a"), from, to]);
    let record = super::once("jumps", |place| {
        let mut doctor = Command::new(super::tiexecctl());
        let measured = doctor.args(["doctor", "--measure"]).output();
        // A machine with too little memory has no record.
        if measured.is_ok() && Path::new(MACHINE).exists() {
            copy(Path::new(MACHINE), place);
        }
    });
    if !Path::new(MACHINE).exists() && record.join("machine").exists() {
        std::fs::create_dir_all("/run/tiexec").expect("a /run of its own");
        copy(&record.join("machine"), Path::new("/run/tiexec"));
    }
}

/// Runs a command of `tiexecctl` as a message names it, by the shell, which knows the quotes.
pub fn ctl_named(command: &str) -> Done {
    let rest = command.strip_prefix("tiexecctl ").unwrap_or_else(|| panic!("{command}"));
    let script = format!("exec \"$0\" {rest}");
    Run::new("sh", ["-ec".as_ref(), script.as_ref(), super::tiexecctl().as_os_str()])
        .plain()
        .output()
}

/// Returns whether the kernel has `MADV_COLLAPSE` (Linux 6.1).
pub fn collapses() -> bool {
    // SAFETY: the advice covers no memory; the kernel only checks whether it knows the advice.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_COLLAPSE) == 0 }
}

/// Runs `tiexecctl` behind a command that changes something first and then execs it.
pub fn ctl_behind<S: AsRef<OsStr>>(front: &[&str], args: impl IntoIterator<Item = S>) -> Done {
    started(front, super::tiexecctl(), args).finish()
}

/// Starts a command of TiExec's.
pub fn started<S: AsRef<OsStr>>(
    front: &[&str],
    binary: &Path,
    args: impl IntoIterator<Item = S>,
) -> Held {
    Run::new(binary, args).plain().behind(front).start()
}

/// Attaches with a copy of the text, which works with every state of the page cache.
pub fn attach(pid: i32) -> Done {
    attach_run(pid).output()
}

/// Puts the file's own text back.
pub fn revert(pid: i32) -> Done {
    revert_run(pid).output()
}

/// The command of [`attach`], not yet started.
pub fn attach_run(pid: i32) -> Run {
    let args = ["attach", "--backing=image", "--json", &pid.to_string()];
    Run::new(super::tiexecctl(), args).plain()
}

/// The command of [`revert`], not yet started.
pub fn revert_run(pid: i32) -> Run {
    Run::new(super::tiexecctl(), ["revert", "--json", &pid.to_string()]).plain()
}

/// Asserts that the command did its work.
pub fn ok(done: &Done) -> &Done {
    done.assert_code(0).assert_silent()
}

/// Parses the JSON that a command printed.
pub fn json(done: &Done) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

/// The export of the canaries of a machine that found this ratio for a build.
pub fn verdict_export(build: &str, machine: &str, estimate: f64) -> Value {
    serde_json::json!({"schema": 2, "kind": "canary_verdicts", "verdicts": [{
        "build_id": build, "text": "cd", "cpu": "c", "kernel": "k", "backing": "image", "edges": "conservative",
        "verdict": "undecided", "keep_above": 1.005, "estimate": estimate, "low": null, "high": null,
        "standard_error": 0.01, "pairs": 20, "hosts": 1, "exe": "/bin/x", "machine": machine, "when": 1
    }]})
}

/// A private copy of the program in small folios of the page cache, so that no part is huge before the test.
pub fn small(name: &str, kind: Kind) -> Fresh {
    Fresh::small(&program(name, kind))
}

/// A running `hold`. It ends with 7 if its text is right to the end.
pub fn held(copy: &Fresh) -> Held {
    Run::new(copy.path(), ["7"]).plain().hold()
}

/// All mappings with their files. Anonymous mappings that touch are joined. The heap and the stack are omitted, because
/// they grow by themselves.
pub fn joined(pid: i32) -> Vec<String> {
    joined_where(pid, |_, vma| vma.path.is_empty())
}

/// As [`joined`], but mappings of files that continue each other are joined, too. A revert leaves text divided
/// if long parts of it were no copies, or if its place in its file is in doubt.
pub fn files_joined(pid: i32) -> Vec<String> {
    joined_where(pid, |last, vma| {
        vma.path.is_empty() || last.offset + (last.end - last.start) == vma.offset
    })
}

fn joined_where(pid: i32, continues: impl Fn(&Vma, &Vma) -> bool) -> Vec<String> {
    let mut all: Vec<Vma> = Vec::new();
    let is_growing = |vma: &Vma| vma.path == "[heap]" || vma.path == "[stack]";
    for mut vma in mappings(pid).into_iter().filter(|vma| !is_growing(vma)) {
        // Another test may have rebuilt the program.
        vma.path = vma.path.trim_end_matches(" (deleted)").to_owned();
        match all.last_mut() {
            Some(last)
                if last.end == vma.start
                    && last.path == vma.path
                    && last.perms == vma.perms
                    && continues(last, &vma) =>
            {
                last.end = vma.end;
            }
            _ => all.push(vma),
        }
    }
    let line = |v: &Vma| format!("{:x}-{:x} {} {:x} {}", v.start, v.end, v.perms, v.offset, v.path);
    all.iter().map(line).collect()
}

/// The numbers and targets of the open descriptors.
pub fn descriptors(pid: i32) -> Vec<String> {
    let dir = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("an own child's descriptors");
    let mut all: Vec<String> = dir
        .flatten()
        .map(|entry| {
            let link = std::fs::read_link(entry.path()).unwrap_or_default();
            format!("{} {}", entry.file_name().to_string_lossy(), link.display())
        })
        .collect();
    all.sort_unstable();
    all
}

/// The bytes of the process that TiExec's images hold.
pub fn switched(pid: i32) -> u64 {
    vmas(pid).iter().filter(|vma| vma.is_switched()).map(|vma| vma.end - vma.start).sum()
}

/// Returns whether all whole huge pages of the main executable's text are huge, in copies of TiExec's.
pub fn is_switched(pid: i32) -> bool {
    switched(pid) > 0 && super::coverage(pid).is_full()
}

/// Panics unless every whole huge page of the main text is PMD-mapped and belongs to an image of TiExec's.
pub fn assert_switched(pid: i32) {
    let all = vmas(pid);
    let ours: Vec<&Vma> = all.iter().filter(|vma| vma.is_switched()).collect();
    assert!(!ours.is_empty(), "nothing of ours in {:?}", joined(pid));
    for vma in ours {
        assert_eq!(vma.perms, "r-xp", "{vma:?}");
        assert_eq!(vma.counter("ShmemPmdMapped"), vma.end - vma.start, "{vma:?}");
        assert_eq!(vma.start % pmd_size(), 0, "{vma:?}");
    }
    let coverage = super::coverage(pid);
    assert!(coverage.is_full(), "{coverage:?}");
}

/// Panics unless the process is exactly as before: its mappings and its descriptors.
pub fn assert_untouched(pid: i32, before: &Before) {
    assert_eq!(joined(pid), before.maps, "mappings");
    assert_eq!(descriptors(pid), before.descriptors, "descriptors");
}

/// Waits until a revert of the process is complete. The process has its own text a moment before the descriptors of the
/// revert are closed.
pub fn eventually_untouched(pid: i32, before: &Before) {
    if !soon(|| Before::of(pid) == *before) {
        assert_untouched(pid, before);
    }
}

/// Attaches and reverts `cycles` times. Panics unless all text is huge in between, and none afterwards.
pub fn cycle(pid: i32, cycles: usize) {
    for cycle in 0..cycles {
        ok(&attach(pid));
        assert!(is_switched(pid), "{cycle}: {:?}", super::coverage(pid));
        ok(&revert(pid));
        assert!(switched(pid) == 0, "{cycle}");
    }
}

/// Attaches and reverts. Panics unless the text is huge in between, and the process afterwards as before.
pub fn assert_there_and_back(pid: i32) {
    let before = Before::of(pid);
    ok(&attach(pid));
    assert_switched(pid);
    ok(&revert(pid));
    assert_untouched(pid, &before);
}

/// The state of a process before a test.
#[derive(PartialEq, Eq)]
pub struct Before {
    maps: Vec<String>,
    descriptors: Vec<String>,
}

impl Before {
    /// Reads the state of the process.
    pub fn of(pid: i32) -> Before {
        Before { maps: joined(pid), descriptors: descriptors(pid) }
    }
}

/// Waits until the process sleeps in the system call of this number.
pub fn wait_call(pid: i32, number: &str) {
    eventually(&format!("process {pid} sleeps in system call {number}"), || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        // After an interruption some calls continue as restart_syscall.
        text.split(' ').next().is_some_and(|now| now == number || now == "219")
    });
}

/// Returns the mappings that TiExec has staged: parts of the program, or of a copy, that lie far from the program's
/// place.
pub fn staged(pid: i32, exe: &Path) -> Vec<Vma> {
    const FAR: u64 = 1 << 30;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("an own child");
    let fields = stat.rsplit_once(") ").expect("a name in brackets").1;
    // The 26th of all; the first two are before the bracket.
    let start_code: u64 =
        fields.split(' ').nth(23).and_then(|at| at.parse().ok()).expect("an address");
    let exe = exe.to_string_lossy();
    let of_it = |vma: &Vma| {
        vma.path == exe || vma.path.contains(":tiexec:") || vma.path.ends_with(".tiexec")
    };
    vmas(pid).into_iter().filter(|vma| of_it(vma) && vma.start.abs_diff(start_code) > FAR).collect()
}

/// The environment variable that distinguishes the companions of several launches.
pub const MARK: &str = "MARK";

/// Finds the companion of a launch by the mark in its environment.
pub fn companion(mark: &str) -> Option<i32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mark = format!("{MARK}={mark}");
    pids.find(|pid| {
        let text = |name| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        text("comm") == b"tiexec-follower\n"
            && text("environ").split(|&byte| byte == 0).any(|one| one == mark.as_bytes())
    })
}
