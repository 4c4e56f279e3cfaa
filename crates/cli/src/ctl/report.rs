//! `tiexecctl report PID...|FILE.json`: makes a page for people, about processes, or about the JSON of `bench`, `canary` or
//! `scan`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tiexec_advise::canary::Account;
use tiexec_advise::compare::Bench;
use tiexec_advise::heat::Heat;
use tiexec_advise::itlb::Verdict;
use tiexec_advise::page::{Made, Page, Process, Subject};
use tiexec_advise::scan::Scan;
use tiexec_core::escape::AsShown;
use tiexec_core::report::SCHEMA;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use super::advise::Advised;
use super::targets::{select, targets};
use super::{advise, can_write, command_line, date, host, input, inspect, machine, told, write};
use crate::exit;
use crate::options::{Advise, ReportPage};
use crate::stdio::warn;

/// The words after `cannot` in a message about a process.
const DOING: &str = "report on";
/// Most processes whose plans tell the memory of the recommended way.
const MOST_PLANS: usize = 16;
/// Most bytes of a file.
const LONGEST: u64 = 64 << 20;

/// Runs `report`; returns the exit status.
pub(super) fn run(options: &ReportPage) -> u8 {
    if let Err(status) = can_write(options.output.as_deref()) {
        return status;
    }
    let ReportPage { targets: selected, duration, .. } = options;
    if let [file] = &selected.pids[..]
        && select::parse(&selected.pids).is_err()
    {
        return show(of_file(file), options);
    }
    let pids = match targets(selected) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    // Messages and the page propose whole commands, with the output.
    let of_them =
        Advise { output: options.output.clone(), ..Advise::of(selected.clone(), *duration) };
    advise::sampled(DOING, &pids, *duration, || match advise::sample(DOING, &pids, &of_them) {
        Ok(advised) => {
            let status = advised.status(selected);
            told(show(of_processes(advised), options), status)
        }
        Err(status) => status,
    })
}

fn show(subject: Result<Subject, u8>, options: &ReportPage) -> u8 {
    let page = match subject {
        Ok(subject) => {
            let (date, version) = (date::now(), env!("CARGO_PKG_VERSION"));
            Page::new(subject, Made { date, host: host(), machine: machine(), version })
        }
        Err(status) => return status,
    };
    let text = if options.svg { page.to_svg() } else { page.to_html() };
    write(&text, options.output.as_deref())
}

/// Makes the page's subject of all that was sampled. The coverage and the command line are those of the process that the
/// advice names.
fn of_processes(advised: Advised) -> Result<Subject, u8> {
    let Advised { advice, tally, circumstances, sampled, .. } = advised;
    let pid = advice.pid.cast_signed();
    let coverage = inspect::report(pid)?;
    let process = Pid::from_raw(pid).and_then(|pid| ProcDir::of(pid).ok());
    let command = process.and_then(|process| command_line(&process).ok()).unwrap_or_default();
    let way = circumstances.ways.get(advice.way).cloned().unwrap_or_default();
    let first = &sampled[..sampled.len().min(MOST_PLANS)];
    let memory = match advice.judgement.verdict {
        Verdict::WorthIt | Verdict::Maybe => advise::memory(&way, first, circumstances.pages),
        Verdict::NotWorthIt | Verdict::Done => BTreeMap::new(),
    };
    let heat = Heat::new(&tally, &circumstances, &way);
    let (memory_processes, memory_left_out) = (first.len(), sampled.len() - first.len());
    Ok(Subject::Process(Box::new(Process {
        command,
        advice,
        memory,
        memory_processes,
        memory_left_out,
        coverage,
        heat,
    })))
}

/// Makes the page's subject of the JSON that another command wrote.
fn of_file(path: &str) -> Result<Subject, u8> {
    let refuse = |why: String| {
        let (path, why) = (path.shown(), why.shown());
        warn(format_args!(
            "cannot read {path}: {why}; fix: name a PID, a file of tiexecctl bench --export-json, or the output of \
             tiexecctl canary --json or scan --json"
        ));
        exit::FAILED
    };
    let text = input::text_of(Path::new(path), LONGEST).map_err(refuse)?;
    let subject = || -> Result<Subject, String> {
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match value["kind"].as_str() {
            Some(Account::KIND) => Ok(Subject::Canary(Box::new(of_schema(value)?))),
            Some(Scan::KIND) => Ok(Subject::Scan(Box::new(of_schema(value)?))),
            _ => {
                let bench = Bench::from_json(&text);
                let bench = bench.map_err(|error| format!("it is not a benchmark: {error}"))?;
                Ok(Subject::Bench(Box::new(bench)))
            }
        }
    };
    subject().map_err(refuse)
}

/// Reads a value whose format the second schema introduced.
fn of_schema<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    let schema = value["schema"].as_u64().unwrap_or_default();
    if schema == 0 || schema > SCHEMA.into() {
        return Err(format!("schema {schema} is not known"));
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}
