//! `tiexecctl inspect PID...`: reports how much text of processes is huge, as the kernel reports it.

use serde::{Deserialize, Serialize};
use tiexec_core::addr::mib;
use tiexec_core::escape;
use tiexec_core::report::{Report, SCHEMA, percent};
use tiexec_engine::locked_target::LOOKING;
use tiexec_remap::{verify, workers};
use tiexec_sys::{Errno, Pid, SysError, thp};

use super::targets::{self, targets, together};
use super::{failed_of, has_text_of, print, thread_with_text, told};
use crate::exit;
use crate::options::Targets;
use crate::stdio::warn;

/// The figures of one process that a sum needs.
#[derive(Serialize, Deserialize)]
struct Figures {
    status: u8,
    text_bytes: u64,
    huge_bytes: u64,
}

impl Figures {
    /// Inspects a process, and prints its report. An ended process is an error only if the user `named` it.
    fn of(pid: i32, named: bool, json: bool) -> Self {
        match report_of(pid, named) {
            Ok(report) => {
                let text = if json { report.to_json() + "\n" } else { report.to_string() };
                let Report { text_bytes, huge_bytes, .. } = report;
                Self { status: print(&text), text_bytes, huge_bytes }
            }
            Err(status) => Self { status, text_bytes: 0, huge_bytes: 0 },
        }
    }

    /// Does the same in a child process, because the inspected process can block the reader.
    fn apart(pid: Pid, named: bool, json: bool) -> Self {
        let look = || Self::of(pid.as_raw_nonzero().get(), named, json);
        workers::apart(LOOKING, look).unwrap_or_else(|failure| {
            let status = targets::failed("inspect", pid, &failure);
            Self { status, text_bytes: 0, huge_bytes: 0 }
        })
    }
}

/// Inspects the processes. If there are several, also prints the sums.
pub(super) fn run(selected: &Targets, json: bool) -> u8 {
    let pids = match targets(selected) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let named = targets::named(selected);
    let one = |&pid: &Pid| match workers::pid_is_of_others(pid) {
        true => Figures::apart(pid, named, json),
        false => Figures::of(pid.as_raw_nonzero().get(), named, json),
    };
    let all: Vec<Figures> = pids.iter().map(one).collect();
    let statuses = all.iter().map(|one| one.status).collect();
    let mut printed = exit::OK;
    let seen: Vec<&Figures> = all.iter().filter(|one| one.status == exit::OK).collect();
    if pids.len() > 1 && !seen.is_empty() {
        let sum = |of: fn(&Figures) -> u64| seen.iter().map(|one| of(one)).sum::<u64>();
        let (text, huge) = (sum(|one| one.text_bytes), sum(|one| one.huge_bytes));
        let processes = seen.len();
        printed = print(&if json {
            let sums = serde_json::json!({
                "schema": SCHEMA,
                "kind": "inspect_sum",
                "processes": processes,
                "text_bytes": text,
                "huge_bytes": huge,
            });
            escape::json(&sums) + "\n"
        } else {
            let (percent, text, huge) = (percent(huge, text), mib(text), mib(huge));
            format!("all {processes} processes   text {text} MiB   huge {huge} MiB ({percent} %)\n")
        });
    }
    told(together(statuses, selected), printed)
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
