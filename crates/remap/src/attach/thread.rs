//! Finds the thread to stop: it must take a stop well, and its seccomp filters must allow the calls.

use std::error::Error;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tiexec_core::order;
use tiexec_core::proc::status::Status;
use tiexec_core::skip::FailureKind;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::process::{Direction, SocketWait};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::same_processor::Beside;
use tiexec_sys::{Errno, Pid, SysError};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Gadgets;
use tiexec_tracee::cut_short::cut_short;
use tiexec_tracee::running;
use tiexec_tracee::session::{Refusal, Session};
use tiexec_tracee::stopped::Stopped;
use tiexec_tracee::syscall_manifest::{Filters, ManifestEntry, NEEDS, Permission};
use tiexec_tracee::target::Target;
use tiexec_tracee::threads::{self, Takes};

use super::AttachOrder;
use super::boost::Boost;
use super::waits::{Wait, Waits};
use tiexec_tracee::Failure;

/// For how long TiExec accepts only threads that certainly notice nothing.
const UNNOTICED_FIRST: Duration = Duration::from_millis(20);
/// For how long TiExec accepts only threads of which it knows what they do.
const SEEN_FIRST: Duration = Duration::from_millis(200);
/// How long a thread may take to stop.
const FOR_THE_STOP: Duration = Duration::from_secs(2);
/// How long a stopped thread may take to complete a transfer that the stop has cut short.
const FOR_THE_REST: Duration = Duration::from_secs(5);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// `seccomp` in `/proc/PID/status`.
const FILTERS: u32 = 2;

/// The search for a thread that takes a stop well and may make the calls.
#[derive(Debug)]
pub(super) struct Seeker<'a> {
    /// The order.
    pub order: &'a AttachOrder<'a>,
    /// The mappings of the process.
    pub snapshot: &'a Snapshot,
    /// The code through which the thread makes its calls.
    pub gadgets: Gadgets,
    /// The calls.
    pub calls: &'a [&'a [ManifestEntry]],
    /// When the search began.
    pub begun: Instant,
    /// The filters of the threads, as far as they are known.
    pub filters: &'a KnownFilters,
    /// The waits that were made again already.
    pub waits: &'a Waits<'a>,
}

/// The reasons for which threads were not used.
struct Obstacles {
    /// Threads whose refusal lasts, because filters and shadow stacks are never taken back. They are not stopped again.
    refused: Vec<Pid>,
    /// The first such refusal.
    refusal: Option<Failure>,
    /// The last refusal that may pass.
    passing: Option<Failure>,
    /// The sleeping threads that were refused so. Each stop may make their wait longer, so they are not stopped again in
    /// the same wait.
    asleep: Waits<'static>,
}

/// A thread that stands and makes calls.
#[derive(Debug)]
pub(super) struct Begun {
    /// The thread.
    pub stopped: Stopped,
    /// The session in it.
    pub session: Session,
    /// When its wait would have ended, if that is [known](Waits::end_of); 0 if not.
    pub until: u64,
}

/// How far one tracer thread came.
#[derive(Debug)]
pub(super) enum Turn<T> {
    /// To the end.
    Done(T),
    /// Nothing was done: it seized a thread that goes on. The kernel detaches that one when the tracer thread ends, and another
    /// tracer thread can continue the search.
    Seized(Pid),
}

/// The end of the wait in which a thread slept when it was looked at.
#[derive(Clone, Copy, Debug)]
struct End {
    /// When the wait will end, or would have ended, in milliseconds of CLOCK_MONOTONIC; 0 if that is not known.
    at: u64,
    /// How often the thread had [slept](Status::slept), this wait included.
    slept: u64,
}

/// The outcome of an attempt to use one thread.
enum Attempt {
    /// The thread stands, and makes calls.
    Begun(Box<Begun>),
    /// The thread goes on. Try the next one.
    Next,
    /// The thread goes on. Look again at all threads.
    Again,
    /// The thread goes on, but is seized.
    Seized,
}

impl Seeker<'_> {
    /// Finds a thread, stops it, and begins a session in it.
    ///
    /// # Errors
    /// No thread could be used; each goes on as before.
    pub(super) fn begin(&self, boost: &Boost) -> Result<Turn<Begun>, Failure> {
        let until = self.begun + self.order.patience;
        let target = self.order.target;
        let mut pause = Duration::from_millis(1);
        let mut obstacles = Obstacles {
            refused: Vec::new(),
            refusal: None,
            passing: None,
            asleep: Waits::read(None),
        };
        let mut denials = 3;
        loop {
            let alive = alive(target);
            let free = self.free(&alive, &obstacles)?;
            let worst = match self.order.looked + self.begun.elapsed() {
                looked if looked < UNNOTICED_FIRST => Takes::Running,
                looked if looked < SEEN_FIRST => Takes::AsleepWithTimeout,
                _ => Takes::RunningUnseen,
            };
            let mut attempted = false;
            for (tid, takes) in self.candidates(&free, worst) {
                boost.start();
                // While this thread has the processor of a running one, that one does not go on, unless the scheduler moves
                // one of the two.
                let mut beside = Beside::of(tid);
                if takes == Takes::Running {
                    beside.go();
                }
                let end = match takes {
                    Takes::AsleepWithTimeout => self.end_of_wait(tid, &mut beside),
                    _ => None,
                };
                if !self.takes_it_now(tid, takes) || self.end_in(&obstacles.asleep, tid).is_some() {
                    continue;
                }
                attempted = true;
                match self.attempt(tid, takes, end, &mut obstacles, &mut denials)? {
                    Attempt::Begun(begun) => return Ok(Turn::Done(*begun)),
                    Attempt::Seized if Instant::now() < until => return Ok(Turn::Seized(tid)),
                    Attempt::Seized => return Err(self.none_is_suitable(&free)),
                    Attempt::Next => {}
                    Attempt::Again => break,
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            if attempted {
                boost.rest();
            } else {
                boost.rest_after_a_look();
            }
            if Instant::now() >= until {
                return Err(obstacles.passing.unwrap_or_else(|| self.none_is_suitable(&free)));
            }
            std::thread::sleep(pause);
        }
    }

    /// Returns the threads that may be stopped.
    ///
    /// # Errors
    /// There are none, and there will be none.
    fn free<'a>(
        &self,
        alive: &'a [(Pid, Status)],
        obstacles: &Obstacles,
    ) -> Result<Vec<&'a (Pid, Status)>, Failure> {
        if alive.is_empty() {
            return Err(Failure::new(FailureKind::TargetGone, "it has ended"));
        }
        let same = |status: &Status| self.order.target.same_rights(status);
        if !alive.iter().any(|(_, status)| same(status)) {
            let what = "its credentials are others than when it was looked at";
            return Err(Failure::new(FailureKind::Changed, what));
        }
        let is_free = |(tid, status): &&(Pid, Status)| {
            !obstacles.refused.contains(tid)
                && same(status)
                && (status.seccomp == 0 || status.seccomp == FILTERS && self.filters.tell(status))
        };
        let free: Vec<_> = alive.iter().filter(is_free).collect();
        if free.is_empty() {
            return Err(obstacles.refusal.clone().unwrap_or_else(|| all_filtered(alive)));
        }
        Ok(free)
    }

    /// Returns threads that take a stop at least as well as `worst`, the best first. There are a few of each kind,
    /// because all running threads may be on stacks where no frames can lie.
    fn candidates(&self, free: &[&(Pid, Status)], worst: Takes) -> Vec<(Pid, Takes)> {
        const OF_A_KIND: usize = 4;
        let mut candidates: Vec<(Pid, Takes)> = free
            .iter()
            .map(|(tid, status)| (*tid, self.takes(*tid, status.state)))
            .filter(|(_, takes)| *takes <= worst)
            .collect();
        // The sort is stable: the leader, listed first, is the first of its kind.
        order::by_key(&mut candidates, |(_, takes)| *takes);
        let kinds = candidates.chunk_by(|(_, one), (_, next)| one == next);
        kinds.flat_map(|kind| kind.iter().take(OF_A_KIND)).copied().collect()
    }

    /// Returns a function that tells whether calls on a socket of the process can time out.
    fn wait_of(&self) -> impl Fn(i32, Direction) -> SocketWait {
        let AttachOrder { target, workers, .. } = *self.order;
        move |fd, direction| workers.wait_of(target, fd, direction)
    }

    /// Returns how a thread in this state would take a stop now.
    fn takes(&self, tid: Pid, state: u8) -> Takes {
        let takes = match state {
            b'T' => Takes::GroupStopped,
            // Nothing wakes such a thread, and once seized it could not be let go.
            b'D' => Takes::Badly,
            _ => threads::takes(&self.order.target.process, tid, &self.wait_of()),
        };
        let may_not =
            || self.end_in(self.waits, tid).is_some_and(|end| !is_before(end) && !is_over(end));
        if takes == Takes::AsleepWithTimeout && may_not() { Takes::Badly } else { takes }
    }

    /// Returns whether a thread takes a stop no worse than it did when all threads were looked at. The stop follows within
    /// microseconds.
    fn takes_it_now(&self, tid: Pid, before: Takes) -> bool {
        let process = &self.order.target.process;
        match before {
            Takes::Running => threads::is_in_user_mode(process, tid),
            _ => threads::alive(process, tid).is_some_and(|status| {
                let now = self.takes(tid, status.state);
                now <= before && now != Takes::Running
            }),
        }
    }

    /// If the thread is still in one of these waits, returns when that would have ended.
    fn end_in(&self, waits: &Waits<'_>, tid: Pid) -> Option<u64> {
        if !waits.has(tid) {
            return None;
        }
        let process = &self.order.target.process;
        waits.end_of(&Wait::of(process, tid, threads::call_of(process, tid)?)?)
    }

    /// Returns when the wait of a sleeping thread will end without TiExec, or would have ended; `None` if the thread has ended.
    /// The wait may end a little earlier.
    fn end_of_wait(&self, tid: Pid, beside: &mut Beside) -> Option<End> {
        let target = self.order.target;
        let slept = threads::alive(&target.process, tid)?.slept;
        let mut left = || {
            let timeout = threads::timeout_of(&target.process, target.space.memory(), tid)?;
            timeout.checked_sub(beside.idle_time(tid)?)
        };
        let at = self.end_in(self.waits, tid).or_else(|| after(left()?)).unwrap_or(0);
        Some(End { at, slept })
    }

    /// Returns when the wait of a stopped thread, whose status is `now`, would have ended; 0 if that is not known.
    fn end_at_the_stop(&self, stopped: &Stopped, now: &Status, end: Option<End>) -> u64 {
        match end {
            Some(end) if now.slept == end.slept + stopped.stops => end.at,
            // The signal may have come long after the wait began.
            _ if stopped.group_stopped => 0,
            // The thread was in no such wait, or in another one, when it was looked at. So the wait has just begun.
            _ => stopped.timeout(self.order.target.space.memory()).and_then(after).unwrap_or(0),
        }
    }

    /// Tries to stop a thread, and to begin a session in it.
    ///
    /// # Errors
    /// No thread of the process can be used.
    fn attempt(
        &self,
        tid: Pid,
        takes: Takes,
        end: Option<End>,
        obstacles: &mut Obstacles,
        denials: &mut u32,
    ) -> Result<Attempt, Failure> {
        let target = self.order.target;
        let memory = target.space.memory();
        let stopped = match running::stop(tid, memory, takes, Instant::now() + FOR_THE_STOP) {
            Ok(stopped) => stopped,
            Err(TraceError::Gone) => return Ok(Attempt::Next),
            Err(TraceError::Continued) => return Ok(Attempt::Seized),
            Err(error @ TraceError::Changed) => return Err(error.into()),
            Err(error @ (TraceError::Late | TraceError::RseqUntold)) => {
                return Err(Failure::of(FailureKind::NoThread)(error));
            }
            Err(error @ TraceError::Foreign) if memory.is_used() => {
                obstacles.refuse(tid, not_carried(tid)(error));
                return Ok(Attempt::Next);
            }
            // A thread that has just ended cannot be traced either.
            Err(_) if threads::alive(&target.process, tid).is_none() => return Ok(Attempt::Next),
            // After an exec another thread may have this thread's ID, and that thread lives.
            Err(_) if !memory.is_used() => return Err(TraceError::Changed.into()),
            // Another tracer that was in the way may have gone since. While the process executes another program, the
            // kernel refuses every tracer.
            Err(error)
                if *denials > 0 && traced_by(&target.process, tid) == 0 && is_denied(error) =>
            {
                *denials -= 1;
                return Ok(Attempt::Again);
            }
            Err(error) => return Err(not_seized(target, tid, error)),
        };
        // The thread stands from here on. Write nothing to it before it is known to be the same as before.
        let now = threads::alive(&target.process, tid).unwrap_or_default();
        if !memory.is_used() || !target.same_rights(&now) {
            running::drop_untouched(&stopped)?;
            return Err(TraceError::Changed.into());
        }
        let until = self.end_at_the_stop(&stopped, &now, end);
        self.begin_in(stopped, until, &now, obstacles)
    }

    /// Begins a session in a stopped thread, whose status is `now`. Lets it go if that is not possible.
    fn begin_in(
        &self,
        mut stopped: Stopped,
        until: u64,
        now: &Status,
        obstacles: &mut Obstacles,
    ) -> Result<Attempt, Failure> {
        let (tid, target) = (stopped.tid, self.order.target);
        if is_over(until) {
            stopped.time_out();
        }
        let filters = self.filters.of(now, tid);
        running::restart_within(&filters, &mut stopped);
        if stopped.dispatches {
            running::let_go(&stopped)?;
            let what = "it has its system calls sent to a handler of its own";
            return Err(Failure::new(FailureKind::SyscallDispatch, what));
        }
        let leaving = stopped.leaving_calls();
        let calls = [self.calls, &[leaving.as_slice()]].concat();
        let permission = match Permission::ask(&filters, self.gadgets, &calls) {
            Ok(permission) => permission,
            Err(what) => {
                running::let_go(&stopped)?;
                let what = format!("thread {}: {what}", tid.as_raw_nonzero());
                obstacles.refuse(tid, Failure::new(FailureKind::Seccomp, what));
                return Ok(Attempt::Next);
            }
        };
        match running::begin(self.snapshot, target, self.gadgets, &stopped, now, permission) {
            Ok(Ok(mut session)) => {
                let (process, memory) = (&target.process, target.space.memory());
                let wait_of = self.wait_of();
                let cut = cut_short(process, memory, &stopped.registers, now, &wait_of);
                if let Some(cut) = cut {
                    let deadline = Instant::now() + FOR_THE_REST;
                    session.complete(&target.process, &mut stopped, &cut, deadline)?;
                }
                if self.order.batches {
                    session.allow_batches(target.pid, &stopped, now.caught);
                }
                return Ok(Attempt::Begun(Box::new(Begun { stopped, session, until })));
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
                let wait = |call| Wait::next_of(&target.process, tid, call);
                if let Some(wait) = stopped.call_number().and_then(wait) {
                    obstacles.asleep.note(wait, 0);
                }
                match what {
                    Refusal::ShadowStack => obstacles.refuse(tid, not_carried(tid)(what)),
                    Refusal::RegisterState => obstacles.passing = Some(not_carried(tid)(what)),
                    _ => obstacles.passing = Some(Failure::of(FailureKind::NoThread)(what)),
                }
            }
        }
        Ok(Attempt::Next)
    }

    /// Returns the failure if no thread was in a state in which it takes a stop well.
    fn none_is_suitable(&self, free: &[&(Pid, Status)]) -> Failure {
        let process = &self.order.target.process;
        let mut calls: Vec<String> = free
            .iter()
            .filter_map(|(tid, _)| threads::call_of(process, *tid))
            .map(threads::name_of_call)
            .collect();
        calls.sort_unstable();
        calls.dedup();
        calls.truncate(3);
        let what = if calls.is_empty() {
            "whenever it was looked at, each thread was in a system call".to_owned()
        } else {
            format!(
                "every thread is in a system call that a stop may cut short: {}",
                calls.join(", ")
            )
        };
        Failure::new(FailureKind::NoThread, what)
    }
}

/// How much earlier a wait may end than TiExec knows, in milliseconds.
const MARGIN: u64 = 20;

/// Returns whether a wait that ends then may be made again: it does not become longer by more than its timeout.
fn is_before(end: u64) -> bool {
    now() + MARGIN < end
}

/// Returns whether a wait that would have ended then is over, so that it may end by its timeout now.
fn is_over(end: u64) -> bool {
    end != 0 && now() > end + MARGIN
}

/// Returns the time after that duration, in milliseconds of CLOCK_MONOTONIC.
fn after(duration: Duration) -> Option<u64> {
    now().checked_add(u64::try_from(duration.as_millis()).ok()?)
}

/// Returns the time since boot, in milliseconds of CLOCK_MONOTONIC.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

impl Obstacles {
    /// Notes a refusal that lasts.
    fn refuse(&mut self, tid: Pid, why: Failure) {
        self.refusal.get_or_insert(why);
        self.refused.push(tid);
    }
}

/// Checks whether this process may trace the target, as far as `/proc` shows. If not, TiExec could read neither
/// what the threads do nor their memory, and would report another cause.
///
/// # Errors
/// `ptrace_denied`.
pub(super) fn permitted(target: &Target) -> Result<(), Failure> {
    // Other code reports that this thread, or the process, has ended.
    let tid = target.task;
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

/// The threads' filters, as far as this process knows them.
#[derive(Debug)]
pub(super) struct KnownFilters {
    /// True if this process may read filters, as far as it knows. If not, no thread is stopped only to find out. Found out
    /// when a thread has filters.
    readable: OnceLock<bool>,
    /// The filters that the process has in common with this one: how many, and what they allow.
    common: Option<(u32, Filters)>,
}

impl KnownFilters {
    /// Tries the filters that must be tried. This process must have one thread.
    pub(super) fn find(order: &AttachOrder<'_>, calls: &[&[ManifestEntry]]) -> Self {
        let count = order.common_filters;
        let as_many = count > 0 && own_status().seccomp_filters == Some(count);
        let common = as_many.then(|| (count, Filters::tried(calls)));
        Self { readable: OnceLock::new(), common }
    }

    fn are_readable(&self) -> bool {
        const SYS_ADMIN: u64 = 1 << 21;
        *self.readable.get_or_init(|| {
            let own = own_status();
            own.credentials.effective() & SYS_ADMIN != 0 && own.seccomp == 0
        })
    }

    /// Returns whether the filters of this thread, which has some, can become known.
    fn tell(&self, thread: &Status) -> bool {
        self.tried(thread).is_some() || self.are_readable()
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

fn own_status() -> Status {
    ProcDir::this_process().and_then(|this| this.status()).unwrap_or_default()
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

/// Waits until no thread of this process traces the thread. The kernel detaches the tracees of a thread after it has told those who
/// wait for the thread's end.
pub(super) fn wait_until_detached(process: &ProcDir, tid: Pid) {
    const LONGEST: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_micros(50);
    let until = Instant::now() + LONGEST;
    let is_ours = |tracer: u32| {
        let name = format!("task/{tracer}");
        tracer != 0 && ProcDir::this_process().is_ok_and(|this| this.file_type(&name).is_ok())
    };
    while is_ours(traced_by(process, tid)) && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
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
