//! The failures after which a process is tried again.

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
