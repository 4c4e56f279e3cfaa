//! `tiexecctl report PID...|BENCH.json`: makes a page for people.

use std::path::Path;

use tiexec_advise::compare::Bench;
use tiexec_advise::heat::Heat;
use tiexec_advise::page::{Made, Page, Subject};
use tiexec_core::escape::AsShown;

use super::advise::Advised;
use super::targets::{select, targets};
use super::{advise, can_write, date, input, inspect, machine, told, write};
use crate::exit;
use crate::options::{Advise, ReportPage};
use crate::stdio::warn;

/// The words after `cannot` in a message about a process.
const DOING: &str = "report on";
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
        return show(of_bench(file), options);
    }
    let pids = match targets(selected) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let of_them = Advise::of(selected.clone(), *duration);
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
            Page::new(subject, Made { date, machine: machine(), version })
        }
        Err(status) => return status,
    };
    let text = if options.svg { page.to_svg() } else { page.to_html() };
    write(&text, options.output.as_deref())
}

/// Makes the page's subject of all that was sampled. The coverage is that of the process that the advice names.
fn of_processes(advised: Advised) -> Result<Subject, u8> {
    let Advised { advice, tally, circumstances, .. } = advised;
    let coverage = inspect::report(advice.pid.cast_signed())?;
    let way = circumstances.ways.get(advice.way).cloned().unwrap_or_default();
    Ok(Subject::Process {
        heat: Box::new(Heat::new(&tally, &circumstances, &way)),
        advice: Box::new(advice),
        coverage: Box::new(coverage),
    })
}

fn of_bench(path: &str) -> Result<Subject, u8> {
    let refuse = |why: String| {
        let (path, why) = (path.shown(), why.shown());
        warn(format_args!(
            "cannot read {path}: {why}; fix: name a PID, or a file of tiexecctl bench --export-json"
        ));
        exit::FAILED
    };
    let text = input::text_of(Path::new(path), LONGEST).map_err(refuse)?;
    let bench =
        Bench::from_json(&text).map_err(|error| refuse(format!("it is no benchmark: {error}")))?;
    Ok(Subject::Bench(Box::new(bench)))
}
