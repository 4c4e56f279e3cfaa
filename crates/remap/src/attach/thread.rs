//! Finding the thread to stop: one that takes it well, and whose seccomp filters allow what it is to
//! call.

use std::time::{Duration, Instant};

use tiexec_core::proc::status::{self, Status};
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError};
use tiexec_tracee::arch::Gadgets;
use tiexec_tracee::foreseen::{Filters, Foreseen, NEEDS, Permission};
use tiexec_tracee::running::{self, Stopped};
use tiexec_tracee::session::Session;
use tiexec_tracee::threads::{self, Takes};
use tiexec_tracee::{TraceError, refusal};

use super::AttachOrder;
use super::same::RunningImage;
use crate::failure::Failure;

/// How long only for one that will see nothing of it.
const UNSEEN_FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// `seccomp` in `/proc/PID/status`.
const FILTERS: u32 = 2;

/// Finds a thread that takes a stop well and may make `calls`, stops it, and begins a session in it.
///
/// # Errors
/// None was to be had; each goes on as it was.
pub(super) fn begin(
    order: &AttachOrder<'_>,
    image: &RunningImage,
    snapshot: &Snapshot,
    gadgets: Gadgets,
    calls: &[&[Foreseen]],
) -> Result<(Stopped, Session), Failure> {
    let begun = Instant::now();
    let until = begun + order.patience;
    let mut pause = Duration::from_millis(1);
    let readable = may_read_filters();
    let mut why =
        Failure::new(SkipReason::NoThread, "every thread sleeps in a call that would return EINTR");
    // Filters are never taken back: whom they refuse once is not stopped again.
    let mut refused: Vec<Pid> = Vec::new();
    let mut refusal = None;
    loop {
        let alive = alive(order);
        if alive.is_empty() {
            return Err(Failure::new(SkipReason::TargetGone, "it has ended"));
        }
        let free: Vec<&(Pid, Status)> = alive
            .iter()
            .filter(|(tid, status)| {
                !refused.contains(tid)
                    && (status.seccomp == 0 || status.seccomp == FILTERS && readable)
            })
            .collect();
        if free.is_empty() {
            return Err(refusal.unwrap_or_else(|| all_filtered(&alive)));
        }
        let worst = if begun.elapsed() < UNSEEN_FIRST {
            Takes::AsleepToRewind
        } else {
            Takes::AsleepForEintr
        };
        for (tid, _) in candidates(order, &free, worst).into_iter().take(8) {
            let mut stopped = match running::stop(tid, until) {
                Ok(stopped) => stopped,
                Err(TraceError::Gone) => continue,
                Err(error @ (TraceError::Late | TraceError::RseqUntold)) => {
                    return Err(Failure::new(SkipReason::NoThread, error));
                }
                // What has just ended cannot be traced either.
                Err(_) if threads::alive(order.process, tid).is_none() => continue,
                // By an exec another thread may have taken this one's id, and lives.
                Err(_) if !image.still_runs() => return Err(another_program()),
                Err(error) => return Err(not_seized(order, error)),
            };
            let filters = filters_of(order.process, tid);
            running::restart_within(&filters, &mut stopped);
            if !image.still_runs() {
                running::let_go(&stopped)?;
                return Err(another_program());
            }
            if stopped.dispatches {
                running::let_go(&stopped)?;
                let what = "it has its system calls sent to a handler of its own";
                return Err(Failure::new(SkipReason::SyscallDispatch, what));
            }
            let permission = match Permission::ask(&filters, gadgets, calls) {
                Ok(permission) => permission,
                Err(what) => {
                    running::let_go(&stopped)?;
                    let what = format!("thread {}: {what}", tid.as_raw_nonzero());
                    refusal.get_or_insert(Failure::new(SkipReason::Seccomp, what));
                    refused.push(tid);
                    continue;
                }
            };
            match running::begin(snapshot, order.pid, gadgets, &stopped, permission) {
                Ok(Ok(session)) => return Ok((stopped, session)),
                Err(error) => {
                    running::let_go(&stopped)?;
                    return Err(error.into());
                }
                Ok(Err(refusal)) => {
                    running::let_go(&stopped)?;
                    why = Failure::new(SkipReason::NoThread, refusal);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        if Instant::now() >= until {
            return Err(why);
        }
        std::thread::sleep(pause);
    }
}

/// Says whether it may be traced, as far as looking tells: whoever may not, can neither read what its threads
/// do nor its memory, and would take that for something else.
///
/// # Errors
/// `ptrace_denied`.
pub(super) fn permitted(
    order: &AttachOrder<'_>,
    image: Option<&RunningImage>,
) -> Result<(), Failure> {
    // That it has ended is for others to find.
    let Some((tid, _)) = alive(order).into_iter().next() else { return Ok(()) };
    match threads::may_look(order.process, tid) {
        Err(error @ SysError { errno: Errno::PERM | Errno::ACCES, .. })
            if threads::alive(order.process, tid).is_some() =>
        {
            if image.is_none_or(RunningImage::still_runs) {
                Err(not_seized(order, error.into()))
            } else {
                Err(another_program())
            }
        }
        _ => Ok(()),
    }
}

/// The threads that live, the leader first.
fn alive(order: &AttachOrder<'_>) -> Vec<(Pid, Status)> {
    threads::list(order.process, order.pid)
        .into_iter()
        .filter_map(|tid| Some((tid, threads::alive(order.process, tid)?)))
        .collect()
}

/// Those that take a stop at least as well as `worst`, the best first.
fn candidates(order: &AttachOrder<'_>, free: &[&(Pid, Status)], worst: Takes) -> Vec<(Pid, Takes)> {
    let mut candidates: Vec<(Pid, Takes)> = free
        .iter()
        .map(|(tid, status)| {
            let takes = match status.state {
                // Stopped by a signal: what it was doing is interrupted already.
                b'T' => Takes::Asleep,
                // Nothing wakes it, and once seized it could not be let go.
                b'D' => Takes::Badly,
                _ => threads::takes(order.process, order.task, *tid),
            };
            let unready = takes == Takes::AsleepForEintr && !threads::expects_eintr(status);
            (*tid, if unready { Takes::Badly } else { takes })
        })
        .filter(|(_, takes)| *takes <= worst)
        .collect();
    // Stable: the leader, listed first, is the first of its kind.
    candidates.sort_by_key(|(_, takes)| *takes);
    candidates
}

/// Whether this process could read a thread's filters, as far as it knows: if not, none is stopped for
/// nothing.
fn may_read_filters() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let own = ProcDir::this_process().and_then(|this| this.read("status"));
    let own = own.map(|text| status::parse(&text)).unwrap_or_default();
    own.capabilities & SYS_ADMIN != 0 && own.seccomp == 0
}

/// The filters of a thread that stands: it may have got some since it was chosen.
fn filters_of(process: &ProcDir, tid: Pid) -> Filters {
    match threads::alive(process, tid).map(|status| status.seccomp) {
        Some(0) => Filters::Known(Vec::new()),
        Some(FILTERS) => Filters::read(tid),
        _ => Filters::Unknown(STRICT.to_owned()),
    }
}

const STRICT: &str = "it is in seccomp's strict mode: no call but read, write and exit";

fn all_filtered(alive: &[(Pid, Status)]) -> Failure {
    if alive.iter().any(|(_, status)| status.seccomp == FILTERS) {
        let what = format!("every thread has seccomp filters, to be read first: {NEEDS}");
        return Failure::new(SkipReason::Seccomp, what);
    }
    Failure::new(SkipReason::Seccomp, STRICT)
}

fn another_program() -> Failure {
    Failure::new(SkipReason::TargetGone, "it has begun another program meanwhile")
}

fn not_seized(order: &AttachOrder<'_>, error: TraceError) -> Failure {
    let TraceError::Sys(denied @ SysError { errno: Errno::PERM | Errno::ACCES, .. }) = error else {
        return error.into();
    };
    let status = order.process.read("status").map(|text| status::parse(&text)).unwrap_or_default();
    match status.tracer_pid {
        0 => Failure::new(SkipReason::PtraceDenied, refusal(&denied)),
        tracer => {
            let what = format!("process {tracer} traces it");
            Failure::new(SkipReason::AlreadyTraced, what)
        }
    }
}
