//! Tells, by a running process's pagemap, which pages of its text were written to.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::proc::pagemap::{modified_pages, populated_huge_pages};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::pagemap_scan;

use tiexec_tracee::Failure;

/// The pagemap of an address space, opened once.
#[derive(Debug)]
pub(crate) struct Written {
    pagemap: File,
    pages: Pages,
}

impl Written {
    /// Opens the pagemap of `space` once more.
    ///
    /// # Errors
    /// `proc_unavailable`: this process has no descriptor free.
    pub(crate) fn of(space: &AddressSpace, pages: Pages) -> Result<Self, Failure> {
        let copied = space.pagemap().try_clone();
        let pagemap = copied.map_err(Failure::of(FailureKind::ProcUnavailable))?;
        Ok(Self { pagemap, pages })
    }

    /// Returns the huge pages of `range`, which begins and ends on one, that were written to.
    ///
    /// # Errors
    /// `proc_unavailable`, also once the process has ended.
    pub(crate) fn huge_pages(&self, range: AddrRange) -> Result<Vec<AddrRange>, Failure> {
        match pagemap_scan::written(&self.pagemap, range) {
            Ok(found) => Ok(huge_pages_of(&found, self.pages.pmd)),
            // Before Linux 6.7, read all words: 4 KiB for each huge page.
            Err(_) => self.pages_of(range, self.pages.pmd),
        }
    }

    /// Returns the base pages of `range` that were written to, neighbours together.
    ///
    /// # Errors
    /// As [`huge_pages`](Self::huge_pages).
    pub(crate) fn base_pages(&self, range: AddrRange) -> Result<Vec<AddrRange>, Failure> {
        match pagemap_scan::written(&self.pagemap, range) {
            Ok(found) => Ok(found),
            Err(_) => self.pages_of(range, self.pages.base),
        }
    }

    /// Makes sure that nothing of `range` was written to.
    ///
    /// # Errors
    /// `modified_text`; as [`huge_pages`](Self::huge_pages).
    pub(crate) fn none(&self, range: AddrRange) -> Result<(), Failure> {
        match self.base_pages(range)?.first() {
            None => Ok(()),
            Some(page) => {
                let what = format!("{:?} was written to meanwhile", page.start());
                Err(Failure::new(SkipReason::ModifiedText, what))
            }
        }
    }

    fn pages_of(&self, range: AddrRange, page: PageSize) -> Result<Vec<AddrRange>, Failure> {
        self.in_pieces(range, |piece, words| modified_pages(piece, words, page, self.pages.base))
    }

    /// Returns the huge pages of `range`, which begins and ends on one, of which at least half is in memory.
    ///
    /// # Errors
    /// As [`huge_pages`](Self::huge_pages).
    pub(super) fn populated(&self, range: AddrRange) -> Result<Vec<AddrRange>, Failure> {
        self.in_pieces(range, |piece, words| populated_huge_pages(piece, words, self.pages))
    }

    /// Has `find` examine the words of `range` in pieces of whole huge pages. A mapping may have any length, so its
    /// words are not held in memory all at once.
    fn in_pieces(
        &self,
        range: AddrRange,
        find: impl Fn(AddrRange, &[u64]) -> Vec<AddrRange>,
    ) -> Result<Vec<AddrRange>, Failure> {
        const PIECE: u64 = 512 << 20;
        let mut found = Vec::new();
        let mut rest = Some(range);
        while let Some(left) = rest.filter(|left| !left.is_empty()) {
            let len = left.len().min(PIECE.max(self.pages.pmd.bytes()));
            let Some(piece) = AddrRange::with_len(left.start(), len) else { break };
            found.extend(find(piece, &self.words(piece)?));
            rest = AddrRange::new(piece.end(), left.end());
        }
        Ok(found)
    }

    /// Returns the pagemap's words of `range`, one for each base page.
    ///
    /// # Errors
    /// As [`huge_pages`](Self::huge_pages).
    fn words(&self, range: AddrRange) -> Result<Vec<u64>, Failure> {
        const WORD: u64 = 8;
        let base = self.pages.base;
        let at = range.start().get() / base.bytes() * WORD;
        let count = range.len() / base.bytes();
        let unread = FailureKind::ProcUnavailable;
        let len = usize::try_from(count * WORD).map_err(Failure::of(unread))?;
        let mut bytes = vec![0; len];
        self.pagemap.read_exact_at(&mut bytes, at).map_err(Failure::of(unread))?;
        let words = bytes.chunks_exact(WORD as usize);
        Ok(words.filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes)).collect())
    }
}

/// Returns the huge pages in which the ranges lie, each once. The ranges are in ascending order.
fn huge_pages_of(ranges: &[AddrRange], pmd: PageSize) -> Vec<AddrRange> {
    let mut pages: Vec<AddrRange> = Vec::new();
    for around in ranges.iter().filter_map(|range| range.align_outward(pmd)) {
        let known = pages.last().map_or(around.start(), |last| last.end().max(around.start()));
        let starts = (known.get()..around.end().get()).step_by(pmd.bytes() as usize);
        let page = |start| AddrRange::with_len(RemoteAddr::new(start), pmd.bytes());
        pages.extend(starts.filter_map(page));
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_with_several_ranges_counts_once() {
        let pmd = PageSize::new(0x20_0000).expect("a power of two");
        let range = |start: u64, end: u64| {
            AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).expect("ascending")
        };
        let found = [
            range(0x20_1000, 0x20_2000),
            range(0x20_5000, 0x20_6000),
            range(0x3f_f000, 0x60_1000),
            range(0xa0_0000, 0xa0_1000),
        ];
        let starts = |pages: Vec<AddrRange>| -> Vec<u64> {
            pages.iter().map(|page| page.start().get()).collect()
        };
        assert_eq!(
            starts(huge_pages_of(&found, pmd)),
            [0x20_0000, 0x40_0000, 0x60_0000, 0xa0_0000]
        );
        assert_eq!(huge_pages_of(&[], pmd), []);
    }
}
