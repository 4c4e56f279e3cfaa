//! Real-time priority for the time of a stop. On a busy machine each step of a stop would otherwise wait for a
//! processor.
//!
//! The tracer's thread runs under `SCHED_FIFO`, before all normal threads, if it may. The fetcher does too: it is
//! TiExec's own process, and the tracer waits for its answers in a stop. The stopped thread does only if its
//! credentials are the tracer's. A thread of another user could give the priority to children, or keep it by
//! changing the home frame in its own memory.
//!
//! - A boost ends with the stop. It ends earlier once the stopped thread has had it, or the tracer's thread has run
//!   with it, for ten milliseconds. (Waiting for a tracee does not count.) The warden, a thread beside the tracer's
//!   with the next higher priority, ends it then, whatever the tracer and its tracee do.
//! - Children do not inherit it (`SCHED_RESET_ON_FORK`).
//! - If TiExec dies, the stopped thread ends its own boost on its way home.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::schedule::{self, Unboosted};
use tiexec_sys::{Pid, SysError};
use tiexec_tracee::TraceError;
use tiexec_tracee::remote;
use tiexec_tracee::session::{Counts, Session};
use tiexec_tracee::stopped::Stopped;
use tiexec_tracee::syscall_manifest::ManifestEntry;

/// The lowest real-time priority: before every normal thread, behind every other real-time one.
const PRIORITY: i32 = 1;
/// The longest time in one attach for which the stopped thread is boosted, and for which the tracer runs boosted.
const LONGEST: Duration = Duration::from_millis(10);
/// The shortest time between two checks of the warden, which would otherwise keep a processor from everyone else.
const SHORTEST_CHECK: Duration = Duration::from_millis(1);
/// The least `RLIMIT_RTTIME` with which a thread is boosted: the kernel counts in ticks, and kills.
const LEAST_LIMIT: Duration = Duration::from_millis(100);

/// The link in `/proc` that names a thread's user namespace.
const USERS: &str = "ns/user";

/// The call by which the thread ends its own boost if this process dies.
const BACK: ManifestEntry = remote::SET_NORMAL_SCHEDULING;

/// The calls that a boosted thread may make for TiExec.
pub(super) const CALLS: [ManifestEntry; 1] = [BACK];

/// The boosts of one attach; they end with this value.
#[derive(Debug)]
pub(super) struct Boost {
    /// `None` if this thread may not be boosted, or is not scheduled normally.
    shared: Option<Arc<Shared>>,
    /// Ends the boosts that last too long.
    warden: Option<JoinHandle<()>>,
    /// True if ending a boost restores the thread's scheduling in full.
    traceless: bool,
    with_thread: bool,
}

/// The state that the tracer's thread and the warden share.
#[derive(Debug)]
struct Shared {
    tracer: Pid,
    /// A process of TiExec's own that answers the tracer in a stop.
    fetcher: Option<Pid>,
    /// The user namespace of this process.
    namespace: Result<u64, SysError>,
    /// Wakes the warden.
    timer: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The CPU time of the tracer's thread when its boost began; `None` without a boost.
    since: Option<Duration>,
    /// How long the tracer's thread may still run boosted.
    left: Duration,
    /// The stopped thread and when its boost ends, while it has one.
    thread: Option<(Pid, Instant)>,
    /// True once there will be no more boosts.
    over: bool,
}

impl Boost {
    /// Finds out whether this thread may be boosted, but does not boost it yet. `fetcher` answers this thread in a
    /// stop and is boosted with it.
    pub(super) fn begin(fetcher: Option<Pid>) -> Self {
        let none = Self { shared: None, warden: None, traceless: false, with_thread: false };
        if !schedule::is_normal(None)
            || schedule::longest_boost(None) < LEAST_LIMIT
            || schedule::boost(None, PRIORITY).is_err()
        {
            return none;
        }
        let traceless = schedule::unboost(None) == Ok(Unboosted::Wholly);
        let flags = TimerfdFlags::CLOEXEC;
        let Ok(timer) = timerfd_create(TimerfdClockId::Monotonic, flags) else { return none };
        let state = State { since: None, left: LONGEST, thread: None, over: false };
        let tracer = schedule::this_thread();
        let namespace = ProcDir::this_process().and_then(|this| this.namespace(USERS));
        let shared =
            Arc::new(Shared { tracer, fetcher, namespace, timer, state: Mutex::new(state) });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().stack_size(64 << 10).name("tiexec-boost".into());
        match thread.spawn(move || watched.keep_time()) {
            Ok(warden) => {
                Self { shared: Some(shared), warden: Some(warden), traceless, with_thread: false }
            }
            Err(_) => none,
        }
    }

    /// Boosts this thread, if it has time left. The caller is about to stop a thread.
    pub(super) fn start(&self) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.state();
        if state.since.is_none()
            && !state.left.is_zero()
            && let Some(now) = schedule::cpu_time(shared.tracer)
        {
            // Set the end of the boost first.
            shared.wake_after(state.left);
            state.since = schedule::boost(None, PRIORITY).is_ok().then_some(now);
            if let Some(fetcher) = shared.fetcher {
                let _slower = schedule::boost(Some(fetcher), PRIORITY);
            }
        }
    }

    /// Schedules this thread normally again: no thread is stopped.
    pub(super) fn rest(&self) {
        if let Some(shared) = &self.shared {
            shared.state().end(shared);
        }
    }

    /// As [`rest`](Self::rest), if no thread was stopped. What was only looked at does not shorten later boosts: a look
    /// takes some ten microseconds, and a pause follows it.
    pub(super) fn rest_after_a_look(&self) {
        if let Some(shared) = &self.shared {
            let mut state = shared.state();
            let left = state.left;
            state.end(shared);
            state.left = left;
        }
    }

    /// Boosts the stopped thread too, if it is this user's, is scheduled normally, and may end the boost itself.
    ///
    /// # Errors
    /// The thread is gone.
    pub(super) fn take_along(&mut self, session: &mut Session, tid: Pid) -> Result<(), TraceError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        // A process of other credentials has a fetcher. If the thread's own credentials have changed since, it is
        // let go at once.
        let is_ours = || {
            shared.fetcher.is_none()
                && ProcDir::of(tid).and_then(|thread| thread.namespace(USERS)) == shared.namespace
                && schedule::longest_boost(Some(tid)) >= LEAST_LIMIT
        };
        if !self.traceless || !session.may(&BACK) || !schedule::is_normal(Some(tid)) || !is_ours() {
            return Ok(());
        }
        // Put the call into the chain before the thread is boosted. The zeroes are its parameter: a priority of 0.
        let back = remote::set_normal_scheduling(session.zeroes());
        session.release_on_the_way_home(back);
        session.install_chain()?;
        self.with_thread = true;
        let mut state = shared.state();
        if state.since.is_some() {
            shared.wake_after(state.left.min(LONGEST));
            let boosted = schedule::boost(Some(tid), PRIORITY).is_ok();
            state.thread = boosted.then(|| (tid, Instant::now() + LONGEST));
        }
        Ok(())
    }

    /// Ends the thread's boost and lets the thread go on. Also returns how long the thread stood. This thread stays boosted until
    /// this value is dropped.
    ///
    /// # Errors
    /// The thread is gone.
    pub(super) fn leave(
        &self,
        session: Session,
        stopped: &Stopped,
    ) -> Result<(Counts, Duration), TraceError> {
        let normally = || {
            if let Some(shared) = &self.shared {
                shared.state().end_of_thread();
            }
        };
        let counts =
            session.leave(stopped, if self.with_thread { Some(&normally) } else { None })?;
        Ok((counts, stopped.since.elapsed()))
    }
}

impl Drop for Boost {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.state();
        state.end(shared);
        state.over = true;
        drop(state);
        shared.wake_after(Duration::from_nanos(1));
        // A later fork must find this process with one thread.
        let _ended = self.warden.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the warden after `time`, which is less than a second. Replaces the time set before.
    fn wake_after(&self, time: Duration) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        let once = Itimerspec { it_interval: none, it_value };
        let _never_fails = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// The warden's loop: waits, and ends the boosts that last too long.
    fn keep_time(&self) {
        // Once woken, the warden runs before both threads that it watches.
        let _waits_for_a_processor_then = schedule::boost(None, PRIORITY + 1);
        loop {
            let _woken = rustix::io::read(&self.timer, &mut [0; 8]);
            let mut state = self.state();
            if state.over {
                return;
            }
            if let Some(next) = state.end_what_lasts_too_long(self) {
                self.wake_after(next);
            }
        }
    }
}

impl State {
    /// Ends boosts that have lasted too long. Returns the time until the next check; `None` if nothing is boosted.
    fn end_what_lasts_too_long(&mut self, shared: &Shared) -> Option<Duration> {
        let now = Instant::now();
        let of_thread = self.thread.map(|(_, end)| end.saturating_duration_since(now));
        if of_thread.is_some_and(|left| left.is_zero()) {
            self.end_of_thread();
        }
        let of_tracer = self.since.map(|since| self.left.saturating_sub(ran(shared.tracer, since)));
        if of_tracer.is_some_and(|left| left.is_zero()) {
            self.end(shared);
        }
        let next = of_thread.into_iter().chain(of_tracer).filter(|left| !left.is_zero()).min();
        // While the tracer waits it uses no time, and what it has left stays as short as it is.
        next.map(|next| next.max(SHORTEST_CHECK))
    }

    /// Ends the boost of the tracer's thread, of the fetcher, and of the stopped thread.
    fn end(&mut self, shared: &Shared) {
        self.end_of_thread();
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(ran(shared.tracer, since));
            for ours in shared.fetcher.into_iter().chain([shared.tracer]) {
                let _always_allowed = schedule::unboost(Some(ours));
            }
        }
    }

    fn end_of_thread(&mut self) {
        // The thread may have ended and its ID may belong to another thread, which must not be changed.
        if let Some((tid, _)) = self.thread.take()
            && schedule::is_boosted(Some(tid))
        {
            let _gone = schedule::unboost(Some(tid));
        }
    }
}

/// Returns how much CPU time the thread has used since `since`.
fn ran(tid: Pid, since: Duration) -> Duration {
    schedule::cpu_time(tid).map_or(Duration::MAX, |now| now.saturating_sub(since))
}
