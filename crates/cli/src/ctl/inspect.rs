//! `tiexecctl inspect PID...`: reports how much text of processes is huge, as the kernel reports it.

use tiexec_core::report::{OfFamily, Report};
use tiexec_engine::locked_target::LOOKING;
use tiexec_remap::{verify, workers};
use tiexec_sys::{Errno, Pid, SysError};

use super::families::{Figures, Printer, Seen, UNDO, WHO};
use super::targets::{self, targets, together};
use super::{failed_of, has_text_of, pages, thread_with_text, told};
use crate::options::Targets;

/// Inspects the processes. If there are several, prints those that look the same and have the same copies as one, unless
/// the user wants `each`, and prints the sums.
pub(super) fn run(selected: &Targets, each: bool, json: bool) -> u8 {
    let pids = match targets(selected) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let named = targets::named(selected);
    let printer = Printer::new(selected, pids.len(), each, json, false);
    let one = |pid: Pid| match workers::pid_is_of_others(pid) {
        // The inspected process can block the reader.
        true => workers::apart(LOOKING, || seen(pid, named, &printer))
            .unwrap_or_else(|failure| Seen::from(targets::failed("inspect", pid, &failure))),
        false => seen(pid, named, &printer),
    };
    let all: Vec<(Pid, Seen)> = pids.into_iter().map(|pid| (pid, one(pid))).collect();
    let printed = printer.all("inspect", &all);
    told(together(all.iter().map(|(_, seen)| seen.status).collect(), selected), printed)
}

/// Inspects a process. An ended process is an error only if the user `named` it.
fn seen(pid: Pid, named: bool, printer: &Printer<'_>) -> Seen {
    let report = match report_of(pid.as_raw_nonzero().get(), named) {
        Ok(report) => report,
        Err(status) => return Seen::from(status),
    };
    let text = OfFamily { report: &report, who: WHO, undo: UNDO }.to_string();
    let seen = Seen { text, figures: Some(Figures::from(&report)), ..Seen::default() };
    printer.one(pid, seen, || report.to_json())
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
    verify::inspect(number, &process, pages("inspect")?).map_err(refuse)
}
