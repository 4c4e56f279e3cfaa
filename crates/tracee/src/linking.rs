//! From the exec stop to the moment when `ld.so` is done: it has mapped and relocated all shared objects,
//! and no code of theirs has run.
//!
//! The program's only thread stops at each system call, and `ld.so` makes some for each object: about
//! 8 µs a stop. (A breakpoint at the entry point by perf_event_open(2) has no such stops, but the first
//! perf event of a machine makes the kernel wait for an RCU grace period, 10 to 30 ms:
//! `account_event` in `kernel/events/core.c`.) It is done when it has made the program's own RELRO
//! read-only, for it relocates the program last (`dl_main` in glibc's `elf/rtld.c`, `__dls3` in musl's
//! `ldso/dynlink.c`); without RELRO, when somebody else makes a call.
//!
//! Where it stops, its system call has ended. If this process dies before, it does not stop.

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_sys::process::{self, Wait};
use tiexec_sys::ptrace::{self, Resume, SyscallStop};
use tiexec_sys::{Errno, Pid, c};

use crate::arch::{self, Gadgets};
use crate::error::TraceError;
use crate::fault;
use crate::running::{self, Stopped};
use crate::session::Session;

/// A program whose `ld.so` makes more calls than this is not waited for any longer.
const MOST_CALLS: u32 = 20_000;
/// Nor is one of which others make so many, and none behind which it can be stopped.
const MOST_BY_OTHERS: u32 = 100;

/// Calls behind which a thread can be stopped: they wait for nothing, and end as they would have.
const PROMPT: [i64; 8] = [
    c::SYS_mmap,
    c::SYS_mprotect,
    c::SYS_munmap,
    c::SYS_madvise,
    c::SYS_brk,
    c::SYS_prlimit64,
    c::SYS_rt_sigaction,
    c::SYS_rt_sigprocmask,
];

/// A program on its way from the exec stop.
#[derive(Debug)]
pub struct LinkWatch {
    pid: Pid,
    gadgets: Gadgets,
    /// `ld.so`'s text.
    linker: AddrRange,
    /// Where the program's RELRO begins.
    relro: Option<RemoteAddr>,
}

impl LinkWatch {
    /// Watches for it in a program that will go home from `session`; `linker` is where `ld.so` is
    /// mapped, `relro` the first page of the program's own RELRO.
    pub fn new(session: &Session, linker: AddrRange, relro: Option<RemoteAddr>) -> Self {
        Self { pid: session.pid(), gadgets: session.gadgets(), linker, relro }
    }

    /// Waits until the program, which has been let run to its next system call, stops there. Takes as
    /// long as `ld.so` takes. `None` if the moment did not come: it is detached then.
    ///
    /// # Errors
    /// [`TraceError::Gone`] if it ends before, [`TraceError::LetGo`] if it execs before (it is
    /// detached then), [`TraceError::LostSight`] if another thread of it does.
    pub fn wait(self) -> Result<Option<Stopped>, TraceError> {
        let pid = self.pid;
        let (mut in_last, mut done, mut calls) = (false, false, 0);
        loop {
            let stop = process::wait_attentively(pid).map_err(|error| match error.errno {
                Errno::CHILD => TraceError::LostSight,
                _ => error.into(),
            })?;
            fault::at(fault::Point::Stop);
            let go_on = if done { Resume::Run } else { Resume::ToSyscall };
            let (how, signal) = match stop {
                Wait::Interrupted if done => return running::look(pid, false).map(Some),
                Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
                Wait::ExecEvent => {
                    ptrace::resume(pid, Resume::Detach, 0)?;
                    return Err(TraceError::LetGo);
                }
                Wait::SyscallStop => {
                    match ptrace::syscall_stop(pid)? {
                        SyscallStop::Entry { number, args, next } => {
                            let by_other = !self.linker.contains(RemoteAddr::new(next));
                            calls += if by_other { MOST_CALLS / MOST_BY_OTHERS } else { 1 };
                            in_last = self.is_last(number, args, RemoteAddr::new(next));
                        }
                        _ => done |= in_last,
                    }
                    if !done && calls > MOST_CALLS {
                        ptrace::resume(pid, Resume::Detach, 0)?;
                        return Ok(None);
                    }
                    (if done { Resume::Run } else { Resume::ToSyscall }, 0)
                }
                Wait::Signal(signal) => (go_on, signal),
                Wait::GroupStop(_) => (Resume::Listen, 0),
                Wait::Interrupted | Wait::Event(_) => (go_on, 0),
            };
            if done && how == Resume::Run {
                // Each stop uses an interruption up.
                ptrace::interrupt(pid)?;
            }
            ptrace::resume(pid, how, signal)?;
        }
    }

    /// Whether `ld.so` is done when this call has ended, which returns to `next`.
    fn is_last(&self, number: u64, args: [u64; 6], next: RemoteAddr) -> bool {
        let number = i64::try_from(number).unwrap_or(-1);
        let relro = self.relro.map(RemoteAddr::get);
        let is_ours = next == arch::after_call(self.gadgets);
        number == c::SYS_mprotect && Some(args[0]) == relro
            || PROMPT.contains(&number) && !is_ours && !self.linker.contains(next)
    }
}
