//! A running process: its text onto huge pages, and back.
//!
//! Everything that takes time happens beside it. Then one of its threads is stopped for a moment and
//! made to map what was staged; the others never stop. Until the one `mremap` of a span, nothing of
//! the process has changed; after it, the span's bytes are the same as before.

mod apart;
mod haste;
mod images;
mod jit;
mod mappings;
mod pass;
mod revert;
mod same;
mod stored;
mod texts;
mod verify;

use std::fs::File;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::plan::{Backing, Plan, Span, plan_running};
use tiexec_core::proc::auxv;
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::smaps::{self, SmapsEntry};
use tiexec_core::proc::status::{self, Status};
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::{Call, Gadgets};
use tiexec_tracee::gadgets;
use tiexec_tracee::running::{self, Stopped};
use tiexec_tracee::session::{Counts, Session};
use tiexec_tracee::threads::{self, Takes};

use haste::Haste;
use images::Image;
pub use images::Images;
pub use jit::collapse_jit;
use pass::Passage;
pub use revert::{Reverted, revert};
use same::RunningImage;
use stored::Stored;
use texts::Texts;
pub use verify::report;

use crate::failure::Failure;
use crate::launch::Sources;
use crate::{headroom, switch};

/// How long only for one that will see nothing of it.
const UNSEEN_FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What to do with a running process.
#[derive(Clone, Copy, Debug)]
pub struct AttachOrder<'a> {
    /// The process.
    pub pid: Pid,
    /// A thread of it that has its address space: its first, unless that has ended.
    pub task: Pid,
    /// The directory of `task` under `/proc`.
    pub process: &'a ProcDir,
    /// The page sizes.
    pub pages: Pages,
    /// What to make huge pages of.
    pub sources: Sources,
    /// How long staging may take; the process runs meanwhile.
    pub deadline: Duration,
    /// How long to look for a thread that takes a stop well, and for the right moment.
    pub patience: Duration,
    /// Whether this process lives on afterwards: then another one makes the stop, so that the thread is
    /// let go whatever happens.
    pub apart: bool,
    /// Plan only.
    pub dry_run: bool,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// What was planned.
    pub plan: Plan,
    /// Why it was not carried out, or not in full.
    pub failure: Option<Failure>,
    /// Why something was done in a worse way than could be.
    pub setback: Option<Failure>,
    /// What the stop cost; `None` if no thread was stopped.
    pub stop: Option<StopCost>,
    /// Bytes copied from files into images for this process.
    pub bytes_copied: u64,
}

/// What one stop of one thread cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopCost {
    /// The thread.
    pub tid: Pid,
    /// For how long it stood.
    pub lasted: Duration,
    /// What it was made to do.
    pub counts: Counts,
    /// Whether it saw that a system call was interrupted.
    pub shown: bool,
}

/// Puts the text of a running process onto huge pages, as far as it is not.
///
/// # Errors
/// Nothing could be begun; the process is as it was. What fails later is in the [`Attached`].
pub fn attach(order: &AttachOrder<'_>, images: &mut Images) -> Result<Attached, Failure> {
    let begun = Instant::now();
    let image = RunningImage::open(order.process);
    let entries = read_smaps(order.process)?;
    let deadline = begun + order.deadline;
    let Sources { pagecache, copy, .. } = order.sources;
    let mut texts = Texts::read(order.process, &entries, order.pages, pagecache, copy, deadline);
    let mut plan = plan_running(order.pages.pmd, &texts.texts);
    let (mut stored, mut setback) = (Vec::new(), None);
    if order.sources.store && plan.huge_bytes_by(Backing::Image) > 0 {
        (stored, setback) = stored::find(order, images, &mut texts, &plan, deadline);
        plan = plan_running(order.pages.pmd, &texts.texts);
    }
    let mut attached = Attached { plan, failure: None, setback, stop: None, bytes_copied: 0 };
    if order.dry_run || attached.plan.huge_bytes() == 0 {
        return Ok(attached);
    }
    let mut staged = Vec::new();
    for (vma, spans) in copies(&attached.plan) {
        match stage(order, &texts, &stored, vma, &spans, images, deadline) {
            Ok(image) => {
                attached.bytes_copied += image.filled.copied;
                if let Some(shortfall) = &image.filled.shortfall {
                    attached.failure.get_or_insert_with(|| shortfall.clone());
                }
                staged.push((vma.clone(), spans, image));
            }
            Err(failure) => {
                attached.failure.get_or_insert(failure);
            }
        }
    }
    let touched: Vec<AddrRange> =
        attached.plan.spans_by(Backing::Pagecache).map(|span| span.range).collect();
    if staged.is_empty() && touched.is_empty() {
        return Ok(attached);
    }
    if !staged.is_empty() {
        let parts = staged.iter().map(|(_, _, image)| image.filled.staged.len()).sum();
        let maps = order.process.read("maps").map_err(Failure::unreadable)?;
        mappings::check(maps.iter().filter(|&&byte| byte == b'\n').count(), parts)?;
    }
    let thp_off = thp_is_off(order.process);
    let work = |session: &mut Session, snapshot: &Snapshot| {
        let thp = if thp_off { Some(ThpOn::begin(session)?) } else { None };
        let mut switched = Ok(());
        if !staged.is_empty() {
            switched = switch_all(session, order, snapshot, &staged, &entries);
        }
        for &range in &touched {
            refault(session, range)?;
        }
        if let Some(thp) = thp {
            thp.end(session)?;
        }
        switched
    };
    let (cost, done) = in_a_stop(order, image, &entries, work)?;
    attached.stop = Some(cost);
    if let Err(failure) = done {
        attached.failure.get_or_insert(failure);
    }
    Ok(attached)
}

/// Reads a process's smaps.
///
/// # Errors
/// `target_gone`, `proc_unavailable`.
fn read_smaps(process: &ProcDir) -> Result<Vec<SmapsEntry>, Failure> {
    // It is read piece by piece: what is mapped meanwhile may come out of order.
    let mut attempts = 8;
    loop {
        let text = process.read("smaps").map_err(Failure::unreadable)?;
        attempts -= 1;
        match smaps::parse(&text) {
            Err(_) if attempts > 0 => {}
            parsed => {
                return parsed.map_err(|error| Failure::new(SkipReason::ProcUnavailable, error));
            }
        }
    }
}

/// Returns, for each text, the spans of it that need a copy.
fn copies(plan: &Plan) -> impl Iterator<Item = (&Vma, Vec<Span>)> {
    plan.texts.iter().filter_map(|text| {
        let copied = |span: &&Span| span.backing != Backing::Pagecache;
        let spans: Vec<Span> = text.spans.iter().filter(copied).copied().collect();
        (!spans.is_empty()).then_some((&text.vma, spans))
    })
}

/// Has the image of a text's spans ready.
fn stage(
    order: &AttachOrder<'_>,
    texts: &Texts,
    stored: &[Stored],
    vma: &Vma,
    spans: &[Span],
    images: &mut Images,
    deadline: Instant,
) -> Result<Rc<Image>, Failure> {
    let backing = spans.first().map_or(Backing::Image, |span| span.backing);
    if backing == Backing::Store {
        return stored::image(stored, vma, spans).map(Rc::new);
    }
    if backing == Backing::Image {
        let bytes = spans.iter().map(|span| span.range.len()).sum();
        // It is this process's memory cgroup that pays.
        headroom::check(&ProcDir::this_process().map_err(Failure::unreadable)?, bytes)?;
    }
    let gone = || Failure::new(SkipReason::FileGone, vma.display_path());
    let file: &File = texts.file(vma).ok_or_else(gone)?;
    let path = vma.display_path();
    let name = path.rsplit('/').next().unwrap_or_default();
    images.get(file, name, spans, backing, order.pages, deadline)
}

/// Switches each staged part, one after the other.
fn switch_all(
    session: &mut Session,
    order: &AttachOrder<'_>,
    snapshot: &Snapshot,
    staged: &[(Vma, Vec<Span>, Rc<Image>)],
    entries: &[SmapsEntry],
) -> Result<(), Failure> {
    let passage = Passage::open(session, order.task, order.process)?;
    for (vma, spans, image) in staged {
        let fd = passage.hand_over(session, &image.file)?;
        let locked = entries.iter().any(|entry| entry.vma == *vma && entry.has_flag(*b"lo"));
        for part in &image.filled.staged {
            // The image may have been made for another process, where the text lies elsewhere.
            let Some(to) = place_of(part.span, spans) else { continue };
            let place = switch::Place { fd, offset: part.image_offset, to, locked };
            switch::switch_running(session, order.process, snapshot, place)?;
        }
        session.release_now()?;
    }
    Ok(())
}

/// Returns where a part of an image goes in a process whose spans are these.
fn place_of(part: Span, spans: &[Span]) -> Option<AddrRange> {
    let span = spans.iter().find(|span| {
        let end = span.file_offset.saturating_add(span.range.len());
        span.file_offset <= part.file_offset && part.file_offset + part.range.len() <= end
    })?;
    let start = span.range.start().checked_add(part.file_offset - span.file_offset)?;
    AddrRange::with_len(start, part.range.len())
}

/// Has text that lies on huge folios already mapped anew, by whole PMD entries. Whoever runs there
/// meanwhile faults it in again.
fn refault(session: &mut Session, range: AddrRange) -> Result<(), TraceError> {
    let (start, len) = (range.start().get(), range.len());
    for advice in [c::MADV_DONTNEED, c::MADV_POPULATE_READ] {
        let advice = u64::from(advice.unsigned_abs());
        let _refused = session.call(Call::new(c::SYS_madvise, [start, len, advice]))?;
    }
    Ok(())
}

/// Whether the process has turned THP off for itself (`PR_SET_THP_DISABLE`; mariadbd does, for its
/// heap). What is PMD-mapped stays so, but nothing new would be.
fn thp_is_off(process: &ProcDir) -> bool {
    let status = process.read("status").map(|text| status::parse(&text)).unwrap_or_default();
    status.thp_enabled == Some(false)
}

/// THP on for a process that has turned it off, for as long as it takes to map what is staged.
struct ThpOn;

impl ThpOn {
    fn set(disable: u64) -> Call {
        let option = u64::from(c::PR_SET_THP_DISABLE.unsigned_abs());
        Call::new(c::SYS_prctl, [option, disable, 0, 0, 0])
    }

    /// Turns it on; the way home turns it off again.
    fn begin(session: &mut Session) -> Result<Self, Failure> {
        session.release_on_the_way_home(Self::set(1));
        session.call(Self::set(0))?.map_err(|errno| {
            let call = "prctl(PR_SET_THP_DISABLE)";
            Failure::new(SkipReason::ThpDisabled, SysError { call, errno })
        })?;
        Ok(Self)
    }

    /// Turns it off again.
    fn end(self, session: &mut Session) -> Result<(), TraceError> {
        session.release_now()
    }
}

/// What is done in a stop.
type Done = Result<(), Failure>;

/// Stops one thread, has `work` make it call, and lets it go; in a process of its own if this one is to
/// live on.
fn in_a_stop(
    order: &AttachOrder<'_>,
    image: Result<RunningImage, Failure>,
    entries: &[SmapsEntry],
    work: impl FnOnce(&mut Session, &Snapshot) -> Done,
) -> Result<(StopCost, Done), Failure> {
    let stop = || in_a_stop_by_this(order, image, entries, work);
    if order.apart { apart::run(stop) } else { stop() }
}

/// Does so itself.
fn in_a_stop_by_this(
    order: &AttachOrder<'_>,
    image: Result<RunningImage, Failure>,
    entries: &[SmapsEntry],
    work: impl FnOnce(&mut Session, &Snapshot) -> Done,
) -> Result<(StopCost, Done), Failure> {
    let vmas = entries.iter().map(|entry| entry.vma.clone()).collect();
    let snapshot = Snapshot { pages: order.pages, vmas, entry: RemoteAddr::new(0) };
    let gadgets = find_gadgets(order, &snapshot)?;
    let mut haste = Haste::begin();
    let (stopped, mut session) = begin(order, &image?, &snapshot, gadgets)?;
    let gone = |error: TraceError| Failure::from(error);
    haste.take_along(&mut session, stopped.tid).map_err(gone)?;
    let done = work(&mut session, &snapshot);
    let counts = haste.leave(session, stopped.tid, &stopped.registers).map_err(gone)?;
    let Stopped { tid, since, shown, .. } = stopped;
    Ok((StopCost { tid, lasted: since.elapsed(), counts, shown }, done))
}

/// Looks for the instructions to call through, in the dynamic linker or in the program.
fn find_gadgets(order: &AttachOrder<'_>, snapshot: &Snapshot) -> Result<Gadgets, Failure> {
    let auxv = order.process.read("auxv").map_err(Failure::unreadable)?;
    let at = |key| RemoteAddr::new(auxv::get(&auxv, key).unwrap_or(0));
    gadgets::find_running(order.task, snapshot, at(auxv::AT_BASE), at(auxv::AT_ENTRY)).ok_or_else(
        || {
            let what = "the program has no `syscall; ret`, or no signal return, of its own";
            Failure::new(SkipReason::NoGadget, what)
        },
    )
}

/// Finds a thread that takes a stop well, stops it, and begins a session in it.
fn begin(
    order: &AttachOrder<'_>,
    image: &RunningImage,
    snapshot: &Snapshot,
    gadgets: Gadgets,
) -> Result<(Stopped, Session), Failure> {
    let begun = Instant::now();
    let until = begun + order.patience;
    let mut why =
        Failure::new(SkipReason::NoThread, "every thread sleeps in a call that would return EINTR");
    let mut pause = Duration::from_millis(1);
    loop {
        let worst = if begun.elapsed() < UNSEEN_FIRST {
            Takes::AsleepToRewind
        } else {
            Takes::AsleepForEintr
        };
        let alive: Vec<(Pid, Status)> = threads::list(order.process, order.pid)
            .into_iter()
            .filter_map(|tid| Some((tid, threads::alive(order.process, tid)?)))
            .collect();
        if alive.is_empty() {
            return Err(Failure::new(SkipReason::TargetGone, "it has ended"));
        }
        // Threads of one process may differ in this (seccomp(2)).
        let unfiltered = alive.iter().filter(|(_, status)| status.seccomp == 0);
        let free: Vec<&(Pid, Status)> = unfiltered.collect();
        if free.is_empty() {
            let what = "every thread has a seccomp filter, which could end it for a call of ours";
            return Err(Failure::new(SkipReason::Seccomp, what));
        }
        let mut candidates: Vec<(Takes, Pid)> = free
            .iter()
            .map(|(tid, status)| {
                // Stopped by a signal: what it was doing is interrupted already.
                if status.state == b'T' {
                    return (Takes::Asleep, *tid);
                }
                let takes = threads::takes(order.process, order.task, *tid);
                let unready = takes == Takes::AsleepForEintr && !threads::expects_eintr(status);
                (if unready { Takes::Badly } else { takes }, *tid)
            })
            .filter(|(takes, _)| *takes <= worst)
            .collect();
        // Stable: the leader, listed first, is the first of its kind.
        candidates.sort_by_key(|(takes, _)| *takes);
        for (_, tid) in candidates.into_iter().take(8) {
            let stopped = match running::stop(tid, until) {
                Ok(stopped) => stopped,
                Err(TraceError::Gone) => continue,
                // What has just ended cannot be traced either.
                Err(_) if threads::alive(order.process, tid).is_none() => continue,
                // By an exec another thread may have taken this one's id, and lives.
                Err(_) if !image.still_runs() => return Err(another_program()),
                Err(error) => return Err(not_seized(order, error)),
            };
            if !image.still_runs() {
                running::let_go(&stopped)?;
                return Err(another_program());
            }
            if stopped.dispatches {
                running::let_go(&stopped)?;
                let what = "it has its system calls sent to a handler of its own";
                return Err(Failure::new(SkipReason::SyscallDispatch, what));
            }
            match running::begin(snapshot, order.pid, gadgets, &stopped) {
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

fn another_program() -> Failure {
    Failure::new(SkipReason::TargetGone, "it has begun another program meanwhile")
}

fn not_seized(order: &AttachOrder<'_>, error: TraceError) -> Failure {
    if !running::is_not_permitted(&error) {
        return error.into();
    }
    let status = order.process.read("status").map(|text| status::parse(&text)).unwrap_or_default();
    match status.tracer_pid {
        0 => Failure::new(SkipReason::PtraceDenied, error),
        tracer => {
            let what = format!("process {tracer} traces it");
            Failure::new(SkipReason::AlreadyTraced, what)
        }
    }
}
