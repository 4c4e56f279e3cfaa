//! Puts the text of a running process onto huge pages, and back.
//!
//! TiExec does everything that takes time beside the process. It then stops one thread for a moment and makes it
//! map what was staged; the other threads never stop. Nothing of the process changes before the one `mremap` of a
//! span. After it, the span's bytes are the same as before.

mod boost;
mod compare;
mod file_passing;
mod here;
mod jit;
mod joined;
mod mappings;
mod passing;
mod pool;
mod prepared;
mod probe;
mod residue;
mod revert;
mod snapshot;
mod stored;
mod switching;
mod texts;
mod thread;
mod waits;
mod written;

use std::time::{Duration, Instant};

use tiexec_core::addr::RemoteAddr;
use tiexec_core::area::{Area, SmapsFor};
use tiexec_core::marks::Marks;
use tiexec_core::plan::Plan;
use tiexec_core::proc::auxv;
use tiexec_core::proc::maps::Vma;
use tiexec_core::skip::FailureKind;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::Gadgets;
use tiexec_tracee::executor::{Executor, Local};
use tiexec_tracee::gadgets;
use tiexec_tracee::remote;
use tiexec_tracee::running::{self, Again};
use tiexec_tracee::session::{Counts, Session};
use tiexec_tracee::stopped::Stopped;
use tiexec_tracee::syscall_manifest::ManifestEntry;
use tiexec_tracee::target::Target;

use boost::Boost;
pub use here::calls_here;
pub use jit::{collapse_jit, look_at_jit};
use passing::{OpenHere, OverSockets};
pub(crate) use prepared::{Prepared, prepare};
pub use revert::{Reverted, revert, revert_here};
pub(crate) use stored::find as find_stored;
use thread::{Begun, Seeker, Turn};
use waits::{Wait, Waits};

use crate::images::Images;
use crate::policy::Policy;
use crate::record::Record;
use crate::switch::{Company, Shared, Surroundings};
use crate::workers::{Fetcher, Workers};

/// The order to work on a running process.
#[derive(Clone, Copy, Debug)]
pub struct AttachOrder<'a> {
    /// The process.
    pub target: &'a Target,
    /// The workers that open its files and copy its descriptors.
    pub workers: &'a Workers,
    /// The policy. The process runs while TiExec stages.
    pub policy: Policy,
    /// The huge pages that may be taken, by their addresses; `None` for all.
    pub allowed: Option<&'a [RemoteAddr]>,
    /// The text that may be copied for this process alone, where there are sources that processes share.
    pub private_copies: PrivateCopies,
    /// How long to look for a thread that takes a stop well, and for the right moment.
    pub patience: Duration,
    /// How long earlier attempts have looked already.
    pub looked: Duration,
    /// What TiExec remembers about the process; see [`Lock::record`](crate::lock::Lock::record).
    pub record: Option<Record<'a>>,
    /// True if one stop may make several calls in a row, which a signal ends.
    pub batches: bool,
    /// How many seccomp filters the process and this one had in common when this one was forked; 0 if it was not
    /// forked from the process. A thread with the same number of filters has this process's own filters. This
    /// process can try those, even if it may not read them.
    pub common_filters: u32,
}

/// Selects the text that TiExec may copy for one process alone. The other text becomes huge by what processes
/// share: the page cache and the image store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrivateCopies {
    /// All text.
    All,
    /// All text if it has at most this number of bytes; otherwise only the program's own text. A compiler's 200 MiB
    /// of libraries are too much for one start of it.
    UpTo(u64),
    /// No text.
    None,
}

/// The result of an attach, or of a launch, which is an attach at the exec stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The plan.
    pub plan: Plan,
    /// Why TiExec did not carry the plan out, or not in full.
    pub failure: Option<Failure>,
    /// Why TiExec did something in a worse way than planned.
    pub setback: Option<Failure>,
    /// The cost of the stop; `None` if no thread was stopped.
    pub stop: Option<StopCost>,
    /// Bytes of text that became huge without a stop.
    pub from_outside: u64,
    /// Bytes copied from files into images for this process; 0 if an image existed already.
    pub bytes_copied: u64,
    /// Why smaps was read, if it was.
    pub smaps_for: Option<SmapsFor>,
    /// The part that only a launch has; `None` for a process that ran before.
    pub start: Option<AtStart>,
}

/// The part of [`Attached`] that only a launch has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AtStart {
    /// How long the program was held once `ld.so` was done; `None` if it was not held then.
    pub linked: Option<Duration>,
    /// True if the program was moved to where its text is congruent.
    pub rebased: bool,
    /// Why the program could not be stopped once `ld.so` was done.
    pub unwatched: Option<Failure>,
}

/// The cost of one stop of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopCost {
    /// The thread.
    pub tid: Pid,
    /// How long the thread was stopped.
    pub lasted: Duration,
    /// Counters of the calls that it made for TiExec.
    pub counts: Counts,
    /// True if the thread may have seen that a system call was interrupted.
    pub shown: bool,
}

impl<'a> AttachOrder<'a> {
    /// Returns an order to treat all selected text in one attempt, which makes one call at a time.
    pub const fn new(target: &'a Target, workers: &'a Workers, policy: Policy) -> Self {
        Self {
            target,
            workers,
            policy,
            allowed: None,
            private_copies: PrivateCopies::All,
            patience: Duration::ZERO,
            looked: Duration::ZERO,
            record: None,
            batches: false,
            common_filters: 0,
        }
    }

    /// Does `work`. Repeats it without batches if another thread of the process had the kernel discard the signal
    /// that ends a batch. The first attempt may have switched some of the text.
    fn once_more_without_batches<T>(
        &self,
        mut work: impl FnMut(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match work(self) {
            Err(failure) if self.batches && failure.lost_a_batch() => {
                work(&Self { batches: false, ..*self })
            }
            done => done,
        }
    }
}

impl Attached {
    /// Returns a result that has only a plan: nothing is done yet.
    pub const fn planned(plan: Plan) -> Self {
        Self {
            plan,
            failure: None,
            setback: None,
            stop: None,
            from_outside: 0,
            bytes_copied: 0,
            smaps_for: None,
            start: None,
        }
    }

    /// Adds what a launch has done in its second stop, once `ld.so` was done.
    pub(crate) fn join(&mut self, linked: Self) {
        self.plan.join(linked.plan);
        self.failure = linked.failure.or(self.failure.take());
        self.setback = self.setback.take().or(linked.setback);
        self.bytes_copied += linked.bytes_copied;
        if let (Some(stop), Some(second)) = (&mut self.stop, linked.stop) {
            stop.counts.calls += second.counts.calls;
        }
        if let Some(start) = &mut self.start {
            start.linked = linked.stop.map(|stop| stop.lasted);
        }
    }

    /// Returns whether the attach changed anything in the process.
    pub fn touched_it(&self) -> bool {
        self.stop.is_some() || self.from_outside > 0
    }
}

/// Puts the text of a running process onto huge pages, where it is not on them already.
///
/// # Errors
/// TiExec could not begin, and the process is unchanged. [`Attached`] reports later failures.
pub fn attach(order: &AttachOrder<'_>, images: &mut Images) -> Result<Attached, Failure> {
    let mut attached = order
        .once_more_without_batches(|order| attach_as_seen(order, images))
        .map_err(|failure| order.target.cause(failure))?;
    attached.failure = attached.failure.map(|failure| order.target.cause(failure));
    if attached.failure.is_none() && !attached.touched_it() {
        // The program that was looked at needs no work, but the process may have executed another one since.
        order.target.still_there()?;
    }
    Ok(attached)
}

fn attach_as_seen(order: &AttachOrder<'_>, images: &mut Images) -> Result<Attached, Failure> {
    let begun = Instant::now();
    let deadline = begun + order.policy.deadline;
    let mut prepared = prepare(order, images, Some(find_stored), deadline)?;
    prepared.touch_from_outside(order);
    if prepared.is_empty() {
        return Ok(prepared.attached);
    }
    let work = |session: &mut Session, snapshot: &Snapshot| {
        prepared.hand_and_switch(session, order, snapshot)
    };
    let rests_on: Vec<&Vma> = prepared.texts_with_spans().collect();
    let stop = Stop { entries: &prepared.entries, rests_on: &rests_on, calls: prepared.calls() };
    let (cost, done) = in_a_stop(order, stop, work)?;
    prepared.attached.stop = Some(cost);
    Ok(prepared.done(done))
}

/// Puts the text of this very process onto huge pages, where it is not on them already. `order` names this process
/// and has no workers. No thread is stopped: the calling thread makes the calls, while it and the others execute
/// that text.
///
/// # Errors
/// TiExec could not begin, and the process is unchanged. [`Attached`] reports later failures.
pub fn attach_here(
    order: &AttachOrder<'_>,
    images: &mut Images,
    mut local: Local,
) -> Result<Attached, Failure> {
    // Huge pages are made in this process, too, before they take the place of its text.
    if !order.policy.dry_run {
        ThpOn::begin(&mut local, &order.target.process)?;
    }
    let deadline = Instant::now() + order.policy.deadline;
    let prepared = prepare(order, images, None, deadline)?;
    if prepared.is_empty() {
        return Ok(prepared.attached);
    }
    let rests_on: Vec<&Vma> = prepared.texts_with_spans().collect();
    order.target.unchanged(&rests_on)?;
    let snapshot = as_snapshot(order, &prepared.entries);
    let done = prepared.switch(&mut local, &OpenHere, None, order, &snapshot);
    Ok(prepared.done(done))
}

/// Returns the mappings of `entries` as the snapshot that a switch needs.
pub(crate) fn as_snapshot(order: &AttachOrder<'_>, entries: &[Area]) -> Snapshot {
    let vmas = entries.iter().map(|entry| entry.vma.clone()).collect();
    Snapshot { pages: order.policy.pages, vmas, entry: RemoteAddr::new(0) }
}

/// Returns the address space in which an attach or a revert switches, and in which other threads run.
fn surroundings<'a>(
    order: &AttachOrder<'a>,
    snapshot: &'a Snapshot,
    marks: Option<Marks>,
) -> Surroundings<'a> {
    let company = Company::Shared(Shared { space: &order.target.space, marks });
    Surroundings { snapshot, company }
}

/// The parameters of one stop of a thread.
struct Stop<'a> {
    /// The mappings of the process, as seen before the stop.
    entries: &'a [Area],
    /// The mappings that must still be as they were.
    rests_on: &'a [&'a Vma],
    /// The calls that the thread will make.
    calls: Vec<&'static [ManifestEntry]>,
}

/// Returns whether the process has turned THP off for itself (`PR_SET_THP_DISABLE`; mariadbd does, for its heap).
/// Text that is PMD-mapped stays PMD-mapped, but no other text can become so.
fn thp_is_off(process: &ProcDir) -> bool {
    let status = process.status().unwrap_or_default();
    status.thp_enabled == Some(false)
}

/// Returns whether the process has locked some of its memory (mlock(2)).
fn has_locked_memory(process: &ProcDir) -> bool {
    let status = process.status().unwrap_or_default();
    status.locked > 0
}

/// Turns THP on for a process that has turned it off, while the process maps what is staged.
struct ThpOn;

impl ThpOn {
    const CALLS: [ManifestEntry; 2] =
        [remote::set_thp_disable_entry(false), remote::set_thp_disable_entry(true)];

    /// Turns THP on if the process has it off now; the thread turns it off again on its way home. TiExec checks
    /// this in the stop, because a running process may turn it off at any moment: mariadbd does so in its first
    /// milliseconds.
    fn begin(executor: &mut impl Executor, process: &ProcDir) -> Result<(), Failure> {
        if !thp_is_off(process) {
            return Ok(());
        }
        if !Self::CALLS.iter().all(|call| executor.may(call)) {
            let what = "a seccomp filter may refuse prctl(PR_SET_THP_DISABLE), which turns it on";
            return Err(Failure::new(FailureKind::ThpDisabled, what));
        }
        executor.register(remote::set_thp_disable(true));
        executor
            .call(remote::set_thp_disable(false))?
            .map_err(Failure::of(FailureKind::ThpDisabled))?;
        Ok(())
    }
}

impl Prepared {
    /// Switches what is staged in a process of which one thread is stopped.
    ///
    /// # Errors
    /// Text that could not be switched is unchanged.
    pub(crate) fn hand_and_switch(
        &self,
        session: &mut Session,
        order: &AttachOrder<'_>,
        snapshot: &Snapshot,
    ) -> Done {
        let by = Some(session.pid());
        self.switch(session, &OverSockets::new(order), by, order, snapshot)
    }
}

/// The result of the work in a stop.
type Done = Result<(), Failure>;

/// Stops one thread, has `work` make it call what is in `calls`, and lets it go.
///
/// All of this runs in a thread of its own. If the target thread does not stop in time, it is still seized. It
/// cannot be detached while it does not stand, and it would stop as soon as it can. The kernel detaches it when the
/// thread that seized it ends.
fn in_a_stop(
    order: &AttachOrder<'_>,
    stop: Stop<'_>,
    mut work: impl FnMut(&mut Session, &Snapshot) -> Done + Send,
) -> Result<(StopCost, Done), Failure> {
    let Stop { entries, rests_on, mut calls } = stop;
    calls.push(&boost::CALLS);
    calls.push(&remote::COMPLETING);
    // A trial forks, so it must run while this process has one thread.
    let filters = thread::KnownFilters::find(order, &calls);
    let stop = Stop { entries, rests_on, calls };
    let begun = Instant::now();
    loop {
        let turn = std::thread::scope(|scope| {
            // If memory is short, a stack of the usual size may be too large.
            let thread = std::thread::Builder::new().name("tiexec-stop".into());
            let stop = thread
                .stack_size(512 << 10)
                .spawn_scoped(scope, || stop_and_work(order, &stop, begun, &filters, &mut work))
                .map_err(Failure::of(FailureKind::ForkFailed))?;
            stop.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let tid = match &turn {
            Turn::Done((cost, _)) => cost.tid,
            Turn::Seized(tid) => *tid,
        };
        thread::wait_until_detached(&order.target.process, tid);
        if let Turn::Done(done) = turn {
            return Ok(done);
        }
    }
}

/// Finds a thread, has `work` make its calls in it, and lets it go.
fn stop_and_work(
    order: &AttachOrder<'_>,
    stop: &Stop<'_>,
    begun: Instant,
    filters: &thread::KnownFilters,
    work: &mut impl FnMut(&mut Session, &Snapshot) -> Done,
) -> Result<Turn<(StopCost, Done)>, Failure> {
    let Stop { entries, rests_on, calls } = stop;
    let snapshot = as_snapshot(order, entries);
    thread::permitted(order.target)?;
    let gadgets = find_gadgets(order, &snapshot)?;
    let mut boost = Boost::begin(order.workers.fetcher().map(Fetcher::pid));
    let mut waits = Waits::read(order.record);
    let seeker =
        Seeker { order, snapshot: &snapshot, gadgets, calls, begun, filters, waits: &waits };
    let Begun { stopped, mut session, until } = match seeker.begin(&boost)? {
        Turn::Done(begun) => begun,
        Turn::Seized(tid) => return Ok(Turn::Seized(tid)),
    };
    if let Some(patience) = order.workers.limit() {
        session.limit(patience);
    }
    let gone = |error: TraceError| Failure::from(error);
    boost.take_along(&mut session, stopped.tid).map_err(gone)?;
    let done = order.target.unchanged(rests_on).and_then(|()| work(&mut session, &snapshot));
    let counts = session.counts();
    let (counts, lasted, done) = match boost.leave(session, &stopped) {
        Ok((counts, lasted)) => {
            // While this thread still traces it, a thread that returns from its call waits for this thread.
            note_the_wait(&mut waits, &order.target.process, &stopped, until);
            (counts, lasted, done)
        }
        Err(error) => {
            // Report the first failure, because it caused the second.
            let failure = done.err().unwrap_or_else(|| gone(error));
            // Switched text stays switched, unless the address space is gone or the work is done again.
            if failure.lost_a_batch() || !order.target.space.memory().is_used() {
                return Err(failure);
            }
            (counts, stopped.since.elapsed(), Err(failure))
        }
    };
    drop(boost);
    let Stopped { tid, shown, .. } = stopped;
    Ok(Turn::Done((StopCost { tid, lasted, counts, shown }, done)))
}

/// Notes the wait of a thread that has been let go, if that wait begins again. It would have ended at `until`. A later stop may end
/// the wait only if it was seen to begin: the thread's next wait may be a longer one.
fn note_the_wait(waits: &mut Waits<'_>, process: &ProcDir, stopped: &Stopped, until: u64) {
    /// How long a thread may take to sleep again, on a busy machine, or where its cgroup has used up its share of the processor
    /// (`cpu.max`) for one period, mostly of 100 ms.
    const PATIENCE: Duration = Duration::from_millis(500);
    let Some(call) = stopped.waits_again else { return };
    let tid = stopped.tid;
    let (wait, until) = match running::watch_wait(stopped, Instant::now() + PATIENCE) {
        Again::Asleep(slept) => (Wait::with(process, tid, call, slept), until),
        Again::Over => return,
        Again::Unseen => (Wait::next_of(process, tid, call), 0),
    };
    if let Some(wait) = wait {
        waits.note(wait, until);
    }
}

/// Finds the instructions through which the thread makes its calls, in the dynamic linker or in the program.
fn find_gadgets(order: &AttachOrder<'_>, snapshot: &Snapshot) -> Result<Gadgets, Failure> {
    let auxv = order.target.space.auxv().map_err(Failure::unreadable)?;
    let at = |key| RemoteAddr::new(auxv::get(&auxv, key).unwrap_or(0));
    let memory = order.target.space.memory();
    gadgets::find_running(memory, snapshot, at(auxv::AT_BASE), at(auxv::AT_ENTRY))
}
