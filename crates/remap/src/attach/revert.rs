//! Back: the file's own ranges over the text of ours.
//!
//! Which file, and where in it, is told by the areas that are left of it near ours and by its own
//! headers; no record is kept, so this works after an upgrade of TiExec and with an emptied store. The
//! bytes are compared before anything is changed. What no segment of the file covers was empty before.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::coverage::is_ours;
use tiexec_core::parts::{Part, Parts};
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::smaps::SmapsEntry;
use tiexec_core::skip::SkipReason;
use tiexec_sys::{Pid, c, vm};
use tiexec_tracee::arch::Call;
use tiexec_tracee::foreseen::Foreseen;

use super::pass::Passage;
use super::place::{self, Place};
use super::prepared::COPY_CALLS;
use super::same::RunningImage;
use super::written::Written;
use super::{AttachOrder, StopCost, in_a_stop, mappings, read_smaps};
use crate::failure::Failure;
use crate::mapped::{Mapped, around, is_widened, may_be_ours, open_mapped};
use crate::program::elf_facts;
use crate::protection::{GUARDED, TEXT};

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

/// A range of ours, and the part of the file that belongs there.
struct Piece {
    part: Part,
    /// Which of the files.
    file: usize,
    locked: bool,
    protection: i32,
}

/// What belongs in the place of ours.
#[derive(Default)]
struct Originals {
    files: Vec<File>,
    pieces: Vec<Piece>,
    /// Where nothing belongs.
    nothing: Vec<AddrRange>,
}

/// Puts the file's own text back in the place of ours.
///
/// # Errors
/// Nothing could be begun; the process is as it was. What fails later is in the [`Reverted`].
pub fn revert(order: &AttachOrder<'_>) -> Result<Reverted, Failure> {
    let image = RunningImage::open(order.process);
    let written = Written::open(order.process, order.pages)?;
    let entries = read_smaps(order.process)?;
    let mut reverted = Reverted { found: 0, reverted: 0, failure: None, stop: None };
    let mut originals = Originals::default();
    for (index, entry) in entries.iter().enumerate() {
        if !may_be_ours(entry, order.pages) {
            continue;
        }
        let len = entry.vma.range.len();
        match originals.look(order, &entries, index) {
            Ok(true) => reverted.found += len,
            Ok(false) => {}
            Err(failure) => {
                reverted.found += len;
                reverted.failure.get_or_insert(failure);
            }
        }
    }
    let Originals { files, pieces, nothing } = originals;
    if (pieces.is_empty() && nothing.is_empty()) || order.dry_run {
        return Ok(reverted);
    }
    mappings::check(entries.len(), pieces.len())?;
    let mut done = 0;
    let mut calls: Vec<&[Foreseen]> = vec![&[place::UNMAP]];
    if !pieces.is_empty() {
        calls.extend(COPY_CALLS);
    }
    if pieces.iter().any(|piece| piece.protection == GUARDED) {
        calls.push(&place::GUARDED_CALLS);
    }
    if pieces.iter().any(|piece| !piece.part.text) {
        calls.push(&place::DATA_CALLS);
    }
    let (cost, outcome) = in_a_stop(order, image, &entries, calls, |session, snapshot| {
        let passage = if pieces.is_empty() {
            None
        } else {
            Some(Passage::open(session, order.task, order.process)?)
        };
        for (index, file) in files.iter().enumerate() {
            let mut of_file = pieces.iter().filter(|piece| piece.file == index).peekable();
            let Some(passage) = passage.as_ref().filter(|_| of_file.peek().is_some()) else {
                continue;
            };
            let fd = passage.hand_over(session, file)?;
            for Piece { part, locked, protection, .. } in of_file {
                let (offset, to) = (part.file_offset, part.range);
                let (gaps, backing) = (Vec::new(), None);
                let (locked, protection) = (*locked, *protection);
                let place = Place { fd, offset, to, locked, protection, gaps, backing };
                // What was written to before was compared with the rest; it may be the same again.
                let unchanged = || {
                    written.base_pages(to)?.into_iter().try_for_each(|page| {
                        let file_offset = offset + (page.start().get() - to.start().get());
                        compare(order.task, &Part { range: page, file_offset, ..*part }, file)
                    })
                };
                place::switch(session, order.process, snapshot, &place, unchanged)?;
                done += to.len();
            }
            session.release_now()?;
        }
        for range in &nothing {
            let (start, len) = (range.start().get(), range.len());
            let _it_stays = session.call(Call::new(c::SYS_munmap, [start, len]))?;
            done += len;
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

impl Originals {
    /// Finds what belongs in the place of the area at `index`; returns whether it is ours.
    fn look(
        &mut self,
        order: &AttachOrder<'_>,
        entries: &[SmapsEntry],
        index: usize,
    ) -> Result<bool, Failure> {
        let AttachOrder { process, pages, .. } = *order;
        let entry = &entries[index];
        let range = entry.vma.range;
        let copied = is_ours(&entry.vma);
        let images = around(process, entries, index, pages);
        let mut why = None;
        for Mapped { file, parts, vma } in images.unwrap_or_else(|failure| {
            why = Some(failure);
            Vec::new()
        }) {
            if !copied && (vma.file != entry.vma.file || !is_widened(range, &parts)) {
                continue;
            }
            let content: Vec<Part> = parts.within(range).collect();
            // Where it is in doubt what is where, text is told by its bytes, and nothing else is.
            let only_text = |part: &Part| part.text && part.range == range;
            if parts.is_closed(range)
                || !parts.is_certain() && !matches!(&content[..], [part] if only_text(part))
            {
                continue;
            }
            let same = content.iter().try_for_each(|part| compare(order.task, part, &file));
            if let Err(failure) = same {
                // What went wrong with the nearest is what is told.
                why.get_or_insert(failure);
                continue;
            }
            self.files.push(file);
            let (file, locked) = (self.files.len() - 1, entry.has_flag(*b"lo"));
            let of_text = if entry.vma.guarded { GUARDED } else { TEXT };
            self.pieces.extend(content.into_iter().map(|part| {
                let protection = if part.text { of_text } else { c::PROT_READ };
                Piece { part, file, locked, protection }
            }));
            self.nothing.extend(parts.gaps(range));
            return Ok(true);
        }
        if !copied {
            return Ok(false);
        }
        match why {
            Some(failure) => Err(failure),
            // A TiExec that died left it beside the text.
            None if nowhere_else(order, entries, index) => {
                self.nothing.push(range);
                Ok(true)
            }
            None => Err(Failure::new(SkipReason::FileGone, "no area of its file is beside it")),
        }
    }
}

/// Whether no file of the process has text or data where the area of ours at `index` is. Not so if that
/// cannot be told.
fn nowhere_else(order: &AttachOrder<'_>, entries: &[SmapsEntry], index: usize) -> bool {
    let AttachOrder { process, pages, .. } = *order;
    let range = entries[index].vma.range;
    let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
    let mut seen = Vec::new();
    let free = |vma: &Vma| {
        let Ok(file) = open_mapped(process, vma) else { return false };
        // What is no ELF file has no text that could be ours.
        let Ok(facts) = elf_facts(&file) else { return true };
        let images = Parts::find(&facts.1.loads, pages.base, &vmas, vma.file, is_ours);
        images.iter().all(|parts| !parts.is_at(range))
    };
    vmas.iter()
        .filter(|vma| vma.is_file_backed() && !is_ours(vma))
        .filter(|vma| {
            let first = !seen.contains(&vma.file);
            seen.push(vma.file);
            first
        })
        .all(free)
}

/// Compares the process's bytes with the file's.
fn compare(pid: Pid, part: &Part, file: &File) -> Result<(), Failure> {
    let Part { range, file_offset, .. } = *part;
    const CHUNK: u64 = 1 << 20;
    let mut at = 0;
    let (mut here, mut there) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    while at < range.len() {
        let len = CHUNK.min(range.len() - at) as usize;
        let from = RemoteAddr::new(range.start().get() + at);
        let unread = |error: &dyn std::fmt::Display| Failure::new(SkipReason::ReadFailed, error);
        vm::read(pid, from, &mut here[..len]).map_err(Failure::unreadable)?;
        read_mapped(file, &mut there[..len], file_offset + at).map_err(|error| unread(&error))?;
        if here[..len] != there[..len] {
            let what = format!("the file's bytes differ from those at {from:?}");
            return Err(Failure::new(SkipReason::ModifiedText, what));
        }
        at += len as u64;
    }
    Ok(())
}

/// Reads as a mapping of the file shows it: the page in which it ends goes on with zeros.
fn read_mapped(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64)? {
            0 => {
                buffer[done..].fill(0);
                break;
            }
            count => done += count,
        }
    }
    Ok(())
}
