//! The `pagecache` backing: text in huge folios of the file's own page cache.
//!
//! This code evicts nothing. A file system with large folios reads uncached data in as huge folios if a mapping
//! with MADV_HUGEPAGE requests it. Data that is cached in small folios stays there, unless the kernel can collapse
//! it.

use std::fs::File;
use std::ops::Range;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tiexec_core::addr::Pages;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::compaction;
use tiexec_sys::holes::Holes;
use tiexec_sys::pagecache::{FileMapping, may_look};
use tiexec_sys::{Errno, SysError};
use tiexec_tracee::Failure;

use crate::headroom;

/// The part of a file's text that is in huge folios now.
#[derive(Debug, Default)]
pub struct Prepared {
    /// File ranges whose huge pages are each one folio. One PMD entry maps such a folio wherever a congruent
    /// mapping touches it. The ranges are multiples of the huge page, ascending; adjoining ones are merged.
    pub huge: Vec<Range<u64>>,
    /// Why the other chunks are not in `huge`.
    pub shortfall: Option<Failure>,
    /// Keeps `huge` cached.
    pub held: Held,
}

/// Mappings in this process that keep huge folios cached while they last. The kernel may evict an unmapped page at
/// any time. It evicts a page that is mapped and was touched only as a last resort.
#[derive(Debug, Default)]
pub struct Held(Vec<FileMapping>);

impl Held {
    /// The most mappings that are kept. A process may map any number of texts, and each of these mappings counts up
    /// to three times towards this process's own `vm.max_map_count` (65530 by default).
    const MOST: usize = 1024;

    /// Keeps the mappings of `other` as well. Those beyond [`MOST`](Self::MOST) are unmapped.
    pub(crate) fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|mapping| self.push(mapping));
    }

    fn push(&mut self, mapping: FileMapping) {
        if self.0.len() < Self::MOST {
            self.0.push(mapping);
        }
    }
}

/// The treatment of data that is cached in small folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Small {
    /// The kernel collapses it, if it can. The processes that map it fault it in again.
    Collapse,
    /// It stays as it is, and no process notices anything.
    Leave,
}

impl Small {
    /// Returns what a dry run may do, or a real one.
    pub(crate) const fn of(dry_run: bool) -> Self {
        if dry_run { Self::Leave } else { Self::Collapse }
    }
}

/// Brings `chunks` of the file into huge folios if that costs no other process anything. Uncached data is read in
/// as huge folios. Data in small folios is collapsed if the kernel can and `small` allows it, and otherwise stays as it is.
/// `chunks` are file ranges in bytes, multiples of the huge page, ascending.
///
/// Touches one base page of each huge page, reads nothing that is cached, and stops at `deadline`.
///
/// # Errors
/// The file cannot be mapped, or `/proc/self` cannot be read. Nothing is known then, and at most some data was
/// cached that was not before. `memory_headroom`: `chunks` are more than a quarter of the machine's memory.
pub fn prepare(
    file: &File,
    chunks: &[Range<u64>],
    pages: Pages,
    small: Small,
    deadline: Instant,
) -> Result<Prepared, Failure> {
    bring(file, chunks, pages, small, Some(deadline))
}

/// As [`prepare`]; without a deadline it runs to the end.
pub(crate) fn bring(
    file: &File,
    chunks: &[Range<u64>],
    pages: Pages,
    small: Small,
    deadline: Option<Instant>,
) -> Result<Prepared, Failure> {
    let mut prepared = Prepared::default();
    if chunks.is_empty() {
        return Ok(prepared);
    }
    headroom::check_cache(total(chunks))?;
    let asked = total(chunks);
    // Touching a hole of a tmpfs would allocate memory for it.
    let with_data = chunks.iter().flat_map(|chunk| huge_pages(chunk, pages));
    let holes = Holes::of(file);
    let chunks: Vec<Range<u64>> = with_data.filter(|page| holes.has_data(page)).collect();
    let wanted = total(&chunks);
    let scarce = compaction::free_huge_pages(pages)
        .is_some_and(|free| free < 2 * wanted / pages.pmd.bytes());
    for run in runs(&chunks) {
        let mapping = map(file, &run, pages)?;
        let _no_thp = mapping.advise_huge();
        // Each touch must read one huge page and nothing ahead of it. Readahead beyond the device's read_ahead_kb
        // comes in small folios (Linux 6.18, both xfs and ext4).
        mapping.advise_random().map_err(unmapped)?;
        let is_absent = |part: &Range<u64>| {
            mapping.cached_parts(part, pages.base).is_ok_and(|cached| cached.is_empty())
        };
        let room_made = |page: &Range<u64>| {
            let first = page.start..page.start + pages.base.bytes();
            if scarce && is_absent(&first) && is_absent(page) {
                let _fragmented = compaction::free_one(pages.pmd);
            }
        };
        let all = huge_pages(&run, pages).inspect(room_made);
        let mut late = !touch(&mapping, all, pages, deadline);
        let mut huge = mapping.huge_parts().map_err(unseen)?;
        if !late && small == Small::Collapse && total(&huge) < run.end - run.start {
            let missing = missing(&run, &huge, pages);
            let collapsed = collapse(&mapping, &missing, pages, deadline);
            late = !collapsed.in_time;
            if collapsed.any {
                huge = mapping.huge_parts().map_err(unseen)?;
            }
        }
        if !huge.is_empty() {
            let _reclaimed_sooner = mapping.advise_normal();
            prepared.held.push(mapping);
        }
        for part in huge {
            push(&mut prepared.huge, part);
        }
        if late {
            let detail = format!("{} MiB were huge in time", total(&prepared.huge) >> 20);
            prepared.shortfall = Some(Failure::new(FailureKind::Deadline, detail));
            return Ok(prepared);
        }
    }
    let missing = wanted.saturating_sub(total(&prepared.huge));
    if missing > 0 {
        let detail = format!(
            "the page cache holds {} of {} huge pages in small folios",
            missing / pages.pmd.bytes(),
            wanted / pages.pmd.bytes()
        );
        prepared.shortfall = Some(Failure::new(SkipReason::SmallFolios, detail));
    }
    if asked > wanted && prepared.shortfall.is_none() {
        let detail = format!("the file has no data for {} MiB of the text", (asked - wanted) >> 20);
        prepared.shortfall = Some(Failure::new(FailureKind::ReadFailed, detail));
    }
    Ok(prepared)
}

/// The form in which the page cache holds one huge page's worth of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkState {
    /// As one huge folio.
    Huge,
    /// All of it, or a part, in smaller folios.
    Small,
    /// None of it is cached.
    Absent,
    /// Not known: the kernel tells only the file's owner, those who may write to it, and holders of CAP_FOWNER.
    Untold,
}

/// Returns the state of each huge page of `chunks` (as for [`prepare`]), in order. Changes nothing: it reads
/// nothing from the disk and evicts nothing.
///
/// # Errors
/// As [`prepare`].
pub fn state(
    file: &File,
    chunks: &[Range<u64>],
    pages: Pages,
) -> Result<Vec<(Range<u64>, ChunkState)>, Failure> {
    let all = chunks.iter().flat_map(|chunk| huge_pages(chunk, pages));
    if !may_look(file, pages).map_err(unmapped)? {
        return Ok(all.map(|page| (page, ChunkState::Untold)).collect());
    }
    let mut states = Vec::new();
    for run in runs(chunks) {
        let mapping = map(file, &run, pages)?;
        // Touching cached data must not make the kernel read ahead.
        mapping.advise_random().map_err(unmapped)?;
        let mut whole = Vec::new();
        for page in huge_pages(&run, pages) {
            let cached = total(&mapping.cached_parts(&page, pages.base).map_err(unseen)?);
            if cached == pages.pmd.bytes() {
                whole.push(page.clone());
            }
            let state = if cached == 0 { ChunkState::Absent } else { ChunkState::Small };
            states.push((page, state));
        }
        touch(&mapping, whole.into_iter(), pages, None);
        let huge = mapping.huge_parts().map_err(unseen)?;
        for (page, state) in &mut states {
            if huge.iter().any(|part| part.start <= page.start && page.end <= part.end) {
                *state = ChunkState::Huge;
            }
        }
    }
    Ok(states)
}

pub(crate) fn map(file: &File, run: &Range<u64>, pages: Pages) -> Result<FileMapping, Failure> {
    FileMapping::new(file, run.clone(), pages.pmd).map_err(unmapped)
}

pub(crate) fn unmapped(error: SysError) -> Failure {
    let reason = match error.errno {
        Errno::NOMEM => FailureKind::AddressSpace,
        _ => FailureKind::ReadFailed,
    };
    Failure::of(reason)(error)
}

pub(crate) fn unseen(error: SysError) -> Failure {
    Failure::of(FailureKind::ProcUnavailable)(error)
}

/// Touches the first base page of each huge page, which PMD-maps a page in a huge folio. A page that cannot be
/// touched (past the end of a truncated file, unreadable) does not become huge. Returns whether all pages were
/// touched in time.
fn touch(
    mapping: &FileMapping,
    all: impl Iterator<Item = Range<u64>>,
    pages: Pages,
    deadline: Option<Instant>,
) -> bool {
    for page in all {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        let _unreadable = mapping.populate(&(page.start..page.start + pages.base.bytes()));
    }
    true
}

/// Collapses a huge page by `collapse`, with three tries: somebody may hold one of its base pages for a moment.
pub(crate) fn try_thrice(
    mut collapse: impl FnMut() -> Result<(), SysError>,
) -> Result<(), SysError> {
    let mut done = collapse();
    for _ in 0..2 {
        if done.is_err_and(|error| error.errno == Errno::AGAIN) {
            done = collapse();
        }
    }
    done
}

/// The result of collapsing small folios.
struct Collapsed {
    /// True if any became huge.
    any: bool,
    /// True if the deadline left time for all.
    in_time: bool,
}

/// Has the kernel collapse the cached small folios into huge ones, where it can.
fn collapse(
    mapping: &FileMapping,
    small: &[Range<u64>],
    pages: Pages,
    deadline: Option<Instant>,
) -> Collapsed {
    let mut collapsed = Collapsed { any: false, in_time: true };
    for page in small {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            collapsed.in_time = false;
            break;
        }
        match try_thrice(|| mapping.collapse(page)) {
            Ok(()) => {
                touch(mapping, std::iter::once(page.clone()), pages, None);
                collapsed.any = true;
            }
            // The kernel cannot do it for this file.
            Err(error) if error.errno == Errno::INVAL => break,
            Err(_passing) => {}
        }
    }
    collapsed
}

/// Merges ranges that adjoin.
fn runs(chunks: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    for chunk in chunks {
        push(&mut runs, chunk.clone());
    }
    runs
}

fn push(parts: &mut Vec<Range<u64>>, part: Range<u64>) {
    match parts.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => parts.push(part),
    }
}

pub(crate) fn huge_pages(
    run: &Range<u64>,
    pages: Pages,
) -> impl Iterator<Item = Range<u64>> + use<> {
    let pmd = pages.pmd.bytes();
    let start = run.start;
    (0..(run.end - run.start) / pmd).map(move |index| {
        let start = start + index * pmd;
        start..start + pmd
    })
}

pub(crate) fn total(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

fn missing(run: &Range<u64>, huge: &[Range<u64>], pages: Pages) -> Vec<Range<u64>> {
    let is_huge = |page: &Range<u64>| {
        huge.iter().any(|part| part.start <= page.start && page.end <= part.end)
    };
    huge_pages(run, pages).filter(|page| !is_huge(page)).collect()
}
