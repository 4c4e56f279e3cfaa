//! The processes that a command is about: which they are, and what the command reports about one that it cannot work on.

mod not_found;
pub(crate) mod select;
pub(crate) mod service;

use std::time::Duration;

use tiexec_core::skip::{FailureKind, Reason};
use tiexec_remap::Failure;
use tiexec_remap::workers::{self, Pool};
use tiexec_sys::{Pid, ptrace};

use super::permission::Rights;
use crate::exit;
use crate::options::Targets;
use crate::stdio::{and_fix, warn};

/// Returns the selected processes.
///
/// # Errors
/// The exit status. The message is on stderr already: there are none, or the selection is malformed.
pub(crate) fn targets(targets: &Targets) -> Result<Vec<Pid>, u8> {
    let found = selected(targets)?;
    if found.is_empty() {
        warn(match (&targets.exe, &targets.user, &targets.unit) {
            (Some(exe), ..) => not_found::program(exe),
            (_, Some(unit), _) => not_found::unit(&select::with_kind(unit), true),
            (.., unit) => not_found::unit(&select::with_kind(unit.as_deref().unwrap_or("")), false),
        });
        return Err(exit::GONE);
    }
    Ok(found)
}

/// Returns the selected processes, which may be none.
///
/// # Errors
/// The exit status. The message is on stderr already: the selection is malformed.
pub(crate) fn selected(targets: &Targets) -> Result<Vec<Pid>, u8> {
    Ok(if let Some(exe) = &targets.exe {
        let program = select::Executable::at(exe);
        select::every(|_, process| program.is_run_by(process))
    } else if let Some(unit) = &targets.user {
        let unit = select::with_kind(unit);
        select::every(|_, process| select::is_of_user_unit(process, &unit))
    } else if let Some(unit) = &targets.unit {
        let unit = select::with_kind(unit);
        select::every(|_, process| select::is_of_unit(process, &unit))
    } else {
        return select::parse(&targets.pids).map_err(|error| {
            warn(error);
            exit::USAGE
        });
    })
}

/// Returns whether the user named the processes by their IDs.
pub(crate) fn named(targets: &Targets) -> bool {
    !targets.pids.is_empty()
}

/// Combines the exit statuses of the selected processes.
pub(crate) fn together(statuses: Vec<u8>, selected: &Targets) -> u8 {
    of_all(statuses, named(selected))
}

pub(crate) fn of_all(mut statuses: Vec<u8>, named: bool) -> u8 {
    if !named && statuses.iter().any(|&status| status != exit::GONE) {
        statuses.retain(|&status| status != exit::GONE);
    }
    exit::together(&statuses)
}

/// Reports why nothing was done. Returns the exit status for the failure.
pub(crate) fn failed(doing: &str, pid: Pid, failure: &Failure) -> u8 {
    let fix = match failure.reason {
        // With a scope of 3 no process may trace. `doctor` reports that, and also tries ptrace(2) itself.
        Reason::Failed(FailureKind::PtraceDenied)
            if !matches!(ptrace::yama_scope(), Some(3..))
                && !failure.detail.starts_with("ptrace(") =>
        {
            Rights::to(pid.as_raw_nonzero().get()).cause_and_fix().to_owned()
        }
        reason => and_fix(&failure.detail, fix_of(reason)),
    };
    warn(format_args!("cannot {doing} process {}: {failure}{fix}", pid.as_raw_nonzero()));
    match failure.reason {
        Reason::Failed(FailureKind::TargetGone) => exit::GONE,
        Reason::Failed(FailureKind::PtraceDenied) => exit::NOT_PERMITTED,
        Reason::Failed(FailureKind::Changed) => exit::PARTIAL,
        _ => exit::FAILED,
    }
}

/// Like [`failed`], but silent about an ended process that the user did not name, because a unit may have short-lived
/// helpers.
pub(crate) fn failed_of(doing: &str, pid: Pid, failure: &Failure, targets: &Targets) -> u8 {
    match failure.reason {
        Reason::Failed(FailureKind::TargetGone) if !named(targets) => exit::GONE,
        _ => failed(doing, pid, failure),
    }
}

/// Returns the fix of a reason, for an attach or a revert.
pub(crate) fn fix_of(reason: Reason) -> Option<&'static str> {
    match reason {
        // The reason has the fix of a launch, which is a longer `--deadline`. An attach has no such option.
        Reason::Failed(FailureKind::Deadline) => Some("do it again when the machine is less busy"),
        reason => reason.fix(),
    }
}

/// Does `work`, which examines the process, and returns its exit status. If the process has other credentials, a child
/// process does the work, for at most `patience`.
pub(crate) fn looked_at(
    doing: &str,
    pid: i32,
    patience: Duration,
    work: impl FnOnce() -> u8,
) -> u8 {
    let foreign = Pid::from_raw(pid).filter(|&pid| workers::pid_is_of_others(pid));
    let Some(pid) = foreign else { return work() };
    let mut work = Some(work);
    let one = |_pid, _: &mut Pool| work.take().map_or(exit::FAILED, |work| work());
    let gave_up = |pid, failure: &Failure| failed(doing, pid, failure);
    workers::each_apart(&[pid], patience, one, gave_up).first().copied().unwrap_or(exit::FAILED)
}
