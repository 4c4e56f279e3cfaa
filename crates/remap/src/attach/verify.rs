//! Reports after an attach what the kernel says is PMD-mapped.

use tiexec_core::coverage::{Note, coverage};
use tiexec_core::plan::Plan;
use tiexec_core::report::{AttachCost, Kind, Outcome, Report};
use tiexec_core::skip::SkipReason;

use tiexec_sys::areas::Seen;
use tiexec_sys::{areas, thp};

use super::{AttachOrder, Attached};
use crate::launch::restart;
use crate::mapped::originals;
use crate::numa_placement;
use crate::store;
use crate::systemd_units;

/// Looks at the process and writes the report.
pub fn report(order: &AttachOrder<'_>, attached: &Attached) -> Report {
    let process = &order.target.process;
    let none = |_gone| Seen { areas: Vec::new(), smaps_for: None };
    let Seen { areas: mut entries, smaps_for } =
        areas::look_at(&order.target.space, process, order.policy.pages).unwrap_or_else(none);
    // On a machine with one node, this would say only how much of the text is in memory.
    if numa_placement::has_several_nodes() {
        numa_placement::tell(order.target.pid, &mut entries, order.policy.pages);
    }
    store::memory::tell(&mut entries);
    let plan = &attached.plan;
    // The order's pages, with which the plan was made, may have another size.
    let pages = thp::pages().unwrap_or(order.policy.pages);
    let notes: Vec<Note> = plan
        .texts
        .iter()
        .filter_map(|text| {
            let failure = attached.failure.as_ref().filter(|_| !text.spans.is_empty());
            let own = text.rest.iter().map(|&(reason, _)| reason);
            let own = { own }.find(|reason| *reason != SkipReason::Edges);
            let reason = failure.map(|failure| failure.reason).or(own)?;
            Some(Note { range: text.vma.range, reason })
        })
        .collect();
    let originals = originals(process, order.workers, &entries, order.policy.pages);
    let files = coverage(&entries, pages, &notes, &originals);
    let pid = order.target.pid.as_raw_nonzero().get().unsigned_abs();
    let comm = process.status().unwrap_or_default().name;
    let comm = String::from_utf8_lossy(&comm).into_owned();
    let mut report = Report::new(Kind::Attach, pid, comm, files);
    report.smaps_for = attached.smaps_for.or(smaps_for);
    report.unit = systemd_units::shown(process);
    report.restart = restart::gain(process, &report.files, order.policy.edges, pages);
    let planned = plan.span_bytes();
    let huge = plan.huge_bytes_in(&entries);
    if planned > 0 {
        report.outcome = Outcome::of(huge, planned);
    }
    if let Some(failure) = &attached.failure {
        report.reason = Some(failure.reason);
        report.detail = Some(failure.detail.clone());
    }
    report.attach = attached.stop.map(|stop| AttachCost {
        backing: Plan::main_backing(plan),
        thread: stop.tid.as_raw_nonzero().get().unsigned_abs(),
        stop_us: u64::try_from(stop.lasted.as_micros()).unwrap_or(u64::MAX),
        remote_syscalls: stop.counts.calls,
        bytes_copied: attached.bytes_copied,
        setback: attached.setback.as_ref().map(ToString::to_string),
        interrupted: stop.shown,
        spans: plan.spans().copied().collect(),
    });
    report
}
