//! A thread that stands still, and what it stood in.

use std::time::Instant;

use tiexec_sys::Pid;
use tiexec_sys::ptrace::Registers;

use crate::arch::{self, Call, Interruption};
use crate::syscall_manifest::ManifestEntry;
use crate::temporary_mask;

/// A thread that stands still.
#[derive(Debug)]
pub struct Stopped {
    /// The thread.
    pub tid: Pid,
    /// Since when.
    pub since: Instant,
    /// True if the process was stopped by a signal already; it stays so.
    pub group_stopped: bool,
    /// The registers to leave it with once a session has changed them.
    pub registers: Registers,
    /// The registers to let it go with if no session was begun: nothing of the process's memory decides them.
    pub(crate) untouched: Registers,
    /// The effect of the stop on the system call that the thread was in.
    pub interruption: Interruption,
    /// True if the program will see that its system call was interrupted.
    pub shown: bool,
    /// True if its system calls come to a handler of its own: none may be made for us.
    pub dispatches: bool,
}

impl Stopped {
    /// Returns the call that leaving the thread makes beyond those of every session.
    pub fn leaving_calls(&self) -> Option<ManifestEntry> {
        let (name, call) = self.refused_call()?;
        Some(ManifestEntry::exactly(name, &call))
    }

    /// If it is in a call that waits under a signal mask of its own, and that the kernel is to make
    /// again: the same call [as the kernel refuses it](crate::temporary_mask).
    pub(crate) fn refused_call(&self) -> Option<(&'static str, Call)> {
        if self.interruption != Interruption::Again {
            return None;
        }
        let number = arch::call_number(&self.registers, self.interruption)?;
        temporary_mask::refused(&Call { number, args: arch::call_arguments(&self.registers) })
    }
}
