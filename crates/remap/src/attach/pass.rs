//! Handing a file to a running process: over a pair of sockets that it makes (unix(7), `SCM_RIGHTS`).
//!
//! So no path need be visible to the process, and its right to open files does not matter.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tiexec_core::addr::RemoteAddr;
use tiexec_core::proc::status;
use tiexec_core::seccomp::Value;
use tiexec_core::skip::SkipReason;
use tiexec_sys::{Errno, Pid, SysError, c, process};
use tiexec_tracee::arch::Call;
use tiexec_tracee::foreseen::{Foreseen, constant};
use tiexec_tracee::session::Session;

use super::AttachOrder;
use crate::failure::Failure;

const FAMILY: i32 = c::AF_UNIX;
const KIND: i32 = c::SOCK_DGRAM | c::SOCK_CLOEXEC;
const RECEIVING: i32 = c::MSG_CMSG_CLOEXEC | c::MSG_DONTWAIT;

/// The calls that a passage has the process make, beside
/// [`DESCRIPTOR_CALLS`](tiexec_tracee::session::DESCRIPTOR_CALLS).
pub(super) const CALLS: [Foreseen; 2] = [
    Foreseen::needed(
        "socketpair(AF_UNIX)",
        c::SYS_socketpair,
        [constant(FAMILY), constant(KIND), Value::Is(0), Value::Any],
    ),
    Foreseen::needed(
        "recvmsg(SCM_RIGHTS)",
        c::SYS_recvmsg,
        [Value::Small, Value::Any, constant(RECEIVING)],
    ),
];

/// Both ends of a pair of sockets: one in the process, one here.
#[derive(Debug)]
pub(crate) struct Passage {
    theirs: u64,
    ours: OwnedFd,
}

impl Passage {
    /// Has the process `pid` make a pair of sockets; the session closes them.
    ///
    /// # Errors
    /// `fd_limit`, `seccomp`-like refusals as `switch_failed`; nothing is left in the process.
    pub(crate) fn open(session: &mut Session, order: &AttachOrder<'_>) -> Result<Self, Failure> {
        let AttachOrder { task: pid, process, workers, .. } = *order;
        let own_pid = process.read("status").ok().and_then(|text| status::parse(&text).ns_tgid);
        let own_pid = own_pid.and_then(|id| Pid::from_raw(id.cast_signed())).unwrap_or(pid);
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
        let kind = u64::from(KIND.unsigned_abs());
        let family = u64::from(FAMILY.unsigned_abs());
        let [theirs, ours] = session
            .call_for_descriptors(own_pid, |pair| {
                Call::new(c::SYS_socketpair, [family, kind, 0, pair.get()])
            })?
            .map_err(refused("socketpair"))?;
        let copy = match workers.fetcher() {
            Some(fetcher) => fetcher.socket_of(pid, ours)?,
            None => process::descriptor_of(pid, ours)
                .map_err(|error| Failure::new(SkipReason::SwitchFailed, error))?,
        };
        session.release_now()?;
        Ok(Self { theirs: u64::from(theirs.unsigned_abs()), ours: copy })
    }

    /// Hands a file over, which `send` sends over the socket; returns its number there. The session closes it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn hand_over(
        &self,
        session: &mut Session,
        send: impl FnOnce(BorrowedFd<'_>) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        send(self.ours.as_fd())?;
        // struct msghdr, struct iovec, one byte of data; the control message comes where its number is
        // to be written.
        const HEADER: usize = 7 * WORD;
        const VECTOR: usize = HEADER + 2 * WORD;
        const LEN: usize = VECTOR + WORD;
        // struct cmsghdr is a length, a level and a type; then the descriptor, and padding.
        const CONTROL_HEADER: u64 = 2 * WORD as u64;
        const CONTROL: u64 = 3 * WORD as u64;
        let at = session.scratch(&[0; LEN])?.get();
        let word = |offset: usize| at + offset as u64;
        let flags = u64::from(RECEIVING.unsigned_abs());
        let written = |session: &Session, number: RemoteAddr| {
            let control = number.get() - CONTROL_HEADER;
            let words = [0, 0, word(HEADER), 1, control, CONTROL, 0, word(VECTOR), 1];
            let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            block.resize(LEN, 0);
            session.scratch(&block)
        };
        let fd = session
            .call_for_descriptor(|session, number| {
                let message = written(session, number)?;
                Ok(Call::new(c::SYS_recvmsg, [self.theirs, message.get(), flags]))
            })?
            .map_err(|errno| {
                let call = "recvmsg(SCM_RIGHTS)";
                Failure::new(SkipReason::SwitchFailed, SysError { call, errno })
            })?
            // The process had no descriptor left: the message came without it.
            .ok_or_else(|| Failure::new(SkipReason::FdLimit, "recvmsg brought no descriptor"))?;
        let fd = u64::from(fd.unsigned_abs());
        Ok(fd)
    }
}

/// Sends a file of this process's own over the socket.
///
/// # Errors
/// `switch_failed`.
pub(super) fn send(socket: BorrowedFd<'_>, file: &File) -> Result<(), Failure> {
    process::send_descriptor(socket, file.as_fd())
        .map_err(|error| Failure::new(SkipReason::SwitchFailed, error))
}

const WORD: usize = size_of::<u64>();
