//! The agent's HTTP server: `/status` and `/metrics` on a unix(7) socket, `/metrics` alone at a TCP address, and on a
//! second unix(7) socket the answers to launches that hand over their program.
//!
//! The agent has one thread, which must not block while programs wait. So it serves all clients at the same time, and
//! waits for none. A client has 5 s from its connection to the end of its answer. If there are too many clients, the
//! oldest of the user or the machine with the most clients goes, so that nobody keeps others away by half a request.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tiexec_remap::files;
use tiexec_remap::trusted_directory::{self, Rule, Trust};
use tiexec_sys::peer;
use tiexec_sys::procfs::ProcDir;

/// The directory of the socket, in which only root can create names.
const DIRECTORY: &str = "/run/tiexec";
/// The socket.
pub const SOCKET: &str = "/run/tiexec/agent.sock";
const NAME: &str = "agent.sock";
/// The name of the [socket for launches](tiexec_engine::follow::hand_over::SOCKET) in the directory.
const LAUNCHES_NAME: &str = "launch.sock";
/// The group whose members may connect.
const GROUP: &str = "tiexec";
/// The time that a client has to send its request and to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before the agent writes again to a client that reads slowly.
const AGAIN: Duration = Duration::from_millis(50);
/// Most bytes of a request.
const LONGEST: usize = 4096;
/// Most clients of a socket.
const MOST: usize = 64;

/// An answer: its content type, and the content.
pub(crate) type Answer = (&'static str, String);

/// The reason why the agent has no socket.
#[derive(Debug)]
pub(crate) enum NoSocket {
    /// Another agent listens there.
    Another,
    /// Another reason, in words.
    Other(String),
}

impl From<String> for NoSocket {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// Opens the agent's directory.
fn directory() -> Result<OwnedFd, String> {
    let rule = Rule { user: 0, trust: Trust::Own { sticky: true }, make: &[0o755] };
    match trusted_directory::open(Path::new(DIRECTORY), &rule) {
        Ok(Some((directory, _))) => Ok(directory),
        Ok(None) => Err("there is no /run".to_owned()),
        Err(distrust) => Err(distrust.to_string()),
    }
}

/// Returns whether an agent listens at the socket. The children of an agent that was killed have its socket, too, until they
/// end a moment later. So the process that called listen(2) must live. One in a PID namespace that this process does not see
/// counts as living.
fn another_listens() -> bool {
    let Ok(stream) = UnixStream::connect(SOCKET) else { return false };
    let lives = |pid| {
        let status = ProcDir::of(pid).and_then(|process| process.status());
        status.is_ok_and(|status| status.has_mm)
    };
    peer::credentials(stream.as_fd()).is_ok_and(|(pid, _)| pid.is_none_or(lives))
}

/// Opens the socket, in place of that of an ended agent.
///
/// # Errors
/// Another agent listens there, another user could have replaced the directory, or the socket cannot be made.
pub(crate) fn listen() -> Result<UnixListener, NoSocket> {
    let directory = directory()?;
    if another_listens() {
        return Err(NoSocket::Another);
    }
    Ok(listen_in(&directory, NAME, 0o660, group())?)
}

/// Opens the socket for launches, to which every user may connect, in place of that of an ended agent.
///
/// # Errors
/// As [`listen`], in words.
pub(crate) fn listen_for_launches() -> Result<UnixListener, String> {
    listen_in(&directory()?, LAUNCHES_NAME, 0o666, None)
}

fn listen_in(
    directory: &OwnedFd,
    name: &str,
    mode: u32,
    group: Option<u32>,
) -> Result<UnixListener, String> {
    let listener =
        files::listen(directory, name, mode, group).map_err(|error| error.to_string())?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    Ok(listener)
}

/// Listens at an address. Also returns the address, because the kernel chooses a port if the port is 0.
///
/// # Errors
/// The errors of bind(2).
pub(crate) fn listen_at(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// A socket to which clients connect.
pub(crate) trait Listener: AsFd {
    /// Accepts a client that waits.
    ///
    /// # Errors
    /// The errors of accept(2).
    fn accept_client(&self) -> io::Result<(OwnedFd, Peer)>;
}

/// The origin of a client. A user can have many processes, and a machine many connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    User(Option<u32>),
    Machine(IpAddr),
}

impl Listener for UnixListener {
    fn accept_client(&self) -> io::Result<(OwnedFd, Peer)> {
        let (client, _) = self.accept()?;
        let user = peer::credentials(client.as_fd()).map(|(_, user)| user);
        Ok((client.into(), Peer::User(user.ok())))
    }
}

impl Listener for TcpListener {
    fn accept_client(&self) -> io::Result<(OwnedFd, Peer)> {
        let (client, address) = self.accept()?;
        Ok((client.into(), Peer::Machine(address.ip())))
    }
}

/// Looks the group up in `/etc/group`: the static program has no other source.
fn group() -> Option<u32> {
    let text = std::fs::read_to_string("/etc/group").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == GROUP).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// A socket, and the clients that have connected to it. None of them makes the agent or another client wait.
#[derive(Debug)]
pub(crate) struct Server<L> {
    listener: L,
    /// The oldest first.
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: OwnedFd,
    peer: Peer,
    since: Instant,
    request: Vec<u8>,
    /// The rest of the answer. `None` until the request is there.
    answer: Option<Vec<u8>>,
}

/// Whether the agent waits for more from a client.
#[derive(PartialEq, Eq)]
enum Next {
    More,
    Nothing,
}

impl<L: Listener> Server<L> {
    pub(crate) fn new(listener: L) -> Self {
        Self { listener, clients: Vec::new() }
    }

    /// Returns the descriptors that have input if a client connects or asks.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asking = self.clients.iter().filter(|client| client.answer.is_none());
        asking.map(|client| client.stream.as_fd()).chain([self.listener.as_fd()])
    }

    /// Returns the time after which a client needs the agent, whether or not there is input.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let client = self.clients.first()?;
        let is_slow = self.clients.iter().any(|client| client.answer.is_some());
        let left = PATIENCE.saturating_sub(client.since.elapsed());
        Some(if is_slow { left.min(AGAIN) } else { left })
    }

    /// Does what can be done for the clients now.
    /// `of` gets the path of a request, and the client's socket.
    pub(crate) fn serve(&mut self, mut of: impl FnMut(&str, BorrowedFd<'_>) -> Option<Answer>) {
        self.clients.retain_mut(|client| client.go_on(&mut of) == Next::More);
        for _ in 0..2 * MOST {
            let Ok((stream, peer)) = self.listener.accept_client() else { return };
            let request = Vec::new();
            let mut client = Client { stream, peer, since: Instant::now(), request, answer: None };
            if client.go_on(&mut of) == Next::Nothing {
                continue;
            }
            if self.clients.len() == MOST {
                self.drop_one();
            }
            self.clients.push(client);
        }
    }

    /// Drops the oldest client of the peer that has the most.
    fn drop_one(&mut self) {
        let count = |peer| self.clients.iter().filter(|client| client.peer == peer).count();
        let most = self.clients.iter().map(|client| count(client.peer)).max();
        let busiest = self.clients.iter().position(|client| Some(count(client.peer)) == most);
        busiest.map(|at| self.clients.remove(at));
    }
}

impl Client {
    /// Reads and writes as much as is possible without waiting.
    fn go_on(&mut self, of: &mut impl FnMut(&str, BorrowedFd<'_>) -> Option<Answer>) -> Next {
        if self.since.elapsed() >= PATIENCE {
            return Next::Nothing;
        }
        while self.answer.is_none() {
            let mut buffer = [0; 512];
            match rustix::net::recv(&self.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((count @ 1.., _)) if self.request.len() + count <= LONGEST => {
                    self.request.extend(&buffer[..count]);
                }
                Err(Errno::AGAIN) => return Next::More,
                Err(Errno::INTR) => continue,
                _ => return Next::Nothing,
            }
            if self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                let Some(path) = path(&self.request) else { return Next::Nothing };
                self.answer = Some(answer(of(path, self.stream.as_fd())));
            }
        }
        while let Some(rest) = self.answer.as_mut().filter(|rest| !rest.is_empty()) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.stream, rest, flags) {
                Ok(count) => drop(rest.drain(..count)),
                Err(Errno::AGAIN) => return Next::More,
                Err(Errno::INTR) => {}
                Err(_gone) => return Next::Nothing,
            }
        }
        Next::Nothing
    }
}

/// Returns the bytes of an answer.
fn answer(answer: Option<Answer>) -> Vec<u8> {
    let (status, (kind, content)) = match answer {
        Some(answer) => ("200 OK", answer),
        None => ("404 Not Found", ("text/plain", "/metrics\n".to_owned())),
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    (head + &content).into_bytes()
}

fn path(request: &[u8]) -> Option<&str> {
    let line = request.split(|&byte| byte == b'\r').next()?;
    let rest = std::str::from_utf8(line).ok()?.strip_prefix("GET ")?;
    rest.split([' ', '?']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_path() {
        assert_eq!(path(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"), Some("/status"));
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n"), Some("/metrics"));
        assert_eq!(path(b"POST /status HTTP/1.1\r\n\r\n"), None);
        assert_eq!(path(b"\xff"), None);
    }
}
