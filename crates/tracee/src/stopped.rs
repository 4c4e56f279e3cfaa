//! A stopped thread, and the system call in which it was stopped.

use std::time::Instant;

use tiexec_sys::Pid;
use tiexec_sys::ptrace::Registers;

use crate::arch::{self, Call, Interruption};
use crate::syscall_manifest::ManifestEntry;
use crate::temporary_mask;

/// A stopped thread.
#[derive(Debug)]
pub struct Stopped {
    /// The thread.
    pub tid: Pid,
    /// When it stopped.
    pub since: Instant,
    /// True if a signal had stopped the process before. The process stays stopped then.
    pub group_stopped: bool,
    /// The registers with which the thread goes on after a session.
    pub registers: Registers,
    /// The registers with which the thread goes on if no session was begun. They do not depend on the process's
    /// memory.
    pub(crate) untouched: Registers,
    /// The effect of the stop on the system call that the thread was in.
    pub interruption: Interruption,
    /// True if the program will notice that its system call was interrupted.
    pub shown: bool,
    /// True if system calls of the thread go to a handler of its own (syscall user dispatch). TiExec must not make
    /// any there.
    pub dispatches: bool,
}

impl Stopped {
    /// Returns the call that the end of this session makes beyond those of every session.
    pub fn leaving_calls(&self) -> Option<ManifestEntry> {
        let (name, call) = self.refused_call()?;
        Some(ManifestEntry::exactly(name, &call))
    }

    /// If the thread is in a call that waits under a signal mask of its own, and the kernel must make it again,
    /// returns the same call [in a form that the kernel refuses](crate::temporary_mask).
    pub(crate) fn refused_call(&self) -> Option<(&'static str, Call)> {
        if self.interruption != Interruption::Again {
            return None;
        }
        let number = arch::call_number(&self.registers, self.interruption)?;
        temporary_mask::refused(&Call { number, args: arch::call_arguments(&self.registers) })
    }
}
