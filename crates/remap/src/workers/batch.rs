//! Processes of other credentials, one after the other, in a tracer of their own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tiexec_core::skip::FailureKind;
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::{Pid, SysError, impersonate};
use tiexec_tracee::Failure;

use super::output::Output;
use super::{Pool, become_user_to_trace, end};

/// Does `one` to each of `pids`, in a process of its own that is ended after `patience` with one of them, and returns
/// its exit statuses. `gave_up` gives the status of a process that was not finished. This process must have
/// one thread.
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
        // The one that it was at has its answer; the next has another tracer.
        if let Some(&pid) = rest.get(statuses.len() - before) {
            statuses.push(gave_up(pid, &failure));
        }
    }
    statuses
}

/// Does `one` to a process of other credentials as [`each_apart`] does, as its user where only that user may trace it.
/// Returns its exit status; `unfinished` if it came to none. This process must have one thread.
pub fn apart_as_its_user(
    pid: Pid,
    patience: Duration,
    unfinished: u8,
    mut one: impl FnMut() -> u8,
) -> u8 {
    let one = |_pid, _: &mut Pool| match become_user_to_trace(pid) {
        Ok(()) => one(),
        // Half of each user, it may not go on.
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
        if !tracer.until(patience)? {
            end(tracer.pid, SOON);
            let what = format!(
                "it did not finish within {} s; its stopped thread was let go",
                patience.as_secs()
            );
            return Err(Failure::new(FailureKind::Deadline, what));
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

/// How long the end of a tracer is waited for: one that waits for a file cannot be killed.
const SOON: Duration = Duration::from_secs(1);

/// A tracer's process, as the process that waits for it sees it.
#[derive(Debug)]
struct Tracer {
    pid: Pid,
    answers: UnixStream,
    output: Output,
}

impl Tracer {
    /// Forks it: it does `work`, which has the socket for its answers, and exits.
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
                let _unchanged = impersonate::end_with_parent();
                if output.take_over().is_err() {
                    std::process::exit(1);
                }
                work(&mut theirs);
                std::process::exit(0)
            }
        }
    }

    /// As [`Output::until`], for its answers.
    fn until(&mut self, patience: Duration) -> Result<bool, Failure> {
        self.output.until(&self.answers, patience).map_err(Failure::of(FailureKind::ForkFailed))
    }
}

/// Has `work` look at a process of other credentials, in a process of its own that is ended after `patience`, and returns
/// what it says. This process must have one thread.
///
/// # Errors
/// `deadline`; `helper_died`; `fork_failed`.
pub fn told_apart(patience: Duration, work: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, Failure> {
    let mut tracer = Tracer::fork(|answers| {
        let answer = work();
        let _unheard = answers.write_all(&[0]).and_then(|()| answers.write_all(&answer));
    })?;
    let (end_of_time, mut answer) = (Instant::now() + patience, Vec::new());
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

/// Work on processes of other credentials, in a process of its own that this one polls and never waits for. It is ended when
/// this is dropped.
#[derive(Debug)]
pub struct Aside(Tracer);

impl Aside {
    /// Starts `work`, which has the socket for its answers, and whose standard streams lead nowhere: this process may have a
    /// terminal that only it may write to. This process must have one thread.
    ///
    /// # Errors
    /// `fork_failed`.
    pub fn start(work: impl FnOnce(&mut UnixStream)) -> Result<Self, Failure> {
        let nowhere = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        let nowhere =
            nowhere.map_err(SysError::of("open(/dev/null)")).map_err(Failure::unstarted)?;
        let tracer = Tracer::fork(|answers| {
            // The hook of this process could restore the terminal.
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
