//! The agent's HTTP server: `/status` and `/metrics` on a unix(7) socket, and `/metrics` alone at a TCP address.
//!
//! The agent has one thread, which must not block while programs wait. A client therefore has 0.2 s to send its request
//! and 0.2 s to read the answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tiexec_remap::trusted_directory::{self, Rule};

/// The directory of the socket, in which only root can create names.
const DIRECTORY: &str = "/run/tiexec";
/// The socket.
pub const SOCKET: &str = "/run/tiexec/agent.sock";
/// The group whose members may connect.
const GROUP: &str = "tiexec";
/// The time that a client has to send its request, and again to read the answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// Most bytes of a request.
const LONGEST: usize = 4096;
/// Most clients that the agent answers before it continues its other work.
const MOST: usize = 4;

/// An answer: its content type, and the content.
pub(crate) type Answer = (&'static str, String);

/// The reason why there is no socket.
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

/// Opens the socket. The socket of an ended agent refuses connections (unix(7)), so this function replaces it.
///
/// # Errors
/// Another agent listens there, another user could have replaced the directory, or the socket cannot be made.
pub(crate) fn listen() -> Result<UnixListener, NoSocket> {
    let path = Path::new(SOCKET);
    let rule = Rule { user: 0, sticky: true, make: &[0o755] };
    match trusted_directory::open(Path::new(DIRECTORY), &rule) {
        Ok(Some(_)) => {}
        Ok(None) => return Err("there is no /run".to_owned().into()),
        Err(distrust) => return Err(distrust.to_string().into()),
    }
    if UnixStream::connect(path).is_ok() {
        return Err(NoSocket::Another);
    }
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        let _somebody_did = std::fs::remove_file(path);
    }
    let text = |error: io::Error| error.to_string();
    // The umask keeps other users from connecting before the mode is set.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(text)?;
    if let Some(group) = group() {
        chown(path, None, Some(group)).map_err(text)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(text)?;
    listener.set_nonblocking(true).map_err(text)?;
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
pub(crate) trait Listener {
    type Client: Read + Write + AsFd;
    fn accept_client(&self) -> io::Result<Self::Client>;
}

impl Listener for UnixListener {
    type Client = UnixStream;
    fn accept_client(&self) -> io::Result<UnixStream> {
        self.accept().map(|(client, _)| client)
    }
}

impl Listener for TcpListener {
    type Client = TcpStream;
    fn accept_client(&self) -> io::Result<TcpStream> {
        self.accept().map(|(client, _)| client)
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

/// Answers the clients that wait.
pub(crate) fn answer(listener: &impl Listener, mut of: impl FnMut(&str) -> Option<Answer>) {
    for _ in 0..MOST {
        let Ok(mut client) = listener.accept_client() else { return };
        let Ok(()) = rustix::io::ioctl_fionbio(&client, false) else { continue };
        let Some(path) = asked(&mut client) else { continue };
        let (status, (kind, content)) = match of(&path) {
            Some(answer) => ("200 OK", answer),
            None => ("404 Not Found", ("text/plain", "/metrics\n".to_owned())),
        };
        let head = format!(
            "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            content.len()
        );
        let _may_have_gone = write(&mut client, (head + &content).as_bytes());
    }
}

/// Writes all bytes, or fails after [`PATIENCE`].
fn write(client: &mut (impl Write + AsFd), mut bytes: &[u8]) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        set_socket_timeout(&*client, Timeout::Send, Some(left(end)?))?;
        let count = client.write(bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Returns the path of a request; `None` if the input is no request or does not arrive within [`PATIENCE`].
fn asked(client: &mut (impl Read + AsFd)) -> Option<String> {
    let end = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        set_socket_timeout(&*client, Timeout::Recv, Some(left(end).ok()?)).ok()?;
        let mut buffer = [0; 512];
        match client.read(&mut buffer) {
            Ok(count @ 1..) if request.len() < LONGEST => request.extend(&buffer[..count]),
            _ => return None,
        }
    }
    path(&request).map(str::to_owned)
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
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
