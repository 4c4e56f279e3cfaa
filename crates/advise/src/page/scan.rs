//! The page about a scan of a machine.

use std::fmt::Write;

use tiexec_core::addr::mib;
use tiexec_core::report::percent;

use super::plots::{self, Plot};
use super::{Data, Saving, escape, heading, section, sorted_by, table};
use crate::next::Next;
use crate::samples::are_many;
use crate::scan::{Estimate, Program, Scan};

/// Most programs in the picture, and most proposed commands.
const MOST: usize = 12;

/// Returns the programs that a next step is known for, with their estimates: the programs that would gain or, with
/// `few_samples`, those with too few samples for a verdict.
fn with_next(scan: &Scan, few_samples: bool) -> Vec<(&Program, &Estimate)> {
    let programs = scan.programs.iter().filter_map(|it| Some((it, it.estimate.as_ref()?)));
    let is_one = |it: &Estimate| it.next.is_some() && it.few_samples == few_samples;
    programs.filter(|(_, estimate)| is_one(estimate)).collect()
}

/// Returns what the first of these programs save of one processor.
fn savings(programs: &[(&Program, &Estimate)]) -> Vec<Saving> {
    let of = |program: &Program| {
        let (name, share) = (name(program).to_owned(), program.saves?);
        Some(Saving { name, share, range: program.saves_range })
    };
    programs.iter().take(MOST).filter_map(|(program, _)| of(program)).collect()
}

/// Describes the findings in HTML.
fn verdict(scan: &Scan, gaining: usize, few: usize) -> String {
    let programs = |count: usize| match count {
        1 => "1 program".to_owned(),
        count => format!("{count} programs"),
    };
    let mut html = match gaining {
        0 if few > 0 => "no program is known to gain".to_owned(),
        0 if unseen(scan) > 0 => "nothing gains of what could be examined".to_owned(),
        0 => "nothing gains".to_owned(),
        count if scan.host_splits => format!("{} may gain", programs(count)),
        count => format!("{} would gain", programs(count)),
    };
    if few > 0 {
        let _infallible =
            write!(html, "<br><small>{} had too few samples for a verdict</small>", programs(few));
    }
    if scan.host_splits {
        html += "<br><small>the host of this machine splits huge pages: they gain little here, and can lose; measure a \
                 program before you change it</small>";
    }
    html
}

/// Returns the number of processes that the scan knows nothing about.
fn unseen(scan: &Scan) -> usize {
    scan.not_sampled + scan.not_permitted + scan.silent
}

/// Says in HTML what the table leaves out, and why its shares may be off.
fn left_out(scan: &Scan) -> String {
    let processes = [
        (scan.not_sampled, "could not be sampled: too many threads for ulimit -n, or no right"),
        (scan.not_permitted, "may not be examined by the user of the scan"),
        (scan.silent, "are of users one of whose processes could not be examined in time"),
    ];
    let mut lines: Vec<String> = processes
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("Processes that {why}: {count}."))
        .collect();
    let sampling = scan.sampling.as_ref();
    let samples = sampling.map_or(0, |sampling| sampling.samples);
    if are_many(scan.other_samples, samples) {
        let share = percent(scan.other_samples, samples.saturating_add(scan.other_samples));
        lines.push(format!(
            "{share} % of all samples are of other processes, or of processes that began meanwhile."
        ));
    }
    if let Some(lost) = sampling.map(|sampling| sampling.lost).filter(|&lost| lost > 0) {
        lines.push(format!("{lost} records were lost, so the shares may be off."));
    }
    lines.iter().map(|line| format!("<p class=\"quiet\">{line}</p>\n")).collect()
}

/// Returns the unit or, without one, the name of the program's file.
fn name(program: &Program) -> &str {
    let name = program.unit.as_deref().unwrap_or(&program.exe);
    name.rsplit('/').next().unwrap_or(name)
}

pub(super) fn plots(scan: &Scan) -> Vec<Plot> {
    let savings = savings(&with_next(scan, false));
    if savings.is_empty() { Vec::new() } else { vec![plots::savings(&savings)] }
}

pub(super) fn html(data: &Data<'_>, scan: &Scan) -> String {
    let sampled = scan.sampling.as_ref().map(|_| {
        format!(
            "{} samples of {} processes in {}",
            data.count("/scan/sampling/samples"),
            data.count("/scan/sampling/processes"),
            data.number("/scan/sampling/duration_ms", |ms| format!("{:.1} s", ms / 1000.0))
        )
    });
    let host = scan.origin.host.as_deref();
    let facts = [
        ("Host", host.map(escape)),
        ("Machine", scan.origin.machine.as_deref().map(escape)),
        ("Sampled", sampled),
    ];
    let mut html = String::new();
    heading(&mut html, &format!("Scan of {}", host.unwrap_or("a host")), &facts);
    let (gaining, few) = (with_next(scan, false), with_next(scan, true));
    let verdict = verdict(scan, gaining.len(), few.len());
    let _infallible = writeln!(html, "<p class=\"verdict\">{verdict}</p>");
    let (mut content, mut explained) = (String::new(), "");
    let savings = savings(&gaining);
    if !savings.is_empty() {
        content = plots::savings(&savings).to_html();
        explained = "Each bar is the share of one processor that huge pages are expected to save in a program. The thin \
                     line is its interval, as far as the model can be off.";
    }
    for programs in [&gaining, &few] {
        for (program, estimate) in programs.iter().take(MOST) {
            let few = if estimate.few_samples { ", which had too few samples" } else { "" };
            if let Some(command) = estimate.next.clone() {
                let words = format!("{}{few}:", name(program));
                super::next(&mut content, &Next::command(words, command));
            }
        }
    }
    if gaining.len().max(few.len()) > MOST {
        let _infallible = writeln!(
            content,
            "<p class=\"quiet\">The picture and the commands are of the first {MOST} programs of each kind.</p>"
        );
    }
    section(&mut html, "Processor time saved", false, explained, &content);
    let explained = "CPU and what it saves are shares of one processor, in user mode. Memory is what the way would take.";
    let programs = table_of_programs(data, scan) + &left_out(scan);
    section(&mut html, "Programs", true, explained, &programs);
    html
}

fn table_of_programs(data: &Data<'_>, scan: &Scan) -> String {
    let mut content = String::new();
    let rows = scan.programs.iter().enumerate().map(|(index, program)| {
        let at = |key: &str| format!("/scan/programs/{index}/{key}");
        let memory = program.estimate.as_ref().map(|estimate| &estimate.memory);
        let bytes = memory.into_iter().flatten().map(|(_, bytes)| *bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        let memory: Vec<String> = memory.into_iter().flatten().map(kind_in_words).collect();
        let way = program.estimate.as_ref().map(|estimate| estimate.way.as_str());
        let range = match program.saves_range {
            Some(_) => {
                format!(
                    "{} to {}",
                    data.percent(&at("saves_range/0")),
                    data.percent(&at("saves_range/1"))
                )
            }
            None => String::new(),
        };
        let unit =
            program.unit.as_deref().map(|unit| format!("<br><small>{}</small>", escape(unit)));
        vec![
            escape(&program.exe) + &unit.unwrap_or_default(),
            sorted_by(program.pids.len() as u64, &program.pids.len().to_string()),
            data.percent(&at("cpu")),
            if program.saves.is_some() { data.percent(&at("saves")) } else { String::new() },
            range,
            data.mib(&at("text_bytes")),
            data.mib(&at("huge_bytes")),
            sorted_by(bytes, &memory.join(", ")),
            escape(way.unwrap_or("not estimated")),
        ]
    });
    let heads = [
        "program",
        "processes",
        "CPU",
        "saves",
        "interval",
        "text",
        "on huge pages",
        "memory",
        "way",
    ];
    table(&mut content, &heads, rows);
    content
}

fn kind_in_words((backing, bytes): (&String, &u64)) -> String {
    format!("{} MiB {}", mib(*bytes), escape(backing))
}
