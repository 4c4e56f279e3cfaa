//! `tiexecctl report PID|BENCH.json`: makes a page for people.

use std::path::Path;
use std::time::Duration;

use tiexec_advise::compare::Bench;
use tiexec_advise::heat::Heat;
use tiexec_advise::page::{Made, Page, Subject};
use tiexec_core::escape::AsShown;
use tiexec_sys::Pid;

use super::advise::Advised;
use super::{advise, can_write, date, input, inspect, machine, write};
use crate::exit;
use crate::options::{Advise, ReportPage, Targets};
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
    match options.subject.parse::<i32>() {
        Ok(pid) if pid > 0 => {
            let pids: Vec<Pid> = Pid::from_raw(pid).into_iter().collect();
            advise::sampled(DOING, &pids, options.duration, || {
                show(of_process(&pids, pid, options.duration), options)
            })
        }
        _ => show(of_bench(&options.subject), options),
    }
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

fn of_process(pids: &[Pid], pid: i32, duration: Option<Duration>) -> Result<Subject, u8> {
    let targets = Targets { pids: vec![pid.to_string()], ..Targets::default() };
    let options = Advise::of(targets, duration);
    let Advised { advice, tally, circumstances, .. } = advise::sample(DOING, pids, &options)?;
    let coverage = inspect::report(pid)?;
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
