//! From the exec stop to the program's entry point: where `ld.so` jumps once it has mapped and
//! relocated all shared objects.
//!
//! The program runs there by itself, as traced as it is: `ld.so` and the objects' init functions may
//! fork, begin threads, take signals, stop and continue, exec or end. Only the first thread is traced,
//! and it stops once more, at the entry point; if this process dies before, it does not.

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::breakpoint::Breakpoint;
use tiexec_sys::process::{self, Wait};
use tiexec_sys::ptrace::{self, Resume};
use tiexec_sys::{Errno, Pid, SysError};

use crate::error::TraceError;
use crate::fault;
use crate::running::{self, Stopped};
use crate::session::Session;

/// A stopped program that is to stop at its entry point.
#[derive(Debug)]
#[must_use = "it is watched as long as this lives"]
pub struct EntryWatch {
    pid: Pid,
    breakpoint: Breakpoint,
}

impl EntryWatch {
    /// Begins to watch for it, of a program that will go home from `session`.
    ///
    /// # Errors
    /// As [`Breakpoint::set`]; the program is as it was.
    pub fn begin(session: &Session, entry: RemoteAddr) -> Result<Self, SysError> {
        let pid = session.pid();
        Ok(Self { pid, breakpoint: Breakpoint::set(pid, entry, session.home_mask())? })
    }

    /// Waits until the program, which has been let run, stops at its entry point, or right behind it
    /// if its init functions have blocked the signal that tells of it. Takes as long as they take.
    ///
    /// # Errors
    /// [`TraceError::Gone`] if it ends before, [`TraceError::LetGo`] if it execs before (it is
    /// detached then), [`TraceError::LostSight`] if another thread of it does.
    pub fn wait(self) -> Result<Stopped, TraceError> {
        let Self { pid, breakpoint } = self;
        let mut reached = false;
        loop {
            let stop = process::wait_a_while(pid).map_err(|error| match error.errno {
                Errno::CHILD => TraceError::LostSight,
                _ => error.into(),
            })?;
            if !reached && breakpoint.is_reached() {
                reached = true;
                ptrace::interrupt(pid)?;
            }
            let Some(stop) = stop else { continue };
            fault::at(fault::Point::Stop);
            let (how, signal) = match stop {
                Wait::Interrupted if reached => return running::look(pid, false),
                Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
                Wait::ExecEvent => {
                    ptrace::resume(pid, Resume::Detach, 0)?;
                    return Err(TraceError::LetGo);
                }
                Wait::Signal(signal) => {
                    let tells = breakpoint.told_by(signal, ptrace::signal_code(pid)?);
                    (Resume::Run, if tells { 0 } else { signal })
                }
                Wait::GroupStop(_) => (Resume::Listen, 0),
                Wait::Interrupted | Wait::Event(_) | Wait::SyscallStop => (Resume::Run, 0),
            };
            if reached && how == Resume::Run {
                // Each stop uses an interruption up.
                ptrace::interrupt(pid)?;
            }
            ptrace::resume(pid, how, signal)?;
        }
    }
}
