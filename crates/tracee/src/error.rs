//! Errors of tracing.

use std::time::Duration;

use thiserror::Error;
use tiexec_sys::process::Wait;
use tiexec_sys::{Errno, SysError, ptrace};

/// A refusal to be traced, with the setting that may have caused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{source}{}", knob(*.scope))]
pub(crate) struct Denied {
    source: SysError,
    /// Yama's scope, if it may be the cause.
    scope: Option<u32>,
}

impl Denied {
    pub(crate) fn new(source: SysError) -> Self {
        // ptrace(2) returns EPERM. Opening `/proc/PID/mem` needs the same right, and returns EACCES.
        let denied = matches!(source.errno, Errno::PERM | Errno::ACCES);
        Self { source, scope: ptrace::yama_scope().filter(|&scope| scope > 0 && denied) }
    }
}

fn knob(scope: Option<u32>) -> String {
    let Some(scope) = scope else { return String::new() };
    let whom = match scope {
        1 => "descendants, unless with CAP_SYS_PTRACE",
        2 => "with CAP_SYS_PTRACE only",
        _ => "nobody, until the next boot",
    };
    format!("; kernel.yama.ptrace_scope is {scope}: {whom}")
}

/// A failure of tracing, by what the caller can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TraceError {
    /// The tracee exited or was killed. Nothing is left to undo.
    #[error("the program ended")]
    Gone,
    /// The tracee was about to exec an image that would lose its privileges under a tracer. It was let go.
    #[error("left alone before a privileged program")]
    LetGo,
    /// A thread that is not traced exec'ed and took the tracee's place.
    #[error("lost sight of it: it exec'ed from another thread than its first")]
    LostSight,
    /// The awaited program had not come when the start was over. The tracee runs, and is detached when this process
    /// ends.
    #[error("not within {} s of the start; for longer: --settle=TIME", .0.as_secs())]
    StartOver(Duration),
    /// The thread executed another program, or its address space is not the one that was examined. Nothing was
    /// written to it, and it is let go.
    #[error("it executed another program meanwhile")]
    Changed,
    /// The tracee did not come to a stop in time.
    #[error("the thread did not stop in time")]
    Late,
    /// SIGCONT let the thread go on before it was traced. It runs, and is detached when the calling thread ends.
    #[error("SIGCONT let the thread go on")]
    Continued,
    /// The thread runs 32-bit code, or is in one of its system calls.
    #[error("it runs 32-bit code, or makes a system call as such")]
    Foreign,
    /// The thread may be in the middle of a restartable sequence, and the kernel does not show it.
    #[error(
        "this kernel does not tell whether a thread is inside a restartable sequence (rseq(2)); \
         Linux 5.13 and later do"
    )]
    RseqUntold,
    /// The kernel refused a request. The tracee's state is that of the last register set.
    #[error(transparent)]
    Sys(SysError),
    /// The signal that ends a batch was discarded before it stopped the tracee, and the tracee went home. The calls
    /// of the batch were made, and all releases were made.
    #[error("another thread had the kernel discard the signal that ends several calls")]
    SignalDiscarded,
    /// The tracee stopped where it should not have.
    #[error("unexpected stop {0:?}")]
    Unexpected(Wait),
}

impl From<SysError> for TraceError {
    /// ESRCH always means that the tracee died.
    fn from(error: SysError) -> Self {
        if error.errno == Errno::SRCH { Self::Gone } else { Self::Sys(error) }
    }
}

impl TraceError {
    /// As [`From`], for waiting. ECHILD means that another thread took the tracee's ID by an exec.
    pub(crate) fn waiting(error: SysError) -> Self {
        if error.errno == Errno::CHILD { Self::Gone } else { error.into() }
    }
}
