//! `tiexecctl inspect PID...`: reports how much text of processes is huge, as the kernel reports it.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use tiexec_core::addr::mib;
use tiexec_core::escape;
use tiexec_core::proc::maps::FileId;
use tiexec_core::report::{OfFamily, Report, SCHEMA, percent};
use tiexec_engine::locked_target::LOOKING;
use tiexec_remap::{verify, workers};
use tiexec_sys::{Errno, Pid, SysError, thp};

use super::advise::shell;
use super::targets::{self, targets, together};
use super::{failed_of, has_text_of, print, thread_with_text, told};
use crate::exit;
use crate::options::Targets;
use crate::stdio::warn;

/// The figures of a process, and its table.
#[derive(Serialize, Deserialize)]
struct Seen {
    status: u8,
    text_bytes: u64,
    huge_bytes: u64,
    /// The copies of its text, and the memory of each.
    copies: Vec<(FileId, u64)>,
    /// The report, with [`WHO`] and [`UNDO`] in the place of the PID; empty if it is printed.
    table: String,
}

/// Stands for the process in a table. The table itself has no such character, because it is escaped.
const WHO: &str = "\u{1}";
/// Stands for the process in the command that undoes.
const UNDO: &str = "\u{2}";
/// The most processes of a family that are named by their IDs.
const NAMED: usize = 8;

impl Seen {
    /// Inspects a process. Prints its report, unless it will be part of a `family`. An ended process is an error only if
    /// the user `named` it.
    fn of(pid: i32, named: bool, json: bool, family: bool) -> Self {
        match report_of(pid, named) {
            Ok(report) => {
                let copies = report.files.iter().flat_map(|file| file.copies.clone()).collect();
                let (text_bytes, huge_bytes) = (report.text_bytes, report.huge_bytes);
                let (status, table) = match (json, family) {
                    (true, _) => (print(&(report.to_json() + "\n")), String::new()),
                    (false, true) => {
                        (exit::OK, OfFamily { report: &report, who: WHO, undo: UNDO }.to_string())
                    }
                    (false, false) => (print(&report.to_string()), String::new()),
                };
                Self { status, text_bytes, huge_bytes, copies, table }
            }
            Err(status) => Self::none(status),
        }
    }

    fn none(status: u8) -> Self {
        let (copies, table) = (Vec::new(), String::new());
        Self { status, text_bytes: 0, huge_bytes: 0, copies, table }
    }

    /// Does the same in a child process, because the inspected process can block the reader.
    fn apart(pid: Pid, named: bool, json: bool, family: bool) -> Self {
        let look = || Self::of(pid.as_raw_nonzero().get(), named, json, family);
        workers::apart(LOOKING, look)
            .unwrap_or_else(|failure| Self::none(targets::failed("inspect", pid, &failure)))
    }
}

/// Inspects the processes. If there are several, prints those that look the same and have the same copies as one, unless
/// the user wants `each`, and prints the sums.
pub(super) fn run(selected: &Targets, each: bool, json: bool) -> u8 {
    let pids = match targets(selected) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let (named, family) = (targets::named(selected), pids.len() > 1 && !each);
    let one = |&pid: &Pid| match workers::pid_is_of_others(pid) {
        true => Seen::apart(pid, named, json, family),
        false => Seen::of(pid.as_raw_nonzero().get(), named, json, family),
    };
    let all: Vec<Seen> = pids.iter().map(one).collect();
    let statuses = all.iter().map(|one| one.status).collect();
    let mut printed = exit::OK;
    let seen: Vec<(&Seen, &Pid)> =
        all.iter().zip(&pids).filter(|(one, _)| one.status == exit::OK).collect();
    if family && !json {
        printed = print(&families(&seen, selected));
    }
    if pids.len() > 1 && !seen.is_empty() {
        let sum = |of: fn(&Seen) -> u64| seen.iter().map(|(one, _)| of(one)).sum::<u64>();
        let (text, huge) = (sum(|one| one.text_bytes), sum(|one| one.huge_bytes));
        let processes = seen.len();
        // Processes that share a copy may have touched different parts of it.
        let mut copies: BTreeMap<FileId, u64> = BTreeMap::new();
        for &(copy, bytes) in seen.iter().flat_map(|(one, _)| &one.copies) {
            let most = copies.entry(copy).or_default();
            *most = bytes.max(*most);
        }
        let copied: u64 = copies.values().sum();
        let sums = &if json {
            let sums = serde_json::json!({
                "schema": SCHEMA,
                "kind": "inspect_sum",
                "processes": processes,
                "text_bytes": text,
                "huge_bytes": huge,
                "copies": copies.len(),
                "copies_bytes": copied,
            });
            escape::json(&sums) + "\n"
        } else {
            let (percent, text, huge) = (percent(huge, text), mib(text), mib(huge));
            let copies = match copies.len() {
                0 => String::new(),
                1 => format!("   one copy of {} MiB", mib(copied)),
                count => format!("   {count} copies of {} MiB", mib(copied)),
            };
            format!(
                "all {processes} processes   text {text} MiB   huge {huge} MiB ({percent} %){copies}\n"
            )
        };
        printed = told(printed, print(sums));
    }
    told(together(statuses, selected), printed)
}

/// Makes one table for all processes that look the same and have the same copies.
fn families(seen: &[(&Seen, &Pid)], selected: &Targets) -> String {
    let mut families: Vec<(&Seen, Vec<String>)> = Vec::new();
    let mut known = HashMap::new();
    for (one, pid) in seen {
        let family = *known.entry((one.table.as_str(), &one.copies[..])).or_insert_with(|| {
            families.push((one, Vec::new()));
            families.len() - 1
        });
        families[family].1.push(pid.as_raw_nonzero().to_string());
    }
    let table = |(one, pids): &(&Seen, Vec<String>)| {
        let all = pids.join(" ");
        let who = match pids.len() {
            1 => all.clone(),
            count if count <= NAMED => format!("{count} processes {all}, each"),
            count => format!("{count} processes, each"),
        };
        let undo = match (targets::named(selected), selected.words()) {
            (false, words) if pids.len() > 1 => shell(&words),
            _ => all,
        };
        one.table.replace(WHO, &who).replace(UNDO, &undo)
    };
    families.iter().map(table).collect()
}

/// Makes the report about a process.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn report(pid: i32) -> Result<Report, u8> {
    report_of(pid, true)
}

/// As [`report`]; `named` as in [`has_text_of`].
fn report_of(pid: i32, named: bool) -> Result<Report, u8> {
    let refuse = |error| failed_of("inspect", pid, named, error);
    let gone = SysError { call: "open(/proc/PID)", errno: Errno::NOENT };
    let found = Pid::from_raw(pid).ok_or(gone).and_then(|pid| Ok((pid, thread_with_text(pid)?)));
    let (number, process) = found.map_err(refuse)?;
    process.status().map_err(refuse)?;
    has_text_of("inspect", pid, named)?;
    let pages = thp::pages().ok_or_else(|| {
        warn("cannot inspect: the kernel has no transparent huge pages");
        exit::FAILED
    })?;
    verify::inspect(number, &process, pages).map_err(refuse)
}
