//! The page about a scan of a machine.

use std::fmt::Write;

use tiexec_core::addr::mib;

use super::plots::{self, Plot};
use super::{Data, Saving, escape, heading, section, table};
use crate::next::Next;
use crate::scan::{Program, Scan};

/// Most programs in the picture, and most proposed commands.
const MOST: usize = 12;

/// Returns the programs that would gain, with what each saves of one processor.
fn gaining(scan: &Scan) -> impl Iterator<Item = (&Program, Saving)> {
    let gains = |program: &&Program| {
        program.estimate.as_ref().is_some_and(|estimate| estimate.next.is_some())
    };
    let programs = scan.programs.iter().filter(gains).take(MOST);
    programs.filter_map(|program| {
        let (name, share) = (name(program).to_owned(), program.saves?);
        Some((program, Saving { name, share, range: program.saves_range }))
    })
}

/// Returns the unit or, without one, the name of the program's file.
fn name(program: &Program) -> &str {
    let name = program.unit.as_deref().unwrap_or(&program.exe);
    name.rsplit('/').next().unwrap_or(name)
}

pub(super) fn plots(scan: &Scan) -> Vec<Plot> {
    let savings: Vec<Saving> = gaining(scan).map(|(_, saving)| saving).collect();
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
    let host = scan.host.as_deref();
    let facts = [
        ("Host", host.map(escape)),
        ("Machine", scan.machine.as_deref().map(escape)),
        ("Sampled", sampled),
    ];
    let mut html = String::new();
    heading(&mut html, &format!("Scan of {}", host.unwrap_or("a host")), &facts);
    let gaining: Vec<(&Program, Saving)> = gaining(scan).collect();
    let _infallible = writeln!(
        html,
        "<p class=\"verdict\">{}</p>",
        match gaining.len() {
            0 => "nothing gains".to_owned(),
            1 => "1 program would gain".to_owned(),
            count => format!("{count} programs would gain"),
        }
    );
    let (mut content, mut explained) = (String::new(), "");
    if !gaining.is_empty() {
        let savings: Vec<Saving> = gaining.iter().map(|(_, saving)| saving.clone()).collect();
        content = plots::savings(&savings).to_html();
        explained = "Each bar is the share of one processor that huge pages are expected to save in a program. The thin \
                     line is its interval, as far as the model can be off.";
    }
    for (program, _) in &gaining {
        if let Some(command) = program.estimate.as_ref().and_then(|estimate| estimate.next.clone())
        {
            super::next(&mut content, &Next::command(format!("{}:", name(program)), command));
        }
    }
    section(&mut html, "Processor time saved", false, explained, &content);
    let mut content = String::new();
    let rows = scan.programs.iter().enumerate().map(|(index, program)| {
        let at = |key: &str| format!("/scan/programs/{index}/{key}");
        let memory = program.estimate.as_ref().map(|estimate| &estimate.memory);
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
            program.pids.len().to_string(),
            data.percent(&at("cpu")),
            if program.saves.is_some() { data.percent(&at("saves")) } else { String::new() },
            range,
            data.mib(&at("text_bytes")),
            data.mib(&at("huge_bytes")),
            memory.join(", "),
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
    let explained = "CPU and what it saves are shares of one processor, in user mode. Memory is what the way would take.";
    section(&mut html, "Programs", true, explained, &content);
    html
}

fn kind_in_words((backing, bytes): (&String, &u64)) -> String {
    format!("{} MiB {}", mib(*bytes), escape(backing))
}
