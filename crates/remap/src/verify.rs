//! Reports what the kernel says is PMD-mapped: after a launch, after an attach, and in a process that TiExec only
//! inspects.

use std::time::Duration;

use tiexec_core::addr::Pages;
use tiexec_core::config::EdgePolicy;
use tiexec_core::coverage::{Note, coverage, is_ours, left_alone};
use tiexec_core::plan::Plan;
use tiexec_core::proc::maps::Vma;
use tiexec_core::report::{Cost, Kind, LinkedStop, Outcome, Report};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::areas::Seen;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, areas, thp};
use tiexec_tracee::Failure;

use crate::attach::{AttachOrder, Attached, look_at_jit};
use crate::mapped::originals;
use crate::policy::Policy;
use crate::workers::Workers;
use crate::{numa_placement, restart, store, systemd_units};

/// Looks at a process after an attach, and writes the report. If the kernel does not show that the plan is carried out,
/// that becomes the failure of the attach. It does not if the program has ended or executed another one since.
pub fn report(order: &AttachOrder<'_>, attached: &mut Attached) -> Report {
    let AttachOrder { target, workers, policy: Policy { pages, edges, dry_run, .. }, .. } = *order;
    let (process, edges) = (&target.process, Some(edges));
    let seen = areas::look_at(&target.space, process, pages);
    let areas = seen.as_ref().map_or(&[][..], |seen| &seen.areas);
    let originals = originals(process, workers, areas, pages);
    let of = Subject { pid: target.pid, process, pages, edges, dry_run, in_full: true };
    if attached.failure.is_none() {
        let failure = of.unverified(attached.plan.huge_bytes_in(areas), attached, &seen);
        attached.failure = failure.filter(|_| target.still_there().is_ok());
    }
    of.report(Kind::Attach, seen, &originals, attached)
}

/// Reports how much of a process's text the kernel says is huge, without a change to the process.
///
/// # Errors
/// Its files under `/proc` cannot be read; ESRCH if it has no memory any more.
pub fn inspect(pid: Pid, process: &ProcDir, pages: Pages) -> Result<Report, SysError> {
    let seen = areas::look(process, pages)?;
    // The kernel shows no mapping of a process that is ending (`exit_mm` in `kernel/exit.c`).
    if seen.areas.is_empty() {
        return Err(SysError { call: "maps", errno: Errno::SRCH });
    }
    let jit = look_at_jit(process, &seen.areas, pages).unwrap_or_default();
    let originals = originals(process, &Workers::none(), &seen.areas, pages);
    let edges = Some(EdgePolicy::default());
    let of = Subject { pid, process, pages, edges, dry_run: true, in_full: true };
    let untouched = Attached::planned(Plan::nothing(pages.pmd));
    Ok(Report { jit, ..of.report(Kind::Inspect, Ok(seen), &originals, &untouched) })
}

/// Looks at a program after its launch, before it has run, and writes the report.
pub(crate) fn report_launch(of: &Subject<'_>, attached: &Attached) -> Report {
    let seen = areas::look(of.process, of.pages);
    let texts = attached.plan.texts.iter().map(|text| text.vma.clone());
    let originals: Vec<Vma> = texts.filter(|vma| !is_ours(vma)).collect();
    of.report(Kind::Launch, seen, &originals, attached)
}

/// The process that a report is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// Its PID.
    pub pid: Pid,
    /// Its directory under `/proc`.
    pub process: &'a ProcDir,
    /// The page sizes with which the plan was made.
    pub pages: Pages,
    /// The edges that a start by `tiexec` would take; `None` for a program that has just been started so.
    pub edges: Option<EdgePolicy>,
    /// True if nothing was to be switched.
    pub dry_run: bool,
    /// False if nobody reads the process's name, its unit, its nodes and its memory.
    pub in_full: bool,
}

impl Subject<'_> {
    /// Returns the report of a process that looks like this, or that could not be looked at. `originals` are its texts as
    /// they were mapped before.
    fn report(
        &self,
        kind: Kind,
        seen: Result<Seen, SysError>,
        originals: &[Vma],
        attached: &Attached,
    ) -> Report {
        let Self { pid, process, pages, in_full, .. } = *self;
        let plan = &attached.plan;
        let areas = seen.as_ref().map_or(&[][..], |seen| &seen.areas);
        let (planned, huge) = (plan.span_bytes(), plan.huge_bytes_in(areas));
        let of_launch = kind == Kind::Launch && attached.failure.is_none();
        let unverified = of_launch.then(|| self.unverified(huge, attached, &seen)).flatten();
        let Seen { mut areas, smaps_for } = seen.unwrap_or_default();
        // After an attach on a machine with one node, this would say only how much of the text is in memory.
        if in_full && (kind != Kind::Attach || numa_placement::has_several_nodes()) {
            numa_placement::tell(pid, &mut areas, pages);
        }
        if in_full {
            store::memory::tell(&mut areas);
        }
        // The pages with which the plan was made may have another size.
        let pages = thp::pages().unwrap_or(pages);
        let mut notes = notes(attached);
        if kind == Kind::Inspect {
            notes.extend(areas.iter().filter_map(|area| left(&area.vma)));
        }
        let files = coverage(&areas, pages, &notes, originals);
        let mut report = Report::new(kind, number(pid), String::new(), files);
        if in_full {
            let comm = process.status().unwrap_or_default().name;
            report.comm = String::from_utf8_lossy(&comm).into_owned();
            report.unit = systemd_units::shown(process);
        }
        if let Some(edges) = self.edges {
            report.smaps_for = attached.smaps_for.or(smaps_for);
            report.restart = restart::gain(process, &report.files, edges, pages);
        }
        if planned > 0 {
            report.outcome = Outcome::of(huge, planned);
        }
        let said = |failure: &Failure| (failure.reason, Some(failure.detail.clone()));
        let failed = attached.failure.as_ref().map(said);
        let less = || {
            let unverified = unverified.as_ref().map(said);
            unverified.or_else(|| why_less(&report, attached).filter(|_| of_launch))
        };
        if let Some((reason, detail)) = failed.or_else(less) {
            (report.reason, report.detail) = (Some(reason), detail);
        }
        let cost = attached.cost();
        match kind {
            Kind::Launch => report.launch = cost,
            Kind::Attach | Kind::Inspect => report.attach = cost,
        }
        report
    }

    /// Returns why the kernel does not show that the plan is carried out, although nothing failed. `huge` are the bytes of
    /// the plan that it shows to be huge.
    fn unverified(
        &self,
        huge: u64,
        attached: &Attached,
        seen: &Result<Seen, SysError>,
    ) -> Option<Failure> {
        if huge >= attached.plan.span_bytes() {
            return None;
        }
        if has_ended(self.process) {
            // If the program is killed, the kernel ends the list of its mappings early.
            return Some(Failure::new(FailureKind::TargetGone, "the program ended"));
        }
        match seen {
            _ if self.dry_run => None,
            Err(error) => {
                let what = format!("switched, but not verified: {error}");
                Some(Failure::new(Failure::unreadable(*error).reason, what))
            }
            // The program may have unmapped a library since (dlclose(3)).
            Ok(seen) if huge >= attached.plan.text_bytes_in(&seen.areas) => None,
            // All calls succeeded, but the kernel shows no huge pages: believe the kernel.
            Ok(_) => Some(Failure::new(FailureKind::NoHugePage, "switched, but not PMD-mapped")),
        }
    }
}

/// Returns why a launched program has text on base pages although nothing failed.
fn why_less(report: &Report, attached: &Attached) -> Option<(Reason, Option<String>)> {
    let Attached { plan, setback, start, .. } = attached;
    let said = |failure: &Failure| failure.detail.clone();
    let mut texts = plan.texts.iter();
    if let Some(reason) = texts.find_map(|text| unplanned(&text.rest, setback.as_ref())) {
        let setback = setback.as_ref().filter(|setback| setback.reason == reason);
        return Some((reason, setback.map(said)));
    }
    let unwatched = start.as_ref().and_then(|start| start.unwatched.as_ref());
    let nothing = plan.span_bytes() == 0 && report.huge_bytes == 0;
    unwatched
        .map(|failure| (failure.reason, Some(said(failure))))
        .or(nothing.then_some((SkipReason::TooSmall.into(), None)))
}

impl Attached {
    /// Returns the cost, as the report has it; `None` if no thread was stopped.
    fn cost(&self) -> Option<Cost> {
        let Self { plan, start, .. } = self;
        self.stop.map(|stop| Cost {
            backing: plan.main_backing(),
            thread: start.is_none().then(|| number(stop.tid)),
            stop_us: micros(stop.lasted),
            linked: start
                .as_ref()
                .map(|start| LinkedStop { linked_stop_us: start.linked.map(micros) }),
            remote_syscalls: stop.counts.calls,
            bytes_copied: self.bytes_copied,
            rebased: start.as_ref().map(|start| start.rebased),
            setback: self.setback.as_ref().map(ToString::to_string),
            interrupted: start.is_none().then_some(stop.shown),
            spans: plan.spans().copied().collect(),
        })
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns whether the program has no memory any more.
fn has_ended(process: &ProcDir) -> bool {
    match process.read("maps") {
        Ok(maps) => maps.is_empty(),
        Err(error) => matches!(error.errno, Errno::SRCH | Errno::NOENT),
    }
}

/// Returns why whole huge pages of a text were not planned: because the page cache or the image store lacks them,
/// or because of the store's failure, which is the launch's `setback`. Returns `None` if there is no such reason.
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

/// Returns why a text that nobody has tried to treat is not huge. Ordinary text has a note, too: the reason of the largest
/// piece counts for the whole text.
fn left(vma: &Vma) -> Option<Note> {
    let reason = left_alone(vma).unwrap_or(SkipReason::BasePages).into();
    (vma.is_text() && !is_ours(vma)).then_some(Note { range: vma.range, reason })
}

/// Returns the reasons why text of the process is not huge, to be shown where it is not.
fn notes(attached: &Attached) -> Vec<Note> {
    let Attached { plan: Plan { texts, .. }, failure, .. } = attached;
    texts
        .iter()
        .filter_map(|text| {
            let failure = failure.as_ref().filter(|_| !text.spans.is_empty());
            // The reason of the most bytes stands for all but the edges.
            let others = text.rest.iter().filter(|(reason, _)| *reason != SkipReason::Edges);
            let own = others.rev().max_by_key(|(_, bytes)| *bytes).map(|&(reason, _)| reason);
            let reason = failure.map(|failure| failure.reason).or(own)?;
            Some(Note { range: text.vma.range, reason })
        })
        .collect()
}
