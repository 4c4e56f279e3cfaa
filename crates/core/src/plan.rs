//! From a snapshot to a plan: which spans of text become huge, and why the rest does not.
//!
//! A plan is a value. It can be printed (`--dry-run`), compared and tested; nothing here touches a
//! process. These hold for every snapshot whose VMAs are in address order (property tests); the
//! first two, of each text alone, for any other:
//!
//! - a span lies wholly inside one text VMA of the snapshot (as it is after the plan's move of the
//!   main executable, if there is one), and spans never overlap;
//! - a span begins and ends on a huge page;
//! - a page cache span is congruent: its address equals its file offset modulo the huge page;
//! - no span lies over a writable or shared VMA;
//! - spans and skipped bytes of a text VMA add up to its length.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use crate::addr::{AddrRange, PageSize, RemoteAddr, mib};
use crate::proc::maps::Vma;
use crate::rebase::{MainImage, Rebase};
use crate::skip::SkipReason;
use crate::snapshot::Snapshot;

/// Where a huge page lives. See the design's table of backings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
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

/// Whole huge pages of one text VMA that are made huge together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Span {
    /// Where, in the target; begins and ends on a huge page.
    #[serde(flatten, serialize_with = "start_and_end")]
    pub range: AddrRange,
    /// Position in the file of its first byte, in bytes.
    pub file_offset: u64,
    /// By which backing.
    pub backing: Backing,
}

/// What huge pages can be made of.
#[derive(Clone, Debug, Default)]
pub struct Means<'a> {
    /// The main executable, where it may be moved to make its text congruent.
    pub image: Option<&'a MainImage>,
    /// The parts of the main executable's file that lie in the page cache in PMD-sized folios: file
    /// ranges in whole huge pages, ascending.
    pub folios: &'a [Range<u64>],
    /// Backings that hold a copy, the preferred one first; none where nothing may be copied.
    pub copies: &'a [Backing],
}

pub(crate) fn start_and_end<S: serde::Serializer>(
    range: &AddrRange,
    to: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Ends {
        start: RemoteAddr,
        end: RemoteAddr,
    }
    Ends { start: range.start(), end: range.end() }.serialize(to)
}

/// What is to happen to one text VMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextPlan {
    /// The text VMA, as in the snapshot.
    pub vma: Vma,
    /// What becomes huge.
    pub spans: Vec<Span>,
    /// What does not, by reason, in bytes.
    pub rest: Vec<(SkipReason, u64)>,
}

/// What is to happen to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a plan does nothing until an executor carries it out"]
pub struct Plan {
    /// The size of huge page that spans are made of.
    pub huge: PageSize,
    /// Where the main executable goes before anything else, if it is to be moved.
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

    /// Returns the bytes that become huge.
    pub fn huge_bytes(&self) -> u64 {
        self.spans().map(|span| span.range.len()).sum()
    }

    /// Returns the bytes that become huge by `backing`.
    pub fn huge_bytes_by(&self, backing: Backing) -> u64 {
        self.spans_by(backing).map(|span| span.range.len()).sum()
    }

    /// Returns the bytes of all text, huge or not.
    pub fn text_bytes(&self) -> u64 {
        self.texts.iter().map(|text| text.vma.range.len()).sum()
    }

    /// Returns the backing that holds most of what becomes huge; `None` where nothing does.
    pub fn main_backing(&self) -> Option<Backing> {
        let most = self.spans().max_by_key(|span| self.huge_bytes_by(span.backing));
        most.map(|span| span.backing)
    }
}

/// Decides which spans of the main executable's text become huge, and by which backing.
///
/// Edges are conservative: only whole huge pages inside a text VMA. Other files' text is planned
/// as [`SkipReason::NotSelected`]. The page cache comes first, because it costs nothing; the
/// executable is moved where that makes its text congruent.
pub fn plan(snapshot: &Snapshot, means: &Means<'_>) -> Plan {
    let huge = snapshot.pages.pmd;
    let (rebase, bias) = layout(snapshot, means);
    let moved = rebase.as_ref().map(|rebase| rebase.applied(snapshot));
    let snapshot = moved.as_ref().unwrap_or(snapshot);
    let main = snapshot.main_file();
    // Images in the store are laid out for a load bias that is a multiple of the huge page.
    let fits = |backing: Backing| backing != Backing::Store || bias == Some(0);
    let copy = means.copies.iter().copied().find(|&backing| fits(backing));
    let texts = snapshot
        .vmas
        .iter()
        .filter(|vma| vma.is_text() && !vma.range.is_empty())
        .map(|vma| {
            if main == Some(vma.file) {
                plan_text(vma, huge, means.folios, copy, &[])
            } else {
                let too_small = vma.range.align_inward(huge).is_none();
                let why = if too_small { SkipReason::TooSmall } else { SkipReason::NotSelected };
                leave(vma, why)
            }
        })
        .collect();
    Plan { huge, rebase, texts }
}

/// One text VMA of a running process, and what is known of it beside its line in maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningText {
    /// It.
    pub vma: Vma,
    /// The parts of its file that lie in the page cache in PMD-sized folios; ascending.
    pub folios: Vec<Range<u64>>,
    /// The backing for a copy of the rest; `None` for none.
    pub copy: Option<Backing>,
    /// Addresses that must not be touched, and why; in whole huge pages, ascending.
    pub kept: Vec<(AddrRange, SkipReason)>,
    /// Why none of it is to be touched, if so.
    pub leave: Option<SkipReason>,
}

/// Decides which spans of a running process's text become huge, and by which backing. Nothing is
/// moved: what is not congruent gets a copy.
pub fn plan_running(huge: PageSize, texts: &[RunningText]) -> Plan {
    let texts = texts
        .iter()
        .map(|text| match text.leave {
            Some(why) => leave(&text.vma, why),
            None => plan_text(&text.vma, huge, &text.folios, text.copy, &text.kept),
        })
        .collect();
    Plan { huge, rebase: None, texts }
}

/// A text that stays as it is.
fn leave(vma: &Vma, why: SkipReason) -> TextPlan {
    TextPlan { vma: vma.clone(), spans: Vec::new(), rest: vec![(why, vma.range.len())] }
}

/// Decides where the main executable should lie: returns the move, if one is due and possible, and
/// the load bias that results, modulo the huge page, if it is known.
///
/// It is laid for the page cache if that holds at least half of its text; otherwise for the image
/// store if there is one; otherwise for what the page cache holds, if anything.
fn layout(snapshot: &Snapshot, means: &Means<'_>) -> (Option<Rebase>, Option<u64>) {
    let Some(image) = means.image else { return (None, None) };
    let pages = snapshot.pages;
    let here = image.load_bias & (pages.pmd.bytes() - 1);
    let reach = |bias: u64| {
        if image.has_bias(bias, pages.pmd) {
            return Some((None, Some(here)));
        }
        Rebase::find(snapshot, image, bias).map(|rebase| (Some(rebase), Some(bias)))
    };
    let for_cache = image.congruent_bias(pages.pmd).map(|bias| {
        let chunks = image.congruent_chunks(bias, pages);
        let all: u64 = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        let cached: u64 = chunks
            .iter()
            .flat_map(|chunk| pieces(chunk.clone(), means.folios))
            .filter(|(_, cached)| *cached)
            .map(|(piece, _)| piece.end - piece.start)
            .sum();
        (bias, cached, all)
    });
    let store = means.copies.contains(&Backing::Store);
    let cache_first = match for_cache {
        Some((_, cached, all)) => cached > 0 && (!store || cached >= all - cached),
        None => false,
    };
    let by_cache = || for_cache.and_then(|(bias, cached, _)| (cached > 0).then(|| reach(bias))?);
    let by_store = || if store { reach(0) } else { None };
    let found =
        if cache_first { by_cache().or_else(by_store) } else { by_store().or_else(by_cache) };
    found.unwrap_or((None, Some(here)))
}

/// Cuts a file range into pieces, in order, that lie wholly inside or wholly outside `folios`, and
/// says which.
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

fn plan_text(
    vma: &Vma,
    huge: PageSize,
    folios: &[Range<u64>],
    copy: Option<Backing>,
    kept: &[(AddrRange, SkipReason)],
) -> TextPlan {
    let len = vma.range.len();
    let Some(whole) = vma.range.align_inward(huge) else {
        return leave(vma, SkipReason::TooSmall);
    };
    if vma.perms.write || vma.perms.shared {
        return leave(vma, SkipReason::NotSelected);
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

    let mut rest: Vec<(SkipReason, u64)> = vec![(SkipReason::Edges, len - whole.len())];
    rest.extend(
        kept.iter()
            .filter(|(range, _)| whole.covers(*range))
            .map(|&(range, why)| (why, range.len())),
    );
    let mut text = TextPlan { vma: vma.clone(), spans: Vec::new(), rest: Vec::new() };
    let why = if congruent { SkipReason::SmallFolios } else { SkipReason::NotCongruent };
    let free = pieces(start..end, &kept_in_file).into_iter().filter(|(_, kept)| !kept);
    for (piece, cached) in free.flat_map(|(piece, _)| pieces(piece, folios)) {
        let len = piece.end - piece.start;
        let range = whole.start().checked_add(piece.start - start);
        let range = range.and_then(|start| AddrRange::with_len(start, len));
        let backing = if cached { Some(Backing::Pagecache) } else { copy };
        match (range, backing) {
            (Some(range), Some(backing)) => {
                text.spans.push(Span { range, file_offset: piece.start, backing });
            }
            _ => rest.push((why, len)),
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

impl fmt::Display for Plan {
    /// The table of `--dry-run`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, huge) = (self.text_bytes(), self.huge_bytes());
        writeln!(
            f,
            "plan   text {} MiB   huge {} MiB ({} %)   backing {}",
            mib(text),
            mib(huge),
            crate::report::percent(huge, text),
            self.main_backing().map_or_else(|| "-".to_owned(), |backing| backing.to_string()),
        )?;
        if let Some(rebase) = &self.rebase {
            writeln!(f, "rebase {} to {}", rebase.from, rebase.to)?;
        }
        writeln!(f, "{:<32} {:>7} {:>7}  {:<22} REST BECAUSE", "TEXT", "MiB", "HUGE", "FILE")?;
        for text in &self.texts {
            let huge: u64 = text.spans.iter().map(|span| span.range.len()).sum();
            let name = text.vma.display_path();
            let short = name.rsplit('/').next().unwrap_or_default();
            let rest: Vec<String> = text
                .rest
                .iter()
                .map(|(reason, bytes)| format!("{reason} {}", mib(*bytes)))
                .collect();
            writeln!(
                f,
                "{:<32} {:>7} {:>7}  {short:<22} {}",
                text.vma.range.to_string(),
                mib(text.vma.range.len()),
                mib(huge),
                if rest.is_empty() { "-".to_owned() } else { rest.join(", ") },
            )?;
            for span in &text.spans {
                let Span { range, file_offset, backing } = span;
                writeln!(f, "  huge {range} from file offset {file_offset:#x} by {backing}")?;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Returns the plan as one line of JSON; `reason` says why it cannot be carried out, if so.
    ///
    /// # Panics
    /// Never: a plan holds nothing that JSON cannot.
    pub fn to_json(&self, reason: Option<SkipReason>) -> String {
        #[derive(Serialize)]
        struct Text {
            #[serde(flatten, serialize_with = "start_and_end")]
            range: AddrRange,
            path: String,
            rest: Vec<crate::coverage::Rest>,
        }
        #[derive(Serialize)]
        struct Move {
            #[serde(serialize_with = "start_and_end")]
            from: AddrRange,
            #[serde(serialize_with = "start_and_end")]
            to: AddrRange,
        }
        #[derive(Serialize)]
        struct Json<'a> {
            schema: u32,
            kind: &'static str,
            backing: Option<Backing>,
            rebase: Option<Move>,
            reason: Option<SkipReason>,
            text_bytes: u64,
            huge_bytes: u64,
            spans: Vec<&'a Span>,
            texts: Vec<Text>,
        }
        let text = |text: &TextPlan| Text {
            range: text.vma.range,
            path: text.vma.display_path(),
            rest: text
                .rest
                .iter()
                .map(|&(reason, bytes)| crate::coverage::Rest { reason, bytes })
                .collect(),
        };
        let json = Json {
            schema: crate::report::SCHEMA,
            kind: "plan",
            backing: self.main_backing(),
            rebase: self.rebase.as_ref().map(|rebase| Move { from: rebase.from, to: rebase.to }),
            reason,
            text_bytes: self.text_bytes(),
            huge_bytes: self.huge_bytes(),
            spans: self.spans().collect(),
            texts: self.texts.iter().map(text).collect(),
        };
        serde_json::to_string(&json).expect("a plan holds only strings, numbers and lists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{PageSize, Pages};
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
        assert_eq!(plan.texts[0].rest, [(SkipReason::Edges, 0x1_1000)]);
        assert_eq!(plan.texts[1].rest, [(SkipReason::NotSelected, 8 << 20)]);
        assert_eq!((plan.huge_bytes(), plan.text_bytes()), (6 << 20, 0x61_1000 + (8 << 20)));
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
             00a00000-00c00000 --xp 00600000 fe:00 1 /m\n",
            0x40_0000,
        );
        let plan = plan_by(&snapshot, Backing::Image);
        let taken = [("00400000-00600000", 0), ("00a00000-00c00000", 0x60_0000)];
        assert_eq!(spans(&plan), taken.map(|(range, offset)| (range.to_owned(), offset)));
        for index in [1, 2] {
            assert_eq!(plan.texts[index].rest, [(SkipReason::NotSelected, 2 << 20)]);
        }
    }

    #[test]
    fn nothing_is_taken_where_the_entry_point_is_in_no_file() {
        let maps = "00400000-00800000 r-xp 00000000 fe:00 1 /m\n\
                    00800000-00a00000 r-xp 00000000 00:00 0 \n";
        for entry in [0, 0x3f_ffff, 0x80_0000, u64::MAX] {
            let plan = plan_by(&snapshot(maps, entry), Backing::Image);
            assert_eq!(spans(&plan), [], "entry {entry:#x}");
            assert_eq!(plan.texts.len(), 1, "code of no file is no text");
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
