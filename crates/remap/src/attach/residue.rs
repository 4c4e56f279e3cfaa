//! Mappings that a dead TiExec left in a process. The next attach or revert finds them, and removes them before it does
//! anything else there.
//!
//! The program runs none of them as text. Each is a mapping that was staged and never moved, a claim of a gap that was
//! never covered, or filler that a revert had yet to unmap.

use tiexec_core::addr::AddrRange;
use tiexec_core::area::Area;
use tiexec_core::coverage::is_ours;
use tiexec_core::file_ranges::Parts;
use tiexec_core::marks::Marks;
use tiexec_core::proc::maps::{self, Vma};
use tiexec_core::skip::FailureKind;
use tiexec_sys::Pid;
use tiexec_tracee::Failure;
use tiexec_tracee::executor::Executor;
use tiexec_tracee::remote;
use tiexec_tracee::target::Target;
use tiexec_tracee::threads;

use super::AttachOrder;
use crate::mapped::{Layouts, is_marked_widened};

/// The most that is taken away at once: more than a death leaves. A program may put marks on as much as it likes.
const MOST: usize = 64;
/// The most text VMAs that are looked at. A program may have as many as it likes too.
const MOST_TEXTS: usize = 4096;

/// Returns what was left among all mappings of the process.
pub(super) fn find(order: &AttachOrder<'_>, marks: Option<Marks>, entries: &[Area]) -> Vec<Vma> {
    let all: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
    let mut left = marked(order, marks, &all);
    // A text that is mapped a second time, for it is staged, is not there.
    let here: Vec<&Area> = entries.iter().filter(|entry| !left.contains(&entry.vma)).collect();
    let vmas: Vec<Vma> = here.iter().map(|entry| entry.vma.clone()).collect();
    let mut layouts = Layouts::new(&order.target.process, order.workers, &vmas, order.policy.pages);
    let texts = here.into_iter().enumerate().filter(|(_, entry)| entry.vma.is_text());
    for (index, entry) in texts.take(MOST_TEXTS) {
        let vma = &entry.vma;
        if left.len() >= MOST {
            break;
        }
        let is_left = if is_ours(vma) {
            layouts.belongs_nowhere(order.target.space.memory(), index)
        } else {
            // Page cache of which all that is the file's was given back.
            let is_gap = |(_, parts): (_, Parts)| parts.within(vma.range).next().is_none();
            layouts.widened(vma).is_some_and(is_gap)
                && is_marked_widened(&order.target.process, entry)
        };
        if is_left {
            left.push(vma.clone());
        }
    }
    left
}

/// Returns what carries a mark among all mappings of the process, as far as it is taken away at once.
pub(super) fn marked(order: &AttachOrder<'_>, marks: Option<Marks>, vmas: &[Vma]) -> Vec<Vma> {
    let marked = marks.map(|marks| marks.left(vmas)).unwrap_or_default();
    let mut layouts = Layouts::new(&order.target.process, order.workers, vmas, order.policy.pages);
    // Only copies, and what a file has in a segment that is not written to, are ever staged.
    let mut could_be_staged = |vma: &Vma| {
        let Ok(file) = layouts.of(vma) else { return false };
        let end = vma.file_offset.saturating_add(vma.range.len());
        file.places.iter().any(|parts| parts.has_of_file(vma.file_offset..end))
    };
    let is_left = |vma: &&Vma| vma.perms.is_none() || is_ours(vma) || could_be_staged(vma);
    marked.into_iter().take(MOST).filter(is_left).cloned().collect()
}

/// Has the process unmap what was left, as far as it is still there; returns how many bytes that was. `by` is the thread that
/// is traced for this, if one is.
///
/// # Errors
/// `already_traced`: somebody else traces a thread of the process, and it may be theirs.
pub(super) fn take_away(
    executor: &mut impl Executor,
    by: Option<Pid>,
    target: &Target,
    left: &[Vma],
) -> Result<u64, Failure> {
    if left.is_empty() {
        return Ok(0);
    }
    // TiExecs of different users do not exclude each other, and staging goes with tracing.
    let others = target.threads();
    let traced = others
        .into_iter()
        .filter(|&tid| Some(tid) != by)
        .filter_map(|tid| threads::alive(&target.process, tid))
        .find(|status| status.tracer_pid != 0);
    if let Some(status) = traced {
        let what = format!(
            "process {} traces a thread of it, and may be at work there",
            status.tracer_pid
        );
        return Err(Failure::new(FailureKind::AlreadyTraced, what));
    }
    let text = target.space.maps().map_err(Failure::unreadable)?;
    let now = maps::parse(&text).map_err(Failure::of(FailureKind::ProcUnavailable))?;
    let mut bytes = 0;
    for vma in left.iter().filter(|vma| now.contains(vma)) {
        bytes += unmap(executor, vma.range)?;
    }
    Ok(bytes)
}

/// Has the process unmap a range; returns how many bytes that was.
pub(super) fn unmap(executor: &mut impl Executor, range: AddrRange) -> Result<u64, Failure> {
    let unmapped = executor.call(remote::munmap(range))?;
    // The kernel unmaps no part of a page of the hugetlb pool: such a page stays.
    Ok(if unmapped.is_ok() { range.len() } else { 0 })
}
