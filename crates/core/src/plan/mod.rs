//! Makes a plan from a snapshot: which spans of text become huge, and why the rest does not.
//!
//! A plan is a value. It can be printed (`--dry-run`), compared and tested; nothing here touches a process. The
//! following holds for every snapshot whose VMAs are in address order (property tests). For any other snapshot,
//! the first two points hold for each text alone:
//!
//! - a span lies wholly inside one text VMA of the snapshot (as it is after the plan's move of the
//!   main executable, if there is one), and spans never overlap;
//! - a span begins and ends on a huge page;
//! - a page cache span is congruent: its address equals its file offset modulo the huge page;
//! - no span lies over a writable or shared VMA;
//! - spans and skipped bytes of a text VMA add up to its length.
//!
//! With [`Edges`](crate::config::Edges) other than conservative there are also spans of one huge page
//! each that are not wholly text. Beside text such a page holds read-only data of the same file, mapped
//! as its headers say, or nothing; and where nothing is, neither the heap nor a stack will grow.

pub mod edges;
mod layout;
mod start;

mod cuts;

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::addr::{AddrRange, PageSize, Pages};
use crate::area::Area;
use crate::config::EdgePolicy;
use crate::file_ranges::Parts;
use crate::order;
use crate::proc::maps::Vma;
use crate::rebase::{MainImage, Rebase};
use crate::skip::{Reason, SkipReason};
use crate::snapshot::Snapshot;
use edges::{Around, Reserved};

pub use start::plan_start;

/// The kind of memory that a huge page comes from. See the table in `docs/design/backings.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// A memfd in transparent huge pages, one copy per program.
    Image,
    /// A file of the image store in transparent huge pages, one copy per machine.
    Store,
    /// A memfd in pages of the hugetlb pool.
    Hugetlb,
    /// The file's own page cache in PMD-sized folios.
    Pagecache,
    /// Private anonymous memory: not ours, but seen (some programs move their own text).
    Anon,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Store => "store",
            Self::Hugetlb => "hugetlb",
            Self::Pagecache => "pagecache",
            Self::Anon => "anon",
        })
    }
}

/// Whole huge pages that are made huge together: of one text VMA, or one at the edge of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Its addresses in the target; begins and ends on a huge page.
    #[serde(flatten)]
    pub range: AddrRange,
    /// Position in the file, in bytes, of the first byte of the span. For an edge in a copy: that of the first
    /// byte that comes from the file.
    pub file_offset: u64,
    /// The backing.
    pub backing: Backing,
    /// Bytes of it that are not text, but become executable.
    pub widened_bytes: u64,
    /// True if the span is a huge page at the edge of a text. [`Parts`] says what lies where in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub edge: bool,
}

impl Span {
    /// Returns the bytes of text in it.
    pub fn text_bytes(&self) -> u64 {
        self.range.len().saturating_sub(self.widened_bytes)
    }
}

/// The means by which a plan can make huge pages.
#[derive(Clone, Debug, Default)]
pub struct Means<'a> {
    /// True if the main executable is to be left alone.
    pub leave_main: bool,
    /// The main executable, where it may be moved to make its text congruent.
    pub image: Option<&'a MainImage>,
    /// The parts of the main executable's file that lie in the page cache in PMD-sized folios: file
    /// ranges in whole huge pages, ascending.
    pub folios: &'a [Range<u64>],
    /// Backings that hold a copy, the preferred one first; empty if nothing may be copied.
    pub copies: &'a [Backing],
    /// The choice of ragged edges; they need an `image` that describes the surroundings of the text.
    pub edges: EdgePolicy,
    /// The beginning of the heap, if that is known.
    pub start_brk: Option<u64>,
}

/// The plan for one text VMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextPlan {
    /// The text VMA, as in the snapshot.
    pub vma: Vma,
    /// The parts that become huge.
    pub spans: Vec<Span>,
    /// The bytes that do not, by reason.
    pub rest: Vec<(Reason, u64)>,
}

impl TextPlan {
    /// Subtracts bytes from those that are left because they are at an edge, or too small.
    fn take_off_rest(&mut self, mut bytes: u64) {
        for (reason, left) in &mut self.rest {
            if matches!(reason, Reason::Skipped(SkipReason::Edges | SkipReason::TooSmall)) {
                let less = bytes.min(*left);
                *left -= less;
                bytes -= less;
            }
        }
        self.rest.retain(|&(_, left)| left > 0);
    }
}

/// The plan for a process.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a plan does nothing until an executor carries it out"]
pub struct Plan {
    /// The size of huge page that spans are made of.
    pub huge: PageSize,
    /// The place that the main executable is moved to before anything else, if it is to be moved.
    pub rebase: Option<Rebase>,
    /// Each text VMA, in address order, where it is after the move.
    pub texts: Vec<TextPlan>,
}

impl Plan {
    /// Returns all spans, in address order.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.texts.iter().flat_map(|text| &text.spans)
    }

    /// Returns the spans of one backing, in address order.
    pub fn spans_by(&self, backing: Backing) -> impl Iterator<Item = &Span> {
        self.spans().filter(move |span| span.backing == backing)
    }

    /// Returns the bytes of text that become huge.
    pub fn huge_bytes(&self) -> u64 {
        self.spans().map(Span::text_bytes).sum()
    }

    /// Returns the bytes that are not text, but become executable.
    pub fn widened_bytes(&self) -> u64 {
        self.spans().map(|span| span.widened_bytes).sum()
    }

    /// Returns the bytes of all spans: of text and of what becomes executable with it.
    pub fn span_bytes(&self) -> u64 {
        self.spans().map(|span| span.range.len()).sum()
    }

    /// Returns the bytes of all spans that `areas` show to be huge.
    pub fn huge_bytes_in(&self, areas: &[Area]) -> u64 {
        let in_spans = |area: &Area| -> u64 {
            let huge: u64 = self.spans().map(|span| area.huge_in(span.range)).sum();
            // If only the sum of an area is known, the same pages could count for two spans.
            huge.min(area.huge_bytes())
        };
        areas.iter().map(in_spans).sum()
    }

    /// Returns the bytes of all spans that `areas` show to be text.
    pub fn text_bytes_in(&self, areas: &[Area]) -> u64 {
        let texts = areas.iter().map(|area| &area.vma).filter(|vma| vma.is_text());
        texts
            .flat_map(|vma| self.spans().filter_map(|span| vma.range.intersection(span.range)))
            .map(AddrRange::len)
            .sum()
    }

    /// Returns the bytes of the spans of `backing`.
    pub fn span_bytes_by(&self, backing: Backing) -> u64 {
        self.spans_by(backing).map(|span| span.range.len()).sum()
    }

    /// Returns a plan for nothing, with huge pages of that size.
    pub const fn nothing(huge: PageSize) -> Self {
        Self { huge, rebase: None, texts: Vec::new() }
    }

    /// Returns the bytes of all text, huge or not.
    pub fn text_bytes(&self) -> u64 {
        self.texts.iter().map(|text| text.vma.range.len()).sum()
    }

    /// Adds a later plan. For text in both plans `later` counts, unless this plan makes some of the text huge.
    pub fn join(&mut self, later: Self) {
        let switched = |text: &TextPlan| !text.spans.is_empty();
        let covers = |texts: &[TextPlan], range: AddrRange| {
            texts.iter().any(|text| text.vma.range.overlaps(range))
        };
        self.texts.retain(|text| switched(text) || !covers(&later.texts, text.vma.range));
        let own = self.texts.clone();
        self.texts.extend(later.texts.into_iter().filter(|text| !covers(&own, text.vma.range)));
        order::by_key(&mut self.texts, |text| text.vma.range.start());
    }

    /// Gives up the spans that meet `range`.
    pub fn give_up(&mut self, range: AddrRange, why: SkipReason) {
        for text in &mut self.texts {
            let given_up = |span: &Span| span.range.overlaps(range);
            let bytes = text.spans.iter().filter(|span| given_up(span)).map(Span::text_bytes).sum();
            text.spans.retain(|span| !given_up(span));
            match text.rest.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, sum)) => *sum += bytes,
                None if bytes > 0 => text.rest.push((why.into(), bytes)),
                None => {}
            }
        }
    }

    /// Returns the backing of most of the bytes that become huge; `None` if no bytes do.
    pub fn main_backing(&self) -> Option<Backing> {
        let most = self.spans().max_by_key(|span| self.span_bytes_by(span.backing));
        most.map(|span| span.backing)
    }
}

/// Decides which spans of the main executable's text become huge, and by which backing.
///
/// Other files' text is planned as [`SkipReason::NotSelected`]. The page cache comes first, because it costs
/// nothing. The plan moves the executable if that makes its text congruent, or its edges free.
pub fn plan(snapshot: &Snapshot, means: &Means<'_>) -> Plan {
    let pages = snapshot.pages;
    let huge = pages.pmd;
    let (rebase, bias) = layout::layout(snapshot, means);
    let moved = rebase.as_ref().map(|rebase| rebase.applied(snapshot));
    let snapshot = moved.as_ref().unwrap_or(snapshot);
    let main = snapshot.main_file();
    // An image in the store is laid out for one load bias, modulo the huge page.
    let stored_bias = means.image.map(|image| image.bias_for_copies(pages));
    let fits = |backing: Backing| backing != Backing::Store || bias == stored_bias;
    let copy = means.copies.iter().copied().find(|&backing| fits(backing));
    let image = means.image.map(|image| match &rebase {
        Some(rebase) => rebase.moved_image(image),
        None => image.clone(),
    });
    let parts = image.and_then(|image| Parts::of(&image.loads, image.load_bias, pages.base));
    let vmas = &snapshot.vmas;
    let reserved = Reserved::find(vmas, means.start_brk, pages);
    let around = Around { pages, policy: means.edges, vmas, reserved: &reserved };
    let mut taken = Vec::new();
    let texts = snapshot
        .vmas
        .iter()
        .filter(|vma| vma.is_text() && !vma.range.is_empty())
        .map(|vma| {
            if main != Some(vma.file) || means.leave_main {
                let too_small = vma.range.align_inward(huge).is_none();
                let why = if too_small { SkipReason::TooSmall } else { SkipReason::NotSelected };
                return leave(vma, why);
            }
            let mut text = plan_text(vma, huge, means.folios, copy.ok_or(None), &[]);
            if let Some(parts) = &parts {
                let kept = |_| false;
                edges::take(&mut text, &around, parts, means.folios, copy, kept, &mut taken);
            }
            text
        })
        .collect();
    let mut plan = Plan { huge, rebase, texts };
    keep_traces(&mut plan, vmas);
    plan
}

/// One text VMA of a running process, and what is known of it beside its line in maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningText {
    /// The VMA.
    pub vma: Vma,
    /// The parts of its file that lie in the page cache in PMD-sized folios; ascending.
    pub folios: Vec<Range<u64>>,
    /// The backing for a copy of the rest; `None` for none.
    pub copy: Option<Backing>,
    /// Why there is no such backing, if the page cache is not the reason.
    pub uncopied: Option<Reason>,
    /// Addresses that must not be touched, and why; in whole huge pages, ascending.
    pub kept: Vec<(AddrRange, SkipReason)>,
    /// Why the plan must leave all of this text alone; `None` if it need not.
    pub leave: Option<Reason>,
    /// The parts of its file where it is mapped, if it is mapped as the file's headers say.
    pub parts: Option<Parts>,
}

/// Decides which spans of a running process's text become huge, and by which backing. Nothing moves: text that
/// is not congruent gets a copy. No page of the pool holds an edge: the process could not be given back parts of it.
pub fn plan_running(around: &Around<'_>, texts: &[RunningText]) -> Plan {
    let Pages { pmd: huge, .. } = around.pages;
    let mut taken = Vec::new();
    let mut planned: Vec<TextPlan> = texts
        .iter()
        .map(|text| {
            let RunningText { vma, folios, copy, uncopied, kept, .. } = text;
            if let Some(why) = text.leave {
                return leave(vma, why);
            }
            let means = copy.ok_or(*uncopied);
            let mut planned = plan_text(vma, huge, folios, means, kept);
            if let Some(parts) = &text.parts {
                let kept = |page| kept.iter().any(|(range, _)| range.overlaps(page));
                let copy = copy.filter(|&copy| copy != Backing::Hugetlb);
                edges::take(&mut planned, around, parts, folios, copy, kept, &mut taken);
            }
            planned
        })
        .collect();
    cuts::tell(&mut planned, huge);
    let mut plan = Plan { huge, rebase: None, texts: planned };
    keep_traces(&mut plan, around.vmas);
    plan
}

/// Gives up the edges of a file if no mapping of the file would remain beside the copies: then nothing would
/// show what belongs there.
fn keep_traces(plan: &mut Plan, vmas: &[Vma]) {
    let copied: Vec<AddrRange> = plan
        .spans()
        .filter(|span| span.backing != Backing::Pagecache)
        .map(|span| span.range)
        .collect();
    // Several spans adjoin if they cover a VMA together.
    let is_left = |vma: &Vma| {
        let gone = copied.iter().filter_map(|range| range.intersection(vma.range));
        gone.map(AddrRange::len).sum::<u64>() < vma.range.len()
    };
    let has_trace =
        |text: &TextPlan| vmas.iter().any(|vma| vma.file == text.vma.file && is_left(vma));
    let mut given_up: Vec<AddrRange> = Vec::new();
    for text in &mut plan.texts {
        if text.spans.iter().any(|span| span.edge) && !has_trace(text) {
            given_up.extend(text.spans.iter().filter(|span| span.edge).map(|span| span.range));
            text.spans.retain(|span| !span.edge);
        }
    }
    for text in &mut plan.texts {
        let here = given_up.iter().filter_map(|page| page.intersection(text.vma.range));
        let bytes: u64 = here.map(AddrRange::len).sum();
        match text.rest.iter_mut().find(|(reason, _)| *reason == SkipReason::Edges) {
            Some((_, sum)) => *sum += bytes,
            None if bytes > 0 => text.rest.push((SkipReason::Edges.into(), bytes)),
            None => {}
        }
    }
}

/// A text that stays as it is.
fn leave(vma: &Vma, why: impl Into<Reason>) -> TextPlan {
    TextPlan { vma: vma.clone(), spans: Vec::new(), rest: vec![(why.into(), vma.range.len())] }
}

/// Cuts a file range into pieces, in order, that lie wholly inside or wholly outside `folios`. The flag of each
/// piece is true inside.
fn pieces(range: Range<u64>, folios: &[Range<u64>]) -> Vec<(Range<u64>, bool)> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    for folio in folios {
        let (start, end) = (folio.start.max(at), folio.end.min(range.end));
        if start >= end {
            continue;
        }
        if at < start {
            pieces.push((at..start, false));
        }
        pieces.push((start..end, true));
        at = end;
    }
    if at < range.end {
        pieces.push((at..range.end, false));
    }
    pieces
}

/// Plans one text. `copy` is the backing for the parts that the page cache does not hold, or the reason why
/// there is no backing.
fn plan_text(
    vma: &Vma,
    huge: PageSize,
    folios: &[Range<u64>],
    copy: Result<Backing, Option<Reason>>,
    kept: &[(AddrRange, SkipReason)],
) -> TextPlan {
    let len = vma.range.len();
    let Some(whole) = vma.range.align_inward(huge) else {
        return leave(vma, SkipReason::TooSmall);
    };
    if vma.perms.write || vma.perms.shared {
        return leave(vma, SkipReason::NotSelected);
    }
    if !vma.perms.read {
        return leave(vma, SkipReason::ProtectionKey);
    }
    let into_vma = whole.start().get() - vma.range.start().get();
    let in_file = vma.file_offset.checked_add(into_vma);
    let Some((start, end)) =
        in_file.and_then(|start| Some((start, start.checked_add(whole.len())?)))
    else {
        return leave(vma, SkipReason::TooSmall);
    };
    let congruent = start & (huge.bytes() - 1) == 0;
    let folios = if congruent { folios } else { &[] };
    let kept_in_file: Vec<Range<u64>> = kept
        .iter()
        .filter(|(range, _)| whole.covers(*range))
        .map(|(range, _)| {
            let at = start + (range.start().get() - whole.start().get());
            at..at + range.len()
        })
        .collect();

    let mut rest: Vec<(Reason, u64)> = vec![(SkipReason::Edges.into(), len - whole.len())];
    rest.extend(
        kept.iter()
            .filter(|(range, _)| whole.covers(*range))
            .map(|&(range, why)| (why.into(), range.len())),
    );
    let mut text = TextPlan { vma: vma.clone(), spans: Vec::new(), rest: Vec::new() };
    let of_the_cache = if congruent { SkipReason::SmallFolios } else { SkipReason::NotCongruent };
    let free = pieces(start..end, &kept_in_file).into_iter().filter(|(_, kept)| !kept);
    for (piece, cached) in free.flat_map(|(piece, _)| pieces(piece, folios)) {
        let len = piece.end - piece.start;
        let range = whole.start().checked_add(piece.start - start);
        let range = range.and_then(|start| AddrRange::with_len(start, len));
        let backing = if cached { Ok(Backing::Pagecache) } else { copy };
        match (range, backing) {
            (Some(range), Ok(backing)) => {
                text.spans.push(Span {
                    range,
                    file_offset: piece.start,
                    backing,
                    widened_bytes: 0,
                    edge: false,
                });
            }
            (_, why) => rest.push((why.err().flatten().unwrap_or(of_the_cache.into()), len)),
        }
    }
    for (why, bytes) in rest.into_iter().filter(|&(_, bytes)| bytes > 0) {
        match text.rest.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, sum)) => *sum += bytes,
            None => text.rest.push((why, bytes)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::RemoteAddr;
    use crate::proc::maps;

    fn snapshot(maps: &str, entry: u64) -> Snapshot {
        let pages =
            Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
        let vmas = maps::parse(maps.as_bytes()).unwrap();
        Snapshot { pages, vmas, entry: RemoteAddr::new(entry) }
    }

    /// Plans with one copying backing and nothing else.
    fn plan_by(snapshot: &Snapshot, backing: Backing) -> Plan {
        plan(snapshot, &Means { copies: &[backing], ..Means::default() })
    }

    fn spans(plan: &Plan) -> Vec<(String, u64)> {
        plan.spans().map(|span| (span.range.to_string(), span.file_offset)).collect()
    }

    #[test]
    fn only_whole_huge_pages_of_the_main_executable_are_taken() {
        let snapshot = snapshot(
            "005ff000-00c10000 r-xp 001ff000 fe:00 1 /usr/bin/main\n\
             7f0000000000-7f0000800000 r-xp 00000000 fe:00 2 /usr/lib/lib.so\n",
            0x60_1000,
        );
        let plan = plan_by(&snapshot, Backing::Image);
        assert_eq!(spans(&plan), [("00600000-00c00000".to_owned(), 0x20_0000)]);
        assert_eq!(plan.texts[0].rest, [(SkipReason::Edges.into(), 0x1_1000)]);
        assert_eq!(plan.texts[1].rest, [(SkipReason::NotSelected.into(), 8 << 20)]);
        assert_eq!((plan.huge_bytes(), plan.text_bytes()), (6 << 20, 0x61_1000 + (8 << 20)));
    }

    #[test]
    fn a_later_plan_adds_what_has_been_mapped_since() {
        let lines = [
            "005ff000-00c10000 r-xp 001ff000 fe:00 1 /usr/bin/main\n",
            "7f0000000000-7f0000010000 r-xp 00000000 fe:00 2 /ld.so\n",
            "7f0000200000-7f0000600000 r-xp 00000000 fe:00 3 /lib.so\n",
        ];
        let mut plan = plan_by(&snapshot(&lines[..2].concat(), 0x60_1000), Backing::Image);
        let text = |vma: &Vma| RunningText {
            vma: vma.clone(),
            folios: Vec::new(),
            copy: Some(Backing::Image),
            uncopied: None,
            kept: Vec::new(),
            leave: vma.path().starts_with(b"/usr").then_some(SkipReason::NotSelected.into()),
            parts: None,
        };
        let later = snapshot(&lines.concat(), 0);
        let texts: Vec<_> = later.vmas.iter().map(text).collect();
        let reserved = Reserved::everything();
        let (pages, policy) = (later.pages, EdgePolicy::default());
        let around = Around { pages, policy, vmas: &later.vmas, reserved: &reserved };
        plan.join(plan_running(&around, &texts));
        let paths: Vec<_> = plan.texts.iter().map(|text| text.vma.display_path()).collect();
        assert_eq!(paths, ["/usr/bin/main", "/ld.so", "/lib.so"]);
        assert_eq!(
            (plan.huge_bytes(), plan.texts[1].rest[0].0),
            (10 << 20, SkipReason::TooSmall.into())
        );
    }

    #[test]
    fn text_that_fits_exactly_has_no_rest() {
        let snapshot = snapshot("00400000-00800000 r-xp 00000000 fe:00 1 /m\n", 0x40_0000);
        let plan = plan_by(&snapshot, Backing::Hugetlb);
        assert_eq!(spans(&plan), [("00400000-00800000".to_owned(), 0)]);
        assert_eq!(plan.texts[0].rest, []);
    }

    #[test]
    fn every_text_segment_of_the_main_executable_counts() {
        let snapshot = snapshot(
            "00400000-00600000 r-xp 00000000 fe:00 1 /m\n\
             00600000-00800000 rwxp 00200000 fe:00 1 /m\n\
             00800000-00a00000 r-xs 00400000 fe:00 1 /m\n\
             00a00000-00c00000 r-xp 00600000 fe:00 1 /m\n",
            0x40_0000,
        );
        let plan = plan_by(&snapshot, Backing::Image);
        let taken = [("00400000-00600000", 0), ("00a00000-00c00000", 0x60_0000)];
        assert_eq!(spans(&plan), taken.map(|(range, offset)| (range.to_owned(), offset)));
        for index in [1, 2] {
            assert_eq!(plan.texts[index].rest, [(SkipReason::NotSelected.into(), 2 << 20)]);
        }
    }

    #[test]
    fn nothing_is_taken_where_the_entry_point_is_in_no_file() {
        let maps = "00400000-00800000 r-xp 00000000 fe:00 1 /m\n\
                    00800000-00a00000 r-xp 00000000 00:00 0 \n";
        for entry in [0, 0x3f_ffff, 0x80_0000, u64::MAX] {
            let plan = plan_by(&snapshot(maps, entry), Backing::Image);
            assert_eq!(spans(&plan), [], "entry {entry:#x}");
            assert_eq!(plan.texts.len(), 1, "code of no file is not text");
        }
    }

    #[test]
    fn a_file_offset_that_would_wrap_around_leaves_the_text_alone() {
        let maps = "00401000-00a00000 r-xp fffffffffff00000 fe:00 1 /m\n";
        let plan = plan_by(&snapshot(maps, 0x40_1000), Backing::Image);
        assert_eq!(plan.huge_bytes(), 0);
        assert_eq!(plan.texts[0].rest.len(), 1);
        assert_eq!(plan.texts[0].rest[0].1, 0x5f_f000);
    }
}
