//! `/proc/PID/pagemap`: one 64-bit word per base page (`Documentation/admin-guide/mm/pagemap.rst`).

use crate::addr::{AddrRange, PageSize, Pages};

/// The page is in memory.
const PRESENT: u64 = 1 << 63;
/// The page is swapped out.
const SWAPPED: u64 = 1 << 62;
/// The page is a file's, or shared anonymous memory.
const FILE: u64 = 1 << 61;

/// The page is a guard: an access to it causes SIGSEGV (`MADV_GUARD_INSTALL`). Since Linux 6.15.
const GUARD: u64 = 1 << 58;

/// Returns whether the word is of a page that is in memory.
pub const fn is_present(word: u64) -> bool {
    word & PRESENT != 0
}

/// Returns whether the word is of a guard inside a mapping, as glibc 2.42 and newer put below stacks.
pub const fn is_guard(word: u64) -> bool {
    word & GUARD != 0
}

/// Returns whether the word is of a private page that was written to: in a file's mapping, a copy that
/// no longer matches the file.
pub const fn is_modified(word: u64) -> bool {
    word & (PRESENT | SWAPPED) != 0 && word & FILE == 0
}

/// Returns the pages of size `page` of `range` (which begins and ends on one) in which a base page was
/// written to. `words` are the pagemap's entries of the range, in order. If `words` is too short, the
/// base pages that have no entry count as not written to.
pub fn modified_pages(
    range: AddrRange,
    words: &[u64],
    page: PageSize,
    base: PageSize,
) -> Vec<AddrRange> {
    let each = usize::try_from(page.bytes() / base.bytes()).unwrap_or(usize::MAX).max(1);
    words
        .chunks(each)
        .enumerate()
        .filter(|(_, words)| words.iter().any(|&word| is_modified(word)))
        .filter_map(|(index, _)| {
            let start = range.start().checked_add(index as u64 * page.bytes())?;
            AddrRange::with_len(start, page.bytes())
        })
        .collect()
}

/// Returns the huge pages of `range` (which begins and ends on one) of which at least half the base
/// pages are in memory; `words` are the range's, in order.
pub fn populated_huge_pages(range: AddrRange, words: &[u64], pages: Pages) -> Vec<AddrRange> {
    let per_huge = usize::try_from(pages.pmd.bytes() / pages.base.bytes()).unwrap_or(usize::MAX);
    let huge_pages = words.chunks(per_huge).enumerate();
    huge_pages
        .filter(|(_, words)| {
            words.iter().filter(|&&word| word & PRESENT != 0).count() >= per_huge.div_ceil(2)
        })
        .filter_map(|(index, _)| {
            let start = range.start().checked_add(index as u64 * pages.pmd.bytes())?;
            AddrRange::with_len(start, pages.pmd.bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::RemoteAddr;

    #[test]
    fn a_private_page_in_memory_or_swapped_is_a_modified_one() {
        assert!(is_modified(PRESENT) && is_modified(SWAPPED | 5));
        assert!(is_guard(GUARD) && !is_guard(!GUARD) && !is_modified(GUARD));
        assert!(!is_modified(0) && !is_modified(PRESENT | FILE) && !is_modified(FILE));
    }

    #[test]
    fn the_page_that_holds_it_is_named() {
        let (base, pmd) = (PageSize::new(4 << 10).unwrap(), PageSize::new(2 << 20).unwrap());
        let range = AddrRange::with_len(RemoteAddr::new(0x40_0000), 6 << 20).unwrap();
        let mut words = vec![PRESENT | FILE; 3 * 512];
        words[512 + 7] = PRESENT;
        let found = modified_pages(range, &words, pmd, base);
        assert_eq!(found, [AddrRange::with_len(RemoteAddr::new(0x60_0000), 2 << 20).unwrap()]);
        let found = modified_pages(range, &words, base, base);
        assert_eq!(found, [AddrRange::with_len(RemoteAddr::new(0x60_7000), 4 << 10).unwrap()]);
        assert_eq!(modified_pages(range, &[], pmd, base), []);
    }

    #[test]
    fn half_of_a_huge_page_is_enough() {
        let pages =
            Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
        let range = AddrRange::with_len(RemoteAddr::new(0x40_0000), 4 << 20).unwrap();
        let mut words = vec![PRESENT; 255];
        words.resize(512, 0);
        words.extend(vec![PRESENT; 256]);
        words.resize(1024, SWAPPED);
        let found = populated_huge_pages(range, &words, pages);
        assert_eq!(found, [AddrRange::with_len(RemoteAddr::new(0x60_0000), 2 << 20).unwrap()]);
        assert_eq!(populated_huge_pages(range, &[], pages), []);
    }
}
