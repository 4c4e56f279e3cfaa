//! The `image` and `hugetlb` backings: a memfd that holds the spans of one program, back to back. Each huge page of
//! the memfd is one huge page of memory.
//!
//! In a launch the program itself makes the memfd, by a remote call, so that it inherits nothing that could leak.
//! TiExec fills the memfd from beside the program, through its entry under `/proc/PID/fd`.

use std::fs::File;
use std::time::Instant;

use rustix::fs::SealFlags;
use serde::{Deserialize, Serialize};
use tiexec_core::addr::{AddrRange, PageSize, Pages};
use tiexec_core::file_ranges::{Part, Parts};
use tiexec_core::plan::{Backing, Span};
use tiexec_core::skip::FailureKind;
use tiexec_sys::holes::Holes;
use tiexec_sys::memory::FillMapping;
use tiexec_sys::{SysError, c, hugetlb};
use tiexec_tracee::arch;

use tiexec_tracee::Failure;

/// Returns the flags of a memfd for the backing, in pages of this size. The pool's default size may differ from the
/// PMD size (`default_hugepagesz`).
pub(crate) fn memfd_flags(backing: Backing, size: PageSize) -> u32 {
    let plain = c::MFD_CLOEXEC | c::MFD_ALLOW_SEALING;
    let of_pool = c::MFD_HUGETLB | size.bits() << c::MFD_HUGE_SHIFT;
    if backing == Backing::Hugetlb { plain | of_pool } else { plain }
}

/// Returns the name of a memfd for the text of the program or library at `path`.
pub(crate) fn memfd_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    // The kernel takes names up to 249 bytes. 40 characters identify a program well enough.
    format!("tiexec:{name}").chars().take(40).collect()
}

/// A part of a span that is staged, and its position in the memfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Staged {
    /// The text; begins and ends on a huge page.
    pub span: Span,
    /// Position of its first byte in the memfd, in bytes; a multiple of the huge page.
    pub image_offset: u64,
}

/// The result of filling an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filled {
    /// The parts that can be switched.
    pub staged: Vec<Staged>,
    /// The first reason why huge pages are missing from the image; `None` if all are there.
    pub shortfall: Option<Failure>,
    /// Bytes copied from the file.
    pub copied: u64,
}

/// A file, and where its parts belong.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The file.
    pub file: &'a File,
    /// The parts of the file at the edges of its text; `None` if no edge is to be filled.
    pub parts: Option<&'a Parts>,
}

/// Returns which of the file's bytes belong where in a huge page of a span. `parts` as in [`Source`].
fn content(page: &Span, parts: Option<&Parts>) -> Vec<Part> {
    let Span { range, file_offset, edge, .. } = *page;
    match parts {
        Some(parts) if edge => parts.within(range).collect(),
        _ => vec![Part { range, file_offset, text: true }],
    }
}

/// Returns what an image of these spans holds, independent of their addresses: for each of the file's parts its place, its
/// offset in the file and its length. `parts` as in [`Source`].
pub(crate) fn contents(spans: &[Span], parts: Option<&Parts>) -> Vec<(u64, u64, u64)> {
    let mut before = 0;
    let mut contents = Vec::new();
    for span in spans {
        for part in content(span, parts) {
            let into = part.range.start().get().wrapping_sub(span.range.start().get());
            contents.push((before + into, part.file_offset, part.range.len()));
        }
        before += span.range.len();
    }
    contents.push((before, 0, 0));
    contents
}

/// The memory that an image is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageMemory<'a> {
    /// The source of huge pages: collapsed ones or those of the pool.
    pub backing: Backing,
    /// The page sizes.
    pub pages: Pages,
    /// The NUMA nodes among which huge pages alternate; empty to leave the choice to the kernel. If a node has no
    /// room left, the kernel takes another.
    pub nodes: &'a [u32],
}

/// Fills `memfd` with `spans`, read from the file, one huge page at a time, until `deadline`, and seals it. Each
/// huge page is allocated as one before it is filled. Huge pages that the kernel cannot give, and those for which
/// the file has no data, are left out.
///
/// # Errors
/// Nothing could be staged: no address space, the file holds nothing of the spans, or sealing failed.
pub fn fill(
    memfd: &File,
    source: Source<'_>,
    spans: &[Span],
    memory: ImageMemory<'_>,
    deadline: Instant,
) -> Result<Filled, Failure> {
    let ImageMemory { backing, pages, .. } = memory;
    if backing == Backing::Hugetlb {
        let no_page = Failure::of(no_page_reason(backing));
        let stays = "the kernel moves no pages of the pool, Linux 5.16 does";
        hugetlb::can_move(pages.pmd).map_err(|error| no_page(error).about(stays))?;
    }
    let (spans, beyond) = within_file(source.file, spans, pages);
    if spans.is_empty()
        && let Some(beyond) = beyond
    {
        return Err(beyond);
    }
    let bytes: u64 = spans.iter().map(|span| span.range.len()).sum();
    let mut mapping = mapped(memfd, bytes, memory)?;

    let mut filled = Filled { shortfall: beyond, ..Filled::default() };
    let mut image_offset = 0;
    let holes = Holes::of(source.file);
    // A page for which the file has no data holds no text, so allocate nothing for it.
    let is_hole = |page: &Span| {
        let has_data = |part: &Part| {
            let end = part.file_offset.saturating_add(part.range.len());
            holes.has_data(&(part.file_offset..end))
        };
        !content(page, source.parts).iter().any(has_data)
    };
    let mut all: Vec<Span> = Vec::new();
    spans.iter().for_each(|span| all.extend(huge_pages(span, pages.pmd)));
    let alike = all.chunk_by(|one, other| is_hole(one) == is_hole(other));
    for batch in alike.flat_map(|alike| alike.chunks(BATCH)) {
        if Instant::now() >= deadline {
            let (done, all) = (filled.copied >> 20, bytes >> 20);
            let what = format!("{done} of {all} MiB were staged in time");
            filled.lacks(Failure::new(FailureKind::Deadline, what));
            break;
        }
        if batch.first().is_some_and(is_hole) {
            let what = "the file has a hole in place of the text";
            filled.lacks(Failure::new(FailureKind::ReadFailed, what));
        } else {
            filled.add(&mut mapping, source, batch, image_offset, memory);
        }
        image_offset += pages.pmd.bytes() * batch.len() as u64;
    }
    // A writable mapping would forbid the seal against writing.
    drop(mapping);
    seal(memfd)
        .map_err(SysError::of("fcntl(F_ADD_SEALS)"))
        .map_err(Failure::of(FailureKind::NoMemfd))?;
    Ok(filled)
}

/// Makes an empty memfd `bytes` long, and maps it.
fn mapped(memfd: &File, bytes: u64, memory: ImageMemory<'_>) -> Result<FillMapping, Failure> {
    let ImageMemory { backing, pages, .. } = memory;
    let too_long = |_| Failure::new(FailureKind::AddressSpace, "the text is too long to map");
    let len = usize::try_from(bytes).map_err(too_long)?;
    rustix::fs::ftruncate(memfd, bytes)
        .map_err(SysError::of("ftruncate"))
        .map_err(Failure::of(no_page_reason(backing)))?;
    let mapping = FillMapping::new(memfd, len, pages.pmd).map_err(|error| {
        let reason = if backing == Backing::Hugetlb && error.call == "mmap(MAP_SHARED)" {
            FailureKind::HugetlbPool
        } else {
            FailureKind::AddressSpace
        };
        Failure::of(reason)(error)
    })?;
    if backing == Backing::Image {
        mapping.advise_huge();
    }
    Ok(mapping)
}

impl Filled {
    /// Notes why something is missing.
    fn lacks(&mut self, why: Failure) {
        self.shortfall.get_or_insert(why);
    }

    /// Allocates and copies huge pages of the source, from `image_offset` on.
    fn add(
        &mut self,
        mapping: &mut FillMapping,
        source: Source<'_>,
        batch: &[Span],
        mut image_offset: u64,
        memory: ImageMemory<'_>,
    ) {
        let allocated = allocate(mapping, memory, image_offset, batch.len());
        for (page, allocated) in batch.iter().zip(allocated) {
            match allocated.and_then(|()| copy(mapping, source, page, image_offset, memory.pages)) {
                Ok(()) => {
                    self.copied += page.range.len();
                    push(&mut self.staged, Staged { span: *page, image_offset });
                }
                Err(failure) => self.lacks(failure),
            }
            image_offset += page.range.len();
        }
    }
}

/// Seals a memfd that is mapped writable nowhere, so that nobody can change it any more. Some kernels count the
/// references of huge pages wrongly in `memfd_wait_for_pins` (mm/memfd.c: 5.14 those of shmem, until "fix
/// F_SEAL_WRITE after shmem huge page allocated"; Ubuntu's 6.8 those of hugetlb). Such a kernel takes the pages for
/// pinned and returns EBUSY. The second attempt uses F_SEAL_FUTURE_WRITE, which does not wait for pins. It has the
/// same effect, because no mapping is writable.
fn seal(memfd: &File) -> Result<(), rustix::io::Errno> {
    let with = |write: SealFlags| {
        let seals = write | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(memfd, seals)
    };
    match with(SealFlags::WRITE) {
        Err(rustix::io::Errno::BUSY) => with(SealFlags::FUTURE_WRITE),
        other => other,
    }
}

fn no_page_reason(backing: Backing) -> FailureKind {
    if backing == Backing::Hugetlb { FailureKind::HugetlbPool } else { FailureKind::NoHugePage }
}

/// Huge pages that one call allocates. Each call drains every processor's page lists, which on a large machine
/// takes longer than making a huge page. The deadline is checked between calls.
const BATCH: usize = 8;

/// Allocates `count` huge pages from `image_offset` on, filled with zeros. Returns for each whether that succeeded.
fn allocate(
    mapping: &FillMapping,
    memory: ImageMemory<'_>,
    image_offset: u64,
    count: usize,
) -> Vec<Result<(), Failure>> {
    let ImageMemory { backing, pages, nodes } = memory;
    let no_page = Failure::of(no_page_reason(backing));
    let huge = usize::try_from(pages.pmd.bytes()).unwrap_or(usize::MAX);
    let base = usize::try_from(pages.base.bytes()).unwrap_or(usize::MAX);
    let start = usize::try_from(image_offset).unwrap_or(usize::MAX);
    let at = |index: usize| start + index * huge;
    // The kernel collapses onto the node of the one base page (`hpage_collapse_find_target_node`). Its own
    // interleaving alternates by base pages, so the first ones of all huge pages would share a node.
    let prefer = |index: usize| -> Result<(), Failure> {
        let turn = (at(index) / huge).checked_rem(nodes.len()).unwrap_or(0);
        let refused = Failure::of(FailureKind::Numa);
        nodes
            .get(turn)
            .map_or(Ok(()), |node| mapping.prefer_node(at(index), huge, *node).map_err(refused))
    };
    let preferred: Vec<_> = (0..count).map(prefer).collect();
    // To make a huge page before it is filled saves a second copy.
    let pooled = backing == Backing::Hugetlb;
    let at_once = !pooled && mapping.make_huge(start, count * huge, huge, base).is_ok();
    // If a huge page of the batch could not be made, each is tried, to find out which.
    let one = |(index, preferred): (usize, Result<(), Failure>)| {
        preferred?;
        if at_once {
            return Ok(());
        }
        let made = if pooled {
            mapping.populate(at(index), huge)
        } else {
            mapping.make_huge(at(index), huge, huge, base)
        };
        made.map_err(no_page)
    };
    preferred.into_iter().enumerate().map(one).collect()
}

/// Copies one huge page's bytes from the file, and puts filler where the file has none.
fn copy(
    mapping: &mut FillMapping,
    source: Source<'_>,
    page: &Span,
    image_offset: u64,
    pages: Pages,
) -> Result<(), Failure> {
    let size = |bytes: u64| usize::try_from(bytes).map_err(Failure::of(FailureKind::AddressSpace));
    let unread = Failure::of(FailureKind::ReadFailed);
    let parts = content(page, source.parts);
    let of_file: u64 = parts.iter().map(|part| part.range.len()).sum();
    if of_file < page.range.len() {
        let mut filler = vec![0; size(page.range.len())?];
        arch::fill_with_traps(&mut filler);
        mapping.write(size(image_offset)?, &filler).map_err(unread)?;
    }
    for part in parts {
        let into = part.range.start().get() - page.range.start().get();
        let (at, len) = (size(image_offset + into)?, size(part.range.len())?);
        let count = mapping.read_from(source.file, part.file_offset, at, len).map_err(unread)?;
        // The kernel maps the last page of a file with zeros behind the file's end.
        let missing = len - count;
        if missing >= size(pages.base.bytes())? {
            let detail = format!("the file ends at {:#x}", part.file_offset + count as u64);
            return Err(Failure::new(FailureKind::ReadFailed, detail));
        }
        mapping.write(at + count, &vec![0; missing]).map_err(unread)?;
    }
    Ok(())
}

/// Removes from the spans the huge pages that the file does not fill. A mapping may be longer than its file, by any
/// length, so its length is not trusted. Also returns why something is missing.
fn within_file(file: &File, spans: &[Span], pages: Pages) -> (Vec<Span>, Option<Failure>) {
    // The length of a file that is not regular is not known.
    let len = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
    // The page in which the file ends can be read to its end.
    let end = len.and_then(|len| len.checked_next_multiple_of(pages.base.bytes()));
    let (Some(len), Some(end)) = (len, end) else { return (spans.to_vec(), None) };
    let mut within = Vec::with_capacity(spans.len());
    let mut beyond = None;
    for span in spans {
        let whole = end.saturating_sub(span.file_offset) & !(pages.pmd.bytes() - 1);
        if span.edge || whole >= span.range.len() {
            within.push(*span);
            continue;
        }
        beyond.get_or_insert_with(|| {
            Failure::new(FailureKind::ReadFailed, format_args!("the file ends at {len:#x}"))
        });
        if whole > 0
            && let Some(range) = AddrRange::with_len(span.range.start(), whole)
        {
            within.push(Span { range, ..*span });
        }
    }
    (within, beyond)
}

/// Cuts a span into its huge pages.
fn huge_pages(span: &Span, huge: PageSize) -> impl Iterator<Item = Span> {
    let (range, file_offset) = (span.range, span.file_offset);
    (0..range.len() / huge.bytes()).filter_map(move |index| {
        let into = index * huge.bytes();
        let range = AddrRange::with_len(range.start().checked_add(into)?, huge.bytes())?;
        Some(Span { range, file_offset: file_offset.checked_add(into)?, ..*span })
    })
}

/// Adds a huge page to the staged parts: extends the last part if the page continues it.
fn push(staged: &mut Vec<Staged>, page: Staged) {
    if let Some(last) = staged.last_mut() {
        let len = last.span.range.len();
        if !last.span.edge
            && !page.span.edge
            && last.span.range.end() == page.span.range.start()
            && last.image_offset + len == page.image_offset
            && last.span.file_offset + len == page.span.file_offset
            && let Some(range) = AddrRange::new(last.span.range.start(), page.span.range.end())
        {
            last.span.range = range;
            return;
        }
    }
    staged.push(page);
}
