//! Reports after a launch what the kernel says is PMD-mapped.

use std::time::Duration;

use tiexec_core::coverage::{Note, coverage, is_ours};
use tiexec_core::plan::Plan;
use tiexec_core::proc::maps::Vma;
use tiexec_core::report::{Kind, LaunchCost, Outcome, Report};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{areas, thp};
use tiexec_tracee::Failure;
use tiexec_tracee::handshake::ExecStop;

use crate::numa_placement;
use crate::order::Order;
use crate::store;
use crate::systemd_units;

/// The results of the phases before.
pub(crate) struct Found {
    /// The plan; `None` if the launch failed before it.
    pub plan: Option<Plan>,
    /// The failure.
    pub failure: Option<Failure>,
    /// Why the program could not be stopped once `ld.so` was done.
    pub unwatched: Option<Failure>,
    /// The cost; `None` if the program made no calls for TiExec.
    pub cost: Option<Cost>,
}

/// The cost of carrying out the plan.
pub(crate) struct Cost {
    /// How long the program was held at the exec stop.
    pub held: Duration,
    /// How long the program was held once `ld.so` was done; `None` if it was not held then.
    pub held_linked: Option<Duration>,
    /// System calls that the program made for TiExec.
    pub remote_syscalls: u32,
    /// Bytes copied from the file.
    pub bytes_copied: u64,
    /// True if the program was moved.
    pub rebased: bool,
    /// Why something was done in a worse way than planned.
    pub setback: Option<Failure>,
}

/// Looks at the program and writes the report.
pub(crate) fn report(order: &Order<'_>, stop: &ExecStop, found: &Found) -> Report {
    let process = order.process;
    let seen = areas::look(process, order.policy.pages);
    let mut entries = seen.map(|seen| seen.areas).unwrap_or_default();
    if order.wants_report {
        numa_placement::tell(stop.pid, &mut entries, order.policy.pages);
        store::memory::tell(&mut entries);
    }
    let texts = found.plan.iter().flat_map(|plan| &plan.texts).map(|text| text.vma.clone());
    let originals: Vec<Vma> = texts.filter(|vma| !is_ours(vma)).collect();
    // The order's pages, with which the plan was made, may have another size.
    let pages = thp::pages().unwrap_or(order.policy.pages);
    let files = coverage(&entries, pages, &notes(found), &originals);
    let pid = stop.pid.as_raw_nonzero().get().unsigned_abs();
    let mut report = Report::new(Kind::Launch, pid, String::new(), files);
    if order.wants_report {
        let comm = process.status().unwrap_or_default().name;
        report.comm = String::from_utf8_lossy(&comm).into_owned();
        report.unit = systemd_units::shown(process);
    }

    let plan = found.plan.as_ref();
    let planned = plan.map_or(0, Plan::span_bytes);
    let huge = plan.map_or(0, |plan| plan.huge_bytes_in(&entries));
    if planned > 0 || report.huge_bytes == 0 {
        report.outcome = Outcome::of(huge, planned);
    }
    if let Some(failure) = &found.failure {
        report.reason = Some(failure.reason);
        report.detail = Some(failure.detail.clone());
    } else if huge < planned && has_ended(process) {
        // If the program is killed, the kernel ends the list of its mappings early.
        report.reason = Some(FailureKind::TargetGone.into());
        report.detail = Some("the program ended".to_owned());
    } else if !order.policy.dry_run && huge < planned {
        // All calls succeeded, but the kernel shows no huge pages: believe the kernel.
        report.reason = Some(FailureKind::NoHugePage.into());
        report.detail = Some("switched, but not PMD-mapped".to_owned());
    } else {
        let setback = found.cost.as_ref().and_then(|cost| cost.setback.as_ref());
        let unplanned =
            plan.and_then(|plan| plan.texts.iter().find_map(|text| unplanned(&text.rest, setback)));
        let nothing = planned == 0 && report.huge_bytes == 0;
        report.reason = unplanned;
        let setback = setback.filter(|setback| Some(setback.reason) == unplanned);
        report.detail = setback.map(|failure| failure.detail.clone());
        if let (None, Some(failure)) = (unplanned, &found.unwatched) {
            report.reason = Some(failure.reason);
            report.detail = Some(failure.detail.clone());
        }
        report.reason = report.reason.or(nothing.then_some(SkipReason::TooSmall.into()));
    }
    report.launch = found.cost.as_ref().map(|cost| LaunchCost {
        backing: plan.and_then(Plan::main_backing),
        stop_us: micros(cost.held),
        linked_stop_us: cost.held_linked.map(micros),
        remote_syscalls: cost.remote_syscalls,
        bytes_copied: cost.bytes_copied,
        rebased: cost.rebased,
        setback: cost.setback.as_ref().map(ToString::to_string),
        spans: plan.map(|plan| plan.spans().copied().collect()).unwrap_or_default(),
    });
    report
}

/// Returns whether the program has no memory any more.
fn has_ended(process: &ProcDir) -> bool {
    process.read("maps").map_or(true, |maps| maps.is_empty())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns why whole huge pages of a text were not planned: because the page cache or the image store lacks them,
/// or because of the store's failure, which is the launch's `setback`. `None` if there is no such reason.
fn unplanned(rest: &[(Reason, u64)], setback: Option<&Failure>) -> Option<Reason> {
    let of_whole_pages = |why: &Reason| match why {
        Reason::Skipped(why) => matches!(
            why,
            SkipReason::SmallFolios
                | SkipReason::NotCongruent
                | SkipReason::NoStore
                | SkipReason::NotStored
                | SkipReason::NotShareable
                | SkipReason::Misplaced
                | SkipReason::OddFile
        ),
        Reason::Failed(_) => setback.is_some_and(|setback| setback.reason == *why),
    };
    rest.iter().map(|&(reason, _)| reason).find(of_whole_pages)
}

/// Returns the reasons why text of the program is not huge, to be shown where it is not.
fn notes(found: &Found) -> Vec<Note> {
    let texts = found.plan.iter().flat_map(|plan| &plan.texts);
    texts
        .filter_map(|text| {
            let failure = found.failure.as_ref().filter(|_| !text.spans.is_empty());
            let own = text.rest.iter().map(|&(reason, _)| reason);
            let own = { own }.find(|reason| *reason != SkipReason::Edges);
            let reason = failure.map(|failure| failure.reason).or(own)?;
            Some(Note { range: text.vma.range, reason })
        })
        .collect()
}
