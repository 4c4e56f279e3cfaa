//! In a container of podman's, with its seccomp profile and without CAP_SYS_PTRACE, the start is followed as well: across
//! `sh -c`, to another user, and into a library that is loaded later.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::child::eventually;
use support::smaps::{Vma, status_field, vmas};
use support::{Kind, busy_java, installed, program, require, tiexec};

/// A container whose first process is `tiexec COMMAND…`; gone with this value.
struct Container {
    podman: Child,
    pid: i32,
    dir: tempfile::TempDir,
}

impl Container {
    /// Starts it, over the files of this machine. `mounts` are directories that it sees at the same paths.
    fn run(mounts: &[&Path], command: &[&str]) -> Container {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let mut podman = Command::new("podman");
        for (option, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            podman.arg(option).arg(at(name));
        }
        podman.args(["--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none"]);
        podman.args(["run", "--rm", "--network=none", "--log-driver=none", "--interactive"]);
        // Its default limits are more than this machine's own.
        podman.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]);
        podman.arg("--pidfile").arg(at("pid"));
        let binaries = tiexec().parent().expect("a directory");
        let programs = program("hold", Kind::DynamicPie);
        let programs = programs.parent().expect("a directory");
        for mount in [binaries, programs].iter().chain(mounts) {
            podman.arg(format!("--volume={0}:{0}", mount.display()));
        }
        podman.args(["--rootfs", "/:O"]).arg(tiexec()).args(command);
        // Java's program ends when its input does.
        podman.stdin(Stdio::piped());
        let podman = podman.spawn().expect("podman");
        let mut pid = None;
        eventually("the container runs", || {
            let said = std::fs::read_to_string(at("pid")).unwrap_or_default();
            pid = said.trim().parse().ok();
            pid.is_some()
        });
        Container { podman, pid: pid.expect("just seen"), dir }
    }

    /// Waits until text of a file of that name is huge, by at least so many bytes.
    fn becomes_huge(&self, name: &str, least: u64) {
        let is_its = |vma: &Vma| vma.path.contains(name);
        let huge = || vmas(self.pid).iter().filter(|vma| is_its(vma)).map(Vma::huge).sum::<u64>();
        eventually("its text is huge", || huge() >= least);
        let filters = status_field(self.pid, "Seccomp_filters");
        assert_ne!(filters.as_deref(), Some("0"), "the container has a seccomp profile");
    }

    fn user(&self) -> Option<String> {
        let ids = status_field(self.pid, "Uid")?;
        ids.split_whitespace().next().map(str::to_owned)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // SAFETY: a number and a signal; the process is the container's first, whose end is the end of all in it.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let _ended = self.podman.wait();
        let root = self.dir.path().join("root");
        for mount in ["overlay", "overlay-containers"] {
            let _not_mounted = Command::new("umount").arg("-lq").arg(root.join(mount)).status();
        }
    }
}

fn has_podman() -> bool {
    ["podman", "runc", "gosu", "node"].into_iter().all(|name| installed(name).is_some())
}

const NODE: &str = "setTimeout(() => {}, 100000)";

#[test]
fn node_behind_a_shell() {
    require!(has_podman(), "no podman, runc, gosu or node");
    let container = Container::run(&[], &["sh", "-c", &format!("exec node -e '{NODE}'")]);
    container.becomes_huge("node", 8 << 20);
    assert_eq!(container.user().as_deref(), Some("0"));
}

/// As the entry script of a database's image does: root's part first, then itself again as the user.
#[test]
fn an_entry_script_that_changes_its_user() {
    require!(has_podman(), "no podman, runc, gosu or node");
    let dir = tempfile::tempdir().expect("a directory");
    let entry = dir.path().join("entry");
    let script = "#!/bin/bash\n[ $(id -u) != 0 ] || exec gosu nobody \"$0\" \"$@\"\nexec \"$@\"\n";
    std::fs::write(&entry, script).expect("a script");
    for path in [dir.path(), &entry] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    let entry = entry.to_string_lossy().into_owned();
    let container = Container::run(&[dir.path()], &[&entry, "node", "-e", NODE]);
    container.becomes_huge("node", 8 << 20);
    assert_eq!(container.user().as_deref(), Some("65534"));
}

/// The process that works on another user's program has become that user, whose processes still learn nothing from it.
#[test]
fn the_user_learns_nothing_from_who_works_on_it() {
    require!(has_podman(), "no podman, runc, gosu or node");
    let look = r#"
        const fs = require("fs");
        let seen = 0;
        const end = Date.now() + 8000;
        while (Date.now() < end) {
            for (const pid of fs.readdirSync("/proc").filter(name => /^\d+$/.test(name))) {
                try {
                    if (!fs.readFileSync(`/proc/${pid}/comm`, "utf8").startsWith("tiexec")) continue;
                    seen++;
                } catch { continue; }
                // A process that is about to end has files to open, with nothing in them.
                for (const file of ["mem", "environ", "maps", "auxv"]) {
                    try { if (fs.readFileSync(`/proc/${pid}/${file}`).length > 0) process.exit(3); } catch {}
                }
                try { if (fs.readdirSync(`/proc/${pid}/fd`).length > 0) process.exit(4); } catch {}
            }
        }
        process.exit(seen > 0 ? 7 : 5);"#;
    let mut container = Container::run(&[], &["gosu", "nobody", "node", "-e", look]);
    let ended = container.podman.wait().expect("podman");
    assert_eq!(ended.code(), Some(7), "3: its memory, 4: its descriptors, 5: nobody was there");
}

#[test]
fn a_library_that_java_loads() {
    require!(has_podman(), "no podman, runc, gosu or node");
    let java = busy_java();
    require!(java.is_some(), "no java with a compiler");
    let (java, classes) = java.expect("just looked");
    let (java, class_path) = (java.to_string_lossy(), classes.path().to_string_lossy());
    let container = Container::run(&[classes.path()], &[&java, "-cp", &class_path, "Busy"]);
    container.becomes_huge("libjvm.so", 8 << 20);
}
