//! Sampling where processes execute, by perf_event_open(2).
//!
//! Cycles give the samples where the processor lets them be counted; elsewhere (most virtual
//! machines) the time that a task runs gives them. Only user mode is sampled: so it is allowed up to
//! `perf_event_paranoid` 2 for processes of one's own. Nobody is stopped.

use std::time::Duration;

use rustix::process::Pid;
use tiexec_core::perf::samples::{Event, SAMPLE_TYPE, What, parse};

use crate::error::{Errno, SysError};
use crate::perf_event::{
    Attributes, COMM, COMM_EXEC, EXCLUDE_HV, EXCLUDE_KERNEL, FREQ, MMAP, MMAP2,
    PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE,
    Rings, SAMPLE_ID_ALL, TASK, WATERMARK,
};
pub use crate::perf_event::{Heirs, Woken};

/// The clock by which samples are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Cycles in user mode, counted by the processor.
    Cycles,
    /// The time for which a task runs.
    CpuClock,
}

/// Samples of some threads and what they begin.
#[derive(Debug)]
pub struct Sampler {
    rings: Rings,
    clock: Clock,
}

impl Sampler {
    /// Bytes of records per processor: more than a second of them.
    const MOST: usize = 128 << 10;

    /// Samples the threads `tids`, and what they begin, `frequency` times in a second of their time.
    ///
    /// # Errors
    /// EACCES, EPERM with `kernel.perf_event_paranoid` above 2, for processes of others, and under
    /// filters; ESRCH if no thread is left; EMFILE for more threads than descriptors; EINVAL for a
    /// frequency above `kernel.perf_event_max_sample_rate`.
    pub fn open(tids: &[Pid], heirs: Heirs, frequency: u32) -> Result<Self, SysError> {
        let records = MMAP | MMAP2 | COMM | COMM_EXEC | TASK;
        let by_cycles = Attributes {
            kind: PERF_TYPE_HARDWARE,
            config: PERF_COUNT_HW_CPU_CYCLES,
            sample_period: frequency.into(),
            sample_type: SAMPLE_TYPE,
            flags: EXCLUDE_KERNEL | EXCLUDE_HV | FREQ | SAMPLE_ID_ALL | WATERMARK | records,
            wakeup_watermark: (Self::MOST / 2) as u32,
            ..Attributes::default()
        };
        match Rings::open(tids, heirs, &by_cycles, Self::MOST) {
            Err(error) if matches!(error.errno, Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => {
                let by_time = Attributes {
                    kind: PERF_TYPE_SOFTWARE,
                    config: PERF_COUNT_SW_CPU_CLOCK,
                    ..by_cycles
                };
                let rings = Rings::open(tids, heirs, &by_time, Self::MOST)?;
                Ok(Self { rings, clock: Clock::CpuClock })
            }
            opened => Ok(Self { rings: opened?, clock: Clock::Cycles }),
        }
    }

    /// Returns by what samples are taken.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Waits until much has come, at most for `time`.
    ///
    /// # Errors
    /// As ppoll(2); EINTR after a handler.
    pub fn wait(&mut self, time: Duration) -> Result<Woken, SysError> {
        self.rings.wait(Some(time))
    }

    /// Returns what has come, in the order of time.
    pub fn read(&mut self) -> Vec<What> {
        let mut events: Vec<Event> = Vec::new();
        self.rings.read(usize::MAX, |record| match record {
            None => events.push(Event { time: u64::MAX, what: What::Lost(1) }),
            Some(record) => events.extend(parse(record)),
        });
        events.sort_by_key(|event| event.time);
        events.into_iter().map(|event| event.what).collect()
    }
}
