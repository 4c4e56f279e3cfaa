//! Typed messages between two processes of TiExec's, on a stream socket.
//!
//! Each message is a frame: its length in bytes (four bytes, the lowest first), and the value as JSON.

use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tiexec_core::skip::FailureKind;
use tiexec_tracee::Failure;

/// The longest message, in bytes. No work has so much to say.
const LONGEST: usize = 64 << 20;
/// The bytes of a message's length.
const HEAD: usize = size_of::<u32>();

/// Sends a message. Blocks while the socket is full.
///
/// # Errors
/// EPIPE: nobody receives any more. `InvalidData`: the value has no JSON, or a longer one than [`LONGEST`].
pub(super) fn send(mut to: &UnixStream, message: &impl Serialize) -> std::io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let len = u32::try_from(text.len()).ok().filter(|_| text.len() <= LONGEST);
    let len = len.ok_or_else(|| Error::from(ErrorKind::InvalidData))?;
    to.write_all(&[len.to_le_bytes().as_slice(), &text].concat())
}

/// The receiving end of the socket, and the bytes of a message that has not arrived whole.
#[derive(Debug)]
pub(super) struct Messages {
    from: UnixStream,
    received: Vec<u8>,
}

/// The reason for the absence of a message.
#[derive(Debug)]
pub(super) enum NoMessage {
    /// None has arrived.
    NotYet,
    /// The other process has closed its end.
    Ended,
    /// `helper_died`: the socket or the message cannot be read.
    Failed(Failure),
}

impl Messages {
    /// Takes the receiving end, which never blocks from now on.
    ///
    /// # Errors
    /// As fcntl(2); no case is known.
    pub(super) fn new(from: UnixStream) -> std::io::Result<Self> {
        from.set_nonblocking(true)?;
        Ok(Self { from, received: Vec::new() })
    }

    /// Returns the next message if it has arrived. Never blocks.
    ///
    /// # Errors
    /// The reason for its absence.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<T, NoMessage> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            match self.from.read(&mut buffer) {
                Ok(0) => return Err(NoMessage::Ended),
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(NoMessage::NotYet);
                }
                Err(error) => return Err(NoMessage::Failed(unreadable(error))),
            }
        }
    }

    /// Takes a message from the bytes received so far.
    fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, NoMessage> {
        let Some(head) = self.received.first_chunk::<HEAD>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > LONGEST {
            return Err(NoMessage::Failed(unreadable("a message is too long")));
        }
        let Some(text) = self.received.get(HEAD..HEAD + len) else { return Ok(None) };
        let message = serde_json::from_slice(text).map_err(unreadable).map_err(NoMessage::Failed);
        self.received.drain(..HEAD + len);
        message.map(Some)
    }
}

impl AsFd for Messages {
    /// Readable when there may be a message, and when there is nothing more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }
}

fn unreadable(why: impl ToString) -> Failure {
    Failure::new(FailureKind::HelperDied, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, Messages) {
        let (to, from) = UnixStream::pair().expect("a socket");
        (to, Messages::new(from).expect("a socket"))
    }

    #[test]
    fn messages_arrive_in_their_order_and_whole() {
        let (to, mut messages) = pair();
        assert!(matches!(messages.next::<String>(), Err(NoMessage::NotYet)));
        let long = "x".repeat(40_000);
        for message in ["one", "", &long] {
            send(&to, &message).expect("room");
        }
        drop(to);
        assert_eq!(messages.next::<String>().expect("the first"), "one");
        assert_eq!(messages.next::<String>().expect("the second"), "");
        assert_eq!(messages.next::<String>().expect("the third"), long);
        assert!(matches!(messages.next::<String>(), Err(NoMessage::Ended)));
    }

    #[test]
    fn part_of_a_message_is_none() {
        let (mut to, mut messages) = pair();
        to.write_all(&[3, 0, 0, 0, b'1', b'2']).expect("room");
        assert!(matches!(messages.next::<u32>(), Err(NoMessage::NotYet)));
        to.write_all(b"3").expect("room");
        assert_eq!(messages.next::<u32>().expect("a number"), 123);
    }

    #[test]
    fn what_is_no_message_is_a_failure() {
        for bytes in [&[0xff; 4][..], &[1, 0, 0, 0, b'x']] {
            let (mut to, mut messages) = pair();
            to.write_all(bytes).expect("room");
            assert!(matches!(messages.next::<u32>(), Err(NoMessage::Failed(_))), "{bytes:?}");
        }
    }
}
