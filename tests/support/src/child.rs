//! A child with a time limit: its output, its end, and its state while the test holds it.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::smaps::{Coverage, coverage};

/// Returns the time limit for a test that asks for `limit`. The limit is longer on a machine whose environment says
/// that it is slow.
pub fn patience(limit: Duration) -> Duration {
    let factor = std::env::var("TIEXEC_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    limit * factor.unwrap_or(1)
}

/// The time limit of a child for which a test sets no other one: no more than an assurance that the test ends. A machine may
/// stand still for minutes.
pub const LONGEST: Duration = Duration::from_secs(400);

/// A running child. Drop kills it and its process group.
pub struct Held {
    child: std::process::Child,
    stdin: Option<ChildStdin>,
    out: Stream,
    err: Stream,
    /// Its command line, for messages.
    pub command: String,
    until: Instant,
    group: bool,
    /// The lock that keeps other tests from changing the machine while the child runs.
    _quiet: Option<super::machine::Quiet>,
}

/// How a child ended.
#[derive(Debug)]
pub struct Done {
    /// As wait(2) reports it.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: Vec<u8>,
    /// Its command line, for messages.
    pub command: String,
}

struct Stream {
    chunks: Option<Receiver<Vec<u8>>>,
    got: Vec<u8>,
}

impl Stream {
    fn new(source: Option<impl Read + Send + 'static>) -> Stream {
        let chunks = source.map(|mut source| {
            let (send, chunks) = channel();
            std::thread::spawn(move || {
                let mut buf = [0; 65536];
                while let Ok(n @ 1..) = source.read(&mut buf) {
                    if send.send(buf[..n].to_vec()).is_err() {
                        break;
                    }
                }
            });
            chunks
        });
        Stream { chunks, got: Vec::new() }
    }

    /// Takes one more chunk. Returns false at the end of the stream, and none when the time is up.
    fn more(&mut self, until: Instant) -> Option<bool> {
        let Some(chunks) = &self.chunks else { return Some(false) };
        match chunks.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(chunk) => {
                self.got.extend_from_slice(&chunk);
                Some(true)
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.chunks = None;
                Some(false)
            }
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

impl Held {
    /// Starts the child. With `group` the child leads its own process group, which then dies with it.
    pub fn spawn(mut command: Command, shown: String, limit: Duration, group: bool) -> Held {
        super::store::own_run();
        let quiet = super::machine::quiet();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{shown}: {e}"));
        Held {
            stdin: child.stdin.take(),
            out: Stream::new(child.stdout.take()),
            err: Stream::new(child.stderr.take()),
            child,
            command: shown,
            until: Instant::now() + patience(limit),
            group,
            _quiet: quiet,
        }
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory conditions; the child is not reaped, so the number is still its own.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Waits until the kernel reports the child as stopped, as a shell does.
    pub fn wait_stopped(&self) -> i32 {
        let mut status = 0;
        let reported = soon(|| {
            // SAFETY: the status is a live integer.
            let pid =
                unsafe { libc::waitpid(self.pid(), &mut status, libc::WUNTRACED | libc::WNOHANG) };
            assert!(pid == 0 || pid == self.pid(), "{}: waitpid", self.command);
            pid != 0
        });
        assert!(reported, "{} does not stop", self.command);
        assert!(libc::WIFSTOPPED(status), "{} ended: {status:#x}", self.command);
        libc::WSTOPSIG(status)
    }

    /// Panics with all known facts unless all whole huge pages of the child are PMD-mapped.
    pub fn assert_full(&mut self) {
        let coverage = self.coverage();
        if !coverage.is_full() {
            let seen = self.seen();
            panic!("{}: {coverage:?}: {seen}", self.command);
        }
    }

    /// Writes to its standard input.
    pub fn write(&mut self, bytes: &[u8]) {
        let command = &self.command;
        let pipe = self.stdin.as_mut().expect("standard input is a pipe");
        pipe.write_all(bytes).unwrap_or_else(|e| panic!("{command}: its standard input: {e}"));
    }

    /// Reads its standard output until this line has come.
    pub fn wait_line(&mut self, line: &str) {
        while !self.out_text().lines().any(|l| l == line) {
            let why = match self.out.more(self.until) {
                Some(true) => continue,
                Some(false) => "ended before it said",
                None => "did not say in time",
            };
            let seen = self.seen();
            panic!("{} {why} {line:?}: {seen}", self.command);
        }
    }

    /// Waits until more of its standard output has come.
    pub fn wait_more(&mut self) {
        let more = self.out.more(self.until);
        if more != Some(true) {
            let seen = self.seen();
            panic!("{} says no more: {seen}", self.command);
        }
    }

    /// Its standard output so far.
    pub fn out_text(&self) -> String {
        String::from_utf8_lossy(&self.out.got).into_owned()
    }

    /// The rest of the first line that starts with this word.
    pub fn said(&self, word: &str) -> Option<String> {
        said(&self.out_text(), word)
    }

    /// Returns whether the output so far has a line that starts with this word. Does not wait.
    pub fn has_said(&mut self, word: &str) -> bool {
        while self.out.more(Instant::now()) == Some(true) {}
        self.said(word).is_some()
    }

    /// The child's standard error so far. Does not wait.
    pub fn err_text(&mut self) -> String {
        while self.err.more(Instant::now()) == Some(true) {}
        String::from_utf8_lossy(&self.err.got).into_owned()
    }

    /// The PID that the program prints. It differs from the child's PID if `unshare`, `sh` or the like stands in front.
    pub fn said_pid(&self) -> i32 {
        let pid = self.said("pid").and_then(|p| p.parse().ok());
        pid.unwrap_or_else(|| panic!("{}: no pid line: {:?}", self.command, self.out_text()))
    }

    /// How much of its main executable's text is huge.
    pub fn coverage(&self) -> Coverage {
        coverage(self.pid())
    }

    fn seen(&mut self) -> String {
        while let Some(true) = self.err.more(Instant::now() + Duration::from_millis(200)) {}
        let status = self.child.try_wait();
        format!(
            "status {status:?}\nstdout: {:?}\nstderr: {:?}\n{}",
            self.out_text(),
            String::from_utf8_lossy(&self.err.got),
            super::stuck::describe(self.pid())
        )
    }

    /// Closes the child's standard input, and waits for the end of the child and of its output.
    pub fn finish(mut self) -> Done {
        self.stdin = None;
        if !self.ended_by(self.until) {
            let seen = self.seen();
            panic!("{} did not end in time: {seen}", self.command);
        }
        let status = self.child.wait().expect("an own child");
        // No process should hold the pipes open after the end. On a machine with forty busy processes, the threads that read the pipes
        // come to their turn after seconds.
        let until = Instant::now() + patience(Duration::from_secs(60));
        for stream in [&mut self.out, &mut self.err] {
            while stream.chunks.is_some() {
                assert!(
                    stream.more(until).is_some(),
                    "{} ended, but somebody still holds its output",
                    self.command
                );
            }
        }
        for stream in [&self.out, &self.err] {
            super::schema::check(&stream.got, &self.command);
        }
        Done {
            status,
            stdout: std::mem::take(&mut self.out.got),
            stderr: std::mem::take(&mut self.err.got),
            command: self.command.clone(),
        }
    }

    /// Returns whether the child has ended, without reaping it.
    pub fn has_ended(&mut self) -> bool {
        self.ended_by(Instant::now())
    }

    /// Returns whether the child ends before `until`, without reaping it.
    fn ended_by(&mut self, until: Instant) -> bool {
        // SAFETY: pidfd_open takes numbers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid(), 0) };
        assert!(fd >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new, and only this value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as i32;
            // SAFETY: one live pollfd.
            match unsafe { libc::poll(&mut poll, 1, left) } {
                1 => return true,
                0 => return false,
                _ => assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR)),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            if self.group {
                // SAFETY: kill has no memory conditions; the leader is not reaped, so the group is still its own.
                unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
            }
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

/// The rest of the first line that starts with this word.
pub fn said(text: &str, word: &str) -> Option<String> {
    text.lines().find_map(|l| l.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned))
}

impl Done {
    /// Its standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Its standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The exit status or the signal of its end, for comparisons.
    pub fn end(&self) -> (Option<i32>, Option<i32>) {
        (self.status.code(), self.status.signal())
    }

    /// Panics unless the child exited with that status.
    pub fn assert_code(&self, code: i32) -> &Done {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self
    }

    /// Panics unless that signal killed the child.
    pub fn assert_signal(&self, signal: i32) -> &Done {
        assert_eq!(self.status.signal(), Some(signal), "{self}");
        self
    }

    /// Panics unless standard error is empty, as it must be after success.
    pub fn assert_silent(&self) -> &Done {
        assert!(self.stderr.is_empty(), "{self}");
        self
    }

    /// Panics unless one line on stderr says that the text stays on base pages for one of these reasons.
    pub fn assert_failed_open(&self, reasons: &[&str]) -> &Done {
        let reason = self.fail_open_reason().unwrap_or_else(|| panic!("no fail-open line: {self}"));
        assert!(reasons.contains(&reason.as_str()), "{reason} is not one of {reasons:?}: {self}");
        self
    }

    /// The reason in the line on stderr; none if stderr is empty. Any other output is a failure.
    pub fn fail_open_reason(&self) -> Option<String> {
        let err = self.err();
        if err.is_empty() {
            return None;
        }
        assert_eq!(err.lines().count(), 1, "more than one line: {self}");
        let rest = err.strip_prefix("tiexec: ").unwrap_or_else(|| panic!("no prefix: {self}"));
        let (_name, rest) = rest
            .split_once(": text stays on base pages: ")
            .or_else(|| rest.split_once(" MiB text stay on base pages: "))
            .unwrap_or_else(|| panic!("another line: {self}"));
        let (reason, detail) = rest.split_once(": ").unwrap_or_else(|| panic!("no detail: {self}"));
        assert!(!detail.trim().is_empty(), "no detail: {self}");
        assert!(
            reason.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
            "not a reason: {self}"
        );
        Some(reason.to_owned())
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = |s: String| {
            if s.len() > 4000 {
                format!("{}…", s.chars().take(4000).collect::<String>())
            } else {
                s
            }
        };
        write!(
            f,
            "{}\n  {}\n  stdout: {:?}\n  stderr: {:?}",
            self.command,
            self.status,
            cut(self.out()),
            cut(self.err())
        )
    }
}

/// The time limit for an event that must happen.
const SOON: Duration = Duration::from_secs(200);

/// Polls until a condition holds. Returns false after the time limit.
///
/// A condition may start a program or read all of `/proc`, while other tests need the processors. So each pause is four times as
/// long as the condition took, within these limits.
pub fn soon(mut condition: impl FnMut() -> bool) -> bool {
    const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
    let until = Instant::now() + patience(SOON);
    loop {
        let begun = Instant::now();
        if condition() {
            return true;
        }
        let now = Instant::now();
        if now >= until {
            return false;
        }
        std::thread::sleep((4 * (now - begun)).clamp(PAUSES[0], PAUSES[1]));
    }
}

/// Polls until a condition holds. Panics with `what` after the time limit.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    if !soon(condition) {
        let seen = super::stuck::describe(std::process::id() as i32);
        panic!("{what}: not within {:?}\n{seen}", patience(SOON));
    }
}

/// The state letter in `/proc/PID/stat`.
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Runs a tool of the machine to its end.
pub fn tool(argv: &[&str]) -> std::process::Output {
    Command::new(argv[0])
        .args(&argv[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{argv:?}: {e}"))
}
