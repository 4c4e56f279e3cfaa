//! Haste: on a busy machine each of a stop's steps would wait for a processor.
//!
//! For the time of the stop, this process and the stopped thread are scheduled before all normal ones
//! (`SCHED_FIFO`), where that is allowed. The way home gives the thread its own scheduling back, so it
//! has it also if this process dies.

use tiexec_core::seccomp::Value;
use tiexec_sys::process::{self, Scheduling};
use tiexec_sys::{Pid, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::foreseen::{Foreseen, constant};
use tiexec_tracee::running::Stopped;
use tiexec_tracee::session::{Counts, Session};

/// The lowest real-time priority: before every normal thread, behind every other real-time one.
const FIRST: Scheduling = Scheduling::First(1);

/// The thread's way back, which it makes itself if this process dies.
const BACK: Foreseen = Foreseen::optional(
    "sched_setscheduler(SCHED_OTHER)",
    c::SYS_sched_setscheduler,
    [Value::Is(0), constant(c::SCHED_OTHER), Value::Any],
);

/// What haste may have the thread call.
pub(super) const CALLS: [Foreseen; 1] = [BACK];

/// This process in haste, until it is dropped; perhaps a thread with it.
#[derive(Debug)]
pub(super) struct Haste {
    allowed: bool,
    with_thread: bool,
}

impl Haste {
    /// Schedules this process first, if it is scheduled normally and may be.
    pub(super) fn begin() -> Self {
        let allowed =
            process::is_scheduled_normally(None) && process::schedule(None, FIRST).is_ok();
        Self { allowed, with_thread: false }
    }

    /// Schedules the stopped thread first too, if it is scheduled normally and could get back.
    ///
    /// # Errors
    /// The thread is gone.
    pub(super) fn take_along(&mut self, session: &mut Session, tid: Pid) -> Result<(), TraceError> {
        if !self.allowed || !session.may(&BACK) || !process::is_scheduled_normally(Some(tid)) {
            return Ok(());
        }
        // In force before the thread has anything to give back; the parameter is a priority of 0.
        let policy = u64::from(c::SCHED_OTHER.unsigned_abs());
        let back = Call::new(c::SYS_sched_setscheduler, [0, policy, session.zeroes().get()]);
        session.release_on_the_way_home(back);
        session.install_chain()?;
        self.with_thread = true;
        let _gone = process::schedule(Some(tid), FIRST);
        Ok(())
    }

    /// Lets the thread go on, scheduled normally again.
    ///
    /// # Errors
    /// The thread is gone.
    pub(super) fn leave(self, session: Session, stopped: &Stopped) -> Result<Counts, TraceError> {
        let normally = || {
            let _gone = process::schedule(Some(stopped.tid), Scheduling::Normal);
        };
        session.leave(stopped, if self.with_thread { Some(&normally) } else { None })
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        if self.allowed {
            let _always_allowed = process::schedule(None, Scheduling::Normal);
        }
    }
}
