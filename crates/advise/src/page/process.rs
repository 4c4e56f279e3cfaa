//! The page about a process.

use std::fmt::Write;

use tiexec_core::coverage::{FileCoverage, apart_from_small, small_files};

use super::plots::{self, Plot};
use super::{Data, Made, Process, Saving, command_line, escape, heading, next, section, table};
use crate::itlb::Verdict;
use crate::next::Next;

/// Returns the saved time: that of the present huge pages if nothing more can be done; `None` with too few samples.
fn saving(process: &Process) -> Option<Saving> {
    if process.advice.has_few_samples() {
        return None;
    }
    let judgement = &process.advice.judgement;
    let [least, most] = judgement.saving_range;
    let (share, range) = match judgement.verdict {
        Verdict::Done => (judgement.saved, None),
        _ => (judgement.saving, (least < most).then_some([least, most])),
    };
    Some(Saving { name: process.advice.comm.clone(), share, range })
}

pub(super) fn plots(process: &Process) -> Vec<Plot> {
    let Process { advice, coverage, heat, .. } = process;
    let savings = saving(process).map(|saving| plots::savings(&[saving]));
    let mut all: Vec<Plot> = savings.into_iter().collect();
    all.push(plots::bars(coverage));
    all.extend(plots::maps(heat));
    all.push(plots::curves(heat, &advice.itlb));
    all
}

pub(super) fn html(data: &Data<'_>, made: &Made, process: &Process) -> String {
    let Process { advice, coverage, command, .. } = process;
    // The kernel tells how much text of one process is huge.
    let (of_all, of_one) = match advice.sampling.processes {
        0 | 1 => (String::new(), String::new()),
        _ => {
            let count = data.count("/process/advice/sampling/processes");
            (format!(" of {count} processes"), format!(" of process {}", coverage.pid))
        }
    };
    let sampled = format!(
        "{} samples{of_all} in {}, {} lost",
        data.count("/process/advice/sampling/samples"),
        data.number("/process/advice/sampling/duration_ms", |ms| format!("{:.1} s", ms / 1000.0)),
        data.count("/process/advice/sampling/lost"),
    );
    let mut html = String::new();
    let facts = [
        ("Host", Some(escape(&made.host))),
        ("Unit", coverage.unit.as_deref().map(escape)),
        ("Command", command_line(command)),
        ("Machine", Some(escape(&made.machine))),
        ("Sampled", Some(sampled)),
    ];
    heading(&mut html, &format!("{} {}", advice.comm, advice.pid), &facts);
    saved(&mut html, data, process);
    covered(&mut html, data, process, &of_one);
    hot(&mut html, process);
    footprint(&mut html, data, process);
    html
}

/// The verdict, the next step, the saved time, and the memory that it costs.
fn saved(html: &mut String, data: &Data<'_>, process: &Process) {
    let Process { advice, memory, coverage, .. } = process;
    let is_done = advice.judgement.verdict == Verdict::Done;
    let (saved, at) =
        if is_done { ("huge pages save about", "saved") } else { ("about", "saving") };
    let judgement = |key: &str| data.percent(&format!("/process/advice/judgement/{key}"));
    let saving = saving(process);
    let about = match &saving {
        None => "too few samples to tell".to_owned(),
        Some(_) => format!("{saved} {} of its time in user mode", judgement(at)),
    };
    let _infallible = write!(html, "<p class=\"verdict\">{}: {about}", advice.judgement.verdict);
    if saving.as_ref().is_some_and(|saving| saving.range.is_some()) {
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
    next(
        html,
        &match &advice.next {
            Some(command) => Next::command("", command.clone()),
            None => Next::words("nothing; leave it as it is."),
        },
    );

    let mut explained = match saving.as_ref().map(|saving| saving.range) {
        None => "",
        Some(_) if is_done => "The bar is the share of its time in user mode that the present huge pages save.",
        Some(Some(_)) => {
            "The bar is the share of its time in user mode that the recommended way is expected to save. The \
             thin line is its interval."
        }
        Some(None) => {
            "The bar is the share of its time in user mode that the recommended way is expected to save."
        }
    }
    .to_owned();
    let mut content = match saving {
        None => "<p>There are too few samples for an estimate of the time.</p>\n".to_owned(),
        Some(saving) => plots::savings(&[saving]).to_html(),
    };
    let now = coverage.by_backing.keys().map(ToString::to_string);
    let now = now.map(|backing| {
        let at = format!("/process/coverage/by_backing/{backing}/cost_bytes");
        ["now", &backing, &data.mib(&at)].map(str::to_owned).to_vec()
    });
    let then = memory.keys().map(|backing| {
        let size = data.mib(&format!("/process/memory/{}", escape(backing)));
        vec!["by the recommended way".to_owned(), escape(backing), size]
    });
    let rows: Vec<_> = now.chain(then).collect();
    if rows.is_empty() {
        content += "<p>Memory: no huge pages are taken.</p>\n";
    } else {
        table(&mut content, &["memory", "kind of pages", "size"], rows.into_iter());
        explained += " Huge pages of the page cache cost no memory; copies take theirs in addition to the file.";
        if process.memory_left_out > 0 && !memory.is_empty() {
            let _infallible = write!(
                explained,
                " The memory by the recommended way is that of the first {} processes; processes not counted: {}.",
                data.count("/process/memory_processes"),
                data.count("/process/memory_left_out")
            );
        }
    }
    section(html, "Processor time saved, and memory", false, &explained, &content);
}

fn covered(html: &mut String, data: &Data<'_>, process: &Process, of_one: &str) {
    let coverage = &process.coverage;
    let mut content = plots::bars(coverage).to_html();
    let (shown, small) = apart_from_small(&coverage.files);
    let is_shown = |(_, file): &(usize, &FileCoverage)| shown.contains(file);
    let rows = coverage.files.iter().enumerate().filter(is_shown).map(|(index, file)| {
        let at = |key: &str| data.mib(&format!("/process/coverage/files/{index}/{key}"));
        vec![escape(&file.path), at("text_bytes"), at("huge_bytes")]
    });
    table(&mut content, &["file", "text", "on huge pages"], rows);
    if !small.is_empty() {
        let words = small_files(small.len());
        let _infallible = writeln!(content, "<p class=\"quiet\">{words}</p>");
    }
    let explained = "Each bar is the text of a file; its filled part is on huge pages now, by the kernel's page tables.";
    section(html, &format!("Coverage{of_one}"), true, explained, &content);
}

fn hot(html: &mut String, process: &Process) {
    let heat = &process.heat;
    let content: String = plots::maps(heat).iter().map(Plot::to_html).collect();
    let mut explained =
        "Each line is one huge page of addresses that was seen executing, from left to right; the \
                         darker, the hotter (logarithmic)."
            .to_owned();
    explained += match plots::squares(heat) {
        [true, true] => {
            " The square before it is full where text is on a huge page now, and empty where it could be."
        }
        [true, false] => " A full square before it: text is on a huge page now.",
        [false, true] => " An empty square before it: text could be on a huge page.",
        [false, false] => "",
    };
    section(html, "Heat", true, &explained, &content);
}

fn footprint(html: &mut String, data: &Data<'_>, process: &Process) {
    let Process { advice, heat, .. } = process;
    let mut content = plots::curves(heat, &advice.itlb).to_html();
    let rows = advice.files.iter().enumerate().map(|(index, file)| {
        let at = |key: &str| format!("/process/advice/files/{index}/{key}");
        let misses = |key: &str| data.number(&at(key), |misses| format!("{misses:.2}"));
        vec![
            escape(&file.path),
            data.percent(&at("share")),
            data.count(&at("base_pages/p50")),
            data.count(&at("base_pages/p90")),
            data.count(&at("base_pages/p99")),
            data.count(&at("huge_pages/p99")),
            data.percent(&at("on_huge_now")),
            data.percent(&at("on_huge_then")),
            misses("model/misses_now/first"),
            misses("model/misses_then/first"),
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
    let lines = if plots::has_entries(heat, &advice.itlb) {
        "The upright lines are the entries of the first-level TLB. "
    } else {
        ""
    };
    let explained = format!(
        "The curves show which share of the executed code the hottest pages hold. {lines}In the table, the columns with a \
         share are the number of base pages, or of huge pages, that hold it; misses are modelled, in 1000 instructions."
    );
    section(html, "Footprint", true, &explained, &content);
}
