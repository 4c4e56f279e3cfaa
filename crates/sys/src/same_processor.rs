//! Waiting on the processor of the thread that is waited for.
//!
//! A thread that wakes up on a busy machine may wait for the scheduler's next tick (4 ms at 250 Hz): the thread that runs is not
//! interrupted for it before. A thread of real-time priority interrupts whom it wants. So a boosted tracer sleeps on the
//! processor of its tracee, for short times. Whenever it goes back to sleep, the scheduler chooses anew among the others, and chooses
//! the tracee as soon as that has run less than its share (EEVDF, `pick_eevdf` in `kernel/sched/fair.c`). The tracee's own
//! scheduling is not changed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tiexec_core::proc::stat;

use crate::procfs::ProcDir;

/// How long it sleeps at a time.
const NAP: Duration = Duration::from_micros(50);

/// A thread that is waited for.
#[derive(Debug)]
pub(crate) struct Beside {
    /// `/proc/TID/stat`; `None` if it cannot be read.
    stat: Option<File>,
    processor: Option<usize>,
    /// The processors on which the calling thread might run before.
    before: Option<CpuSet>,
}

impl Beside {
    /// Waits beside the thread `tid`.
    pub(crate) fn of(tid: Pid) -> Self {
        let stat = ProcDir::of(tid).and_then(|thread| thread.open_file("stat", false));
        Self { stat: stat.ok(), processor: None, before: sched_getaffinity(None).ok() }
    }

    /// Sleeps for a moment on the processor on which the thread runs, or waits.
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
