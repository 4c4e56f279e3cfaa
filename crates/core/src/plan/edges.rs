//! The ragged edges: huge pages that hold text and something else beside it.
//!
//! ```text
//!      huge page            huge page            huge page            huge page
//!  |····rrrrrrtttttttttt|tttttttttttttttttttt|ttttttrrrrrrrrr·····|·····wwww···········|
//!       head: may be taken                     tail: may be taken   never
//! ```
//!
//! t text, r read-only data of the same file, · nothing, w anything else. A taken huge page becomes
//! executable as a whole: beside text it holds the file's own bytes, or filler that traps.

use std::ops::Range;

use super::{Backing, Span, TextPlan};
use crate::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use crate::config::EdgePolicy;
use crate::file_ranges::{Parts, covered, in_range};
use crate::order;
use crate::proc::maps::Vma;
use crate::ragged::{by_pagecache, ragged};

/// Addresses at which nothing may be mapped beside a text. An edge with a gap there is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserved(Vec<AddrRange>);

impl Reserved {
    /// Finds the reserved addresses. `vmas` are in address order.
    ///
    /// - The bottom and the top of the address space.
    /// - The addresses into which the heap will grow, from `start_brk` on (as in `/proc/PID/stat`; if
    ///   it is not known, every gap could be these).
    /// - The gap below the stack.
    ///
    /// These are enough if the program has one thread, which has not run yet. In a running process, all addresses are
    /// [reserved](Self::everything).
    pub fn find(vmas: &[Vma], start_brk: Option<u64>, pages: Pages) -> Self {
        let Some(start_brk) = start_brk.filter(|&start| start != 0) else {
            return Self::everything();
        };
        let start_brk = RemoteAddr::new(start_brk);
        // Ignore the kernel's own area at the top of the address space.
        let below_top = |vma: &&Vma| vma.range.start().get() < 1 << 63;
        let user: Vec<AddrRange> = vmas.iter().filter(below_top).map(|vma| vma.range).collect();
        let Some(last) = user.last() else { return Self::everything() };
        let mut found = vec![
            AddrRange::with_len(RemoteAddr::new(0), pages.pmd.bytes()),
            AddrRange::new(last.end(), RemoteAddr::new(u64::MAX)),
        ];
        let mut heap_end = start_brk.align_up(pages.base).unwrap_or(start_brk);
        for range in &user {
            if range.start() <= heap_end && heap_end < range.end() {
                heap_end = range.end();
            }
        }
        // A program may have unmapped a part of its heap.
        let heaps = vmas.iter().filter(|vma| vma.name == b"[heap]").map(|vma| vma.range.end());
        heap_end = heaps.max().unwrap_or(heap_end).max(heap_end);
        let next = user.iter().find(|range| range.start() >= heap_end);
        let next = next.map_or(RemoteAddr::new(u64::MAX), |range| range.start());
        found.push(AddrRange::new(start_brk.align_down(pages.base), next));
        for pair in vmas.windows(2).filter(|pair| pair[1].name == b"[stack]") {
            found.push(AddrRange::new(pair[0].range.end(), pair[1].range.start()));
        }
        Self(found.into_iter().flatten().collect())
    }

    /// Reserves all addresses. A thread of a running process may map something in any gap at any moment, so only edges
    /// without gaps are taken there.
    pub fn everything() -> Self {
        Self(AddrRange::new(RemoteAddr::new(0), RemoteAddr::new(u64::MAX)).into_iter().collect())
    }

    fn overlaps(&self, range: AddrRange) -> bool {
        self.0.iter().any(|reserved| reserved.overlaps(range))
    }
}

/// The surroundings of a text.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// The page sizes.
    pub pages: Pages,
    /// The choice of edges.
    pub policy: EdgePolicy,
    /// All VMAs, in address order.
    pub vmas: &'a [Vma],
    /// The gaps that a huge page may not cover, because somebody else could map something there.
    pub reserved: &'a Reserved,
}

/// The huge page of a text's edge, if it may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Edge {
    page: AddrRange,
    /// Bytes of text in it.
    text: u64,
}

/// Adds to a text's plan the huge pages at its edges that may be taken, and subtracts their text from
/// its rest. `parts` are those of its file; `kept` are ranges with pages that must stay; `taken` are
/// pages that an earlier text's plan has, and that are not taken again.
pub(super) fn take(
    text: &mut TextPlan,
    around: &Around<'_>,
    parts: &Parts,
    folios: &[Range<u64>],
    copy: Option<Backing>,
    kept: impl Fn(AddrRange) -> bool,
    taken: &mut Vec<AddrRange>,
) {
    if !parts.is_certain() || !around.policy.is_for(parts.all_text_bytes(), around.pages.pmd) {
        return;
    }
    let mut text_taken = 0;
    for page in ragged(text.vma.range, around.pages.pmd) {
        let here = text.vma.range.intersection(page).map_or(0, AddrRange::len);
        if taken.contains(&page) {
            text_taken += here;
            continue;
        }
        if kept(page) {
            continue;
        }
        let Some(edge) = edge(page, around, parts) else { continue };
        let cached = by_pagecache(page, parts, folios);
        let backing = if cached.is_some() { Some(Backing::Pagecache) } else { copy };
        let (Some(backing), Some(first)) = (backing, parts.within(page).next()) else { continue };
        text.spans.push(Span {
            range: page,
            file_offset: cached.unwrap_or(first.file_offset),
            backing,
            widened_bytes: page.len().saturating_sub(edge.text),
            edge: true,
        });
        text_taken += here;
        taken.push(page);
    }
    order::by_key(&mut text.spans, |span| span.range.start());
    text.take_off_rest(text_taken);
}

/// Decides whether a huge page may be taken.
fn edge(page: AddrRange, around: &Around<'_>, parts: &Parts) -> Option<Edge> {
    let text = parts.text_bytes(page);
    if text < around.policy.least_in_page()
        || parts.is_closed(page)
        || parts.gaps(page).into_iter().any(|gap| around.reserved.overlaps(gap))
    {
        return None;
    }
    // The mappings there must be the file's, as its headers describe them, and none may be missing.
    let mut here = in_range(around.vmas, page);
    let file = { here.clone() }.next()?.file;
    let as_described = here.all(|vma| vma.file == file && parts.describe(vma, page));
    let whole = parts.within(page).all(|part| covered(around.vmas, part.range, |_| true));
    (as_described && whole).then_some(Edge { page, text })
}

/// Returns how many bytes of text become huge at best, if no other mapping is in the way.
pub(super) fn potential(parts: &Parts, policy: EdgePolicy, huge: PageSize) -> u64 {
    // Overlapping segments may add up to more than there are addresses.
    let sum = u64::saturating_add;
    let whole = parts.texts().filter_map(|part| part.range.align_inward(huge));
    let whole = whole.map(AddrRange::len).fold(0, sum);
    if !parts.is_certain() || !policy.is_for(parts.all_text_bytes(), huge) {
        return whole;
    }
    let mut pages: Vec<AddrRange> =
        parts.texts().flat_map(|part| ragged(part.range, huge)).collect();
    pages.dedup();
    let edges: u64 = pages
        .into_iter()
        .filter(|&page| !parts.is_closed(page))
        .map(|page| parts.text_bytes(page))
        .filter(|&text| text >= policy.least_in_page())
        .fold(0, sum);
    sum(whole, edges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Edges;
    use crate::elf::LoadSegment;
    use crate::plan::{Means, Plan, plan};
    use crate::proc::maps;
    use crate::ragged::edge_chunks;
    use crate::rebase::MainImage;
    use crate::skip::SkipReason;
    use crate::snapshot::Snapshot;

    const PAGES: Pages =
        Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
    /// Far above everything.
    const BRK: u64 = 0x4000_0000;

    fn load(vaddr: u64, end: u64, exec: bool, write: bool) -> LoadSegment {
        let (file_offset, len) = (vaddr - 0x40_0000, end - vaddr);
        LoadSegment { file_offset, vaddr, file_size: len, mem_size: len, exec, write }
    }

    /// The seed's text, alone.
    const SEED: &str = "005ff000-00c10000 r-xp 001ff000 fe:00 1 /m\n";
    /// Data of the file, far from its text.
    const DATA: &str = "02000000-02001000 rw-p 00000000 fe:00 1 /m\n";
    const STACK: &str = "7ffff0000000-7ffff0021000 rw-p 00000000 00:00 0 [stack]\n";

    fn seed() -> Vec<LoadSegment> {
        vec![load(0x5f_f000, 0xc1_0000, true, false)]
    }

    /// Plans with one copying backing.
    fn planned(
        maps: &str,
        loads: Vec<LoadSegment>,
        edges: Edges,
        pad_threshold: u64,
        brk: u64,
    ) -> Plan {
        let vmas = maps::parse((maps.to_owned() + DATA + STACK).as_bytes()).unwrap();
        let entry = RemoteAddr::new(0x60_1000);
        let snapshot = Snapshot { pages: PAGES, vmas, entry };
        let image = MainImage { loads, load_bias: 0, position_independent: false };
        let means = Means {
            image: Some(&image),
            copies: &[Backing::Image],
            edges: EdgePolicy { edges, pad_threshold },
            start_brk: Some(brk),
            ..Means::default()
        };
        plan(&snapshot, &means)
    }

    fn spans(plan: &Plan) -> Vec<(String, u64)> {
        plan.spans().map(|span| (span.range.to_string(), span.widened_bytes)).collect()
    }

    fn span(range: &str, widened: u64) -> (String, u64) {
        (range.to_owned(), widened)
    }

    #[test]
    fn the_seeds_example_in_each_mode() {
        let core = span("00600000-00c00000", 0);
        let head = span("00400000-00600000", 0x1f_f000);
        let tail = span("00c00000-00e00000", 0x1f_0000);
        let of = |edges, threshold| planned(SEED, seed(), edges, threshold, BRK);
        let conservative = of(Edges::Conservative, 0);
        assert_eq!(spans(&conservative), std::slice::from_ref(&core));
        assert_eq!(conservative.texts[0].rest, [(SkipReason::Edges.into(), 0x1_1000)]);
        let pad = of(Edges::Pad, 64 << 10);
        assert_eq!(spans(&pad), [core.clone(), tail.clone()]);
        assert_eq!(pad.texts[0].rest, [(SkipReason::Edges.into(), 0x1000)]);
        assert_eq!((pad.huge_bytes(), pad.widened_bytes()), (0x61_0000, 0x1f_0000));
        let aggressive = of(Edges::Aggressive, 64 << 10);
        assert_eq!(spans(&aggressive), [head, core.clone(), tail]);
        assert_eq!(aggressive.texts[0].rest, []);
        assert_eq!(of(Edges::Pad, 4096), aggressive, "the default takes a single base page too");
        assert_eq!(spans(&of(Edges::Pad, (64 << 10) + 1)), [core]);
    }

    #[test]
    fn read_only_data_of_the_file_is_taken_and_its_data_is_not() {
        let rodata = "00400000-005ff000 r--p 00000000 fe:00 1 /m\n";
        let data = "00dff000-00e10000 rw-p 009ff000 fe:00 1 /m\n";
        let maps = format!("{rodata}{SEED}{data}");
        let mut loads = seed();
        loads.push(load(0x40_0000, 0x5f_f000, false, false));
        loads.push(load(0xdf_f000, 0xe1_0000, false, true));
        let plan = planned(&maps, loads.clone(), Edges::Aggressive, 0, BRK);
        let taken = [span("00400000-00600000", 0x1f_f000), span("00600000-00c00000", 0)];
        assert_eq!(spans(&plan), taken);
        assert_eq!(plan.texts[0].rest, [(SkipReason::Edges.into(), 0x1_0000)]);
        // RELRO: read-only by now, but the program has written to it.
        let relro = maps.replace("rw-p", "r--p");
        let plan = planned(&relro, loads, Edges::Aggressive, 0, BRK);
        assert_eq!(spans(&plan), taken);
    }

    #[test]
    fn nothing_of_others_is_taken() {
        for other in [
            "00410000-00411000 r--p 00000000 fe:00 2 /other\n",
            "00410000-00411000 r--p 00010000 fe:00 1 /m\n",
            "00410000-00411000 ---p 00000000 00:00 0 \n",
            "00410000-00411000 r--p 00000000 00:00 0 \n",
            "00410000-00411000 rw-p 00000000 00:00 0 \n",
            "00410000-00411000 r-xp 00010000 fe:00 1 /m\n",
        ] {
            let plan = planned(&format!("{other}{SEED}"), seed(), Edges::Aggressive, 0, BRK);
            assert!(plan.spans().all(|span| span.range.start().get() >= 0x60_0000), "{other}");
        }
    }

    #[test]
    fn what_the_headers_say_must_be_there() {
        let mut loads = seed();
        loads.push(load(0x40_0000, 0x40_1000, false, false));
        let plan = planned(SEED, loads, Edges::Aggressive, 0, BRK);
        assert!(plan.spans().all(|span| span.range.start().get() >= 0x60_0000));
    }

    #[test]
    fn room_for_the_heap_and_for_stacks_stays() {
        let tail = |plan: &Plan| plan.spans().any(|span| span.range.end().get() == 0xe0_0000);
        let of = |maps: &str, brk| planned(maps, seed(), Edges::Aggressive, 0, brk);
        assert!(tail(&of(SEED, BRK)));
        for brk in [0xc1_0000, 0xc1_0800, 0xdf_f000, 0x30_0000, 0] {
            let room_from_0x300000_ends_at_the_text = brk == 0x30_0000;
            assert_eq!(tail(&of(SEED, brk)), room_from_0x300000_ends_at_the_text, "{brk:#x}");
        }
        let heap = "00d00000-00d10000 rw-p 00000000 00:00 0 [heap]\n";
        assert!(!tail(&of(&format!("{SEED}{heap}"), 0xd0_0000)));
        assert!(!tail(&of(&format!("{SEED}{heap}"), 0)));
        // The heap lies above, and so does all of its room.
        let above = "00e00000-00e10000 rw-p 00000000 00:00 0 [heap]\n";
        assert!(tail(&of(&format!("{SEED}{above}"), 0xe0_0000)));
        let stack = "01000000-01021000 rw-p 00000000 00:00 0 [stack]\n";
        assert!(!tail(&of(&format!("{SEED}{stack}"), BRK)));
    }

    #[test]
    fn something_of_the_file_stays_mapped() {
        let other = DATA.replace("fe:00 1 /m", "fe:00 2 /n");
        let vmas = maps::parse((SEED.to_owned() + &other + STACK).as_bytes()).unwrap();
        let snapshot = Snapshot { pages: PAGES, vmas, entry: RemoteAddr::new(0x60_1000) };
        let loads = seed();
        let image = MainImage { loads, load_bias: 0, position_independent: false };
        let edges = EdgePolicy { edges: Edges::Aggressive, pad_threshold: 0 };
        let copies = &[Backing::Image];
        let start_brk = Some(BRK);
        let means = Means { image: Some(&image), copies, edges, start_brk, ..Means::default() };
        let planned = plan(&snapshot, &means);
        assert_eq!(spans(&planned), [span("00600000-00c00000", 0)]);
        assert_eq!(planned.texts[0].rest, [(SkipReason::Edges.into(), 0x1_1000)]);
    }

    #[test]
    fn two_texts_may_share_a_huge_page() {
        let maps = "00400000-00a01000 r-xp 00000000 fe:00 1 /m\n\
                    00a01000-00a02000 r--p 00601000 fe:00 1 /m\n\
                    00a03000-00e00000 r-xp 00603000 fe:00 1 /m\n";
        let loads = vec![
            load(0x40_0000, 0xa0_1000, true, false),
            load(0xa0_1000, 0xa0_2000, false, false),
            load(0xa0_3000, 0xe0_0000, true, false),
        ];
        let plan = planned(maps, loads, Edges::Pad, 4096, BRK);
        let shared = span("00a00000-00c00000", 0x2000);
        let whole = [span("00400000-00a00000", 0), shared, span("00c00000-00e00000", 0)];
        assert_eq!(spans(&plan), whole);
        assert!(plan.texts.iter().all(|text| text.rest.is_empty()));
        assert_eq!(plan.huge_bytes(), plan.text_bytes());
    }

    #[test]
    fn a_text_that_fills_no_huge_page_is_taken_if_its_file_has_enough() {
        // As /usr/bin/python3: 2.7 MiB over two huge pages.
        let maps = "00400000-0041f000 r--p 00000000 fe:00 1 /m\n\
                    0041f000-006d2000 r-xp 0001f000 fe:00 1 /m\n\
                    006d2000-00945000 r--p 002d2000 fe:00 1 /m\n";
        let loads = vec![
            load(0x40_0000, 0x41_f000, false, false),
            load(0x41_f000, 0x6d_2000, true, false),
            load(0x6d_2000, 0x94_5000, false, false),
        ];
        let of = |edges| planned(maps, loads.clone(), edges, 4096, BRK);
        assert_eq!(
            of(Edges::Conservative).texts[0].rest,
            [(SkipReason::TooSmall.into(), 0x2b_3000)]
        );
        assert_eq!(of(Edges::Pad).texts[0].rest, []);
        assert_eq!(of(Edges::Pad).huge_bytes(), 0x2b_3000);
        // Less than a huge page, more than half of one.
        let maps = "00600000-00780000 r-xp 00200000 fe:00 1 /m\n";
        let of =
            |edges| planned(maps, vec![load(0x60_0000, 0x78_0000, true, false)], edges, 0, BRK);
        assert_eq!(of(Edges::Pad).huge_bytes(), 0);
        assert_eq!(of(Edges::Aggressive).huge_bytes(), 0x18_0000);
    }

    #[test]
    fn the_page_cache_serves_an_edge_that_lies_as_its_file_does() {
        let parts = Parts::of(
            &[load(0x40_0000, 0x5f_f000, false, false), load(0x5f_f000, 0xc1_0000, true, false)],
            0,
            PAGES.base,
        )
        .unwrap();
        let policy = EdgePolicy { edges: Edges::Aggressive, pad_threshold: 0 };
        let chunks = |len| edge_chunks(&parts, policy, PAGES, len);
        assert_eq!(chunks(0xa0_0000), [0..0x20_0000, 0x80_0000..0xa0_0000]);
        assert_eq!(chunks(0x9f_ffff), vec![0..0x20_0000; 1], "never beyond the end of the file");
        let page = AddrRange::with_len(RemoteAddr::new(0x40_0000), 2 << 20).unwrap();
        assert_eq!(by_pagecache(page, &parts, &chunks(0xa0_0000)), Some(0));
        assert_eq!(by_pagecache(page, &parts, &[]), None);
        // The read-only data lies elsewhere in the file.
        let mut moved = load(0x40_0000, 0x5f_f000, false, false);
        moved.file_offset = 0x100_0000;
        let parts =
            Parts::of(&[moved, load(0x5f_f000, 0xc1_0000, true, false)], 0, PAGES.base).unwrap();
        assert_eq!(edge_chunks(&parts, policy, PAGES, u64::MAX), vec![0x80_0000..0xa0_0000; 1]);
    }
}
