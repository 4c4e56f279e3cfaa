//! One process to work on: TiExec locks it, makes an order for it, and treats it once.

use std::thread::sleep;
use std::time::{Duration, Instant};

use tiexec_core::config::Settings;
use tiexec_core::plan::Plan;
use tiexec_core::proc::stat;
use tiexec_core::report::{JitArea, Report};
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_remap::Failure;
use tiexec_remap::attach::{
    AttachOrder, Attached, Reverted, attach, attach_here, collapse_jit, revert, revert_here,
};
use tiexec_remap::images::Images;
use tiexec_remap::lock::Lock;
use tiexec_remap::mapped;
use tiexec_remap::policy::{Policy, pages};
use tiexec_remap::record::By;
use tiexec_remap::workers::{self, Pool, Workers};
use tiexec_sys::procfs::{self, ProcDir};
use tiexec_sys::{Pid, process, thp};
use tiexec_tracee::executor::Local;
use tiexec_tracee::target::Target;

use crate::identity::Identity;
use crate::journal::Record;
use crate::policy::policy;
use crate::times;

/// How long staging may take: the process runs meanwhile.
const STAGING: Duration = Duration::from_secs(30);

/// The search for a thread that takes a stop well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// How long it may take.
    pub patience: Duration,
    /// How long earlier searches in the same process have taken.
    pub looked: Duration,
}

impl Search {
    /// The only search in a process.
    pub const ONLY: Self = Self { patience: Duration::from_secs(2), looked: Duration::ZERO };
}

/// How long the whole work on one process of other credentials may take.
pub const LONGEST: Duration = Duration::from_secs(60);
/// How long a look at one process of other credentials may take. The look waits for the lock of the process's memory,
/// and the process may hold that lock for ever (for a page of a FUSE file, which another process of its user never
/// delivers).
pub const LOOKING: Duration = Duration::from_secs(30);

/// How long work on a process is meant to last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lasts {
    /// Until somebody undoes it.
    #[default]
    Always,
    /// Until TiExec itself undoes it: a drain of the agent. Such work says nothing about what the operator wants: it
    /// takes no revert of the operator's back, and is none itself.
    UntilUndone,
    /// As [`UntilUndone`](Self::UntilUndone), for a slice of a canary or of a benchmark. The journal gets no record unless
    /// it fails: one canary may have a thousand slices of each process.
    OneSlice,
}

/// A target that no other TiExec of this user works on.
#[derive(Debug)]
pub struct LockedTarget {
    /// The process.
    pub target: Target,
    /// Held as long as this TiExec works on the process.
    pub lock: Lock,
    /// How the orders search for a thread.
    pub search: Search,
    /// How long the work is meant to last.
    pub lasts: Lasts,
    workers: Workers,
}

impl LockedTarget {
    /// Opens and locks a process of this process's own credentials, or a process that a worker of its user works on
    /// already.
    ///
    /// # Errors
    /// The process is gone, busy, or may not be traced; it is as it was.
    pub fn open(pid: Pid) -> Result<Self, Failure> {
        Self::open_with(pid, &mut Pool::default())
    }

    /// As [`open`](Self::open), with workers of the pool if the process has other credentials.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pid: Pid, pool: &mut Pool) -> Result<Self, Failure> {
        Self::open_as_seen(pid, pool).map_err(|failure| Target::cause_at_first_look(pid, failure))
    }

    /// As [`open_with`](Self::open_with), for work that somebody has asked for now: if another TiExec works on the
    /// process, waits for it, at most [`times::OTHERS_WORK`]. (The companion and the agent look at the process at any
    /// moment, most often for some milliseconds.)
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_in_turn(pid: Pid, pool: &mut Pool) -> Result<Self, Failure> {
        let end = Instant::now() + times::OTHERS_WORK;
        let mut pauses = times::TURN.begin();
        loop {
            match Self::open_with(pid, pool) {
                Err(Failure { reason: Reason::Failed(FailureKind::Busy), .. })
                    if Instant::now() < end =>
                {
                    sleep(pauses.take());
                }
                opened => return opened,
            }
        }
    }

    fn open_as_seen(pid: Pid, pool: &mut Pool) -> Result<Self, Failure> {
        // This check is not in `this_process`, which has another one: a seccomp filter may kill the process for the
        // call.
        if procfs::is_of_another_namespace() {
            return Err(Failure::new(FailureKind::ProcUnavailable, procfs::OF_ANOTHER_NAMESPACE));
        }
        let (target, lock) = Target::open(pid, |process| {
            pages()?;
            Lock::take(process)
        })?;
        let workers = pool.workers(&target)?;
        Ok(Self { target, lock, search: Search::ONLY, lasts: Lasts::Always, workers })
    }

    /// Opens and locks this very process.
    ///
    /// # Errors
    /// `busy`, `proc_unavailable`; `ptrace_denied` if the process may not even read about itself.
    pub fn this() -> Result<Self, Failure> {
        let target = this_process()?;
        let lock = Lock::take(&target.process)?;
        let workers = Workers::of_this_process();
        Ok(Self { target, lock, search: Search::ONLY, lasts: Lasts::Always, workers })
    }

    /// Returns the order to treat the process. Its deadline is that of staging, not that of a launch.
    pub fn order(&self, policy: Policy) -> AttachOrder<'_> {
        let policy = Policy { deadline: STAGING, ..policy };
        AttachOrder {
            patience: self.search.patience,
            looked: self.search.looked,
            record: self.lock.record(),
            batches: true,
            ..AttachOrder::new(&self.target, &self.workers, policy)
        }
    }

    /// Gives up the lock. Others may work on the process from now on.
    pub fn into_target(self) -> Target {
        self.target
    }

    /// Returns when the process began, in clock ticks since boot; `None` once it is gone.
    pub fn start_time(&self) -> Option<u64> {
        start_time(&self.target.process)
    }

    /// Returns whether the process has text of TiExec's; `None` if its maps cannot be read.
    pub fn has_text_of_ours(&self) -> Option<bool> {
        mapped::has_text_of_ours(&self.target.process, thp::pages()?)
    }

    /// Treats the process once: puts the selected text onto huge pages. The journal gets a record if that did something to
    /// the process (see [`Lasts`]).
    ///
    /// # Errors
    /// The work could not begin; the process is as it was. The journal gets no record, because the caller may try again.
    pub fn treat_once(
        &self,
        order: &AttachOrder<'_>,
        images: &mut Images,
    ) -> Result<Treated, Failure> {
        let treated = done(order, || attach(order, images))?.reported(order);
        if self.lasts == Lasts::Always && !order.policy.dry_run {
            self.note_reverted(None);
        }
        let attached = &treated.attached;
        if attached.touched_it() {
            let plan = &attached.plan;
            self.record("attach", plan.huge_bytes(), attached.failure.as_ref(), Some(plan));
        }
        Ok(treated)
    }

    /// Does the same with this very process; the calling thread makes the system calls. The journal gets no record, and
    /// the caller decides whether anybody reads a report.
    ///
    /// # Errors
    /// As [`treat_once`](Self::treat_once).
    pub fn treat_here(
        &self,
        order: &AttachOrder<'_>,
        images: &mut Images,
        local: Local,
    ) -> Result<Done, Failure> {
        done(order, || attach_here(order, images, local))
    }

    /// Writes a record of work that could not begin and is not tried again.
    pub fn record_refusal(&self, failure: &Failure) {
        self.record("attach", 0, Some(failure), None);
    }

    /// Returns whether the program has no text of TiExec's because somebody wants it so. TiExec leaves it alone then.
    /// `had_copies` says whether the caller has seen copies in it.
    pub fn stays_reverted(&self, had_copies: bool) -> bool {
        let is_wanted = match self.reverted() {
            Some(by) => by == By::Operator,
            // A revert of another user, or from inside the process, is not in this user's record.
            None => had_copies,
        };
        is_wanted && self.has_text_of_ours() == Some(false)
    }

    /// Returns who reverted the program last, if this user's record says so.
    fn reverted(&self) -> Option<By> {
        self.lock.record()?.reverted(Identity::of(&self.target.process)?.program())
    }

    fn note_reverted(&self, by: Option<By>) {
        if let Some((record, identity)) = self.lock.record().zip(Identity::of(&self.target.process))
        {
            record.note_reverted(identity.program(), by);
        }
    }

    /// Writes down who reverts. The record is written before the revert, so that a TiExec that is killed in between
    /// leaves no revert without one.
    fn note_revert(&self) {
        let before = self.reverted();
        if before.is_none() && self.has_text_of_ours() == Some(false) {
            return;
        }
        match (self.lasts, before) {
            (Lasts::Always, _) => self.note_reverted(Some(By::Operator)),
            (_, Some(By::Operator)) => {}
            (_, _) => self.note_reverted(Some(By::TiExec)),
        }
    }

    /// Puts the file's own text back, once. With `dry_run`, only looks. The journal gets a record if that did something to
    /// the process (see [`Lasts`]).
    ///
    /// # Errors
    /// The work could not begin; the process is as it was.
    pub fn revert_once(&self, dry_run: bool) -> Result<Reverted, Failure> {
        let order = self.order(policy(&Settings::default(), dry_run)?);
        if !dry_run {
            self.note_revert();
        }
        let reverted = revert(&order)?;
        if reverted.stop.is_some() {
            self.record("revert", reverted.reverted, reverted.failure.as_ref(), None);
        }
        Ok(reverted)
    }

    /// Does the same with this very process; the calling thread makes the system calls. The journal gets no record.
    ///
    /// # Errors
    /// As [`revert_once`](Self::revert_once).
    pub fn revert_here(&self, local: Local) -> Result<Reverted, Failure> {
        revert_here(&self.order(policy(&Settings::default(), false)?), local)
    }

    fn record(
        &self,
        action: &'static str,
        bytes: u64,
        failure: Option<&Failure>,
        plan: Option<&Plan>,
    ) {
        if self.lasts == Lasts::OneSlice && failure.is_none() {
            return;
        }
        let result = failure.map_or("ok", |failure| failure.reason.as_str());
        Record { action, target: &self.target, bytes, result, plan }.write();
    }
}

/// Opens this very process.
///
/// # Errors
/// `thp_unsupported`; `proc_unavailable`, `ptrace_denied`: it may not even read about itself.
pub fn this_process() -> Result<Target, Failure> {
    pages()?;
    let (target, ()) = Target::open(process::this(), |_| Ok(()))?;
    // Where /proc is that of another PID namespace, this number may name another process there.
    if !target.space.is_this_process() {
        let what = "/proc is that of another PID namespace; fix: mount -t proc proc /proc";
        return Err(Failure::new(FailureKind::ProcUnavailable, what));
    }
    Ok(target)
}

/// Returns when a process began, in clock ticks since boot; `None` once it is gone.
pub fn start_time(process: &ProcDir) -> Option<u64> {
    stat::start_time(&process.read("stat").ok()?).ok()
}

/// The outcome of treating a process once.
#[derive(Debug)]
pub struct Treated {
    /// The work on its text.
    pub attached: Attached,
    /// The report on what the kernel shows afterwards.
    pub report: Report,
}

impl Treated {
    /// Returns whether anything in the process changed.
    pub fn changed_it(&self) -> bool {
        self.attached.touched_it() || self.report.jit.iter().any(|area| area.made_bytes > 0)
    }
}

/// The work on a process, before anybody looks at what the kernel shows afterwards.
#[derive(Debug)]
pub struct Done {
    attached: Attached,
    jit: Vec<JitArea>,
}

impl Done {
    /// Adds the report. It costs a second look at the process.
    pub fn reported(self, order: &AttachOrder<'_>) -> Treated {
        let Self { mut attached, jit } = self;
        let report = Report { jit, ..tiexec_remap::verify::report(order, &mut attached) };
        Treated { attached, report }
    }
}

fn done(
    order: &AttachOrder<'_>,
    attach: impl FnOnce() -> Result<Attached, Failure>,
) -> Result<Done, Failure> {
    let Policy { select, pages, .. } = order.policy;
    let attached =
        if select.text() { attach()? } else { Attached::planned(Plan::nothing(pages.pmd)) };
    let jit = if select.jit { collapse_jit(order)? } else { Vec::new() };
    Ok(Done { attached, jit })
}

/// Returns whether the process has TiExec's text; false if TiExec cannot read the process.
pub fn has_text_of_ours(process: &ProcDir) -> bool {
    look_for_text_of_ours(process) == Some(true)
}

/// Returns whether the process has TiExec's text; `None` if TiExec cannot read the process.
pub fn look_for_text_of_ours(process: &ProcDir) -> Option<bool> {
    let Some(pages) = thp::pages() else { return Some(false) };
    let has = || mapped::has_text_of_ours(process, pages);
    if !workers::is_of_others(process) {
        return has();
    }
    workers::apart(LOOKING, has).ok().flatten()
}
