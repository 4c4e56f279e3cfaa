//! What others see of the agent: its processes, its descriptors, and its files in `/run`.

use support::attaching::{descriptors, switched};
use support::child::eventually;
use support::smaps::{children, status_field};
use support::store::names;
use support::{is_root, require};

use crate::{Files, eventually_switched, has_guard, hold, stop};

#[test]
fn it_keeps_nothing_of_a_program() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    const OURS: &str = "/run/tiexec";
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let held = hold(&copy);
    let agent = files.agent();
    eventually_switched(&held);
    let pid = held.pid();
    // A pidfd, by which the agent learns of a crash, is an anonymous inode.
    let of_program = |one: &String| {
        one.contains("memfd:") || one.contains("/proc/") || one.contains(&*copy.to_string_lossy())
    };
    eventually("the work is done", || {
        children(agent.pid()).is_empty() && !descriptors(agent.pid()).iter().any(of_program)
    });
    assert_eq!(children(pid), [0; 0]);
    for (key, value) in [("TracerPid", "0"), ("Threads", "1")] {
        assert_eq!(status_field(pid, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(names(OURS), ["agent.sock", "launch.sock", "lock", "machine"]);
    stop(agent);
    assert!(switched(pid) > 0);
    held.finish().assert_code(7).assert_silent();
}
