//! Packets with a descriptor, between TiExec's own processes: a pair of `SOCK_SEQPACKET` sockets (unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::error::{Errno, SysError};

/// The longest packet, in bytes.
pub const LONGEST: usize = 128 << 10;

/// The content of a packet: its bytes, and a descriptor or none.
pub type Packet = (Vec<u8>, Option<OwnedFd>);

/// One end of a pair.
#[derive(Debug)]
pub struct Packets(OwnedFd);

/// Makes a pair.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn pair() -> Result<(Packets, Packets), SysError> {
    let kind = SocketType::SEQPACKET;
    let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(SysError::of("socketpair(SOCK_SEQPACKET)"))?;
    Ok((Packets(one), Packets(other)))
}

impl Packets {
    /// Sends a packet, with a descriptor or none. Never waits.
    ///
    /// # Errors
    /// EPIPE if the other end is closed; EAGAIN if it does not read; EMSGSIZE above [`LONGEST`].
    pub fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), SysError> {
        const CALL: &str = "sendmsg(SOCK_SEQPACKET)";
        if bytes.is_empty() || bytes.len() > LONGEST {
            return Err(SysError { call: CALL, errno: Errno::MSGSIZE });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags)
            .map_err(SysError::of(CALL))?;
        Ok(())
    }

    /// Waits for a packet until `deadline`, for ever without one; `None` if none came in time.
    ///
    /// # Errors
    /// EPIPE once the other end is closed; EMSGSIZE for a packet above [`LONGEST`].
    pub fn receive(&self, deadline: Option<Instant>) -> Result<Option<Packet>, SysError> {
        const CALL: &str = "recvmsg(SOCK_SEQPACKET)";
        if !self.wait(deadline)? {
            return Ok(None);
        }
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
            .map_err(SysError::of(CALL))?;
        let mut file = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.last();
            }
        }
        match received.bytes {
            0 => Err(SysError { call: CALL, errno: Errno(libc::EPIPE) }),
            len if len < LONGEST => {
                bytes.truncate(len);
                Ok(Some((bytes, file)))
            }
            _ => Err(SysError { call: CALL, errno: Errno::MSGSIZE }),
        }
    }

    /// Waits until there is something to receive; `false` if the time is over.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, SysError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(SysError::of("poll")(errno)),
            }
        }
    }

    /// As [`receive`](Self::receive), for at most `patience`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_within(&self, patience: Duration) -> Result<Option<Packet>, SysError> {
        self.receive(Some(Instant::now() + patience))
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_bytes_and_a_descriptor() {
        let (one, other) = pair().expect("sockets");
        assert!(other.receive_within(Duration::ZERO).expect("open").is_none());
        one.send(b"first", None).expect("open");
        one.send(b"second", Some(one.as_fd())).expect("open");
        let first = other.receive(None).expect("open").expect("sent");
        assert_eq!((&first.0[..], first.1.is_some()), (&b"first"[..], false));
        let second = other.receive(None).expect("open").expect("sent");
        assert_eq!((&second.0[..], second.1.is_some()), (&b"second"[..], true));
        assert_eq!(
            one.send(&vec![0; LONGEST + 1], None).map_err(|e| e.errno.0),
            Err(libc::EMSGSIZE)
        );
        drop((one, second));
        assert_eq!(other.receive(None).map(|_| ()).map_err(|e| e.errno.0), Err(libc::EPIPE));
    }
}
