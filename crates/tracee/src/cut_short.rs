//! Transfers that a stop has cut short: a `write` to a pipe that returns a part of what it was to write.
//!
//! Such a count is true, and a signal would have had the same effect. But a program without signals need not expect it.
//! So the thread makes the rest for TiExec ([`Session::complete`](crate::session::Session::complete)).

use tiexec_core::addr::RemoteAddr;
use tiexec_core::proc::status::Status;
use tiexec_sys::address_space::Memory;
use tiexec_sys::c;
use tiexec_sys::process::{Direction, SocketWait};
use tiexec_sys::procfs::{Device, FileType, ProcDir};
use tiexec_sys::ptrace::Registers;

use crate::arch;
use crate::interrupted::WaitOf;

/// A transfer of which a part was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutShort {
    /// How the rest is transferred. `None` if it is not: then the program sees the short count.
    pub(crate) by: Option<By>,
    /// The descriptor; not used by getrandom(2).
    pub(crate) fd: u64,
    /// The program's buffer.
    pub(crate) buffer: Buffer,
    /// Bytes that were transferred.
    pub(crate) done: u64,
    /// Bytes that were to be transferred.
    pub(crate) wanted: u64,
}

/// The call that makes the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// write(2) to a pipe.
    Write,
    /// sendto(2) with these flags, to a stream socket.
    Send(u64),
    /// getrandom(2) with these flags.
    GetRandom(u64),
    /// read(2) from a device that never ends and never waits.
    Read,
}

/// The buffer of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Buffer {
    /// It begins at this address.
    At(u64),
    /// Its parts are described by that number of `struct iovec` at this address.
    Vector { at: u64, count: u64 },
}

/// Most parts of a buffer (`UIO_MAXIOV`).
const MOST_PARTS: u64 = 1024;

impl Buffer {
    /// Returns the address and the length of the part at `offset`, at most `len` bytes; `None` if it cannot be read.
    pub(crate) fn part(self, memory: &Memory, offset: u64, len: u64) -> Option<(u64, u64)> {
        let Self::Vector { at, count } = self else {
            let Self::At(at) = self else { return None };
            return Some((at.checked_add(offset)?, len));
        };
        let mut before = 0_u64;
        for index in 0..count {
            let (base, part) = vector(memory, at, index)?;
            if offset < before.checked_add(part)? {
                let into = offset - before;
                return Some((base.checked_add(into)?, len.min(part - into)));
            }
            before += part;
        }
        None
    }

    fn len(self, memory: &Memory) -> Option<u64> {
        let Self::Vector { at, count } = self else { return None };
        (0..count).try_fold(0_u64, |sum, index| sum.checked_add(vector(memory, at, index)?.1))
    }
}

/// Reads one `struct iovec`.
fn vector(memory: &Memory, at: u64, index: u64) -> Option<(u64, u64)> {
    let at = at.checked_add(index.checked_mul(16)?)?;
    memory.words(RemoteAddr::new(at)).ok().map(|[base, len]| (base, len))
}

/// Returns the transfer that the stop of a thread has cut short; `None` if there is none, if the same count could have been
/// seen without a stop, or if a second call would not be the first one continued. `now` is the thread's status.
pub fn cut_short(
    process: &ProcDir,
    memory: &Memory,
    registers: &Registers,
    now: &Status,
    wait_of: WaitOf<'_>,
) -> Option<CutShort> {
    let mut before = [0; arch::CALL_INSTRUCTION.len()];
    let from = arch::program_counter(registers).checked_sub(before.len() as u64)?;
    memory.read(from, &mut before).ok()?;
    let (number, done) = arch::returned(registers, &before)?;
    let args = arch::call_arguments(registers);
    let whole = (Buffer::At(args[1]), args[2]);
    let (by, fd, (buffer, wanted)) = match number {
        c::SYS_write => (writes_to(process, args[0], 0, wait_of)?, args[0], whole),
        c::SYS_writev if args[2] <= MOST_PARTS => {
            let buffer = Buffer::Vector { at: args[1], count: args[2] };
            (writes_to(process, args[0], 0, wait_of)?, args[0], (buffer, buffer.len(memory)?))
        }
        // A stream socket has a peer, so the address is ignored.
        c::SYS_sendto => (writes_to(process, args[0], args[3], wait_of)?, args[0], whole),
        c::SYS_sendmsg => {
            let buffer = of_message(memory, args[1])?;
            let by = writes_to(process, args[0], args[2], wait_of)?;
            (by, args[0], (buffer, buffer.len(memory)?))
        }
        c::SYS_getrandom => (Some(By::GetRandom(args[2])), 0, (Buffer::At(args[0]), args[1])),
        c::SYS_read if is_endless(process, args[0]) => (Some(By::Read), args[0], whole),
        _ => return None,
    };
    let cut = CutShort { by, fd, buffer, done, wanted };
    (done < wanted && !has_deliverable(now)).then_some(cut)
}

impl By {
    /// Returns whether the thread must wait for room before each slice.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Write | Self::Send(_))
    }
}

/// Returns whether a signal waits that ends an interruptible call. The program would have seen a short count without the
/// stop, too.
pub(crate) fn has_deliverable(now: &Status) -> bool {
    let ignored_by_default = [c::SIGCHLD, c::SIGCONT, c::SIGURG, c::SIGWINCH];
    let harmless = ignored_by_default.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    now.pending & !now.blocked & !now.ignored & !(harmless & !now.caught) != 0
}

/// Returns how the rest of a write to a descriptor is made: to a pipe or a stream socket, where a write waits until all is
/// written. `Some(None)` if it waits for a limited time. Then the rest is not made: a slice could wait for another such
/// time, and transfer less than the home frame says.
fn writes_to(process: &ProcDir, fd: u64, flags: u64, wait_of: WaitOf<'_>) -> Option<Option<By>> {
    const KEPT: i32 =
        c::MSG_NOSIGNAL | c::MSG_MORE | c::MSG_EOR | c::MSG_DONTROUTE | c::MSG_CONFIRM;
    let fd = i32::try_from(fd as u32).ok()?;
    if process.is_nonblocking(fd) != Some(false) {
        return None;
    }
    let flags = flags as u32;
    let link = process.link(&format!("fd/{fd}")).ok()?;
    if link.starts_with(b"socket:[") {
        // The other flags have a meaning that a second call would not continue.
        let known = flags & !KEPT.unsigned_abs() == 0;
        let by = Some(By::Send(flags.into()))
            .filter(|_| wait_of(fd, Direction::Send) == SocketWait::Plain);
        return known.then_some(by);
    }
    (process.file_type(&format!("fd/{fd}")) == Ok(FileType::Fifo)).then_some(Some(By::Write))
}

/// Returns the buffer of the `struct msghdr` at this address.
fn of_message(memory: &Memory, at: u64) -> Option<Buffer> {
    // Name and its length, then the vector and its length.
    let [_, _, at, count] = memory.words(RemoteAddr::new(at)).ok()?;
    (count <= MOST_PARTS).then_some(Buffer::Vector { at, count })
}

/// Returns whether a descriptor is a device whose reads never end and never wait: `/dev/zero`, `/dev/full`, `/dev/random`
/// or `/dev/urandom` (`drivers/char/mem.c`).
fn is_endless(process: &ProcDir, fd: u64) -> bool {
    const MEMORY: u32 = 1;
    const ENDLESS: [u32; 4] = [5, 7, 8, 9];
    let device = process.device(&format!("fd/{}", fd as u32));
    device.is_some_and(|Device { major, minor }| major == MEMORY && ENDLESS.contains(&minor))
}
