//! Finds the thread to stop: it must take a stop well, and its seccomp filters must allow the calls.

use std::error::Error;
use std::time::{Duration, Instant};

use tiexec_core::order;
use tiexec_core::proc::status::Status;
use tiexec_core::skip::FailureKind;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Gadgets;
use tiexec_tracee::running;
use tiexec_tracee::session::{Refusal, Session};
use tiexec_tracee::stopped::Stopped;
use tiexec_tracee::syscall_manifest::{Filters, ManifestEntry, NEEDS, Permission};
use tiexec_tracee::target::Target;
use tiexec_tracee::threads::{self, Takes};

use super::AttachOrder;
use super::boost::Boost;
use tiexec_tracee::Failure;

/// For how long TiExec accepts only threads that see no EINTR from the stop.
const UNSEEN_FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// `seccomp` in `/proc/PID/status`.
const FILTERS: u32 = 2;

/// Finds a thread that takes a stop well and may make `calls`, stops it, and begins a session in it.
///
/// # Errors
/// No thread could be used; each goes on as before.
pub(super) fn begin(
    order: &AttachOrder<'_>,
    snapshot: &Snapshot,
    gadgets: Gadgets,
    calls: &[&[ManifestEntry]],
    known: &KnownFilters,
    boost: &Boost,
) -> Result<(Stopped, Session), Failure> {
    let begun = Instant::now();
    let until = begun + order.patience;
    let mut pause = Duration::from_millis(1);
    let target = order.target;
    let memory = target.space.memory();
    let what = "every thread sleeps in a call that may show that it was interrupted";
    let mut why = Failure::new(FailureKind::NoThread, what);
    // Threads whose refusal lasts, because filters and shadow stacks are never taken back. They are not stopped
    // again.
    let mut refused: Vec<Pid> = Vec::new();
    let mut refusal = None;
    let mut attempts = 3;
    loop {
        let alive = alive(target);
        if alive.is_empty() {
            return Err(Failure::new(FailureKind::TargetGone, "it has ended"));
        }
        let same = |status: &Status| target.same_rights(status);
        if !alive.iter().any(|(_, status)| same(status)) {
            let what = "its credentials are others than when it was looked at";
            return Err(Failure::new(FailureKind::Changed, what));
        }
        let free: Vec<&(Pid, Status)> = alive
            .iter()
            .filter(|(tid, status)| {
                !refused.contains(tid)
                    && same(status)
                    && (status.seccomp == 0 || status.seccomp == FILTERS && known.tell(status))
            })
            .collect();
        if free.is_empty() {
            return Err(refusal.unwrap_or_else(|| all_filtered(&alive)));
        }
        let worst = if begun.elapsed() < UNSEEN_FIRST {
            Takes::AsleepOnFutex
        } else {
            Takes::AsleepForEintr
        };
        for tid in candidates(order, &free, worst) {
            boost.start();
            let mut stopped = match running::stop(tid, memory, until) {
                Ok(stopped) => stopped,
                Err(TraceError::Gone) => continue,
                Err(error @ TraceError::Changed) => return Err(error.into()),
                Err(error @ (TraceError::Late | TraceError::RseqUntold)) => {
                    return Err(Failure::of(FailureKind::NoThread)(error));
                }
                Err(error @ TraceError::Foreign) if memory.is_used() => {
                    refusal.get_or_insert(not_carried(tid)(error));
                    refused.push(tid);
                    continue;
                }
                // A thread that has just ended cannot be traced either.
                Err(_) if threads::alive(&target.process, tid).is_none() => continue,
                // After an exec another thread may have this thread's ID, and that thread lives.
                Err(_) if !memory.is_used() => return Err(TraceError::Changed.into()),
                // Another tracer that was in the way may have gone since. While the process executes another
                // program, the kernel refuses every tracer.
                Err(error)
                    if attempts > 0 && traced_by(&target.process, tid) == 0 && is_denied(error) =>
                {
                    attempts -= 1;
                    break;
                }
                Err(error) => return Err(not_seized(target, tid, error)),
            };
            // The thread stands from here on. Write nothing to it before it is known to be the same as before.
            let now = threads::alive(&target.process, tid).unwrap_or_default();
            if !memory.is_used() || !target.same_rights(&now) {
                running::drop_untouched(&stopped)?;
                return Err(TraceError::Changed.into());
            }
            let filters = known.of(&now, tid);
            running::restart_within(&filters, &mut stopped);
            if stopped.dispatches {
                running::let_go(&stopped)?;
                let what = "it has its system calls sent to a handler of its own";
                return Err(Failure::new(FailureKind::SyscallDispatch, what));
            }
            let leaving = stopped.leaving_calls();
            let calls = [calls, &[leaving.as_slice()]].concat();
            let permission = match Permission::ask(&filters, gadgets, &calls) {
                Ok(permission) => permission,
                Err(what) => {
                    running::let_go(&stopped)?;
                    let what = format!("thread {}: {what}", tid.as_raw_nonzero());
                    refusal.get_or_insert(Failure::new(FailureKind::Seccomp, what));
                    refused.push(tid);
                    continue;
                }
            };
            let begun = running::begin(snapshot, target, gadgets, &stopped, &now, permission);
            match begun {
                Ok(Ok(mut session)) => {
                    if order.batches {
                        session.allow_batches(target.pid, &stopped, now.caught);
                    }
                    return Ok((stopped, session));
                }
                Err(error @ TraceError::Changed) => {
                    running::drop_untouched(&stopped)?;
                    return Err(error.into());
                }
                Err(error) => {
                    running::let_go(&stopped)?;
                    return Err(error.into());
                }
                Ok(Err(what)) => {
                    running::let_go(&stopped)?;
                    if what == Refusal::ShadowStack {
                        refusal.get_or_insert(not_carried(tid)(what));
                        refused.push(tid);
                        continue;
                    }
                    why = match what {
                        Refusal::RegisterState => not_carried(tid)(what),
                        _ => Failure::of(FailureKind::NoThread)(what),
                    };
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        boost.rest();
        if Instant::now() >= until {
            return Err(why);
        }
        std::thread::sleep(pause);
    }
}

/// Checks whether this process may trace the target, as far as `/proc` shows. If not, TiExec could read neither
/// what the threads do nor their memory, and would report another cause.
///
/// # Errors
/// `ptrace_denied`.
pub(super) fn permitted(target: &Target) -> Result<(), Failure> {
    // Other code reports that the process has ended.
    let Some((tid, _)) = alive(target).into_iter().next() else { return Ok(()) };
    match threads::may_look(&target.process, tid) {
        Err(error @ SysError { errno: Errno::PERM | Errno::ACCES, .. })
            if threads::alive(&target.process, tid).is_some() =>
        {
            if target.space.memory().is_used() {
                Err(not_seized(target, tid, error.into()))
            } else {
                Err(TraceError::Changed.into())
            }
        }
        _ => Ok(()),
    }
}

/// Returns the living threads, the leader first.
fn alive(target: &Target) -> Vec<(Pid, Status)> {
    target
        .threads()
        .into_iter()
        .filter_map(|tid| Some((tid, threads::alive(&target.process, tid)?)))
        .collect()
}

/// Returns threads that take a stop at least as well as `worst`, the best first. There are a few of each kind,
/// because all running threads may be on stacks where no frames can lie.
fn candidates(order: &AttachOrder<'_>, free: &[&(Pid, Status)], worst: Takes) -> Vec<Pid> {
    const OF_A_KIND: usize = 4;
    let has_timeout = |fd| order.workers.has_timeout(order.target.task, fd);
    let mut candidates: Vec<(Pid, Takes)> = free
        .iter()
        .map(|(tid, status)| {
            let takes = match status.state {
                // Stopped by a signal: what it was doing is interrupted already.
                b'T' => Takes::Asleep,
                // Nothing wakes such a thread, and once seized it could not be let go.
                b'D' => Takes::Badly,
                _ => threads::takes(&order.target.process, *tid, &has_timeout),
            };
            let unready = takes == Takes::AsleepForEintr && !threads::expects_eintr(status);
            (*tid, if unready { Takes::Badly } else { takes })
        })
        .filter(|(_, takes)| *takes <= worst)
        .collect();
    // The sort is stable: the leader, listed first, is the first of its kind.
    order::by_key(&mut candidates, |(_, takes)| *takes);
    let kinds = candidates.chunk_by(|(_, one), (_, next)| one == next);
    kinds.flat_map(|kind| kind.iter().take(OF_A_KIND)).map(|(tid, _)| *tid).collect()
}

/// The threads' filters, as far as this process knows them.
pub(super) struct KnownFilters {
    /// True if this process may read filters, as far as it knows. If not, no thread is stopped only to find out.
    readable: bool,
    /// The filters that the process has in common with this one: how many, and what they allow.
    common: Option<(u32, Filters)>,
}

impl KnownFilters {
    /// Tries the filters that must be tried. This process must have one thread.
    pub(super) fn find(order: &AttachOrder<'_>, calls: &[&[ManifestEntry]]) -> Self {
        const SYS_ADMIN: u64 = 1 << 21;
        let own = ProcDir::this_process().and_then(|this| this.status()).unwrap_or_default();
        let readable = own.credentials.effective() & SYS_ADMIN != 0 && own.seccomp == 0;
        let count = order.common_filters;
        let as_many = count > 0 && own.seccomp_filters == Some(count);
        let common = as_many.then(|| (count, Filters::tried(calls)));
        Self { readable, common }
    }

    /// Returns whether the filters of this thread, which has some, can become known.
    fn tell(&self, thread: &Status) -> bool {
        self.readable || self.tried(thread).is_some()
    }

    fn tried(&self, thread: &Status) -> Option<&Filters> {
        let (count, filters) = self.common.as_ref()?;
        (thread.seccomp_filters == Some(*count)).then_some(filters)
    }

    /// Returns the filters of a stopped thread, which may have got some since it was chosen.
    fn of(&self, now: &Status, tid: Pid) -> Filters {
        match now.seccomp {
            0 => Filters::Known(Vec::new()),
            FILTERS => self.tried(now).map_or_else(|| Filters::read(tid), Filters::clone),
            _ => Filters::Unknown(STRICT.to_owned()),
        }
    }
}

const STRICT: &str = "it is in seccomp's strict mode: no call but read, write and exit";

fn all_filtered(alive: &[(Pid, Status)]) -> Failure {
    if alive.iter().any(|(_, status)| status.seccomp == FILTERS) {
        let what = format!("every thread has seccomp filters, to be read first: {NEEDS}");
        return Failure::new(FailureKind::Seccomp, what);
    }
    Failure::new(FailureKind::Seccomp, STRICT)
}

/// Returns the failure for a thread whose state no frame can restore.
fn not_carried<E: Error + Send + Sync + 'static>(tid: Pid) -> impl FnOnce(E) -> Failure {
    move |error| {
        Failure::of(FailureKind::RegisterState)(error)
            .about(format_args!("thread {}", tid.as_raw_nonzero()))
    }
}

fn is_denied(error: TraceError) -> bool {
    matches!(error, TraceError::Sys(SysError { errno: Errno::PERM | Errno::ACCES, .. }))
}

/// Returns the PID of the thread's tracer; 0 if it has none, or if this PID namespace does not show it.
fn traced_by(process: &ProcDir, tid: Pid) -> u32 {
    threads::alive(process, tid).map_or(0, |status| status.tracer_pid)
}

fn not_seized(target: &Target, tid: Pid, error: TraceError) -> Failure {
    let TraceError::Sys(denied) = error else { return error.into() };
    if !is_denied(error) {
        return error.into();
    }
    match traced_by(&target.process, tid) {
        0 => Failure::denied(denied),
        tracer => {
            let what = format!("process {tracer} traces it");
            Failure::new(FailureKind::AlreadyTraced, what)
        }
    }
}
