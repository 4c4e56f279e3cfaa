//! One launch, from the exec stop to the program's first instruction:
//! snapshot → plan → stage → switch → verify.

mod after_ld_so;
mod copies;
mod helper_end;
mod page_cache;
mod program;
mod rebase;

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::plan::{Backing, Plan};
use tiexec_core::proc::auxv;
use tiexec_core::report::Report;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::Memory;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::ptrace;
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::arch;
use tiexec_tracee::gadgets;
use tiexec_tracee::handshake::{ExecStop, exit_instead, let_go};
use tiexec_tracee::ld_so::LinkWatch;
use tiexec_tracee::remote::{self, Advice};
use tiexec_tracee::running;
use tiexec_tracee::session::{Counts, Session};

use crate::attach::{AtStart, Attached, StopCost};
use crate::credentials;
use crate::image::Filled;
use crate::objects;
use crate::objects::{Expected, Object};
use crate::policy::Policy;
use crate::verify::{self, Subject};

use self::after_ld_so::Linker;
use self::helper_end::{lets_child_in, reap, refused};
use self::program::Program;

pub use self::page_cache::{Brought, bring_in, bring_in_object};

/// With at least this many bytes to relocate, `ld.so` takes long enough for TiExec to catch it by polling.
const LONG_RELOCATION: u64 = 512 << 10;

/// The order for a launch.
#[derive(Clone, Debug)]
pub struct Order {
    /// The program's directory under `/proc`.
    pub process: ProcDir,
    /// True if the process executed other programs before this one. It may be another user's by now.
    pub chain: bool,
    /// The policy. A dry run ends the program with status 0 before it has run.
    pub policy: Policy,
    /// The program's shared objects whose text could be huge; `None` to find them once the program is known.
    pub objects: Option<Expected>,
    /// The status with which the program ends before it has run, if text would stay on base pages; `None` to let it
    /// run.
    pub refuse_with: Option<u8>,
    /// True if the full report is needed.
    pub wants_report: bool,
}

impl Order {
    /// Returns whether the program has other credentials than this process, and is therefore treated as hostile. An
    /// exec, and the running program itself, can change the answer.
    pub(crate) fn is_foreign(&self) -> bool {
        self.chain && !credentials::are_ours(&self.process)
    }
}

/// The result of a launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Launched {
    /// The text that is PMD-mapped now, as the kernel reports it.
    pub report: Report,
    /// The plan; `None` if the launch failed before it.
    pub plan: Option<Plan>,
    /// The plan of a dry run for shared objects. They are not mapped yet, so the plan has the addresses in their
    /// files.
    pub objects: Option<Plan>,
    /// The status with which a dry run ends; `before_release` may set it.
    pub dry_run_status: Cell<u8>,
}

/// Works on a program held at its exec stop, and lets it go. Every failure fails open: the report says what was
/// left on base pages and why. `before_release` receives the result before the program has run.
pub fn carry_out(order: &Order, stop: ExecStop, before_release: impl FnOnce(&Launched)) {
    if order.refuse_with.is_some() {
        // The program must not outlive this process at any moment until its text is switched.
        let _gone = ptrace::set_options(stop.pid, ptrace::Options { exit_kill: true });
    }
    let mut work = Work::new(order, stop);
    let mut session = match work.begin() {
        Ok(session) => session,
        Err(failure) => {
            let launched = work.finish(Some(failure));
            before_release(&launched);
            if let Some(status) = ends_with(order, &launched) {
                exit_instead(stop.pid, status);
            } else if order.refuse_with.is_some() {
                let _gone = ptrace::set_options(stop.pid, ptrace::Options::default());
            }
            let_go(stop);
            return;
        }
    };
    let failure =
        if order.policy.dry_run { None } else { work.stage_and_switch(&mut session).err() };
    if failure.is_none()
        && let Some(expected) = work.wants_objects()
    {
        match work.watch_linker(&session) {
            Ok(watch) => return work.go_on_to_objects(session, watch, expected, before_release),
            Err(failure) => work.start().unwatched = Some(failure),
        }
    }
    work.note_stop(stop.since.elapsed(), session.counts());
    let launched = work.finish(failure);
    release(order, session, &launched, before_release);
}

/// The status with which the program must exit before it has run; `None` if it shall run. A dry run has such a
/// status, and so has a launch with `refuse_with` if text would stay on base pages.
fn ends_with(order: &Order, launched: &Launched) -> Option<u8> {
    if order.policy.dry_run {
        return Some(launched.dry_run_status.get());
    }
    let failed = launched.report.reason.is_some_and(Reason::is_failure);
    order.refuse_with.filter(|_| failed)
}

/// Makes the program exit, or lets it go home, as its report says.
fn release(
    order: &Order,
    mut session: Session,
    launched: &Launched,
    before_release: impl FnOnce(&Launched),
) {
    let mut before_release = Some(before_release);
    // The status of a dry run says whether its plan could be written.
    if let Some(tell) = before_release.take_if(|_| order.policy.dry_run) {
        tell(launched);
    }
    if let Some(status) = ends_with(order, launched) {
        session.exit_instead(status);
    }
    if order.refuse_with.is_some() {
        let _gone = ptrace::set_options(session.pid(), ptrace::Options::default());
    }
    if let Some(tell) = before_release {
        tell(launched);
    }
    let _gone = session.go_home();
}

/// The state of one launch between its phases.
struct Work<'a> {
    order: &'a Order,
    stop: ExecStop,
    /// [`Order::is_foreign`] at the exec stop, where the program's credentials cannot change.
    foreign: bool,
    program: Option<Program>,
    /// The work so far. Its plan is empty until the program has been looked at, and its start is never `None`.
    attached: Attached,
}

impl<'a> Work<'a> {
    fn new(order: &'a Order, stop: ExecStop) -> Self {
        Self {
            order,
            stop,
            foreign: order.is_foreign(),
            program: None,
            attached: Attached {
                start: Some(AtStart::default()),
                ..Attached::planned(Plan::nothing(order.policy.pages.pmd))
            },
        }
    }

    fn start(&mut self) -> &mut AtStart {
        self.attached.start.get_or_insert_default()
    }

    /// Notes the cost of the exec stop.
    fn note_stop(&mut self, lasted: Duration, counts: Counts) {
        self.attached.stop = Some(StopCost { tid: self.stop.pid, lasted, counts, shown: false });
    }

    /// Takes the snapshot, plans, and begins the session that carries the plan out.
    fn begin(&mut self) -> Result<Session, Failure> {
        let program = Program::read(self.order, self.foreign, self.deadline())?;
        // Find them after the page cache is prepared: reading a file that is not cached would bring it in as small
        // folios.
        let interpreter = auxv::get(&program.auxv, auxv::AT_BASE).unwrap_or(0);
        let memory = Memory::open(&self.order.process).map_err(Failure::unreadable)?;
        let gadgets =
            gadgets::find(&memory, &program.snapshot, RemoteAddr::new(interpreter), &program.exe);
        let program = self.program.insert(program);
        self.attached.plan = program.plan(true);
        let pid = self.stop.pid;
        let registers = running::registers(pid)?;
        let stack = initial_stack(&program.snapshot, arch::stack_pointer(&registers));
        self.use_store();

        let (gadgets, stack) = (gadgets?, stack?);
        let home = arch::at_exec_stop(&registers);
        let process = &self.order.process;
        let status = process.status();
        let lets_in = status.is_ok_and(|status| lets_child_in(process, pid, &status));
        Session::begin(pid, &memory, gadgets, home, stack, lets_in, reap())?.map_err(refused)
    }

    /// Returns the shared objects for which the program must stop once more, when `ld.so` is done.
    fn wants_objects(&self) -> Option<Expected> {
        let Order { policy, objects, refuse_with, .. } = self.order;
        let dynamic = self.program.as_ref().is_some_and(|program| program.dynamic);
        if !dynamic || !policy.select.dso || policy.dry_run {
            return None;
        }
        if refuse_with.is_some() && self.attached.failure.is_some() {
            return None;
        }
        let expected = match objects {
            Some(expected) => *expected,
            // Do not read files by the paths of a foreign program. They are read once the program has mapped them.
            None if self.foreign => Expected { objects: 1, relro: 0 },
            None => Expected::of(&self.objects()),
        };
        (expected.objects > 0).then_some(expected)
    }

    /// Returns the program's shared objects whose text could be huge.
    fn objects(&self) -> Vec<Object> {
        if self.foreign {
            return Vec::new();
        }
        let path = self.order.process.exe_path().unwrap_or_default();
        objects::with_text(Path::new(OsStr::from_bytes(&path)), &self.order.policy)
    }

    /// Returns the watch that finds out when `ld.so` is done.
    fn watch_linker(&self, session: &Session) -> Result<LinkWatch, Failure> {
        let unwatched = |what: &str| Failure::new(SkipReason::LinkerUnwatched, what);
        let status = self.order.process.status();
        if status.map_or(true, |status| status.seccomp != 0) {
            return Err(unwatched("shared objects are left alone under a seccomp filter"));
        }
        let Some(program) = &self.program else { return Err(unwatched("it was not looked at")) };
        let (linker, is_libc) =
            program.linker().ok_or_else(|| unwatched("its ld.so is not found in maps"))?;
        let relro = program.relro(self.order.policy.pages.base);
        if relro.is_none() && is_libc {
            return Err(unwatched("it has no RELRO by which to see that ld.so is done"));
        }
        Ok(LinkWatch::new(session, linker, relro))
    }

    /// Lets `ld.so` run, and switches the shared objects when it is done.
    fn go_on_to_objects(
        mut self,
        session: Session,
        watch: LinkWatch,
        expected: Expected,
        before_release: impl FnOnce(&Launched),
    ) {
        let (order, gadgets) = (self.order, session.gadgets());
        let held = self.stop.since.elapsed();
        // With `refuse_with` the program must not run a single instruction of its own, so it stops at each
        // call.
        let by_looks = expected.relro >= LONG_RELOCATION && order.refuse_with.is_none();
        let pid = self.stop.pid;
        let linker = self.program.as_ref().filter(|_| by_looks);
        let mut linker = linker.and_then(|program| Linker::new(order, pid, program));
        let look = linker.as_mut();
        let reached = watch.wait(session, look.map(|linker| || linker.look()));
        if let Ok((counts, _)) = reached {
            self.note_stop(held, counts);
        }
        let stopped = match reached {
            Ok((_, Some(stopped))) => stopped,
            Ok((_, None)) => {
                let what = "no safe point to stop the program after ld.so had finished";
                let failure = Failure::new(SkipReason::LinkerUnwatched, what);
                before_release(&self.finish(Some(failure)));
                return;
            }
            Err(error) => {
                before_release(&self.finish(Some(after_ld_so::not_reached(error))));
                return;
            }
        };
        let left = order.policy.deadline.saturating_sub(held);
        match after_ld_so::switch(order, &stopped, gadgets, reap(), left) {
            Ok((session, linked)) => {
                self.attached.join(linked);
                let launched = self.finish(None);
                release(order, session, &launched, before_release);
            }
            Err(failure) => {
                let launched = self.finish(Some(failure));
                before_release(&launched);
                if let Some(status) = ends_with(order, &launched) {
                    exit_instead(stopped.tid, status);
                }
                let _gone = running::let_go(&stopped);
            }
        }
    }

    /// Finds the program's image in the store, or builds it, if something must be copied and the store may be used.
    fn use_store(&mut self) {
        let Some(program) = &mut self.program else { return };
        let Attached { plan, setback, .. } = &mut self.attached;
        if !self.order.policy.sources.store || plan.span_bytes_by(Backing::Image) == 0 {
            return;
        }
        let deadline = self.stop.since + self.order.policy.deadline;
        match program.find_in_store(self.order, self.foreign, deadline) {
            Ok(true) => *plan = program.plan(true),
            Ok(false) => {}
            Err(failure) => *setback = Some(failure),
        }
    }

    fn deadline(&self) -> Instant {
        self.stop.since + self.order.policy.deadline
    }

    /// Moves the program if that is planned, stages copies beside it, and switches to what was staged.
    fn stage_and_switch(&mut self, session: &mut Session) -> Result<(), Failure> {
        self.move_program(session)?;
        if let Some(failure) = self.switch_to_store(session)? {
            // A memfd can hold the text that the store cannot give.
            self.attached.setback = Some(failure);
            if let Some(program) = &mut self.program {
                program.stored = None;
                self.attached.plan = program.plan(false);
            }
        }
        let Some(program) = &self.program else { return Ok(()) };
        let deadline = self.deadline();
        let Attached { plan, failure, bytes_copied, .. } = &mut self.attached;
        let filled = match self.order.policy.sources.copy {
            Some(backing) => {
                copies::by_memfd(session, self.order, program, plan, backing, deadline)?
            }
            None => Filled::default(),
        };
        (*failure, *bytes_copied) = (filled.shortfall, filled.copied);
        copies::edges_by_pagecache(session, program, plan)?;
        for span in plan.spans_by(Backing::Pagecache) {
            // One fault maps the whole range. If the kernel refuses this, it maps the pages when they are first
            // used.
            let _refused = session.call(remote::madvise(span.range, Advice::PopulateRead))?;
        }
        Ok(())
    }

    /// Switches what the plan takes from the store. Returns the failure if the store refused it.
    fn switch_to_store(&self, session: &mut Session) -> Result<Option<Failure>, Failure> {
        let Some(program) = &self.program else { return Ok(None) };
        match copies::by_store(session, program, &self.attached.plan) {
            Ok(()) => Ok(None),
            Err(failure) if failure.reason == FailureKind::StoreRefused => Ok(Some(failure)),
            Err(failure) => Err(failure),
        }
    }

    /// Moves the program if that is planned. If it cannot be moved, makes a plan for its present address.
    fn move_program(&mut self, session: &mut Session) -> Result<(), Failure> {
        let Some(program) = &mut self.program else { return Ok(()) };
        let Attached { plan, setback, start, .. } = &mut self.attached;
        let Some(rebase) = &plan.rebase else { return Ok(()) };
        let (process, base) = (&self.order.process, self.order.policy.pages.base);
        match rebase::rebase(session, process, &program.image, rebase, &program.auxv, base) {
            Ok(()) => {
                start.get_or_insert_default().rebased = true;
                program.snapshot = rebase.applied(&program.snapshot);
                program.image = rebase.moved_image(&program.image);
            }
            Err(failure) if failure.reason == FailureKind::RebaseFailed => {
                *plan = program.plan(false);
                *setback = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Asks the kernel what is PMD-mapped now, and writes the report.
    fn finish(&mut self, failure: Option<Failure>) -> Launched {
        let attached = &mut self.attached;
        attached.failure = failure.or(attached.failure.take());
        if attached.failure.is_some() && ptrace::registers(self.stop.pid).is_err() {
            // The program is dead, which explains any failure.
            attached.failure = Some(TraceError::Gone.into());
        }
        let Order { ref process, policy, wants_report: in_full, .. } = *self.order;
        let (pid, Policy { pages, dry_run, .. }) = (self.stop.pid, policy);
        let of = Subject { pid, process, pages, edges: None, dry_run, in_full };
        let report = verify::report_launch(&of, attached);
        let wanted = self.order.policy.dry_run && self.order.policy.select.dso;
        let objects = wanted
            .then(|| after_ld_so::expected(&self.order.policy, &self.objects(), self.deadline()));
        let objects = objects.filter(|plan| !plan.texts.is_empty());
        let plan = std::mem::replace(&mut self.attached.plan, Plan::nothing(pages.pmd));
        let plan = Some(plan).filter(|plan| !plan.texts.is_empty());
        Launched { report, plan, objects, dry_run_status: Cell::new(0) }
    }
}

/// Returns the initial stack, if `at` points into it.
fn initial_stack(snapshot: &Snapshot, at: RemoteAddr) -> Result<AddrRange, Failure> {
    let stack = snapshot.vma_at(at).filter(|vma| vma.name == b"[stack]" && vma.perms.write);
    stack.map(|vma| vma.range).ok_or_else(|| {
        Failure::new(FailureKind::StackRoom, "the stack pointer is not in the initial stack")
    })
}
