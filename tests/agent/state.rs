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
