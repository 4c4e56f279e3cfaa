//! Mappings that a dead TiExec left in a process. The next attach or revert finds them, and removes them before any
//! other work there.
//!
//! The program executes none of them. Each is a mapping that was staged and never moved, filler that a revert had yet
//! to unmap, or a gap that an earlier version claimed and never covered.

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

/// The most mappings that are removed at once, which is more than one death leaves. A program may set any number of
/// marks.
const MOST: usize = 64;
/// The most text VMAs that are examined. A program may have any number of them.
const MOST_TEXTS: usize = 4096;

/// Returns the mappings of the process that a dead TiExec left.
pub(super) fn find(order: &AttachOrder<'_>, marks: Option<Marks>, entries: &[Area]) -> Vec<Vma> {
    let all: Vec<Vma> = entries.iter().map(|entry| entry.vma.clone()).collect();
    let mut left = marked(order, marks, &all);
    // A staged mapping is a second mapping of a text, and does not count as that text.
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
            // Widened page cache, all of whose file parts were reverted.
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

/// Returns the mappings of the process that carry a mark, at most [`MOST`].
pub(super) fn marked(order: &AttachOrder<'_>, marks: Option<Marks>, vmas: &[Vma]) -> Vec<Vma> {
    let marked = marks.map(|marks| marks.left(vmas)).unwrap_or_default();
    let mut layouts = Layouts::new(&order.target.process, order.workers, vmas, order.policy.pages);
    // TiExec stages only copies, and parts of a file in segments that are not writable.
    let mut could_be_staged = |vma: &Vma| {
        let Ok(file) = layouts.of(vma) else { return false };
        let end = vma.file_offset.saturating_add(vma.range.len());
        file.places.iter().any(|parts| parts.has_of_file(vma.file_offset..end))
    };
    let is_left = |vma: &&Vma| vma.perms.is_none() || is_ours(vma) || could_be_staged(vma);
    marked.into_iter().take(MOST).filter(is_left).cloned().collect()
}

/// Has the process unmap those of the `left` mappings that are still there. Returns how many bytes they had. `by`
/// is the thread that is traced for this; `None` if no thread is.
///
/// # Errors
/// `already_traced`: another process traces a thread of the process, and the mappings may be its own.
pub(super) fn take_away(
    executor: &mut impl Executor,
    by: Option<Pid>,
    target: &Target,
    left: &[Vma],
) -> Result<u64, Failure> {
    if left.is_empty() {
        return Ok(0);
    }
    // TiExecs of different users do not exclude each other, but each traces a thread while it has mappings staged.
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

/// Has the process unmap a range. Returns how many bytes were unmapped.
pub(super) fn unmap(executor: &mut impl Executor, range: AddrRange) -> Result<u64, Failure> {
    let unmapped = executor.call(remote::munmap(range))?;
    // The kernel does not unmap a part of a page of the hugetlb pool; such a page stays.
    Ok(if unmapped.is_ok() { range.len() } else { 0 })
}
