//! One hardware breakpoint in another thread, told to its tracer by a signal that harms nobody.
//!
//! perf_event_open(2) counts the executions of one instruction; at the first one the kernel sends the
//! thread a signal (`F_SETSIG`). The event lives as long as its descriptor: it vanishes with this
//! process. The signal is one whose action is to be ignored: while the thread is traced it comes to its
//! tracer all the same (`sig_ignored` in `kernel/signal.c`), and once the tracer is dead, to nobody. It
//! comes before the instruction: the interrupt that sends it is pending when the kernel returns to it.
//!
//! Not `attr.sigtrap`: a tracer that dies after the SIGTRAP was sent and before it was waited for leaves
//! it to the program, which it kills. Debug registers by ptrace(2), and an `int3`, stay after the
//! tracer's death.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::Pid;
use tiexec_core::addr::RemoteAddr;

use crate::error::{Errno, SysError, check};
use crate::perf_event::{self, Attributes, DISABLED, EXCLUDE_HV, EXCLUDE_KERNEL};

const PERF_TYPE_BREAKPOINT: u32 = 5;
const HW_BREAKPOINT_X: u32 = 4;
/// Since Linux 5.13.
const REMOVE_ON_EXEC: u64 = 1 << 36;
const F_SETOWN_EX: i32 = 15;
const F_SETSIG: i32 = 10;
const F_OWNER_TID: i32 = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: i32,
    id: i32,
}

/// Opens an event that counts the executions of the instruction at `addr` by one thread; `None` for this
/// one.
fn open(tid: Option<Pid>, addr: RemoteAddr, more_flags: u64) -> Result<OwnedFd, SysError> {
    let attributes = Attributes {
        kind: PERF_TYPE_BREAKPOINT,
        sample_period: 1,
        flags: EXCLUDE_KERNEL | EXCLUDE_HV | REMOVE_ON_EXEC | more_flags,
        breakpoint_type: HW_BREAKPOINT_X,
        breakpoint_addr: addr.get(),
        breakpoint_len: size_of::<libc::c_long>() as u64,
        ..Attributes::default()
    };
    perf_event::open(&attributes, tid, -1)
}

/// A breakpoint in a thread that is traced by this process.
#[derive(Debug)]
pub struct Breakpoint {
    event: OwnedFd,
    signal: i32,
}

impl Breakpoint {
    /// Signals that a program ignores unless it says otherwise, and that mean nothing when they come
    /// once too often.
    const SIGNALS: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];

    /// Has the thread `tid`, which is stopped and has the signals `blocked` blocked (one bit per
    /// signal), get a signal before it executes the instruction at `addr`. Gone with an exec.
    ///
    /// # Errors
    /// EACCES, EPERM: `kernel.perf_event_paranoid` above 2, a security module, or a filter; ENOSPC: no
    /// debug register free; EBUSY: all signals that would do are blocked.
    ///
    /// # Kernel
    /// 5.13, for `remove_on_exec`.
    pub fn set(tid: Pid, addr: RemoteAddr, blocked: u64) -> Result<Self, SysError> {
        let free = |signal: &i32| blocked >> (signal - 1) & 1 == 0;
        let busy = SysError { call: "every harmless signal is blocked", errno: Errno::BUSY };
        let signal = Self::SIGNALS.into_iter().find(free).ok_or(busy)?;
        let event = open(Some(tid), addr, 0)?;
        let fd = event.as_raw_fd();
        let owner = Owner { kind: F_OWNER_TID, id: tid.as_raw_nonzero().get() };
        // SAFETY: F_SETOWN_EX reads the live structure.
        let returned = unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) };
        check("fcntl(F_SETOWN_EX)", returned.into())?;
        // SAFETY: F_SETSIG takes a number.
        let returned = unsafe { libc::fcntl(fd, F_SETSIG, signal) };
        check("fcntl(F_SETSIG)", returned.into())?;
        // SAFETY: F_SETFL takes a number.
        let returned = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) };
        check("fcntl(F_SETFL)", returned.into())?;
        Ok(Self { event, signal })
    }

    /// Asks whether this thread could have one, and so what it execs.
    ///
    /// # Errors
    /// As [`Breakpoint::set`].
    pub fn could_be_set() -> Result<(), SysError> {
        // Any user address does: it reserves a debug register and never watches.
        open(None, RemoteAddr::new(0), DISABLED).map(drop)
    }

    /// Returns whether a signal with this code (`si_code`, sigaction(2)) tells of it.
    pub fn told_by(&self, signal: i32, code: i32) -> bool {
        const POLL_IN: i32 = 1;
        signal == self.signal && code == POLL_IN
    }

    /// Returns whether the thread has come to it. An event that cannot be read any more, since the
    /// thread has exec'ed or ended, says no.
    pub fn is_reached(&self) -> bool {
        let mut count = [0; size_of::<u64>()];
        let read = rustix::io::read(&self.event, &mut count);
        read == Ok(count.len()) && u64::from_ne_bytes(count) > 0
    }
}
