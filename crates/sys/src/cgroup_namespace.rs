//! The cgroup namespace, which decides what the paths of cgroups look like (cgroup_namespaces(7)).
//!
//! A process in a container sees the cgroups of other containers by paths that begin with `/..`. Such a path names no
//! directory, even if the machine's whole hierarchy is mounted. So a process there can charge nothing to such a cgroup,
//! and read no limit of it.

use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Pid;
use crate::error::SysError;
use crate::procfs::ProcDir;

/// The inode number of the initial cgroup namespace (`PROC_CGROUP_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL: u64 = 0xEFFF_FFFB;

/// `setns(2)` — makes this thread see cgroups as process 1 does. Nothing else changes.
///
/// # Errors
/// EACCES without CAP_SYS_PTRACE; EPERM without CAP_SYS_ADMIN.
pub fn enter_that_of_init() -> Result<(), SysError> {
    let own = ProcDir::this_process()?.namespace("ns/cgroup")?;
    if own == INITIAL {
        return Ok(());
    }
    let init = ProcDir::of(Pid::INIT)?;
    if init.namespace("ns/cgroup")? == own {
        return Ok(());
    }
    let file = init.open_file("ns/cgroup", false)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::ControlGroup))
        .map_err(SysError::of("setns(CLONE_NEWCGROUP)"))
}
