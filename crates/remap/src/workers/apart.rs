//! Works on processes of other credentials in a process of its own, the tracer, which answers by typed values.
//!
//! Each answer is a frame on a socket: its length in bytes (four bytes, the lowest first), and the value as JSON.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::{Pid, SysError};
use tiexec_tracee::{Failure, clock};

use super::output::Output;
use super::{Pool, become_user_to_trace, end};

/// Calls `one` for each of `pids` in a process of its own, and returns the answers. That process is ended if `one` takes
/// longer than `patience`. `gave_up` gives the answer for a process that was not finished. This process must have one
/// thread.
pub fn each_apart<T: Serialize + DeserializeOwned>(
    pids: &[Pid],
    patience: Duration,
    mut one: impl FnMut(Pid, &mut Pool) -> T,
    mut gave_up: impl FnMut(Pid, &Failure) -> T,
) -> Vec<T> {
    let mut answers = Vec::new();
    while let Some(rest) = pids.get(answers.len()..).filter(|rest| !rest.is_empty()) {
        let before = answers.len();
        let failure = match tracer(rest, patience, &mut one, &mut answers) {
            Ok(()) => continue,
            Err(failure) => failure,
        };
        // The target at which the tracer failed gets its answer here; the next target gets another tracer.
        if let Some(&pid) = rest.get(answers.len() - before) {
            answers.push(gave_up(pid, &failure));
        }
    }
    answers
}

/// Calls `one` for a process of other credentials in a process of its own, for at most `patience`. If only the process's
/// user may trace it, first becomes that user. This process must have one thread.
///
/// # Errors
/// `ptrace_denied`: the user is not known, or this process cannot become it; as [`apart`].
pub fn apart_as_its_user<T: Serialize + DeserializeOwned>(
    pid: Pid,
    patience: Duration,
    one: impl FnOnce() -> T,
) -> Result<T, Failure> {
    apart(patience, || match become_user_to_trace(pid) {
        Ok(()) => Ok(one()),
        // This process may have a part of each user's rights, and must not go on.
        Err(error) => Err(Failure::denied(error)),
    })?
}

fn tracer<T: Serialize + DeserializeOwned>(
    pids: &[Pid],
    patience: Duration,
    one: &mut impl FnMut(Pid, &mut Pool) -> T,
    answers: &mut Vec<T>,
) -> Result<(), Failure> {
    let before = answers.len();
    let mut tracer = Tracer::fork(|to| {
        let mut pool = Pool::default();
        for &pid in pids {
            if answer(to, &one(pid, &mut pool)).is_err() {
                break;
            }
        }
    })?;
    for _ in pids {
        let failure = match tracer.next(clock::limit(patience)) {
            Ok(answer) => {
                answers.push(answer);
                continue;
            }
            Err(NoAnswer::Ended) => break,
            Err(NoAnswer::Late) => unfinished(patience),
            Err(NoAnswer::Failed(failure)) => failure,
        };
        end(tracer.pid, SOON);
        return Err(failure);
    }
    let ended = process::wait_until(tracer.pid, Instant::now() + SOON)
        .map_err(Failure::of(FailureKind::ForkFailed))?;
    if ended.is_none() {
        end(tracer.pid, SOON);
    }
    if answers.len() >= before + pids.len() {
        return Ok(());
    }
    let how = ended.map_or_else(|| "without an end".to_owned(), |end| format!("{end:?}"));
    Err(Failure::new(FailureKind::HelperDied, format_args!("its tracer ended: {how}")))
}

/// Sends an answer.
fn answer(to: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let len = u32::try_from(text.len()).map_err(std::io::Error::other)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(&text)
}

/// Returns the failure for work that was ended because it took longer than `patience`.
pub fn unfinished(patience: Duration) -> Failure {
    let seconds = patience.as_secs();
    let what = format!("it did not finish within {seconds} s; its stopped thread was let go");
    Failure::new(FailureKind::Deadline, what)
}

/// How long to wait for a tracer's end. A tracer that waits for a file cannot be killed.
const SOON: Duration = Duration::from_secs(1);

/// A tracer process, as seen by the process that waits for it.
#[derive(Debug)]
struct Tracer {
    pid: Pid,
    answers: UnixStream,
    output: Output,
}

impl Tracer {
    /// Forks a tracer, which does `work` and exits. `work` receives the socket for its answers.
    fn fork(work: impl FnOnce(&mut UnixStream)) -> Result<Self, Failure> {
        let (answers, mut theirs) =
            UnixStream::pair().map_err(SysError::of("socketpair")).map_err(Failure::unstarted)?;
        let mut output = Output::new().map_err(Failure::unstarted)?;
        match process::fork_single_threaded(Role::Tracer).map_err(Failure::unstarted)? {
            Fork::Parent(pid) => {
                output.listen();
                Ok(Self { pid, answers, output })
            }
            Fork::Child => {
                drop(answers);
                let _unchanged = process::end_with_parent(Signal::KILL);
                if output.take_over().is_err() {
                    std::process::exit(1);
                }
                work(&mut theirs);
                std::process::exit(0)
            }
        }
    }

    /// Waits for the next answer, but at most `patience` for each part of it. Time in which nobody reads the tracer's output does
    /// not count.
    ///
    /// # Errors
    /// The reason why there is none.
    fn next<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T, NoAnswer> {
        let mut len = [0; size_of::<u32>()];
        self.fill(&mut len, patience)?;
        let mut text = vec![0; u32::from_le_bytes(len) as usize];
        self.fill(&mut text, patience)?;
        let answer = serde_json::from_slice(&text);
        Ok(answer.map_err(Failure::of(FailureKind::HelperDied))?)
    }

    /// Fills `buffer` from the socket.
    fn fill(&mut self, buffer: &mut [u8], patience: Duration) -> Result<(), NoAnswer> {
        let mut filled = 0;
        while filled < buffer.len() {
            let is_readable = self.output.until(&self.answers, patience);
            if !is_readable.map_err(Failure::of(FailureKind::ForkFailed))? {
                return Err(NoAnswer::Late);
            }
            match self.answers.read(&mut buffer[filled..]) {
                Ok(0) => return Err(NoAnswer::Ended),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::of(FailureKind::HelperDied)(error).into()),
            }
        }
        Ok(())
    }
}

/// The reason why there is no answer.
enum NoAnswer {
    /// The tracer ended without one.
    Ended,
    /// There was none in time.
    Late,
    /// `helper_died`: it cannot be read. `fork_failed`: this process cannot wait for it.
    Failed(Failure),
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Has `work` examine processes of other credentials, in a process of its own, and returns its answer. That process is ended
/// after `patience`. This process must have one thread.
///
/// # Errors
/// `deadline`; `helper_died`; `fork_failed`.
pub fn apart<T: Serialize + DeserializeOwned>(
    patience: Duration,
    work: impl FnOnce() -> T,
) -> Result<T, Failure> {
    let mut tracer = Tracer::fork(|to| {
        let _unheard = answer(to, &work());
    })?;
    let next = tracer.next(clock::limit(patience));
    end(tracer.pid, SOON);
    next.map_err(|why| match why {
        NoAnswer::Ended => {
            let what = "the process that looked at it ended without an answer";
            Failure::new(FailureKind::HelperDied, what)
        }
        NoAnswer::Late => {
            let what = format!("it could not be looked at in {} s", patience.as_secs());
            Failure::new(FailureKind::Deadline, what)
        }
        NoAnswer::Failed(failure) => failure,
    })
}

/// Returns when work that begins now, and may take that long, must have ended.
pub fn time_out_of(patience: Duration) -> Instant {
    Instant::now() + clock::limit(patience)
}

/// Work on processes of other credentials, in a process of its own. This process polls it, and never waits for it.
/// Dropping this value ends it.
#[derive(Debug)]
pub struct Aside(Tracer);

impl Aside {
    /// Starts `work`, which receives the socket for its answers. Its standard streams are /dev/null, because this
    /// process may have a terminal to which only this process may write. This process must have one thread.
    ///
    /// # Errors
    /// `fork_failed`.
    pub fn start(work: impl FnOnce(&mut UnixStream)) -> Result<Self, Failure> {
        let nowhere = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        let nowhere =
            nowhere.map_err(SysError::of("open(/dev/null)")).map_err(Failure::unstarted)?;
        let tracer = Tracer::fork(|answers| {
            // The panic hook of this process could restore the terminal.
            std::panic::set_hook(Box::new(|_| {}));
            let away = || -> std::io::Result<()> {
                rustix::stdio::dup2_stdin(&nowhere)?;
                rustix::stdio::dup2_stdout(&nowhere)?;
                rustix::stdio::dup2_stderr(&nowhere)?;
                Ok(())
            };
            if away().is_ok() {
                let _it_ends = catch_unwind(AssertUnwindSafe(|| work(answers)));
            }
        })?;
        tracer.answers.set_nonblocking(true).map_err(Failure::of(FailureKind::ForkFailed))?;
        Ok(Self(tracer))
    }

    /// Returns the answers; reading them never blocks.
    pub fn answers(&self) -> &UnixStream {
        &self.0.answers
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        end(self.0.pid, Duration::from_millis(100));
    }
}
