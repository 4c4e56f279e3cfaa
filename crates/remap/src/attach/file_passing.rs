//! Hands a file to a running process over a pair of sockets that the process makes (unix(7), `SCM_RIGHTS`).
//!
//! The process needs neither to see the file's path nor to have the right to open it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::RecvFlags;
use tiexec_core::addr::RemoteAddr;
use tiexec_core::skip::FailureKind;
use tiexec_sys::impersonate::Place;
use tiexec_sys::process::Sender;
use tiexec_sys::{Errno, SysError, process};
use tiexec_tracee::remote;
use tiexec_tracee::session::Session;
use tiexec_tracee::syscall_manifest::ManifestEntry;

use super::AttachOrder;
use crate::credentials::place;
use tiexec_tracee::Failure;

/// The calls that the process makes to receive a file, beside
/// [`DESCRIPTOR_CALLS`](tiexec_tracee::session::DESCRIPTOR_CALLS).
pub(super) const CALLS: [ManifestEntry; 3] =
    [remote::SOCKETPAIR, remote::RECVMSG, remote::SEND_BYTE];

/// A file that was handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Its number in the process.
    pub fd: u64,
    /// True if the thread is known to be able to read the byte at `read`.
    pub has_read: bool,
}

/// Both ends of a pair of sockets: one in the process, one here.
#[derive(Debug)]
pub(super) struct Passage {
    theirs: u64,
    ours: OwnedFd,
    /// The process, unless it is trusted. Another of its threads may connect this end to a third process at any moment.
    /// That process must not take the message for one of TiExec's user, such as root.
    sender: Option<Sender>,
}

impl Passage {
    /// Has the process make a pair of sockets; the session closes them.
    ///
    /// # Errors
    /// `fd_limit`; `switch_failed` for any other refusal. Nothing is left in the process.
    pub(super) fn open(session: &mut Session, order: &AttachOrder<'_>) -> Result<Self, Failure> {
        let AttachOrder { target, workers, .. } = *order;
        let refused = |error: SysError| {
            let no_number = error.errno == Errno::MFILE;
            let reason = if no_number { FailureKind::FdLimit } else { FailureKind::SwitchFailed };
            Failure::of(reason)(error)
        };
        let [theirs, ours] = session.call_for_descriptors(remote::socketpair)?.map_err(refused)?;
        let copy = match workers.fetcher() {
            Some(fetcher) => fetcher.socket_of(target, ours)?,
            None => process::descriptor_of(target.task, ours)
                .map_err(Failure::of(FailureKind::SwitchFailed))?,
        };
        session.release_soon()?;
        let sender = workers.fetcher().and_then(|_| place(&target.credentials));
        let sender = sender.map(|Place { uid, gid, .. }| Sender { pid: target.pid, uid, gid });
        Ok(Self { theirs: u64::from(theirs.unsigned_abs()), ours: copy, sender })
    }

    /// Hands over the file that `send` sends over the socket; the session closes it. If that takes no wait of its
    /// own, the thread also sends the byte at `read`, which succeeds only if the thread may read that byte.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn hand_over(
        &self,
        session: &mut Session,
        send: impl Fn(BorrowedFd<'_>, Option<Sender>) -> Result<(), Failure>,
        read: Option<RemoteAddr>,
    ) -> Result<Received, Failure> {
        send(self.ours.as_fd(), self.sender)?;
        // struct msghdr, struct iovec, one byte of data. The control message lies so that the kernel writes the
        // descriptor's number to `number`.
        const HEADER: usize = 7 * WORD;
        const VECTOR: usize = HEADER + 2 * WORD;
        const LEN: usize = VECTOR + WORD;
        // struct cmsghdr is a length, a level and a type. The descriptor and padding follow.
        const CONTROL_HEADER: u64 = 2 * WORD as u64;
        const CONTROL: u64 = 3 * WORD as u64;
        let at = session.scratch(&[0; LEN])?.get();
        let word = |offset: usize| at + offset as u64;
        let written = |session: &Session, number: RemoteAddr| {
            let control = number.get() - CONTROL_HEADER;
            let words = [0, 0, word(HEADER), 1, control, CONTROL, 0, word(VECTOR), 1];
            let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            block.resize(LEN, 0);
            session.scratch(&block)
        };
        let receive = |session: &Session, number: RemoteAddr| {
            let message = written(session, number)?;
            Ok(remote::recvmsg(self.theirs, message))
        };
        if session.has_batches() {
            let byte = read.filter(|_| session.may(&remote::SEND_BYTE));
            let byte = byte.map(|at| remote::send_byte(self.theirs, at));
            if let Some(fd) = session.batch_for_descriptor(receive, byte)? {
                let has_read = byte.is_some() && self.has_come();
                return Ok(Received { fd: u64::from(fd.unsigned_abs()), has_read });
            }
            // The batch brought no descriptor and no reason. Receive by a single call, which returns the error. The
            // first message may be lost, so send it again.
            send(self.ours.as_fd(), self.sender)?;
        }
        let fd = session
            .call_for_descriptor(receive)?
            .map_err(Failure::of(FailureKind::SwitchFailed))?
            // The message came without a descriptor: the process had no number free.
            .ok_or_else(|| Failure::new(FailureKind::FdLimit, "recvmsg brought no descriptor"))?;
        Ok(Received { fd: u64::from(fd.unsigned_abs()), has_read: false })
    }

    /// Takes a byte that the thread has sent.
    fn has_come(&self) -> bool {
        rustix::net::recv(&self.ours, &mut [0_u8], RecvFlags::DONTWAIT)
            .is_ok_and(|(_, len)| len == 1)
    }
}

/// Sends a file of this process's own over the socket, in the name of the process that receives it.
///
/// # Errors
/// `switch_failed`.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    file: &File,
    sender: Option<Sender>,
) -> Result<(), Failure> {
    process::send_descriptor(socket, file.as_fd(), sender)
        .map_err(Failure::of(FailureKind::SwitchFailed))
}

const WORD: usize = size_of::<u64>();
