//! Handing a file to a running process: over a pair of sockets that it makes (unix(7), `SCM_RIGHTS`).
//!
//! So no path need be visible where it lives, and what it may open does not matter.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use tiexec_core::skip::SkipReason;
use tiexec_sys::{Errno, Pid, SysError, c, process};
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::Session;

use crate::failure::Failure;

/// Both ends of a pair of sockets: one in the process, one here.
#[derive(Debug)]
pub(crate) struct Passage {
    theirs: u64,
    ours: OwnedFd,
}

const INT: usize = size_of::<i32>();

impl Passage {
    /// Has the process `pid` make a pair of sockets; the session closes them.
    ///
    /// # Errors
    /// `fd_limit`, `seccomp`-like refusals as `switch_failed`; nothing is left in the process.
    pub(crate) fn open(session: &mut Session, pid: Pid) -> Result<Self, Failure> {
        let refused = |call| {
            move |errno| {
                let reason = if errno == Errno::MFILE {
                    SkipReason::FdLimit
                } else {
                    SkipReason::SwitchFailed
                };
                Failure::new(reason, SysError { call, errno })
            }
        };
        let pair = session.scratch(&[0; 2 * INT])?;
        let kind = (c::SOCK_DGRAM | c::SOCK_CLOEXEC).unsigned_abs();
        let family = u64::from(c::AF_UNIX.unsigned_abs());
        session
            .call(Call::new(c::SYS_socketpair, [family, kind.into(), 0, pair.get()]))?
            .map_err(refused("socketpair"))?;
        let mut numbers = [[0; INT]; 2];
        session.read(pair, numbers.as_flattened_mut())?;
        let [theirs, ours] = numbers.map(i32::from_ne_bytes);
        let close = |fd: i32| Call::new(c::SYS_close, [u64::from(fd.unsigned_abs())]);
        session.release_on_the_way_home(close(theirs));
        session.release_on_the_way_home(close(ours));
        let copy = process::descriptor_of(pid, ours)
            .map_err(|error| Failure::new(SkipReason::SwitchFailed, error))?;
        session.release_now()?;
        Ok(Self { theirs: u64::from(theirs.unsigned_abs()), ours: copy })
    }

    /// Hands `file` over; returns its number there. The session closes it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn hand_over(&self, session: &mut Session, file: &File) -> Result<u64, Failure> {
        process::send_descriptor(self.ours.as_fd(), file.as_fd())
            .map_err(|error| Failure::new(SkipReason::SwitchFailed, error))?;
        // struct msghdr, struct iovec, one byte of data, the control message.
        const HEADER: usize = 7 * WORD;
        const VECTOR: usize = HEADER + 2 * WORD;
        const CONTROL: usize = VECTOR + WORD;
        const LEN: usize = CONTROL + 3 * WORD;
        let at = session.scratch(&[0; LEN])?.get();
        let word = |offset: usize| at + offset as u64;
        let words: [u64; 9] =
            [0, 0, word(HEADER), 1, word(CONTROL), (LEN - CONTROL) as u64, 0, word(VECTOR), 1];
        let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        block.resize(LEN, 0);
        let message = session.scratch(&block)?;
        let flags = u64::from((c::MSG_CMSG_CLOEXEC | c::MSG_DONTWAIT).unsigned_abs());
        session.call(Call::new(c::SYS_recvmsg, [self.theirs, message.get(), flags]))?.map_err(
            |errno| {
                let call = "recvmsg(SCM_RIGHTS)";
                Failure::new(SkipReason::SwitchFailed, SysError { call, errno })
            },
        )?;
        session.read(message, &mut block)?;
        // struct cmsghdr is a length, a level and a type; then the descriptor.
        let control = &block[CONTROL..];
        let len = u64::from_ne_bytes(control[..WORD].try_into().unwrap_or_default());
        let fd =
            i32::from_ne_bytes(control[2 * WORD..2 * WORD + INT].try_into().unwrap_or_default());
        if len < (2 * WORD + INT) as u64 || fd < 0 {
            // The process had no descriptor left: the message came without it.
            return Err(Failure::new(SkipReason::FdLimit, "recvmsg brought no descriptor"));
        }
        let fd = u64::from(fd.unsigned_abs());
        session.release_on_the_way_home(Call::new(c::SYS_close, [fd]));
        Ok(fd)
    }
}

const WORD: usize = size_of::<u64>();
