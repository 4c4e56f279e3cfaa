//! Haste: on a busy machine each of a stop's system calls would wait for a processor twice.
//!
//! For the time of the stop, the stopped thread and this process get the lowest nice value, where that
//! is allowed. The way home gives the thread its own back, so it has it also if this process dies.

use tiexec_sys::{Pid, c, process};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::Session;

/// The lowest nice value there is (setpriority(2)).
const FIRST: i32 = -20;

/// A thread in haste.
#[derive(Debug)]
pub(super) struct Haste {
    /// This process's own nice value.
    own: i32,
}

impl Haste {
    /// Gives the thread the processor first; `None` where that is not allowed, or it has it already.
    ///
    /// # Errors
    /// The thread is gone.
    pub(super) fn begin(session: &mut Session, tid: Pid) -> Result<Option<Self>, TraceError> {
        let (Ok(theirs), Ok(own)) = (process::nice(Some(tid)), process::nice(None)) else {
            return Ok(None);
        };
        if theirs <= FIRST || process::set_nice(None, FIRST).is_err() {
            return Ok(None);
        }
        let which = u64::from(c::PRIO_PROCESS);
        let back = Call::new(c::SYS_setpriority, [which, 0, i64::from(theirs).cast_unsigned()]);
        // In force before the thread has anything to give back.
        session.release_on_the_way_home(back);
        session.install_chain()?;
        let _gone = process::set_nice(Some(tid), FIRST);
        Ok(Some(Self { own }))
    }

    /// Gives the thread its own value back.
    ///
    /// # Errors
    /// The thread is gone.
    pub(super) fn end(self, session: &mut Session) -> Result<(), TraceError> {
        session.release_now()?;
        let _lower_is_allowed = process::set_nice(None, self.own);
        Ok(())
    }
}
