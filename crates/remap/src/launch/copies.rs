//! The mappings that are staged beside the program and switched to: copies, and the page cache at the
//! text's edges.

use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::escape::AsShown;
use tiexec_core::plan::{Backing, Plan, Span};
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::{SysError, c};
use tiexec_tracee::Failure;
use tiexec_tracee::arch::Call;
use tiexec_tracee::session::{SCRATCH_LEN, Session};

use crate::image::{self, Filled, Memory, Source, Staged};
use crate::order::Order;
use crate::program::Program;
use crate::{headroom, launch::rebase, numa_placement, protection, switch};

/// Stages the spans of `backing`, image or hugetlb, in a memfd of the program's own, and switches
/// to what was staged until `deadline`.
///
/// # Errors
/// Text that is not switched is where it was.
pub(crate) fn by_memfd(
    session: &mut Session,
    order: &Order<'_>,
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
        headroom::check(order.process, plan.span_bytes_by(backing))?;
    }
    let nodes = numa_placement::turns(order.numa, order.process)?;
    let name = snapshot.vma_at(snapshot.entry).map(|vma| vma.display_path()).unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    let fd = switch::make_memfd(session, backing, order.pages.pmd, name)?;
    let memfd = order
        .process
        .open_file(&format!("fd/{fd}"), true)
        .map_err(|error| Failure::new(SkipReason::NoMemfd, error))?;
    let parts = program.parts();
    let source = Source { file: &program.exe, parts: parts.as_ref() };
    let memory = Memory { backing, pages: order.pages, nodes: &nodes };
    let filled = image::fill(&memfd, source, &spans, memory, deadline)?;
    for part in &filled.staged {
        let protection = protection::of_text(&snapshot.vmas, part.span.range);
        switch::switch(session, fd, backing, part, area(snapshot, part)?, protection)?;
    }
    Ok(filled)
}

/// Switches the spans that the store's image of the program holds.
///
/// # Errors
/// `store_refused`: the program cannot open or map it. Text that is not switched is where it was.
pub(crate) fn by_store(
    session: &mut Session,
    program: &Program,
    plan: &Plan,
) -> Result<(), Failure> {
    let Some(stored) = &program.stored else { return Ok(()) };
    let mut spans = plan.spans_by(Backing::Store).peekable();
    if spans.peek().is_none() {
        return Ok(());
    }
    let refused = |what: String| Failure::new(SkipReason::StoreRefused, what);
    // The program opens the image by its path, because its own rights decide whether it may read it.
    let mut path = stored.path.as_os_str().as_bytes().to_vec();
    path.push(0);
    if path.len() as u64 > SCRATCH_LEN {
        return Err(refused(format!("{} is too long a path", stored.path.shown())));
    }
    let path = session.scratch(&path)?;
    let flags = u64::from((c::O_RDONLY | c::O_CLOEXEC | c::O_NOFOLLOW).unsigned_abs());
    let directory = i64::from(c::AT_FDCWD).cast_unsigned();
    let fd = session
        .call(Call::new(c::SYS_openat, [directory, path.get(), flags]))?
        .map_err(|errno| refused(SysError { call: "open(image)", errno }.to_string()))?;
    session.release_on_the_way_home(Call::new(c::SYS_close, [fd]));
    for span in spans {
        let vaddr = |addr: u64| addr.wrapping_sub(program.image.load_bias);
        let (start, end) = (vaddr(span.range.start().get()), vaddr(span.range.end().get()));
        let vaddrs = AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end));
        let image_offset = vaddrs
            .and_then(|vaddrs| stored.offset_of(vaddrs))
            .ok_or_else(|| refused("the image has no such text".to_owned()))?;
        let part = Staged { span: *span, image_offset };
        let area = area(&program.snapshot, &part)?;
        let protection = protection::of_text(&program.snapshot.vmas, span.range);
        switch::switch(session, fd, Backing::Store, &part, area, protection).map_err(
            |failure| match failure.reason {
                SkipReason::AddressSpace => refused(failure.detail),
                _ => failure,
            },
        )?;
    }
    Ok(())
}

/// Widens the mappings of the program's own file over the edges that its page cache holds.
///
/// # Errors
/// A mapping that is not widened is where it was.
pub(crate) fn edges_by_pagecache(
    session: &mut Session,
    program: &Program,
    plan: &Plan,
) -> Result<(), Failure> {
    let mut edges = plan.spans_by(Backing::Pagecache).filter(|span| span.edge).peekable();
    if edges.peek().is_none() {
        return Ok(());
    }
    let fd = rebase::open_itself(session)
        .map_err(|failure| Failure { reason: SkipReason::SwitchFailed, ..failure })?;
    for span in edges {
        let part = Staged { span: *span, image_offset: span.file_offset };
        let area = area(&program.snapshot, &part)?;
        let protection = protection::of_text(&program.snapshot.vmas, span.range);
        switch::switch(session, fd, Backing::Pagecache, &part, area, protection)?;
    }
    Ok(())
}

/// Finds where to stage a part.
fn area(snapshot: &Snapshot, part: &Staged) -> Result<AddrRange, Failure> {
    snapshot
        .free_area(part.span.range.len())
        .ok_or_else(|| Failure::new(SkipReason::AddressSpace, "no free address range to stage in"))
}
