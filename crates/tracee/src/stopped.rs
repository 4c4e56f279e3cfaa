//! A stopped thread, and the system call in which it was stopped.

use std::time::{Duration, Instant};

use tiexec_sys::Pid;
use tiexec_sys::address_space::Memory;
use tiexec_sys::ptrace::Registers;

use crate::arch::{self, Call, Interruption};
use crate::interrupted;
use crate::syscall_manifest::ManifestEntry;
use crate::temporary_mask;

/// A stopped thread.
#[derive(Debug)]
pub struct Stopped {
    /// The thread.
    pub tid: Pid,
    /// When it stopped.
    pub since: Instant,
    /// How often it has stopped for TiExec, this time included. Each stop is one sleep more.
    pub stops: u64,
    /// True if a signal had stopped the process before. The process stays stopped then.
    pub group_stopped: bool,
    /// The registers with which the thread goes on after a session.
    pub registers: Registers,
    /// The registers with which the thread goes on if no session was begun. They do not depend on the process's
    /// memory.
    pub(crate) untouched: Registers,
    /// The effect of the stop on the system call that the thread was in.
    pub interruption: Interruption,
    /// True if the program may notice that its system call was interrupted.
    pub shown: bool,
    /// The number of the thread's system call, if the kernel makes it again for TiExec and its timeout begins again.
    pub waits_again: Option<i64>,
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
        (self.interruption == Interruption::Again)
            .then(|| temporary_mask::refused(&self.call()?))
            .flatten()
    }

    /// Ends the wait that would [begin again](Self::waits_again) as if its timeout were over.
    pub fn time_out(&mut self) {
        let Some(call) = self.waits_again.take() else { return };
        let result = interrupted::timed_out(call).cast_unsigned();
        self.registers = arch::with_result(&arch::call_ended(&self.registers), result);
        // A thread in a system call is in no restartable sequence, so both register sets are the same.
        self.untouched = self.registers;
        self.interruption = Interruption::None;
    }

    /// Returns the timeout of the wait that [begins again](Self::waits_again); `None` if it cannot be read.
    pub fn timeout(&self, memory: &Memory) -> Option<Duration> {
        self.waits_again?;
        let call = self.call()?;
        interrupted::timeout(memory, call.number, &call.args)
    }

    /// Returns the number of the call that [is made again](Self::waits_again), if TiExec watches the thread until it sleeps in
    /// it. While a signal stops the process, it does not.
    pub(crate) fn watched(&self) -> Option<i64> {
        self.waits_again.filter(|_| !self.group_stopped)
    }

    /// Returns the number of the call in which the thread was stopped.
    pub fn call_number(&self) -> Option<i64> {
        self.call().map(|call| call.number)
    }

    /// Returns the call in which the thread was stopped.
    pub(crate) fn call(&self) -> Option<Call> {
        let number = arch::call_number(&self.registers, self.interruption)?;
        Some(Call { number, args: arch::call_arguments(&self.registers) })
    }
}
