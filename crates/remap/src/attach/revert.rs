//! Back: the file's own ranges over the text of ours.
//!
//! Which file, and where in it, is told by the areas that are left of it beside ours and by its own
//! headers; no record is kept, so this works after an upgrade of TiExec and with an emptied store. The
//! bytes are compared before anything is changed.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::coverage::is_ours;
use tiexec_core::elf::LoadSegment;
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::smaps::SmapsEntry;
use tiexec_core::skip::SkipReason;
use tiexec_sys::{Pid, c, vm};
use tiexec_tracee::arch::Call;
use tiexec_tracee::foreseen::Foreseen;

use super::pass::Passage;
use super::same::RunningImage;
use super::texts::open_mapped;
use super::{AttachOrder, COPY_CALLS, StopCost, in_a_stop, mappings, read_smaps};
use crate::failure::Failure;
use crate::program::elf_facts;
use crate::switch;

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reverted {
    /// Bytes of ours that were found.
    pub found: u64,
    /// Bytes of them that are the file's own again.
    pub reverted: u64,
    /// Why not all.
    pub failure: Option<Failure>,
    /// What the stop cost; `None` if no thread was stopped.
    pub stop: Option<StopCost>,
}

/// A range of ours, and what belongs there.
struct Piece {
    range: AddrRange,
    file: File,
    file_offset: u64,
    locked: bool,
}

/// Puts the file's own text back in the place of ours.
///
/// # Errors
/// Nothing could be begun; the process is as it was. What fails later is in the [`Reverted`].
pub fn revert(order: &AttachOrder<'_>) -> Result<Reverted, Failure> {
    let image = RunningImage::open(order.process);
    let entries = read_smaps(order.process)?;
    let mut reverted = Reverted { found: 0, reverted: 0, failure: None, stop: None };
    let (mut pieces, mut strays) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        if !entry.vma.is_text() || !is_ours(&entry.vma) {
            continue;
        }
        reverted.found += entry.vma.range.len();
        match original(order, &entries, index) {
            Ok(piece) => pieces.push(piece),
            Err(_) if is_stray(order, &entries, index) => strays.push(entry.vma.range),
            Err(failure) => {
                reverted.failure.get_or_insert(failure);
            }
        }
    }
    if (pieces.is_empty() && strays.is_empty()) || order.dry_run {
        return Ok(reverted);
    }
    mappings::check(entries.len(), pieces.len())?;
    let mut done = 0;
    let mut calls: Vec<&[Foreseen]> = vec![&[switch::UNMAP]];
    if !pieces.is_empty() {
        calls.extend(COPY_CALLS);
    }
    let (cost, outcome) = in_a_stop(order, image, &entries, calls, |session, snapshot| {
        for stray in &strays {
            let (start, len) = (stray.start().get(), stray.len());
            let _it_stays = session.call(Call::new(c::SYS_munmap, [start, len]))?;
            done += len;
        }
        if pieces.is_empty() {
            return Ok(());
        }
        let passage = Passage::open(session, order.task, order.process)?;
        for piece in &pieces {
            let fd = passage.hand_over(session, &piece.file)?;
            let (offset, to, locked) = (piece.file_offset, piece.range, piece.locked);
            let place = switch::Place { fd, offset, to, locked };
            switch::switch_running(session, order.process, snapshot, place)?;
            session.release_now()?;
            done += piece.range.len();
        }
        Ok(())
    })?;
    reverted.reverted = done;
    reverted.stop = Some(cost);
    if let Err(failure) = outcome {
        reverted.failure.get_or_insert(failure);
    }
    Ok(reverted)
}

/// Finds what belongs in the place of the area of ours at `index`.
fn original(
    order: &AttachOrder<'_>,
    entries: &[SmapsEntry],
    index: usize,
) -> Result<Piece, Failure> {
    let ours = &entries[index].vma;
    let mut why = None;
    for neighbour in neighbours(entries, index) {
        let found = open_mapped(order.process, neighbour).and_then(|file| {
            let file_offset = offset_in(&file, neighbour, ours.range, order.pages.base)?;
            compare(order.task, ours.range, &file, file_offset)?;
            Ok((file, file_offset))
        });
        match found {
            Ok((file, file_offset)) => {
                let locked = entries[index].has_flag(*b"lo");
                return Ok(Piece { range: ours.range, file, file_offset, locked });
            }
            // What went wrong with the nearest is what is told.
            Err(failure) => {
                why.get_or_insert(failure);
            }
        }
    }
    Err(why
        .unwrap_or_else(|| Failure::new(SkipReason::FileGone, "no area of its file is beside it")))
}

/// Whether the area of ours at `index` lies where no file has text: a TiExec that died left it beside
/// the text. Not so if that cannot be told.
fn is_stray(order: &AttachOrder<'_>, entries: &[SmapsEntry], index: usize) -> bool {
    let AttachOrder { process, pages, .. } = order;
    let range = entries[index].vma.range;
    let mut seen = Vec::new();
    let claimed = |vma: &Vma| {
        let Ok(file) = open_mapped(process, vma) else { return true };
        offset_in(&file, vma, range, pages.base).is_ok()
    };
    neighbours(entries, index).is_empty()
        && !entries
            .iter()
            .map(|entry| &entry.vma)
            .filter(|vma| vma.is_file_backed() && !is_ours(vma))
            .filter(|vma| {
                let first = !seen.contains(&vma.file);
                seen.push(vma.file);
                first
            })
            .any(claimed)
}

/// Returns the nearest areas of files below and above, each joined to the one at `index` without a
/// gap; areas of ours lie between, if any.
fn neighbours(entries: &[SmapsEntry], index: usize) -> Vec<&Vma> {
    let foreign = |vma: &&Vma| vma.is_file_backed() && !is_ours(vma);
    let joined = |pair: &[SmapsEntry]| pair[0].vma.range.end() == pair[1].vma.range.start();
    let mut below = index;
    while below > 0 && joined(&entries[below - 1..=below]) && is_ours(&entries[below].vma) {
        below -= 1;
    }
    let mut above = index;
    while above + 1 < entries.len()
        && joined(&entries[above..=above + 1])
        && is_ours(&entries[above].vma)
    {
        above += 1;
    }
    [below, above].into_iter().map(|at| &entries[at].vma).filter(foreign).collect()
}

/// Works out, by the file's headers, which of its bytes belong at `range` if `neighbour` is where it
/// is.
fn offset_in(
    file: &File,
    neighbour: &Vma,
    range: AddrRange,
    base_page: PageSize,
) -> Result<u64, Failure> {
    let (_, facts) = elf_facts(file)?;
    let base = |load: &LoadSegment| load.vaddr.wrapping_sub(load.file_offset);
    let holds = |load: &&LoadSegment, offset: u64| {
        // A segment is mapped from the base page it begins in, to the end of the one it ends in: so far
        // ours may reach, where the text begins or ends with a huge page.
        let first = load.file_offset & !(base_page.bytes() - 1);
        first <= offset && offset < load.file_offset.saturating_add(load.file_size)
    };
    let segment = facts.loads.iter().find(|load| holds(load, neighbour.file_offset));
    let bias = segment.map(|load| {
        let vaddr = neighbour.file_offset.wrapping_add(base(load));
        neighbour.range.start().get().wrapping_sub(vaddr)
    });
    let offset = bias.and_then(|bias| {
        let start = range.start().get().wrapping_sub(bias);
        let end = start.checked_add(range.len())?;
        let text = facts.loads.iter().find(|load| {
            let first = load.vaddr & !(base_page.bytes() - 1);
            let last = load.vaddr.checked_add(load.file_size);
            let last = last.and_then(|last| last.checked_next_multiple_of(base_page.bytes()));
            load.is_text() && first <= start && last.is_some_and(|last| end <= last)
        })?;
        Some(start.wrapping_sub(base(text)))
    });
    offset.ok_or_else(|| {
        let what = format!("{} has no such text", neighbour.display_path());
        Failure::new(SkipReason::FileGone, what)
    })
}

/// Compares the process's bytes with the file's.
fn compare(pid: Pid, range: AddrRange, file: &File, file_offset: u64) -> Result<(), Failure> {
    const CHUNK: u64 = 1 << 20;
    let mut at = 0;
    let (mut here, mut there) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    while at < range.len() {
        let len = CHUNK.min(range.len() - at) as usize;
        let from = RemoteAddr::new(range.start().get() + at);
        let unread = |error: &dyn std::fmt::Display| Failure::new(SkipReason::ReadFailed, error);
        vm::read(pid, from, &mut here[..len]).map_err(|error| unread(&error))?;
        file.read_exact_at(&mut there[..len], file_offset + at).map_err(|error| unread(&error))?;
        if here[..len] != there[..len] {
            let what = format!("the file's bytes differ from those at {from:?}");
            return Err(Failure::new(SkipReason::ModifiedText, what));
        }
        at += len as u64;
    }
    Ok(())
}
