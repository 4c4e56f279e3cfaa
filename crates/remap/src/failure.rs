//! Why a stage or a switch came to nothing.

use std::fmt;

use tiexec_core::skip::SkipReason;
use tiexec_sys::{Errno, SysError};
use tiexec_tracee::TraceError;

/// A reason to leave text where it is, with the detail for the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reason, as reports print it.
    pub reason: SkipReason,
    /// What exactly happened.
    pub detail: String,
}

impl Failure {
    /// Makes one.
    pub fn new(reason: SkipReason, detail: impl fmt::Display) -> Self {
        Self { reason, detail: detail.to_string() }
    }
}

impl Failure {
    /// Makes one of an error in reading about a running process: gone, not to be traced, or else.
    pub fn unreadable(error: SysError) -> Self {
        let reason = match error.errno {
            Errno::SRCH | Errno::NOENT => SkipReason::TargetGone,
            Errno::PERM | Errno::ACCES => SkipReason::PtraceDenied,
            _ => SkipReason::ProcUnavailable,
        };
        Self::new(reason, error)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        let reason = match error {
            TraceError::Gone => SkipReason::TargetGone,
            _ => SkipReason::SwitchFailed,
        };
        Self::new(reason, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}
