//! A stop made by a process of its own.
//!
//! Whatever goes wrong in a stop, the thread is let go when its tracer ends: it may sleep where nothing
//! wakes it and be stopped only later, or the tracer may fail between two steps. One that lives on would
//! hold it for ever. So where this process is to live on, a child of it makes the stop, and ends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tiexec_core::skip::SkipReason;
use tiexec_sys::Pid;
use tiexec_sys::process::{self, Fork};
use tiexec_tracee::session::Counts;

use super::{Done, StopCost};
use crate::failure::Failure;

/// How long the child may take: a stop takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came of a stop.
type Came = Result<(StopCost, Done), Failure>;

/// Has `stop` made by a child. What it changes in this process's memory is lost.
///
/// # Errors
/// Those of `stop`; `helper_died` if the child said nothing in time: it is ended by then, and the thread
/// went on by itself.
pub(super) fn run(stop: impl FnOnce() -> Came) -> Came {
    let failed = |reason, error: &dyn std::fmt::Display| Failure::new(reason, error);
    let (mut ours, mut theirs) =
        UnixStream::pair().map_err(|error| failed(SkipReason::FdLimit, &error))?;
    let forked = process::fork_single_threaded();
    match forked.map_err(|error| failed(SkipReason::ForkFailed, &error))? {
        Fork::Child => {
            let ended = catch_unwind(AssertUnwindSafe(|| theirs.write_all(&told(&stop()))));
            process::exit_now(i32::from(ended.is_err()));
        }
        Fork::Parent(child) => {
            drop(theirs);
            let mut said = Vec::new();
            let _late = ours.set_read_timeout(Some(PATIENCE));
            let heard = ours.read_to_end(&mut said);
            if heard.is_err() {
                let _already_gone = process::kill(child);
            }
            let _reaped = process::wait(child);
            understood(&said).unwrap_or_else(|| {
                Err(failed(SkipReason::HelperDied, &"who was to stop it ended, or took too long"))
            })
        }
    }
}

fn failure(failure: Option<&Failure>) -> String {
    failure.map_or(String::new(), |failure| format!("{}\n{}", failure.reason, failure.detail))
}

/// Writes it down.
fn told(came: &Came) -> Vec<u8> {
    let text = match came {
        Err(why) => format!("not\n{}", failure(Some(why))),
        Ok((StopCost { tid, lasted, counts, shown }, done)) => format!(
            "cost {} {} {} {}\n{}",
            tid.as_raw_nonzero(),
            lasted.as_nanos(),
            counts.calls,
            u8::from(*shown),
            failure(done.as_ref().err())
        ),
    };
    text.into_bytes()
}

/// Reads what [`told`] wrote; `None` if that is not whole.
fn understood(said: &[u8]) -> Option<Came> {
    let text = String::from_utf8_lossy(said);
    let (first, rest) = text.split_once('\n')?;
    let why = rest.split_once('\n').and_then(|(name, detail)| {
        let reason = SkipReason::ALL.iter().find(|reason| reason.as_str() == name)?;
        Some(Failure::new(*reason, detail))
    });
    if first == "not" {
        return why.map(Err);
    }
    let mut words = first.strip_prefix("cost ")?.split(' ');
    let cost = StopCost {
        tid: words.next()?.parse().ok().and_then(Pid::from_raw)?,
        lasted: Duration::from_nanos(words.next()?.parse().ok()?),
        counts: Counts { calls: words.next()?.parse().ok()? },
        shown: words.next()? == "1",
    };
    Some(Ok((cost, why.map_or(Ok(()), Err))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        let why = Failure::new(SkipReason::NoThread, "two\nlines");
        let cost = StopCost {
            tid: Pid::from_raw(7).unwrap(),
            lasted: Duration::from_nanos(123_456),
            counts: Counts { calls: 9 },
            shown: true,
        };
        let all: [Came; 3] = [Err(why.clone()), Ok((cost, Ok(()))), Ok((cost, Err(why)))];
        for came in all {
            assert_eq!(understood(&told(&came)), Some(came));
        }
        for odd in ["", "not\n", "cost 7", "cost 7 1 2\n", "x\n"] {
            assert_eq!(understood(odd.as_bytes()), None, "{odd:?}");
        }
    }
}
