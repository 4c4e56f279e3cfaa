//! Whether somebody would count a process that a launch leaves beside the program.
//!
//! A process more is noticed by
//!
//! - systemd: for a unit of `Type=forking` without `PIDFile=` it takes a lone process of the cgroup for the main one
//!   (`unit_search_main_pid` in `src/core/unit.c`), and there are two now;
//! - a limit on processes (`RLIMIT_NPROC`, `pids.max`) that fits the program exactly;
//! - a child subreaper (prctl(2), `PR_SET_CHILD_SUBREAPER`), which gets the orphan as a child that it does not know.
//!
//! The facts come from `/proc`, `/sys/fs/cgroup` and prlimit(2), by calls that a launch makes anyway, because a seccomp
//! filter may kill a process for any other. `INVOCATION_ID` is not a fact: all descendants of a unit inherit it.

use std::fmt;
use std::path::PathBuf;

use tiexec_core::escape::AsShown;
use tiexec_core::proc::cgroup::{self, CgroupFiles};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, kernel_file, process};

/// A limit below this number of processes may fit a program exactly. Each `user.slice`, each container of podman (2,048)
/// and each pod of Kubernetes (1,024 to 4,096) has a limit that is only a guard against runaway programs.
pub const FEW: u64 = 1024;

/// Who would count one process more, the facts in the order in which they are looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Counted {
    /// systemd started this process itself, and set `SYSTEMD_EXEC_PID` to its ID (systemd.exec(5)).
    MainProcess,
    /// This process is in the own cgroup of a service.
    Service {
        /// The service's name.
        unit: Vec<u8>,
        /// True if the service belongs to a user's own systemd.
        of_user: bool,
    },
    /// The soft `RLIMIT_NPROC` is low. It counts all threads of the user.
    ProcessLimit(u64),
    /// The limit of a cgroup that contains this process is low. It counts all threads of the cgroup.
    PidsMax {
        /// The cgroup's directory.
        directory: PathBuf,
        /// Its `pids.max`.
        limit: u64,
    },
    /// The kernel gave an orphan of this process to a subreaper.
    Subreaper(Pid),
}

/// What the decision needs to know of this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Facts {
    /// True if `SYSTEMD_EXEC_PID` is the ID of this process.
    is_main: bool,
    /// `/proc/self/cgroup`.
    cgroup: Vec<u8>,
    /// The soft `RLIMIT_NPROC`; `None` if there is none.
    processes: Option<u64>,
    /// The limits of this process's cgroup and those above it, the own one first.
    pids_max: Vec<(PathBuf, u64)>,
}

/// Returns who would count one process more beside this process; `None` if nobody would. A subreaper cannot be seen
/// before there is an orphan, so [`companion`](super::companion) looks for it. A fact that cannot be read counts as
/// absent.
pub fn by_whom() -> Option<Counted> {
    let this = ProcDir::this_process().ok()?;
    let read = |name| this.read(name).unwrap_or_default();
    let cgroup = read("cgroup");
    let pids_max =
        cgroup::pids_cgroup(&cgroup, &read("mountinfo")).map_or_else(Vec::new, limits_of);
    decide(&Facts {
        is_main: is_main_process(),
        cgroup,
        processes: process::process_limit(),
        pids_max,
    })
}

fn is_main_process() -> bool {
    let named = std::env::var("SYSTEMD_EXEC_PID").ok().and_then(|pid| pid.parse().ok());
    named.is_some_and(|named: i32| named == process::this().as_raw_nonzero().get())
}

/// Reads the limits of a cgroup and those above it. The root of a hierarchy has none.
fn limits_of(cgroup: CgroupFiles) -> Vec<(PathBuf, u64)> {
    let limit = |directory: PathBuf| {
        // "max" stands for no limit, and does not parse as a number.
        let text = kernel_file::read(directory.join("pids.max")).ok()?;
        Some((directory, text.trim().parse().ok()?))
    };
    cgroup.directories().filter_map(limit).collect()
}

fn decide(facts: &Facts) -> Option<Counted> {
    if let Some(unit) = cgroup::own_service(&facts.cgroup) {
        let path = cgroup::path(&facts.cgroup).unwrap_or_default();
        let of_user = path.split(|&byte| byte == b'/').any(|part| part.starts_with(b"user@"));
        return Some(Counted::Service { unit: unit.to_vec(), of_user });
    }
    if facts.is_main {
        return Some(Counted::MainProcess);
    }
    if let Some(limit) = facts.processes.filter(|&limit| limit < FEW) {
        return Some(Counted::ProcessLimit(limit));
    }
    let (directory, limit) = facts.pids_max.iter().find(|(_, limit)| *limit < FEW)?;
    Some(Counted::PidsMax { directory: directory.clone(), limit: *limit })
}

impl Counted {
    /// Returns what makes later starts of the program huge without a process beside it.
    pub fn for_later_starts(&self) -> String {
        match self {
            Self::Service { unit, of_user } => {
                let user = if *of_user { "--user " } else { "" };
                format!("tiexecctl enable {user}{}", unit.word())
            }
            _ => "systemctl enable --now tiexecd".to_owned(),
        }
    }
}

/// What is counted, as the cause of something.
impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MainProcess => f.write_str("systemd counts the processes of its units"),
            Self::Service { unit, .. } => {
                write!(f, "systemd counts the processes of {}", unit.shown())
            }
            Self::ProcessLimit(limit) => {
                write!(f, "the user may have only {limit} processes (ulimit -u)")
            }
            Self::PidsMax { directory, limit } => {
                write!(f, "{} is {limit}", directory.join("pids.max").shown())
            }
            Self::Subreaper(pid) => {
                let pid = pid.as_raw_nonzero();
                write!(f, "process {pid} is a subreaper, which has to reap it")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: &[u8] = b"0::/user.slice/user-1000.slice/session-3.scope\n";

    fn of(cgroup: &[u8]) -> Facts {
        Facts { cgroup: cgroup.to_vec(), ..Facts::default() }
    }

    #[test]
    fn a_service_counts_its_own_cgroup() {
        let service = |cgroup: &[u8]| match decide(&of(cgroup)) {
            Some(Counted::Service { unit, of_user }) => {
                Some((String::from_utf8(unit).unwrap(), of_user))
            }
            None => None,
            other => panic!("{other:?}"),
        };
        let web = Some(("web.service".to_owned(), false));
        assert_eq!(service(b"0::/system.slice/web.service\n"), web);
        assert_eq!(service(b"1:name=systemd:/system.slice/web.service\n0::/\n"), web);
        let user = b"0::/user.slice/user-7.slice/user@7.service/app.slice/web.service\n";
        assert_eq!(service(user), Some(("web.service".to_owned(), true)));
        // systemd puts an underscore before a name that is one of a kernel file.
        let masked = b"0::/system.slice/_cgroup.service\n";
        assert_eq!(service(masked), Some(("cgroup.service".to_owned(), false)));
        for cgroup in [
            SCOPE,
            b"0::/\n",
            b"",
            b"0::/system.slice/docker-1.scope\n",
            b"0::/system.slice/web.service/payload\n",
            b"0::/user.slice/user-7.slice/user@7.service/app.slice/app-1.scope\n",
            b"0::/system.slice/.service\n",
        ] {
            assert_eq!(service(cgroup), None);
        }
    }

    #[test]
    fn a_main_process_is_counted_wherever_it_is() {
        let facts = Facts { is_main: true, ..of(SCOPE) };
        assert_eq!(decide(&facts), Some(Counted::MainProcess));
        assert_eq!(decide(&of(SCOPE)), None);
    }

    #[test]
    fn only_a_low_limit_counts() {
        let limited = |processes, pids: &[u64]| {
            let pids = pids.iter().map(|&limit| (PathBuf::from("/c"), limit));
            decide(&Facts { processes, pids_max: pids.collect(), ..of(SCOPE) })
        };
        assert_eq!(limited(Some(FEW - 1), &[]), Some(Counted::ProcessLimit(FEW - 1)));
        assert_eq!(limited(Some(FEW), &[]), None);
        assert_eq!(limited(None, &[2048, FEW]), None);
        let pids = Counted::PidsMax { directory: "/c".into(), limit: 9 };
        assert_eq!(limited(None, &[2048, 9]), Some(pids));
    }
}
