//! Reverts: maps the file's own ranges over our copies of its text.
//!
//! TiExec keeps no record, so a revert works after an upgrade and with an emptied store. The areas of the file that
//! are left near our mappings, and the file's headers, show which file belongs there and which part of it. TiExec
//! compares the bytes before it changes anything. A range that no segment of the file covers was empty before.
//!
//! The order of the steps lets a later revert tell what is left after each of them. A copy loses its filler first,
//! so that each piece that remains holds something of the file's. Widened page cache loses its text first, because
//! text alone would look like the file's own. Before that, pages of the hugetlb pool that hold an edge become base
//! pages. Pieces of a segment become one mapping again, [with the file's own pages beside them](super::joined).

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use tiexec_core::addr::AddrRange;
use tiexec_core::area::Area;
use tiexec_core::coverage::{IMAGE_NAME_PREFIX, is_ours};
use tiexec_core::file_ranges::{Part, Parts};
use tiexec_core::marks::Marks;
use tiexec_core::order;
use tiexec_core::proc::maps::{FileId, Vma};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::address_space::Memory;
use tiexec_sys::{Pid, c};
use tiexec_tracee::Failure;
use tiexec_tracee::executor::{Executor, Local};
use tiexec_tracee::remote;
use tiexec_tracee::syscall_manifest::ManifestEntry;

use super::compare::compare;
use super::joined::{self, Piece, Run};
use super::passing::{Handed, OpenHere, OverSockets, Passing};
use super::pool::{self, Exchange};
use super::prepared::COPY_CALLS;
use super::written::Written;
use super::{
    AttachOrder, Stop, StopCost, as_snapshot, has_locked_memory, in_a_stop, mappings, probe,
    residue, snapshot, surroundings,
};
use crate::mapped::{self, Layouts, Mapped, is_marked_widened};
use crate::protection::{GUARDED, TEXT};
use crate::switch::{self, OpenFile, Surroundings, Switch};
use crate::target_file::TargetFile;
use crate::workers::SameBytes;

/// The most bytes of a file's own pages beside copies that are compared and mapped anew in one process.
const BESIDE: u64 = 64 << 20;

/// The result of a revert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reverted {
    /// Bytes of our mappings that were found.
    pub found: u64,
    /// Bytes of our mappings that are the file's own again.
    pub reverted: u64,
    /// Bytes of the file's text among those found: without filler, and without other parts of the file.
    pub found_text: u64,
    /// Bytes of the file's text among those reverted.
    pub reverted_text: u64,
    /// Why not all bytes were reverted.
    pub failure: Option<Failure>,
    /// The cost of the stop; `None` if no thread was stopped.
    pub stop: Option<StopCost>,
}

/// A file, and its parts that belong in the place of our mappings.
struct Original {
    id: FileId,
    file: TargetFile,
    pieces: Vec<Piece>,
    runs: Vec<Run>,
}

/// The mappings that belong in the place of TiExec's text.
#[derive(Default)]
struct Originals {
    files: Vec<Original>,
    /// The files of copies that the program has moved. They are reverted first, because the copy at its own place tells what
    /// they are.
    moved: Vec<Original>,
    /// The mappings that a dead TiExec left, known by their marks.
    left: Vec<Vma>,
    /// Ranges where nothing belongs: filler and other remains of copies.
    filler: Vec<AddrRange>,
    /// Ranges of widened page cache where nothing belongs.
    widened: Vec<AddrRange>,
    /// Pages of the pool of which no part can be given back, and their protection. The next field is the name of
    /// their file.
    of_pool: Vec<(AddrRange, i32)>,
    of_pool_name: Vec<u8>,
}

/// Puts the file's own text back in the place of TiExec's text.
///
/// # Errors
/// TiExec could not begin, and the process is unchanged. [`Reverted`] reports later failures.
pub fn revert(order: &AttachOrder<'_>) -> Result<Reverted, Failure> {
    let mut back = Back::default();
    let mut reverted = order
        .once_more_without_batches(|order| revert_as_seen(order, &mut back))
        .map_err(|failure| order.target.cause(failure))?;
    reverted.failure = reverted.failure.map(|failure| order.target.cause(failure));
    if reverted.failure.is_none() && reverted.stop.is_none() {
        // The program that was looked at has nothing to revert, but the process may have executed another one
        // since.
        order.target.still_there()?;
    }
    Ok(reverted)
}

/// Reverts what is found. `back` counts the bytes that an earlier attempt reverted; this attempt adds its own.
fn revert_as_seen(order: &AttachOrder<'_>, back: &mut Back) -> Result<Reverted, Failure> {
    let mut work = Work::find(order)?;
    work.reverted.found += back.all;
    work.reverted.found_text += back.text;
    if work.is_none(order) {
        return Ok(work.told(back, Ok(())));
    }
    let rests_on = work.rests_on();
    let stop = Stop { entries: &work.entries, rests_on: &rests_on, calls: work.calls() };
    let (cost, outcome) = in_a_stop(order, stop, |session, snapshot| {
        let (passing, by) = (OverSockets::new(order), Some(session.pid()));
        work.carry_out(session, &passing, by, order, snapshot, back)
    })?;
    Ok(Reverted { stop: Some(cost), ..work.told(back, outcome) })
}

/// Puts the file's own text back in this very process. `order` names this process and has no workers. No thread is
/// stopped: the calling thread makes the calls, while it and the others execute that text.
///
/// # Errors
/// TiExec could not begin, and the process is unchanged. [`Reverted`] reports later failures.
pub fn revert_here(order: &AttachOrder<'_>, mut local: Local) -> Result<Reverted, Failure> {
    let work = Work::find(order)?;
    if work.is_none(order) {
        return Ok(work.reverted);
    }
    order.target.unchanged(&work.rests_on())?;
    let snapshot = as_snapshot(order, &work.entries);
    let mut back = Back::default();
    let outcome = work.carry_out(&mut local, &OpenHere, None, order, &snapshot, &mut back);
    Ok(work.told(&back, outcome))
}

/// The work of a revert, known before the process is changed.
struct Work {
    /// The bytes that were found, and the first failure so far.
    reverted: Reverted,
    /// The mappings of the process, without those that a dead TiExec left.
    entries: Vec<Area>,
    originals: Originals,
    /// The copies that first replace pages of the pool.
    exchange: Option<Exchange>,
    written: Written,
    marks: Option<Marks>,
    /// True if the process has locked some of its memory.
    locks: bool,
}

/// The bytes that were reverted.
#[derive(Default)]
struct Back {
    all: u64,
    text: u64,
}

impl Work {
    /// Finds our mappings, and what belongs in their place.
    fn find(order: &AttachOrder<'_>) -> Result<Self, Failure> {
        let written = Written::of(&order.target.space, order.policy.pages)?;
        let entries = snapshot::look(order)?.areas;
        let locks = has_locked_memory(&order.target.process);
        let mut reverted = Reverted {
            found: 0,
            reverted: 0,
            found_text: 0,
            reverted_text: 0,
            failure: None,
            stop: None,
        };
        let auxv = order.target.space.auxv().unwrap_or_default();
        let marks = mapped::marks(&auxv, order.policy.pages);
        let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
        let mut originals =
            Originals { left: residue::marked(order, marks, &vmas), ..Originals::default() };
        reverted.found += originals.left.iter().map(|vma| vma.range.len()).sum::<u64>();
        let entries: Vec<Area> =
            entries.into_iter().filter(|entry| !originals.left.contains(&entry.vma)).collect();
        let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
        let mut layouts =
            Layouts::new(&order.target.process, order.workers, &vmas, order.policy.pages);
        let mut own: Vec<&Area> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let looked = if entry.vma.is_text() && is_ours(&entry.vma) {
                originals.look_at_copy(order, &written, &mut layouts, entry, index)
            } else {
                match layouts.widened(&entry.vma) {
                    Some((file, parts)) if is_marked_widened(&order.target.process, entry) => {
                        originals.look_at_widened(order.target.space.memory(), &file, &parts, entry)
                    }
                    _ => {
                        own.push(entry);
                        continue;
                    }
                }
            };
            reverted.found += entry.vma.range.len();
            if let Err(failure) = looked {
                reverted.found_text += entry.vma.range.len();
                reverted.failure.get_or_insert(failure);
            }
        }
        let files = originals.moved.iter_mut().chain(&mut originals.files);
        let room = Cell::new(BESIDE);
        for Original { id, file, pieces, runs } in files {
            // A file that is opened anew can have other bytes: overlayfs may have copied it up since.
            let may_join = |vma: &Vma| {
                let is_short = vma.range.len() < order.policy.pages.pmd.bytes();
                let rest = room.get().checked_sub(vma.range.len()).filter(|_| is_short);
                let Some(rest) = rest else { return false };
                room.set(rest);
                written.none(vma.range).is_ok()
                    && compare(order.target.space.memory(), vma.range, file, vma.file_offset)
                        .is_ok()
            };
            *runs = joined::runs(pieces, *id, &own, may_join);
        }
        reverted.found_text += originals.pieces().map(Piece::text_bytes).sum::<u64>();
        let exchange = None;
        let mut work = Self { reverted, entries, originals, exchange, written, marks, locks };
        if !work.is_none(order) {
            let (process, parts) = (&order.target.process, work.originals.pieces().count());
            mappings::check(process, work.entries.len(), parts)?;
            let of_pool = std::mem::take(&mut work.originals.of_pool);
            let name = work.originals.of_pool_name.strip_prefix(b"/memfd:").unwrap_or_default();
            work.exchange = Exchange::prepare(order, name, of_pool)?;
        }
        Ok(work)
    }

    /// Returns whether the process needs no change, or the policy is a dry run.
    fn is_none(&self, order: &AttachOrder<'_>) -> bool {
        self.originals.is_empty() || order.policy.dry_run
    }

    /// The calls that [`carry_out`](Self::carry_out) makes.
    fn calls(&self) -> Vec<&'static [ManifestEntry]> {
        let mut calls: Vec<&[ManifestEntry]> = vec![&[remote::MUNMAP]];
        let pieces = || self.originals.pieces();
        if pieces().next().is_some() {
            calls.extend(COPY_CALLS);
        }
        if self.locks {
            calls.push(&probe::LOCK_CALLS);
        }
        if pieces().any(|piece| piece.protection == GUARDED) {
            calls.push(&switch::GUARDED_CALLS);
        }
        if pieces().any(|piece| !piece.part.text) {
            calls.push(&switch::DATA_CALLS);
        }
        calls
    }

    /// The mappings that must still be as they were.
    fn rests_on(&self) -> Vec<&Vma> {
        let Originals { filler, widened, .. } = &self.originals;
        let of_ours = |vma: &&Vma| {
            let taken = |range: &AddrRange| vma.range.overlaps(*range);
            self.originals.pieces().any(|piece| taken(&piece.part.range))
                || filler.iter().chain(widened).any(taken)
        };
        self.entries.iter().map(|entry| &entry.vma).filter(of_ours).collect()
    }

    /// Puts everything back, and counts it in `back`. `by` is the thread that is traced for this; `None` if no
    /// thread is.
    ///
    /// # Errors
    /// The first failure. What was not put back is unchanged.
    fn carry_out<P: Passing>(
        &self,
        executor: &mut P::Executor,
        passing: &P,
        by: Option<Pid>,
        order: &AttachOrder<'_>,
        snapshot: &Snapshot,
        back: &mut Back,
    ) -> Result<(), Failure> {
        let Self { originals, written, marks, .. } = self;
        let taken = residue::take_away(executor, by, order.target, &originals.left);
        let around = surroundings(order, snapshot, *marks);
        if let Some(exchange) = self.exchange.as_ref().filter(|_| originals.all().next().is_some())
        {
            exchange.make(executor, passing, &around, written)?;
        }
        back.all += unmap_all(executor, &originals.filler)?;
        let mut put_back = |executor: &mut P::Executor, original: &Original| {
            let received = passing.pass(executor, Handed::Original(&original.file), None)?;
            let source = OpenFile { fd: received.fd, file: original.id };
            let done = self.put_back(executor, original, source, order, &around, back);
            passing.let_go(executor)?;
            done
        };
        // A part that was moved and cannot be put back does not keep the others in their copies.
        let mut of_moved = Ok(());
        for original in &originals.moved {
            of_moved = of_moved.and(put_back(executor, original));
        }
        for original in &originals.files {
            put_back(executor, original)?;
        }
        back.all += unmap_all(executor, &originals.widened)?;
        back.all += taken?;
        of_moved
    }

    /// Maps the parts of one file, which the process has open.
    ///
    /// # Errors
    /// The first failure. What was not put back is unchanged.
    fn put_back(
        &self,
        executor: &mut impl Executor,
        original: &Original,
        source: OpenFile,
        order: &AttachOrder<'_>,
        around: &Surroundings<'_>,
        back: &mut Back,
    ) -> Result<(), Failure> {
        let Self { written, locks, .. } = self;
        let Original { file, pieces, runs, .. } = original;
        let (mut todo, mut failed) = (runs.clone(), Vec::new());
        while !todo.is_empty() {
            let beside: HashMap<AddrRange, &Run> =
                todo.iter().map(|run| (run.part.range, run)).collect();
            // The first comparison accepted pages that were written to, if their bytes were the file's again. Such
            // pages may have changed since, and so may the mappings of the file itself.
            let unchanged = |piece: &Switch| {
                if let Some(run) = beside.get(&piece.to) {
                    order.target.unchanged(&run.beside.iter().collect::<Vec<_>>())?;
                }
                written.base_pages(piece.to)?.into_iter().try_for_each(|pages| {
                    let into = pages.start().get() - piece.to.start().get();
                    compare(order.target.space.memory(), pages, file, piece.offset + into)
                })
            };
            let mut switches = Vec::new();
            for run in &todo {
                let (offset, to) = (run.part.file_offset, run.part.range);
                let (locked, backing) = (*locks && probe::is_locked(executor, to)?, None);
                let protection = pieces[run.pieces.start].protection;
                let populated = run.populated(pieces);
                switches.push(Switch {
                    source,
                    offset,
                    to,
                    populated,
                    locked,
                    protection,
                    backing,
                });
            }
            let mut of_each = todo.iter();
            switch::switch_all(executor, around, &switches, &unchanged, |_, outcome| {
                let Some(run) = of_each.next() else { return outcome };
                // The file's own pages can be why. They stay then.
                if outcome.is_err() && !run.is_one_piece(pieces) {
                    failed.extend(run.apart(pieces));
                    return Ok(());
                }
                outcome?;
                let of_run = &pieces[run.pieces.clone()];
                back.all += of_run.iter().map(|piece| piece.part.range.len()).sum::<u64>();
                back.text += of_run.iter().map(Piece::text_bytes).sum::<u64>();
                Ok(())
            })?;
            todo = std::mem::take(&mut failed);
        }
        Ok(())
    }

    /// Returns the result of the revert.
    fn told(self, back: &Back, outcome: Result<(), Failure>) -> Reverted {
        let failure = self.reverted.failure.or(outcome.err());
        let (reverted, reverted_text) = (back.all, back.text);
        Reverted { reverted, reverted_text, failure, ..self.reverted }
    }
}

/// Has the process unmap ranges where nothing belongs. Returns how many bytes were unmapped.
fn unmap_all(executor: &mut impl Executor, ranges: &[AddrRange]) -> Result<u64, Failure> {
    let mut bytes = 0;
    for range in ranges {
        bytes += residue::unmap(executor, *range)?;
    }
    Ok(bytes)
}

impl Originals {
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.all().flat_map(|file| &file.pieces)
    }

    fn all(&self) -> impl Iterator<Item = &Original> {
        self.moved.iter().chain(&self.files)
    }

    fn is_empty(&self) -> bool {
        self.all().next().is_none()
            && self.left.is_empty()
            && self.filler.is_empty()
            && self.widened.is_empty()
    }

    /// Finds what belongs in the place of a copy, the area at `index`.
    fn look_at_copy(
        &mut self,
        order: &AttachOrder<'_>,
        written: &Written,
        layouts: &mut Layouts<'_>,
        entry: &Area,
        index: usize,
    ) -> Result<(), Failure> {
        let (memory, range) = (order.target.space.memory(), entry.vma.range);
        if entry.vma.perms.write {
            return Err(Failure::new(
                SkipReason::ModifiedText,
                "the process may write to the copy",
            ));
        }
        let (files, mut why) = layouts.beside(index);
        let places = files.iter().flat_map(|file| file.places.iter().map(move |at| (file, at)));
        let mut here: Vec<_> = places.filter(|(_, parts)| parts.is_at(range)).collect();
        order::by_key(&mut here, |(_, parts)| !parts.is_certain());
        if !here.is_empty() {
            why = None;
        }
        for (file, parts) in here {
            let Some(content) = parts.content_of_copy(range) else { continue };
            match content
                .iter()
                .try_for_each(|part| compare_once(order, written, &entry.vma, part, &file.file))
            {
                Ok(()) => {
                    self.filler.extend(parts.gaps(range));
                    let mixed = pool::mixed_pages(entry, parts, order.policy.pages.base);
                    if !mixed.is_empty() {
                        self.of_pool_name = entry.vma.path().to_vec();
                    }
                    let of_text = if entry.vma.guarded { GUARDED } else { TEXT };
                    self.of_pool.extend(mixed.into_iter().map(|pages| (pages, of_text)));
                    return add(&mut self.files, file, parts, content, entry);
                }
                // The failure of the nearest file is reported.
                Err(failure) => {
                    why.get_or_insert(failure);
                }
            }
        }
        if let Some((file, content)) = layouts.content_of_moved(index) {
            content
                .iter()
                .try_for_each(|part| compare(memory, part.range, &file.file, part.file_offset))?;
            return add(&mut self.moved, &file, &Parts::listed(content.clone()), content, entry);
        }
        // A TiExec that died left this area: it holds filler, or lies beside the text.
        if layouts.belongs_nowhere(memory, index) {
            self.filler.push(range);
            return Ok(());
        }
        let no_file = || Failure::new(FailureKind::FileGone, "no area of its file is beside it");
        Err(why.unwrap_or_else(no_file))
    }

    /// Finds what belongs in the place of widened page cache: parts with other protections, and gaps.
    fn look_at_widened(
        &mut self,
        memory: &Memory,
        file: &Rc<Mapped>,
        parts: &Parts,
        entry: &Area,
    ) -> Result<(), Failure> {
        let range = entry.vma.range;
        let content: Vec<Part> = parts.within(range).collect();
        content
            .iter()
            .try_for_each(|part| compare(memory, part.range, &file.file, part.file_offset))?;
        self.widened.extend(parts.gaps(range));
        add(&mut self.files, file, parts, content, entry)
    }
}

/// Adds parts of a file that lies at a place to `files`.
fn add(
    files: &mut Vec<Original>,
    file: &Rc<Mapped>,
    place: &Parts,
    content: Vec<Part>,
    entry: &Area,
) -> Result<(), Failure> {
    let of_text = if entry.vma.guarded { GUARDED } else { TEXT };
    let pieces = content.into_iter().map(|part| {
        let protection = if part.text { of_text } else { c::PROT_READ };
        Piece { part, protection, segment: place.around(&part) }
    });
    // Open each file once, so that its areas can join each other.
    if let Some(known) = files.iter_mut().find(|known| known.id == file.id) {
        known.pieces.extend(pieces);
        return Ok(());
    }
    let (id, pieces) = (file.id, pieces.collect::<Vec<_>>());
    if !pieces.is_empty() {
        let copied = file.file.try_clone();
        let file = copied.map_err(Failure::of(FailureKind::FdLimit))?;
        files.push(Original { id, file, pieces, runs: Vec::new() });
    }
    Ok(())
}

/// Compares the process's bytes in a part of a copy with the file's. Processes of one family map the same copy, so it is
/// compared in one of them. In the others, only the pages that were written to are.
fn compare_once(
    order: &AttachOrder<'_>,
    written: &Written,
    copy: &Vma,
    part: &Part,
    file: &TargetFile,
) -> Result<(), Failure> {
    let memory = order.target.space.memory();
    let whole = || compare(memory, part.range, file, part.file_offset);
    let TargetFile::Apart(opened) = file else { return whole() };
    if !copy.name.starts_with(IMAGE_NAME_PREFIX) {
        return whole();
    }
    let (at, len) = (copy.offset_at(part.range.start()), part.range.len());
    let bytes = SameBytes { copy: copy.file, at, len, file_offset: part.file_offset };
    let changed = written.base_pages(part.range)?;
    if opened.is_same(&bytes) {
        return changed
            .into_iter()
            .try_for_each(|pages| compare(memory, pages, file, part.offset_at(pages.start())));
    }
    whole()?;
    if changed.is_empty() {
        opened.note_same(bytes);
    }
    Ok(())
}
