//! The failure type of all crates: why text stays unchanged.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tiexec_core::escape::AsShown;
use tiexec_core::proc::maps::Vma;
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_sys::{Errno, Pid, SysError};

use crate::error::{Denied, TraceError};

/// A reason to leave text unchanged, with the detail for the message. Another process receives it without the error that
/// caused it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The reason, as reports print it.
    pub reason: Reason,
    /// The exact event, with the words of the error; empty if the reason says everything.
    pub detail: String,
    /// The error that caused it.
    #[serde(skip)]
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Failure {
    /// Creates a failure for an event without an error.
    pub fn new(reason: impl Into<Reason>, detail: impl fmt::Display) -> Self {
        Self { reason: reason.into(), detail: detail.to_string(), source: None }
    }

    /// Creates a failure from an error.
    pub fn of<E: Error + Send + Sync + 'static>(
        reason: impl Into<Reason>,
    ) -> impl Fn(E) -> Self + Copy {
        let reason = reason.into();
        move |error| Self {
            detail: error.to_string(),
            source: Some(Arc::new(error)),
            ..Self::new(reason, "")
        }
    }

    /// Names the object or the action of the error.
    #[must_use]
    pub fn about(self, what: impl fmt::Display) -> Self {
        Self { detail: format!("{what}: {}", self.detail), ..self }
    }

    /// Creates a failure from an error in reading a running process's files.
    pub fn unreadable(error: SysError) -> Self {
        Self::of(match error.errno {
            Errno::SRCH | Errno::NOENT => FailureKind::TargetGone,
            Errno::PERM | Errno::ACCES => FailureKind::PtraceDenied,
            Errno::FBIG => FailureKind::Oversized,
            Errno::MFILE => FailureKind::FdLimit,
            _ => FailureKind::ProcUnavailable,
        })(error)
    }

    /// Creates a failure from an error in opening the memory of a running process. That takes the right to trace
    /// the process, so both refusals have the same reason (`mm_access` in `kernel/fork.c`,
    /// `yama_ptrace_access_check`).
    pub fn untraceable(error: SysError) -> Self {
        match error.errno {
            Errno::PERM | Errno::ACCES => Self::denied(error),
            _ => Self::unreadable(error),
        }
    }

    /// Creates a failure from an error in starting a helper: this process has no descriptor left, or may start no
    /// process.
    pub fn unstarted(error: SysError) -> Self {
        Self::of(match error.errno {
            Errno::MFILE => FailureKind::FdLimit,
            _ => FailureKind::ForkFailed,
        })(error)
    }

    /// Creates a failure from a refusal to be traced.
    pub fn denied(error: SysError) -> Self {
        Self::of(FailureKind::PtraceDenied)(Denied::new(error))
    }

    /// Replaces `PID` by the process's PID in the names of its files.
    #[must_use]
    pub fn of_process(self, pid: Pid) -> Self {
        let directory = format!("/proc/{}", pid.as_raw_nonzero());
        Self { detail: self.detail.replace("/proc/PID", &directory), ..self }
    }

    /// Creates a failure for a mapping that is gone or has changed.
    pub fn mapped_otherwise(vma: &Vma) -> Self {
        let what = format!("{} is mapped otherwise than before: {}", vma.range, vma.path().shown());
        Self::new(FailureKind::Changed, what)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        Self::of(match error {
            TraceError::Gone => FailureKind::TargetGone,
            TraceError::Changed => FailureKind::Changed,
            TraceError::Late => FailureKind::Deadline,
            TraceError::Foreign => FailureKind::RegisterState,
            TraceError::Sys(SysError { errno: Errno::MFILE, .. }) => FailureKind::FdLimit,
            _ => FailureKind::SwitchFailed,
        })(error)
    }
}

impl Failure {
    /// Returns whether the tracee lost the signal that ends a batch. The same work succeeds without batches.
    pub fn lost_a_batch(&self) -> bool {
        let error = self.source.as_deref().and_then(|source| source.downcast_ref());
        matches!(error, Some(TraceError::SignalDiscarded))
    }
}

impl PartialEq for Failure {
    /// Errors cannot be compared, but their text in the detail can.
    fn eq(&self, other: &Self) -> bool {
        (self.reason, &self.detail) == (other.reason, &other.detail)
    }
}

impl Eq for Failure {}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_gets_no_descriptor_meets_no_limit_on_processes() {
        let reason = |errno| Failure::unstarted(SysError { call: "pipe", errno }).reason;
        assert_eq!(reason(Errno::MFILE), FailureKind::FdLimit);
        assert_eq!(reason(Errno::AGAIN), FailureKind::ForkFailed);
    }

    #[test]
    fn a_failure_keeps_the_error_that_it_comes_from() {
        let error = SysError { call: "ptrace(PTRACE_SEIZE)", errno: Errno::PERM };
        let failure = Failure::of(FailureKind::SwitchFailed)(error).about("thread 5");
        let words =
            "switch_failed: thread 5: ptrace(PTRACE_SEIZE): operation not permitted (EPERM)";
        assert_eq!(failure.to_string(), words);
        let source = Error::source(&failure).and_then(|source| source.downcast_ref::<SysError>());
        assert_eq!(source, Some(&error));
    }
}
