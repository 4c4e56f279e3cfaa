//! `tiexecctl warm`: brings a file's text into huge folios of its page cache, and evicts it first if needed.
//!
//! It evicts one huge page's worth at a time and reads it back at once, and only if the kernel says that nobody
//! writes to the file and nobody has that part mapped. The first part that does not become huge ends the evicting.
//! The rest is brought in only where that evicts nothing.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use tiexec_core::addr::Pages;
use tiexec_core::coverage::Rest;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::compaction;
use tiexec_sys::pagecache::{cache_state, evict, is_open_for_writing};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, SysError};
use tiexec_tracee::Failure;

use crate::pagecache::{ChunkState, bring, huge_pages, map, state, total, unmapped, unseen};
use crate::users;

/// How much of a file's text is in huge folios that a mapping of the text can map by PMD entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Warmth {
    /// Bytes of text.
    pub text_bytes: u64,
    /// Bytes of the text in such folios.
    pub huge_bytes: u64,
    /// Why the other bytes are not in them. The parts add up to the difference.
    pub rest: Vec<Rest>,
    /// The failure that ended the evicting.
    pub obstacle: Option<Failure>,
}

impl Warmth {
    /// Returns how many bytes could be in huge folios and are not.
    pub fn missing(&self) -> u64 {
        let inevitable =
            |rest: &&Rest| rest.reason != SkipReason::Edges && rest.reason != SkipReason::TooSmall;
        self.rest.iter().filter(inevitable).map(|rest| rest.bytes).sum()
    }
}

/// Returns the present state of `text` of the file (file ranges in bytes, whole base pages, ascending, apart).
/// Reads nothing from the disk and evicts nothing.
///
/// # Errors
/// The file cannot be mapped, or `/proc/self` cannot be read.
pub fn look(file: &File, text: &[Range<u64>], pages: Pages) -> Result<Warmth, Failure> {
    let states = state(file, &interiors(text, pages), pages)?;
    Ok(weigh(text, &states, None, pages))
}

/// Brings the `text` of the file (as for [`look`]) into huge folios. Calls `progress` with the number of bytes
/// treated so far.
///
/// # Errors
/// As [`look`]. The page cache holds at least as much as before.
pub fn warm(
    file: &File,
    text: &[Range<u64>],
    pages: Pages,
    mut progress: impl FnMut(u64),
) -> Result<Warmth, Failure> {
    let interiors = interiors(text, pages);
    let mut states = state(file, &interiors, pages)?;
    let untold = states.iter().any(|(_, state)| *state == ChunkState::Untold);
    let mut evictor = Evictor {
        file,
        pages,
        seen_huge: false,
        obstacle: None,
        asked: false,
        patience: Patience::default(),
    };
    for (index, (chunk, state)) in states.iter_mut().enumerate() {
        progress(index as u64 * pages.pmd.bytes());
        if *state != ChunkState::Huge && evictor.warm(chunk, *state)? {
            *state = ChunkState::Huge;
        }
        evictor.seen_huge |= *state == ChunkState::Huge;
    }
    // No mapping of the text maps the edges by PMD entries. In large folios they are still read faster, and take
    // fewer faults.
    for edge in edges(text, pages) {
        let _not_text = bring(file, &[edge], pages, None);
    }
    let obstacle = evictor.obstacle;
    if untold {
        return Ok(weigh(text, &states, obstacle, pages));
    }
    // Report the state that the kernel shows now, not the steps that were taken.
    Ok(weigh(text, &self::state(file, &interiors, pages)?, obstacle, pages))
}

/// Brings the text of a program's file into huge folios. Returns how many bytes are in such folios then.
///
/// # Errors
/// As [`warm`]; `foreign_image` if the file is not a program; `thp_unsupported`.
pub fn warm_program(file: &File) -> Result<u64, Failure> {
    let pages = tiexec_sys::thp::pages().ok_or_else(|| {
        Failure::new(FailureKind::ThpUnsupported, "the kernel has no transparent huge pages")
    })?;
    let (_, facts) = crate::elf_file::elf_facts(file)?;
    let warmed = warm(file, &facts.text_parts(pages.base), pages, |_| {})?;
    match warmed.obstacle {
        Some(obstacle) if warmed.huge_bytes == 0 => Err(obstacle),
        _ => Ok(warmed.huge_bytes),
    }
}

/// Evicts parts and reads them back, until an obstacle ends it.
struct Evictor<'a> {
    file: &'a File,
    pages: Pages,
    /// True if a part of the file is in a huge folio.
    seen_huge: bool,
    obstacle: Option<Failure>,
    /// True once the file system and the file's unwritten pages have been checked.
    asked: bool,
    /// The rest of the time to wait for fragmented memory.
    patience: Patience,
}

/// Waits for fragmented memory. The kernel compacts it within seconds.
#[derive(Default)]
struct Patience {
    /// The total of all waits, for all parts of the file.
    waited: Duration,
    /// The next wait.
    next: Duration,
    /// True once all memory was compacted.
    compacted: bool,
}

impl Patience {
    const FIRST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(5);
    /// After this total, root has the kernel compact all memory.
    const COMPACT_AFTER: Duration = Duration::from_millis(600);

    /// Waits, each time twice as long, and has the kernel free a huge page. Returns false if the time is used up.
    fn wait(&mut self, pages: Pages) -> bool {
        if self.waited >= Self::LONGEST {
            return false;
        }
        self.next = (2 * self.next).max(Self::FIRST);
        std::thread::sleep(self.next);
        self.waited += self.next;
        if self.waited >= Self::COMPACT_AFTER && !self.compacted {
            self.compacted = true;
            let _not_root = compaction::compact_all();
        }
        let _still_fragmented = compaction::free_one(pages.pmd);
        true
    }

    /// Makes the next wait short again.
    const fn succeeded(&mut self) {
        self.next = Duration::ZERO;
    }
}

impl Evictor<'_> {
    /// Makes one chunk huge. Returns whether it is.
    fn warm(&mut self, chunk: &Range<u64>, state: ChunkState) -> Result<bool, Failure> {
        if self.becomes_huge(chunk)? {
            return Ok(true);
        }
        if state == ChunkState::Untold {
            self.obstacle.get_or_insert_with(|| not_owner("mincore"));
        }
        if self.obstacle.is_some() {
            return Ok(false);
        }
        match self.evict_and_read(chunk)? {
            Ok(()) => Ok(true),
            Err(obstacle) => {
                self.obstacle = Some(obstacle);
                Ok(false)
            }
        }
    }

    /// Tries to make the chunk huge without evicting anything.
    fn becomes_huge(&self, chunk: &Range<u64>) -> Result<bool, Failure> {
        let prepared = bring(self.file, std::slice::from_ref(chunk), self.pages, None)?;
        Ok(total(&prepared.huge) == chunk.end - chunk.start)
    }

    fn evict_and_read(&mut self, chunk: &Range<u64>) -> Result<Result<(), Failure>, Failure> {
        if let Err(obstacle) = self.may_evict(chunk) {
            return Ok(Err(obstacle));
        }
        if let Some(users) = self.users(chunk)? {
            return Ok(Err(Failure::new(FailureKind::InUse, format!("{users} it mapped"))));
        }
        let mut tries = 0;
        loop {
            evict(self.file, chunk).map_err(unmapped)?;
            let mapping = map(self.file, chunk, self.pages)?;
            if !mapping.cached_parts(chunk, self.pages.base).map_err(unseen)?.is_empty() {
                // A page that was just read is on a list of its processor for a moment, from which nothing evicts
                // it.
                if tries > 0 && self.patience.wait(self.pages) {
                    continue;
                }
                let _unreadable = mapping.populate(chunk);
                // On overlayfs, cachestat(2) does not count the pages that must be written back.
                let detail =
                    "it cannot be evicted: just mapped, locked in memory, or not written back";
                return Ok(Err(Failure::new(FailureKind::InUse, detail)));
            }
            if self.becomes_huge(chunk)? {
                self.patience.succeeded();
                return Ok(Ok(()));
            }
            tries += 1;
            if !self.may_be_fragmentation(tries) || !self.patience.wait(self.pages) {
                let _unreadable = mapping.populate(chunk);
                return Ok(Err(self.came_back_small()));
            }
        }
    }

    /// Returns whether a part that came in small folios may come in a huge one once memory is less fragmented. If
    /// no part of the file was ever huge, its file system may have no large folios. The part is then tried twice,
    /// or as long as few huge pages are free.
    fn may_be_fragmentation(&self, tries: u32) -> bool {
        /// As many huge pages as other users of memory may take between two attempts.
        const FEW: u64 = 16;
        self.seen_huge
            || tries < 2
            || compaction::free_huge_pages(self.pages).is_some_and(|free| free < FEW)
    }

    /// Checks whether anything forbids evicting the chunk.
    fn may_evict(&mut self, chunk: &Range<u64>) -> Result<(), Failure> {
        if !self.asked {
            let file_system = file_system(self.file);
            if matches!(file_system.as_deref(), Some("tmpfs" | "ramfs" | "devtmpfs")) {
                let detail = "the kernel makes no huge page of it now: memory may be fragmented";
                return Err(Failure::new(FailureKind::NoHugePage, detail));
            }
            self.clean(&(0..0))?;
            self.asked = true;
        }
        match is_open_for_writing(self.file) {
            Ok(false) => {}
            Ok(true) => {
                let writers = users::writers(self.file);
                let detail = format!("{writers} the file open for writing");
                return Err(Failure::new(FailureKind::OpenForWriting, detail));
            }
            Err(error) => return Err(unknown(error)),
        }
        self.clean(chunk)
    }

    fn clean(&self, part: &Range<u64>) -> Result<(), Failure> {
        let state = cache_state(self.file, part).map_err(unknown)?;
        if state.dirty + state.writeback > 0 {
            let detail = "parts of it are not written back to the disk yet";
            return Err(Failure::new(FailureKind::DirtyFile, detail));
        }
        Ok(())
    }

    /// Returns, in words, who else has a page of the chunk mapped; `None` if nobody has.
    fn users(&self, chunk: &Range<u64>) -> Result<Option<String>, Failure> {
        let mapping = map(self.file, chunk, self.pages)?;
        mapping.advise_random().map_err(unmapped)?;
        for cached in mapping.cached_parts(chunk, self.pages.base).map_err(unseen)? {
            let _unreadable = mapping.populate(&cached);
        }
        let is_mapped = mapping.is_mapped_elsewhere(chunk, self.pages.base).map_err(unseen)?;
        Ok(is_mapped.then(|| users::mappers(&mapping, chunk)))
    }

    fn came_back_small(&self) -> Failure {
        if self.seen_huge {
            let detail = "a part read anew came in small folios: memory is fragmented";
            return Failure::new(FailureKind::NoHugePage, detail);
        }
        let name = file_system(self.file).unwrap_or_else(|| "its file system".to_owned());
        let detail = format!(
            "{name} read it in small folios: it has no large ones here, or memory is fragmented; \
             tiexec makes a copy instead"
        );
        Failure::new(FailureKind::NoLargeFolios, detail)
    }
}

fn not_owner(call: &str) -> Failure {
    let detail = format!(
        "nothing was evicted: {call} serves only the file's owner and those who may write to it"
    );
    Failure::new(SkipReason::NotOwner, detail)
}

/// Returns the failure for a fact that the kernel does not tell, and without which nothing may be evicted.
fn unknown(error: SysError) -> Failure {
    match error.errno {
        Errno::PERM | Errno::ACCES => not_owner(error.call),
        _ => Failure::of(SkipReason::SmallFolios)(error).about("nothing was evicted"),
    }
}

/// Returns the type of the file system as mounted, such as `ext4`.
fn file_system(file: &File) -> Option<String> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let id = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id.to_string();
    let mounts = ProcDir::this_process().and_then(|process| process.read("mountinfo")).ok()?;
    let mounts = String::from_utf8_lossy(&mounts).into_owned();
    // "36 35 98:0 /root /point options optional… - type source options" (proc_pid_mountinfo(5)).
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let (_, after) = line.split_once(" - ")?;
    after.split(' ').next().map(str::to_owned)
}

/// Returns the whole huge pages inside each part of the text.
fn interiors(text: &[Range<u64>], pages: Pages) -> Vec<Range<u64>> {
    let pmd = pages.pmd.bytes();
    text.iter()
        .filter_map(|part| {
            let start = part.start.checked_next_multiple_of(pmd)?;
            let end = part.end - part.end % pmd;
            (start < end).then_some(start..end)
        })
        .collect()
}

/// Returns the huge pages that text shares with other contents.
fn edges(text: &[Range<u64>], pages: Pages) -> Vec<Range<u64>> {
    let pmd = pages.pmd.bytes();
    let mut edges: Vec<Range<u64>> = text
        .iter()
        .filter_map(|part| {
            let end = part.end.checked_next_multiple_of(pmd)?;
            Some((part.start - part.start % pmd)..end)
        })
        .flat_map(|around| huge_pages(&around, pages))
        .filter(|chunk| !text.iter().any(|part| part.start <= chunk.start && chunk.end <= part.end))
        .collect();
    edges.dedup();
    edges
}

/// Adds up the huge text, and the reasons why the rest is not huge.
fn weigh(
    text: &[Range<u64>],
    states: &[(Range<u64>, ChunkState)],
    obstacle: Option<Failure>,
    pages: Pages,
) -> Warmth {
    let text_bytes = total(text);
    let interior = states.len() as u64 * pages.pmd.bytes();
    let mut warmth = Warmth { text_bytes, obstacle, ..Warmth::default() };
    let outside = if interior == 0 { SkipReason::TooSmall } else { SkipReason::Edges };
    let mut add = |reason: Reason, bytes: u64| match warmth
        .rest
        .iter_mut()
        .find(|rest| rest.reason == reason)
    {
        Some(rest) => rest.bytes += bytes,
        None if bytes > 0 => warmth.rest.push(Rest { reason, bytes }),
        None => {}
    };
    add(outside.into(), text_bytes - interior);
    let why = warmth.obstacle.as_ref().map(|obstacle| obstacle.reason);
    for (_, state) in states {
        match state {
            ChunkState::Huge => warmth.huge_bytes += pages.pmd.bytes(),
            ChunkState::Small => {
                add(why.unwrap_or(SkipReason::SmallFolios.into()), pages.pmd.bytes())
            }
            ChunkState::Absent => {
                add(why.unwrap_or(SkipReason::NotCached.into()), pages.pmd.bytes())
            }
            ChunkState::Untold => add(SkipReason::NotOwner.into(), pages.pmd.bytes()),
        }
    }
    warmth
}

#[cfg(test)]
mod tests {
    use tiexec_core::addr::PageSize;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn pages() -> Pages {
        Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 * MIB).unwrap() }
    }

    #[test]
    fn interiors_and_edges_share_nothing() {
        // The seed's example, and a small second segment in the same last huge page.
        let text = [0x1f_f000..0x81_0000, 0x82_0000..0x82_1000];
        assert_eq!(interiors(&text, pages()), vec![0x20_0000..0x80_0000; 1]);
        assert_eq!(edges(&text, pages()), [0..0x20_0000, 0x80_0000..0xa0_0000]);
        assert_eq!(interiors(&[], pages()), []);
    }

    #[test]
    fn the_rest_adds_up() {
        let text = vec![MIB..9 * MIB; 1];
        let chunk = |at: u64, state| (2 * at * MIB..2 * (at + 1) * MIB, state);
        let states =
            [chunk(1, ChunkState::Huge), chunk(2, ChunkState::Small), chunk(3, ChunkState::Absent)];
        let warmth = weigh(&text, &states, None, pages());
        let rest = |reason, mib: u64| Rest { reason, bytes: mib * MIB };
        assert_eq!((warmth.text_bytes, warmth.huge_bytes), (8 * MIB, 2 * MIB));
        let reasons = [SkipReason::Edges, SkipReason::SmallFolios, SkipReason::NotCached];
        assert_eq!(warmth.rest, reasons.map(|reason| rest(reason.into(), 2)));
        assert_eq!(warmth.missing(), 4 * MIB);
        let obstacle = Failure::new(FailureKind::InUse, "in use");
        let warmth = weigh(&text, &states, Some(obstacle), pages());
        assert_eq!(
            warmth.rest,
            [rest(SkipReason::Edges.into(), 2), rest(FailureKind::InUse.into(), 4)]
        );
        let small = weigh(std::slice::from_ref(&(0..MIB)), &[], None, pages());
        assert_eq!((small.missing(), small.rest), (0, vec![rest(SkipReason::TooSmall.into(), 1)]));
    }
}
