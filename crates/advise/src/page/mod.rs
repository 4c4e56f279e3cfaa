//! A self-contained page for people: where a process executes and how much of that lies on huge pages, or the findings
//! of a benchmark, of a canary or of a scan. The saved processor time comes first, then what it costs.
//!
//! The page is plain HTML and SVG, and its policy (CSP) lets it load nothing. One script, which the policy names by its
//! digest, sorts the tables; the page works without it. Each number of the JSON stands in a `<data>` element with its
//! full value and its place in the JSON that the page carries, so that a program can compare the two.

mod bench;
mod canary;
mod plots;
mod process;
mod scan;

use std::collections::BTreeMap;
use std::fmt::Write;

use plots::Plot;
use serde::Serialize;
use serde_json::Value;
use tiexec_core::addr::mib;
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::{Report, SCHEMA};

use crate::advice::Advice;
use crate::canary::Account;
use crate::compare::Bench;
use crate::heat::Heat;
use crate::next::Next;
use crate::scan::Scan;

/// The subject of a page.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A process that was sampled.
    Process(Box<Process>),
    /// A benchmark.
    Bench(Box<Bench>),
    /// A canary.
    Canary(Box<Account>),
    /// A scan of a machine.
    Scan(Box<Scan>),
}

/// A process that was sampled.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Process {
    /// Its command line, or the beginning of it.
    pub command: Vec<String>,
    /// The advice of the model.
    pub advice: Advice,
    /// The huge pages that the recommended way takes, in bytes, by backing.
    pub memory: BTreeMap<String, u64>,
    /// The number of processes that `memory` is about: the first of those that were sampled.
    pub memory_processes: usize,
    /// The number of processes that `memory` leaves out.
    pub memory_left_out: usize,
    /// The text on huge pages, as the kernel reports it.
    pub coverage: Report,
    /// The places where it executes.
    pub heat: Heat,
}

/// When, where and by what a page was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Made {
    /// When (UTC).
    pub date: String,
    /// The name of the host.
    pub host: String,
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

/// The saved share of the processor time, of one row of the first picture.
#[derive(Clone, PartialEq, Debug)]
struct Saving {
    name: String,
    share: f64,
    range: Option<[f64; 2]>,
}

impl Saving {
    /// Describes the row of a measurement. `time` names the time, and `by` what saved it.
    fn explained(&self, time: &str, by: &str) -> String {
        let mut text = format!("The bar is the share of {time} that {by} saved for the same work.");
        if self.range.map_or(self.share, |[least, _]| least) < 0.0 {
            text += " Below 0, they took more.";
        }
        text + match self.range {
            Some(_) => " The thin line is its interval.",
            None => " There were too few pairs for an interval.",
        }
    }
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
            Subject::Process(process) => (
                format!("{} {}", process.advice.comm, process.advice.pid),
                process::html(&data, &self.made, process),
            ),
            Subject::Bench(bench) => (bench.command.join(" "), bench::html(&data, bench)),
            Subject::Canary(account) => (account.exe.clone(), canary::html(&data, account)),
            Subject::Scan(scan) => {
                let host = scan.origin.host.as_deref().unwrap_or("a host");
                (format!("scan of {host}"), scan::html(&data, scan))
            }
        };
        // Only `<` could end the script element.
        let carried = escape::json(&json).replace('<', "\\u003c");
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src \
             'unsafe-inline'; script-src 'sha256-{SORT_DIGEST}'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>TiExec: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n{body}<p class=\"quiet\">{TLB} <a href=\"{GUIDE}\">The guide</a>, which is a part of TiExec's package, \
             says how the figures are measured.</p>\n<p class=\"quiet\">{made}</p>\n\
             <script type=\"application/json\" id=\"data\">{carried}</script>\n<script>{SORT}</script>\n</body>\n</html>\n",
            title = escape(&title),
            made = self.made(),
        )
    }

    /// Says when and by what the measurements and the page were made.
    fn made(&self) -> String {
        let Made { date, version, .. } = &self.made;
        let (measured, by) = match &self.subject {
            Subject::Process(_) => return format!("{}; TiExec {version}", escape(date)),
            Subject::Bench(bench) => (&bench.date, &bench.version),
            Subject::Canary(account) => (&account.origin.date, &account.origin.version),
            Subject::Scan(scan) => (&scan.origin.date, &scan.origin.version),
        };
        let measured = measured.as_deref().unwrap_or("at a time that was not recorded");
        let by = by.as_deref().map_or(String::new(), |by| format!(" by TiExec {by}"));
        format!(
            "measured {}{}; page made {} by TiExec {version}",
            escape(measured),
            escape(&by),
            escape(date)
        )
    }

    /// Renders the plots alone, one below the other, as an SVG document.
    pub fn to_svg(&self) -> String {
        plots::document(&self.plots(), STYLE)
    }

    fn plots(&self) -> Vec<Plot> {
        match &self.subject {
            Subject::Process(process) => process::plots(process),
            Subject::Bench(bench) => bench::plots(bench),
            Subject::Canary(account) => canary::plots(account),
            Subject::Scan(scan) => scan::plots(scan),
        }
    }
}

const STYLE: &str = include_str!("style.css");
const SORT: &str = include_str!("sort.js");
/// The SHA-256 of `sort.js` in base64, by which the policy of the page allows this script and no other. A browser that
/// refuses the script says so on its console, and the tests fail.
const SORT_DIGEST: &str = "t/d9jokEZ9EDkXU1w3LTp12UflVXySHwupsgQkl3s1E=";
/// The guide's chapter about measuring, as the package installs it.
const GUIDE: &str = "file:///usr/share/doc/tiexec/measuring.md";
const TLB: &str = "The TLB is a small cache in the processor for translations of addresses. It has one entry for each page, \
                   so an entry covers far more text on a huge page.";

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

/// Formats a share in percent.
fn percent(share: f64) -> String {
    // A share that rounds to nothing has no sign.
    let tenths = (share * 1000.0).round() / 10.0 + 0.0;
    format!("{tenths:.1} %")
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
        self.number(pointer, percent)
    }

    fn count(&self, pointer: &str) -> String {
        self.number(pointer, |count| format!("{count:.0}"))
    }

    fn mib(&self, pointer: &str) -> String {
        self.number(pointer, |bytes| format!("{} MiB", mib(bytes as u64)))
    }

    fn seconds(&self, pointer: &str) -> String {
        self.number(pointer, |seconds| format!("{seconds:.1} s"))
    }
}

/// Renders a cell whose text does not begin with the number by which its column sorts. The number is a sum or a count
/// of values of the JSON, and has no place of its own there.
fn sorted_by(number: u64, text: &str) -> String {
    format!("<data value=\"{number}\">{text}</data>")
}

/// Renders the heading, and the facts that are known about the subject.
fn heading(html: &mut String, title: &str, facts: &[(&str, Option<String>)]) {
    let _infallible = write!(html, "<h1>{}</h1>\n<dl>\n", escape(title));
    for (name, fact) in facts {
        if let Some(fact) = fact.as_deref().filter(|fact| !fact.is_empty()) {
            let _infallible = writeln!(html, "<dt>{name}</dt><dd>{fact}</dd>");
        }
    }
    html.push_str("</dl>\n");
}

/// Renders the words of a command line for [`heading`].
fn command_line(words: &[String]) -> Option<String> {
    (!words.is_empty()).then(|| format!("<code>{}</code>", escape(&escape::in_shell(words))))
}

/// Renders the next step.
fn next(html: &mut String, next: &Next) {
    let command = next.command.as_deref();
    let command = command.map_or(String::new(), |it| format!(" <code>{}</code>", escape(it)));
    let _infallible = writeln!(html, "<p>Next: {}{command}</p>", escape(&next.words));
}

/// Most rows of a table. Further rows are only in the JSON.
const ROWS: usize = 100;

/// Renders a table. On a narrow screen, one of more than three columns becomes a list.
fn table(html: &mut String, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let class = if heads.len() > 3 { " class=\"wide\"" } else { "" };
    let _infallible = write!(html, "<table{class}>\n<thead><tr>");
    for head in heads {
        let _infallible = write!(html, "<th scope=\"col\">{head}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let mut rows = rows;
    for row in rows.by_ref().take(ROWS) {
        html.push_str("<tr>");
        for (head, cell) in heads.iter().zip(row) {
            let _infallible = write!(html, "<td data-head=\"{head}\">{cell}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n");
    let left_out = rows.count();
    if left_out > 0 {
        let rows = if left_out == 1 { "row is" } else { "rows are" };
        let _infallible = writeln!(
            html,
            "<p class=\"quiet\">{left_out} further {rows} not shown, but in the JSON of this page.</p>"
        );
    }
}

/// Renders a section. On paper, a `large` one begins a page.
fn section(html: &mut String, title: &str, large: bool, explained: &str, content: &str) {
    let class = if large { " class=\"page\"" } else { "" };
    let _infallible = write!(
        html,
        "<section{class}>\n<h2>{title}</h2>\n{content}<p class=\"quiet\">{explained}</p>\n</section>\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{CONFIDENCE, Comparison, Unit};

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
            host: Some("db1".to_owned()),
            service: None,
            arguments: None,
            metrics: vec![
                Comparison::new("wall time", "s", None, &pairs),
                Comparison::new("page faults", "", None, &[(0.0, 0.0); 10]),
            ],
        }));
        let (date, machine) = ("2026-05-06 07:08 UTC".to_owned(), "another".to_owned());
        Page::new(subject, made(date, machine))
    }

    fn made(date: String, machine: String) -> Made {
        Made { date, host: "db1".to_owned(), machine, version: "1.0" }
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
        assert!(!page.to_html().contains("Text on huge pages"));
        let Subject::Bench(bench) = &mut page.subject else { unreachable!("it is of a benchmark") };
        bench.options = vec!["--edges=pad".to_owned()];
        (bench.huge_plain_bytes, bench.huge_tiexec_bytes) = (Some(0), Some(6 << 20));
        let html = page.to_html();
        assert!(html.contains("plain against tiexec --edges=pad; <data"), "{html}");
        let tiexec =
            "<data value=\"6291456\" data-json=\"/bench/huge_tiexec_bytes\">6.0 MiB</data>";
        assert!(html.contains("Text on huge pages") && html.contains(tiexec), "{html}");
    }

    #[test]
    fn a_page_is_one_document_and_nothing_breaks_out_of_it() {
        let page = bench("</script><script>alert(1)</script> \"&\u{1b}");
        let html = page.to_html();
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("http:") && !html.contains("https:"), "nothing from outside");
        assert!(!html.contains('\u{1b}'));
        for svg in [&html, &page.to_svg()] {
            assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        }
    }

    /// Puts markup in the place of each text, except of those that a program reads.
    fn spoil(value: &mut Value, key: &str) {
        const EVIL: &str = "</script><img src=x onerror=alert(1)>\"'";
        match value {
            Value::String(text) if !["kind", "verdict", "finding", "better"].contains(&key) => {
                *text = EVIL.to_owned();
            }
            Value::Array(all) => all.iter_mut().for_each(|one| spoil(one, key)),
            Value::Object(all) => all.iter_mut().for_each(|(key, one)| spoil(one, key)),
            _ => {}
        }
    }

    #[test]
    fn no_text_of_a_file_breaks_out_of_its_page() {
        let canary = serde_json::json!({
            "schema": 2, "kind": "canary", "exe": "", "verdict": "better", "ended": "", "reason": "",
            "kept": true, "verdict_kept": true, "keep_above": 1.005, "confidence": 0.99,
            "per_cpu_second": { "estimate": 1.03, "low": 1.01, "high": 1.05 },
            "per_second": { "estimate": 1.0, "low": null, "high": null },
            "cpu_time": "", "pairs": 12, "pairs_left_out": 1, "more_pairs": null,
            "more_pairs_for_2_percent": null, "slice_s": 13.0, "lasted_s": 400.0, "switches": 24,
            "switching_s": 1.5, "longest_switch_s": 0.2,
            "subject": { "build_id": "", "text": "", "cpu": "", "kernel": "", "backing": "", "edges": "" },
            "history": [
                { "pairs": 1, "estimate": 1.2, "low": null, "high": null },
                { "pairs": 8, "estimate": 1e300, "low": 0.0, "high": 1e308 },
                { "pairs": 12, "estimate": 1.03, "low": 1.01, "high": 1.05 },
            ],
            "host": "", "unit": "", "command": ["", ""], "machine": "", "date": "", "version": "",
            "next": { "words": "", "command": "" },
        });
        let scan = serde_json::json!({
            "schema": 2, "kind": "scan", "host": "", "machine": "", "date": "", "version": "",
            "sampling": { "duration_ms": 1000, "samples": 10, "processes": 1 },
            "programs": [{
                "unit": "", "exe": "", "pids": [7], "text_bytes": 5, "huge_bytes": 0, "cpu": 0.5,
                "saves": 0.01, "saves_range": [-1e300, 1e300],
                "estimate": { "saving": 0.02, "way": "", "memory": { "</script><img>": 7 }, "next": "" },
            }],
        });
        let json = |page: &Page| serde_json::to_value(page).unwrap();
        let mut bench = json(&bench("x"))["bench"].clone();
        bench["unit"] = "slice".into();
        let units = bench["unit"].clone();
        let (mut canary, mut scan) = (canary, scan);
        [&mut bench, &mut canary, &mut scan].into_iter().for_each(|value| spoil(value, ""));
        bench["unit"] = units;
        for subject in [
            Subject::Bench(Box::new(serde_json::from_value(bench).unwrap())),
            Subject::Canary(Box::new(serde_json::from_value(canary).unwrap())),
            Subject::Scan(Box::new(serde_json::from_value(scan).unwrap())),
        ] {
            let page = Page::new(subject, made(String::new(), String::new()));
            let html = page.to_html();
            assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"), "{html}");
            assert!(!html.contains("<img"), "{html}");
            assert_eq!(html.matches("</script>").count(), 2, "{html}");
            for text in [&html, &page.to_svg()] {
                assert!(!text.contains("NaN") && !text.contains("inf\""), "{text}");
                assert!(!text.contains("<img"), "{text}");
            }
        }
    }

    fn page_of<T: serde::de::DeserializeOwned>(
        json: Value,
        subject: fn(Box<T>) -> Subject,
    ) -> Page {
        let subject = subject(Box::new(serde_json::from_value(json).unwrap()));
        Page::new(subject, made(String::new(), String::new()))
    }

    fn canary() -> Value {
        serde_json::json!({
            "schema": 2, "kind": "canary", "exe": "/x", "verdict": "better", "ended": "known", "reason": null,
            "kept": false, "verdict_kept": true, "keep_above": 1.005, "confidence": 0.99,
            "per_cpu_second": { "estimate": 1.03, "low": 1.01, "high": 1.05 },
            "per_second": { "estimate": 1.0, "low": null, "high": null },
            "cpu_time": "cgroup", "pairs": 12, "pairs_left_out": 1, "more_pairs": null,
            "more_pairs_for_2_percent": null, "slice_s": 13.0, "lasted_s": 400.0, "switches": 24,
            "switching_s": 1.5, "longest_switch_s": 0.2, "copied_bytes": 6 << 20,
            "subject": { "build_id": "", "text": "", "cpu": "", "kernel": "", "backing": "", "edges": "" },
            "history": [{ "pairs": 12, "estimate": 1.03, "low": 1.01, "high": 1.05 }],
        })
    }

    /// A scan of so many programs that gain, and of so many that had too few samples.
    fn scan(gaining: usize, few: usize) -> Value {
        let program = |index: usize| {
            serde_json::json!({
                "unit": null, "exe": format!("/p{index}"), "pids": [1, 2, 3], "text_bytes": 5, "huge_bytes": 0,
                "cpu": 0.5, "saves": 0.01, "saves_range": null,
                "estimate": {
                    "saving": 0.02, "way": "attach", "memory": { "hugetlb": 2 << 20, "image": 6 << 20 },
                    "few_samples": index >= gaining, "next": format!("command {index}"),
                },
            })
        };
        let programs: Vec<Value> = (0..gaining + few).map(program).collect();
        serde_json::json!({ "schema": 2, "kind": "scan", "sampling": null, "programs": programs })
    }

    #[test]
    fn a_scan_counts_all_programs_and_few_samples_apart() {
        let html = |json: Value| page_of(json, Subject::Scan).to_html();
        for (gaining, few, words) in [
            (14, 0, "14 programs would gain</p>"),
            (1, 2, "1 program would gain<br><small>2 programs had too few samples"),
            (0, 1, "no program is known to gain<br><small>1 program had too few samples"),
            (0, 0, "nothing gains</p>"),
        ] {
            let html = html(scan(gaining, few));
            assert!(html.contains(&format!("<p class=\"verdict\">{words}")), "{words}: {html}");
        }
        let many = html(scan(14, 1));
        assert!(many.contains("first 12 programs") && many.contains("command 11<"), "{many}");
        assert!(!many.contains("command 12<"), "{many}");
        assert!(many.contains("p14, which had too few samples: <code>command 14<"), "{many}");
        assert!(!html(scan(12, 0)).contains("first 12 programs"));
    }

    #[test]
    fn a_scan_says_what_it_leaves_out() {
        let mut found = scan(0, 0);
        let sampling =
            serde_json::json!({ "duration_ms": 1000, "samples": 90, "processes": 1, "lost": 7 });
        let more =
            [("not_sampled", 2), ("not_permitted", 300), ("silent", 1), ("other_samples", 10)];
        more.into_iter().for_each(|(key, count)| found[key] = count.into());
        found["sampling"] = sampling;
        let html = page_of(found, Subject::Scan).to_html();
        for words in [
            "<p class=\"verdict\">nothing gains of what could be examined</p>",
            "or no right: 2.",
            "by the user of the scan: 300.",
            "in time: 1.",
            "10 % of all samples are of other processes",
            "7 records were lost",
        ] {
            assert!(html.contains(words), "{words}: {html}");
        }
    }

    #[test]
    fn a_scan_says_that_the_host_splits_huge_pages() {
        let splits = "the host of this machine splits huge pages";
        let mut found = scan(2, 0);
        assert!(!page_of(found.clone(), Subject::Scan).to_html().contains(splits));
        found["host_splits"] = true.into();
        let html = page_of(found, Subject::Scan).to_html();
        assert!(html.contains("2 programs may gain<br>") && html.contains(splits), "{html}");
        assert!(!html.contains("would gain<"), "{html}");
    }

    #[test]
    fn columns_of_counts_and_of_sums_sort_as_numbers() {
        let html = page_of(scan(1, 0), Subject::Scan).to_html();
        for cell in [
            "<td data-head=\"processes\"><data value=\"3\">3</data>",
            "<td data-head=\"memory\"><data value=\"8388608\">2.0 MiB hugetlb, 6.0 MiB image</data>",
        ] {
            assert!(html.contains(cell), "{cell}: {html}");
        }
    }

    #[test]
    fn a_table_says_how_many_rows_it_leaves_out() {
        let html = |rows| page_of(scan(rows, 0), Subject::Scan).to_html();
        assert!(!html(ROWS).contains("not shown"));
        assert!(html(ROWS + 1).contains(">1 further row is not shown"));
        let html = html(ROWS + 2);
        assert!(html.contains(">2 further rows are not shown"), "{html}");
        assert_eq!(html.matches("<tr>").count(), ROWS + 1);
    }

    #[test]
    fn a_canary_names_its_three_ends() {
        let html = page_of(canary(), Subject::Canary).to_html();
        for part in ["better: above 1.005", "worse: below 1", "no worse: above 0.995"] {
            assert!(html.contains(&format!(">{part}</text>")), "{part}: {html}");
        }
        assert_eq!(html.matches("class=\"limit\"").count(), 3, "{html}");
        assert!(html.contains("or between 0.995 and <data"), "{html}");
    }

    #[test]
    fn copies_were_given_back_only_if_they_were() {
        for (kept, given_back, switches, words) in [
            (true, false, 24, "the copies take <"),
            (false, true, 24, "the copies took <"),
            (false, false, 0, "no copies were made; they would take <"),
            (false, false, 24, "copies take <"),
        ] {
            let mut account = canary();
            account["kept"] = kept.into();
            account["given_back"] = given_back.into();
            account["switches"] = switches.into();
            let html = page_of(account, Subject::Canary).to_html();
            assert!(html.contains(&format!("<p>Memory: {words}")), "{words}: {html}");
            assert_eq!(html.contains("which were given back"), given_back, "{html}");
        }
    }

    #[test]
    fn figures_at_the_limits_have_places() {
        let mut account = canary();
        account["history"] = serde_json::json!([
            { "pairs": usize::MAX, "estimate": 1e308, "low": -1e308, "high": 1e308 },
        ]);
        let mut bench = serde_json::to_value(bench("x")).unwrap()["bench"].clone();
        for way in ["plain", "tiexec"] {
            for (key, value) in [("lowest", -1e308), ("highest", 1e308)] {
                bench["metrics"][0][way][key] = value.into();
            }
            bench["metrics"][0][way]["values"] = serde_json::json!([1e308, -1e308, 0.0]);
        }
        for page in [page_of(account, Subject::Canary), page_of(bench, Subject::Bench)] {
            let svg = page.to_svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        }
    }

    #[test]
    fn the_time_of_a_command_is_that_in_user_mode() {
        let bench = |name: &str, unit: &str| {
            let mut bench = serde_json::to_value(bench("x")).unwrap()["bench"].clone();
            let pairs = [(10.0, 9.0); 10];
            let metrics = ["wall time", name].map(|name| {
                Comparison::new(name, unit, Some(crate::compare::Better::Less), &pairs)
            });
            bench["metrics"] = serde_json::to_value(metrics).unwrap();
            page_of(bench, Subject::Bench).to_html()
        };
        let html = bench("user time", "s");
        assert!(html.contains("<h2>Time in user mode saved, and memory</h2>"), "{html}");
        assert!(html.contains("the share of the time in user mode that huge pages"), "{html}");
        let html = bench("metric per CPU s", "/CPU s");
        assert!(html.contains("<h2>Processor time saved, and memory</h2>"), "{html}");
        assert!(html.contains("the share of the processor time that huge pages"), "{html}");
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
