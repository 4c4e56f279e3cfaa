//! The canary uses the processor time of the cgroup that contains exactly the processes, in v1 and v2. Without such a
//! cgroup, it uses the processes' own time.

use std::path::{Path, PathBuf};

use support::attaching::{json, switched};
use support::machine::Groups;
use support::{Run, is_root, require};

use crate::Server;

/// Returns the directory of the hierarchy that counts processor time.
fn counts_cpu_time() -> Option<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let v1 = top.join("cpuacct");
    let unified = [top.to_owned(), top.join("unified")];
    let is_there = |at: &PathBuf| at.join("cgroup.controllers").exists();
    if v1.join("cpuacct.usage").exists() { Some(v1) } else { unified.into_iter().find(is_there) }
}

#[test]
fn of_its_own_or_of_the_processes() {
    require!(is_root(), "files in a directory of root's");
    let mut cgroups = Groups::new();
    let group = counts_cpu_time().and_then(|parent| cgroups.group(&parent));
    require!(group.is_some(), "no cgroup that counts processor time can be made");
    let group = group.expect("just looked");
    let server = Server::start(100, 0);
    let join = |pid: i32, group: &Path| {
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).expect("it may be moved");
    };
    let cpu_time = |server: &Server| {
        let done = server.canary(&["--max=6s", "--json"]);
        done.assert_code(6);
        let found = json(&done);
        // An estimate proves that the time was read, and that it grew.
        assert!(found["per_cpu_second"]["estimate"].is_number(), "{found}");
        assert_eq!(switched(server.pid()), 0);
        found["cpu_time"].as_str().expect("a word").to_owned()
    };
    join(server.pid(), &group);
    assert_eq!(cpu_time(&server), "cgroup");
    // A foreign process in the cgroup would be counted too.
    let stranger = Run::new("sleep", ["300"]).plain().start();
    join(stranger.pid(), &group);
    assert_eq!(cpu_time(&server), "processes");
    stranger.signal(libc::SIGKILL);
    drop(stranger);
    server.finish();
}
