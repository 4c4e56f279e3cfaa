//! The huge pages at the beginning and the end of a text that the text only partly fills.

use std::ops::Range;

use crate::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use crate::config::EdgePolicy;
use crate::file_ranges::Parts;
use crate::order;

/// Returns the huge pages that a range meets without filling them: none, one or two.
pub(crate) fn ragged(range: AddrRange, huge: PageSize) -> Vec<AddrRange> {
    let page = |at: RemoteAddr| AddrRange::with_len(at.align_down(huge), huge.bytes());
    let Some(last) = range.end().checked_sub(1).filter(|_| !range.is_empty()) else {
        return Vec::new();
    };
    let mut pages: Vec<AddrRange> =
        [page(range.start()), page(last)].into_iter().flatten().collect();
    pages.dedup();
    pages.retain(|page| !range.covers(*page));
    pages
}

/// Returns the file offset of the huge page if the page cache holds it as one folio, and everything
/// mapped there comes from its own place in that folio.
pub(crate) fn by_pagecache(page: AddrRange, parts: &Parts, folios: &[Range<u64>]) -> Option<u64> {
    let mut here = parts.within(page);
    let offset = here.next()?.offset_at(page.start());
    let end = offset.checked_add(page.len())?;
    let all = here.all(|part| part.offset_at(page.start()) == offset);
    let aligned = offset & (page.len() - 1) == 0;
    let cached = folios.iter().any(|folio| folio.start <= offset && end <= folio.end);
    (all && aligned && cached).then_some(offset)
}

/// Returns the file ranges, one huge page each, of the ragged edges of these parts that the page cache
/// could hold, in a file of `file_len` bytes: those that may be taken, as far as the headers say.
pub fn edge_chunks(
    parts: &Parts,
    policy: EdgePolicy,
    pages: Pages,
    file_len: u64,
) -> Vec<Range<u64>> {
    let wanted = parts.is_certain() && policy.is_for(parts.all_text_bytes(), pages.pmd);
    let mut chunks: Vec<Range<u64>> = parts
        .texts()
        .filter(|_| wanted)
        .flat_map(|part| ragged(part.range, pages.pmd))
        .filter(|&page| !parts.is_closed(page))
        .filter(|&page| parts.text_bytes(page) >= policy.least_in_page())
        .filter_map(|page| {
            let offset = parts.within(page).next()?.offset_at(page.start());
            let end = offset.checked_add(page.len())?;
            let whole = std::iter::once(offset..end);
            by_pagecache(page, parts, &whole.collect::<Vec<_>>())?;
            (end <= file_len).then_some(offset..end)
        })
        .collect();
    order::by_key(&mut chunks, |chunk| chunk.start);
    chunks.dedup();
    chunks
}
