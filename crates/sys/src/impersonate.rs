//! Taking another process's place: this process gets its user and groups, and loses all rights.
//!
//! A process of TiExec takes the place in order to do only what the other process's user may do. That user must gain
//! nothing by it: the user must not be able to change a descriptor, the memory or a limit of this process.

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

use crate::error::SysError;
use crate::process;

/// The process whose place this process takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// The ids of the user and the group `nobody`, on every Linux.
pub const NOBODY: u32 = 65534;

/// Returns a group for the saved group id of a process of group `gid`: another group than `gid`. Then the ids of a
/// process of the same user never all equal those of this process, so that process may not change this one's limits
/// (`check_prlimit_permission` in `kernel/sys.c`). The group is [`NOBODY`], unless `gid` is `NOBODY` itself or
/// `gid_map` (user_namespaces(7)) does not map it.
fn other_group(gid: u32, gid_map: &str) -> u32 {
    let ranges = || {
        gid_map.lines().filter_map(|line| {
            let mut numbers = line.split_ascii_whitespace().map(|word| word.parse::<u32>().ok());
            let (first, _outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some(first..first.checked_add(count)?)
        })
    };
    // An unreadable map counts as the map of all groups.
    let known = gid_map.is_empty() || ranges().any(|range| range.contains(&NOBODY));
    if known && gid != NOBODY {
        return NOBODY;
    }
    let ends = ranges().flat_map(|range| [range.start, range.end.saturating_sub(1)]);
    ends.filter(|&id| id != gid).max().unwrap_or(NOBODY)
}

/// Gives up all rights and takes the place of another process, for good. This process must have one thread.
///
/// Afterwards this process has no capability and can gain none (`PR_SET_NO_NEW_PRIVS`). Without CAP_SYS_PTRACE nobody
/// can trace it or read its memory (`PR_SET_DUMPABLE` 0). The process ends with its parent.
///
/// # Errors
/// EPERM without CAP_SETUID, CAP_SETGID. Then this process must end, because it may have only a part of the ids.
pub fn take(place: &Place) -> Result<(), SysError> {
    let map = std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    take_with(place, other_group(place.gid, &map))
}

/// As [`take`], with all ids of that process. Afterwards this process is one of the user's own processes, and the user
/// may change its limits.
///
/// # Errors
/// As [`take`].
pub fn become_user(place: &Place) -> Result<(), SysError> {
    take_with(place, place.gid)
}

fn take_with(place: &Place, saved: u32) -> Result<(), SysError> {
    let groups: Vec<Gid> = place.groups.iter().map(|&id| Gid::from_raw(id)).collect();
    rustix::thread::set_thread_groups(&groups).map_err(SysError::of("setgroups"))?;
    let gid = Gid::from_raw(place.gid);
    rustix::thread::set_thread_res_gid(gid, gid, Gid::from_raw(saved))
        .map_err(SysError::of("setresgid"))?;
    let uid = Uid::from_raw(place.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(SysError::of("setresuid"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).map_err(SysError::of("capset"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(SysError::of("prctl(PR_SET_DUMPABLE)"))?;
    rustix::thread::set_no_new_privs(true).map_err(SysError::of("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    process::end_with_parent(Some(Signal::KILL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_group_is_another_that_the_namespace_has() {
        let all = "         0          0 4294967295\n";
        assert_eq!(other_group(2001, all), NOBODY);
        assert_eq!(other_group(NOBODY, all), 4_294_967_294);
        assert_eq!(other_group(2001, ""), NOBODY);
        let few = "0 2001 1\n1 100000 2000\n";
        assert_eq!(other_group(1000, few), 2000);
        assert_eq!(other_group(0, few), 2000);
        assert_eq!(other_group(2000, few), 1);
    }
}
