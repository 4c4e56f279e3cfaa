//! The mappings that are staged beside the program and that replace its text: copies, and the page cache at the
//! edges of the text.

use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use tiexec_core::addr::PageSize;
use tiexec_core::escape::AsShown;
use tiexec_core::plan::{Backing, Plan, Span};
use tiexec_core::proc::maps::FileId;
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::{Errno, c};
use tiexec_tracee::Failure;
use tiexec_tracee::remote;
use tiexec_tracee::session::{SCRATCH_LEN, Session};

use super::Order;
use super::program::Program;
use crate::image::{self, Filled, ImageMemory, Source, Staged};
use crate::switch::{Company, OpenFile, Surroundings, Switch, switch_all};
use crate::{headroom, launch::rebase, numa_placement, protection};

/// Stages the spans of `backing` (image or hugetlb) in a memfd of the program's own until `deadline`, and switches
/// to what was staged.
///
/// # Errors
/// Text that could not be switched is unchanged.
pub(crate) fn by_memfd(
    session: &mut Session,
    order: &Order,
    program: &Program,
    plan: &Plan,
    backing: Backing,
    deadline: Instant,
) -> Result<Filled, Failure> {
    let snapshot = &program.snapshot;
    let spans: Vec<Span> = plan.spans_by(backing).copied().collect();
    if spans.is_empty() {
        return Ok(Filled::default());
    }
    if backing == Backing::Image {
        headroom::check(&order.process, plan.span_bytes_by(backing))?;
    }
    let nodes = numa_placement::turns(order.policy.numa, &order.process)?;
    let path = snapshot.vma_at(snapshot.entry).map(|vma| vma.display_path()).unwrap_or_default();
    let fd = make_memfd(session, backing, order.policy.pages.pmd, &path)?;
    let memfd = order
        .process
        .open_file(&format!("fd/{fd}"), true)
        .map_err(Failure::of(FailureKind::NoMemfd))?;
    let parts = program.parts();
    let source = Source { file: &program.exe, parts: parts.as_ref() };
    let memory = ImageMemory { backing, pages: order.policy.pages, nodes: &nodes };
    let filled = image::fill(&memfd, source, &spans, memory, deadline)?;
    switch(session, snapshot, fd, &filled.staged)?;
    Ok(filled)
}

/// Has the program make an empty memfd for the backing, in pages of size `huge`. The program closes it on its way
/// home.
///
/// # Errors
/// `no_memfd`, `fd_limit`, `hugetlb_pool`; the program is unchanged.
fn make_memfd(
    session: &mut Session,
    backing: Backing,
    huge: PageSize,
    path: &str,
) -> Result<u64, Failure> {
    let mut bytes = image::memfd_name(path).into_bytes();
    bytes.push(0);
    let name = session.scratch(&bytes)?;
    let (flags, of_pool) = (image::memfd_flags(backing, huge), backing == Backing::Hugetlb);
    let mut create = |flags: u32| session.call(remote::memfd_create(name, flags));
    let mut answer = create(flags | c::MFD_NOEXEC_SEAL)?;
    if answer.is_err_and(|error| error.errno == Errno::INVAL) {
        // Linux has this flag from 6.3 on.
        answer = create(flags)?;
    }
    let fd = answer.map_err(|error| {
        let reason = match error.errno {
            Errno::MFILE => FailureKind::FdLimit,
            Errno::NOENT | Errno::NOSYS | Errno::NODEV if of_pool => FailureKind::HugetlbPool,
            _ => FailureKind::NoMemfd,
        };
        Failure::of(reason)(error)
    })?;
    session.release_on_the_way_home(remote::close(fd));
    Ok(fd)
}

/// Switches the spans that the store's image of the program holds.
///
/// # Errors
/// `store_refused`: the program cannot open or map the image. Text that could not be switched is unchanged.
pub(crate) fn by_store(
    session: &mut Session,
    program: &Program,
    plan: &Plan,
) -> Result<(), Failure> {
    let Some(stored) = &program.stored else { return Ok(()) };
    let parts = plan.spans_by(Backing::Store);
    let parts = parts.map(|span| stored.part(span, program.image.load_bias));
    let parts: Vec<Staged> = parts.collect::<Result<_, _>>()?;
    if parts.is_empty() {
        return Ok(());
    }
    // The program opens the image by its path, because its own rights decide whether it may read it.
    let mut path = stored.path.as_os_str().as_bytes().to_vec();
    path.push(0);
    if path.len() as u64 > SCRATCH_LEN {
        let what = format!("{} is too long a path", stored.path.shown());
        return Err(Failure::new(FailureKind::StoreRefused, what));
    }
    let path = session.scratch(&path)?;
    let fd = session
        .call(remote::open("open(image)", path, c::O_NOFOLLOW))?
        .map_err(Failure::of(FailureKind::StoreRefused))?;
    session.release_on_the_way_home(remote::close(fd));
    switch(session, &program.snapshot, fd, &parts).map_err(|failure| match failure.reason {
        Reason::Failed(FailureKind::AddressSpace) => {
            Failure { reason: FailureKind::StoreRefused.into(), ..failure }
        }
        _ => failure,
    })
}

/// Widens the mappings of the program's own file over the edges that its page cache holds.
///
/// # Errors
/// A mapping that could not be widened is unchanged.
pub(crate) fn edges_by_pagecache(
    session: &mut Session,
    program: &Program,
    plan: &Plan,
) -> Result<(), Failure> {
    let edges = plan.spans_by(Backing::Pagecache).filter(|span| span.edge);
    let parts = edges.map(|span| Staged { span: *span, image_offset: span.file_offset });
    let parts: Vec<Staged> = parts.collect();
    if parts.is_empty() {
        return Ok(());
    }
    let fd = rebase::open_itself(session)
        .map_err(|failure| Failure { reason: FailureKind::SwitchFailed.into(), ..failure })?;
    switch(session, &program.snapshot, fd, &parts)
}

/// Switches parts of the file `fd`.
fn switch(
    session: &mut Session,
    snapshot: &Snapshot,
    fd: u64,
    parts: &[Staged],
) -> Result<(), Failure> {
    let source = OpenFile { fd, file: FileId::default() };
    let around = Surroundings { snapshot, company: Company::Alone };
    for &Staged { span: Span { range: to, backing, .. }, image_offset: offset } in parts {
        let protection = protection::of_text(&snapshot.vmas, to);
        let (locked, backing) = (false, Some(backing));
        let part = Switch { source, offset, to, populated: to, locked, protection, backing };
        switch_all(session, &around, &[part], &|_| Ok(()), |_, done| done)?;
    }
    Ok(())
}
