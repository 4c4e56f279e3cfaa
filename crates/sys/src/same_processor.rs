//! Waits on the processor of the awaited thread.
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
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tiexec_core::proc::stat;

use crate::procfs::ProcDir;

/// The length of one sleep.
const NAP: Duration = Duration::from_micros(50);

/// An awaited thread.
#[derive(Debug)]
pub(crate) struct Beside {
    /// `/proc/TID/stat`; `None` if it cannot be read.
    stat: Option<File>,
    processor: Option<usize>,
    /// The processors on which the calling thread was allowed to run before.
    before: Option<CpuSet>,
}

impl Beside {
    /// Makes this thread wait beside the thread `tid`.
    pub(crate) fn of(tid: Pid) -> Self {
        let stat = ProcDir::of(tid).and_then(|thread| thread.open_file("stat", false));
        Self { stat: stat.ok(), processor: None, before: sched_getaffinity(None).ok() }
    }

    /// Sleeps for a moment on the processor on which the awaited thread runs, or waits.
    pub(crate) fn sleep(&mut self) {
        let now = self.processor_now();
        if now != self.processor
            && let Some(processor) = now.filter(|&processor| processor < CpuSet::MAX_CPU)
        {
            let mut only = CpuSet::new();
            only.set(processor);
            let _another_then = sched_setaffinity(None, &only);
            self.processor = now;
        }
        std::thread::sleep(NAP);
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
