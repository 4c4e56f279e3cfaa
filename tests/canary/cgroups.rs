//! The canary uses the processor time of the cgroup that contains exactly the processes, in v1 and v2. Without such a
//! cgroup, it uses the processes' own time.

use std::path::{Path, PathBuf};

use support::attaching::{json, switched};
use support::child::eventually;
use support::machine::Groups;
use support::{Done, Run, is_root, require};

use crate::Server;

/// Returns the directory of the hierarchy that counts processor time.
fn counts_cpu_time() -> Option<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let v1 = top.join("cpuacct");
    let unified = [top.to_owned(), top.join("unified")];
    let is_there = |at: &PathBuf| at.join("cgroup.controllers").exists();
    if v1.join("cpuacct.usage").exists() { Some(v1) } else { unified.into_iter().find(is_there) }
}

fn join(pid: i32, group: &Path) {
    std::fs::write(group.join("cgroup.procs"), pid.to_string()).expect("it may be moved");
}

/// Returns the source of the processor time in an account.
fn source(done: &Done) -> String {
    done.assert_code(6);
    let found = json(done);
    // An estimate proves that the time was read, and that it grew.
    assert!(found["per_cpu_second"]["estimate"].is_number(), "{found}");
    found["cpu_time"].as_str().expect("a word").to_owned()
}

#[test]
fn of_its_own_or_of_the_processes() {
    require!(is_root(), "files in a directory of root's");
    let mut cgroups = Groups::new();
    let group = counts_cpu_time().and_then(|parent| cgroups.group(&parent));
    require!(group.is_some(), "no cgroup that counts processor time can be made");
    let group = group.expect("just looked");
    let server = Server::start(100, 0);
    let cpu_time = |server: &Server| {
        let source = source(&server.canary(&["--max=6s", "--json"]));
        assert_eq!(switched(server.pid()), 0);
        source
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

/// Units of several users have the same name, and only the cgroup of all users contains them all.
#[test]
fn of_a_users_unit_but_not_of_all_users() {
    require!(is_root(), "files in a directory of root's");
    let mut cgroups = Groups::new();
    let units = cgroups.slice_of_units();
    let times = counts_cpu_time().and_then(|parent| cgroups.slice(&parent));
    require!(units.is_some() && times.is_some(), "no cgroup can be made");
    let tops = [units.expect("just looked"), times.expect("just looked")];
    let unit = format!("tiexec-test-{}.service", std::process::id());
    let place = |user: u32| format!("user-{user}.slice/user@{user}.service/app.slice/{unit}");
    let join = |server: &Server, user: u32| {
        for group in tops.each_ref().map(|top| top.join(place(user))) {
            std::fs::create_dir_all(&group).expect("a cgroup");
            join(server.pid(), &group);
        }
    };
    let (one, other) = (Server::start(100, 0), Server::start(100, 0));
    let source = || source(&one.canary(&["--max=10s", "--json", "--user", &unit]));
    join(&one, 2001);
    assert_eq!(source(), "cgroup");
    join(&other, 2002);
    // Of the users' other processes.
    let stranger = Run::new("sleep", ["300"]).plain().start();
    std::fs::write(tops[1].join("user-2002.slice/cgroup.procs"), stranger.pid().to_string())
        .expect("it may be moved");
    assert_eq!(source(), "processes");
    drop(stranger);
    one.finish();
    other.finish();
    for (top, user) in tops.iter().flat_map(|top| [(top, 2001), (top, 2002)]) {
        let group = top.join(place(user));
        for group in group.ancestors().take_while(|group| *group != top) {
            eventually("it is empty", || !group.exists() || std::fs::remove_dir(group).is_ok());
        }
    }
}
