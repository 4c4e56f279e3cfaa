//! The failures after which a process is tried again.

use tiexec_core::skip::{FailureKind, Reason};

/// Returns whether the obstacle may be gone a moment later, and a retry costs little. A shortage of huge pages is no
/// such obstacle: each attempt makes the kernel search for huge pages.
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
