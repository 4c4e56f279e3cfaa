//! Why a process has no text that could be examined.

use std::fmt;

use tiexec_core::proc::stat;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid};

use crate::threads;

/// The reason, which is the same for every command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absence {
    /// No process has this PID.
    NoProcess,
    /// The process has ended, and its parent has not waited for it yet.
    Zombie,
    /// The process is ending: its threads have no memory any more, and it is not a zombie yet.
    Ending,
    /// The process is a kernel thread.
    KernelThread,
}

impl Absence {
    /// Returns why the process has no text. Returns `None` if the process runs a program or cannot be examined.
    pub fn of(pid: Pid) -> Option<Self> {
        let process = match ProcDir::of(pid) {
            Ok(process) => process,
            Err(error) => return (error.errno == Errno::NOENT).then_some(Self::NoProcess),
        };
        // A first thread that has ended stays a zombie while other threads run.
        if threads::first_alive(&process, pid).is_some() {
            return None;
        }
        match process.read("stat") {
            Ok(text) if stat::is_kernel_thread(&text).ok()? => Some(Self::KernelThread),
            Ok(text) if matches!(stat::state(&text).ok()?, b'Z' | b'X') => Some(Self::Zombie),
            Ok(_) => Some(Self::Ending),
            Err(error) => {
                matches!(error.errno, Errno::SRCH | Errno::NOENT).then_some(Self::NoProcess)
            }
        }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoProcess => "there is no such process",
            Self::Zombie => "it has ended, and waits for its parent (a zombie)",
            Self::Ending => "it is ending",
            Self::KernelThread => "it is a kernel thread: it has no text",
        })
    }
}
