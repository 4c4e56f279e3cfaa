//! The second half of a launch. `ld.so` is done, and all the program's shared objects are mapped and relocated.
//! Those with enough text are switched as in a running process.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use tiexec_core::addr::RemoteAddr;
use tiexec_core::config::EdgePolicy;
use tiexec_core::escape::AsShown;
use tiexec_core::plan::edges::{Around, Reserved};
use tiexec_core::plan::{Backing, Plan, RunningText, plan_running};
use tiexec_core::proc::maps::{self, FileId, Perms, Vma};
use tiexec_core::select::Select;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::Pid;
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::process::SocketWait;
use tiexec_sys::same_processor::Beside;
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::{self, Gadgets, Interruption};
use tiexec_tracee::ld_so::Progress;
use tiexec_tracee::remote::SystemCall;
use tiexec_tracee::session::Session;
use tiexec_tracee::stopped::Stopped;
use tiexec_tracee::target::Target;
use tiexec_tracee::threads::{self, Takes};

use super::helper_end::{lets_child_in, refused};
use super::program::Program;
use super::{Order, initial_stack};
use crate::attach::{
    AttachOrder, Attached, PrivateCopies, StopCost, as_snapshot, find_stored, prepare,
};
use crate::images::Images;
use crate::objects::Object;
use crate::objects::chunks_of;
use crate::pagecache::{self, Small};
use crate::policy::Policy;
use crate::sources::Sources;
use crate::store::Store;
use crate::workers::{self, Pool, Workers};

/// Switches the shared objects of a program whose `ld.so` is done, within `left`. Returns the session with which
/// the program goes home.
///
/// # Errors
/// TiExec could not begin. The program is unchanged, and can only be let go.
pub(crate) fn switch(
    order: &Order,
    stopped: &Stopped,
    gadgets: Gadgets,
    reap: SystemCall,
    left: Duration,
) -> Result<(Session, Attached), Failure> {
    let process = &order.process;
    if stopped.dispatches {
        let what = "it has its system calls sent to a handler of its own";
        return Err(Failure::new(FailureKind::SyscallDispatch, what));
    }
    // The way home from a session ends such a call with EINTR. Let go without one, the thread sleeps on.
    if matches!(
        stopped.interruption,
        Interruption::WithRemainingTime | Interruption::Shown | Interruption::Unknown
    ) {
        let what = "it slept in a call when ld.so had finished";
        return Err(Failure::new(SkipReason::LinkerUnwatched, what));
    }
    let status = process.status().map_err(Failure::unreadable)?;
    if status.seccomp != 0 {
        let what = "an init function put a filter in force";
        return Err(Failure::new(FailureKind::Seccomp, what));
    }
    let space = AddressSpace::open(process).map_err(Failure::unreadable)?;
    let (tid, process) = (stopped.tid, process.clone());
    let (credentials, comm) = (status.credentials.clone(), status.name.shown().to_string());
    let target = Target { pid: tid, task: tid, process, space, credentials, comm };
    // The program runs code of its own choice by now. After a chain of execs it may be another user's, and need
    // workers.
    let workers = if order.chain { Pool::default().workers(&target)? } else { Workers::none() };
    // The exec stop has treated the main executable.
    let select = Select { main: false, ..order.policy.select };
    let policy = Policy { select, deadline: left, dry_run: false, ..order.policy };
    let mut attach = AttachOrder::new(&target, &workers, policy);
    if only_shared(order.policy.sources) {
        attach.private_copies = PrivateCopies::None;
    }
    let prepared =
        prepare(&attach, &mut Images::default(), Some(find_stored), stopped.since + left)?;
    let snapshot = as_snapshot(&attach, &prepared.entries);
    let stack = initial_stack(&snapshot, arch::stack_pointer(&stopped.registers))?;
    let home = arch::after_a_signal(&stopped.registers, stopped.interruption);
    let lets_in = lets_child_in(&target.process, tid, &status);
    let begun = Session::begin(tid, target.space.memory(), gadgets, home, stack, lets_in, reap)?;
    let mut session = begun.map_err(refused)?;
    if let Some(patience) = workers.limit() {
        session.limit(patience);
    }
    let done = if prepared.is_empty() {
        Ok(())
    } else {
        prepared.hand_and_switch(&mut session, &attach, &snapshot)
    };
    let mut attached = prepared.done(done);
    let (lasted, counts) = (stopped.since.elapsed(), session.counts());
    attached.stop = Some(StopCost { tid, lasted, counts, shown: stopped.shown });
    Ok((session, attached))
}

/// Returns whether objects are copied into the image store only: unless the settings ask for copies. A compiler's
/// 200 MiB of libraries are too much for one start of it.
fn only_shared(sources: Sources) -> bool {
    sources.pagecache && sources.store
}

/// Plans for objects before they are mapped, as if each were mapped at address 0. Prepares the page cache until
/// `deadline`, and builds no image.
pub(crate) fn expected(policy: &Policy, objects: &[Object], deadline: Instant) -> Plan {
    let Policy { pages, sources, dry_run, .. } = *policy;
    let small = Small::of(dry_run);
    let none = || Failure::new(SkipReason::NoStore, "there is no image store");
    let store = Store::open_for_this_user(pages).and_then(|store| store.ok_or_else(none));
    let mut texts = Vec::new();
    for object in objects {
        let Ok(meta) = object.file.metadata() else { continue };
        let chunks = chunks_of(object, pages);
        let prepared = sources
            .pagecache
            .then(|| pagecache::prepare(&object.file, &chunks, pages, small, deadline));
        let folios = prepared.and_then(Result::ok).unwrap_or_default().huge;
        let find = |store: &Store| {
            let found = store.find(&object.file, &object.path, None)?;
            if found.is_none() {
                store.may_build(&object.file, &object.path)?;
            }
            found.ok_or_else(|| Failure::new(SkipReason::NotStored, "there is no image of it yet"))
        };
        let stored = store.as_ref().map_err(Clone::clone).and_then(find);
        let own = sources.copy.filter(|_| !only_shared(sources));
        let copy = stored.as_ref().ok().filter(|_| sources.store).map(|_| Backing::Store).or(own);
        let uncopied = stored.err().filter(|_| sources.store).map(|failure| failure.reason);
        for load in object.facts.loads.iter().filter(|load| load.is_text()) {
            let Some(range) = load.mapped(pages.base) else { continue };
            let vma = Vma {
                range,
                perms: Perms { read: true, exec: true, ..Perms::default() },
                file_offset: load
                    .file_offset
                    .wrapping_sub(load.vaddr.wrapping_sub(range.start().get())),
                file: FileId { inode: meta.ino(), ..FileId::default() },
                name: object.path.as_os_str().as_bytes().into(),
                guarded: false,
            };
            texts.push(RunningText {
                vma,
                folios: folios.clone(),
                copy,
                uncopied,
                kept: Vec::new(),
                leave: None,
                parts: None,
            });
        }
    }
    // The neighbours of the objects are not known yet, so plan no edges.
    let policy = EdgePolicy::default();
    let reserved = Reserved::everything();
    plan_running(&Around { pages, policy, vmas: &[], reserved: &reserved }, &texts)
}

/// The progress of a program's `ld.so`, as the program's maps file shows it.
pub(crate) struct Linker<'a> {
    order: &'a Order,
    pid: Pid,
    /// The files that are mapped from the beginning.
    known: Vec<FileId>,
    /// The beginning of the program's RELRO.
    relro: RemoteAddr,
    /// The content of the maps file at the last poll.
    before: Vec<u8>,
    /// When `ld.so` was first seen to be done; `None` while it is not.
    done_since: Option<Instant>,
}

/// How long to wait for a moment at which the program takes a stop well.
const PATIENCE: Duration = Duration::from_secs(1);

impl<'a> Linker<'a> {
    /// Returns `None` for a program without RELRO, because nothing shows when its `ld.so` is done.
    pub(crate) fn new(order: &'a Order, pid: Pid, program: &Program) -> Option<Self> {
        let known = program.snapshot.vmas.iter().map(|vma| vma.file).collect();
        let relro = program.relro(order.policy.pages.base)?;
        Some(Self { order, pid, known, relro, before: Vec::new(), done_since: None })
    }

    /// Polls. `ld.so` seems to have mapped everything if an object with much text is mapped, nothing was mapped
    /// since the last poll, and the program makes no system call now.
    pub(crate) fn look(&mut self) -> Progress {
        let Ok(text) = self.order.process.read("maps") else { return Progress::Mapping };
        let Ok(vmas) = maps::parse(&text) else { return Progress::Mapping };
        let protected = vmas.iter().any(|vma| vma.range.contains(self.relro) && !vma.perms.write);
        let huge = self.order.policy.pages.pmd;
        let has_object = vmas.iter().any(|vma| {
            vma.is_text() && !self.known.contains(&vma.file) && vma.range.len() >= huge.bytes() / 2
        });
        let still = std::mem::replace(&mut self.before, text) == self.before;
        // How well the program would take an interruption now.
        let takes = || {
            // Closing a copy of a descriptor may wait for a server that the program chose, so copy none from a
            // foreign process.
            let wait_of = |fd, direction| match self.order.is_foreign() {
                true => SocketWait::Limited,
                false => workers::wait_of(self.pid, fd, direction),
            };
            threads::takes(&self.order.process, self.pid, &wait_of)
        };
        let is_caught = || {
            Beside::of(self.pid).go();
            threads::is_in_user_mode(&self.order.process, self.pid)
        };
        if protected {
            let since = *self.done_since.get_or_insert_with(Instant::now);
            return match takes() {
                Takes::Running if !is_caught() => Progress::Mapping,
                Takes::GroupStopped
                | Takes::Asleep
                | Takes::AsleepToRepeat
                | Takes::Running
                | Takes::AsleepOnFutex
                | Takes::RunningUnseen => Progress::Done,
                _ if since.elapsed() > PATIENCE => Progress::Missed,
                _ => Progress::Mapping,
            };
        }
        let runs = || match takes() {
            Takes::Running => is_caught(),
            takes => takes == Takes::RunningUnseen,
        };
        if has_object && still && runs() { Progress::Mapped } else { Progress::Mapping }
    }
}

/// Returns the failure of a program that never reached the point where its shared objects are mapped.
pub(crate) fn not_reached(error: TraceError) -> Failure {
    match error {
        TraceError::Gone => {
            Failure::new(FailureKind::TargetGone, "before its shared objects were mapped")
        }
        TraceError::LetGo | TraceError::LostSight => {
            let what = "it began another program before its shared objects were mapped";
            Failure::new(FailureKind::TargetGone, what)
        }
        error => error.into(),
    }
}
