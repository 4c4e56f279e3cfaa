//! A self-contained page for people. It shows where a process executes and how much of that lies on huge pages, or the
//! findings of a benchmark.
//!
//! The page is plain HTML and SVG, without scripts and without anything from the network. Each number stands in a
//! `<data>` element with its full value and its place in the JSON that the page carries, so that a program can compare
//! the two.

mod plots;

use std::fmt::Write;

use plots::Plot;
use serde::Serialize;
use serde_json::Value;
use tiexec_core::addr::mib;
use tiexec_core::coverage::{FileCoverage, apart_from_small, small_files};
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::{Report, SCHEMA};

use crate::advice::Advice;
use crate::compare::{Bench, Unit, figure, times};
use crate::heat::Heat;
use crate::itlb::Verdict;

/// The subject of a page.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A process that was sampled.
    Process {
        /// The advice of the model.
        advice: Box<Advice>,
        /// The text on huge pages, as the kernel reports it.
        coverage: Box<Report>,
        /// The places where it executes.
        heat: Box<Heat>,
    },
    /// A benchmark.
    Bench(Box<Bench>),
}

/// When, where and by what a page was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Made {
    /// When (UTC).
    pub date: String,
    /// The processor and the kernel.
    pub machine: String,
    /// The version of TiExec.
    pub version: &'static str,
}

/// A page.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Page {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `page`.
    pub kind: &'static str,
    /// When, where and by what it was made.
    pub made: Made,
    /// The subject of the page.
    #[serde(flatten)]
    pub subject: Subject,
}

impl Page {
    /// Makes a page.
    pub fn new(subject: Subject, made: Made) -> Self {
        Self { schema: SCHEMA, kind: "page", made, subject }
    }

    /// Renders the page as a whole HTML document.
    pub fn to_html(&self) -> String {
        let json = serde_json::to_value(self).unwrap_or_default();
        let data = Data(&json);
        let (title, body) = match &self.subject {
            Subject::Process { advice, coverage, heat } => (
                format!("{} {}", advice.comm, advice.pid),
                of_process(&data, advice, coverage, heat),
            ),
            Subject::Bench(bench) => (bench.command.join(" "), of_bench(&data, bench)),
        };
        // Only `<` could end the script element.
        let carried = escape::json(&json).replace('<', "\\u003c");
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>TiExec: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n{body}<p class=\"quiet\">{made}</p>\n<script type=\"application/json\" id=\"data\">{carried}</script>\n</body>\n</html>\n",
            title = escape(&title),
            made = self.made(),
        )
    }

    /// Says when, where and by what the page was made. For a benchmark, also describes the measurements.
    fn made(&self) -> String {
        let Made { date, machine, version } = &self.made;
        match &self.subject {
            Subject::Process { .. } => {
                format!("{}; {}; TiExec {version}", escape(date), escape(machine))
            }
            Subject::Bench(bench) => {
                let measured = bench.date.as_deref().unwrap_or("at a time that was not recorded");
                let by =
                    bench.version.as_deref().map_or(String::new(), |by| format!(" by TiExec {by}"));
                format!(
                    "measured {}{}; page made {} by TiExec {version}",
                    escape(measured),
                    escape(&by),
                    escape(date)
                )
            }
        }
    }

    /// Renders the plots alone, one below the other, as an SVG document.
    pub fn to_svg(&self) -> String {
        plots::document(&self.plots(), STYLE)
    }

    fn plots(&self) -> Vec<Plot> {
        match &self.subject {
            Subject::Process { advice, coverage, heat } => {
                let mut all = vec![plots::curves(heat, &advice.itlb), plots::bars(coverage)];
                all.extend(plots::maps(heat));
                all
            }
            Subject::Bench(bench) => vec![plots::ratios(bench), plots::rounds(bench)],
        }
    }
}

const STYLE: &str = include_str!("style.css");

/// Escapes text for HTML and for attributes in double quotes. Control characters are shown as text.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.shown().to_string().chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The JSON of the page, from which its numbers are taken.
struct Data<'a>(&'a Value);

impl Data<'_> {
    /// Returns the number at this JSON pointer, shown as `form` says.
    fn number(&self, pointer: &str, form: impl FnOnce(f64) -> String) -> String {
        match self.0.pointer(pointer).filter(|value| value.is_number()) {
            Some(value) => {
                let shown = escape(&form(value.as_f64().unwrap_or(f64::NAN)));
                format!("<data value=\"{value}\" data-json=\"{}\">{shown}</data>", escape(pointer))
            }
            None => "–".to_owned(),
        }
    }

    fn percent(&self, pointer: &str) -> String {
        self.number(pointer, |share| format!("{:.1} %", share * 100.0))
    }

    fn count(&self, pointer: &str) -> String {
        self.number(pointer, |count| format!("{count:.0}"))
    }

    fn mib(&self, pointer: &str) -> String {
        self.number(pointer, |bytes| format!("{} MiB", mib(bytes as u64)))
    }
}

/// Renders the next step.
fn next(command: Option<&str>) -> String {
    match command {
        Some(command) => format!("<p>Next: <code>{}</code></p>\n", escape(command)),
        None => "<p>Next: nothing; leave it as it is.</p>\n".to_owned(),
    }
}

/// Most files in the table. Further files are only in the JSON.
const ROWS: usize = 20;

fn table(html: &mut String, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    html.push_str("<table>\n<tr>");
    for head in heads {
        let _infallible = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr>\n");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _infallible = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
}

fn section(html: &mut String, title: &str, explained: &str, content: &str) {
    let _infallible = write!(
        html,
        "<section>\n<h2>{title}</h2>\n{content}<p class=\"quiet\">{explained}</p>\n</section>\n"
    );
}

fn of_process(data: &Data<'_>, advice: &Advice, coverage: &Report, heat: &Heat) -> String {
    // The kernel tells how much text of one process is huge.
    let (of_all, of_one) = match advice.sampling.processes {
        0 | 1 => (String::new(), String::new()),
        _ => {
            let count = data.count("/process/advice/sampling/processes");
            (format!(" of {count} processes"), format!(" of process {}", coverage.pid))
        }
    };
    let mut html = format!(
        "<h1>{} {}</h1>\n<p class=\"quiet\">{} samples{of_all} in {}, {} lost</p>\n",
        escape(&advice.comm),
        advice.pid,
        data.count("/process/advice/sampling/samples"),
        data.number("/process/advice/sampling/duration_ms", |ms| format!("{:.1} s", ms / 1000.0)),
        data.count("/process/advice/sampling/lost"),
    );
    let (saved, at) = match advice.judgement.verdict {
        Verdict::Done => ("huge pages save about", "saved"),
        _ => ("about", "saving"),
    };
    let judgement = |key: &str| data.percent(&format!("/process/advice/judgement/{key}"));
    let _infallible = write!(
        html,
        "<p class=\"verdict\">{}: {saved} {} of its time in user mode",
        advice.judgement.verdict,
        judgement(at)
    );
    let [least, most] = advice.judgement.saving_range;
    if at == "saving" && least < most {
        let (least, most) = (judgement("saving_range/0"), judgement("saving_range/1"));
        let _infallible = write!(
            html,
            "<br><small>{least} to {most}, as far as the model can be off: measure it</small>"
        );
    }
    html.push_str("</p>\n<ul>\n");
    for reason in &advice.judgement.reasons {
        let _infallible = writeln!(html, "<li>{}</li>", escape(reason));
    }
    html.push_str("</ul>\n");
    html.push_str(&next(advice.next.as_deref()));

    let mut content = plots::bars(coverage).to_html();
    let (shown, _) = apart_from_small(&coverage.files);
    let is_shown = |(_, file): &(usize, &FileCoverage)| shown.contains(file);
    let rows =
        coverage.files.iter().enumerate().filter(is_shown).take(ROWS).map(|(index, file)| {
            let at = |key: &str| data.mib(&format!("/process/coverage/files/{index}/{key}"));
            vec![escape(&file.path), at("text_bytes"), at("huge_bytes")]
        });
    table(&mut content, &["file", "text", "on huge pages"], rows);
    let (_, small) = apart_from_small(&coverage.files);
    if !small.is_empty() {
        let words = small_files(small.len());
        let _infallible = writeln!(content, "<p class=\"quiet\">{words}</p>");
    }
    section(
        &mut html,
        &format!("Coverage{of_one}"),
        "The text of each file that is on huge pages now, by the kernel's page tables.",
        &content,
    );

    let mut content = plots::curves(heat, &advice.itlb).to_html();
    let rows = advice.files.iter().enumerate().take(ROWS).map(|(index, file)| {
        let at = |key: &str| format!("/process/advice/files/{index}/{key}");
        vec![
            escape(&file.path),
            data.percent(&at("share")),
            data.count(&at("base_pages/p50")),
            data.count(&at("base_pages/p90")),
            data.count(&at("base_pages/p99")),
            data.count(&at("huge_pages/p99")),
            data.percent(&at("on_huge_now")),
            data.percent(&at("on_huge_then")),
            data.number(&at("model/misses_now/first"), |misses| format!("{misses:.2}")),
            data.number(&at("model/misses_then/first"), |misses| format!("{misses:.2}")),
        ]
    });
    let heads = [
        "file",
        "time",
        "50 %",
        "90 %",
        "99 %",
        "huge 99 %",
        "on huge now",
        "possible",
        "misses now",
        "misses on huge",
    ];
    table(&mut content, &heads, rows);
    let explained = "The number of pages, the hottest first, that hold a share of the executed code. The upright lines are the \
                     first-level TLB entries for base pages and, broken, for huge pages. Misses are modelled, in 1000 \
                     instructions.";
    section(&mut html, "Footprint", explained, &content);

    let content: String = plots::maps(heat).iter().map(Plot::to_html).collect();
    let explained = "Each line is one huge page of addresses that was seen executing, from left to right; the darker, \
                     the hotter (logarithmic). The square before it is full where text is on a huge page now, and empty \
                     where it could be.";
    section(&mut html, "Heat", explained, &content);
    html
}

fn of_bench(data: &Data<'_>, bench: &Bench) -> String {
    let unit = match bench.unit {
        Unit::Process => "each way in a process of its own, by turns",
        Unit::Slice => "slices of one process, by turns: true of that process",
    };
    let options = bench.options.iter().map(|option| format!(" {}", escape(option)));
    let mut html = format!(
        "<h1>{}</h1>\n<p class=\"quiet\">plain against tiexec{}; {} rounds, {unit}; {}</p>\n",
        escape(&bench.command.join(" ")),
        options.collect::<String>(),
        data.count("/bench/rounds"),
        escape(&bench.machine),
    );
    // Without these figures, both ways may have had the same pages.
    if bench.huge_plain_bytes.is_some() && bench.huge_tiexec_bytes.is_some() {
        let _infallible = writeln!(
            html,
            "<p class=\"quiet\">text on huge pages: plain {}, tiexec {}</p>",
            data.mib("/bench/huge_plain_bytes"),
            data.mib("/bench/huge_tiexec_bytes")
        );
    }
    if let Some(first) = bench.metrics.first() {
        let _infallible = writeln!(
            html,
            "<p class=\"verdict\">{}: {}</p>",
            escape(&first.name),
            escape(&first.words(bench.round_s))
        );
    }
    if let Some(command) = bench.next() {
        html.push_str(&next(Some(&command)));
    }
    let mut content = plots::ratios(bench).to_html();
    let rows = bench.metrics.iter().enumerate().map(|(index, metric)| {
        let at = |key: &str| format!("/bench/metrics/{index}/{key}");
        let value = |key: &str| data.number(&at(key), |value| figure(value, &metric.unit));
        let ratio = |key: &str| data.number(&at(key), times);
        vec![
            escape(&metric.name),
            value("plain/median"),
            value("tiexec/median"),
            ratio("ratio/estimate"),
            format!("{} – {}", ratio("ratio/low"), ratio("ratio/high")),
        ]
    });
    table(&mut content, &["median", "plain", "tiexec", "ratio", "interval"], rows);
    let explained = format!(
        "TiExec's figure over the plain one, with its interval of {}. A difference is claimed only where the interval \
         does not reach 1.",
        data.number("/bench/confidence", |share| format!("{:.0} %", share * 100.0))
    );
    section(&mut html, "Ratios", &explained, &content);
    let content = plots::rounds(bench).to_html();
    section(&mut html, "Rounds", "The first figure, in each round.", &content);
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{CONFIDENCE, Comparison};

    fn bench(command: &str) -> Page {
        let pairs: Vec<(f64, f64)> =
            (0..10).map(|i| (1.0 + f64::from(i) / 100.0, 0.9 + f64::from(i) / 90.0)).collect();
        let subject = Subject::Bench(Box::new(Bench {
            schema: SCHEMA,
            kind: Bench::KIND.to_owned(),
            command: vec![command.to_owned()],
            pid: None,
            options: Vec::new(),
            unit: Unit::Process,
            rounds: 10,
            round_s: None,
            confidence: CONFIDENCE,
            huge_plain_bytes: None,
            huge_tiexec_bytes: None,
            machine: "a machine".to_owned(),
            date: Some("2026-01-02 03:04 UTC".to_owned()),
            version: Some("0.9".to_owned()),
            metrics: vec![
                Comparison::new("wall time", "s", None, &pairs),
                Comparison::new("page faults", "", None, &[(0.0, 0.0); 10]),
            ],
        }));
        let (date, machine) = ("2026-05-06 07:08 UTC".to_owned(), "another".to_owned());
        Page::new(subject, Made { date, machine, version: "1.0" })
    }

    #[test]
    fn a_page_says_when_it_was_measured_and_by_what() {
        let html = bench("true").to_html();
        for part in [
            "measured 2026-01-02 03:04 UTC by TiExec 0.9",
            "page made 2026-05-06 07:08 UTC by TiExec 1.0",
            "a machine",
            "Next: ",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }

    #[test]
    fn what_was_huge_is_told_where_somebody_looked() {
        let mut page = bench("true");
        assert!(page.to_html().contains("plain against tiexec; <data"), "{}", page.to_html());
        assert!(!page.to_html().contains("text on huge pages"));
        let Subject::Bench(bench) = &mut page.subject else { unreachable!("it is of a benchmark") };
        bench.options = vec!["--edges=pad".to_owned()];
        (bench.huge_plain_bytes, bench.huge_tiexec_bytes) = (Some(0), Some(6 << 20));
        let html = page.to_html();
        assert!(html.contains("plain against tiexec --edges=pad; <data"), "{html}");
        let tiexec =
            "<data value=\"6291456\" data-json=\"/bench/huge_tiexec_bytes\">6.0 MiB</data>";
        assert!(html.contains("text on huge pages") && html.contains(tiexec), "{html}");
    }

    #[test]
    fn a_page_is_one_document_and_nothing_breaks_out_of_it() {
        let page = bench("</script><script>alert(1)</script> \"&\u{1b}");
        let html = page.to_html();
        assert_eq!(html.matches("<script").count(), 1);
        assert_eq!(html.matches("</script>").count(), 1);
        assert!(
            !html.contains("http") || html.contains("http://www.w3.org"),
            "nothing from outside"
        );
        assert!(!html.contains('\u{1b}'));
        for svg in [&html, &page.to_svg()] {
            assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        }
    }

    #[test]
    fn numbers_say_where_they_are_from() {
        let html = bench("x").to_html();
        assert!(
            html.contains("<data value=\"10\" data-json=\"/bench/rounds\">10</data>"),
            "{html}"
        );
        assert!(html.matches("data-json=").count() > 6);
    }
}
