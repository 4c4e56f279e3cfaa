//! A process chooses its files, the targets of their paths, and the time of their answers. Root reads no file for the
//! process that the process itself may not read, and waits for no file.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::attaching::{attach, ctl, ctl_behind, json, switched};
use support::child::tool;
use support::tmux::Screen;
use support::{Done, Held, Kind, Public, Run, installed, is_root, program, require};

use super::ATTACKER;

/// Root without the right to open a file through its mapping, so that TiExec uses paths.
const BY_PATH: [&str; 2] = ["setpriv", "--bounding-set=-sys_admin,-checkpoint_restore"];

const STOLEN: i32 = 66;

/// A file of root's that the attacker may not read. It lies on a tmpfs, where inode numbers are small and can be
/// reused.
fn secret() -> tempfile::NamedTempFile {
    let file =
        tempfile::NamedTempFile::new_in("/dev/shm").expect("a tmpfs that everybody can enter");
    std::fs::write(file.path(), vec![b's'; 7 << 20]).expect("room");
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).expect("an own file");
    file
}

fn steals(how: &str, secret: &tempfile::NamedTempFile) -> Held {
    let public = Public::new();
    let copy = public.add(&program("hostile/other_file", Kind::DynamicPie), "other_file", 0o755);
    Run::new(&copy, [secret.path().as_os_str(), how.as_ref()]).plain().behind(ATTACKER).hold()
}

fn attach_by_path(pid: i32) -> Done {
    ctl_behind(&BY_PATH, ["attach", "--backing=image", "--json", &pid.to_string()])
}

fn needs() -> bool {
    is_root() && installed("setpriv").is_some()
}

#[test]
fn a_path_that_became_a_link_to_what_only_root_may_read() {
    require!(needs(), "another user needs root");
    let secret = secret();
    let held = steals("link", &secret);
    let pid = held.said_pid();
    let done = attach_by_path(pid);
    let status = held.finish();
    assert_ne!(
        status.status.code(),
        Some(STOLEN),
        "root read its own file for another user: {done}"
    );
    status.assert_code(7);
    let text = json(&done)["files"].to_string();
    assert!(!text.contains("\"backing\":\"image\""), "{done}");
}

#[test]
fn a_path_that_became_a_fifo() {
    require!(needs(), "another user needs root");
    let secret = secret();
    let held = steals("fifo", &secret);
    let pid = held.said_pid();
    // The command must end.
    attach_by_path(pid);
    ctl(["inspect", &pid.to_string()]).assert_code(0);
    held.finish().assert_code(7);
}

#[test]
fn a_mapping_that_changes_while_it_is_looked_for() {
    require!(needs(), "another user needs root");
    let secret = secret();
    // Each round has its own process, because the first attach that finds the right file ends the race.
    for round in 0..support::extent::rounds(20) {
        let held = steals("race", &secret);
        let done = attach(held.said_pid());
        assert!(matches!(done.status.code(), Some(0 | 1 | 3)), "round {round}: {done}");
        let end = held.finish();
        assert_eq!(end.status.code(), Some(7), "round {round}: {end} {done}");
    }
}

/// A device node for FUSE that all users may open, as on most machines, and its directory.
pub(super) fn fuse() -> (Public, PathBuf) {
    let public = Public::new();
    let node = public.path().join("fuse");
    tool(&["mknod", "-m", "666", node.to_str().expect("UTF-8"), "c", "10", "229"]);
    (public, node)
}

pub(super) fn silent(how: &str) -> Held {
    let (public, node) = fuse();
    let copy = public.add(&program("hostile/silent_fuse", Kind::DynamicPie), "silent_fuse", 0o755);
    let run = Run::new(&copy, [how.as_ref(), node.as_os_str()]).plain();
    run.behind(ATTACKER).hold()
}

pub(super) fn of_file<'a>(report: &'a Value, path: &str) -> &'a Value {
    let files = report["files"].as_array().expect("files");
    files.iter().find(|file| file["path"] == path).unwrap_or(&Value::Null)
}

fn never_answers(how: &str, path: &str) {
    require!(
        needs() && std::path::Path::new("/dev/fuse").exists(),
        "FUSE and another user need root"
    );
    let held = silent(how);
    let pid = held.said_pid().to_string();
    let done = ctl(["attach", "--backing=image", "--json", &pid]);
    let reasons = of_file(&json(&done), path)["rest"].to_string();
    assert!(reasons.contains("foreign_filesystem"), "{done}");
    for command in [&["attach", "--dry-run"][..], &["revert"], &["inspect"], &["doctor"]] {
        let done = ctl(command.iter().copied().chain([&*pid]));
        assert!(done.status.code().is_some(), "{command:?}: {done}");
    }
    assert_eq!(switched(held.said_pid()), 0);
    held.finish().assert_code(7);
}

#[test]
fn a_file_system_that_never_answers() {
    never_answers("plain", "/tmp/lower/file");
}

#[test]
fn an_overlay_of_one_that_never_answers() {
    never_answers("overlay", "/mnt/file");
}

/// Attach treats a program that another user runs from the machine's own disk, by the mapping and by the path.
#[test]
fn a_plain_program_of_another_user() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    for attach in [attach, attach_by_path] {
        let held = Run::new(&copy, ["7"]).plain().behind(ATTACKER).hold();
        attach(held.pid()).assert_code(0);
        assert!(switched(held.pid()) > 0);
        held.finish().assert_code(7);
    }
}

/// Root starts the program, which has its file system mounted as by fusermount(1).
pub(super) fn silent_to_root(how: &str) -> Held {
    let (public, node) = fuse();
    let built = program("hostile/silent_fuse", Kind::DynamicNoPie);
    let copy = public.add(&built, "silent_fuse", 0o755);
    Run::new(&copy, [how.as_ref(), node.as_os_str()]).plain().hold()
}

/// Asserts that `top` answers keys and shows other processes, in spite of that process.
fn shown_by_top(pid: &str) {
    require!(support::installed("tmux").is_some(), "no tmux");
    let other = Run::new(program("hold", Kind::DynamicNoPie), ["7"]).plain().hold();
    let command = format!("'{}' top -d 0.3", support::tiexecctl().display());
    let screen = Screen::new(80, 24, &command, &[]);
    screen.go().wait_for("CPU %");
    let figure = |pid: &str, text: &str| {
        let row = text.lines().find(|line| line.trim_start().starts_with(&format!("{pid} ")))?;
        row.split_whitespace().nth(1).map(str::to_owned)
    };
    for (pid, is_silent) in [(pid.to_owned(), true), (other.pid().to_string(), false)] {
        screen.keys(&["/"]).wait_for("filter:");
        screen.keys(&["Escape"]).wait_for("? help");
        screen.keys(&["/"]).wait_for("filter: _");
        screen.keys(&[&pid]).wait_for("1 match");
        screen.keys(&["Enter"]).wait_for(" back");
        screen.keys(&["q"]).wait_for("? help");
        screen.wait_until("a figure", |text| {
            let figure = figure(&pid, text);
            figure.is_some_and(|it| if is_silent { it == "?" } else { it.parse::<f64>().is_ok() })
        });
    }
    screen.keys(&["q"]).wait_for("ended 0");
    other.finish().assert_code(7);
}

/// No command is blocked by a process that holds the lock of its memory for ever. (`maps` can be read without since
/// Linux 6.17.)
#[test]
fn a_lock_of_its_memory_that_is_never_let_go() {
    require!(
        needs() && std::path::Path::new("/dev/fuse").exists(),
        "FUSE and another user need root"
    );
    let held = silent("locked");
    let pid = held.said_pid().to_string();
    let started = ["inspect", "doctor"].map(|command| {
        let run = Run::new(support::tiexecctl(), [command, &pid]).plain();
        (command, run.env("TIEXEC_TEST_CLOCK", "10").start())
    });
    for (command, running) in started {
        let done = running.finish();
        done.assert_code(1);
        assert!(done.err().contains("deadline: "), "{command}: {done}");
    }
    // `status` reports the machine without that process.
    let done = Run::new(support::tiexecctl(), ["status"]).plain().output();
    done.assert_code(0);
    assert!(done.out().contains("could not be looked at in 2 s"), "{done}");
    // So does `scan`.
    let other = Run::new(program("hold", Kind::DynamicNoPie), ["7"]).plain().hold();
    let done = ctl(["scan", "--duration", "1s", "--json"]);
    done.assert_code(0).assert_silent();
    let scan = json(&done);
    assert!(scan["silent"].as_u64().is_some_and(|count| count > 0), "{scan}");
    let rows = scan["programs"].as_array().expect("programs");
    let is_other =
        |row: &Value| row["pids"].as_array().is_some_and(|pids| pids.contains(&other.pid().into()));
    assert!(rows.iter().any(is_other), "{scan}");
    other.finish().assert_code(7);
    shown_by_top(&pid);
    held.finish().assert_code(7);
}

/// The child that traces the process cannot be killed. TiExec waits neither for its end nor for the end of its pipe.
#[test]
fn memory_whose_reader_cannot_be_killed() {
    require!(
        needs() && std::path::Path::new("/dev/fuse").exists(),
        "FUSE and another user need root"
    );
    let held = silent_to_root("copy");
    let pid = held.said_pid().to_string();
    let revert = Run::new(support::tiexecctl(), ["revert", &pid]).plain();
    let done = revert.env("TIEXEC_TEST_CLOCK", "10").output();
    done.assert_code(1);
    assert!(done.err().contains("deadline: "), "{done}");
    // The next command has its own tracing child, and reports why it cannot continue.
    let done = ctl(["attach", &pid]);
    assert!(done.err().contains("busy: "), "{done}");
    held.finish().assert_code(7);
}

/// If a followed program of another user blocks its examination, the others are still treated.
#[test]
fn a_followed_program_whose_memory_is_locked() {
    require!(
        needs() && std::path::Path::new("/dev/fuse").exists(),
        "FUSE and another user need root"
    );
    let (public, node) = fuse();
    let built = program("hostile/silent_fuse", Kind::DynamicPie);
    let silent = public.add(&built, "silent_fuse", 0o755);
    let hold = program("hold", Kind::DynamicNoPie);
    // TiExec examines the first program when it is a second old.
    let script = format!(
        "exec 3<&0; {} '{}' locked '{}' <&3 & sleep 3; exec '{}' 7",
        ATTACKER.join(" "),
        silent.display(),
        node.display(),
        hold.display()
    );
    let run = Run::new("sh", ["-c", &script]).options(["--follow", "--backing=image"]);
    let run = run.env("TIEXEC_TEST_CLOCK", "4");
    let held = run.hold();
    let until = Instant::now() + support::child::patience(Duration::from_secs(200));
    while switched(held.pid()) == 0 {
        assert!(Instant::now() < until, "what came later was never treated");
        std::thread::sleep(Duration::from_millis(100));
    }
    held.finish().assert_code(7);
}
