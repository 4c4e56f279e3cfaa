//! Code that the process makes itself: anonymous executable memory, made huge where it lies.
//!
//! TiExec calls `process_madvise(MADV_COLLAPSE)` from outside: no thread stops, no byte changes.
//! Where that is not permitted, or the process has turned THP off for itself, a stopped thread calls
//! `madvise(MADV_COLLAPSE)`.

use std::os::fd::{AsFd, BorrowedFd};

use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::area::Area;
use tiexec_core::coverage::moved_text;
use tiexec_core::proc::maps::Vma;
use tiexec_core::report::JitArea;
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, SysError, areas, process, process_advice};
use tiexec_tracee::TraceError;
use tiexec_tracee::remote::{self, Advice, madvise_entry};
use tiexec_tracee::session::Session;
use tiexec_tracee::syscall_manifest::ManifestEntry;

use super::written::Written;
use super::{AttachOrder, Done, Stop, ThpOn, in_a_stop, thp_is_off};
use crate::pagecache::try_thrice;
use tiexec_tracee::Failure;

/// How many huge pages a thread makes in one stop; each takes about half a millisecond.
const IN_ONE_STOP: usize = 4;

/// Makes the anonymous executable areas of a process huge where at least half of a huge page's base pages are
/// populated. A huge page with fewer would cost more memory than it holds code.
///
/// # Errors
/// TiExec could not look at the process, which is unchanged. The areas report what the kernel refuses.
pub fn collapse_jit(order: &AttachOrder<'_>) -> Result<Vec<JitArea>, Failure> {
    collapse_as_seen(order).map_err(|failure| order.target.cause(failure))
}

fn collapse_as_seen(order: &AttachOrder<'_>) -> Result<Vec<JitArea>, Failure> {
    let written = Written::of(&order.target.space, order.policy.pages)?;
    let look = || {
        areas::look_at(&order.target.space, &order.target.process, order.policy.pages)
            .map_err(Failure::unreadable)
    };
    let entries = look()?.areas;
    let mut areas: Vec<Jit> = made(&entries)
        .filter_map(|entry| Jit::of(order.policy.pages, &written, entry).transpose())
        .collect::<Result<_, _>>()?;
    if !order.policy.dry_run && areas.iter().any(|area| !area.wanted.is_empty()) {
        let outside = process::open_pidfd(order.target.pid).map_err(Failure::unreadable)?;
        if thp_is_off(&order.target.process) || !from_outside(outside.as_fd(), &mut areas) {
            from_inside(order, &entries, &mut areas);
        }
    }
    let after = if order.policy.dry_run { entries } else { look()?.areas };
    Ok(areas.into_iter().map(|area| area.seen(&after)).collect())
}

/// Returns the present state of the areas whose code the process makes itself and that could have whole huge pages.
///
/// # Errors
/// TiExec could not look at the process.
pub fn look_at_jit(
    process: &ProcDir,
    entries: &[Area],
    pages: Pages,
) -> Result<Vec<JitArea>, Failure> {
    let space = AddressSpace::open(process).map_err(Failure::untraceable)?;
    let written = Written::of(&space, pages)?;
    let mut areas: Vec<JitArea> = made(entries)
        .filter_map(|entry| Jit::of(pages, &written, entry).transpose())
        .map(|area| Ok(area?.seen(entries)))
        .collect::<Result<_, Failure>>()?;
    areas.retain(|area| area.populated_bytes > 0 || area.huge_bytes > 0);
    Ok(areas)
}

/// Returns the areas in which the process makes code, and those with text that it has moved there and that is not huge.
/// Huge text counts for its file.
fn made(entries: &[Area]) -> impl Iterator<Item = &Area> {
    let all = entries.iter().enumerate();
    all.filter(|&(index, entry)| moved_text(entries, index).is_none() || entry.huge_bytes() == 0)
        .map(|(_, entry)| entry)
}

/// Returns whether the area is anonymous memory that may be executed.
fn is_jit(vma: &Vma) -> bool {
    // PR_SET_VMA_ANON_NAME names an area `[anon:name]`.
    vma.perms.exec
        && !vma.is_file_backed()
        && (vma.name.is_empty() || vma.name.starts_with(b"[anon:"))
}

/// One area of anonymous executable memory.
struct Jit {
    range: AddrRange,
    populated: Vec<AddrRange>,
    /// Bytes that are huge already.
    huge: u64,
    /// The huge pages to make.
    wanted: Vec<AddrRange>,
    refused: Option<String>,
}

impl Jit {
    fn of(pages: Pages, written: &Written, entry: &Area) -> Result<Option<Self>, Failure> {
        let range = entry.vma.range;
        let Some(whole) = range.align_inward(pages.pmd).filter(|_| is_jit(&entry.vma)) else {
            return Ok(None);
        };
        let populated = written.populated(whole)?;
        let huge = entry.huge_bytes();
        let is_huge = huge >= populated.iter().map(|page| page.len()).sum();
        let wanted = if is_huge { Vec::new() } else { populated.clone() };
        Ok(Some(Self { range, populated, huge, wanted, refused: None }))
    }

    /// Returns the report of this area, from what the kernel shows after the work.
    fn seen(self, entries: &[Area]) -> JitArea {
        // The kernel may have split the area into several meanwhile.
        let now = entries.iter().filter(|entry| self.range.covers(entry.vma.range));
        let huge_bytes: u64 = now.map(Area::huge_bytes).sum();
        JitArea {
            range: self.range,
            populated_bytes: self.populated.iter().map(|page| page.len()).sum(),
            huge_bytes,
            made_bytes: huge_bytes.saturating_sub(self.huge),
            refused: self.refused,
            populated: self.populated,
        }
    }
}

/// Makes the huge pages from outside. Returns `false` if that is not permitted.
fn from_outside(process: BorrowedFd<'_>, areas: &mut [Jit]) -> bool {
    for area in areas {
        for &page in &area.wanted {
            match try_thrice(|| process_advice::collapse(process, page)) {
                Err(error) if matches!(error.errno, Errno::PERM | Errno::NOSYS) => return false,
                made => note(&mut area.refused, made),
            }
        }
    }
    true
}

/// Keeps the first refusal.
fn note(refused: &mut Option<String>, made: Result<(), SysError>) {
    if let Err(error) = made {
        refused.get_or_insert_with(|| error.to_string());
    }
}

/// Has the process make the huge pages, at most [`IN_ONE_STOP`] in each stop.
fn from_inside(order: &AttachOrder<'_>, entries: &[Area], areas: &mut [Jit]) {
    let pages: Vec<(usize, AddrRange)> = areas
        .iter()
        .enumerate()
        .flat_map(|(index, area)| area.wanted.iter().map(move |&page| (index, page)))
        .collect();
    for some in pages.chunks(IN_ONE_STOP) {
        let work = |session: &mut Session, _: &_| -> Done {
            ThpOn::begin(session, &order.target.process)?;
            for &(index, page) in some {
                note(&mut areas[index].refused, collapse(session, page)?);
            }
            Ok(())
        };
        let calls: Vec<&[ManifestEntry]> = vec![&COLLAPSE_CALLS, &ThpOn::CALLS];
        let stop = Stop { entries, rests_on: &[], calls };
        let done = in_a_stop(order, stop, work).and_then(|(_, done)| done);
        if let Err(failure) = done {
            for area in areas.iter_mut().filter(|area| !area.wanted.is_empty()) {
                area.refused.get_or_insert_with(|| failure.to_string());
            }
            return;
        }
    }
}

/// The call that [`collapse`] has the process make.
const COLLAPSE_CALLS: [ManifestEntry; 1] = [madvise_entry(Advice::Collapse)];

/// Has the stopped thread make one huge page.
fn collapse(session: &mut Session, page: AddrRange) -> Result<Result<(), SysError>, TraceError> {
    Ok(session.call(remote::madvise(page, Advice::Collapse))?.map(drop))
}
