//! Replaces pages of the hugetlb pool that hold more than text of one part, before a revert maps the file's own
//! parts.
//!
//! The kernel splits no mapping of the pool within a page (`hugetlb_vm_op_split`, `mm/hugetlb.c`), so no part of
//! such a page can be unmapped or covered. TiExec first puts a copy of the page in base pages in its place. Each
//! part of the copy can be covered.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;
use tiexec_core::addr::{AddrRange, PageSize, mib};
use tiexec_core::area::Area;
use tiexec_core::file_ranges::Parts;
use tiexec_core::plan::Backing;
use tiexec_core::skip::FailureKind;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;

use super::AttachOrder;
use super::passing::{Handed, Passing};
use super::switching::id_of;
use super::written::Written;
use crate::headroom;
use crate::images::memfd;
use crate::switch::{OpenFile, Surroundings, Switch, switch_all};

/// The most that TiExec copies for a process of other credentials, in bytes. This process pays for the copy until
/// the file's own ranges are back, and longer if the process keeps it.
const MOST_FOR_OTHERS: u64 = 16 << 20;

/// Pages of the pool, and the copy that takes their place.
#[derive(Debug)]
pub(super) struct Exchange {
    pages: Vec<(AddrRange, i32)>,
    copy: File,
}

/// Returns those pool pages of an area within which a part begins or ends. Adjoining pages are joined.
pub(super) fn mixed_pages(area: &Area, parts: &Parts, base: PageSize) -> Vec<AddrRange> {
    let Some(size) = PageSize::new(area.page_size).filter(|_| area.is_hugetlb(base)) else {
        return Vec::new();
    };
    let ends = parts.within(area.vma.range).flat_map(|part| [part.range.start(), part.range.end()]);
    let pages = ends
        .filter(|at| !at.is_aligned(size))
        .filter_map(|at| AddrRange::with_len(at.align_down(size), size.bytes()))
        .filter(|page| area.vma.range.covers(*page));
    AddrRange::joined(pages.collect())
}

impl Exchange {
    /// Copies what the process has at these pages. Each is to be mapped with its protection. `name` is the name of
    /// what lies there.
    ///
    /// # Errors
    /// The memory does not suffice, no descriptor is free, or TiExec cannot read the pages.
    pub(super) fn prepare(
        order: &AttachOrder<'_>,
        name: &[u8],
        pages: Vec<(AddrRange, i32)>,
    ) -> Result<Option<Self>, Failure> {
        if pages.is_empty() {
            return Ok(None);
        }
        let len: u64 = pages.iter().map(|(range, _)| range.len()).sum();
        if order.workers.reader().is_some() && len > MOST_FOR_OTHERS {
            let (edges, most) = (mib(len), mib(MOST_FOR_OTHERS));
            let what =
                format!("edges of {edges} MiB of another user's process ({most} MiB at most)");
            return Err(Failure::new(FailureKind::MemoryHeadroom, what));
        }
        headroom::check(&ProcDir::this_process().map_err(Failure::unreadable)?, len)?;
        let copy = memfd(name, MemfdFlags::CLOEXEC).map_err(Failure::of(FailureKind::NoMemfd))?;
        let mut offset = 0;
        for (range, _) in &pages {
            const CHUNK: u64 = 1 << 20;
            let mut at = 0;
            while at < range.len() {
                let mut bytes = vec![0; CHUNK.min(range.len() - at) as usize];
                let from = range.start().checked_add(at).unwrap_or_default();
                order.target.space.memory().read(from, &mut bytes).map_err(Failure::unreadable)?;
                copy.write_all_at(&bytes, offset).map_err(Failure::of(FailureKind::NoMemfd))?;
                at += bytes.len() as u64;
                offset += bytes.len() as u64;
            }
        }
        Ok(Some(Self { pages, copy }))
    }

    /// Has the process map the copy in the place of the pages.
    ///
    /// # Errors
    /// Pages that were not replaced are unchanged.
    pub(super) fn make<P: Passing>(
        &self,
        executor: &mut P::Executor,
        passing: &P,
        around: &Surroundings<'_>,
        written: &Written,
    ) -> Result<(), Failure> {
        let received = passing.pass(executor, Handed::Image(&self.copy), None)?;
        let source = OpenFile { fd: received.fd, file: id_of(&self.copy) };
        let mut offset = 0;
        for &(to, protection) in &self.pages {
            let (backing, locked) = (Some(Backing::Image), false);
            let piece = Switch { source, offset, to, populated: to, locked, protection, backing };
            switch_all(executor, around, &[piece], &|_| written.none(to), |_, done| done)?;
            offset += to.len();
        }
        passing.let_go(executor)
    }
}
