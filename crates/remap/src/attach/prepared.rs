//! The work beside a process before one of its threads is stopped (looking, planning, staging), and the work that
//! is left for the stop.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tiexec_core::addr::{AddrRange, mib};
use tiexec_core::area::Area;
use tiexec_core::escape::AsShown;
use tiexec_core::marks::Marks;
use tiexec_core::plan::edges::{Around, Reserved};
use tiexec_core::plan::{Backing, Plan, Span, plan_running};
use tiexec_core::proc::maps::Vma;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::areas::Seen;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process, process_advice};
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::executor::Executor;
use tiexec_tracee::remote::{self, Advice, madvise_entry};
use tiexec_tracee::session::DESCRIPTOR_CALLS;
use tiexec_tracee::syscall_manifest::ManifestEntry;

use super::compare::compare;
use super::passing::Passing;
use super::stored::{self, Stored};
use super::switching::{Staging, Switching};
use super::texts::{Looking, Texts};
use super::written::Written;
use super::{
    AttachOrder, Attached, Done, PrivateCopies, ThpOn, file_passing, has_locked_memory, mappings,
    probe, residue, snapshot, surroundings, thp_is_off,
};
use crate::image::{ImageMemory, Source};
use crate::images::{Image, Images};
use crate::policy::Policy;
use crate::switch;
use crate::target_file::TargetFile;
use crate::workers::Wanted;
use crate::{headroom, mapped, numa_placement};

/// The result of all work that can be done beside a process.
pub(crate) struct Prepared {
    /// The plan, and the failures so far.
    pub attached: Attached,
    /// The mappings of the process.
    pub entries: Vec<Area>,
    /// Each text, its spans that get a copy, and the copy.
    staged: Vec<Staging>,
    /// Edges that the page cache holds.
    edges: Vec<Span>,
    /// Text that is in huge folios.
    touched: Vec<AddrRange>,
    texts: Texts,
    /// The pages that have been written to.
    written: Written,
    marks: Option<Marks>,
    /// The mappings that a dead TiExec left in the process.
    left: Vec<Vma>,
    /// True if the process has locked some of its memory, and the stop covers text.
    locks: bool,
    /// True if the text may have protection keys.
    keys: bool,
    /// Text that must be left alone for a reason that only the stop has shown.
    alone: Mutex<Vec<(AddrRange, SkipReason)>>,
}

impl Prepared {
    /// Returns whether the process itself needs no change.
    pub(crate) fn is_empty(&self) -> bool {
        !self.covers() && self.touched.is_empty() && self.left.is_empty()
    }

    /// Has the kernel map text that is in huge folios by whole PMD entries from outside, where the kernel can
    /// (`MADV_COLLAPSE` on files: of tmpfs; of every file system with `READ_ONLY_THP_FOR_FS`, which kernels up to 7.1 may
    /// have; of file systems with large folios from 7.2 on). No thread need stop for such text.
    pub(super) fn touch_from_outside(&mut self, order: &AttachOrder<'_>) {
        if self.touched.is_empty() || thp_is_off(&order.target.process) {
            return;
        }
        let Ok(process) = process::open_pidfd(order.target.pid) else { return };
        self.touched.retain(|&range| {
            let done = process_advice::collapse(process.as_fd(), range).is_ok();
            self.attached.from_outside += if done { range.len() } else { 0 };
            !done
        });
    }

    /// Returns the result of the whole work, of which `done` is that of the switch. Removes from the plan the text that
    /// the stop has shown must be left alone.
    pub(crate) fn done(self, done: Done) -> Attached {
        let Self { mut attached, alone, .. } = self;
        for (range, why) in alone.into_inner().unwrap_or_else(PoisonError::into_inner) {
            attached.plan.give_up(range, why);
        }
        attached.failure = attached.failure.or(done.err());
        attached
    }

    /// Returns whether the stop maps anything over the text.
    fn covers(&self) -> bool {
        !self.staged.is_empty() || !self.edges.is_empty()
    }

    /// The text VMAs in which something is to be switched.
    pub(super) fn texts_with_spans(&self) -> impl Iterator<Item = &Vma> {
        let texts = &self.attached.plan.texts;
        texts.iter().filter(|text| !text.spans.is_empty()).map(|text| &text.vma)
    }

    /// The calls that [`switch`](Self::switch) makes.
    pub(super) fn calls(&self) -> Vec<&'static [ManifestEntry]> {
        let mut calls: Vec<&[ManifestEntry]> = Vec::new();
        if !self.left.is_empty() {
            calls.push(&[remote::MUNMAP]);
        }
        if self.covers() {
            calls.extend(COPY_CALLS);
        }
        if self.covers() && self.locks {
            calls.push(&probe::LOCK_CALLS);
        }
        if self.covers() && self.entries.iter().any(|entry| entry.vma.guarded) {
            calls.push(&switch::GUARDED_CALLS);
        }
        if !self.edges.is_empty() {
            calls.push(&switch::WIDENED_CALLS);
        }
        if !self.touched.is_empty() {
            calls.push(&REFAULT_CALLS);
        }
        // Only the stop shows whether THP is off, so its calls are always included.
        calls.push(&ThpOn::CALLS);
        calls
    }

    /// Switches what is staged. `by` is the thread that is traced for this; `None` if no thread is.
    ///
    /// # Errors
    /// Text that could not be switched is unchanged.
    pub(super) fn switch<P: Passing>(
        &self,
        executor: &mut P::Executor,
        passing: &P,
        by: Option<Pid>,
        order: &AttachOrder<'_>,
        snapshot: &Snapshot,
    ) -> Done {
        let mut switched: Done =
            residue::take_away(executor, by, order.target, &self.left).map(|_bytes| ());
        ThpOn::begin(executor, &order.target.process)?;
        if self.covers() {
            let Self { texts, written, marks, locks, keys, .. } = self;
            let around = surroundings(order, snapshot, *marks);
            let (locks, keys, alone) = (*locks, *keys, &self.alone);
            let switching = Switching { order, around, texts, written, locks, keys, alone };
            let done = switching.all(executor, passing, &self.staged, &self.edges);
            switched = switched.and(done);
        }
        for &range in &self.touched {
            // A refault would discard text that was written to.
            let is_still_mapped = self.texts.is_still_mapped(&order.target.space, range);
            match is_still_mapped.and_then(|()| self.written.none(range)) {
                Ok(()) => refault(executor, range)?,
                Err(failure) => switched = switched.and(Err(failure)),
            }
        }
        switched
    }
}

/// The type of [`stored::find`], which finds the images of the store for what is planned. It is passed as an
/// argument, so that libtiexec, which passes `None`, does not contain the code of the store: a fifth of its size.
pub(crate) type FindStored =
    fn(&AttachOrder<'_>, &Images, &mut Texts, &Plan, Instant) -> (Vec<Stored>, Option<Failure>);

/// Looks at a process, plans, and stages copies, until `deadline`. `find_stored` is `None` for a process that uses
/// no store.
///
/// # Errors
/// TiExec could not begin. [`Attached`] reports later failures.
pub(crate) fn prepare(
    order: &AttachOrder<'_>,
    images: &mut Images,
    find_stored: Option<FindStored>,
    deadline: Instant,
) -> Result<Prepared, Failure> {
    let written = Written::of(&order.target.space, order.policy.pages)?;
    let Seen { areas: mut entries, smaps_for } = snapshot::look(order)?;
    let auxv = order.target.space.auxv().unwrap_or_default();
    let marks = mapped::marks(&auxv, order.policy.pages);
    let mut left = residue::find(order, marks, &entries);
    // The stop removes these mappings first, so the plan is made without them.
    entries.retain(|entry| !left.contains(&entry.vma));
    if order.policy.dry_run {
        left.clear();
    }
    let Policy { pages, edges, .. } = order.policy;
    let mut texts = Texts::read(&Looking { order, written: &written, deadline }, &entries);
    let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
    let reserved = Reserved::everything();
    let around = Around { pages, policy: edges, vmas: &vmas, reserved: &reserved };
    let mut plan = plan_running(&around, &texts.texts);
    let (mut stored, mut setback) = (Vec::new(), None);
    let find_stored = find_stored.filter(|_| order.policy.sources.store);
    let in_question = find_stored.is_some() || order.private_copies != PrivateCopies::All;
    if in_question && plan.span_bytes_by(Backing::Image) > 0 {
        if let Some(find) = find_stored {
            (stored, setback) = find(order, images, &mut texts, &plan, deadline);
        }
        match order.private_copies {
            PrivateCopies::All => {}
            PrivateCopies::UpTo(most)
                if plan_running(&around, &texts.texts).span_bytes_by(Backing::Image) <= most => {}
            PrivateCopies::UpTo(_) => {
                let exe = order.target.process.exe_path().unwrap_or_default();
                texts.copy_nothing_to(Backing::Image, |path| path != exe);
            }
            PrivateCopies::None => texts.copy_nothing_to(Backing::Image, |_| true),
        }
        plan = plan_running(&around, &texts.texts);
    }
    let attached = Attached { setback, smaps_for, ..Attached::planned(plan) };
    // If smaps was read, it has shown which text has keys.
    let keys = smaps_for.is_none() && process::has_protection_keys();
    let (staged, edges, touched) = (Vec::new(), Vec::new(), Vec::new());
    let mut prepared = Prepared {
        attached,
        entries,
        staged,
        edges,
        touched,
        texts,
        written,
        marks,
        left,
        locks: false,
        keys,
        alone: Mutex::default(),
    };
    let attached = &mut prepared.attached;
    if order.policy.dry_run || attached.plan.huge_bytes() == 0 {
        return Ok(prepared);
    }
    let copied_before = images.bytes_copied();
    let most = if order.workers.reader().is_some() { MOST_FOR_OTHERS } else { u64::MAX };
    let mut wanted = 0;
    for (vma, spans) in copies(&attached.plan.clone()) {
        let image = allow(&spans, &mut wanted, most)
            .and_then(|()| stage(order, &prepared.texts, &stored, vma, &spans, images, deadline));
        // The image has the file's bytes of a moment before. On overlayfs a file changes once, so the order is right.
        let image = image.and_then(|image| {
            must_hold_what_is_mapped(order, &prepared.texts, vma, &spans).map(|()| image)
        });
        match image {
            Err(Failure { reason: Reason::Skipped(why), .. })
                if why == SkipReason::ModifiedText =>
            {
                spans.iter().for_each(|span| attached.plan.give_up(span.range, why));
            }
            Ok(image) => {
                if let Some(shortfall) = &image.filled.shortfall {
                    attached.failure.get_or_insert_with(|| shortfall.clone());
                }
                prepared.staged.push(Staging { vma: vma.clone(), spans, image });
            }
            Err(failure) => {
                attached.failure.get_or_insert(failure);
            }
        }
    }
    attached.bytes_copied = images.bytes_copied() - copied_before;
    let by_cache = attached.plan.spans_by(Backing::Pagecache);
    let (edges, touched): (Vec<Span>, Vec<Span>) = by_cache.partition(|span| span.edge);
    prepared.touched = touched.iter().map(|span| span.range).collect();
    for edge in edges {
        let vma = prepared.texts.in_range(edge.range);
        let holds = vma
            .map_or(Ok(()), |vma| must_hold_what_is_mapped(order, &prepared.texts, vma, &[edge]));
        match holds {
            Ok(()) => prepared.edges.push(edge),
            Err(_) => attached.plan.give_up(edge.range, SkipReason::ModifiedText),
        }
    }
    if prepared.covers() {
        prepared.locks = has_locked_memory(&order.target.process);
        let parts = prepared.staged.iter().map(|staged| staged.image.filled.staged.len());
        let parts = prepared.edges.len() + parts.sum::<usize>();
        mappings::check(&order.target.process, prepared.entries.len(), parts)?;
    }
    Ok(prepared)
}

/// The most that TiExec copies for one process of other credentials, in bytes. Such a process may claim text of any
/// length.
const MOST_FOR_OTHERS: u64 = 1 << 30;

/// The calls by which the process receives images and switches to them.
pub(super) const COPY_CALLS: [&[ManifestEntry]; 3] =
    [&DESCRIPTOR_CALLS, &file_passing::CALLS, &switch::CALLS];

/// Returns, for each text, the spans of it that need a copy.
fn copies(plan: &Plan) -> impl Iterator<Item = (&Vma, Vec<Span>)> {
    plan.texts.iter().filter_map(|text| {
        let copied = |span: &&Span| span.backing != Backing::Pagecache;
        let spans: Vec<Span> = text.spans.iter().filter(copied).copied().collect();
        (!spans.is_empty()).then_some((&text.vma, spans))
    })
}

/// Adds the length of a text's copy to what the copies of the process `wanted` so far. Refuses the text if that is more
/// than `most`.
fn allow(spans: &[Span], wanted: &mut u64, most: u64) -> Result<(), Failure> {
    let copied = spans.iter().filter(|span| span.backing == Backing::Image);
    let all = *wanted + copied.map(|span| span.range.len()).sum::<u64>();
    if all > most {
        let (text, most) = (mib(all), mib(most));
        let what = format!("{text} MiB of text of another user's process ({most} MiB at most)");
        return Err(Failure::new(FailureKind::MemoryHeadroom, what));
    }
    *wanted = all;
    Ok(())
}

/// Makes sure that a file on overlayfs still has the bytes that the process has mapped.
///
/// # Errors
/// `modified_text`: it has others. The errors of [`compare`].
fn must_hold_what_is_mapped(
    order: &AttachOrder<'_>,
    texts: &Texts,
    vma: &Vma,
    spans: &[Span],
) -> Result<(), Failure> {
    let Some(file) = texts.file(vma).filter(|file| file.facts().on_overlay) else { return Ok(()) };
    let memory = order.target.space.memory();
    let parts = texts.text(vma).and_then(|text| text.parts.as_ref());
    for span in spans {
        match parts.filter(|_| span.edge) {
            None => compare(memory, span.range, file, span.file_offset)?,
            Some(parts) => parts
                .within(span.range)
                .try_for_each(|part| compare(memory, part.range, file, part.file_offset))?,
        }
    }
    Ok(())
}

/// Gets the image of a text's spans ready.
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
    let bytes = spans.iter().map(|span| span.range.len()).sum();
    let gone = || Failure::new(FailureKind::FileGone, vma.path().shown());
    let file = texts.file(vma).ok_or_else(gone)?;
    let parts = texts.text(vma).and_then(|text| text.parts.as_ref());
    let path = &vma.display_path();
    let nodes = numa_placement::turns(order.policy.numa, &order.target.process)?;
    let pages = order.policy.pages;
    match file {
        TargetFile::Here(file) => {
            if backing == Backing::Image {
                headroom::check(&ProcDir::this_process().map_err(Failure::unreadable)?, bytes)?;
            }
            let memory = ImageMemory { backing, pages, nodes: &nodes };
            let (source, user) = (Source { file, parts }, order.target.space.memory());
            images.get(source, path, spans, memory, Some(user), deadline)
        }
        TargetFile::Apart(opened) => {
            let (spans, parts) = (spans.to_vec(), parts.cloned());
            let wanted = Wanted { spans, parts, backing, pages, nodes };
            // The memory cgroup of the reader pays, which is the process's.
            let room = || match backing {
                Backing::Image => headroom::check(&order.target.process, bytes),
                _ => Ok(()),
            };
            opened.image(wanted, path, room, deadline)
        }
    }
}

/// The calls that [`refault`] has the process make.
pub(super) const REFAULT_CALLS: [ManifestEntry; 2] =
    [madvise_entry(Advice::DontNeed), madvise_entry(Advice::PopulateRead)];

/// Has the thread map text on huge folios that is mapped already once more, by whole PMD entries. A thread that
/// runs there meanwhile faults it in again.
fn refault(executor: &mut impl Executor, range: AddrRange) -> Result<(), TraceError> {
    for advice in [Advice::DontNeed, Advice::PopulateRead] {
        let _refused = executor.call(remote::madvise(range, advice))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiexec_core::addr::RemoteAddr;

    #[test]
    fn all_copies_of_a_process_have_one_limit() {
        let span = |backing, len| Span {
            range: AddrRange::with_len(RemoteAddr::new(0), len).expect("not empty"),
            file_offset: 0,
            backing,
            widened_bytes: 0,
            edge: false,
        };
        let (most, mut wanted) = (MOST_FOR_OTHERS, 0);
        let large = [span(Backing::Image, 600 << 20)];
        assert!(allow(&large, &mut wanted, most).is_ok());
        let refused = allow(&large, &mut wanted, most).expect_err("1.2 GiB");
        assert_eq!(refused.reason, Reason::from(FailureKind::MemoryHeadroom));
        // A smaller text still has room, and what copies nothing counts for nothing.
        assert!(allow(&[span(Backing::Pagecache, 8 << 30)], &mut wanted, most).is_ok());
        assert!(allow(&[span(Backing::Image, 424 << 20)], &mut wanted, most).is_ok());
        assert_eq!(wanted, most);
        assert!(allow(&[span(Backing::Image, 2 << 20)], &mut wanted, most).is_err());
        assert!(allow(&large, &mut wanted, u64::MAX).is_ok());
    }
}
