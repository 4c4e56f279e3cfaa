//! Somebody may revert a program that is followed: by hand, or for a comparison. The program is left alone from then on.
//!
//! Nobody tells the follower. But a program whose copies are gone, and which is still the same program, has been reverted.

use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::identity::Identity;

/// Where copies were seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copies {
    seen_in: Option<Identity>,
}

impl Copies {
    /// Returns whether the program that the process runs now had copies when it was last looked at.
    pub(super) fn were_seen(&self, pid: Pid) -> bool {
        self.seen_in.is_some() && self.seen_in == identity(pid)
    }

    /// Notes whether the program that the process runs now has copies.
    pub(super) fn note(&mut self, pid: Pid, has_copies: bool) {
        self.seen_in = identity(pid).filter(|_| has_copies);
    }
}

fn identity(pid: Pid) -> Option<Identity> {
    ProcDir::of(pid).ok().and_then(|process| Identity::of(&process))
}

/// A look at a process as one byte, which a child can exit with: the outcome, and this bit if there are copies now.
pub(super) const HAS_COPIES: u8 = 1 << 7;
