//! Containers of podman, by runc, over the files of this machine. Each value has its own storage, which drop removes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::child::eventually;
use super::installed;

/// The message of `require!` where [`is_there`] is false.
pub const NEEDS: &str = "no podman, runc, gosu or node";

/// Returns whether this machine has the programs that the tests' containers need.
pub fn is_there() -> bool {
    ["podman", "runc", "gosu", "node"].into_iter().all(|name| installed(name).is_some())
}

/// podman's storage.
pub struct Podman {
    dir: tempfile::TempDir,
}

impl Podman {
    /// Makes empty storage.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Podman {
        Podman { dir: tempfile::tempdir().expect("a directory") }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Prepares a command of podman, such as `build`.
    pub fn command(&self) -> Command {
        let mut podman = Command::new("podman");
        for (option, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            podman.arg(option).arg(self.at(name));
        }
        podman.args(["--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none"]);
        podman
    }

    /// Prepares `podman run` over the files of this machine. `mounts` are directories that the container sees at the
    /// same paths. The caller adds the command.
    pub fn run<S: AsRef<OsStr>>(&self, mounts: &[&Path], options: &[S]) -> Command {
        let mut podman = self.command();
        podman.args(["run", "--rm", "--network=none", "--log-driver=none", "--interactive"]);
        // podman's default limits exceed the limits of this machine.
        podman.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]);
        // A container must not see the settings of an installed TiExec.
        podman.arg("--tmpfs=/etc/tiexec");
        for mount in mounts {
            podman.arg(format!("--volume={0}:{0}", mount.display()));
        }
        podman.args(options).args(["--rootfs", "/:O"]);
        podman
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        for mount in ["overlay", "overlay-containers"] {
            let root = self.at("root").join(mount);
            let _not_mounted = Command::new("umount").arg("-lq").arg(root).status();
        }
    }
}

/// A running container. Drop ends it.
pub struct Container {
    /// podman itself.
    pub podman: Child,
    /// The container's first process, as this machine numbers it.
    pub pid: i32,
    _storage: Podman,
}

impl Container {
    /// Starts a container, by [`Podman::run`].
    pub fn start(mounts: &[&Path], options: &[&str], command: &[&OsStr]) -> Container {
        let storage = Podman::new();
        let file = storage.at("pid");
        let pid_file = format!("--pidfile={}", file.display());
        let options: Vec<&str> = options.iter().copied().chain([&*pid_file]).collect();
        let mut podman = storage.run(mounts, &options);
        // Java's program ends when its input ends.
        let mut podman = podman.args(command).stdin(Stdio::piped()).spawn().expect("podman");
        let mut pid = None;
        eventually("the container runs", || {
            let ended = podman.try_wait().expect("a child");
            pid = std::fs::read_to_string(&file).unwrap_or_default().trim().parse().ok();
            assert!(pid.is_some() || ended.is_none(), "podman has ended");
            pid.is_some()
        });
        Container { podman, pid: pid.expect("just seen"), _storage: storage }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // SAFETY: a number and a signal; the process is the container's first, whose end is the end of all in it.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let _ended = self.podman.wait();
    }
}
