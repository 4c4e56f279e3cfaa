//! Watches what processes start and map, by perf_event_open(2).
//!
//! A dummy software event counts nothing. The event exists for the records that the kernel writes beside it: of each
//! exec, and of each executable mapping, or of each fork. Children inherit it however they are made (`vfork`, `posix_spawn`, `CLONE_VM`,
//! and with a new session). It stops no process, and needs `perf_event_paranoid` ≤ 2 for processes of one's own. A
//! program that runs with more privilege than its user loses the event at its exec (`begin_new_exec` in `fs/exec.c`),
//! and so keeps its privileges.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::process::Pid;
use tiexec_core::perf::records::{Record, parse};

use crate::error::SysError;
use crate::perf_event::{
    Attributes, COMM, COMM_EXEC, EXCLUDE_HV, EXCLUDE_KERNEL, MMAP, MMAP2, PERF_COUNT_SW_DUMMY,
    PERF_TYPE_SOFTWARE, Rings, TASK, WATERMARK, poll_unblocked,
};
pub use crate::perf_event::{Heirs, Woken};

/// Records of some processes and their heirs.
#[derive(Debug)]
pub struct Watch(Rings);

impl Watch {
    /// The most bytes of records per processor. A user may lock `kernel.perf_event_mlock_kb` for each processor.
    const MOST: usize = 128 << 10;

    /// Watches the threads `tids`, and the tasks that they start. `tids` must not contain the calling thread.
    ///
    /// # Errors
    /// EACCES, EPERM if `kernel.perf_event_paranoid` is above 2 or a filter forbids it, and for processes of other
    /// users; ESRCH if no thread is left; EMFILE if there are more threads than descriptors.
    ///
    /// # Kernel
    /// `PERF_RECORD_MMAP2` and the exec flag exist since 3.16.
    pub fn open(tids: &[Pid], heirs: Heirs) -> Result<Self, SysError> {
        let records = MMAP | MMAP2 | COMM | COMM_EXEC;
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            config: PERF_COUNT_SW_DUMMY,
            flags: EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | records,
            wakeup_watermark: 1,
            ..Attributes::default()
        };
        Rings::open(tids, heirs, &attributes, Self::MOST).map(Self)
    }

    /// Watches all processes for execs only. The kernel wakes a reader that polls the [descriptors](Self::descriptors)
    /// when a buffer is half full.
    ///
    /// # Errors
    /// EACCES, EPERM without CAP_PERFMON, or if a filter forbids it.
    pub fn open_everywhere() -> Result<Self, SysError> {
        Self::of_all(COMM | COMM_EXEC, Self::MOST)
    }

    /// Watches all processes for forks and ends only. They have buffers of their own, so that a storm of forks costs no
    /// record of an exec.
    ///
    /// # Errors
    /// As [`open_everywhere`](Self::open_everywhere).
    pub fn open_forks_everywhere() -> Result<Self, SysError> {
        Self::of_all(TASK, Self::MOST / 2)
    }

    fn of_all(records: u64, most: usize) -> Result<Self, SysError> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            config: PERF_COUNT_SW_DUMMY,
            flags: EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | records,
            wakeup_watermark: (most / 2) as u32,
            ..Attributes::default()
        };
        Rings::open_everywhere(&attributes, most).map(Self)
    }

    /// Returns the descriptors to poll.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.descriptors()
    }

    /// Waits for records, at most for `time`, with no signal blocked: a signal whose action is to end this process ends
    /// it here.
    ///
    /// # Errors
    /// As ppoll(2); EINTR after a handler.
    pub fn wait(&mut self, time: Option<Duration>) -> Result<Woken, SysError> {
        self.0.wait(time)
    }

    /// Passes all new records to `each`, those of each processor in order.
    pub fn read(&mut self, mut each: impl FnMut(Record)) {
        // The record of a mapping ends with a path, which has no use here.
        const MOST: usize = 72;
        self.0.read(MOST, |record| match record {
            None => each(Record::Lost),
            Some(record) => {
                if let Some(record) = parse(record) {
                    each(record);
                }
            }
        });
    }
}

/// Waits until `process` (a pidfd; `None` for no process) has ended, at most for `time`, with no signal blocked: a
/// signal whose action is to end this process ends it here. Returns whether the process has ended.
///
/// # Errors
/// As ppoll(2); EINTR after a handler.
pub fn wait_for_end(
    process: Option<BorrowedFd<'_>>,
    time: Option<Duration>,
) -> Result<bool, SysError> {
    let fd =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut fds: Vec<libc::pollfd> = process.into_iter().map(fd).collect();
    Ok(poll_unblocked(&mut fds, time)? > 0)
}
