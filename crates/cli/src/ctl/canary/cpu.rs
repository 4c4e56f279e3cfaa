//! The processor time of a canary's processes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tiexec_core::proc::cgroup::{CgroupFiles, cpu_cgroup};
use tiexec_core::proc::stat;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process};

/// The source of the processor time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CpuTime {
    /// A cgroup, where ended processes count too.
    Cgroup {
        /// Its directory.
        directory: PathBuf,
        /// True for cgroup v2.
        unified: bool,
    },
    /// The processes, and the children that they have waited for.
    Processes,
}

impl CpuTime {
    /// Uses the cgroup that contains exactly the processes; without such a cgroup, uses the processes themselves. With
    /// `is_unit` the cgroup counts as the processes' own, even if it contains other processes.
    pub(super) fn of(pids: &[Pid], is_unit: bool) -> Self {
        let mountinfo = ProcDir::this_process().and_then(|this| this.read("mountinfo"));
        let mountinfo = mountinfo.unwrap_or_default();
        let of = |pid: &Pid| {
            let cgroup = ProcDir::of(*pid).and_then(|process| process.read("cgroup")).ok()?;
            cpu_cgroup(&cgroup, &mountinfo)
        };
        let places: Option<Vec<CgroupFiles>> = pids.iter().map(of).collect();
        let found = places.and_then(|places| {
            let mut below = PathBuf::from(OsStr::from_bytes(&places.first()?.below));
            for place in &places {
                let path = Path::new(OsStr::from_bytes(&place.below));
                while !path.starts_with(&below) {
                    below.pop();
                }
            }
            let first = places.first()?;
            let directory = Path::new(OsStr::from_bytes(&first.mount)).join(&below);
            let is_own = is_unit || holds_only(&directory, pids, &mut 0);
            let found = Self::Cgroup { directory, unified: first.unified };
            // The root cgroup contains all processes of the machine.
            (!below.as_os_str().is_empty() && is_own && found.total(pids).is_some())
                .then_some(found)
        });
        found.unwrap_or(Self::Processes)
    }

    /// Returns the time so far; `None` if it cannot be read.
    pub(super) fn total(&self, pids: &[Pid]) -> Option<Duration> {
        match self {
            Self::Cgroup { directory, unified: true } => {
                let text = std::fs::read_to_string(directory.join("cpu.stat")).ok()?;
                let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                Some(Duration::from_micros(micros.trim().parse().ok()?))
            }
            Self::Cgroup { directory, unified: false } => {
                let text = std::fs::read_to_string(directory.join("cpuacct.usage")).ok()?;
                Some(Duration::from_nanos(text.trim().parse().ok()?))
            }
            Self::Processes => {
                let of = |pid: &Pid| {
                    let text = ProcDir::of(*pid).and_then(|process| process.read("stat")).ok()?;
                    stat::run_time_with_children(&text).ok()
                };
                let ticks: u64 = pids.iter().filter_map(of).sum();
                let second = process::ticks(Duration::from_secs(1)).max(1);
                Some(Duration::from_secs_f64(ticks as f64 / second as f64))
            }
        }
    }

    /// Returns the source in words.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Cgroup { .. } => "cgroup",
            Self::Processes => "processes",
        }
    }
}

/// Most cgroups that are searched.
const MOST: u32 = 1000;

/// Returns whether a cgroup and its descendants contain no other processes than these.
fn holds_only(directory: &Path, pids: &[Pid], looked: &mut u32) -> bool {
    *looked += 1;
    let Ok(text) = std::fs::read_to_string(directory.join("cgroup.procs")) else { return false };
    let known = |line: &str| {
        let pid = line.parse().ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| pids.contains(&pid))
    };
    if *looked > MOST || !text.lines().all(known) {
        return false;
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.map(|entry| entry.path()).all(|path| holds_only(&path, pids, looked))
}
