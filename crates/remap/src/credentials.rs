//! Whether a process has the same credentials as this one.
//!
//! TiExec treats a process of other credentials as hostile: such a process must gain nothing by what TiExec does to
//! it, and must not be able to keep TiExec from its work.

use tiexec_core::proc::status::{self, Credentials};
use tiexec_sys::impersonate::Place;
use tiexec_sys::procfs::ProcDir;

/// The credentials of a thread: all its user and group IDs, its groups, its capabilities, and the user namespace in which
/// these count.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct InNamespace {
    credentials: Credentials,
    namespace: u64,
}

impl InNamespace {
    /// Reads those of a thread; `None` if they cannot be read.
    fn of(thread: &ProcDir) -> Option<Self> {
        let credentials = status::credentials(&thread.read("status").ok()?)?;
        Some(Self { credentials, namespace: thread.namespace("ns/user").ok()? })
    }

    /// Reads this process's own.
    pub(crate) fn ours() -> Option<Self> {
        Self::of(&ProcDir::this_process().ok()?)
    }

    /// Returns whether a thread has these. Returns false for a thread whose credentials cannot be read.
    pub(crate) fn are_of(&self, thread: &ProcDir) -> bool {
        Self::of(thread).as_ref() == Some(self)
    }
}

/// Returns whether a thread has this process's credentials. Returns false for a thread whose credentials cannot be read.
pub(crate) fn are_ours(thread: &ProcDir) -> bool {
    InNamespace::ours().is_some_and(|ours| ours.are_of(thread))
}

/// Returns the credentials as a place to impersonate; `None` if they lack an effective user or group ID.
pub(crate) fn place(credentials: &Credentials) -> Option<Place> {
    let effective = |ids: &[u32]| ids.get(1).copied();
    let groups = credentials.groups.clone();
    Some(Place { uid: effective(&credentials.uids)?, gid: effective(&credentials.gids)?, groups })
}
