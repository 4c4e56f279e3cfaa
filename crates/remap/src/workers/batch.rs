//! Processes of other credentials, one after the other, in a tracer of their own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tiexec_core::skip::SkipReason;
use tiexec_sys::naming::Role;
use tiexec_sys::process::{self, Fork};
use tiexec_sys::{Pid, place};

use super::Pool;
use super::output::Output;
use crate::failure::Failure;

/// The failure of a process whose tracer did not come to an end.
pub type GaveUp = Failure;

/// Does `one` to each of `pids`, in a process of its own that is ended after `patience` with one of them, and returns
/// its exit statuses. `gave_up` gives the status of a process that was not finished. This process must have
/// one thread.
pub fn each_apart(
    pids: &[Pid],
    patience: Duration,
    mut one: impl FnMut(Pid, &mut Pool) -> u8,
    mut gave_up: impl FnMut(Pid, &GaveUp) -> u8,
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

fn tracer(
    pids: &[Pid],
    patience: Duration,
    one: &mut impl FnMut(Pid, &mut Pool) -> u8,
    statuses: &mut Vec<u8>,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(SkipReason::ForkFailed, error);
    let before = statuses.len();
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let mut output = Output::new().map_err(|error| failed(&error))?;
    let child = match process::fork_single_threaded(Role::Tracer).map_err(|error| failed(&error))? {
        Fork::Parent(child) => child,
        Fork::Child => {
            drop(ours);
            let _unchanged = place::end_with_parent();
            if output.take_over().is_err() {
                std::process::exit(1);
            }
            let mut pool = Pool::default();
            for &pid in pids {
                let status = one(pid, &mut pool);
                if rustix::io::write(&theirs, &[status]).is_err() {
                    break;
                }
            }
            drop(pool);
            std::process::exit(0)
        }
    };
    drop(theirs);
    output.listen();
    for _ in pids {
        let mut status = [0];
        if !output.until(&ours, patience).map_err(|error| failed(&error))? {
            end(child);
            let what = format!(
                "it came to no end in {} s; a thread of it that stood has been let go",
                patience.as_secs()
            );
            return Err(Failure::new(SkipReason::Deadline, what));
        }
        match ours.read(&mut status) {
            Ok(1) => statuses.push(status[0]),
            _ => break,
        }
    }
    let ended =
        process::wait_until(child, Instant::now() + SOON).map_err(|error| failed(&error))?;
    if ended.is_none() {
        end(child);
    }
    if statuses.len() >= before + pids.len() {
        return Ok(());
    }
    let how = ended.map_or_else(|| "without an end".to_owned(), |end| format!("{end:?}"));
    Err(Failure::new(SkipReason::HelperDied, format!("its tracer ended: {how}")))
}

/// How long the end of one of our own processes is waited for: one that waits for a file cannot be killed.
const SOON: Duration = Duration::from_secs(1);

fn end(child: Pid) {
    let _gone = process::kill(child);
    let _stuck = process::wait_until(child, Instant::now() + SOON);
}

/// Has `work` look at a process of other credentials, in a process of its own that is ended after `patience`, and returns
/// what it says. This process must have one thread.
///
/// # Errors
/// `deadline`; `helper_died`; `fork_failed`.
pub fn told_apart(patience: Duration, work: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(SkipReason::ForkFailed, error);
    let (mut ours, mut theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let mut output = Output::new().map_err(|error| failed(&error))?;
    let child = match process::fork_single_threaded(Role::Tracer).map_err(|error| failed(&error))? {
        Fork::Parent(child) => child,
        Fork::Child => {
            drop(ours);
            let _unchanged = place::end_with_parent();
            let said = output.take_over().is_ok_and(|()| {
                let answer = work();
                theirs.write_all(&[0]).and_then(|()| theirs.write_all(&answer)).is_ok()
            });
            std::process::exit(i32::from(!said))
        }
    };
    drop(theirs);
    output.listen();
    let (end_of_time, mut answer) = (Instant::now() + patience, Vec::new());
    let told = loop {
        let left = end_of_time.saturating_duration_since(Instant::now());
        if !output.until(&ours, left).map_err(|error| failed(&error))? {
            let what = format!("it could not be looked at in {} s", patience.as_secs());
            break Err(Failure::new(SkipReason::Deadline, what));
        }
        let mut buffer = [0; 16 << 10];
        match ours.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => answer.extend(&buffer[..count]),
            Err(error) => break Err(Failure::new(SkipReason::HelperDied, error)),
        }
    };
    end(child);
    told?;
    if answer.is_empty() {
        let what = "the process that looked at it ended without an answer";
        return Err(Failure::new(SkipReason::HelperDied, what));
    }
    Ok(answer.split_off(1))
}
