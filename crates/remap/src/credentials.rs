//! Whether a process has the same credentials as this one.
//!
//! TiExec treats a process of other credentials as hostile: such a process must gain nothing by what TiExec does to
//! it, and must not be able to keep TiExec from its work.

use tiexec_core::proc::status::{self, Credentials};
use tiexec_sys::impersonate::Place;
use tiexec_sys::procfs::ProcDir;

/// Returns whether a thread has this process's credentials: all its user and group IDs, its groups, its
/// capabilities, and the user namespace in which these count. Returns false for a thread whose credentials cannot
/// be read.
pub(crate) fn are_ours(thread: &ProcDir) -> bool {
    let read = |directory: &ProcDir| {
        let credentials = status::credentials(&directory.read("status").ok()?)?;
        Some((credentials, directory.namespace("ns/user").ok()?))
    };
    let ours = ProcDir::this_process().ok().and_then(|this| read(&this));
    ours.is_some() && ours == read(thread)
}

/// Returns the credentials as a place to impersonate; `None` if they lack an effective user or group ID.
pub(crate) fn place(credentials: &Credentials) -> Option<Place> {
    let effective = |ids: &[u32]| ids.get(1).copied();
    let groups = credentials.groups.clone();
    Some(Place { uid: effective(&credentials.uids)?, gid: effective(&credentials.gids)?, groups })
}
