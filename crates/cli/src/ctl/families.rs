//! Prints what a command found out about several processes: those that are alike are printed as one.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tiexec_core::addr::mib;
use tiexec_core::escape::{self, in_shell};
use tiexec_core::proc::maps::FileId;
use tiexec_core::report::{Report, SCHEMA, percent};
use tiexec_sys::Pid;

use super::targets;
use super::{print, told};
use crate::exit;
use crate::options::Targets;

/// Stands for the process in the text about it. The other parts of the text have no such character, because names are
/// escaped.
pub(super) const WHO: &str = "\u{1}";
/// Stands for the process in the command that undoes.
pub(super) const UNDO: &str = "\u{2}";
/// Stands for the time for which a thread of the process was stopped.
pub(super) const STOP: &str = "\u{3}";
/// The most processes of a family that are named by their IDs.
const NAMED: usize = 8;

/// The outcome of a command for a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The exit status.
    pub(super) status: u8,
    /// The path of the program. Processes of different programs are never printed as one.
    pub(super) program: Vec<u8>,
    /// The text for people, with [`WHO`], [`UNDO`] and [`STOP`] in it; empty if it is printed, or if there is none.
    pub(super) text: String,
    /// The figures for the sum; `None` if the command could not do its work.
    pub(super) figures: Option<Figures>,
    /// How long a thread was stopped.
    pub(super) stop: Option<Duration>,
}

/// The figures of a process, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Figures {
    /// The text, how much of it is huge, and the copies with the memory of each.
    Huge { text: u64, huge: u64, copies: Vec<(FileId, u64)> },
    /// TiExec's mappings that a revert found, those that it reverted, and the same of the text in these.
    Reverted { found: u64, reverted: u64, found_text: u64, reverted_text: u64 },
}

impl From<u8> for Seen {
    /// The command could not do its work, and a message has said so.
    fn from(status: u8) -> Self {
        Self { status, ..Self::default() }
    }
}

impl From<&Report> for Figures {
    fn from(report: &Report) -> Self {
        let copies = report.files.iter().flat_map(|file| file.copies.clone()).collect();
        Self::Huge { text: report.text_bytes, huge: report.huge_bytes, copies }
    }
}

impl Seen {
    fn copies(&self) -> &[(FileId, u64)] {
        match &self.figures {
            Some(Figures::Huge { copies, .. }) => copies,
            _ => &[],
        }
    }
}

/// How a command prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Style {
    /// Nothing but messages about failures.
    Quiet,
    /// An object for each process at once, and the sum at the end.
    Json,
    /// The text about each process at once, and the sum at the end.
    Each,
    /// At the end, one text for all processes that are alike, and the sum.
    Families,
}

/// Prints what a command found out about the selected processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer<'a> {
    selected: &'a Targets,
    /// True if several processes are selected: then there is a sum.
    several: bool,
    style: Style,
}

impl<'a> Printer<'a> {
    /// Makes the printer for this number of selected processes, by the options `--each`, `--json` and `--quiet`.
    pub(super) fn new(
        selected: &'a Targets,
        count: usize,
        each: bool,
        json: bool,
        quiet: bool,
    ) -> Self {
        let several = count > 1;
        let style = match (quiet, json) {
            (_, true) => Style::Json,
            (true, _) => Style::Quiet,
            _ if several && !each => Style::Families,
            _ => Style::Each,
        };
        Self { selected, several, style }
    }

    /// Makes a printer that prints nothing.
    pub(super) fn silent(selected: &'a Targets) -> Self {
        Self { selected, several: false, style: Style::Quiet }
    }

    /// Returns whether several processes are selected, so that each text must tell to whom it belongs.
    pub(super) fn has_several(&self) -> bool {
        self.several
    }

    /// Prints the text about one process, or the object that `json` makes, unless that is printed at the end. The status
    /// becomes that of printing if it was 0.
    pub(super) fn one(&self, pid: Pid, mut seen: Seen, json: impl FnOnce() -> String) -> Seen {
        let printed = match self.style {
            Style::Families => return seen,
            Style::Quiet => exit::OK,
            Style::Json => print(&(json() + "\n")),
            Style::Each if seen.text.is_empty() => exit::OK,
            Style::Each => print(&self.text(&[(&seen, pid)])),
        };
        seen.text.clear();
        seen.status = told(seen.status, printed);
        seen
    }

    /// Prints what is printed at the end: the families and the sum. The first word of `doing` is the command. Returns the
    /// exit status of printing.
    pub(super) fn all(&self, doing: &str, all: &[(Pid, Seen)]) -> u8 {
        let printed = match self.style {
            Style::Quiet => return exit::OK,
            Style::Families => self.families(all),
            _ => exit::OK,
        };
        let figures: Vec<&Figures> =
            all.iter().filter_map(|(_, seen)| seen.figures.as_ref()).collect();
        if !self.several || figures.is_empty() {
            return printed;
        }
        let sums = Sums::of(&figures);
        told(
            printed,
            print(&match self.style {
                Style::Json => sums.json(doing) + "\n",
                _ => sums.to_string(),
            }),
        )
    }

    /// Prints one text for all processes of a program that have the same text and the same copies.
    fn families(&self, all: &[(Pid, Seen)]) -> u8 {
        let mut families: Vec<Vec<(&Seen, Pid)>> = Vec::new();
        let mut known = HashMap::new();
        for (pid, seen) in all.iter().filter(|(_, seen)| !seen.text.is_empty()) {
            let alike = (&seen.program, &seen.text, seen.copies());
            let family = *known.entry(alike).or_insert_with(|| {
                families.push(Vec::new());
                families.len() - 1
            });
            families[family].push((seen, *pid));
        }
        let texts: Vec<String> = families.iter().map(|family| self.text(family)).collect();
        if texts.is_empty() { exit::OK } else { print(&texts.concat()) }
    }

    /// Returns the text about a family.
    fn text(&self, family: &[(&Seen, Pid)]) -> String {
        let pids: Vec<String> =
            family.iter().map(|(_, pid)| pid.as_raw_nonzero().to_string()).collect();
        let all = pids.join(" ");
        let who = match pids.len() {
            1 => all.clone(),
            count if count <= NAMED => format!("{count} processes {all}, each"),
            count => format!("{count} processes, each"),
        };
        let undo = match (targets::named(self.selected), self.selected.words()) {
            (false, words) if pids.len() > 1 => in_shell(words),
            _ => all,
        };
        let stops = stops(family.iter().filter_map(|(seen, _)| seen.stop));
        let text = family.first().map_or("", |(seen, _)| &seen.text);
        text.replace(WHO, &who).replace(UNDO, &undo).replace(STOP, &stops)
    }
}

/// Returns the shortest and the longest of the times, in words.
fn stops(times: impl Iterator<Item = Duration> + Clone) -> String {
    let words = |time: Duration| {
        let micros = time.as_micros();
        format!("{}.{:02}", micros / 1000, micros % 1000 / 10)
    };
    let shortest = words(times.clone().min().unwrap_or_default());
    let longest = words(times.max().unwrap_or_default());
    match shortest == longest {
        true => format!("{longest} ms"),
        false => format!("{shortest} to {longest} ms"),
    }
}

/// The copies of several processes. Each counts once: its memory in the process that has touched most of it.
#[derive(Debug, Default)]
pub(super) struct Copies(BTreeMap<FileId, u64>);

impl Copies {
    /// Adds those of a process, with the memory of each in bytes.
    pub(super) fn add(&mut self, copies: &[(FileId, u64)]) {
        for &(copy, bytes) in copies {
            let most = self.0.entry(copy).or_default();
            *most = bytes.max(*most);
        }
    }

    /// Returns them, each with its memory in bytes.
    pub(super) fn into_all(self) -> Vec<(FileId, u64)> {
        self.0.into_iter().collect()
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns their memory.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().sum()
    }
}

/// The sums of several processes, in bytes.
struct Sums {
    processes: usize,
    text: u64,
    huge: u64,
    copies: Copies,
    /// The same sums as in [`Figures::Reverted`]; `None` without a revert.
    reverted: Option<[u64; 4]>,
}

impl Sums {
    fn of(all: &[&Figures]) -> Self {
        let (mut text, mut huge, mut copies) = (0, 0, Copies::default());
        let mut back: Option<[u64; 4]> = None;
        for figures in all {
            match figures {
                Figures::Huge { text: one, huge: of_it, copies: some } => {
                    (text, huge) = (text + one, huge + of_it);
                    copies.add(some);
                }
                &Figures::Reverted { found, reverted, found_text, reverted_text } => {
                    let sums = back.get_or_insert_default();
                    for (sum, one) in
                        sums.iter_mut().zip([found, reverted, found_text, reverted_text])
                    {
                        *sum += one;
                    }
                }
            }
        }
        Self { processes: all.len(), text, huge, copies, reverted: back }
    }

    fn json(&self, doing: &str) -> String {
        let kind = format!("{}_sum", doing.split(' ').next().unwrap_or_default());
        let Self { processes, text, huge, copies, reverted } = self;
        escape::json(&match reverted {
            Some([found, reverted, ..]) => serde_json::json!({
                "schema": SCHEMA,
                "kind": kind,
                "processes": processes,
                "found_bytes": found,
                "reverted_bytes": reverted,
            }),
            None => serde_json::json!({
                "schema": SCHEMA,
                "kind": kind,
                "processes": processes,
                "text_bytes": text,
                "huge_bytes": huge,
                "copies": copies.count(),
                "copies_bytes": copies.bytes(),
            }),
        })
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "all {} processes   ", self.processes)?;
        if let Some([.., found, reverted]) = self.reverted {
            let percent = percent(reverted, found);
            let (found, reverted) = (mib(found), mib(reverted));
            return writeln!(
                f,
                "text in copies {found} MiB   reverted {reverted} MiB ({percent} %)"
            );
        }
        let (text, huge) = (self.text, self.huge);
        write!(f, "text {} MiB   huge {} MiB ({} %)", mib(text), mib(huge), percent(huge, text))?;
        let copied = mib(self.copies.bytes());
        match self.copies.count() {
            0 => writeln!(f),
            1 => writeln!(f, "   one copy of {copied} MiB"),
            count => writeln!(f, "   {count} copies of {copied} MiB"),
        }
    }
}
