//! `tiexecctl warm`: brings a file's text into huge folios of its page cache, and evicts it first if needed.
//!
//! The first part that does not become huge ends the evicting. The rest is brought in only where that evicts nothing.

use std::fs::File;
use std::ops::Range;

use tiexec_core::addr::Pages;
use tiexec_core::coverage::Rest;
use tiexec_core::skip::{Reason, SkipReason};
use tiexec_tracee::Failure;

use crate::evict::{Asker, Evictor, not_owner};
use crate::pagecache::{ChunkState, Small, bring, huge_pages, state, total};
use crate::policy;

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
    let mut evictor = Evictor::new(file, pages, Asker::Command);
    let mut obstacle = None;
    for (index, (chunk, state)) in states.iter_mut().enumerate() {
        progress(index as u64 * pages.pmd.bytes());
        if *state != ChunkState::Huge {
            if evictor.becomes_huge(chunk)? {
                *state = ChunkState::Huge;
            } else if *state == ChunkState::Untold {
                obstacle.get_or_insert_with(|| not_owner("mincore"));
            } else if obstacle.is_none() {
                match evictor.evict_and_read(chunk)? {
                    Ok(()) => *state = ChunkState::Huge,
                    Err(failure) => obstacle = Some(failure),
                }
            }
        }
        evictor.seen_huge |= *state == ChunkState::Huge;
    }
    // No mapping of the text maps the edges by PMD entries. In large folios they are still read faster, and take
    // fewer faults.
    for edge in edges(text, pages) {
        let _not_text = bring(file, &[edge], pages, Small::Collapse, None);
    }
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
    let pages = policy::pages()?;
    let (_, facts) = crate::elf_file::elf_facts(file)?;
    let warmed = warm(file, &facts.text_parts(pages.base), pages, |_| {})?;
    match warmed.obstacle {
        Some(obstacle) if warmed.huge_bytes == 0 => Err(obstacle),
        _ => Ok(warmed.huge_bytes),
    }
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

    use tiexec_core::skip::FailureKind;

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
