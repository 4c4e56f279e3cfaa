//! Events of perf_event_open(2) on some threads and the tasks that they start, and the buffers into which
//! the kernel writes the records.
//!
//! An inherited event can write into a buffer only if it is of one processor (`perf_mmap` in
//! `kernel/events/core.c`). So there is one event for each thread on each processor, and one buffer for each
//! processor.
//!
//! # Safety
//!
//! The kernel writes the buffers. So this file reads them through raw pointers only, and not beyond the end
//! that the head gives.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;
use tiexec_core::perf::{HEADER_LEN, record_len};

use crate::error::{Errno, SysError, check};
use crate::processors;

/// `struct perf_event_attr` up to `bp_len` (`PERF_ATTR_SIZE_VER1`), a size that every kernel takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    /// Set by [`open`].
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup_watermark: u32,
    pub(crate) breakpoint_type: u32,
    pub(crate) breakpoint_addr: u64,
    pub(crate) breakpoint_len: u64,
}

/// `perf_event_open(attributes, tid, processor, -1, PERF_FLAG_FD_CLOEXEC)`. `None` for `tid` is the calling
/// thread; processor −1 is every processor.
///
/// # Errors
/// EACCES, EPERM where `kernel.perf_event_paranoid` or a filter forbids it, and for processes of other
/// users; ESRCH; ENODEV for a processor that does not exist; ENOENT, EOPNOTSUPP if there is no such event;
/// ENOSPC without a free debug register.
pub(crate) fn open(
    attributes: &Attributes,
    tid: Option<Pid>,
    processor: i32,
) -> Result<OwnedFd, SysError> {
    open_for(attributes, Pid::as_raw(tid), processor)
}

/// [`open`], by the number that the kernel takes: 0 for the calling thread, -1 for all processes.
fn open_for(attributes: &Attributes, tid: i32, processor: i32) -> Result<OwnedFd, SysError> {
    let whole = Attributes { size: size_of::<Attributes>() as u32, ..*attributes };
    // SAFETY: the kernel reads the live structure, whose size is in it.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const whole,
            tid,
            processor,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let fd = check("perf_event_open", returned)?;
    // SAFETY: the descriptor was just made, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(crate) const PERF_TYPE_HARDWARE: u32 = 0;
pub(crate) const PERF_TYPE_SOFTWARE: u32 = 1;
pub(crate) const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
pub(crate) const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
pub(crate) const PERF_COUNT_SW_DUMMY: u64 = 9;
const INHERIT: u64 = 1 << 1;
pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(crate) const EXCLUDE_HV: u64 = 1 << 6;
pub(crate) const MMAP: u64 = 1 << 8;
pub(crate) const COMM: u64 = 1 << 9;
/// The period is a frequency.
pub(crate) const FREQ: u64 = 1 << 10;
/// Records of forks and ends.
pub(crate) const TASK: u64 = 1 << 13;
/// Wake the reader by the number of bytes. A wakeup by events would count samples only, not other records.
pub(crate) const WATERMARK: u64 = 1 << 14;
/// Ids and time at the end of each record.
pub(crate) const SAMPLE_ID_ALL: u64 = 1 << 18;
pub(crate) const MMAP2: u64 = 1 << 23;
pub(crate) const COMM_EXEC: u64 = 1 << 24;
/// Threads inherit the event, processes do not. Since Linux 5.13.
const INHERIT_THREAD: u64 = 1 << 35;
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
/// `_IO('$', 5)`.
const PERF_EVENT_IOC_SET_OUTPUT: u64 = 0x2405;
/// The offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The tasks that inherit an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heirs {
    /// Threads that the process starts.
    Threads,
    /// Such threads, processes that the process starts, and their heirs.
    Processes,
}

/// Why a wait for records ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// There are records.
    Records,
    /// The time is over.
    Time,
    /// Every watched process has ended, or an exec with privileges has hidden it.
    End,
}

/// Bytes of a short record and of one that tells of a loss.
const ROOM: u64 = 256;

/// One processor's buffer.
#[derive(Debug)]
struct Ring {
    processor: i32,
    event: OwnedFd,
    at: NonNull<u8>,
    /// Bytes of records, a power of two, after one page for the kernel.
    len: usize,
    page: usize,
    /// True if the thread of the event and its heirs have ended.
    over: bool,
}

/// Events, and a buffer for each processor.
#[derive(Debug)]
pub(crate) struct Rings {
    rings: Vec<Ring>,
    /// Events that write into the buffers of other events.
    more: Vec<OwnedFd>,
}

impl Rings {
    /// Opens an event for each thread on each processor, with buffers of `most` bytes if the user may have
    /// that much.
    ///
    /// # Errors
    /// As [`open`]; ESRCH if no thread is left; EMFILE if there are more threads than descriptors.
    pub(crate) fn open(
        tids: &[Pid],
        heirs: Heirs,
        attributes: &Attributes,
        most: usize,
    ) -> Result<Self, SysError> {
        let processors = online_processors();
        let mut rings: Vec<Ring> = Vec::new();
        let mut more = Vec::new();
        for &tid in tids {
            for &processor in &processors {
                let event = match open_inherited(tid, processor, heirs, attributes) {
                    Ok(event) => event,
                    // The thread has just ended.
                    Err(error) if error.errno == Errno::SRCH => break,
                    Err(error) if error.errno == Errno::NODEV => continue,
                    Err(error) => return Err(error),
                };
                match rings.iter().find(|ring| ring.processor == processor) {
                    Some(ring) => {
                        set_output(event.as_fd(), ring.event.as_fd())?;
                        more.push(event);
                    }
                    None => rings.push(Ring::map(processor, event, most)?),
                }
            }
        }
        if rings.is_empty() {
            return Err(SysError { call: "perf_event_open", errno: Errno::SRCH });
        }
        Ok(Self { rings, more })
    }

    /// Opens an event for all processes on each processor.
    ///
    /// # Errors
    /// As [`open`]: EACCES, EPERM without CAP_PERFMON where `kernel.perf_event_paranoid` is above 0.
    pub(crate) fn open_everywhere(attributes: &Attributes, most: usize) -> Result<Self, SysError> {
        let mut rings = Vec::new();
        for processor in online_processors() {
            match open_for(attributes, -1, processor) {
                Ok(event) => rings.push(Ring::map(processor, event, most)?),
                Err(error) if error.errno == Errno::NODEV => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { rings, more: Vec::new() })
    }

    /// Returns the descriptors to poll.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.event.as_fd())
    }

    /// Waits for records, at most for `time`, with no signal blocked: a signal whose action is to end this
    /// process ends it here.
    ///
    /// # Errors
    /// As ppoll(2); EINTR after a handler.
    pub(crate) fn wait(&mut self, time: Option<Duration>) -> Result<Woken, SysError> {
        let of_rings = self.rings.iter().filter(|ring| !ring.over).map(|ring| &ring.event);
        let mut fds: Vec<libc::pollfd> = of_rings
            .chain(&self.more)
            .map(|event| libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        if fds.is_empty() {
            return Ok(Woken::End);
        }
        if poll_unblocked(&mut fds, time)? == 0 {
            return Ok(Woken::Time);
        }
        let mut ended = fds.iter().map(|fd| fd.revents & (libc::POLLHUP | libc::POLLERR) != 0);
        for ring in self.rings.iter_mut().filter(|ring| !ring.over) {
            ring.over = ended.next().unwrap_or(true);
        }
        self.more.retain(|_| !ended.next().unwrap_or(true));
        let over = self.more.is_empty() && self.rings.iter().all(|ring| ring.over);
        let end = over && !self.rings.iter().any(Ring::has_records);
        Ok(if end { Woken::End } else { Woken::Records })
    }

    /// Passes all new records to `each`, those of each processor in order, each cut after `most` bytes;
    /// `None` for bytes that no kernel writes. Returns whether a buffer had no room for a record: the kernel tells of the loss
    /// only beside the next record.
    pub(crate) fn read(&mut self, most: usize, mut each: impl FnMut(Option<&[u8]>)) -> bool {
        let mut was_full = false;
        for ring in &mut self.rings {
            was_full |= ring.read(most, &mut each);
        }
        was_full
    }
}

/// `ppoll(fds, time, no signal blocked)`.
///
/// # Errors
/// As ppoll(2).
pub(crate) fn poll_unblocked(
    fds: &mut [libc::pollfd],
    time: Option<Duration>,
) -> Result<usize, SysError> {
    let time = time.map(|time| libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let none = crate::process::signal_set(&[]);
    let count = fds.len() as libc::nfds_t;
    // SAFETY: the descriptors, the time (or none) and the set are live for the call.
    let returned = unsafe { libc::ppoll(fds.as_mut_ptr(), count, time, &raw const none) };
    Ok(check("ppoll", returned.into())?.unsigned_abs() as usize)
}

impl Ring {
    /// Gives the event a buffer, as large as the user may have.
    fn map(processor: i32, event: OwnedFd, most: usize) -> Result<Self, SysError> {
        let page = rustix::param::page_size();
        let mut len = most.max(page);
        loop {
            // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
            let mapped = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    page + len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    &event,
                    0,
                )
            };
            match mapped {
                Ok(at) => {
                    let error = SysError { call: "mmap(perf event)", errno: Errno::INVAL };
                    let at = NonNull::new(at.cast()).ok_or(error)?;
                    return Ok(Self { processor, event, at, len, page, over: false });
                }
                Err(rustix::io::Errno::PERM | rustix::io::Errno::NOMEM) if len > page => len /= 2,
                Err(errno) => return Err(SysError::of("mmap(perf event)")(errno)),
            }
        }
    }

    /// Returns the word of the buffer's first page at this offset.
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset is one of the two constants, so it is within the first page.
        let at = unsafe { self.at.as_ptr().add(offset) }.cast::<u64>();
        // SAFETY: the page is mapped as long as `self` lives, the offset is a multiple of 8, and the
        // kernel accesses the word as a whole, as this process does.
        unsafe { AtomicU64::from_ptr(at) }
    }

    fn has_records(&self) -> bool {
        let tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        self.word(DATA_HEAD).load(Ordering::Acquire) != tail
    }

    /// Copies the bytes at `position` in the endless sequence of records.
    fn copy(&self, position: u64, to: &mut [u8]) {
        for (index, byte) in to.iter_mut().enumerate() {
            let at = (position.wrapping_add(index as u64) as usize) & (self.len - 1);
            // SAFETY: `at` is below the length, a power of two, of the part that is mapped after the first
            // page.
            let from = unsafe { self.at.as_ptr().add(self.page + at) };
            // SAFETY: any byte is a valid u8; the kernel does not write to bytes that the tail has not
            // passed.
            *byte = unsafe { from.read() };
        }
    }

    fn read(&mut self, most: usize, each: &mut impl FnMut(Option<&[u8]>)) -> bool {
        // Acquire: everything before the head is written.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let was_full = head.wrapping_sub(tail) + ROOM > self.len as u64;
        let mut record = Vec::new();
        while tail != head {
            let mut header = [0; HEADER_LEN];
            self.copy(tail, &mut header);
            let len = record_len(header).filter(|&len| len as u64 <= head.wrapping_sub(tail));
            let Some(len) = len else {
                tail = head;
                each(None);
                break;
            };
            record.resize(len.min(most), 0);
            self.copy(tail, &mut record);
            each(Some(&record));
            tail = tail.wrapping_add(len as u64);
        }
        // Release: the kernel may write there from now on.
        self.word(DATA_TAIL).store(tail, Ordering::Release);
        was_full
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping made in `map`, and no reference into it outlives `self`.
        let _always = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.page + self.len) };
    }
}

/// [`open`], for a thread and its heirs.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_inherited(
    tid: Pid,
    processor: i32,
    heirs: Heirs,
    attributes: &Attributes,
) -> Result<OwnedFd, SysError> {
    let whole = Attributes { flags: attributes.flags | INHERIT, ..*attributes };
    if heirs == Heirs::Processes {
        return open(&whole, Some(tid), processor);
    }
    match open(&Attributes { flags: whole.flags | INHERIT_THREAD, ..whole }, Some(tid), processor) {
        // Before Linux 5.13 the records of child processes come too; the reader skips them.
        Err(error) if error.errno == Errno::INVAL => open(&whole, Some(tid), processor),
        opened => opened,
    }
}

/// Makes `event` write into the buffer of `into`, of the same processor.
fn set_output(event: BorrowedFd<'_>, into: BorrowedFd<'_>) -> Result<(), SysError> {
    // SAFETY: the argument is a descriptor; no memory is touched.
    let returned = unsafe {
        libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_OUTPUT as libc::Ioctl, into.as_raw_fd())
    };
    check("ioctl(PERF_EVENT_IOC_SET_OUTPUT)", returned.into())?;
    Ok(())
}

/// Returns the processors in use; without `/sys`, as many as this process could use.
fn online_processors() -> Vec<i32> {
    let listed = processors::listed("online");
    if listed.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return (0..i32::try_from(count).unwrap_or(1)).collect();
    }
    listed
}
