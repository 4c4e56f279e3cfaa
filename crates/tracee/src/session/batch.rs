//! Batches: several calls with one wait.
//!
//! A single call stops the tracee twice, at its entry and at its exit. After each stop both processes wait for a
//! processor, which takes milliseconds on a busy machine. The calls of a batch are frames of the chain instead,
//! before the frames of the releases, and the tracee makes them without a stop. It stops after the last one, where
//! a frame unblocks a signal that the tracer has sent it before:
//!
//! ```text
//!   call gadget ──► frame: call 2 ──► … ──► frame: call n ──► frame: unblocks ──► frame: undo 2 ──► … ──► home frame
//! ```
//!
//! The default action of this signal is to ignore it, and the process has no handler for it. If the tracer dies
//! meanwhile, the kernel therefore discards the signal, and the tracee goes home.
//!
//! A frame holds no result, so the caller reads what the calls have changed. A return from a signal makes the
//! kernel forget the remaining time of an interrupted call (`restart_block`), so a thread that was stopped in such
//! a call makes no batches.

use std::time::{Duration, Instant};

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::process::{self, Wait};
use tiexec_sys::ptrace::{self, Registers, Resume};
use tiexec_sys::{Pid, c};

use super::{MAX_RELEASES, Session, next_stop, resume_until};
use crate::arch::{self, Call, Interruption};
use crate::error::TraceError;
use crate::fault;
use crate::remote::SystemCall;
use crate::stopped::Stopped;

/// The most calls of one batch.
pub const MAX_BATCH: usize = 12;

/// The signals that may end a batch: both are ignored by default (signal(7)).
const CANDIDATES: [i32; 2] = [c::SIGURG, c::SIGWINCH];

/// The longest time for a batch, if the session has no limit.
const LONGEST: Duration = Duration::from_secs(10);
/// After this time TiExec checks whether the tracee is still in its frames.
const A_WHILE: Duration = Duration::from_millis(100);

/// The means to end a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    /// The process to which the tracee belongs.
    process: Pid,
    /// The signal that stops the tracee.
    signal: i32,
}

impl Ending {
    const fn bit(self) -> u64 {
        1 << (self.signal - 1)
    }
}

impl Session {
    /// Allows batches in a thread of `process` that was `stopped`, if nothing in the program can notice them.
    /// `caught` are the signals for which the process has handlers, one bit per signal.
    pub fn allow_batches(&mut self, process: Pid, stopped: &Stopped, caught: u64) {
        let seen = caught | self.home_mask;
        let unseen = |signal: &i32| seen >> (signal - 1) & 1 == 0;
        let remembers = stopped.interruption == Interruption::WithRemainingTime;
        // The tracer may be allowed to trace the process, but not to send it signals. Signal 0 finds out.
        if !arch::HAS_BATCHES
            || self.batch_room == 0
            || remembers
            || process::signal_thread(process, self.pid, 0).is_err()
        {
            return;
        }
        self.ending = CANDIDATES.into_iter().find(unseen).map(|signal| Ending { process, signal });
    }

    /// Returns whether [`batch`](Self::batch) may be called.
    pub const fn has_batches(&self) -> bool {
        self.ending.is_some()
    }

    /// Returns how many more releases the way home can hold.
    pub const fn free_releases(&self) -> usize {
        MAX_RELEASES - self.releases.len()
    }

    /// Makes the tracee make `calls`, at most [`MAX_BATCH`], one after the other. The caller must derive the
    /// results from their effects. Does nothing without batches.
    ///
    /// # Errors
    /// The tracee is gone, or on its way home.
    pub fn batch(&mut self, calls: &[SystemCall]) -> Result<(), TraceError> {
        debug_assert!(calls.iter().all(|call| self.permission.covers(&call.call)), "{calls:?}");
        let calls: Vec<Call> = calls.iter().map(|call| fault::in_batch(call.call)).collect();
        self.make_batch(&calls)
    }

    /// Makes calls or releases in one batch.
    fn make_batch(&mut self, calls: &[Call]) -> Result<(), TraceError> {
        let (Some(ending), Some((first, rest))) = (self.ending, calls.split_first()) else {
            return Ok(());
        };
        debug_assert!(calls.len() <= MAX_BATCH, "a batch holds {MAX_BATCH} calls");
        let begin = self.lay_batch(rest, ending.bit())?;
        self.install(arch::aim_at_call(&self.home, self.gadgets, first, begin))?;
        if self.signal_is_open {
            ptrace::set_signal_mask(self.pid, !0)?;
            fault::at(fault::Point::SetMask);
            self.signal_is_open = false;
        }
        process::signal_thread(ending.process, self.pid, ending.signal)?;
        self.signal_is_open = true;
        self.counts.calls += u32::try_from(calls.len()).unwrap_or(0);
        let ended = self.run_to_signal(ending.signal).and_then(|()| self.is_behind_the_batch());
        self.takes_signals = true;
        self.or_lose(ended)
    }

    /// Leaves the release registered last to the end of the session, where one batch makes all that are left.
    /// Without batches, or if too little room would be left for others, makes it now.
    ///
    /// # Errors
    /// As [`release_down_to`](Self::release_down_to).
    pub fn release_soon(&mut self) -> Result<(), TraceError> {
        /// Two files, a staged mapping and two claims.
        const ROOM: usize = 5;
        if self.has_batches() && self.free_releases() >= ROOM {
            return Ok(());
        }
        self.release_down_to(self.releases.len().saturating_sub(1))
    }

    /// Makes all releases now, except the first `kept`.
    ///
    /// # Errors
    /// The tracee is gone. The results of the releases do not matter.
    pub fn release_down_to(&mut self, kept: usize) -> Result<(), TraceError> {
        while self.releases.len() > kept {
            if !self.has_batches() {
                self.release_now()?;
                continue;
            }
            // Remove these releases from the way home before the tracee makes them.
            let mut due = self.releases.split_off(kept);
            due.reverse();
            self.make_batch(&due)?;
        }
        Ok(())
    }

    /// Resumes the tracee until the signal stops it. Another thread may have had the kernel discard the signal
    /// (sigaction(2) with `SIG_IGN`). The tracee then goes home, and a later check finds it there.
    fn run_to_signal(&self, signal: i32) -> Result<(), TraceError> {
        let until = self.until.unwrap_or_else(|| Instant::now() + LONGEST);
        let is_end = |stop: Wait| (stop == Wait::Signal(signal)).then_some(());
        let mut how = (Resume::Run, 0);
        loop {
            let soon = until.min(Instant::now() + A_WHILE);
            match resume_until(self.pid, how, self.while_stopped, Some(soon), is_end) {
                Err(TraceError::Late) if Instant::now() < until => {}
                ended => return ended,
            }
            ptrace::interrupt(self.pid)?;
            how.1 = match next_stop(self.pid, Some(until))? {
                Wait::Signal(end) if end == signal => return Ok(()),
                Wait::Signal(other) => other,
                Wait::Interrupted | Wait::GroupStop(_) => 0,
                Wait::Exited(_) | Wait::Killed(_) => return Err(TraceError::Gone),
                Wait::ExecEvent => return Err(TraceError::Changed),
                other => return Err(TraceError::Unexpected(other)),
            };
            let now = ptrace::registers(self.pid)?.map(|now| arch::stack_pointer(&now));
            if now.is_none_or(|now| now < self.scratch || now > self.apart) {
                return Err(TraceError::SignalDiscarded);
            }
        }
    }

    /// Makes sure that the tracee is stopped at the end of the batch. Another thread may have rewritten its frames.
    fn is_behind_the_batch(&self) -> Result<(), TraceError> {
        let chain = self.chain.unwrap_or(RemoteAddr::new(0));
        let expected = arch::aim_at_chain(&self.home, self.gadgets, chain);
        let at = |registers: &Registers| {
            (arch::program_counter(registers), arch::stack_pointer(registers))
        };
        let now = ptrace::registers(self.pid)?;
        if now.is_some_and(|now| at(&now) == at(&expected)) {
            return Ok(());
        }
        Err(TraceError::Unexpected(Wait::Interrupted))
    }
}
