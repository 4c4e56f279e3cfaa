//! The plots of a page, as SVG.

use std::fmt::Write;

use tiexec_core::addr::mib;
use tiexec_core::coverage::apart_from_small;
use tiexec_core::report::Report;

use super::escape;
use crate::compare::{Bench, figure, times};
use crate::heat::{CELLS, FileHeat, Heat, Point};
use crate::itlb::Itlb;

/// The width of every plot, in pixels.
const WIDTH: f64 = 900.0;
/// The margin left of a plot.
const LEFT: f64 = 220.0;
const INNER: f64 = WIDTH - LEFT - 20.0;
/// Files that get a heat map, and lines of each.
const MAPS: usize = 6;
const LINES: usize = 120;

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
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>{}</title>\n{body}</svg>\n",
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

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str, more: &str) {
        let _infallible = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" class=\"{class}\"{more}/>",
            width.max(0.0)
        );
    }

    fn upright(&mut self, x: f64, top: f64, bottom: f64, class: &str) {
        let _infallible = writeln!(
            self.body,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" class=\"{class}\"/>"
        );
    }

    fn curve(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _infallible =
            writeln!(self.body, "<polyline points=\"{}\" class=\"{class}\"/>", points.join(" "));
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
            "<g transform=\"translate(0 {:.0})\"><text x=\"0\" y=\"-8\">{}</text>\n{body}</g>",
            top + GAP - 4.0,
            escape(title)
        );
        top += height + GAP;
    }
    svg + "</svg>\n"
}

/// Returns the last part of a path that fits the room.
fn short(path: &str) -> String {
    const ROOM: usize = 30;
    let name = path.rsplit('/').next().unwrap_or(path);
    let count = name.chars().count();
    if count <= ROOM {
        return name.to_owned();
    }
    name.chars().take(ROOM - 1).chain(['…']).collect()
}

/// Plots how few pages hold how many of the samples.
pub(super) fn curves(heat: &Heat, itlb: &Itlb) -> Plot {
    let (top, bottom) = (10.0, 230.0);
    let mut plot = Plot::new("cumulative footprint", 270.0);
    let most = heat.base_pages.last().map_or(1, |point| point.pages).max(2);
    let scale = (most as f64).ln();
    let x = |pages: f64| LEFT + INNER * (pages.max(1.0).ln() / scale).min(1.0);
    let y = |share: f64| bottom - (bottom - top) * share;
    plot.rect(LEFT, top, INNER, bottom - top, "frame", "");
    for share in [0.5, 0.9, 0.99] {
        plot.curve(&[(LEFT, y(share)), (LEFT + INNER, y(share))], "line");
        let at = y(share) + if share > 0.95 { -2.0 } else { 9.0 };
        plot.text(LEFT - 8.0, at, "end", "quiet", &format!("{:.0} %", share * 100.0));
    }
    let mut pages = 1.0;
    while pages <= most as f64 {
        plot.text(x(pages), bottom + 16.0, "middle", "quiet", &format!("{pages:.0}"));
        pages *= 10.0;
    }
    plot.text(LEFT + INNER, bottom + 34.0, "end", "quiet", "pages, the hottest first");
    let (base, huge) = itlb.first.entries();
    for (entries, class) in [(base, "one"), (huge, "two")] {
        if entries > 0 && u64::from(entries) <= most {
            plot.upright(x(entries.into()), top, bottom, class);
        }
    }
    let line = |points: &[Point]| -> Vec<(f64, f64)> {
        points.iter().map(|point| (x(point.pages as f64), y(point.share))).collect()
    };
    plot.curve(&line(&heat.base_pages), "one");
    plot.curve(&line(&heat.huge_pages), "two");
    plot.rect(10.0, 20.0, 14.0, 4.0, "fill-one", "");
    plot.text(30.0, 27.0, "start", "", "base pages");
    plot.rect(10.0, 42.0, 14.0, 4.0, "fill-two", "");
    plot.text(30.0, 49.0, "start", "", "huge pages");
    plot
}

/// Plots how much of each file's text lies on huge pages.
pub(super) fn bars(coverage: &Report) -> Plot {
    const ROW: f64 = 24.0;
    let (mut files, _) = apart_from_small(&coverage.files);
    files.retain(|file| file.text_bytes > 0);
    files.sort_by_key(|file| std::cmp::Reverse(file.text_bytes));
    files.truncate(12);
    let most = files.first().map_or(1, |file| file.text_bytes) as f64;
    let mut plot = Plot::new("coverage", ROW * files.len() as f64 + 8.0);
    for (index, file) in files.iter().enumerate() {
        let y = 4.0 + ROW * index as f64;
        let width = |bytes: u64| (INNER - 180.0) * bytes as f64 / most;
        plot.text(LEFT - 8.0, y + 14.0, "end", "", &short(&file.path));
        plot.rect(LEFT, y, width(file.text_bytes), ROW - 6.0, "fill-quiet", "");
        plot.rect(LEFT, y, width(file.huge_bytes), ROW - 6.0, "now", "");
        let said = format!("{} of {} MiB", mib(file.huge_bytes), mib(file.text_bytes));
        plot.text(LEFT + width(file.text_bytes) + 8.0, y + 14.0, "start", "quiet", &said);
    }
    plot
}

/// Plots the places where the hottest files execute.
pub(super) fn maps(heat: &Heat) -> Vec<Plot> {
    heat.files.iter().take(MAPS).map(map).collect()
}

fn map(file: &FileHeat) -> Plot {
    const ROW: f64 = 12.0;
    // If there are too many rows, only the hottest are shown, in address order.
    let mut least = file.rows.iter().map(|row| row.samples).collect::<Vec<_>>();
    least.sort_unstable_by(|one, other| other.cmp(one));
    let least = least.get(LINES).copied().unwrap_or(0);
    let rows = file.rows.iter().filter(|row| row.samples > least || least == 0).take(LINES);
    let rows: Vec<_> = rows.collect();
    let title = format!("{} ({}): {} samples", file.path, file.pid, file.samples);
    let mut plot = Plot::new(title.clone(), 26.0 + ROW * rows.len() as f64);
    plot.text(0.0, 14.0, "start", "", &title);
    let hottest = rows.iter().flat_map(|row| &row.cells).copied().max().unwrap_or(1).max(1);
    let width = INNER / CELLS as f64;
    for (index, row) in rows.iter().enumerate() {
        let y = 22.0 + ROW * index as f64;
        plot.text(LEFT - 26.0, y + 9.0, "end", "quiet", &format!("{:x}", row.start.get()));
        if row.huge_now {
            plot.rect(LEFT - 18.0, y + 1.0, 8.0, 8.0, "now", "");
        } else if row.huge_then {
            plot.rect(LEFT - 18.0, y + 1.0, 8.0, 8.0, "then", "");
        }
        plot.rect(LEFT, y, INNER, ROW - 2.0, "frame", "");
        for (cell, &samples) in row.cells.iter().enumerate().filter(|cell| *cell.1 > 0) {
            let heat = 0.15 + 0.85 * ((samples as f64).ln_1p() / (hottest as f64).ln_1p());
            let opacity = format!(" fill-opacity=\"{heat:.2}\"");
            plot.rect(LEFT + width * cell as f64, y, width, ROW - 2.0, "hot", &opacity);
        }
    }
    plot
}

/// Plots the ratios of a benchmark and their intervals.
pub(super) fn ratios(bench: &Bench) -> Plot {
    const ROW: f64 = 26.0;
    let known: Vec<_> =
        bench.metrics.iter().filter_map(|metric| Some((&metric.name, metric.ratio?))).collect();
    let bottom = ROW * known.len() as f64 + 6.0;
    let mut plot = Plot::new("tiexec over plain", bottom + 24.0);
    // The axis cuts off far ratios, so that ratios near 1 stay readable.
    let reach = known.iter().map(|(_, ratio)| (1.0 - ratio.low).abs().max(ratio.high - 1.0));
    let reach = reach.fold(0.02, f64::max).min(0.5) * 1.1;
    let x = |ratio: f64| LEFT + INNER * ((ratio - 1.0) / reach).clamp(-1.0, 1.0).midpoint(1.0);
    plot.upright(x(1.0), 0.0, bottom, "line");
    for ratio in [1.0 - reach, 1.0, 1.0 + reach] {
        plot.text(x(ratio), bottom + 16.0, "middle", "quiet", &format!("{ratio:.2}"));
    }
    for (index, (name, ratio)) in known.iter().enumerate() {
        let y = ROW * index as f64 + 6.0;
        plot.text(LEFT - 26.0, y + 11.0, "end", "", name);
        let width = (x(ratio.high) - x(ratio.low)).max(1.0);
        plot.rect(x(ratio.low), y + 3.0, width, 8.0, "fill-one", " fill-opacity=\"0.4\"");
        if (ratio.estimate - 1.0).abs() <= reach {
            plot.rect(x(ratio.estimate) - 2.0, y, 4.0, 14.0, "fill-one", "");
        }
        // A point beyond the axis is described in words, because a drawn point would be in a wrong place.
        let beyond = |end: f64, anchor, arrow: &str| {
            let shown = if (ratio.estimate - 1.0) * (end - 1.0).signum() > reach {
                format!("{arrow} {}", times(ratio.estimate))
            } else {
                arrow.to_owned()
            };
            (x(end), anchor, shown)
        };
        let low = (ratio.low < 1.0 - reach).then(|| beyond(1.0 - reach, "start", "◂"));
        let high = (ratio.high > 1.0 + reach).then(|| beyond(1.0 + reach, "end", "▸"));
        for (at, anchor, shown) in [low, high].into_iter().flatten() {
            plot.text(at, y + 11.0, anchor, "", &shown);
        }
    }
    plot
}

/// Plots each round of the first figure, plain and with TiExec.
pub(super) fn rounds(bench: &Bench) -> Plot {
    let (top, bottom) = (10.0, 190.0);
    let mut plot = Plot::new("rounds", 220.0);
    let Some(first) = bench.metrics.first() else { return plot };
    let (plain, tiexec) = (&first.plain, &first.tiexec);
    let (low, high) = (plain.lowest.min(tiexec.lowest), plain.highest.max(tiexec.highest));
    let span = (high - low).max(f64::MIN_POSITIVE);
    let y = |value: f64| bottom - (bottom - top) * (value - low) / span;
    let step = INNER / plain.values.len().max(1) as f64;
    plot.rect(LEFT, top, INNER, bottom - top, "frame", "");
    for value in [low, high] {
        plot.text(LEFT - 8.0, y(value) + 4.0, "end", "quiet", &figure(value, &first.unit));
    }
    for (values, class, shift) in
        [(&plain.values, "fill-one", 0.35), (&tiexec.values, "fill-two", 0.65)]
    {
        for (index, &value) in values.iter().enumerate() {
            let x = LEFT + step * (index as f64 + shift);
            plot.rect(x - 3.0, y(value) - 3.0, 6.0, 6.0, class, "");
        }
    }
    plot.rect(10.0, 20.0, 10.0, 10.0, "fill-one", "");
    plot.text(30.0, 29.0, "start", "", "plain");
    plot.rect(10.0, 42.0, 10.0, 10.0, "fill-two", "");
    plot.text(30.0, 51.0, "start", "", "tiexec");
    plot.text(LEFT + INNER, bottom + 16.0, "end", "quiet", "rounds");
    plot
}
