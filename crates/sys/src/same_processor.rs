//! Puts the calling thread on the processor of another thread, to wait there, or to keep that thread from running; and
//! keeps it and its children on its own processor for a moment.
//!
//! A thread that wakes up on a busy machine may wait for the scheduler's next tick (4 ms at 250 Hz), because the
//! scheduler does not interrupt the running thread for it before. A thread of real-time priority can interrupt any
//! normal thread. So a boosted tracer sleeps on the processor of its tracee, for short times. Each time the tracer goes
//! back to sleep, the scheduler chooses among the others again. It then chooses the tracee as soon as the tracee has
//! run less than its share (EEVDF, `pick_eevdf` in `kernel/sched/fair.c`). The tracee's own scheduling does not change.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tiexec_core::proc::{sched, stat};

use crate::error::SysError;
use crate::processors;
use crate::procfs::ProcDir;

/// The length of one sleep.
const NAP: Duration = Duration::from_micros(50);

/// The calling thread beside another one, whose processor it shares until this value is dropped.
#[derive(Debug)]
pub struct Beside {
    /// `/proc/TID/stat`; `None` if it cannot be read.
    stat: Option<File>,
    processor: Option<usize>,
    /// The processors on which the calling thread was allowed to run before.
    before: Option<CpuSet>,
}

impl Beside {
    /// Prepares to go to the processor of the thread `tid`.
    pub fn of(tid: Pid) -> Self {
        let stat = ProcDir::of(tid).and_then(|thread| thread.open_file("stat", false));
        Self { stat: stat.ok(), processor: None, before: sched_getaffinity(None).ok() }
    }

    /// Sleeps for a moment on the processor on which the awaited thread runs, or waits.
    pub(crate) fn sleep(&mut self) {
        self.go();
        std::thread::sleep(NAP);
    }

    /// Goes to the processor on which the other thread runs, or waits. While the calling thread runs there, the other
    /// thread does not run, unless the scheduler moves it to another processor.
    pub fn go(&mut self) {
        let now = self.processor_now();
        if now != self.processor
            && let Some(processor) = now.filter(|&processor| processor < CpuSet::MAX_CPU)
        {
            let mut only = CpuSet::new();
            only.set(processor);
            let _another_then = sched_setaffinity(None, &only);
            self.processor = now;
        }
    }

    /// Returns how long the other thread has not run; `None` if the kernel does not show it. The time may be short by a
    /// tick of the scheduler.
    pub fn idle_time(&mut self, tid: Pid) -> Option<Duration> {
        let last_ran =
            |thread: Result<ProcDir, SysError>| sched::last_ran(&thread.ok()?.read("sched").ok()?);
        // Only threads of one processor have the same clock.
        self.go();
        let other = last_ran(ProcDir::of(tid))?;
        let own = last_ran(ProcDir::of(rustix::thread::gettid()))?;
        own.checked_sub(other).map(Duration::from_micros)
    }

    fn processor_now(&self) -> Option<usize> {
        let mut text = [0; 1024];
        let len = self.stat.as_ref()?.read_at(&mut text, 0).ok()?;
        stat::processor(&text[..len]).ok().and_then(|processor| usize::try_from(processor).ok())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let (Some(before), Some(_bound)) = (&self.before, self.processor) {
            let _offline_meanwhile = sched_setaffinity(None, before);
        }
    }
}

/// This process on its present processor, and so the children that it forks. Dropping it frees this process.
///
/// A child on another processor would wait there for a running process, or for a sleeping processor to wake up, and this
/// process would wait for the child.
#[derive(Debug)]
pub struct Bound {
    /// All processors.
    pub(crate) free: CpuSet,
}

impl Bound {
    /// Returns `None` if there are processors on which this process may not run, or which are offline. The kernel remembers
    /// a set that a process has asked for, and a program inherits it: from Linux 6.2 on the process keeps to it when the
    /// cpuset grows (`user_cpus_ptr`), and before, the set lacks what is offline. If all processors are in the set, neither
    /// can matter.
    pub fn begin() -> Option<Self> {
        let may = sched_getaffinity(None).ok()?;
        let has_all = usize::try_from(may.count())
            .is_ok_and(|may| may == processors::listed("possible").len());
        let now = sched_getcpu();
        if !has_all || now >= CpuSet::MAX_CPU {
            return None;
        }
        let (mut free, mut here) = (CpuSet::new(), CpuSet::new());
        (0..CpuSet::MAX_CPU).for_each(|processor| free.set(processor));
        here.set(now);
        sched_setaffinity(None, &here).ok()?;
        Some(Self { free })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _none_is_offline = sched_setaffinity(None, &self.free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_is_free_again() {
        let before = sched_getaffinity(None).expect("the affinity");
        if let Some(bound) = Bound::begin() {
            let now = sched_getaffinity(None).expect("the affinity");
            assert_eq!(now.count(), 1);
            drop(bound);
        }
        assert_eq!(sched_getaffinity(None), Ok(before));
    }

    #[test]
    fn a_thread_that_may_not_run_everywhere_stays_as_it_is() {
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one).expect("an affinity");
        assert!(processors::listed("possible").len() == 1 || Bound::begin().is_none());
        assert_eq!(sched_getaffinity(None), Ok(one));
    }
}
