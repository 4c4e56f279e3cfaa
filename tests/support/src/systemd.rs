//! A real systemd as PID 1 of its own PID, mount, cgroup and network namespaces, with Debian's units.
//!
//! The machine is not changed: `/etc`, `/var`, `/run` and `/dev` belong to the namespace, `/usr` and the kernel's
//! settings are read-only, and drop ends all processes. The script beside this file boots systemd.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::child::{Done, Held, eventually, tool};
use super::launch::Run;
use super::{installed, is_root};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/systemd_boot.sh");

/// The message of `require!` if [`can_boot`] is false.
pub const NEEDS: &str =
    "a systemd of one's own needs root, systemd, dbus, overlayfs, unshare, setpriv and nsenter";

/// Returns the root whose systemd boots: one that `make roots-test` has installed, or `""` for this machine's.
fn root() -> String {
    std::env::var("TIEXEC_TEST_ROOT").unwrap_or_default()
}

/// Returns Debian's services that are installed, each with the `--edges` that gives it huge text. The text of two of them fills no
/// whole huge page.
pub fn debians() -> Vec<(String, &'static str)> {
    let postgres = format!("postgresql@{}-main.service", postgresql());
    let all = [
        ("mariadb.service", "conservative"),
        (&postgres, "conservative"),
        ("redis-server.service", "aggressive"),
        ("nginx.service", "aggressive"),
    ];
    let (here, missing) = all.into_iter().partition::<Vec<_>, _>(|(unit, _)| Systemd::has(unit));
    missing.iter().for_each(|(unit, _)| super::skip(&format!("{unit} is not installed")));
    here.into_iter().map(|(unit, edges)| (unit.to_owned(), edges)).collect()
}

/// Returns the version of PostgreSQL for which its package has made a cluster; empty if there is none.
pub fn postgresql() -> String {
    let clusters = std::fs::read_dir(root() + "/etc/postgresql").into_iter().flatten().flatten();
    clusters.map(|cluster| cluster.file_name().display().to_string()).max().unwrap_or_default()
}

/// Returns whether a systemd can be booted here.
pub fn can_boot() -> bool {
    let file_systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    is_root()
        && ["systemctl", "dbus-daemon", "unshare", "setpriv", "nsenter"]
            .iter()
            .all(|program| installed(program).is_some())
        && ["overlay", "cgroup"]
            .iter()
            .all(|kind| file_systems.lines().any(|line| line.split('\t').next_back() == Some(kind)))
}

/// A running systemd. Drop ends it and all its services.
pub struct Systemd {
    boot: Option<Held>,
    /// Its process ID outside of its PID namespace.
    pid: i32,
    /// The name of its cgroup.
    group: String,
}

impl Systemd {
    /// Boots systemd up to `basic.target`, with `tiexec` and `tiexecctl` in `/usr/bin`.
    pub fn boot() -> Systemd {
        Systemd::boot_over(&super::tiexecctl().with_file_name(""), &[])
    }

    /// Boots systemd without the programs, so that packages can be installed.
    pub fn boot_for_packages() -> Systemd {
        super::store::own_run();
        Systemd::boot_over(Path::new(""), &[])
    }

    /// Boots systemd with the programs of this directory. Each file or directory of this machine in `over` covers a path inside: the
    /// copy of a program covers the machine's own.
    pub fn boot_over(programs: &Path, over: &[(PathBuf, PathBuf)]) -> Systemd {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // A killed test leaves its cgroup, and another process gets its number later.
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time after 1970");
        let group = format!("tiexec-units-{}-{count}-{}", std::process::id(), since.as_nanos());
        let words = ["--mount", "sh", SCRIPT, &group].map(OsStr::new);
        let words = words.into_iter().chain([programs.as_os_str(), OsStr::new("enter")]);
        let pairs = over.iter().flat_map(|(from, at)| [from.as_os_str(), at.as_os_str()]);
        let words = words.chain(pairs);
        let boot = Run::new("unshare", words).plain().limit(600);
        let mut boot = boot.env("ROOT", root()).start();
        eventually("systemd is executed", || {
            if boot.has_ended() {
                let said = boot.err_text();
                panic!("{} has ended: {said}", boot.command);
            }
            boot.has_said("pid") && {
                let comm = std::fs::read_to_string(format!("/proc/{}/comm", boot.said_pid()));
                comm.is_ok_and(|comm| comm == "systemd\n")
            }
        });
        let pid = boot.said_pid();
        let systemd = Systemd { boot: Some(boot), pid, group };
        eventually("systemd has booted", || {
            let state = systemd.systemctl(["is-system-running"]).out();
            ["running", "degraded"].contains(&state.trim())
        });
        systemd
    }

    /// Returns whether this systemd has the unit, which may be an instance of a template.
    pub fn has(unit: &str) -> bool {
        let file = match unit.split_once('@') {
            Some((_, "-main.service")) => return false,
            Some((template, _)) => format!("{template}@.service"),
            None => unit.to_owned(),
        };
        Path::new(&(root() + "/usr/lib/systemd/system")).join(file).exists()
    }

    /// Prepares a command inside.
    pub fn command<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Run {
        let pid = self.pid.to_string();
        let enter = ["--target", &pid, "--all", "--"].map(|word| OsStr::new(word).to_owned());
        let words = argv.into_iter().map(|word| word.as_ref().to_owned());
        Run::new("nsenter", enter.into_iter().chain(words)).plain()
    }

    /// Runs a command inside to its end.
    pub fn run<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Done {
        self.command(argv).output()
    }

    /// Runs `systemctl` inside.
    pub fn systemctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        self.program("systemctl", args)
    }

    /// Runs `tiexecctl` inside.
    pub fn ctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        self.program("/usr/bin/tiexecctl", args)
    }

    fn program<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Done {
        let words = args.into_iter().map(|word| word.as_ref().to_owned());
        self.run([OsStr::new(program).to_owned()].into_iter().chain(words))
    }

    /// Starts a unit. Panics with the unit's log if the start fails.
    pub fn start(&self, unit: &str) {
        let done = self.systemctl(["start", unit]);
        assert!(done.status.success(), "{done}\n{}", self.log(unit));
    }

    /// Panics if a unit has failed, with the log of each that has.
    pub fn assert_nothing_failed(&self) {
        let failed = self
            .systemctl(["list-units", "--failed", "--plain", "--no-legend"])
            .assert_code(0)
            .out();
        let units = failed.lines().filter_map(|line| line.split_whitespace().next());
        let logs: Vec<_> = units.map(|unit| format!("{unit}:\n{}", self.log(unit))).collect();
        assert!(logs.is_empty(), "units have failed: {}", logs.join("\n"));
        self.systemctl(["is-system-running"]).assert_code(0);
    }

    /// Returns a property of a unit, from `systemctl show`.
    pub fn property(&self, unit: &str, name: &str) -> String {
        let done = self.systemctl(["show", "--value", "--property", name, "--", unit]);
        done.assert_code(0).out().trim().to_owned()
    }

    /// Returns the log of a unit.
    pub fn log(&self, unit: &str) -> String {
        self.run(["journalctl", "--no-pager", "--output=cat", "--unit", unit]).out()
    }

    /// Returns the messages of TiExec in the journal, a line each.
    pub fn notes(&self) -> String {
        self.run(["journalctl", "--no-pager", "--output=cat", "--identifier=tiexec"]).out()
    }

    /// Returns the executables of the processes in a unit's cgroup.
    pub fn processes(&self, unit: &str) -> Vec<String> {
        let group = self.property(unit, "ControlGroup");
        let script = "for pid in $(cat \"/sys/fs/cgroup/systemd$1/cgroup.procs\"); do readlink /proc/$pid/exe; done";
        self.run(["sh", "-c", script, "sh", &group]).out().lines().map(str::to_owned).collect()
    }

    /// Returns its process ID outside of its PID namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the processes in a unit's cgroup, by their IDs outside.
    pub fn pids(&self, unit: &str) -> Vec<i32> {
        let group = self.property(unit, "ControlGroup");
        // The kernel shows the IDs of the reader's PID namespace.
        let list = self.path(&format!("/sys/fs/cgroup/systemd{group}/cgroup.procs"));
        let text = std::fs::read_to_string(list).unwrap_or_default();
        text.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Waits until a unit of TiExec's has run after the service's last start and has ended.
    pub fn eventually_done(&self, service: &str, ours: &str) {
        let time = |unit: &str, name: &str| {
            let at = self.property(unit, &format!("{name}TimestampMonotonic"));
            at.parse::<u64>().expect("microseconds")
        };
        eventually(&format!("{ours} has run"), || {
            time(ours, "InactiveEnter") > time(service, "ActiveEnter")
                && self.property(ours, "Job").is_empty()
                && self.property(ours, "ActiveState") == "inactive"
        });
    }

    /// Returns the path, for this process, of a path inside. `path` must not contain an absolute symbolic link.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Writes a file inside, and makes systemd reload its units.
    pub fn write_unit(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a file")).expect("a directory inside");
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.systemctl(["daemon-reload"]).assert_code(0);
    }

    /// Returns the bytes of huge text of a unit's processes, from `tiexecctl inspect`.
    pub fn huge(&self, unit: &str) -> u64 {
        self.huge_of(&["--unit", unit])
    }

    /// Returns the same for processes selected by these arguments.
    pub fn huge_of(&self, selected: &[&str]) -> u64 {
        let done = self.ctl(["inspect", "--json"].iter().chain(selected));
        let lines = done.out();
        let reports = lines.lines().map(|line| {
            serde_json::from_str::<serde_json::Value>(line)
                .unwrap_or_else(|e| panic!("{e}: {done}"))
        });
        let of_processes = reports.filter(|report| report["kind"] == "inspect");
        of_processes.filter_map(|report| report["huge_bytes"].as_u64()).sum()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // When PID 1 ends, the kernel ends all processes of its namespace.
        self.boot = None;
        let script = ["unshare", "--mount", "sh", SCRIPT, &self.group, "", "leave"];
        let left = tool(&script);
        let why = String::from_utf8_lossy(&left.stderr);
        assert!(left.status.success() || std::thread::panicking(), "{}: {why}", self.group);
    }
}
