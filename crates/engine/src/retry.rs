//! The failures after which a process is tried again.

use tiexec_core::skip::SkipReason;

/// Whether the obstacle may be gone a moment later, and asking again takes little. A shortage of huge pages is none:
/// each attempt makes the kernel look for some.
pub const fn may_pass(reason: SkipReason) -> bool {
    matches!(
        reason,
        SkipReason::Busy
            | SkipReason::AlreadyTraced
            | SkipReason::NoThread
            | SkipReason::SwitchFailed
            | SkipReason::ProcUnavailable
            | SkipReason::Deadline
            | SkipReason::ForkFailed
    )
}
