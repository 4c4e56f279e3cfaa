//! The one failure: why text is left where it is.

use std::fmt;

use tiexec_core::escape::AsShown;
use tiexec_core::proc::maps::Vma;
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_sys::{Errno, Pid, SysError};

use crate::error::{TraceError, refusal};

/// A reason to leave text where it is, with the detail for the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reason, as reports print it.
    pub reason: Reason,
    /// The exact event; empty if the reason says everything.
    pub detail: String,
}

impl Failure {
    /// Makes one.
    pub fn new(reason: impl Into<Reason>, detail: impl fmt::Display) -> Self {
        Self { reason: reason.into(), detail: detail.to_string() }
    }
}

impl Failure {
    /// Makes one of an error in reading about a running process: gone, not to be traced, or else.
    pub fn unreadable(error: SysError) -> Self {
        let reason = match error.errno {
            Errno::SRCH | Errno::NOENT => FailureKind::TargetGone,
            Errno::PERM | Errno::ACCES => FailureKind::PtraceDenied,
            Errno::FBIG => FailureKind::Oversized,
            Errno::MFILE => FailureKind::FdLimit,
            _ => FailureKind::ProcUnavailable,
        };
        Self::new(reason, error)
    }

    /// Makes one of an error in opening the memory of a running process. That takes the right to trace the process, so
    /// both refusals have the same name (`mm_access` in `kernel/fork.c`, `yama_ptrace_access_check`).
    pub fn untraceable(error: SysError) -> Self {
        match Self::unreadable(error) {
            denied if denied.reason == FailureKind::PtraceDenied => {
                Self { detail: refusal(&error), ..denied }
            }
            other => other,
        }
    }
}

impl Failure {
    /// Puts the process in the place of `PID` in the names of its files.
    #[must_use]
    pub fn of_process(self, pid: Pid) -> Self {
        let directory = format!("/proc/{}", pid.as_raw_nonzero());
        Self { detail: self.detail.replace("/proc/PID", &directory), ..self }
    }

    /// Makes one of a mapping that is gone, or another one.
    pub fn mapped_otherwise(vma: &Vma) -> Self {
        let what = format!("{} is mapped otherwise than before: {}", vma.range, vma.path().shown());
        Self::new(FailureKind::Changed, what)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        let reason = match error {
            TraceError::Gone => FailureKind::TargetGone,
            TraceError::Changed => FailureKind::Changed,
            TraceError::Late => FailureKind::Deadline,
            TraceError::Foreign => FailureKind::RegisterState,
            TraceError::Sys(SysError { errno: Errno::MFILE, .. }) => FailureKind::FdLimit,
            _ => FailureKind::SwitchFailed,
        };
        Self::new(reason, error)
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}
