//! The parts that all watchers share. A watcher looks at a process more than once: the companion of a launch, `--settle`,
//! `--follow`, `--wait-exec`, the agent, and libtiexec.
//!
//! ```text
//!   due ──► look ──► outcome ──► next due
//! ```
//!
//! - `look`: one look at a process, by its own user if need be, and its outcome.
//! - [`may_pass`]: the failures after which a process is tried again.
//! - `copies`: the program in which copies were seen, to notice that somebody reverts it.

mod copies;
mod look;

pub(crate) use copies::Copies;
pub use look::Tell;
pub(crate) use look::{Outcome, has_worked, look, treat};

use tiexec_core::skip::{FailureKind, Reason};

/// Returns whether the obstacle may be gone a moment later, and a retry costs little. Returns false for a shortage of
/// huge pages, because each attempt makes the kernel search for them.
pub const fn may_pass(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Failed(
            FailureKind::Busy
                | FailureKind::AlreadyTraced
                | FailureKind::NoThread
                | FailureKind::SwitchFailed
                | FailureKind::ProcUnavailable
                | FailureKind::Deadline
                | FailureKind::ForkFailed
        )
    )
}
