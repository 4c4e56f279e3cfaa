//! The agent sets a torn state aside, and a full disk only causes a message.

use support::attaching::switched;
use support::child::eventually;
use support::store::tmpfs;
use support::{Run, is_root, require};

use crate::{Files, eventually_switched, has_guard, hold, stop};

#[test]
fn a_state_that_is_not_ours_is_set_aside() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    for (text, mode, says) in [
        ("{\"version\":1,\"quar", 0o600, "it is torn"),
        ("{\"version\":2,\"quarantine\":{}}", 0o600, "newer than 1"),
        ("{\"version\":1,\"quarantine\":[]}", 0o666, "mode 0666"),
    ] {
        let files = Files::new();
        let copy = files.program("hold", 6, "a/hold");
        files.attach_below("a", "a");
        let path = files.state().join("state.json");
        std::fs::write(&path, text).expect("a file");
        support::chmod(&path, mode);
        let held = hold(&copy);
        let agent = files.agent();
        eventually_switched(&held);
        let said = stop(agent);
        assert!(said.contains(says) && said.contains("set aside"), "{said}");
        assert!(!path.exists());
        let aside = std::fs::read_to_string(files.state().join("state.json.aside"));
        assert_eq!(aside.expect("it is kept"), text);
        held.finish().assert_code(7);
    }
}

/// For want of descriptors the agent cannot read who is in quarantine. It begins nothing, and keeps the file.
#[test]
fn a_state_that_cannot_be_read_now_stays() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("crasher", 6, "a/bad");
    files.attach_below("a", "a");
    let mut agent = files.agent();
    Run::new(&copy, [""; 0]).plain().hold().finish().assert_signal(libc::SIGSEGV);
    let path = files.state().join("state.json");
    eventually("the build is in quarantine", || path.exists());
    let text = std::fs::read(&path).expect("a file");
    let pid = Pid::from_raw(agent.pid());
    let limited = |number| {
        let limit = Rlimit { current: Some(number), maximum: Some(4096) };
        prlimit(pid, Resource::Nofile, limit).expect("root may");
    };
    limited(3);
    // Another file in its place, with another stamp.
    std::fs::copy(&path, files.state().join("new")).expect("a copy");
    std::fs::rename(files.state().join("new"), &path).expect("a rename");
    eventually("it says so", || {
        agent.err_text().contains("begins nothing, because it cannot read")
    });
    let again = Run::new(&copy, [""; 0]).plain().hold();
    limited(1024);
    eventually("it reads it then", || agent.err_text().contains("quarantined"));
    assert_eq!(switched(again.pid()), 0);
    assert_eq!(std::fs::read(&path).expect("a file"), text);
    assert!(!files.state().join("state.json.aside").exists());
    stop(agent);
    again.signal(libc::SIGKILL);
}

#[test]
fn a_full_disk_costs_a_line() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let (bad, well) = (files.program("crasher", 6, "a/bad"), files.program("hold", 6, "a/well"));
    files.attach_below("a", "a");
    tmpfs(&files.state(), "mode=0700,size=16k");
    let fill = vec![b'x'; 1 << 20];
    // The disk is full, so the last write fails.
    let _full = std::fs::write(files.state().join("fill"), fill);
    let mut agent = files.agent();
    Run::new(&bad, [""; 0]).plain().hold().finish().assert_signal(libc::SIGSEGV);
    let again = Run::new(&bad, [""; 0]).plain().hold();
    let held = hold(&well);
    eventually_switched(&held);
    // A crash that could not be written to the file counts as long as the agent runs.
    eventually("the build is left alone", || agent.err_text().contains("quarantined"));
    assert_eq!(switched(again.pid()), 0);
    let said = stop(agent);
    let lines = said.lines().filter(|line| line.contains("No space") || line.contains("ENOSPC"));
    assert_eq!(lines.count(), 1, "{said}");
    again.signal(libc::SIGKILL);
    held.finish().assert_code(7);
}
