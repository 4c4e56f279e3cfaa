//! The processor time of a canary's processes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tiexec_agent::canary::Member;
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
                Ok(Duration::from_secs_f64(now.since(before)? as f64 / second as f64))
            }
            _ => Ok(Duration::ZERO),
        }
    }
}

/// The processor time of processes at one moment, in clock ticks.
#[derive(Debug)]
pub(super) struct OfProcesses {
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
}

impl OfOne {
    fn total(self) -> u64 {
        self.own.saturating_add(self.children)
    }
}

impl OfProcesses {
    /// Reads the time of these processes, and of those of an earlier moment, also if they have ended and nobody has
    /// waited for them yet.
    pub(super) fn read(pids: &[Pid], before: Option<&Used>) -> Self {
        let at = process::ticks_since_boot();
        let earlier = match before {
            Some(Used::Processes(before)) => before.each.keys().copied().collect(),
            _ => Vec::new(),
        };
        let now = pids.iter().filter_map(|pid| {
            let text = ProcDir::of(*pid).and_then(|process| process.read("stat")).ok()?;
            Some((pid.as_raw_nonzero().get(), stat::start_time(&text).ok()?))
        });
        let mut members: Vec<Member> = now.chain(earlier).collect();
        // A parent is read before its children. So the time of a child that ends meanwhile is not counted twice.
        members.sort_by_key(|&(pid, begun)| (begun, pid));
        members.dedup();
        let each = members.into_iter().filter_map(|member| Some((member, time_of(member)?)));
        Self { at, each: each.collect() }
    }

    /// Returns the clock ticks since an earlier moment.
    fn since(&self, before: &Self) -> Result<u64, String> {
        self.must_contain_the_ended(before)?;
        // A process that began earlier has used time before it was selected.
        let joined = |member: &&Member| !before.each.contains_key(member) && member.1 < before.at;
        if let Some((pid, _)) = self.each.keys().find(joined) {
            return Err(format!(
                "process {pid} joined the selected processes, and its processor time before that is not known"
            ));
        }
        let total = |of: &Self| of.each.values().map(|one| one.total()).sum::<u64>();
        Ok(total(self).saturating_sub(total(before)))
    }

    /// Checks that the time of each ended process has become that of the children of another process: of its parent, or
    /// of the parent's parent if that has ended as well.
    fn must_contain_the_ended(&self, before: &Self) -> Result<(), String> {
        let by_pid: BTreeMap<i32, Member> = before.each.keys().map(|one| (one.0, *one)).collect();
        let mut inherited: BTreeMap<Member, (u64, i32)> = BTreeMap::new();
        let lost = |pid: i32| {
            Err(format!(
                "process {pid} has ended, and no selected process has waited for it, so its processor time is not known; \
                 fix: select a whole unit by --unit"
            ))
        };
        for (&(pid, _), ended) in before.each.iter().filter(|(one, _)| !self.each.contains_key(one))
        {
            let mut parent = ended.parent;
            // Each step leads to an older process, unless the number of a process was used again.
            let heir = (0..before.each.len()).find_map(|_| {
                let member = by_pid.get(&parent)?;
                parent = before.each[member].parent;
                self.each.contains_key(member).then_some(*member)
            });
            let Some(heir) = heir else { return lost(pid) };
            let (ticks, _) = inherited.entry(heir).or_insert((0, pid));
            *ticks = ticks.saturating_add(ended.total());
        }
        for (heir, (ticks, pid)) in inherited {
            if self.each[&heir].children.saturating_sub(before.each[&heir].children) < ticks {
                return lost(pid);
            }
        }
        Ok(())
    }
}

/// Returns the processor time of a process that lives, or that nobody has waited for.
fn time_of((pid, begun): Member) -> Option<OfOne> {
    let process = ProcDir::of(Pid::from_raw(pid)?).ok()?;
    let text = process.read("stat").ok()?;
    let own = stat::run_time(&text).ok()?;
    let children = stat::run_time_with_children(&text).ok()?.saturating_sub(own);
    let parent = i32::try_from(stat::parent(&text).ok()?).unwrap_or(0);
    (stat::start_time(&text).ok()? == begun).then_some(OfOne { parent, own, children })
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

    /// Each process by its PID, which is also its start time, its parent, its own time, and that of its children.
    fn at(at: u64, processes: &[(i32, i32, u64, u64)]) -> OfProcesses {
        let of = |&(pid, parent, own, children)| {
            ((pid, u64::from(pid as u32)), OfOne { parent, own, children })
        };
        OfProcesses { at, each: processes.iter().map(of).collect() }
    }

    #[test]
    fn time_of_ended_processes_counts_or_is_known_to_be_lost() {
        let before = at(100, &[(10, 1, 50, 0), (20, 10, 30, 7), (30, 20, 5, 0), (40, 1, 9, 0)]);
        let since = |now: &[(i32, i32, u64, u64)]| at(200, now).since(&before);
        let other = (40, 1, 10, 0);
        // All live, and one was forked.
        let now = [(10, 1, 51, 0), (20, 10, 30, 7), (30, 20, 6, 0), (150, 10, 4, 0), other];
        assert_eq!(since(&now), Ok(7));
        // The parent has waited for the ended child, and then the grandparent for it.
        assert_eq!(since(&[(10, 1, 50, 0), (20, 10, 31, 14), other]), Ok(4));
        assert_eq!(since(&[(10, 1, 50, 48), other]), Ok(7));
        // The parent ignores SIGCHLD: the kernel adds the time to nobody.
        let why = since(&[(10, 1, 60, 20), other]).unwrap_err();
        assert!(why.contains("fix: select a whole unit"), "{why}");
        // The parent of 40 is none of the processes.
        let why = since(
            &before
                .each
                .iter()
                .map(|(one, it)| (one.0, it.parent, it.own, it.children))
                .take(3)
                .collect::<Vec<_>>(),
        );
        assert!(why.as_ref().unwrap_err().starts_with("process 40 has ended"), "{why:?}");
        // The number of an ended process was used again.
        let mut now = at(200, &[(10, 1, 50, 0), (20, 10, 30, 7), (30, 20, 5, 0)]);
        now.each.insert((40, 150), OfOne { parent: 1, own: 1, children: 0 });
        assert!(now.since(&before).unwrap_err().starts_with("process 40 has ended"));
        // One that was there before was selected only now.
        let now = [(10, 1, 50, 0), (20, 10, 30, 7), (30, 20, 5, 0), (35, 1, 1000, 0), other];
        assert!(since(&now).unwrap_err().starts_with("process 35 joined"));
    }
}
