//! The hand-over of a launch to a running agent. The agent then works on what comes after the program's start, and no
//! process of TiExec stays beside the program.
//!
//! The launch asks over a unix(7) socket, and the agent answers whether it takes the process. The kernel tells the agent
//! which process connected (`SO_PEERPIDFD`), so no process can hand over another one. The launch asks once it knows that
//! the program may come to more text. An agent that does not answer at once has not taken the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use tiexec_core::config::Settings;
use tiexec_sys::peer;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::clock;
use tiexec_tracee::handshake::rehearse;

/// The agent's socket for launches. Every user may connect. A program in another mount namespace need not see it.
pub const SOCKET: &str = "/run/tiexec/launch.sock";
/// The path of the request.
pub const REQUEST: &str = "/launched";
/// The answer's content if the agent takes the process. Any other content says why not.
pub const TAKEN: &str = "taken\n";

/// A path that the agent does not know: its answer changes nothing.
const REHEARSAL: &str = "/";
/// The longest wait for the answer. The agent answers in less than a millisecond, unless it works on a process.
const PATIENCE: Duration = Duration::from_millis(20);
/// Most bytes of an answer.
const LONGEST: usize = 1024;

/// Returns whether the agent would do the same as a companion with these settings. An agent knows no settings of a
/// launch, and treats programs by its own defaults.
pub fn suits(settings: &Settings) -> bool {
    let Settings { strict, deadline, evict, ref report, json, quiet, verbose, .. } = *settings;
    // These say nothing about the time after the start.
    let report = report.clone();
    let plain =
        Settings { strict, deadline, evict, report, json, quiet, verbose, ..Settings::default() };
    *settings == plain
}

/// Returns whether an agent may listen here.
pub fn may_listen() -> bool {
    Path::new(SOCKET).exists()
}

/// Asks the agent to take this process, and returns whether the agent has taken it. Returns false if no agent listens, or
/// a seccomp filter kills a process that asks.
pub fn is_taken() -> bool {
    if ProcDir::this_may_have_filters() && rehearse(rehearsal).is_err() {
        return false;
    }
    let Ok(socket) = request(REQUEST) else { return false };
    let answer = hear(&socket);
    let content = answer.split_once("\r\n\r\n").map(|(_, content)| content);
    answer.starts_with("HTTP/1.0 200 ") && content == Some(TAKEN)
}

/// Makes the calls of a question, and changes nothing. Fails if the agent does not answer: then not all calls were made.
fn rehearsal() -> io::Result<()> {
    let answer = hear(&request(REHEARSAL)?);
    if answer.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
}

/// Connects to root's agent, and sends a request. Never waits.
fn request(path: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(SOCKET)?)?;
    let (_, user) = peer::credentials(socket.as_fd()).map_err(io::Error::other)?;
    if user != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    send(&socket, request.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(socket)
}

/// Reads until the agent closes the socket, for at most [`PATIENCE`].
fn hear(socket: &OwnedFd) -> String {
    let end = Instant::now() + clock::answer(PATIENCE);
    let mut heard = Vec::new();
    while heard.len() < LONGEST {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { break };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(1..) | Err(Errno::INTR) => {}
            Ok(0) | Err(_) => break,
        }
        let mut piece = [0; 256];
        match recv(socket, &mut piece[..], RecvFlags::DONTWAIT) {
            Ok((len @ 1.., _)) => heard.extend_from_slice(piece.get(..len).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&heard).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_agent_does_too_is_handed_over() {
        let plain = Settings { verbose: true, strict: true, ..Settings::default() };
        assert!(suits(&plain) && suits(&Settings::default()));
        let seconds = Some(Duration::from_secs(1));
        assert!(!suits(&Settings { settle: seconds, ..Settings::default() }));
        // The deadline is over when the launch asks.
        assert!(suits(&Settings { deadline: seconds, ..Settings::default() }));
        assert!(!suits(&Settings { only: vec!["/usr/*".to_owned()], ..Settings::default() }));
        assert!(!suits(&Settings { until_exec: Some("node".to_owned()), ..Settings::default() }));
    }
}
