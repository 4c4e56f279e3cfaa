//! Samples where processes execute, by perf_event_open(2).
//!
//! Cycles trigger the samples where the processor can count them. Elsewhere (most virtual machines)
//! the running time of a task triggers them. Only user mode is sampled, so `perf_event_paranoid` up
//! to 2 allows it for processes of one's own. Sampling stops no process.

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

/// The clock that triggers samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Cycles in user mode, counted by the processor.
    Cycles,
    /// The running time of a task.
    CpuClock,
}

/// Samples of some threads and the tasks that they start.
#[derive(Debug)]
pub struct Sampler {
    rings: Rings,
    clock: Clock,
}

impl Sampler {
    /// Bytes of records per processor: enough for more than a second.
    const MOST: usize = 128 << 10;

    /// Samples the threads `tids`, and the tasks that they start, `frequency` times in a second of
    /// their running time.
    ///
    /// # Errors
    /// EACCES, EPERM if `kernel.perf_event_paranoid` is above 2 or a filter forbids it, and for
    /// processes of other users; ESRCH if no thread is left; EMFILE if there are more threads than
    /// descriptors; EINVAL for a frequency above `kernel.perf_event_max_sample_rate`.
    pub fn open(tids: &[Pid], heirs: Heirs, frequency: u32) -> Result<Self, SysError> {
        let records = MMAP | MMAP2 | COMM | COMM_EXEC | TASK;
        let open = |by: &Attributes| Rings::open(tids, heirs, by, Self::MOST);
        let by_cycles = Self::attributes(Clock::Cycles, frequency, records);
        match open(&by_cycles) {
            Err(error) if matches!(error.errno, Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => {
                let by_time = Self::attributes(Clock::CpuClock, frequency, records);
                Ok(Self { rings: open(&by_time)?, clock: Clock::CpuClock })
            }
            opened => Ok(Self { rings: opened?, clock: Clock::Cycles }),
        }
    }

    /// Samples the threads `tids` by time, and the threads that they start: the number of samples is their time in user
    /// mode. (The kernel adapts a rate of cycles to the time of the clock, so that time in the kernel counts, too.) There are
    /// no records of what the processes map.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_by_time(tids: &[Pid], frequency: u32) -> Result<Self, SysError> {
        let by = Self::attributes(Clock::CpuClock, frequency, 0);
        let rings = Rings::open(tids, Heirs::Threads, &by, Self::MOST)?;
        Ok(Self { rings, clock: Clock::CpuClock })
    }

    /// Samples all processes by time, `frequency` times in a second of each processor's time in user mode. There are no
    /// records of what the processes map: all of them would pay for these.
    ///
    /// # Errors
    /// EACCES, EPERM without CAP_PERFMON where `kernel.perf_event_paranoid` is above 0, and where a filter forbids it;
    /// EINVAL for a frequency above `kernel.perf_event_max_sample_rate`.
    pub fn open_everywhere(frequency: u32) -> Result<Self, SysError> {
        let by = Self::attributes(Clock::CpuClock, frequency, 0);
        Ok(Self { rings: Rings::open_everywhere(&by, Self::MOST)?, clock: Clock::CpuClock })
    }

    fn attributes(clock: Clock, frequency: u32, records: u64) -> Attributes {
        let (kind, config) = match clock {
            Clock::Cycles => (PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES),
            Clock::CpuClock => (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK),
        };
        Attributes {
            kind,
            config,
            sample_period: frequency.into(),
            sample_type: SAMPLE_TYPE,
            flags: EXCLUDE_KERNEL | EXCLUDE_HV | FREQ | SAMPLE_ID_ALL | WATERMARK | records,
            wakeup_watermark: (Self::MOST / 2) as u32,
            ..Attributes::default()
        }
    }

    /// Returns the clock that triggers samples.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Waits until many records have come, at most for `time`.
    ///
    /// # Errors
    /// As ppoll(2); EINTR after a handler.
    pub fn wait(&mut self, time: Duration) -> Result<Woken, SysError> {
        self.rings.wait(Some(time))
    }

    /// Returns the new records, in the order of time.
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
