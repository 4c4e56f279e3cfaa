//! One launch, from the exec stop to the program's first instruction:
//! snapshot → plan → stage → switch → verify.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tiexec_core::addr::{Pages, RemoteAddr};
use tiexec_core::coverage::{Note, coverage, is_ours};
use tiexec_core::elf::ElfHeader;
use tiexec_core::plan::{Backing, Plan, Span, plan};
use tiexec_core::proc::{ParseError, auxv, cgroup, maps, smaps, status};
use tiexec_core::report::{Kind, LaunchCost, Outcome, Report};
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, SysError, c, process, ptrace};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::{self, Call};
use tiexec_tracee::gadgets;
use tiexec_tracee::held::{ExecStop, let_go};
use tiexec_tracee::session::{Refusal, Session};

use crate::failure::Failure;
use crate::image::{self, Filled};
use crate::{headroom, switch};

/// What a launch is to do.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The program's directory under `/proc`.
    pub process: &'a ProcDir,
    /// The page sizes.
    pub pages: Pages,
    /// By which backing.
    pub backing: Backing,
    /// How long staging may take.
    pub deadline: Duration,
    /// Rather end the program with this status, before it has run, than leave text on base pages.
    pub refuse_with: Option<u8>,
    /// Plan only, then end the program with status 0 before it has run.
    pub dry_run: bool,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launched {
    /// What is PMD-mapped now, as the kernel says it.
    pub report: Report,
    /// What was planned; `None` if it did not come so far.
    pub plan: Option<Plan>,
}

/// Works on a program held at its exec stop, and lets it go. Everything that can fail fails open:
/// the report says what was left on base pages and why. `before_release` sees the result while the
/// program still has not run.
pub fn carry_out(order: &Order<'_>, stop: ExecStop, before_release: impl FnOnce(&Launched)) {
    if order.refuse_with.is_some() {
        // From here to the switch there is no moment at which the program should outlive us.
        let _gone = ptrace::set_options(stop.pid, ptrace::Options { exit_kill: true });
    }
    let mut work = Work::new(order, stop);
    let mut session = match work.begin() {
        Ok(session) => session,
        Err(failure) => {
            // Without a session there is no way to end the program by a status of its own.
            let launched = work.finish(None, Some(failure));
            before_release(&launched);
            let failed = launched.report.reason.is_some_and(SkipReason::is_failure);
            if order.refuse_with.is_some() && failed || order.dry_run {
                let _gone = process::kill(stop.pid);
            } else if order.refuse_with.is_some() {
                let _gone = ptrace::set_options(stop.pid, ptrace::Options::default());
            }
            let_go(stop);
            return;
        }
    };
    let failure = if order.dry_run { None } else { work.stage_and_switch(&mut session).err() };
    let launched = work.finish(Some(&session), failure);
    let failed = launched.report.reason.is_some_and(SkipReason::is_failure);
    let refused = order.refuse_with.filter(|_| failed);
    if let Some(status) = refused.or(order.dry_run.then_some(0)) {
        session.exit_instead(status);
    }
    if order.refuse_with.is_some() {
        let _gone = ptrace::set_options(stop.pid, ptrace::Options::default());
    }
    before_release(&launched);
    let _gone = session.go_home();
}

/// The state of one launch between its phases.
struct Work<'a> {
    order: &'a Order<'a>,
    stop: ExecStop,
    snapshot: Option<Snapshot>,
    plan: Option<Plan>,
    exe: Option<File>,
    filled: Filled,
    switched: Vec<Span>,
}

impl<'a> Work<'a> {
    fn new(order: &'a Order<'a>, stop: ExecStop) -> Self {
        Self {
            order,
            stop,
            snapshot: None,
            plan: None,
            exe: None,
            filled: Filled::default(),
            switched: Vec::new(),
        }
    }

    /// Snapshot and plan, and the session with which to carry it out.
    fn begin(&mut self) -> Result<Session, Failure> {
        let process = self.order.process;
        let unreadable = |error: SysError| {
            // A process that has died has no address space to read about.
            let gone = matches!(error.errno, Errno::SRCH | Errno::NOENT);
            let reason = if gone { SkipReason::TargetGone } else { SkipReason::ProcUnavailable };
            Failure::new(reason, error)
        };
        let malformed = |error: ParseError| Failure::new(SkipReason::ProcUnavailable, error);
        let exe = process.open_file("exe", false).map_err(|error| match error.errno {
            Errno::ACCES | Errno::PERM => Failure::new(SkipReason::UnreadableImage, error),
            _ => unreadable(error),
        })?;
        let mut header = [0; ElfHeader::LEN];
        exe.read_exact_at(&mut header, 0)
            .map_err(|error| Failure::new(SkipReason::ReadFailed, error))?;
        ElfHeader::parse(&header).map_err(|error| Failure::new(SkipReason::ForeignImage, error))?;
        let auxv_bytes = process.read("auxv").map_err(unreadable)?;
        if auxv::get(&auxv_bytes, auxv::AT_SECURE).is_some_and(|secure| secure != 0) {
            return Err(Failure::new(SkipReason::PrivilegedImage, "AT_SECURE is set"));
        }
        let address = |key| RemoteAddr::new(auxv::get(&auxv_bytes, key).unwrap_or(0));
        let maps = process.read("maps").map_err(unreadable)?;
        let snapshot = Snapshot {
            pages: self.order.pages,
            vmas: maps::parse(&maps).map_err(malformed)?,
            entry: address(auxv::AT_ENTRY),
        };
        let gadgets = gadgets::find(self.stop.pid, &snapshot, address(auxv::AT_BASE), &exe);
        let plan = plan(&snapshot, self.order.backing);
        let (snapshot, _) = (self.snapshot.insert(snapshot), self.plan.insert(plan));
        self.exe = Some(exe);

        let no_gadget = "the program has no `syscall; ret`, or no signal return, of its own";
        let gadgets = gadgets.ok_or_else(|| Failure::new(SkipReason::NoGadget, no_gadget))?;
        let stack = snapshot
            .vma_at(arch::stack_pointer(
                &ptrace::registers(self.stop.pid).map_err(TraceError::from)?,
            ))
            .filter(|vma| vma.name == b"[stack]" && vma.perms.write)
            .ok_or_else(|| {
                Failure::new(SkipReason::StackRoom, "the initial stack is not where it should be")
            })?;
        let reap =
            Call::new(c::SYS_wait4, [helper_id(), 0, u64::from(c::__WALL.unsigned_abs()), 0]);
        let session =
            Session::begin(self.stop.pid, gadgets, stack.range, self.sigchld_awaited(), reap)?;
        session.map_err(|refusal| match refusal {
            Refusal::StackRoom => Failure::new(
                SkipReason::StackRoom,
                "too little of the stack is mapped below the arguments (RLIMIT_STACK, or very many arguments)",
            ),
            Refusal::RegisterState => {
                Failure::new(SkipReason::RegisterState, "extended registers the frame cannot carry")
            }
        })
    }

    /// Returns whether the program has children of its own (it may have, from before its exec), or a
    /// SIGCHLD pending already. Where that cannot be read it is taken to be so.
    fn sigchld_awaited(&self) -> bool {
        let process = self.order.process;
        let children = format!("task/{}/children", self.stop.pid.as_raw_nonzero());
        let mut list = String::new();
        let read =
            process.open_file(&children, false).map(|mut file| file.read_to_string(&mut list));
        let only_the_helper = matches!(read, Ok(Ok(_)))
            && list.split_whitespace().all(|child| child.parse() == Ok(helper_id()));
        let pending = process.read("status").map_or(!0, |text| status::parse(&text).pending);
        !only_the_helper || pending >> (c::SIGCHLD - 1) & 1 == 1
    }

    /// Stages every span beside the program, then switches what was staged.
    fn stage_and_switch(&mut self, session: &mut Session) -> Result<(), Failure> {
        let (Some(snapshot), Some(plan), Some(exe)) = (&self.snapshot, &self.plan, &self.exe)
        else {
            return Ok(());
        };
        if plan.huge_bytes() == 0 {
            return Ok(());
        }
        if plan.backing == Backing::Image {
            headroom::check(self.order.process, plan.huge_bytes())?;
        }
        let name =
            snapshot.vma_at(snapshot.entry).map(|vma| vma.display_path()).unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or_default();
        let fd = switch::make_memfd(session, plan.backing, name)?;
        let memfd = self
            .order
            .process
            .open_file(&format!("fd/{fd}"), true)
            .map_err(|error| Failure::new(SkipReason::NoMemfd, error))?;
        let deadline = self.stop.since + self.order.deadline;
        self.filled = image::fill(&memfd, exe, plan, snapshot.pages, deadline)?;
        for part in &self.filled.staged {
            let len = part.span.range.len();
            let area = snapshot.free_area(len).ok_or_else(|| {
                Failure::new(SkipReason::AddressSpace, "no free address range to stage in")
            })?;
            switch::switch(session, fd, plan.backing, part, area)?;
            self.switched.push(part.span);
        }
        Ok(())
    }

    /// Asks the kernel what is PMD-mapped now, and writes the report.
    fn finish(&mut self, session: Option<&Session>, failure: Option<Failure>) -> Launched {
        let mut failure = failure.or_else(|| self.filled.shortfall.clone());
        if failure.is_some() && ptrace::registers(self.stop.pid).is_err() {
            // Whatever failed, failed because it is dead.
            failure = Some(TraceError::Gone.into());
        }
        let notes: Vec<Note> = failure
            .iter()
            .flat_map(|failure| {
                let texts = self.plan.iter().flat_map(|plan| &plan.texts);
                texts
                    .filter(|text| !text.spans.is_empty())
                    .map(|text| Note { range: text.vma.range, reason: failure.reason })
            })
            .collect();
        let process = self.order.process;
        let entries = process.read("smaps").ok().and_then(|text| smaps::parse(&text).ok());
        let entries = entries.unwrap_or_default();
        let comm = status::parse(&process.read("status").unwrap_or_default()).name;
        let comm = String::from_utf8_lossy(&comm).into_owned();
        let pid = self.stop.pid.as_raw_nonzero().get().unsigned_abs();
        let files = coverage(&entries, self.order.pages, &notes);
        let mut report = Report::new(Kind::Launch, pid, comm, files);
        report.unit = process.read("cgroup").ok().and_then(|text| cgroup::unit(&text));

        let planned = self.plan.as_ref().map_or(0, Plan::huge_bytes);
        let ours: u64 = entries
            .iter()
            .filter(|entry| is_ours(&entry.vma))
            .map(smaps::SmapsEntry::pmd_mapped)
            .sum();
        let failure = failure.or_else(|| {
            // All calls went well and yet: believe the kernel.
            (!self.order.dry_run && ours < planned)
                .then(|| Failure::new(SkipReason::NoHugePage, "switched, but not PMD-mapped"))
        });
        if failure.is_none() && planned == 0 {
            report.reason = Some(SkipReason::TooSmall);
        }
        report.outcome = match ours {
            0 => Outcome::Skipped,
            _ if ours < planned => Outcome::Partial,
            _ => Outcome::Switched,
        };
        if let Some(failure) = failure {
            report.reason = Some(failure.reason);
            report.detail = Some(failure.detail);
        }
        report.launch = session.map(|session| LaunchCost {
            backing: self.order.backing,
            stop_us: u64::try_from(self.stop.since.elapsed().as_micros()).unwrap_or(u64::MAX),
            remote_syscalls: session.counts().calls,
            bytes_copied: self.filled.copied,
            unsafe_windows: 0,
            spans: self.switched.clone(),
        });
        Launched { report, plan: self.plan.take() }
    }
}

/// This process's id: what the program waits for on its way home.
fn helper_id() -> u64 {
    u64::from(process::this().as_raw_nonzero().get().unsigned_abs())
}

/// Returns whether remote system calls are possible on this architecture.
pub fn supported() -> bool {
    arch::SUPPORTED
}
