//! Places the LOAD segments.

use std::ops::Range;

use object::elf::{self, ProgramHeader64};
use object::endian::LittleEndian;

use super::{Copied, LayoutError, is};
use crate::addr::{AddrRange, Pages, RemoteAddr};

/// How far the segments may reach, in bytes. Beyond this limit are files whose segments are far apart
/// for a special reason. The range between segments is a hole, and yet is hashed.
pub(super) const MAX_LEN: u64 = 4 << 30;

/// One LOAD segment with bytes in the file.
#[derive(Clone, Copy, Debug)]
struct Load {
    vaddr: u64,
    file_offset: u64,
    file_size: u64,
    mem_size: u64,
    /// True if it is executable, and the program cannot write to it.
    is_text: bool,
    /// True if some of its memory may be written to.
    is_closed: bool,
}

impl Load {
    /// Reads a segment of a file of `file_len` bytes.
    fn new(
        header: &ProgramHeader64<LittleEndian>,
        file_len: u64,
        base: u64,
    ) -> Result<Self, LayoutError> {
        let flags = header.p_flags.get(LittleEndian);
        let vaddr = header.p_vaddr.get(LittleEndian);
        let file_offset = header.p_offset.get(LittleEndian);
        let file_size = header.p_filesz.get(LittleEndian);
        let mem_size = header.p_memsz.get(LittleEndian);
        let is_writable = flags.contains(elf::PF_W);
        let end = vaddr.checked_add(mem_size.max(file_size));
        if end.is_none_or(|end| end.checked_next_multiple_of(base).is_none())
            || file_size > mem_size
        {
            return Err(LayoutError::Malformed("a segment wraps around"));
        }
        if file_offset.checked_add(file_size).is_none_or(|end| end > file_len) {
            return Err(LayoutError::Malformed("a segment past the end of the file"));
        }
        if file_size > 0 && vaddr % base != file_offset % base {
            return Err(LayoutError::Malformed("a segment that no page can map"));
        }
        let is_text = flags.contains(elf::PF_X) && !is_writable;
        let is_closed = is_writable || mem_size != file_size;
        Ok(Self { vaddr, file_offset, file_size, mem_size, is_text, is_closed })
    }

    /// Returns the bytes of the file that the program sees, to be copied to their vaddr. The kernel maps whole pages of the file,
    /// so the program also sees the bytes beside the segment in those pages.
    fn copied(&self, file_len: u64, base: u64) -> Copied {
        let into_page = self.vaddr % base;
        let from = self.file_offset - into_page;
        let end = (self.file_offset + self.file_size).checked_next_multiple_of(base);
        let to = end.map_or(file_len, |end| end.min(file_len));
        Copied { from, to: self.vaddr - into_page, len: to - from }
    }

    /// Returns its whole pages, as vaddrs, if it is text.
    fn text(&self, base: u64) -> Option<AddrRange> {
        let into_page = self.vaddr % base;
        let len = (into_page + self.file_size).next_multiple_of(base);
        let range = AddrRange::with_len(RemoteAddr::new(self.vaddr - into_page), len);
        range.filter(|_| self.is_text)
    }
}

/// The LOAD segments in their new places.
#[derive(Debug)]
pub(super) struct Segments {
    loads: Vec<Load>,
    /// Image offset minus vaddr, wrapping.
    pub(super) shift: u64,
    /// The first image offset behind the segments, a multiple of the base page.
    pub(super) end: u64,
    pub(super) copies: Vec<Copied>,
    pub(super) texts: Vec<AddrRange>,
    /// Image offsets of huge pages that hold text and nothing that may be written to, joined.
    pub(super) huge: Vec<Range<u64>>,
    pub(super) pmd: u64,
}

/// The place of the LOAD segments in the image.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// Behind the first `front` bytes, all at the same distance from their vaddrs, for a process where they lie at their
    /// vaddrs plus `bias`.
    Behind { front: u64, bias: u64 },
    /// At their offsets in the file. Those of text are its vaddrs plus `shift`, wrapping.
    OwnOffsets { shift: u64 },
}

impl To {
    /// Returns whether a segment lies at another distance from its vaddrs than text.
    fn separates(self, load: &Load) -> bool {
        match self {
            Self::Behind { .. } => false,
            Self::OwnOffsets { shift } => load.vaddr.wrapping_add(shift) != load.file_offset,
        }
    }
}

/// Places the LOAD segments.
pub(super) fn place(
    programs: &[ProgramHeader64<LittleEndian>],
    file_len: u64,
    to: To,
    pages: Pages,
) -> Result<Segments, LayoutError> {
    let (base, pmd) = (pages.base.bytes(), pages.pmd.bytes());
    let (mut loads, mut closed) = (Vec::new(), Vec::new());
    let (mut copies, mut texts) = (Vec::new(), Vec::new());
    for header in programs.iter().filter(|header| is(header, elf::PT_LOAD)) {
        let load = Load::new(header, file_len, base)?;
        if load.is_closed || to.separates(&load) {
            closed.push(load);
        }
        if load.file_size > 0 {
            copies.push(load.copied(file_len, base));
            texts.extend(load.text(base));
            loads.push(load);
        }
    }
    let lowest = copies.iter().map(|copy| copy.to).min();
    let lowest = lowest.ok_or(LayoutError::Odd("nothing to load"))?;
    let first = match to {
        // The first segment lies as far into a huge page as it does in the process.
        To::Behind { front, bias } => {
            let into_huge = lowest.wrapping_add(bias) & (pmd - 1);
            front.checked_add(into_huge).ok_or(LayoutError::Odd("no room for the headers"))?
        }
        To::OwnOffsets { shift } => lowest.wrapping_add(shift),
    };
    let shift = first.wrapping_sub(lowest);
    for copy in &mut copies {
        let at = match to {
            To::Behind { .. } => (copy.to - lowest).checked_add(first),
            To::OwnOffsets { .. } => Some(copy.from),
        };
        copy.to = at
            .filter(|&to| to <= MAX_LEN - copy.len.min(MAX_LEN))
            .ok_or(LayoutError::Odd("segments too far apart"))?;
    }
    let copies = joined(copies)?;
    let end = copies.last().map_or(first, |copy| copy.to + copy.len).next_multiple_of(base);
    let texts = AddrRange::joined(texts);
    let in_image = |start: u64, end: u64| start.wrapping_add(shift)..end.wrapping_add(shift);
    // A huge page of text may hold neither its memory nor its bytes.
    let closed: Vec<Range<u64>> = closed
        .iter()
        .flat_map(|load: &Load| {
            let its_bytes = load.file_offset..load.file_offset + load.file_size;
            let its_bytes = matches!(to, To::OwnOffsets { .. }).then_some(its_bytes);
            its_bytes.into_iter().chain([in_image(load.vaddr, load.vaddr + load.mem_size)])
        })
        .collect();
    let of_text = texts.iter().map(|text| in_image(text.start().get(), text.end().get()));
    let of_text: Vec<Range<u64>> = of_text.collect();
    let huge = huge_text(&of_text, &closed, &copies, file_len, pmd);
    // Nothing that follows the segments may come to lie in a huge page of text.
    let end = huge.last().map_or(end, |last| last.end.max(end));
    Ok(Segments { loads, shift, end, copies, texts, huge, pmd })
}

/// Returns the huge pages of the image that hold text, and none of the `closed` ranges. If they would hold more holes than text,
/// returns only those that hold nothing but text: little text lies far apart then.
fn huge_text(
    texts: &[Range<u64>],
    closed: &[Range<u64>],
    copies: &[Copied],
    file_len: u64,
    pmd: u64,
) -> Vec<Range<u64>> {
    let is_closed = |page: &Range<u64>| closed.iter().any(|closed| overlap(page, closed));
    let huge = huge_pages(texts, pmd, &|_, page| !is_closed(page));
    let holes = total(&huge).saturating_sub(copied_in(copies, &huge));
    if holes <= total(texts).min(file_len) {
        return huge;
    }
    huge_pages(texts, pmd, &|text, page| text.start <= page.start && page.end <= text.end)
}

/// Returns the huge pages of the image that hold text and are `wanted`, joined where they adjoin.
/// `texts` are image offsets, ascending.
fn huge_pages(
    texts: &[Range<u64>],
    pmd: u64,
    wanted: &dyn Fn(&Range<u64>, &Range<u64>) -> bool,
) -> Vec<Range<u64>> {
    let mut huge: Vec<Range<u64>> = Vec::new();
    for text in texts {
        let mut page = text.start - text.start % pmd..text.start - text.start % pmd + pmd;
        while page.start < text.end {
            match huge.last_mut() {
                Some(last) if page.start < last.end => {}
                _ if !wanted(text, &page) => {}
                Some(last) if page.start == last.end => last.end = page.end,
                _ => huge.push(page.clone()),
            }
            page = page.end..page.end + pmd;
        }
    }
    huge
}

/// Returns whether two ranges have a byte in common.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Sorts the ranges, and joins those that overlap or adjoin.
pub(super) fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the length of the ranges together.
pub(super) fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add)
}

/// Returns how many bytes of these image ranges are copied.
pub(super) fn copied_in(copies: &[Copied], ranges: &[Range<u64>]) -> u64 {
    let inside = |range: &Range<u64>, copy: &Copied| {
        let (start, end) = (copy.to.max(range.start), (copy.to + copy.len).min(range.end));
        end.saturating_sub(start)
    };
    ranges.iter().flat_map(|range| copies.iter().map(move |copy| inside(range, copy))).sum()
}

/// Sorts the copies and joins those that continue each other. Two may share pages only where both
/// map the same bytes there.
fn joined(mut copies: Vec<Copied>) -> Result<Vec<Copied>, LayoutError> {
    copies.sort_by_key(|copy| (copy.to, copy.len));
    let mut all: Vec<Copied> = Vec::new();
    for copy in copies {
        match all.last_mut() {
            Some(last) if copy.to <= last.to + last.len => {
                if copy.to.wrapping_sub(copy.from) == last.to.wrapping_sub(last.from) {
                    last.len = last.len.max(copy.to + copy.len - last.to);
                } else if copy.to < last.to + last.len {
                    return Err(LayoutError::Odd("segments that overlap"));
                } else {
                    all.push(copy);
                }
            }
            _ => all.push(copy),
        }
    }
    Ok(all)
}

impl Segments {
    /// Returns the image offset of a file range that a LOAD segment holds.
    pub(super) fn of_file(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.checked_add(len)?;
        self.loads
            .iter()
            .find(|load| {
                load.file_offset <= offset && end <= load.file_offset.saturating_add(load.file_size)
            })
            .map(|load| {
                (offset - load.file_offset).wrapping_add(load.vaddr).wrapping_add(self.shift)
            })
    }

    /// As [`of_file`](Self::of_file), for a range whose vaddr is known too: a file offset alone may
    /// lie in several segments.
    pub(super) fn of_both(&self, offset: u64, vaddr: u64, len: u64) -> Option<u64> {
        let distance = vaddr.wrapping_sub(offset);
        let holds = |load: &&Load| {
            load.vaddr.wrapping_sub(load.file_offset) == distance
                && vaddr >= load.vaddr
                && vaddr - load.vaddr <= load.file_size
                && len <= load.file_size - (vaddr - load.vaddr)
        };
        self.loads.iter().find(holds).map(|_| vaddr.wrapping_add(self.shift))
    }

    /// Returns the place of zero bytes of memory at `vaddr`: the end of the file's part of their
    /// segment.
    pub(super) fn of_memory(&self, vaddr: u64) -> Option<u64> {
        let holds = |load: &&Load| {
            vaddr >= load.vaddr && vaddr - load.vaddr <= load.mem_size.max(load.file_size)
        };
        // Take the last such segment: memory that ends one segment may begin the next.
        self.loads.iter().rfind(holds).map(|load| {
            let into = (vaddr - load.vaddr).min(load.file_size);
            load.vaddr.wrapping_add(into).wrapping_add(self.shift)
        })
    }
}
