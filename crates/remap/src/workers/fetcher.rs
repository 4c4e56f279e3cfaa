//! The fetcher: copies a descriptor out of the process (pidfd_getfd(2)), and passes it on if it is the socket that
//! the process was made to create.
//!
//! TiExec read the descriptor's number from the process's memory, so it may be the number of any file by now.
//! Closing a copy of a FUSE file waits for the file's server, so only the fetcher ever holds such a copy.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::Signal;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::{Direction, SocketWait, is_unix_socket_of, socket_wait};
use tiexec_sys::process_name::Role;
use tiexec_sys::seqpacket::{Packet, Packets};
use tiexec_sys::{Pid, process};

use super::{IN_A_STOP, Worker};
use tiexec_tracee::Failure;
use tiexec_tracee::target::Target;

/// The fetcher, as seen by the tracer.
#[derive(Debug)]
pub(crate) struct Fetcher {
    pub(super) worker: Worker,
}

impl Fetcher {
    /// Starts the fetcher.
    ///
    /// # Errors
    /// `fork_failed`.
    pub(super) fn start() -> Result<Self, Failure> {
        let task = "the copy of a descriptor of the process";
        Ok(Self { worker: Worker::start(Role::Fetcher, task, serve)? })
    }

    /// Returns its process.
    pub(crate) const fn pid(&self) -> Pid {
        self.worker.pid
    }

    /// Returns a copy of the target's descriptor `number`, which must be a socket of unix(7).
    ///
    /// # Errors
    /// `switch_failed`: the descriptor is not such a socket, or the process did not make the socket. `helper_died`: the
    /// worker did not answer.
    pub(crate) fn socket_of(&self, target: &Target, number: i32) -> Result<OwnedFd, Failure> {
        match self.ask(Wanted::Copy, target, number)? {
            (_, Some(socket)) => Ok(socket),
            (why, None) => {
                Err(Failure::new(FailureKind::SwitchFailed, String::from_utf8_lossy(&why)))
            }
        }
    }

    /// Returns how calls on the target's socket `number` wait.
    pub(super) fn wait_of(&self, target: &Target, number: i32, direction: Direction) -> SocketWait {
        let wanted = match direction {
            Direction::Receive => Wanted::ReceivingWait,
            Direction::Send => Wanted::SendingWait,
        };
        let answer = self.ask(wanted, target, number).map(|(answer, _)| answer);
        let is_it =
            |(_, word): &&(SocketWait, &[u8])| answer.as_deref().is_ok_and(|it| it == *word);
        WAITS.iter().find(is_it).map_or(SocketWait::Limited, |&(wait, _)| wait)
    }

    fn ask(&self, wanted: Wanted, target: &Target, number: i32) -> Result<Packet, Failure> {
        let [task, process] = [target.task, target.pid].map(|pid| pid.as_raw_nonzero().get());
        let words = [task, process, number, wanted as i32];
        let request: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.worker.ask(&request, None)?;
        self.worker.answer(IN_A_STOP)
    }
}

/// The purpose for which the fetcher gets a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// Pass it on.
    Copy = 0,
    /// Say how receiving calls on it wait.
    ReceivingWait = 1,
    /// Say how sending calls on it wait.
    SendingWait = 2,
}

/// The answers to how calls wait.
const WAITS: [(SocketWait, &[u8]); 3] = [
    (SocketWait::Plain, b"plain"),
    (SocketWait::Limited, b"limited"),
    (SocketWait::ForMore, b"for more"),
];

fn serve(packets: &Packets) {
    process::close_all_except(&[packets.as_fd()]);
    let _unchanged = process::end_with_parent(Some(Signal::KILL));
    while let Ok(Some((request, _))) = packets.receive(None) {
        let (words, _) = request.as_chunks::<4>();
        let &[task, process, number, wanted] = words else { return };
        let [task, process] = [task, process].map(|pid| Pid::from_raw(i32::from_ne_bytes(pid)));
        let (Some(task), Some(process)) = (task, process) else { return };
        let direction = match i32::from_ne_bytes(wanted) {
            wanted if wanted == Wanted::ReceivingWait as i32 => Some(Direction::Receive),
            wanted if wanted == Wanted::SendingWait as i32 => Some(Direction::Send),
            _ => None,
        };
        let answer = match (fetch(task, i32::from_ne_bytes(number)), direction) {
            (Ok(socket), Some(direction)) => {
                let found = socket_wait(socket.as_fd(), direction);
                let word = WAITS.iter().find(|(wait, _)| *wait == found).map(|(_, word)| *word);
                packets.send(word.unwrap_or_default(), None)
            }
            // The kernel notes the process's ID, also if its first thread has ended.
            (Ok(socket), None) if is_unix_socket_of(socket.as_fd(), process) => {
                packets.send(b"socket", Some(socket.as_fd()))
            }
            (Ok(_), None) => packets.send(b"the socket is not one that the process made", None),
            (Err(why), _) => packets.send(why.as_bytes(), None),
        };
        if answer.is_err() {
            return;
        }
    }
}

fn fetch(pid: Pid, number: i32) -> Result<OwnedFd, String> {
    let copy = process::descriptor_of(pid, number).map_err(|error| error.to_string())?;
    // The link shows the type without a request to the file. fstat(2) would send one to its file system.
    let link = std::fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    if !link.is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:[")) {
        return Err("the descriptor is not that of the socket".to_owned());
    }
    Ok(copy)
}
