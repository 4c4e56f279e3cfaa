//! The facts about a running process's text, collected before anything is decided.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::area::Area;
use tiexec_core::config::Edges;
use tiexec_core::coverage::{IMAGE_NAME_PREFIX, is_ours, left_alone};
use tiexec_core::file_ranges::Parts;
use tiexec_core::order;
use tiexec_core::plan::{Backing, RunningText};
use tiexec_core::proc::auxv;
use tiexec_core::proc::maps::{FileId, Perms, Vma};
use tiexec_core::ragged::edge_chunks;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::Errno;
use tiexec_sys::address_space::AddressSpace;
use tiexec_tracee::Failure;

use super::AttachOrder;
use super::written::Written;
use crate::elf_file::loads;
use crate::headroom;
use crate::mapped::{is_found_beside, plain};
use crate::open_mapped::open_mapped;
use crate::pagecache::{Held, Small};
use crate::policy::Policy;
use crate::target_file::TargetFile;

/// The text VMAs and their files. Each file is opened once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// In address order.
    pub texts: Vec<RunningText>,
    files: Vec<Opened>,
    /// Keeps the text's huge folios cached until the process has mapped them itself.
    held: Held,
}

/// A file that is mapped, and where.
#[derive(Debug)]
struct Opened {
    id: FileId,
    file: TargetFile,
    /// The file's parts at each place where all of its text is mapped; empty if it is not an ELF file.
    images: Vec<Parts>,
}

/// The parameters of examining texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looking<'a> {
    /// The order.
    pub order: &'a AttachOrder<'a>,
    /// The process's pages that have been written to.
    pub written: &'a Written,
    /// When to stop bringing files into the page cache.
    pub deadline: Instant,
}

impl Looking<'_> {
    /// Returns the part of a text that is examined: its whole huge pages, and the huge pages at its edges if the
    /// policy takes edges.
    fn extent(&self, vma: &Vma) -> Option<AddrRange> {
        let Policy { edges, pages, .. } = self.order.policy;
        match edges.edges {
            Edges::Conservative => vma.range.align_inward(pages.pmd),
            _ => vma.range.align_outward(pages.pmd),
        }
    }
}

impl Texts {
    /// Reads the text VMAs among `entries`.
    pub(super) fn read(looking: &Looking<'_>, entries: &[Area]) -> Self {
        let mut found = Self::default();
        let vmas: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
        let Policy { pages, sources, select, .. } = looking.order.policy;
        let main = main_file(&looking.order.target.space, entries);
        let unselected = |vma: &Vma| {
            let selected = if main == Some(vma.file) { select.main } else { select.dso };
            (!selected).then_some(SkipReason::NotSelected.into())
        };
        for entry in entries.iter().filter(|entry| entry.vma.is_text()) {
            let extent = looking.extent(&entry.vma);
            let mut text = RunningText {
                vma: entry.vma.clone(),
                folios: Vec::new(),
                copy: sources.copy,
                uncopied: None,
                kept: huge_already(entry, pages),
                leave: unselected(&entry.vma).or_else(|| extent.and_then(|_| leave(entry, pages))),
                parts: None,
            };
            if let (None, Some(extent)) = (text.leave, extent) {
                text.leave = match found.look(looking, &mut text, extent, &vmas) {
                    Ok(()) if sources.pagecache => {
                        text.folios = found.folios(looking, &text);
                        None
                    }
                    Ok(()) => None,
                    Err(failure) => Some(failure.reason),
                };
            }
            // A text that is left alone may have any length, so skip it here.
            if let (None, Some(allowed), Some(extent)) = (text.leave, looking.order.allowed, extent)
            {
                text.kept.extend(beyond(&text.kept, extent, allowed, pages));
                order::by_key(&mut text.kept, |(range, _)| range.start());
            }
            found.texts.push(text);
        }
        found.copy_only_what_a_revert_finds(looking, &vmas);
        found
    }

    /// Forbids the copies after which a revert could not tell which file belongs in their place, and which part of it.
    /// A revert sees only what is left of the file's mappings, and the file's own headers.
    fn copy_only_what_a_revert_finds(&mut self, looking: &Looking<'_>, vmas: &[Vma]) {
        let Policy { pages, .. } = looking.order.policy;
        let is_copied = |text: &RunningText| text.leave.is_none() && text.copy.is_some();
        let copied = |text: &RunningText| {
            Some((text.vma.file, looking.extent(&text.vma).filter(|_| is_copied(text))?))
        };
        let copies: Vec<(FileId, AddrRange)> = self.texts.iter().filter_map(copied).collect();
        if copies.is_empty() {
            return;
        }
        let left = beside_copies(vmas, &copies);
        let plain = plain(&left);
        let (mut texts, mut known) = (std::mem::take(&mut self.texts), HashMap::new());
        for text in texts.iter_mut().filter(|text| is_copied(text)) {
            let Some(opened) = self.opened(&text.vma) else { continue };
            let range = text.vma.range.align_inward(pages.pmd).unwrap_or(text.vma.range);
            let is_told = match &text.parts {
                Some(certain) => certain.is_shown_by(&left, opened.id),
                None => {
                    let places = known.entry(opened.id).or_insert_with(|| {
                        let of_it = vmas.iter().filter(|vma| vma.file == opened.id).count();
                        if of_it > MOST_PIECES {
                            return Vec::new();
                        }
                        Parts::find(&loads(&opened.file), pages.base, &left, opened.id, is_ours)
                    });
                    places.iter().any(|parts| {
                        parts.content_of_copy(range).is_some() && parts.describe(&text.vma, range)
                    })
                }
            };
            let copy = Vma { range, ..text.vma.clone() };
            if !is_told || !is_found_beside(&plain, &copy, opened.id) {
                (text.copy, text.uncopied) = (None, Some(SkipReason::NotSelected.into()));
            }
        }
        self.texts = texts;
    }

    /// Returns the facts about a text VMA.
    pub(crate) fn text(&self, vma: &Vma) -> Option<&RunningText> {
        self.texts.iter().find(|text| text.vma == *vma)
    }

    /// Returns the text VMA that reaches into a range, such as into the huge page at its edge.
    pub(super) fn in_range(&self, range: AddrRange) -> Option<&Vma> {
        self.texts.iter().map(|text| &text.vma).find(|vma| vma.range.overlaps(range))
    }

    /// Makes sure, right before text is replaced, that it is still there: another thread may have unmapped it during the stop
    /// (dlclose(3)) and mapped something else. The check takes no lock that keeps other threads from doing so afterwards.
    /// Before Linux 6.11 it would read all of maps, and is left out.
    ///
    /// # Errors
    /// `changed`; `proc_unavailable`.
    pub(crate) fn is_still_mapped(
        &self,
        space: &AddressSpace,
        range: AddrRange,
    ) -> Result<(), Failure> {
        let Some(vma) = self.in_range(range) else { return Ok(()) };
        let Some(part) = vma.range.intersection(range) else { return Ok(()) };
        match space.mapping_at(part.start()) {
            Ok(Some(now)) if now.holds(vma, part) => Ok(()),
            Err(error) if error.errno == Errno::NOTTY => Ok(()),
            Ok(_) => Err(Failure::mapped_otherwise(vma)),
            Err(error) => Err(Failure::unreadable(error)),
        }
    }

    /// Returns the file that a text VMA maps.
    pub(crate) fn file(&self, vma: &Vma) -> Option<&TargetFile> {
        self.opened(vma).map(|opened| &opened.file)
    }

    fn opened(&self, vma: &Vma) -> Option<&Opened> {
        self.files.iter().find(|opened| opened.id == vma.file)
    }

    /// Changes the backing of a text's copy.
    pub(super) fn copy_from(&mut self, vma: &Vma, backing: Backing) {
        for text in self.texts.iter_mut().filter(|text| text.vma == *vma) {
            text.copy = Some(backing);
        }
    }

    /// Notes why a text has no image in the store.
    pub(super) fn is_not_stored(&mut self, vma: &Vma, why: Reason) {
        for text in self.texts.iter_mut().filter(|text| text.vma == *vma) {
            text.uncopied = Some(why);
        }
    }

    /// Forbids copies to `backing` of the files whose paths `meant` picks.
    pub(super) fn copy_nothing_to(&mut self, backing: Backing, meant: impl Fn(&[u8]) -> bool) {
        for text in self.texts.iter_mut().filter(|text| text.copy == Some(backing)) {
            if meant(text.vma.path()) {
                text.copy = None;
            }
        }
    }

    /// Opens the text's file, finds where it is mapped, and finds which of its huge pages were written to.
    fn look(
        &mut self,
        looking: &Looking<'_>,
        text: &mut RunningText,
        extent: AddrRange,
        vmas: &[Vma],
    ) -> Result<(), Failure> {
        let AttachOrder { target, workers, policy, .. } = *looking.order;
        let id = text.vma.file;
        // A mapping may have any length and be empty. Refuse it before its pages are examined.
        headroom::check_length(extent.len())?;
        if self.opened(&text.vma).is_none() {
            let file = open_mapped(&target.process, workers, &text.vma)?;
            let images = Parts::find(&loads(&file), policy.pages.base, vmas, id, is_ours);
            self.files.push(Opened { id, file, images });
        }
        let images = self.opened(&text.vma).map(|opened| &opened.images);
        let is_there = |parts: &&Parts| parts.describe(&text.vma, text.vma.range);
        // The places in doubt, of which there may be thousands, come last.
        let certain = images.into_iter().flatten().take_while(|parts| parts.is_certain());
        text.parts = { certain }.find(is_there).cloned();
        let modified = looking.written.huge_pages(extent)?;
        text.kept.extend(modified.into_iter().map(|page| (page, SkipReason::ModifiedText)));
        order::by_key(&mut text.kept, |(range, _)| range.start());
        Ok(())
    }

    /// Returns the parts of the text's file that are in PMD-sized folios, where they can be
    /// PMD-mapped.
    fn folios(&mut self, looking: &Looking<'_>, text: &RunningText) -> Vec<Range<u64>> {
        let Policy { pages, edges, dry_run, .. } = looking.order.policy;
        let vma = &text.vma;
        let Some(file) = self.file(vma) else { return Vec::new() };
        let in_file = |range: AddrRange| {
            let start = vma.offset_at(range.start());
            let end = start.checked_add(range.len())?;
            (start & (pages.pmd.bytes() - 1) == 0).then_some(start..end)
        };
        let whole = vma.range.align_inward(pages.pmd);
        let kept = |whole: &AddrRange| text.kept.iter().any(|(range, _)| range == whole);
        let whole = whole.filter(|whole| !kept(whole)).and_then(in_file);
        let mut chunks: Vec<Range<u64>> = whole.into_iter().collect();
        if let (Some(parts), Some(reach)) =
            (&text.parts, vma.range.align_outward(pages.pmd).and_then(in_file))
        {
            let len = file.facts().len;
            let near = |chunk: &Range<u64>| reach.start <= chunk.start && chunk.end <= reach.end;
            chunks.extend(edge_chunks(parts, edges, pages, len).into_iter().filter(near));
        }
        order::by_key(&mut chunks, |chunk| chunk.start);
        let prepared = file.prepare_cache(&chunks, pages, Small::of(dry_run), looking.deadline);
        let prepared = prepared.unwrap_or_default();
        self.held.extend(prepared.held);
        prepared.huge
    }
}

/// Returns the main executable's file: the file that maps the program headers. (The entry point may lie in
/// TiExec's image.)
fn main_file(space: &AddressSpace, entries: &[Area]) -> Option<FileId> {
    let auxv = space.auxv().ok()?;
    let headers = RemoteAddr::new(auxv::get(&auxv, auxv::AT_PHDR)?);
    let entry = entries.iter().find(|entry| entry.vma.range.contains(headers))?;
    entry.vma.is_file_backed().then_some(entry.vma.file)
}

/// Returns the whole huge pages of a text that are huge already, and are kept.
fn huge_already(entry: &Area, pages: Pages) -> Vec<(AddrRange, SkipReason)> {
    let whole = entry.vma.range.align_inward(pages.pmd);
    let whole = whole.filter(|whole| entry.huge_bytes() >= whole.len());
    whole.map(|whole| (whole, SkipReason::AlreadyPmdMapped)).into_iter().collect()
}

/// Returns the huge pages of a text that must be left alone because others are hotter.
fn beyond(
    kept: &[(AddrRange, SkipReason)],
    extent: AddrRange,
    allowed: &[RemoteAddr],
    pages: Pages,
) -> Vec<(AddrRange, SkipReason)> {
    let Some(extent) = extent.align_outward(pages.pmd) else { return Vec::new() };
    let len = pages.pmd.bytes();
    let starts = (extent.start().get()..extent.end().get()).step_by(pages.pmd.bytes() as usize);
    starts
        .map(RemoteAddr::new)
        .filter(|start| !allowed.contains(start))
        .filter_map(|start| AddrRange::with_len(start, len))
        .filter(|page| !kept.iter().any(|(range, _)| range.overlaps(*page)))
        .map(|page| (page, SkipReason::Budget))
        .collect()
}

/// Returns why a text must be left alone. A sealed text shows that it is sealed only when it is to be replaced.
fn leave(entry: &Area, pages: Pages) -> Option<Reason> {
    let vma = &entry.vma;
    if entry.is_hugetlb(pages.base) {
        return Some(SkipReason::AlreadyPmdMapped.into());
    }
    if is_ours(vma) {
        let whole = vma.range.align_inward(pages.pmd);
        let huge = whole.is_some_and(|whole| entry.huge_bytes() >= whole.len());
        // If it is not huge, the kernel has taken huge pages away since.
        return Some(match huge {
            true => SkipReason::AlreadyPmdMapped.into(),
            false => FailureKind::NoHugePage.into(),
        });
    }
    // A program reaches text with memory tags (aarch64) by tagged addresses; a copy has no tags.
    if !vma.perms.read || entry.keyed {
        return Some(SkipReason::ProtectionKey.into());
    }
    left_alone(vma).map(Reason::from)
}

/// Most mappings of a file whose place is in doubt. To examine more takes too long.
const MOST_PIECES: usize = 256;

/// Returns all VMAs as they would be if each of these ranges were a copy of that file's text, as far as it lies over that file.
/// `vmas` and `copies` are in address order. The copies' VMAs are TiExec's own by their names.
fn beside_copies(vmas: &[Vma], copies: &[(FileId, AddrRange)]) -> Vec<Vma> {
    let mut all = Vec::with_capacity(vmas.len() + 2 * copies.len());
    for vma in vmas {
        let first = copies.partition_point(|(_, copy)| copy.end() <= vma.range.start());
        let over = copies[first..].iter().take_while(|(_, copy)| copy.start() < vma.range.end());
        let over = over.filter(|(file, _)| *file == vma.file && !vma.perms.write);
        let mut from = vma.range.start();
        for taken in over.filter_map(|(_, copy)| vma.within(*copy)) {
            let before = AddrRange::new(from, taken.range.start());
            all.extend(before.and_then(|before| vma.within(before)));
            from = taken.range.end();
            all.push(Vma {
                file: FileId { inode: 1, ..vma.file },
                perms: Perms { exec: true, ..vma.perms },
                name: IMAGE_NAME_PREFIX.into(),
                ..taken
            });
        }
        let rest = AddrRange::new(from, vma.range.end());
        all.extend(rest.and_then(|rest| vma.within(rest)));
    }
    all
}
