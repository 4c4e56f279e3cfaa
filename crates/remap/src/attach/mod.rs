//! A running process: its text onto huge pages, and back.
//!
//! Everything that takes time happens beside it. Then one of its threads is stopped for a moment and
//! made to map what was staged; the others never stop. Until the one `mremap` of a span, nothing of
//! the process has changed; after it, the span's bytes are the same as before.

mod haste;
mod images;
mod jit;
mod mappings;
mod pass;
mod revert;
mod same;
mod stored;
mod texts;
mod thread;
mod verify;
mod written;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::plan::{Backing, Plan, Span, plan_running};
use tiexec_core::proc::auxv;
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::smaps::{self, SmapsEntry};
use tiexec_core::proc::status;
use tiexec_core::seccomp::Value;
use tiexec_core::select::Select;
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError, c};
use tiexec_tracee::TraceError;
use tiexec_tracee::arch::{Call, Gadgets};
use tiexec_tracee::foreseen::{Foreseen, constant};
use tiexec_tracee::gadgets;
use tiexec_tracee::running::Stopped;
use tiexec_tracee::session::{Counts, DESCRIPTOR_CALLS, Session};

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
use written::Written;

use crate::failure::Failure;
use crate::launch::Sources;
use crate::{headroom, switch};

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
    /// Whose text to look after.
    pub select: Select,
    /// How long staging may take; the process runs meanwhile.
    pub deadline: Duration,
    /// How long to look for a thread that takes a stop well, and for the right moment.
    pub patience: Duration,
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
    /// Bytes copied from files into images for this process; none where an image was there already.
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
    let mut prepared = prepare(order, images, begun + order.deadline)?;
    if prepared.is_empty() {
        return Ok(prepared.attached);
    }
    let work =
        |session: &mut Session, snapshot: &Snapshot| prepared.switch(session, order, snapshot);
    let (cost, done) = in_a_stop(order, image, &prepared.entries, prepared.calls(), work)?;
    prepared.attached.stop = Some(cost);
    if let Err(failure) = done {
        prepared.attached.failure.get_or_insert(failure);
    }
    Ok(prepared.attached)
}

/// All that can be done beside a process.
pub(crate) struct Prepared {
    /// What is planned, and what has failed so far.
    pub attached: Attached,
    /// Its smaps.
    pub entries: Vec<SmapsEntry>,
    /// Texts, their spans that get a copy, and that.
    staged: Vec<(Vma, Vec<Span>, Arc<Image>)>,
    /// Text that is in huge folios.
    touched: Vec<AddrRange>,
    /// Which of it has been written to.
    written: Written,
    thp_off: bool,
}

impl Prepared {
    /// Whether nothing is to be done to the process itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.touched.is_empty()
    }

    /// The calls that [`switch`](Self::switch) makes.
    fn calls(&self) -> Vec<&'static [Foreseen]> {
        let mut calls: Vec<&[Foreseen]> = Vec::new();
        if !self.staged.is_empty() {
            calls.extend(COPY_CALLS);
        }
        if !self.touched.is_empty() {
            calls.push(&REFAULT_CALLS);
        }
        if self.thp_off {
            calls.push(&ThpOn::CALLS);
        }
        calls
    }

    /// Switches what is staged.
    ///
    /// # Errors
    /// What is not switched is where it was.
    pub(crate) fn switch(
        &self,
        session: &mut Session,
        order: &AttachOrder<'_>,
        snapshot: &Snapshot,
    ) -> Done {
        let thp = if self.thp_off { Some(ThpOn::begin(session)?) } else { None };
        let mut switched = Ok(());
        if !self.staged.is_empty() {
            switched =
                switch_all(session, order, snapshot, &self.staged, &self.entries, &self.written);
        }
        for &range in &self.touched {
            // What was written to would be thrown away.
            match self.written.none(range) {
                Ok(()) => refault(session, range)?,
                Err(failure) => switched = switched.and(Err(failure)),
            }
        }
        if let Some(thp) = thp {
            thp.end(session)?;
        }
        switched
    }
}

/// Looks at a process, plans, and stages copies, until `deadline`.
///
/// # Errors
/// Nothing could be begun. What fails later is in the [`Attached`].
pub(crate) fn prepare(
    order: &AttachOrder<'_>,
    images: &mut Images,
    deadline: Instant,
) -> Result<Prepared, Failure> {
    let written = Written::open(order.process, order.pages)?;
    let entries = read_smaps(order.process)?;
    let mut texts = Texts::read(order, &written, &entries, deadline);
    let mut plan = plan_running(order.pages.pmd, &texts.texts);
    let (mut stored, mut setback) = (Vec::new(), None);
    if order.sources.store && plan.huge_bytes_by(Backing::Image) > 0 {
        (stored, setback) = stored::find(order, images, &mut texts, &plan, deadline);
        plan = plan_running(order.pages.pmd, &texts.texts);
    }
    let attached = Attached { plan, failure: None, setback, stop: None, bytes_copied: 0 };
    let thp_off = thp_is_off(order.process);
    let (staged, touched) = (Vec::new(), Vec::new());
    let mut prepared = Prepared { attached, entries, staged, touched, written, thp_off };
    let attached = &mut prepared.attached;
    if order.dry_run || attached.plan.huge_bytes() == 0 {
        return Ok(prepared);
    }
    let copied_before = images.bytes_copied();
    for (vma, spans) in copies(&attached.plan.clone()) {
        match stage(order, &texts, &stored, vma, &spans, images, deadline) {
            Ok(image) => {
                if let Some(shortfall) = &image.filled.shortfall {
                    attached.failure.get_or_insert_with(|| shortfall.clone());
                }
                prepared.staged.push((vma.clone(), spans, image));
            }
            Err(failure) => {
                attached.failure.get_or_insert(failure);
            }
        }
    }
    attached.bytes_copied = images.bytes_copied() - copied_before;
    prepared.touched = attached.plan.spans_by(Backing::Pagecache).map(|span| span.range).collect();
    if !prepared.staged.is_empty() {
        let parts = prepared.staged.iter().map(|(_, _, image)| image.filled.staged.len()).sum();
        let maps = order.process.read("maps").map_err(Failure::unreadable)?;
        mappings::check(maps.iter().filter(|&&byte| byte == b'\n').count(), parts)?;
    }
    Ok(prepared)
}

/// What handing images over and switching to them has the process call.
const COPY_CALLS: [&[Foreseen]; 3] = [&DESCRIPTOR_CALLS, &pass::CALLS, &switch::RUNNING_CALLS];

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
) -> Result<Arc<Image>, Failure> {
    let backing = spans.first().map_or(Backing::Image, |span| span.backing);
    if backing == Backing::Store {
        return stored::image(stored, vma, spans).map(Arc::new);
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

/// Switches each staged part, one after the other. A part that was written to meanwhile is left alone.
///
/// # Errors
/// The first one. `modified_text`: the other parts are switched all the same.
fn switch_all(
    session: &mut Session,
    order: &AttachOrder<'_>,
    snapshot: &Snapshot,
    staged: &[(Vma, Vec<Span>, Arc<Image>)],
    entries: &[SmapsEntry],
    written: &Written,
) -> Result<(), Failure> {
    let mut outcome = Ok(());
    let passage = Passage::open(session, order.task, order.process)?;
    for (vma, spans, image) in staged {
        let fd = passage.hand_over(session, &image.file)?;
        let locked = entries.iter().any(|entry| entry.vma == *vma && entry.has_flag(*b"lo"));
        for part in &image.filled.staged {
            // The image may have been made for another process, where the text lies elsewhere.
            let Some(to) = place_of(part.span, spans) else { continue };
            let place = switch::Place { fd, offset: part.image_offset, to, locked };
            let unchanged = || written.none(to);
            match switch::switch_running(session, order.process, snapshot, place, unchanged) {
                Err(failure) if failure.reason == SkipReason::ModifiedText => {
                    outcome = outcome.and(Err(failure));
                }
                switched => switched?,
            }
        }
        session.release_now()?;
    }
    outcome
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

/// What [`refault`] has the process call.
const REFAULT_CALLS: [Foreseen; 2] = [
    Foreseen::needed(
        "madvise(MADV_DONTNEED)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_DONTNEED)],
    ),
    Foreseen::needed(
        "madvise(MADV_POPULATE_READ)",
        c::SYS_madvise,
        [Value::Any, Value::Any, constant(c::MADV_POPULATE_READ)],
    ),
];

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
    const CALLS: [Foreseen; 2] = [Self::foreseen(0), Self::foreseen(1)];

    const fn foreseen(disable: u64) -> Foreseen {
        let option = constant(c::PR_SET_THP_DISABLE);
        let zero = Value::Is(0);
        let args = [option, Value::Is(disable), zero, zero, zero];
        Foreseen::optional("prctl(PR_SET_THP_DISABLE)", c::SYS_prctl, args)
    }

    fn set(disable: u64) -> Call {
        let option = u64::from(c::PR_SET_THP_DISABLE.unsigned_abs());
        Call::new(c::SYS_prctl, [option, disable, 0, 0, 0])
    }

    /// Turns it on; the way home turns it off again.
    fn begin(session: &mut Session) -> Result<Self, Failure> {
        if !Self::CALLS.iter().all(|call| session.may(call)) {
            let what = "a seccomp filter may refuse prctl(PR_SET_THP_DISABLE), which turns it on";
            return Err(Failure::new(SkipReason::ThpDisabled, what));
        }
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

/// Stops one thread, has `work` make it call what is in `calls`, and lets it go.
///
/// In a thread of this process that ends with it: a thread that did not come to its stop in time is
/// still seized then, cannot be let go while it does not stand, and would stand as soon as it can. The
/// kernel lets it go when the thread that seized it ends.
fn in_a_stop(
    order: &AttachOrder<'_>,
    image: Result<RunningImage, Failure>,
    entries: &[SmapsEntry],
    calls: Vec<&[Foreseen]>,
    work: impl FnOnce(&mut Session, &Snapshot) -> Done + Send,
) -> Result<(StopCost, Done), Failure> {
    std::thread::scope(|scope| {
        // Where memory is short, a stack of the usual size may be what is too much.
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        let stop = thread
            .spawn_scoped(scope, || stop_and_work(order, image, entries, calls, work))
            .map_err(|error| Failure::new(SkipReason::ForkFailed, error))?;
        stop.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn stop_and_work(
    order: &AttachOrder<'_>,
    image: Result<RunningImage, Failure>,
    entries: &[SmapsEntry],
    mut calls: Vec<&[Foreseen]>,
    work: impl FnOnce(&mut Session, &Snapshot) -> Done,
) -> Result<(StopCost, Done), Failure> {
    let vmas = entries.iter().map(|entry| entry.vma.clone()).collect();
    let snapshot = Snapshot { pages: order.pages, vmas, entry: RemoteAddr::new(0) };
    let gadgets = find_gadgets(order, &snapshot)?;
    let mut haste = Haste::begin();
    calls.push(&haste::CALLS);
    let (stopped, mut session) = thread::begin(order, &image?, &snapshot, gadgets, &calls)?;
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
