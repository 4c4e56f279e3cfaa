//! Completes a transfer that the stop has cut short, in slices.
//!
//! The way home must have a count that is true at any instant, because the tracer may die at any instant. So a slice is
//! made such that it transfers all of its bytes: all signals are blocked, and the thread waits first until there is room.
//! Before the slice, the home frame gets the count that holds after the slice. If the tracer dies, the thread finishes the
//! slice and goes home with that count. If the tracer lives, it interrupts a slice that takes too long, and then sets
//! the count that the kernel returned.
//!
//! Between two slices the tracer looks for a signal that the thread would take, and for the end of the time. Then the
//! thread goes home with the true count, as it would have without TiExec.

use std::time::{Duration, Instant};

use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, c};

use super::Session;
use crate::arch;
use crate::cut_short::{By, CutShort, has_deliverable};
use crate::error::TraceError;
use crate::remote::{self, SystemCall};
use crate::stopped::Stopped;

/// Bytes of a slice. A pipe or a socket of the usual size that has room takes them as soon as its reader reads.
const SLICE: u64 = 64 << 10;
/// How long a slice may take before it is interrupted.
const FOR_A_SLICE: Duration = Duration::from_millis(100);
/// How long the thread waits for room at a time, in milliseconds.
const FOR_ROOM: u32 = 10;

/// What a syscall-exit-stop shows of a call that was interrupted before it transferred something: ERESTARTSYS.
const INTERRUPTED: Errno = Errno(512);

const POLLOUT: i16 = 4;
const POLLERR: i16 = 8;
const POLLHUP: i16 = 16;

impl Session {
    /// Completes a transfer, at the latest until `deadline`. The thread then goes home with what was transferred in all.
    /// Notes in `stopped` whether the program sees a short count.
    ///
    /// # Errors
    /// The tracee is gone.
    pub fn complete(
        &mut self,
        process: &ProcDir,
        stopped: &mut Stopped,
        cut: &CutShort,
        deadline: Instant,
    ) -> Result<(), TraceError> {
        stopped.shown = true;
        let Some(by) = cut.by else { return Ok(()) };
        // Nothing is sent from a process that somebody has stopped.
        if stopped.group_stopped || !remote::COMPLETING.iter().all(|call| self.may(call)) {
            return Ok(());
        }
        let link = format!("fd/{}", cut.fd as u32);
        let file = process.link(&link);
        let mut done = cut.done;
        while done < cut.wanted && Instant::now() < deadline {
            let now = ProcDir::of(self.pid).and_then(|thread| thread.status()).unwrap_or_default();
            // Signals are blocked for the time of the session.
            let now = tiexec_core::proc::status::Status { blocked: self.home_mask, ..now };
            // Another thread may have put another file in the descriptor's place.
            if has_deliverable(&now) || process.link(&link) != file {
                break;
            }
            if by.waits() {
                match self.room(cut.fd)? {
                    Room::None => continue,
                    // A slice would take the socket's error, or raise SIGPIPE. The call that was cut short does neither.
                    Room::Gone if matches!(by, By::Send(_)) => break,
                    Room::Some | Room::Gone => {}
                }
            }
            let memory = self.memory.clone();
            let len = SLICE.min(cut.wanted - done);
            let Some((at, len)) = cut.buffer.part(&memory, done, len) else { break };
            self.return_home(stopped, done + len);
            let transferred = self.make_within(slice(by, cut.fd, at, len).call, FOR_A_SLICE)?;
            // An error belongs to the next call of the program: a pipe without a reader, for example.
            let ended = matches!(transferred, Err(errno) if errno != INTERRUPTED);
            done += transferred.unwrap_or(0);
            if transferred != Ok(len) {
                self.return_home(stopped, done);
                self.install_chain()?;
            }
            if ended {
                break;
            }
        }
        stopped.shown = done < cut.wanted;
        Ok(())
    }

    /// Waits for a moment until a descriptor can be written to, or the other end is gone.
    fn room(&mut self, fd: u64) -> Result<Room, TraceError> {
        const LEN: usize = 8;
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&(fd as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&POLLOUT.to_ne_bytes());
        let at = self.scratch(&bytes)?;
        if !self.call(remote::poll(at, FOR_ROOM))?.is_ok_and(|ready| ready > 0) {
            std::thread::sleep(Duration::from_micros(50));
            return Ok(Room::None);
        }
        self.read(at, &mut bytes)?;
        Ok(match i16::from_ne_bytes([bytes[6], bytes[7]]) {
            events if events & (POLLERR | POLLHUP) != 0 => Room::Gone,
            events if events & POLLOUT != 0 => Room::Some,
            _ => Room::None,
        })
    }

    /// Makes the thread go home with this result of its call.
    fn return_home(&mut self, stopped: &mut Stopped, result: u64) {
        stopped.registers = arch::with_result(&stopped.registers, result);
        self.home = arch::with_result(&self.home, result);
        self.chain = None;
    }
}

/// The room for bytes behind a descriptor.
enum Room {
    None,
    Some,
    /// The other end is gone.
    Gone,
}

/// Returns the call that transfers one slice.
fn slice(by: By, fd: u64, at: u64, len: u64) -> SystemCall {
    match by {
        By::Write => remote::write(fd, at, len),
        // The call that was cut short raises no SIGPIPE once it has sent a part.
        By::Send(flags) => remote::send(fd, at, len, flags | c::MSG_NOSIGNAL as u64),
        By::GetRandom(flags) => remote::getrandom(at, len, flags),
        By::Read => remote::read(fd, at, len),
    }
}
