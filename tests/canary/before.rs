//! A canary checks before its first switch whether it can alternate the processes, and changes nothing if it cannot.

use std::path::Path;

use support::attaching::{Before, ctl, eventually_untouched, small, switched};
use support::child::eventually;
use support::{Kind, Public, Run, is_root, require, tiexecctl};

use crate::{Server, started};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn whether_anything_can_be_huge() {
    require!(is_root(), "files in a directory of root's");
    let public = Public::new();
    // Neither its text nor that of a library fills a huge page.
    let held = Run::new("/bin/sleep", ["1000"]).plain().start();
    eventually("it sleeps", || support::child::state(held.pid()) == Some('S'));
    let before = Before::of(held.pid());
    let state = public.path().join("state");
    let (pid, dir) = (held.pid().to_string(), state.display().to_string());
    let done = ctl(["canary", "--counter", "echo 1", "--state-dir", &dir, &pid]);
    done.assert_code(1);
    let says =
        format!("cannot alternate process {pid}: none of its text can be copied to huge pages: ");
    assert!(done.err().contains(&says), "{done}");
    assert!(done.err().contains(&format!("; fix: tiexecctl inspect {pid} says more")), "{done}");
    assert_eq!(done.out(), "", "{done}");
    assert!(!state.join("canary.json").exists(), "{done}");
    eventually_untouched(held.pid(), &before);
}

/// Root can open a file that is gone, by its mapping, and another user cannot. Text that cannot be examined is not called
/// text that cannot be huge.
#[test]
fn whether_its_text_can_be_examined() {
    require!(is_root(), "another user needs root");
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let copy = public.add(&support::program("counts", Kind::DynamicNoPie), "counts", 0o755);
    let own = public.path().join("own");
    std::fs::create_dir(&own).expect("a directory");
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("chown");
    let count = own.join("count").display().to_string();
    let held = Run::new(&copy, [count, "100".to_owned()]).plain().behind(NOBODY).hold();
    let state = own.join("state").display().to_string();
    let pid = held.pid().to_string();
    std::fs::remove_file(&copy).expect("a file");
    let before = Before::of(held.pid());
    let words = ["canary", "--counter", "echo 1", "--state-dir", &state, &pid];
    let done = Run::new(&ctl, words).plain().behind(NOBODY).output();
    done.assert_code(1);
    let says = format!("cannot alternate process {pid}: file_gone");
    assert!(done.err().contains(&says) && !done.err().contains("none of its text"), "{done}");
    assert_eq!(done.out(), "", "{done}");
    eventually_untouched(held.pid(), &before);
    held.finish().assert_code(7);
}

#[test]
fn whether_its_options_hold_together() {
    for words in [
        &["--counter", "echo 1", "--query", "up", "1"][..],
        &["--counter", "echo 1", "--guard-query", "up", "1"],
        &["--counter", "echo 1", "--conf-dir", "/etc", "1"],
        &["--prometheus", "http://localhost", "1"],
        &["--counter", "echo 1", "--rule", "r", "--exe", "/bin/sh"],
        &["--counter", "echo 1", "--slice", "3m", "--max", "5m", "1"],
        &["--counter", "echo 1", "--backing", "pagecache", "1"],
    ] {
        let done = ctl([&["canary"][..], words].concat());
        done.assert_code(2);
        assert_eq!(done.out(), "", "{done}");
    }
}

#[test]
fn whether_it_may_attach() {
    require!(is_root(), "another user needs root");
    let server = Server::start(100, 0);
    let before = Before::of(server.pid());
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755).display().to_string();
    let own = public.path().join("own");
    std::fs::create_dir(&own).expect("a directory");
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).expect("chown");
    let roots = public.path().join("roots");
    std::fs::create_dir(&roots).expect("a directory");
    support::chmod(&roots, 0o700);
    for (state, says) in [(&own, "cannot alternate process "), (&roots, "cannot begin a canary: ")]
    {
        let (pid, state) = (server.pid().to_string(), state.display().to_string());
        let words = ["canary", "--counter", "echo 1", "--state-dir", &state, &pid];
        let done = Run::new(&ctl, words).plain().behind(NOBODY).output();
        done.assert_code(5);
        assert!(done.err().contains(says) && done.err().contains("; fix: "), "{done}");
        assert_eq!(done.out(), "", "{done}");
    }
    eventually_untouched(server.pid(), &before);
    server.finish();
}

/// The slices of a pair take 1.4 s, and the four answers of the counter 4 s.
#[test]
fn whether_the_counter_leaves_time_for_a_pair() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let before = Before::of(server.pid());
    let counter = format!("sleep 1; {}", server.counter());
    let done = started(&server.with_counter(&["--counter", &counter, "--max=5s"])).finish();
    done.assert_code(2);
    assert!(done.err().contains("cannot begin a canary: the first pair takes "), "{done}");
    assert!(done.err().contains("; fix: use --max=") && done.out().is_empty(), "{done}");
    assert!(!server.state().join("canary.json").exists(), "{done}");
    eventually_untouched(server.pid(), &before);
    server.finish();
}

/// The start time of a process, in clock ticks since boot.
fn begun(pid: i32) -> u64 {
    field(pid, 19)
}

/// A number in `/proc/PID/stat`, by its place after the name.
fn field(pid: i32, at: usize) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let after_name = stat.rsplit(')').next().expect("a name");
    let field = after_name.split_whitespace().nth(at).expect("22 fields");
    field.parse().expect("a number")
}

/// A killed canary leaves its record. Until the next one, or the agent, has dealt with the record, it holds the lock.
#[test]
fn whether_the_canary_of_the_record_lives() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let canary = server.in_a_canary(&[]);
    let dead = canary.pid();
    canary.signal(libc::SIGKILL);
    canary.finish().assert_signal(libc::SIGKILL);
    let file = server.state().join("canary.json");
    let record = std::fs::read(&file).expect("the record");
    let mut record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
    assert_eq!(record["runner"]["pid"], dead, "{record}");
    let lock = std::fs::File::open(server.state().join(".canary.lock")).expect("the lock");
    lock.lock().expect("nobody holds it");
    let says_no_name = || {
        let done = server.canary(&[]);
        done.assert_code(1);
        let says = "cannot begin a canary: another canary, or the agent, holds the lock; fix: ";
        assert!(done.err().contains(says), "{done}");
    };
    says_no_name();
    let write = |record: &serde_json::Value| {
        std::fs::write(&file, record.to_string()).expect("a file");
    };
    // The number of the dead canary belongs to another process now.
    let live = server.pid();
    record["runner"]["pid"] = live.into();
    record["runner"]["begun"] = (begun(live) + 1).into();
    write(&record);
    says_no_name();
    record["runner"]["begun"] = begun(live).into();
    write(&record);
    let named = server.canary(&[]);
    assert!(named.err().contains(&format!("the canary of process {live} alternates")), "{named}");
    record["boot"] = "another".into();
    write(&record);
    says_no_name();
    drop(lock);
    server.finish();
}

/// After an upgrade, the path is that of the old build's processes too. Their figures and crashes say nothing about the
/// new build.
#[test]
fn which_processes_run_the_build() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let has_worked = || field(server.pid(), 11) >= 100;
    eventually("it has worked for longer than a new process", has_worked);
    let upgrade = small("counts", Kind::DynamicPie);
    std::fs::rename(upgrade.path(), server.copy.path()).expect("a file of the same directory");
    let count = server.public.path().join("other").display().to_string();
    let new = Run::new(server.copy.path(), [count, "100".to_owned(), "0".to_owned()]);
    let new = new.plain().hold();
    let path = server.copy.path().display().to_string();
    let mut canary = server.in_a_canary(&["--exe", &path]);
    assert!(canary.err_text().contains(" stay as they are: 1; fix: systemctl restart "));
    server.eventually_plain();
    server.eventually_on_copies(&mut canary);
    assert_eq!(switched(new.pid()), 0, "{}", canary.err_text());
    canary.signal(libc::SIGTERM);
    canary.finish().assert_code(128 + libc::SIGTERM);
    new.finish().assert_code(7);
    server.finish();
}

/// The canary of another directory of verdicts would otherwise call the copies those of an attach, and a benchmark would
/// switch the process in the slices of the canary.
#[test]
fn whether_another_canary_works_on_the_process() {
    require!(is_root(), "the verdicts of the machine, hidden by a directory of the test's own");
    let server = Server::start(100, 0);
    support::store::own_run();
    support::store::tmpfs(Path::new("/var/lib"), "mode=0755");
    let (pid, counter) = (server.pid().to_string(), server.counter());
    let words = ["canary", "--slice=400ms", "--keep-above=2", "--counter", &counter, &pid];
    let mut canary = started(&words.map(str::to_owned));
    server.eventually_on_copies(&mut canary);
    let bench = ["bench", "-r", "6", "--metric=echo 1", "--attach", &pid];
    for (done, cannot) in [(server.canary(&[]), "alternate"), (ctl(bench), "measure")] {
        done.assert_code(1);
        let says = format!(
            "cannot {cannot} process {pid}: the canary of process {} alternates process {pid} ({}",
            canary.pid(),
            server.copy.path().display()
        );
        assert!(done.err().contains(&says), "{done}");
        assert!(done.err().contains("; fix: wait for its end, at about "), "{done}");
    }
    assert!(!canary.has_ended(), "{}", canary.err_text());
    canary.signal(libc::SIGTERM);
    canary.finish().assert_code(128 + libc::SIGTERM);
    assert_eq!(switched(server.pid()), 0);
    // The record of a killed canary, or of an ended one, hinders nobody.
    ctl(bench).assert_code(0);
    server.finish();
}
