//! The processor time of a canary's processes.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tiexec_agent::canary::Member;
use tiexec_core::proc::cgroup::{CgroupFiles, cpu_cgroup};
use tiexec_core::proc::stat;
use tiexec_sys::procfs::{ProcDir, every_stat};
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
    /// Uses the cgroup that contains exactly the processes; without such a cgroup, uses the processes themselves. The
    /// cgroup of `unit` counts as the processes' own, even if it contains other processes.
    pub(super) fn of(pids: &[Pid], unit: Option<&str>) -> Self {
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
            // Units of several users have one name and no cgroup in common but `user.slice`.
            let is_in = |unit: &str| below.iter().any(|name| name == unit);
            let is_own = unit.is_some_and(is_in) || holds_only(&directory, pids, &mut 0);
            let found = Self::Cgroup { directory, unified: first.unified };
            // The root cgroup contains all processes of the machine.
            (!below.as_os_str().is_empty() && is_own && found.of_cgroup().is_some())
                .then_some(found)
        });
        found.unwrap_or(Self::Processes)
    }

    /// Returns the time of the cgroup so far; `None` if it cannot be read, or if there is no cgroup.
    pub(super) fn of_cgroup(&self) -> Option<Duration> {
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
            Self::Processes => None,
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

/// The processor time at one moment.
#[derive(Debug)]
pub(super) enum Used {
    Cgroup(Duration),
    Processes(OfProcesses),
}

impl Used {
    /// Returns the time since an earlier moment.
    ///
    /// # Errors
    /// A process has ended, and the time of the others does not contain its time; or its earlier time is not known.
    pub(super) fn since(&self, before: &Self) -> Result<Duration, String> {
        match (self, before) {
            (Self::Cgroup(now), Self::Cgroup(before)) => Ok(now.saturating_sub(*before)),
            (Self::Processes(now), Self::Processes(before)) => {
                let second = process::ticks(Duration::from_secs(1)).max(1);
                Ok(Duration::from_secs_f64(
                    now.since(before, ignores_children)? as f64 / second as f64,
                ))
            }
            _ => Ok(Duration::ZERO),
        }
    }
}

/// The processor time of processes at one moment, in clock ticks.
#[derive(Debug)]
pub(super) struct OfProcesses {
    /// A moment before the processes were listed.
    at: u64,
    each: BTreeMap<Member, OfOne>,
}

/// The processor time of one process.
#[derive(Clone, Copy, Debug)]
struct OfOne {
    parent: i32,
    own: u64,
    /// Of the children that it has waited for, which have ended.
    children: u64,
    /// False for a process that is only the child of a selected one.
    is_selected: bool,
}

impl OfOne {
    fn total(self) -> u64 {
        self.own.saturating_add(self.children)
    }
}

impl OfProcesses {
    /// Reads the time of these processes, of their children, and of the processes of an earlier moment, also if they have
    /// ended and nobody has waited for them yet. The processes were listed after `at`.
    pub(super) fn read(pids: &[Pid], at: u64, before: Option<&Used>) -> Self {
        let selected: BTreeSet<i32> = pids.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        let earlier = match before {
            Some(Used::Processes(before)) => Some(&before.each),
            _ => None,
        };
        let mut each = BTreeMap::new();
        every_stat(|pid, text| {
            let parent = stat::parent(text).ok().and_then(|parent| i32::try_from(parent).ok());
            let (Some(parent), Ok(begun), Ok(own), Ok(total)) = (
                parent,
                stat::start_time(text),
                stat::run_time(text),
                stat::run_time_with_children(text),
            ) else {
                return;
            };
            let known = earlier.and_then(|earlier| earlier.get(&(pid, begun)));
            let is_selected = selected.contains(&pid) || known.is_some_and(|one| one.is_selected);
            if is_selected || known.is_some() || selected.contains(&parent) {
                let children = total.saturating_sub(own);
                each.insert((pid, begun), OfOne { parent, own, children, is_selected });
            }
        });
        Self { at, each }
    }

    /// Returns the clock ticks since an earlier moment. `ignores` says whether a process ignores SIGCHLD: the kernel adds
    /// the time of its children to nobody.
    fn since(&self, before: &Self, ignores: impl Fn(i32) -> bool) -> Result<u64, String> {
        let mut sum = 0_i128;
        for (member, now) in self.each.iter().filter(|(_, now)| now.is_selected) {
            let earlier = before.each.get(member).map(|one| one.total());
            if earlier.is_none() && member.1 < before.at {
                return Err(format!(
                    "process {} joined the selected processes, and its processor time before that is not known",
                    member.0
                ));
            }
            sum += i128::from(now.total()) - i128::from(earlier.unwrap_or(0));
        }
        // The growth of the time of each process's children, which contains the time of those that have ended.
        let heir = |pid: i32| {
            let of = |(one, now): (&Member, &OfOne)| {
                let earlier = before.each.get(one)?.children;
                Some(now.children.saturating_sub(earlier))
            };
            let mut all = self.each.range((pid, 0)..=(pid, u64::MAX));
            all.find(|(_, now)| now.is_selected).and_then(of).filter(|_| !ignores(pid))
        };
        let ended = || before.each.iter().filter(|(one, _)| !self.each.contains_key(one));
        let mut left: BTreeMap<i32, u64> = BTreeMap::new();
        let mut inherits = |parent: i32, ticks: u64| {
            let left = match left.entry(parent) {
                Entry::Occupied(left) => left.into_mut(),
                Entry::Vacant(new) => new.insert(heir(parent)?),
            };
            *left = left.checked_sub(ticks)?;
            Some(i128::from(ticks))
        };
        for ((pid, _), one) in ended().filter(|(_, one)| one.is_selected) {
            sum -= inherits(one.parent, one.total()).ok_or_else(|| {
                format!(
                    "process {pid} has ended, and no selected process has waited for it, so its processor time is not \
                     known; fix: name a whole unit by --unit"
                )
            })?;
        }
        // The time that they had used before does not belong to the slice in which they ended.
        for (_, one) in ended().filter(|(_, one)| !one.is_selected) {
            sum -= inherits(one.parent, one.total()).unwrap_or(0);
        }
        Ok(u64::try_from(sum).unwrap_or(0))
    }
}

/// Returns whether the process ignores SIGCHLD.
fn ignores_children(pid: i32) -> bool {
    let process = Pid::from_raw(pid).and_then(|pid| ProcDir::of(pid).ok());
    let status = process.and_then(|process| process.status().ok());
    status.is_some_and(|status| status.ignored >> (Signal::CHILD.as_raw() - 1) & 1 == 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each selected process by its PID, which is also its start time, its parent, its own time, and that of its children.
    fn at(at: u64, processes: &[(i32, i32, u64, u64)]) -> OfProcesses {
        let of = |&(pid, parent, own, children): &(i32, i32, u64, u64)| {
            (
                (pid, u64::from(pid.unsigned_abs())),
                OfOne { parent, own, children, is_selected: true },
            )
        };
        OfProcesses { at, each: processes.iter().map(of).collect() }
    }

    fn lost(since: Result<u64, String>, pid: i32) {
        let why = since.unwrap_err();
        assert!(why.starts_with(&format!("process {pid} has ended, and no ")), "{why}");
    }

    #[test]
    fn time_of_ended_processes_counts_or_is_known_to_be_lost() {
        let (parent, child, other) = ((10, 1, 50, 0), (20, 10, 30, 7), (40, 1, 9, 0));
        let before = at(100, &[parent, child, (30, 20, 5, 0), other]);
        let waits = |_| false;
        let since = |now: &[(i32, i32, u64, u64)]| at(200, now).since(&before, waits);
        // All live, and one was forked.
        let now = [(10, 1, 51, 0), child, (30, 20, 6, 0), (150, 10, 4, 0), other];
        assert_eq!(since(&now), Ok(6));
        // The parent has waited for it.
        let now = [parent, (20, 10, 31, 14), other];
        assert_eq!(since(&now), Ok(3));
        // The parent ignores SIGCHLD: the kernel adds the time to nobody.
        lost(at(200, &now).since(&before, |pid| pid == 20), 30);
        lost(since(&[parent, (20, 10, 90, 7), other]), 30);
        // Parent and child have ended. The kernel gives the child to another process, if it ended last.
        lost(since(&[(10, 1, 50, 48), other]), 30);
        // The parent is none of the processes.
        lost(since(&[parent, child, (30, 20, 5, 0)]), 40);
        // The number of an ended process was used again.
        let mut now = at(200, &[parent, child, (30, 20, 5, 0)]);
        now.each.insert((40, 150), OfOne { parent: 1, own: 1, children: 0, is_selected: true });
        lost(now.since(&before, waits), 40);
        // One that was there before was selected only now.
        let now = [parent, child, (30, 20, 5, 0), (35, 1, 1000, 0), other];
        assert!(since(&now).unwrap_err().starts_with("process 35 joined"));
    }

    /// A parent that waits late for an ended child, or for one that is not selected, inherits time of earlier slices.
    #[test]
    fn earlier_time_of_children_that_are_not_selected_does_not_count() {
        let with = |is_selected, processes| {
            let mut of = at(100, processes);
            of.each.insert((30, 30), OfOne { parent: 10, own: 5000, children: 0, is_selected });
            of
        };
        let before = with(false, &[(10, 1, 50, 0)]);
        let waits = |_| false;
        assert_eq!(at(200, &[(10, 1, 51, 5003)]).since(&before, waits), Ok(4));
        // The kernel has added it to nobody.
        assert_eq!(at(200, &[(10, 1, 51, 0)]).since(&before, waits), Ok(1));
        assert_eq!(at(200, &[(10, 1, 51, 3)]).since(&before, |_| true), Ok(4));
        // It lives, or runs the selected program by now.
        assert_eq!(with(false, &[(10, 1, 51, 3)]).since(&before, waits), Ok(4));
        assert_eq!(with(true, &[(10, 1, 51, 3)]).since(&before, waits), Ok(4));
    }
}
