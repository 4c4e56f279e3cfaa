//! The plots of a page, as SVG.
//!
//! A plot is as wide as a column of text, and scales with the page: names stand above what they name, so nothing is cut
//! off or too small to read on a telephone.

use std::fmt::Write;

use tiexec_core::addr::mib;
use tiexec_core::coverage::apart_from_small;
use tiexec_core::report::Report;

use super::{Saving, escape, percent};
use crate::canary::Account;
use crate::compare::{Bench, Comparison, figure, times};
use crate::heat::{CELLS, FileHeat, Heat, Point};
use crate::itlb::Itlb;
use crate::sequential::TOLERANCE;

/// The width of every plot. On a page of its full width, a unit is a little more than a pixel.
const WIDTH: f64 = 440.0;
/// The margin at both sides.
const EDGE: f64 = 4.0;
const INNER: f64 = WIDTH - 2.0 * EDGE;
/// The margin left of a plot whose upright axis has labels.
const LEFT: f64 = 56.0;
/// The margin left of a heat map, for addresses.
const LEFT_OF_MAP: f64 = 116.0;
/// Files that get a heat map, and lines of each.
const MAPS: usize = 6;
const LINES: usize = 120;
/// The height of a line of text.
const TEXT: f64 = 16.0;

/// One plot.
pub(super) struct Plot {
    title: String,
    height: f64,
    body: String,
}

impl Plot {
    fn new(title: impl Into<String>, height: f64) -> Self {
        Self { title: title.into(), height, body: String::new() }
    }

    /// Renders the plot as an SVG element within HTML.
    pub(super) fn to_html(&self) -> String {
        let Self { title, height, body } = self;
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n<title>{}</title>\n{body}</svg>\n",
            escape(title)
        )
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = escape(text);
        let _infallible = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        );
    }

    /// Names what stands below: a name at the left, a figure at the right.
    fn heading(&mut self, y: f64, name: &str, figure: &str) {
        self.text(EDGE, y, "start", "", name);
        self.text(EDGE + INNER, y, "end", "quiet", figure);
    }

    /// Labels both ends of a level axis, and says between them what it is about.
    fn ends(&mut self, left: f64, y: f64, [low, high]: [&str; 2], about: &str) {
        self.text(left, y, "start", "quiet", low);
        if !about.is_empty() {
            self.text(f64::midpoint(left, EDGE + INNER), y, "middle", "quiet", about);
        }
        self.text(EDGE + INNER, y, "end", "quiet", high);
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str, more: &str) {
        let _infallible = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" class=\"{class}\"{more}/>",
            width.max(0.0)
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _infallible = writeln!(
            self.body,
            "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        );
    }

    fn curve(&mut self, points: &[(f64, f64)], class: &str) {
        self.points("polyline", points, class);
    }

    fn points(&mut self, shape: &str, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _infallible =
            writeln!(self.body, "<{shape} points=\"{}\" class=\"{class}\"/>", points.join(" "));
    }

    /// Says what the colours mean, side by side at the top.
    fn legend(&mut self, all: &[(&str, &str)]) {
        for (at, (class, name)) in all.iter().enumerate() {
            let x = EDGE + 130.0 * at as f64;
            self.rect(x, 4.0, 10.0, 10.0, class, "");
            self.text(x + 16.0, 13.0, "start", "", name);
        }
    }
}

/// Puts plots one below the other in a document of their own.
pub(super) fn document(plots: &[Plot], style: &str) -> String {
    const GAP: f64 = 30.0;
    let height: f64 = plots.iter().map(|plot| plot.height + GAP).sum();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\">\n<style>\n{style}</style>\n\
         <rect width=\"100%\" height=\"100%\" style=\"fill: var(--paper)\"/>\n"
    );
    let mut top = 0.0;
    for Plot { title, height, body } in plots {
        let _infallible = writeln!(
            svg,
            "<g transform=\"translate(0 {:.0})\"><text x=\"{EDGE}\" y=\"-8\">{}</text>\n{body}</g>",
            top + GAP - 4.0,
            escape(&short(title, 64))
        );
        top += height + GAP;
    }
    svg + "</svg>\n"
}

/// Returns the last part of a path, cut to so many letters.
fn short(path: &str, room: usize) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    cut(name, room)
}

/// Returns a text as it is shown, cut to so many letters.
fn cut(text: &str, room: usize) -> String {
    use tiexec_core::escape::AsShown;
    let shown = text.shown().to_string();
    if shown.chars().count() <= room {
        return shown;
    }
    shown.chars().take(room - 1).chain(['…']).collect()
}

/// Returns the least of 1, 1.5, 2, 3, 5 and 7 times a power of ten that is not below `reach`.
fn round_up(reach: f64) -> f64 {
    let power = 10f64.powf(reach.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0].map(|step| step * power);
    // The tolerance is for the last bit of the logarithm.
    steps.into_iter().find(|step| *step >= reach * (1.0 - 1e-9)).unwrap_or(reach)
}

/// Plots the saved processor time with its interval, from zero.
pub(super) fn savings(savings: &[Saving]) -> Plot {
    const ROW: f64 = 40.0;
    let bottom = 4.0 + ROW * savings.len() as f64;
    let mut plot = Plot::new("processor time saved", bottom + 2.0 * TEXT);
    let all = || savings.iter().flat_map(|one| one.range.into_iter().flatten().chain([one.share]));
    // No more than all of the time can be saved. A loss has no limit, so far losses are cut off.
    let low = all().filter(|share| share.is_finite()).fold(0.0, f64::min).max(-1.0);
    let high = all().filter(|share| share.is_finite()).fold(0.0, f64::max).min(1.0);
    let low = if low < 0.0 { -round_up(-low) } else { 0.0 };
    let high = if high > 0.0 || low == 0.0 { round_up(high.max(0.01)) } else { 0.0 };
    let x = |share: f64| EDGE + INNER * ((share - low) / (high - low)).clamp(0.0, 1.0);
    for (index, Saving { name, share, range }) in savings.iter().enumerate() {
        let y = 4.0 + ROW * index as f64;
        let said = match range {
            Some([least, most]) => {
                format!("{} ({} to {})", percent(*share), percent(*least), percent(*most))
            }
            None => percent(*share),
        };
        plot.heading(y + 12.0, &short(name, 26), &said);
        let class = if *share < 0.0 { "fill-two" } else { "now" };
        let (from, to) = (x(share.min(0.0)), x(share.max(0.0)));
        plot.rect(from, y + 18.0, to - from, 12.0, class, "");
        if range.map_or(*share, |[least, _]| least) < low {
            plot.text(EDGE, y + 28.0, "start", "", "◂");
        }
        if let Some([least, most]) = *range {
            let middle = y + 24.0;
            plot.line((x(least), middle), (x(most), middle), "ink");
            // An end beyond the axis has no mark.
            for end in [least, most].into_iter().filter(|end| (low..=high).contains(end)) {
                plot.line((x(end), middle - 5.0), (x(end), middle + 5.0), "ink");
            }
        }
    }
    plot.line((x(0.0), 18.0), (x(0.0), bottom), "line");
    plot.line((EDGE, bottom), (EDGE + INNER, bottom), "line");
    let [left, right] =
        [low, high].map(|end| if end == 0.0 { "0".to_owned() } else { percent(end) });
    plot.ends(EDGE, bottom + 14.0, [&left, &right], "");
    if low < 0.0 && high > 0.0 {
        let inside = x(0.0).clamp(EDGE + 60.0, EDGE + INNER - 60.0);
        plot.text(inside, bottom + 14.0, "middle", "quiet", "0");
    }
    plot
}

/// Plots how few pages hold how many of the samples.
pub(super) fn curves(heat: &Heat, itlb: &Itlb) -> Plot {
    let (top, bottom) = (24.0, 230.0);
    let inner = EDGE + INNER - LEFT;
    let mut plot = Plot::new("cumulative footprint", 268.0);
    let most = heat.base_pages.last().map_or(1, |point| point.pages).max(2);
    let scale = (most as f64).ln();
    let x = |pages: f64| LEFT + inner * (pages.max(1.0).ln() / scale).min(1.0);
    let y = |share: f64| bottom - (bottom - top) * share;
    plot.legend(&[("fill-one", "base pages"), ("fill-two", "huge pages")]);
    plot.rect(LEFT, top, inner, bottom - top, "frame", "");
    for share in [0.5, 0.9] {
        plot.line((LEFT, y(share)), (LEFT + inner, y(share)), "line");
    }
    for share in [0.0, 0.5, 0.9, 1.0] {
        let shown = format!("{:.0} %", share * 100.0);
        plot.text(LEFT - 6.0, y(share) + 4.0, "end", "quiet", &shown);
    }
    plot.ends(LEFT, bottom + 14.0, ["1", &most.to_string()], "");
    plot.text(
        EDGE + INNER,
        bottom + 30.0,
        "end",
        "quiet",
        "pages, the hottest first (logarithmic)",
    );
    let (base, huge) = itlb.first.entries();
    let entries = if base == huge {
        vec![(base, "one", format!("{base} TLB entries"))]
    } else {
        vec![
            (base, "one", format!("{base} TLB entries for base pages")),
            (huge, "two", format!("{huge} TLB entries for huge pages")),
        ]
    };
    let drawn = entries.iter().filter(|(entries, ..)| is_drawn(*entries, most));
    for (at, (entries, class, name)) in drawn.enumerate() {
        let (at, x) = (bottom - 8.0 - TEXT * at as f64, x((*entries).into()));
        plot.line((x, top), (x, bottom), class);
        let (place, anchor) =
            if x > LEFT + inner / 2.0 { (x - 4.0, "end") } else { (x + 4.0, "start") };
        plot.text(place, at, anchor, "quiet", name);
    }
    let line = |points: &[Point]| -> Vec<(f64, f64)> {
        points.iter().map(|point| (x(point.pages as f64), y(point.share))).collect()
    };
    plot.curve(&line(&heat.base_pages), "one");
    plot.curve(&line(&heat.huge_pages), "two");
    plot
}

/// Returns whether the number of TLB entries lies on the axis of [`curves`].
fn is_drawn(entries: u32, most: u64) -> bool {
    entries > 0 && u64::from(entries) <= most
}

/// Returns whether [`curves`] has an upright line.
pub(super) fn has_entries(heat: &Heat, itlb: &Itlb) -> bool {
    let most = heat.base_pages.last().map_or(1, |point| point.pages).max(2);
    let (base, huge) = itlb.first.entries();
    is_drawn(base, most) || is_drawn(huge, most)
}

/// Plots how much of each file's text lies on huge pages.
pub(super) fn bars(coverage: &Report) -> Plot {
    const ROW: f64 = 36.0;
    let (mut files, _) = apart_from_small(&coverage.files);
    files.retain(|file| file.text_bytes > 0);
    files.sort_by_key(|file| std::cmp::Reverse(file.text_bytes));
    files.truncate(12);
    let most = files.first().map_or(1, |file| file.text_bytes);
    let bottom = 4.0 + ROW * files.len() as f64;
    let mut plot = Plot::new("coverage", bottom + TEXT + 4.0);
    for (index, file) in files.iter().enumerate() {
        let y = 4.0 + ROW * index as f64;
        let width = |bytes: u64| INNER * bytes.min(most) as f64 / most as f64;
        let said = format!("{} of {} MiB", mib(file.huge_bytes), mib(file.text_bytes));
        plot.heading(y + 12.0, &short(&file.path, 40), &said);
        plot.rect(EDGE, y + 17.0, width(file.text_bytes), 12.0, "fill-quiet", "");
        plot.rect(EDGE, y + 17.0, width(file.huge_bytes), 12.0, "now", "");
    }
    plot.ends(EDGE, bottom + 12.0, ["0", &format!("{} MiB", mib(most))], "text");
    plot
}

/// Plots the places where the hottest files execute. `page` is the size of a line.
pub(super) fn maps(heat: &Heat) -> Vec<Plot> {
    heat.files.iter().take(MAPS).map(|file| map(file, heat.huge_page_bytes)).collect()
}

fn map(file: &FileHeat, page: u64) -> Plot {
    const ROW: f64 = 12.0;
    let rows = shown_rows(file);
    let title = format!("{} ({}): {} samples", file.path, file.pid, file.samples);
    let bottom = 22.0 + ROW * rows.len() as f64;
    let mut plot = Plot::new(title, bottom + TEXT + 4.0);
    let samples = format!("{} samples, process {}", file.samples, file.pid);
    plot.heading(14.0, &short(&file.path, 32), &samples);
    let hottest = rows.iter().flat_map(|row| &row.cells).copied().max().unwrap_or(1).max(1);
    let inner = EDGE + INNER - LEFT_OF_MAP;
    let width = inner / CELLS as f64;
    for (index, row) in rows.iter().enumerate() {
        let y = 22.0 + ROW * index as f64;
        let start = format!("{:x}", row.start.get());
        plot.text(LEFT_OF_MAP - 16.0, y + 9.0, "end", "quiet", &start);
        if row.huge_now {
            plot.rect(LEFT_OF_MAP - 12.0, y + 1.0, 8.0, 8.0, "now", "");
        } else if row.huge_then {
            plot.rect(LEFT_OF_MAP - 12.0, y + 1.0, 8.0, 8.0, "then", "");
        }
        plot.rect(LEFT_OF_MAP, y, inner, ROW - 2.0, "frame", "");
        for (cell, &samples) in row.cells.iter().enumerate().filter(|cell| *cell.1 > 0) {
            let heat = 0.15 + 0.85 * ((samples as f64).ln_1p() / (hottest as f64).ln_1p());
            let opacity = format!(" fill-opacity=\"{heat:.2}\"");
            plot.rect(LEFT_OF_MAP + width * cell as f64, y, width, ROW - 2.0, "hot", &opacity);
        }
    }
    let last = format!("+{} MiB", mib(page));
    plot.ends(LEFT_OF_MAP, bottom + 12.0, ["+0", &last], "from that address");
    plot
}

/// Returns the rows of a heat map. If there are too many, only the hottest are shown, in address order.
fn shown_rows(file: &FileHeat) -> Vec<&crate::heat::Row> {
    let mut least = file.rows.iter().map(|row| row.samples).collect::<Vec<_>>();
    least.sort_unstable_by(|one, other| other.cmp(one));
    let least = least.get(LINES).copied().unwrap_or(0);
    let rows = file.rows.iter().filter(|row| row.samples > least || least == 0);
    rows.take(LINES).collect()
}

/// Returns whether the heat maps have a full square, and an empty one.
pub(super) fn squares(heat: &Heat) -> [bool; 2] {
    let rows = || heat.files.iter().take(MAPS).flat_map(shown_rows);
    [rows().any(|row| row.huge_now), rows().any(|row| row.huge_then && !row.huge_now)]
}

/// Plots the ratios of a benchmark and their intervals.
pub(super) fn ratios(bench: &Bench) -> Plot {
    const ROW: f64 = 38.0;
    let known: Vec<_> =
        bench.metrics.iter().filter_map(|metric| Some((&metric.name, metric.ratio?))).collect();
    let bottom = ROW * known.len() as f64 + TEXT + 4.0;
    let mut plot = Plot::new("tiexec over plain", bottom + TEXT + 4.0);
    // The axis cuts off far ratios, so that ratios near 1 stay readable.
    let reach = known.iter().map(|(_, ratio)| (1.0 - ratio.low).abs().max(ratio.high - 1.0));
    let reach = reach.fold(0.02, f64::max).min(0.5) * 1.1;
    let x = |ratio: f64| EDGE + INNER * ((ratio - 1.0) / reach).clamp(-1.0, 1.0).midpoint(1.0);
    plot.text(x(1.0), 12.0, "middle", "quiet", "1: no difference");
    for (index, (name, ratio)) in known.iter().enumerate() {
        let y = ROW * index as f64 + TEXT + 4.0;
        let said =
            format!("{} ({}–{})", times(ratio.estimate), times(ratio.low), times(ratio.high));
        plot.heading(y + 12.0, &cut(name, 34), &said);
        let (from, to) = (x(ratio.low), x(ratio.high));
        plot.rect(from, y + 20.0, (to - from).max(1.0), 8.0, "fill-one", " fill-opacity=\"0.4\"");
        // A point beyond the axis is only in words, because a drawn point would be in a wrong place.
        if (ratio.estimate - 1.0).abs() <= reach {
            plot.rect(x(ratio.estimate) - 2.0, y + 17.0, 4.0, 14.0, "fill-one", "");
        }
        for (is_beyond, end, anchor, arrow) in [
            (ratio.low < 1.0 - reach, 1.0 - reach, "start", "◂"),
            (ratio.high > 1.0 + reach, 1.0 + reach, "end", "▸"),
        ] {
            if is_beyond {
                plot.text(x(end), y + 28.0, anchor, "", arrow);
            }
        }
    }
    plot.line((x(1.0), TEXT), (x(1.0), bottom), "line");
    plot.line((EDGE, bottom), (EDGE + INNER, bottom), "line");
    let [low, high] = [1.0 - reach, 1.0 + reach].map(|ratio| format!("{ratio:.2}"));
    plot.ends(EDGE, bottom + 14.0, [&low, &high], "tiexec over plain");
    plot
}

/// Plots each round of a figure: plain, with TiExec, and a line that joins the two.
pub(super) fn rounds(metric: &Comparison) -> Plot {
    let (top, bottom) = (24.0, 200.0);
    let left = LEFT + 30.0;
    let inner = EDGE + INNER - left;
    let mut plot = Plot::new("rounds", bottom + TEXT + 4.0);
    let (plain, tiexec) = (&metric.plain, &metric.tiexec);
    let (low, high) = (plain.lowest.min(tiexec.lowest), plain.highest.max(tiexec.highest));
    let span = (high - low).max(f64::MIN_POSITIVE);
    let y = |value: f64| {
        // A file may have figures whose difference is not finite.
        let share = Some((value - low) / span).filter(|share| share.is_finite()).unwrap_or(0.0);
        bottom - 6.0 - (bottom - top - 12.0) * share.clamp(0.0, 1.0)
    };
    let count = plain.values.len();
    let step = inner / count.max(1) as f64;
    let mark = (step * 0.3).clamp(1.0, 6.0);
    plot.legend(&[("fill-one", "plain"), ("fill-two", "tiexec")]);
    plot.rect(left, top, inner, bottom - top, "frame", "");
    for value in [low, high] {
        plot.text(left - 6.0, y(value) + 4.0, "end", "quiet", &figure(value, &metric.unit));
    }
    for (index, (&plain, &tiexec)) in plain.values.iter().zip(&tiexec.values).enumerate() {
        let x = |share: f64| left + step * (index as f64 + share);
        let ends = [(x(0.3), y(plain), "fill-one"), (x(0.7), y(tiexec), "fill-two")];
        plot.line((ends[0].0, ends[0].1), (ends[1].0, ends[1].1), "joins");
        for (x, y, class) in ends {
            plot.rect(x - mark / 2.0, y - mark / 2.0, mark, mark, class, "");
        }
    }
    plot.ends(left, bottom + 14.0, ["1", &count.to_string()], "round");
    plot
}

/// Plots the interval of a canary's ratio, as it became narrower pair by pair.
pub(super) fn narrowing(account: &Account) -> Plot {
    let (top, bottom) = (24.0, 230.0);
    let inner = EDGE + INNER - LEFT;
    let mut plot = Plot::new("the interval after each pair", bottom + TEXT + 4.0);
    let points = &account.history;
    let last = points.last().map_or(1, |point| point.pairs).max(2);
    // The first intervals are wide: the axis fits the later half.
    let later = points.iter().filter(|point| point.pairs.saturating_mul(2) >= last);
    let ends = later.flat_map(|point| [point.ratio.low, point.ratio.estimate, point.ratio.high]);
    let ends = ends.flatten().chain([1.0 - TOLERANCE, 1.0, account.keep_above]);
    let (low, high) = ends
        .filter(|end| end.is_finite())
        .fold((f64::MAX, f64::MIN), |(low, high), end| (low.min(end), high.max(end)));
    let pad = ((high - low) * 0.1).max(0.002);
    let (low, high) = ((low - pad).max(0.0), high + pad);
    let x = |pairs: usize| LEFT + inner * (pairs.saturating_sub(1) as f64 / (last - 1) as f64);
    let y = |ratio: f64| bottom - (bottom - top) * ((ratio - low) / (high - low)).clamp(0.0, 1.0);
    let interval = format!("{:.0} % interval", account.confidence * 100.0);
    plot.legend(&[("fill-one", "estimate"), ("band", &interval)]);
    plot.rect(LEFT, top, inner, bottom - top, "frame", "");
    let known = || {
        let ends = |point: &crate::canary::AtPair| {
            Some((x(point.pairs), y(point.ratio.low?), y(point.ratio.high?)))
        };
        points.iter().filter_map(ends)
    };
    let outline: Vec<(f64, f64)> = known()
        .map(|(x, low, _)| (x, low))
        .chain(known().collect::<Vec<_>>().into_iter().rev().map(|(x, _, high)| (x, high)))
        .collect();
    plot.points("polygon", &outline, "band");
    let estimate = points.iter().filter_map(|at| Some((x(at.pairs), y(at.ratio.estimate?))));
    plot.curve(&estimate.collect::<Vec<_>>(), "one");
    // The lines are close to each other, so their names stand in different places.
    let (keep, no_worse) = (account.keep_above, 1.0 - TOLERANCE);
    let kept = format!("better: above {}", times(keep));
    let tolerated = format!("no worse: above {}", times(no_worse));
    for (ratio, name, (x, anchor), below) in [
        (no_worse, &*tolerated, (LEFT + 4.0, "start"), TEXT - 3.0),
        (1.0, "worse: below 1", (EDGE + INNER - 4.0, "end"), TEXT - 3.0),
        (keep, &*kept, (EDGE + INNER - 4.0, "end"), -4.0),
    ] {
        plot.line((LEFT, y(ratio)), (LEFT + inner, y(ratio)), "limit");
        plot.text(x, y(ratio) + below, anchor, "quiet", name);
    }
    for (ratio, place) in [(low, bottom), (high, top + 8.0)] {
        plot.text(LEFT - 6.0, place, "end", "quiet", &times(ratio));
    }
    plot.ends(LEFT, bottom + 14.0, ["1", &last.to_string()], "pair");
    plot
}
