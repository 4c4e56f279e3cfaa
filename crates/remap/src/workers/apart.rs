//! Works on processes of other credentials in a process of its own, the tracer, which answers by typed values.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::{Pid, SysError, interrupt};
use tiexec_tracee::{Failure, clock};

use super::messages::{self, Messages, NoMessage};
use super::output::Output;
use super::{Pool, become_user_to_trace, end};

/// A message of work on one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Said<N, T> {
    /// A fact that the parent must know even if the work does not end.
    Note(N),
    /// The answer, with which the work ends.
    Answer(T),
}

/// Calls `one` for each of `pids` in a process of its own, and returns the answers. That process is ended if `one` takes
/// longer than `patience`. `gave_up` gives the answer for a process that was not finished. This process must have one
/// thread.
pub fn each_apart<T: Serialize + DeserializeOwned>(
    pids: &[Pid],
    patience: Duration,
    mut one: impl FnMut(Pid, &mut Pool) -> T,
    gave_up: impl FnMut(Pid, &Failure) -> T,
) -> Vec<T> {
    each_apart_noting(pids, patience, |pid, pool, _| one(pid, pool), |_, ()| {}, gave_up)
}

/// Does the same; `one` may also send notes, which `noted` receives.
pub fn each_apart_noting<N, T>(
    pids: &[Pid],
    patience: Duration,
    mut one: impl FnMut(Pid, &mut Pool, &mut dyn FnMut(N)) -> T,
    mut noted: impl FnMut(Pid, N),
    mut gave_up: impl FnMut(Pid, &Failure) -> T,
) -> Vec<T>
where
    N: Serialize + DeserializeOwned,
    T: Serialize + DeserializeOwned,
{
    let mut answers = Vec::new();
    while let Some(rest) = pids.get(answers.len()..).filter(|rest| !rest.is_empty()) {
        let before = answers.len();
        let failure = match tracer(rest, patience, &mut one, &mut noted, &mut answers) {
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

fn tracer<N, T>(
    pids: &[Pid],
    patience: Duration,
    one: &mut impl FnMut(Pid, &mut Pool, &mut dyn FnMut(N)) -> T,
    noted: &mut impl FnMut(Pid, N),
    answers: &mut Vec<T>,
) -> Result<(), Failure>
where
    N: Serialize + DeserializeOwned,
    T: Serialize + DeserializeOwned,
{
    let mut tracer = Tracer::fork(|to| {
        let mut pool = Pool::default();
        for &pid in pids {
            let mut note = |note| {
                let _unheard = messages::send(to, &Said::<N, T>::Note(note));
            };
            let answer = one(pid, &mut pool, &mut note);
            if messages::send(to, &Said::<N, T>::Answer(answer)).is_err() {
                break;
            }
        }
    })?;
    let (mut waiting, mut left) = (pids, clock::limit(patience));
    while let [pid, others @ ..] = waiting {
        let failure = match tracer.next(&mut left) {
            Ok(Said::Note(note)) => {
                noted(*pid, note);
                continue;
            }
            Ok(Said::Answer(answer)) => {
                answers.push(answer);
                (waiting, left) = (others, clock::limit(patience));
                // A signal may have been sent to this process alone. The tracer notes it as this process does.
                if interrupt::asked() {
                    let _it_has_ended = rustix::process::kill_process(tracer.pid, Signal::INT);
                }
                continue;
            }
            Err(NoMessage::Ended) => break,
            Err(NoMessage::NotYet) => unfinished(patience),
            Err(NoMessage::Failed(failure)) => failure,
        };
        end(tracer.pid, SOON);
        // The words that the tracer had sent before its end count.
        while let Ok(said) = tracer.hear() {
            match said {
                Said::Note(note) => noted(*pid, note),
                Said::Answer(answer) => {
                    answers.push(answer);
                    return Ok(());
                }
            }
        }
        return Err(failure);
    }
    let ended = process::wait_until(tracer.pid, Instant::now() + SOON)
        .map_err(Failure::of(FailureKind::ForkFailed))?;
    if ended.is_none() {
        end(tracer.pid, SOON);
    }
    if waiting.is_empty() {
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
pub(super) struct Tracer {
    pub(super) pid: Pid,
    pub(super) messages: Messages,
    output: Output,
}

impl Tracer {
    /// Forks a tracer, which does `work` and exits. `work` receives the socket for its messages.
    ///
    /// # Errors
    /// `fork_failed`.
    pub(super) fn fork(work: impl FnOnce(&UnixStream)) -> Result<Self, Failure> {
        let (from, to) =
            UnixStream::pair().map_err(SysError::of("socketpair")).map_err(Failure::unstarted)?;
        let messages =
            Messages::new(from).map_err(SysError::of("fcntl")).map_err(Failure::unstarted)?;
        let mut output = Output::new().map_err(Failure::unstarted)?;
        match process::fork_single_threaded(Role::Tracer).map_err(Failure::unstarted)? {
            Fork::Parent(pid) => {
                output.listen();
                Ok(Self { pid, messages, output })
            }
            Fork::Child => {
                drop(messages);
                let _unchanged = process::end_with_parent(Some(Signal::KILL));
                if output.take_over().is_err() {
                    std::process::exit(1);
                }
                work(&to);
                std::process::exit(0)
            }
        }
    }

    /// Returns the next message if it has arrived, and passes on all output that the tracer had written before it.
    ///
    /// # Errors
    /// As [`Messages::next`].
    fn hear<T: DeserializeOwned>(&mut self) -> Result<T, NoMessage> {
        let next = self.messages.next();
        // The output of the tracer is in the pipes before its message is on the socket.
        self.output.pass_on();
        next
    }

    /// Waits for the next message for the time that is `left`, and takes the time of this wait from it. Time in which nobody
    /// reads the tracer's output does not count.
    ///
    /// # Errors
    /// `NotYet`: there was none in time. `Failed`: also `fork_failed`, this process cannot wait.
    fn next<T: DeserializeOwned>(&mut self, left: &mut Duration) -> Result<T, NoMessage> {
        loop {
            match self.hear() {
                Err(NoMessage::NotYet) => {}
                done => return done,
            }
            let is_readable = self.output.until(&self.messages, left);
            let is_readable = is_readable.map_err(Failure::of(FailureKind::ForkFailed));
            if !is_readable.map_err(NoMessage::Failed)? {
                return Err(NoMessage::NotYet);
            }
        }
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
        let _unheard = messages::send(to, &work());
    })?;
    let next = tracer.next(&mut clock::limit(patience));
    end(tracer.pid, SOON);
    next.map_err(|why| match why {
        NoMessage::Ended => {
            let what = "the process that looked at it ended without an answer";
            Failure::new(FailureKind::HelperDied, what)
        }
        NoMessage::NotYet => {
            let what = format!("it could not be looked at in {} s", patience.as_secs());
            Failure::new(FailureKind::Deadline, what)
        }
        NoMessage::Failed(failure) => failure,
    })
}

/// Returns when work that begins now, and may take that long, must have ended.
pub fn time_out_of(patience: Duration) -> Instant {
    Instant::now() + clock::limit(patience)
}
