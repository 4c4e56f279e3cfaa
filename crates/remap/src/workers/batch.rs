//! Treats processes of other credentials one after the other, in a tracer process of their own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::{Pid, SysError};
use tiexec_tracee::{Failure, clock};

use super::output::Output;
use super::{Pool, become_user_to_trace, end};

/// Calls `one` for each of `pids` in a process of its own, and returns the exit statuses. That process is ended if
/// `one` takes longer than `patience`. `gave_up` gives the status of a process that was not finished. This process
/// must have one thread.
pub fn each_apart(
    pids: &[Pid],
    patience: Duration,
    mut one: impl FnMut(Pid, &mut Pool) -> u8,
    mut gave_up: impl FnMut(Pid, &Failure) -> u8,
) -> Vec<u8> {
    let mut statuses = Vec::new();
    while let Some(rest) = pids.get(statuses.len()..).filter(|rest| !rest.is_empty()) {
        let before = statuses.len();
        let failure = match tracer(rest, patience, &mut one, &mut statuses) {
            Ok(()) => continue,
            Err(failure) => failure,
        };
        // The target at which the tracer failed gets its status here; the next target gets another tracer.
        if let Some(&pid) = rest.get(statuses.len() - before) {
            statuses.push(gave_up(pid, &failure));
        }
    }
    statuses
}

/// Calls `one` for a process of other credentials as [`each_apart`] does. If only the process's user may trace it,
/// first becomes that user. Returns the exit status; `unfinished` if there is none. This process must have one
/// thread.
pub fn apart_as_its_user(
    pid: Pid,
    patience: Duration,
    unfinished: u8,
    mut one: impl FnMut() -> u8,
) -> u8 {
    let one = |_pid, _: &mut Pool| match become_user_to_trace(pid) {
        Ok(()) => one(),
        // This process may have a part of each user's rights, and must not go on.
        Err(_) => unfinished,
    };
    let statuses = each_apart(&[pid], patience, one, |_, _| unfinished);
    statuses.first().copied().unwrap_or(unfinished)
}

fn tracer(
    pids: &[Pid],
    patience: Duration,
    one: &mut impl FnMut(Pid, &mut Pool) -> u8,
    statuses: &mut Vec<u8>,
) -> Result<(), Failure> {
    let before = statuses.len();
    let mut tracer = Tracer::fork(|answers| {
        let mut pool = Pool::default();
        for &pid in pids {
            let status = one(pid, &mut pool);
            if answers.write_all(&[status]).is_err() {
                break;
            }
        }
    })?;
    for _ in pids {
        let mut status = [0];
        if !tracer.until(clock::limit(patience))? {
            end(tracer.pid, SOON);
            return Err(unfinished(patience));
        }
        match tracer.answers.read(&mut status) {
            Ok(1) => statuses.push(status[0]),
            _ => break,
        }
    }
    let ended = process::wait_until(tracer.pid, Instant::now() + SOON)
        .map_err(Failure::of(FailureKind::ForkFailed))?;
    if ended.is_none() {
        end(tracer.pid, SOON);
    }
    if statuses.len() >= before + pids.len() {
        return Ok(());
    }
    let how = ended.map_or_else(|| "without an end".to_owned(), |end| format!("{end:?}"));
    Err(Failure::new(FailureKind::HelperDied, format_args!("its tracer ended: {how}")))
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

    /// As [`Output::until`], for this tracer's answers.
    fn until(&mut self, patience: Duration) -> Result<bool, Failure> {
        self.output.until(&self.answers, patience).map_err(Failure::of(FailureKind::ForkFailed))
    }
}

/// Has `work` examine a process of other credentials, in a process of its own, and returns its answer. That process
/// is ended after `patience`. This process must have one thread.
///
/// # Errors
/// `deadline`; `helper_died`; `fork_failed`.
pub fn told_apart(patience: Duration, work: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, Failure> {
    let mut tracer = Tracer::fork(|answers| {
        let answer = work();
        let _unheard = answers.write_all(&[0]).and_then(|()| answers.write_all(&answer));
    })?;
    let (end_of_time, mut answer) = (Instant::now() + clock::limit(patience), Vec::new());
    let told = loop {
        let left = end_of_time.saturating_duration_since(Instant::now());
        if !tracer.until(left)? {
            let what = format!("it could not be looked at in {} s", patience.as_secs());
            break Err(Failure::new(FailureKind::Deadline, what));
        }
        let mut buffer = [0; 16 << 10];
        match tracer.answers.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => answer.extend(&buffer[..count]),
            Err(error) => break Err(Failure::of(FailureKind::HelperDied)(error)),
        }
    };
    end(tracer.pid, SOON);
    told?;
    if answer.is_empty() {
        let what = "the process that looked at it ended without an answer";
        return Err(Failure::new(FailureKind::HelperDied, what));
    }
    Ok(answer.split_off(1))
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
