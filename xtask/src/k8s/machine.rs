//! The machine of the node: its own namespaces, below its own cgroup.
//!
//! There are three steps, and each runs this program again:
//!
//! 1. The command itself builds all parts, in the machine's own namespaces.
//! 2. In a mount namespace, it mounts the hierarchies of cgroup v1 and makes a group in each (`Step::Groups`).
//! 3. In these groups and in new namespaces, it becomes the node (`Step::Node`). A shell is process 1 there, and reaps
//!    orphans. When the shell ends, the kernel ends all processes, and the mounts end with the namespace.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::vm::run;

/// The name of our group in each hierarchy.
const GROUP: &str = "tiexec-k8s";
/// The memory limit of all processes of the node.
const MEMORY: &str = "8G";
/// Sysctls of the whole machine that the kubelet would set, with the values that it expects.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The command line of this program for the next step.
fn again(step: &str, more: &[String]) -> Result<Vec<String>> {
    let this = std::env::current_exe()?;
    let this = this.to_str().context("this program has no name in UTF-8")?;
    let words = [this, "k8s-test", "--step", step].map(str::to_owned);
    Ok(words.into_iter().chain(more.iter().cloned()).collect())
}

/// Runs the second step in a new mount namespace.
pub(super) fn enter(path: &OsStr, more: &[String]) -> Result<ExitStatus> {
    let mut command = Command::new("setpriv");
    command.env("PATH", path);
    command.args(["--pdeathsig=KILL", "unshare", "--mount", "--propagation=private"]);
    command.args(again("groups", more)?).status().context("unshare")
}

/// The hierarchies of cgroup v1 of this kernel: their mount options, and our names for them.
fn hierarchies() -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let named = text.lines().filter_map(|line| {
        let mut parts = line.split(':').skip(1);
        let controllers = parts.next().filter(|controllers| !controllers.is_empty())?;
        let name = controllers.strip_prefix("name=").unwrap_or(controllers);
        let none = if controllers.starts_with("name=") { "none," } else { "" };
        Some((format!("{none}{controllers}"), name.to_owned()))
    });
    let found: Vec<_> = named.collect();
    if !found.iter().any(|(_, name)| name == "memory") {
        bail!(
            "cannot make a node: the memory controller is not on cgroup v1; fix: a guest with it"
        );
    }
    Ok(found)
}

fn mount_hierarchies(below: &Path) -> Result<Vec<PathBuf>> {
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(below))?;
    let mut mounted = Vec::new();
    for (option, name) in hierarchies()? {
        let at = below.join(name);
        fs::create_dir(&at)?;
        run(Command::new("mount").args(["-t", "cgroup", "-o", &option, "cgroup"]).arg(&at))?;
        mounted.push(at);
    }
    Ok(mounted)
}

/// The second step: makes the groups, runs the third step, and removes the groups.
pub(super) fn groups(work: &Path, more: &[String]) -> Result<ExitStatus> {
    let below = work.join("cgroup");
    fs::create_dir_all(&below)?;
    let mut groups = Vec::new();
    for hierarchy in mount_hierarchies(&below)? {
        let group = hierarchy.join(GROUP);
        remove(&group)?;
        fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read(hierarchy.join(file)) {
                fs::write(group.join(file), all)?;
            }
        }
        let limit = group.join("memory.limit_in_bytes");
        if limit.exists() {
            fs::write(limit, MEMORY)?;
        }
        groups.push(group);
    }
    let joins: Vec<String> =
        groups.iter().map(|group| format!("echo $$ >{}/cgroup.procs", group.display())).collect();
    let mut node = Command::new("setpriv");
    node.args([
        "--pdeathsig=KILL",
        "sh",
        "-ec",
        &format!("{}\nexec \"$@\"", joins.join("\n")),
        "sh",
    ]);
    node.args(["unshare", "--cgroup", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork"]);
    node.args(["--kill-child=KILL", "--mount-proc", "--propagation=private"]);
    // The shell must not exec the program, because the shell is process 1.
    node.args(["sh", "-c", "\"$@\"; exit $?", "sh"]).args(again("node", more)?);
    let status = node.status().context("unshare");
    groups.iter().try_for_each(|group| remove(group))?;
    status
}

/// Removes a group and its descendants, once their last processes have ended.
fn remove(group: &Path) -> Result<()> {
    fn all(group: &Path) -> std::io::Result<()> {
        for entry in fs::read_dir(group)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                all(&entry.path())?;
            }
        }
        fs::remove_dir(group)
    }
    for _ in 0..100 {
        match all(group) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_busy) => std::thread::sleep(Duration::from_millis(100)),
            Ok(()) => return Ok(()),
        }
    }
    bail!("cannot remove {}: processes are in it", group.display())
}

/// The start of the third step: mounts and a network that are invisible outside.
pub(super) fn furnish(work: &Path) -> Result<()> {
    let sh = |script: &str| run(Command::new("sh").args(["-ec", script]).env("W", work));
    mount_hierarchies(Path::new("/sys/fs/cgroup"))?;
    sh("hostname node1
        mount --make-rshared /
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs /var/log
        mkdir -p $W/lib $W/lib.work $W/kubelet $W/log $W/sysctl /run/netns
        mount -t overlay -o lowerdir=/var/lib,upperdir=$W/lib,workdir=$W/lib.work overlay /var/lib
        mkdir -p /var/lib/kubelet
        mount --bind $W/kubelet /var/lib/kubelet
        ip link set lo up
        ip link add node0 type bridge
        ip addr add 10.77.0.1/24 dev node0
        ip addr add 10.96.0.1/32 dev node0
        ip link set node0 up
        ip route add default via 10.77.0.1")?;
    for (name, value) in SYSCTLS {
        let file = work.join("sysctl").join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n"))?;
        run(Command::new("mount").arg("--bind").arg(&file).arg(format!("/proc/sys/{name}")))?;
    }
    Ok(())
}
