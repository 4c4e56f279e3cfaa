//! The page about a benchmark.

use std::fmt::Write;

use super::plots::{self, Plot};
use super::{Data, Saving, command_line, escape, heading, next, section, table};
use crate::compare::{Bench, Comparison, Unit, figure, times};

fn saving(bench: &Bench) -> Option<Saving> {
    let (share, range) = bench.saved()?;
    Some(Saving { name: bench.processor()?.name.clone(), share, range: Some(range) })
}

/// Returns whether the saved time is that in user mode. Else it is the processor time of all modes.
fn is_of_user_mode(bench: &Bench) -> bool {
    bench.processor().is_some_and(|metric| metric.name == "user time")
}

/// Names the time that is saved.
fn time(bench: &Bench) -> &'static str {
    if is_of_user_mode(bench) { "the time in user mode" } else { "the processor time" }
}

fn title(bench: &Bench) -> &'static str {
    if is_of_user_mode(bench) { "Time in user mode saved" } else { "Processor time saved" }
}

/// Returns the figure whose rounds are shown: that of the processor time, if it is known.
fn subject(bench: &Bench) -> Option<&Comparison> {
    bench.processor().or(bench.metrics.first())
}

/// Returns the figures with their places, that of the processor time first.
fn ordered(bench: &Bench) -> Vec<(usize, &Comparison)> {
    let first = subject(bench).map(|metric| &metric.name);
    let mut all: Vec<_> = bench.metrics.iter().enumerate().collect();
    all.sort_by_key(|(_, metric)| Some(&metric.name) != first);
    all
}

pub(super) fn plots(bench: &Bench) -> Vec<Plot> {
    let saved = saving(bench).map(|saving| plots::savings(&[saving]));
    let rounds = subject(bench).map(plots::rounds);
    saved.into_iter().chain([plots::ratios(bench)]).chain(rounds).collect()
}

pub(super) fn html(data: &Data<'_>, bench: &Bench) -> String {
    let unit = match bench.unit {
        Unit::Process => "each way in a process of its own, by turns",
        Unit::Slice => "slices of one process, by turns: true of that process",
    };
    let options = bench.options.iter().map(|option| format!(" {}", escape(option)));
    let compared = format!(
        "plain against tiexec{}; {} rounds, {unit}",
        options.collect::<String>(),
        data.count("/bench/rounds")
    );
    let facts = [
        ("Host", bench.host.as_deref().map(escape)),
        ("Unit", bench.service.as_deref().map(escape)),
        ("Command", command_line(&bench.command)),
        ("Machine", Some(escape(&bench.machine))),
        ("Compared", Some(compared)),
    ];
    let mut html = String::new();
    heading(&mut html, &bench.command.join(" "), &facts);
    if let Some(first) = bench.metrics.first() {
        let _infallible = writeln!(
            html,
            "<p class=\"verdict\">{}: {}</p>",
            escape(&first.name),
            escape(&first.words(bench.round_s))
        );
    }
    if let Some(step) = bench.next() {
        next(&mut html, &step);
    }
    let (mut content, mut explained) = (String::new(), String::new());
    if let Some(saving) = saving(bench) {
        explained += &saving.explained(time(bench), "huge pages");
        content = plots::savings(&[saving]).to_html();
    } else {
        let why = match bench.processor() {
            Some(metric) => metric.words(bench.round_s),
            None => "not known: the compared figure is not about processor time".to_owned(),
        };
        let _infallible = writeln!(content, "<p>{}: {}.</p>", title(bench), escape(&why));
    }
    // Without these figures, both ways may have had the same pages.
    if bench.huge_plain_bytes.is_some() && bench.huge_tiexec_bytes.is_some() {
        let _infallible = writeln!(
            content,
            "<p>Text on huge pages: plain {}, tiexec {}</p>",
            data.mib("/bench/huge_plain_bytes"),
            data.mib("/bench/huge_tiexec_bytes")
        );
        explained +=
            " Copies on huge pages take as much memory; huge pages of the page cache take none.";
    }
    let title = format!("{}, and memory", title(bench));
    section(&mut html, &title, false, explained.trim(), &content);
    let content = plots::ratios(bench).to_html() + &table_of_ratios(data, bench);
    let explained = format!(
        "TiExec's figure over the plain one, with its interval of {}. A difference is claimed only where the interval \
         does not reach 1.",
        data.number("/bench/confidence", |share| format!("{:.0} %", share * 100.0))
    );
    section(&mut html, "Ratios", true, &explained, &content);
    if let Some(metric) = subject(bench) {
        let explained = format!(
            "{} in each round. A thin line joins the two runs of a round.",
            escape(&metric.name)
        );
        section(&mut html, "Rounds", true, &explained, &plots::rounds(metric).to_html());
    }
    html
}

fn table_of_ratios(data: &Data<'_>, bench: &Bench) -> String {
    let mut content = String::new();
    let rows = ordered(bench).into_iter().map(|(index, metric)| {
        let at = |key: &str| format!("/bench/metrics/{index}/{key}");
        let value = |key: &str| data.number(&at(key), |value| figure(value, &metric.unit));
        let ratio = |key: &str| data.number(&at(key), times);
        let (estimate, interval) = match metric.ratio {
            Some(_) => {
                let interval = format!("{} to {}", ratio("ratio/low"), ratio("ratio/high"));
                (ratio("ratio/estimate"), interval)
            }
            None => (metric.word().to_owned(), String::new()),
        };
        vec![
            escape(&metric.name),
            value("plain/median"),
            value("tiexec/median"),
            estimate,
            interval,
        ]
    });
    table(&mut content, &["median", "plain", "tiexec", "ratio", "interval"], rows);
    content
}
