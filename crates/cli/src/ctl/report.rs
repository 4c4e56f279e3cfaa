//! `tiexecctl report PID|BENCH.json`: one page to look at.

use std::time::Duration;

use tiexec_advise::compare::Bench;
use tiexec_advise::heat::Heat;
use tiexec_advise::page::{Page, Subject};
use tiexec_engine::sampling::FREQUENCY;

use super::{advise, can_write, inspect, write};
use crate::exit;
use crate::options::{Advise, ReportPage};
use crate::stdio::warn;

/// Runs `report`; returns the exit status.
pub(super) fn run(options: &ReportPage) -> u8 {
    if let Err(status) = can_write(options.output.as_deref()) {
        return status;
    }
    match options.subject.parse::<i32>() {
        Ok(pid) if pid > 0 => advise::sampled("report on", pid, options.duration, || {
            show(of_process(pid, options.duration), options)
        }),
        _ => show(of_bench(&options.subject), options),
    }
}

fn show(subject: Result<Subject, u8>, options: &ReportPage) -> u8 {
    let page = match subject {
        Ok(subject) => Page::new(subject),
        Err(status) => return status,
    };
    let text = if options.svg { page.to_svg() } else { page.to_html() };
    write(&text, options.output.as_deref())
}

fn of_process(pid: i32, duration: Option<Duration>) -> Result<Subject, u8> {
    let options = Advise {
        pid: Some(pid),
        duration,
        frequency: FREQUENCY,
        follow: false,
        json: false,
        output: None,
        command: Vec::new(),
    };
    let advised = advise::sample(&options)?;
    let coverage = inspect::report(pid)?;
    Ok(Subject::Process {
        heat: Box::new(Heat::new(&advised.tally, &advised.circumstances)),
        advice: Box::new(advised.advice),
        coverage: Box::new(coverage),
    })
}

fn of_bench(path: &str) -> Result<Subject, u8> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        warn(format_args!("cannot read {path}: {error}"));
        exit::FAILED
    })?;
    let bench = Bench::from_json(&text).map_err(|error| {
        warn(format_args!("{path} is nothing that tiexecctl bench --export-json wrote: {error}"));
        exit::FAILED
    })?;
    Ok(Subject::Bench(Box::new(bench)))
}
