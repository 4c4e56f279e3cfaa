//! The figures of a canary: the output of a command, or the answer of a Prometheus server.
//!
//! The module checks the answers: a number must be finite and a text short. Every wait has a limit.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use serde_json::Value;
use tiexec_core::escape::AsShown;
use tiexec_engine::programs::{self, Environment};
use tiexec_sys::impersonate::NOBODY;
use tiexec_sys::interrupt;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two checks during a wait.
const LOOK: Duration = Duration::from_millis(20);
/// Most bytes of a command's last output that are kept.
const LAST_WORDS: usize = 1000;
/// Most bytes of an answer.
const LONGEST: usize = 1 << 20;

/// The source of the counter of work.
pub(super) enum Counter {
    /// A command for the shell.
    Command(String),
    /// A server, and an expression.
    Query(Server, String),
}

/// The reason why there is no answer, or why the answer is bad.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    /// The reason in words.
    pub(super) why: String,
    /// True if the shell could not run the command; sh(1) then ends with 126 or 127.
    pub(super) is_no_command: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, is_no_command: false }
    }
}

impl Counter {
    /// Reads the counter.
    ///
    /// # Errors
    /// The reason why there is no number.
    pub(super) fn read(&self) -> Result<f64, Refusal> {
        match self {
            Self::Command(command) => {
                let output = shell(command)?;
                let none = || Refusal::from("it printed no number".to_owned());
                last_number(&output).ok_or_else(none)
            }
            Self::Query(server, expression) => match &server.values(expression)?[..] {
                [value] => Ok(*value),
                [] => Err("it has no value".to_owned().into()),
                several => {
                    let count = several.len();
                    Err(format!("it has {count} values; fix: --query 'sum(...)'").into())
                }
            },
        }
    }
}

/// The condition under which a canary goes on.
pub(super) enum Guard {
    /// A command for the shell that must succeed.
    Command(String),
    /// A server, and an expression that must have no value.
    Query(Server, String),
}

impl Guard {
    /// Returns why the canary must end, if it must. A guard that cannot be read counts as an objection.
    pub(super) fn objects(&self) -> Option<Refusal> {
        match self {
            Self::Command(command) => shell(command).err(),
            Self::Query(server, expression) => match server.values(expression) {
                Ok(values) => {
                    values.first().map(|value| format!("it has the value {value}").into())
                }
                Err(why) => Some(why.into()),
            },
        }
    }
}

/// Returns the user that runs the commands, if it is not this user.
pub(super) fn other_user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("nobody")
}

/// Runs a command by the shell and returns its output. If this process is root, the command runs as nobody.
///
/// # Errors
/// The command failed. The text has the last line of its standard error.
fn shell(command: &str) -> Result<String, Refusal> {
    let is_other = other_user().is_some();
    // The environment of root is not for another user to see.
    let environment = if is_other { Environment::Least } else { Environment::All };
    let mut sh = programs::command("sh", environment);
    sh.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if is_other {
        sh.uid(NOBODY).gid(NOBODY).env("HOME", "/");
    }
    let started = programs::start_contained(sh);
    let (mut child, leftovers) = started.map_err(|error| format!("it cannot be run: {error}"))?;
    let mut words = Words(child.stderr.take(), Vec::new());
    let told = listen(&mut child, &mut words);
    leftovers.end(&child);
    let status = child.wait().map_err(|error| error.to_string())?;
    let output = told?;
    if status.success() {
        return Ok(output);
    }
    words.take();
    let is_no_command = matches!(status.code(), Some(126 | 127));
    let why = match words.last() {
        Some(last) if is_no_command => last,
        Some(last) => format!("it failed: {status}: {last}"),
        None => format!("it failed: {status}"),
    };
    Err(Refusal { why, is_no_command })
}

/// The standard error of a command, and its last bytes.
struct Words(Option<ChildStderr>, Vec<u8>);

impl Words {
    /// Reads the available bytes. A command that writes without end does not block this function.
    fn take(&mut self) {
        let mut buffer = [0; 4096];
        for _ in 0..16 {
            let Some(pipe) = &mut self.0 else { return };
            match pipe.read(&mut buffer) {
                Ok(0) => self.0 = None,
                Ok(count) => {
                    self.1.extend(&buffer[..count]);
                    let old = self.1.len().saturating_sub(LAST_WORDS);
                    self.1.drain(..old);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_nothing_now) => return,
            }
        }
    }

    /// Returns the last line of the output.
    fn last(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.1);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().take(200).collect::<String>().shown().to_string())
    }
}

/// Makes the reads of a pipe nonblocking.
fn without_waiting(pipe: &impl AsFd) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| error.to_string();
    let flags = rustix::fs::fcntl_getfl(pipe).map_err(failed)?;
    rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(failed)
}

/// Reads the output of a command until it has ended.
fn listen(child: &mut Child, words: &mut Words) -> Result<String, String> {
    let end = Instant::now() + PATIENCE;
    let Some(mut pipe) = child.stdout.take() else { return Ok(String::new()) };
    without_waiting(&pipe)?;
    words.0.as_ref().map_or(Ok(()), without_waiting)?;
    let mut output = Vec::new();
    let (mut is_open, mut has_ended) = (true, false);
    loop {
        words.take();
        let mut buffer = [0; 4096];
        match pipe.read(&mut buffer) {
            Ok(0) => is_open = false,
            Ok(count) => {
                output.extend(&buffer[..count]);
                if output.len() > LONGEST {
                    return Err("it prints without end".to_owned());
                }
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        }
        // Children of the command may keep the pipe open, so the end of the command itself counts.
        if has_ended || (!is_open && programs::has_ended(child)) {
            return Ok(String::from_utf8_lossy(&output).into_owned());
        }
        if interrupt::asked() {
            return Err("it was ended".to_owned());
        }
        if Instant::now() >= end {
            return Err(format!("it took more than {} s", PATIENCE.as_secs()));
        }
        has_ended = programs::has_ended(child);
        if !has_ended {
            if is_open {
                let mut wait = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
                let time = Timespec::try_from(LOOK).ok();
                let _interrupted = poll(&mut wait, time.as_ref());
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Returns the last word of a text that is a number.
fn last_number(text: &str) -> Option<f64> {
    crate::ctl::bench::last_number(text)
}

/// A Prometheus server, reached by plain HTTP.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The host and the port.
    host: String,
    /// The path prefix of the interface.
    prefix: String,
}

impl Server {
    /// Parses the address of a server.
    ///
    /// # Errors
    /// The reason why the address is not valid.
    pub(super) fn at(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| {
            format!(
                "--prometheus {url:?}: it does not begin with http://; fix: use http://HOST:PORT"
            )
        })?;
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"@?#".contains(&byte);
        if host.is_empty() || !rest.bytes().all(plain) {
            return Err(format!(
                "--prometheus {url:?} is not an address; fix: use http://HOST:PORT"
            ));
        }
        let last = host.rsplit(']').next().unwrap_or(host);
        let host = if last.contains(':') { host.to_owned() } else { format!("{host}:80") };
        let prefix = prefix.trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        Ok(Self { host, prefix })
    }

    /// Queries the present values of an expression.
    fn values(&self, expression: &str) -> Result<Vec<f64>, String> {
        let path = format!("{}/api/v1/query?query={}", self.prefix, encoded(expression));
        let answer = self.get(&path).map_err(|why| format!("{}: {why}", self.host.shown()))?;
        values_of(&answer)
    }

    /// Gets a path and returns the body of the answer. With HTTP/1.0 the answer ends with the connection, and is not
    /// chunked.
    fn get(&self, path: &str) -> Result<Vec<u8>, String> {
        let end = Instant::now() + PATIENCE;
        let left = || {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || interrupt::asked() { None } else { Some(left) }
        };
        let late = || "no answer in time".to_owned();
        let text = |error: std::io::Error| error.to_string();
        let mut stream = Err("no address".to_owned());
        for address in self.host.to_socket_addrs().map_err(text)? {
            let connected = TcpStream::connect_timeout(&address, left().ok_or_else(late)?);
            stream = connected.map_err(|why| format!("{address}: {why}"));
            if stream.is_ok() {
                break;
            }
        }
        let mut stream = stream?;
        stream.set_write_timeout(left()).map_err(text)?;
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n\r\n",
            self.host
        );
        stream.write_all(request.as_bytes()).map_err(text)?;
        let mut answer = Vec::new();
        loop {
            stream.set_read_timeout(Some(left().ok_or_else(late)?)).map_err(text)?;
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => answer.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error.to_string()),
            }
            if answer.len() > LONGEST {
                return Err("the answer is too long".to_owned());
            }
        }
        let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let head = head.ok_or("the answer is not HTTP")?;
        Ok(answer.split_off(head + 4))
    }
}

/// Reads the values in an answer of the query interface.
fn values_of(answer: &[u8]) -> Result<Vec<f64>, String> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|_torn| "the answer is not Prometheus's".to_owned())?;
    if answer["status"] != "success" {
        let why = answer["error"].as_str().unwrap_or("the answer is not Prometheus's");
        return Err(why.chars().take(200).collect::<String>().shown().to_string());
    }
    let value = |value: &Value| -> Result<f64, String> {
        let number = value[1].as_str().and_then(|text| text.parse::<f64>().ok());
        number
            .filter(|number| number.is_finite())
            .ok_or_else(|| "a value is not a number".to_owned())
    };
    let result = &answer["data"]["result"];
    match answer["data"]["resultType"].as_str() {
        Some("scalar") => Ok(vec![value(result)?]),
        Some("vector") => {
            result.as_array().into_iter().flatten().map(|one| value(&one["value"])).collect()
        }
        _ => Err("it is neither a vector nor a scalar".to_owned()),
    }
}

/// Percent-encodes a text for an address (RFC 3986).
fn encoded(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_plain_http() {
        let of = |url: &str| Server::at(url).map(|server| (server.host, server.prefix)).ok();
        let is = |host: &str, prefix: &str| Some((host.to_owned(), prefix.to_owned()));
        assert_eq!(of("http://localhost:9090"), is("localhost:9090", ""));
        assert_eq!(of("http://p/prom/"), is("p:80", "/prom"));
        assert_eq!(of("http://[::1]:9"), is("[::1]:9", ""));
        assert_eq!(of("http://[::1]"), is("[::1]:80", ""));
        for odd in ["https://p", "p:9090", "http://", "http://a b", "http://a\r\nb", "http://u@h"] {
            assert_eq!(of(odd), None, "{odd}");
        }
        assert_eq!(encoded("sum(a{b=\"c d\"})"), "sum%28a%7Bb%3D%22c%20d%22%7D%29");
    }

    #[test]
    fn answers_are_prometheuss() {
        let of = |text: &str| values_of(text.as_bytes());
        let vector = |result: &str| {
            of(&format!(
                r#"{{"status":"success","data":{{"resultType":"vector","result":[{result}]}}}}"#
            ))
        };
        assert_eq!(vector(r#"{"metric":{},"value":[1.5,"42"]}"#), Ok(vec![42.0]));
        assert_eq!(vector(""), Ok(vec![]));
        assert_eq!(vector(r#"{"value":[1,"1"]},{"value":[1,"2"]}"#), Ok(vec![1.0, 2.0]));
        for odd in [r#"{"value":[1,"NaN"]}"#, r#"{"value":[1,"+Inf"]}"#, "7", r#"{"value":[1]}"#] {
            assert!(vector(odd).is_err(), "{odd}");
        }
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"7"]}}"#;
        assert_eq!(of(scalar), Ok(vec![7.0]));
        assert_eq!(of(r#"{"status":"error","error":"parse"}"#), Err("parse".to_owned()));
        for odd in ["", "[]", "{}", "null", r#"{"status":"success"}"#] {
            assert!(of(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn commands_are_not_believed() {
        let read = |command: &str| Counter::Command(command.to_owned()).read();
        assert_eq!(read("echo Questions 1,234"), Ok(1234.0));
        assert_eq!(read("echo 5; (sleep 100 &)"), Ok(5.0));
        for odd in ["echo none", "echo nan", "echo 5; exit 3", "yes 1", "kill -9 $$", "echo 1e999"]
        {
            assert!(read(odd).is_err(), "{odd}");
        }
        assert_eq!(Guard::Command("true".to_owned()).objects(), None);
        assert!(Guard::Command("exit 2".to_owned()).objects().is_some());
        let why = |command: &str| read(command).map_err(|Refusal { why, .. }| why).unwrap_err();
        assert_eq!(why("echo a >&2; echo b >&2; exit 3"), "it failed: exit status: 3: b");
        assert!(why("yes x | head -c 1000000 >&2; exit 3").ends_with(": x"));
        assert!(why("./none-of-that-name").contains("not found"));
        assert!(read("./none-of-that-name").is_err_and(|refusal| refusal.is_no_command));
    }
}
