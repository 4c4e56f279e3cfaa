//! `tiexecctl warm` evicts no page that a process needs, reports the files that it left alone and why, and still warms
//! the other files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use support::warm::{
    Warm, assert_huge, assert_reported_warm, assert_warms, cached_pages, cold, command, directory,
    evict, has_large_folios, rest, small, warm, watched,
};
use support::{Kind, Pinned, Run, installed, is_root, program, require};

/// Runs the command, which must evict nothing.
fn evicts_nothing(command: &Command) -> Warm {
    let (warm, calls) = watched(command);
    assert_eq!(calls.evicted, [0; 0], "{}{}", warm.out, warm.err);
    warm
}

/// Asserts that all huge pages are left for that reason, with one line of output.
fn assert_left(warm: &Warm, code: i32, reason: &str, words: &str) {
    assert_eq!(warm.code, code, "{}{}", warm.out, warm.err);
    let file = warm.file();
    assert_eq!(file["huge_bytes"], 0, "{file}");
    assert!(rest(&file, reason) > 0, "{file}");
    assert_eq!(warm.err.lines().count(), 1, "{}", warm.err);
    assert!(warm.err.starts_with("tiexecctl: ") && warm.err.contains(words), "{}", warm.err);
}

#[test]
fn a_file_that_running_processes_use() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    require!(installed("strace").is_some(), "no strace");
    let dir = directory();
    let copy = small(&program("hold", Kind::DynamicNoPie), dir.path());
    let held = Run::new(&copy, ["7"]).plain().hold();
    let resident = support::smaps::status_field(held.pid(), "RssFile");
    let left = evicts_nothing(&command(&["--json"], &[&copy]));
    assert_left(&left, 1, "in_use", "; fix: stop what uses it, tiexecctl warm ");
    let user = format!(": process {} has it mapped; fix: ", held.pid());
    assert!(left.err.contains(&user), "{}", left.err);
    let all: Vec<_> = (0..4).map(|_| Run::new(&copy, ["7"]).plain().hold()).collect();
    let left = evicts_nothing(&command(&["--json"], &[&copy]));
    assert!(left.err.contains(" and 2 more have it mapped; fix: "), "{}", left.err);
    for other in all {
        other.finish().assert_code(7);
    }
    assert_eq!(support::smaps::status_field(held.pid(), "RssFile"), resident);
    held.finish().assert_code(7);
    assert_warms(&copy);
}

#[test]
fn a_file_that_is_replaced_while_it_runs() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let dir = directory();
    let copy = small(&program("hold", Kind::DynamicNoPie), dir.path());
    let held = Run::new(&copy, ["7"]).plain().hold();
    // The file is replaced as by a package manager.
    let new = dir.path().join("new");
    support::install(&program("hold", Kind::DynamicPie), &new, 0o755);
    File::open(&new).and_then(|f| f.sync_all()).expect("fsync");
    std::fs::rename(&new, &copy).expect("a rename");
    // The new file is nobody's yet.
    assert_warms(&copy);
    held.finish().assert_code(7);
}

#[test]
fn a_file_with_dirty_pages() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    require!(installed("strace").is_some(), "no strace");
    let dir = directory();
    let copy = small(&program("hold", Kind::DynamicNoPie), dir.path());
    let len = copy.metadata().expect("a file").len();
    // `warm` looks for dirty pages before it looks for users of the file.
    let pinned = Pinned::new(&copy);
    // Another process may sync the whole machine in between, so the test tries more than once.
    let refused = (0..5).any(|_| {
        // The write is past the end of the ELF data, and the writer is closed again.
        let file = File::options().write(true).open(&copy).expect("an own file");
        file.write_all_at(&[0; 4096], len).expect("room");
        drop(file);
        let left = evicts_nothing(&command(&["--json"], &[&copy]));
        if rest(&left.file(), "in_use") > 0 {
            return false;
        }
        assert_left(&left, 1, "dirty_file", "; fix: sync ");
        true
    });
    assert!(refused);
    drop(pinned);
    File::open(&copy).and_then(|f| f.sync_all()).expect("fsync");
    assert_warms(&copy);
    assert_eq!(copy.metadata().expect("a file").len(), len + 4096);
}

#[test]
fn a_file_that_somebody_writes_to() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let dir = directory();
    require!(installed("strace").is_some(), "no strace");
    let copy = small(&program("hold", Kind::DynamicNoPie), dir.path());
    let writer = File::options().append(true).open(&copy).expect("an own file");
    // `warm` looks for writers before it looks for users of the file.
    let pinned = Pinned::new(&copy);
    let left = evicts_nothing(&command(&["--json"], &[&copy]));
    assert_left(&left, 1, "open_for_writing", "open for writing");
    let own = format!(": process {} has the file open for writing", std::process::id());
    assert!(left.err.contains(&own), "{}", left.err);
    // Those that only read it, or write to another file, are not named.
    let other = dir.path().join("other");
    let holds = |redirection: &str| {
        let script = format!("exec {redirection}; echo ready; read line; exit 7");
        let held =
            Run::new("sh", ["-c".as_ref(), script.as_ref(), copy.as_os_str(), other.as_os_str()]);
        let mut held = held.plain().start();
        held.wait_line("ready");
        held
    };
    let mut all: Vec<_> = ["3<\"$0\"", "3>\"$1\"", "3>>\"$0\""].map(holds).into();
    let named = |left: &Warm, pids: &[u32]| {
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let words = format!(": processes {} have the file open for writing", pids.join(", "));
        assert!(left.err.contains(&words), "{words}: {}", left.err);
    };
    let left = evicts_nothing(&command(&["--json"], &[&copy]));
    named(&left, &[std::process::id(), all[2].pid().cast_unsigned()]);
    all.extend(["3>>\"$0\""; 3].map(holds));
    let left = evicts_nothing(&command(&["--json"], &[&copy]));
    assert!(left.err.contains(" and 2 more have the file open for writing"), "{}", left.err);
    for held in all {
        held.finish().assert_code(7);
    }
    drop((writer, pinned));
    assert_warms(&copy);
}

#[test]
fn another_users_file_is_not_evicted() {
    require!(is_root(), "root is needed to become somebody else");
    require!(installed("strace").is_some(), "no strace");
    let dir = support::Public::new();
    let ctl = dir.add(support::tiexecctl(), "tiexecctl", 0o755);
    require!(has_large_folios(dir.path()), "no large folios on this file system");
    let copy = small(&program("hold", Kind::DynamicNoPie), dir.path());
    let as_nobody = |options: &[&str]| {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        setpriv.arg(&ctl).arg("warm").args(options).arg(&copy).env_remove("TIEXEC");
        evicts_nothing(&setpriv)
    };
    let pinned = Pinned::new(&copy);
    assert_left(&as_nobody(&["--json"]), 5, "not_owner", ", as root or as the file's owner");
    drop(pinned);
    // Any user may warm a file that is not cached, because that evicts nothing.
    evict(&copy);
    let told = as_nobody(&["--check", "--json"]);
    assert_eq!((told.code, rest(&told.file(), "not_owner") > 0), (5, true), "{}", told.out);
    assert!(cached_pages(&copy) <= 1, "nothing is read but the headers");
    let done = as_nobody(&["--json"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert_huge(&copy, done.file()["huge_bytes"].as_u64().expect("bytes"));
}

/// Files that cannot be warmed, each with the expected message.
fn odd_files(dir: &Path) -> Vec<(std::path::PathBuf, &'static str)> {
    let whole = program("hold", Kind::DynamicNoPie);
    let bytes = std::fs::read(&whole).expect("a program");
    let make = |name: &str, content: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, content).expect("an own file");
        path
    };
    let mut malformed = bytes[..4096].to_vec();
    malformed[54] = 1;
    let fifo = dir.join("fifo");
    support::warm::run("mkfifo", &[&fifo]);
    vec![
        (make("empty", b""), "not an ELF file"),
        (make("text", b"hello, world\n"), "not an ELF file"),
        (
            make("script", b"#!/usr/bin/env node\n"),
            "a script; what runs is its interpreter, /usr/bin/env",
        ),
        (make("malformed", &malformed), "malformed ELF headers"),
        (make("header", &bytes[..32]), "malformed ELF headers"),
        (make("truncated", &bytes[..bytes.len() / 2]), "truncated: the file ends before its text"),
        (dir.to_owned(), "not a regular file"),
        (fifo, "not a regular file"),
        ("/dev/null".into(), "not a regular file"),
        (dir.join("missing"), "no such file or directory (ENOENT)"),
    ]
}

#[test]
fn what_is_no_program_is_said_and_the_others_are_done() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let dir = directory();
    let good = cold(&program("hold", Kind::DynamicNoPie), dir.path());
    let odd = odd_files(dir.path());
    for (path, words) in &odd {
        let done = warm(&[], &[path]);
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{}", done.err);
        let line = format!("tiexecctl: cannot warm {}: {words}\n", path.display());
        assert_eq!(done.err, line);
    }
    let mut all: Vec<&Path> = odd.iter().map(|(path, _)| path.as_path()).collect();
    all.insert(3, &good);
    let done = warm(&["--json"], &all);
    assert_eq!(done.code, 3, "{}", done.err);
    assert_eq!(done.json()["failed"].as_array().map(Vec::len), Some(odd.len()));
    assert_reported_warm(&done.file(), &good);
}

#[test]
fn a_file_that_may_not_be_read() {
    require!(is_root(), "root is needed to become somebody else");
    let dir = support::Public::new();
    let ctl = dir.add(support::tiexecctl(), "tiexecctl", 0o755);
    let secret = dir.add(&program("hold", Kind::DynamicNoPie), "secret", 0o711);
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&ctl);
    let done = Warm::of(setpriv.arg("warm").arg(&secret).output().expect("setpriv"));
    assert_eq!(done.code, 5);
    assert!(done.err.contains("permission denied (EACCES)"), "{}", done.err);
}

#[test]
fn a_hole_in_the_text_stays_a_hole() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    use std::os::unix::fs::MetadataExt;
    let dir = directory();
    let copy = cold(&program("hold", Kind::DynamicNoPie), dir.path());
    let pmd = support::pmd_size().to_string();
    let punch = ["--punch-hole", "--offset", &pmd, "--length", &pmd];
    let mut paths: Vec<&Path> = punch.iter().map(Path::new).collect();
    paths.push(&copy);
    support::warm::run("fallocate", &paths);
    File::open(&copy).and_then(|f| f.sync_all()).expect("fsync");
    let blocks = copy.metadata().expect("a file").blocks();
    let done = warm(&["--json"], &[&copy]);
    assert!(matches!(done.code, 0 | 3), "{}{}", done.out, done.err);
    assert_eq!(copy.metadata().expect("a file").blocks(), blocks);
    let bytes = std::fs::read(&copy).expect("an own file");
    let hole = support::pmd_size() as usize;
    assert!(bytes[hole..2 * hole].iter().all(|&byte| byte == 0));
}

#[test]
fn usage() {
    assert_eq!(warm(&[], &[]).code, 2);
    assert_eq!(warm(&["--nonsense"], &[Path::new("/bin/true")]).code, 2);
    // A closed standard output is no failure.
    let mut quiet = command(&[], &[Path::new("/bin/true")]);
    let (read, write) = std::io::pipe().expect("a pipe");
    drop(read);
    let status = quiet.stdout(write).status().expect("tiexecctl");
    assert_eq!(status.code(), Some(0));
}
