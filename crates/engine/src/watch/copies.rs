//! Somebody may revert a program that is followed: by hand, or for a comparison. The follower leaves the program alone
//! from then on.
//!
//! No record reports a revert. But if a program's copies are gone, and it is still the same program, then somebody has
//! reverted it.

use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::identity::Identity;

/// The program in which copies were seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    seen_in: Option<Identity>,
}

impl Copies {
    /// Returns whether the program that the process runs now had copies at the last look.
    pub(crate) fn were_seen(&self, pid: Pid) -> bool {
        self.seen_in.is_some() && self.seen_in == identity(pid)
    }

    /// Notes whether the program that the process runs now has copies.
    pub(crate) fn note(&mut self, pid: Pid, has_copies: bool) {
        self.seen_in = identity(pid).filter(|_| has_copies);
    }
}

fn identity(pid: Pid) -> Option<Identity> {
    ProcDir::of(pid).ok().and_then(|process| Identity::of(&process))
}
