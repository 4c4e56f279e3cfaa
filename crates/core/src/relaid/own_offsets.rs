//! The layout of an image that has its file's offsets: the bytes of the file, with holes in the place of the program's data.
//!
//! A tool that knows only the address and the offset of one mapping computes from them where the file begins in the process. It is right
//! with such an image, and with its program headers, symbols and build ID.

use std::iter::once;
use std::ops::Range;

use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::endian::LittleEndian;
use object::read::ReadRef;

use super::is;
use super::kept;
use super::segments::{self, Segments, To};
use super::{Copied, Layout};
use crate::addr::Pages;
use crate::elf::ElfHeader;

/// A file whose text may fit at its own offsets.
pub(super) struct OwnOffsets<'a, R> {
    pub(super) header: &'a FileHeader64<LittleEndian>,
    pub(super) programs: &'a [ProgramHeader64<LittleEndian>],
    pub(super) sections: &'a [SectionHeader64<LittleEndian>],
    pub(super) file: R,
    pub(super) pages: Pages,
    /// The load bias of the processes that the image is for, modulo the huge page.
    pub(super) bias: u64,
}

impl<'data, R: ReadRef<'data>> OwnOffsets<'_, R> {
    /// Returns the layout; `None` if text does not fit at its own offsets, or lies in fewer huge pages there than `huge`, those of
    /// the other layout.
    pub(super) fn layout(&self, huge: &[Range<u64>], build_id: Option<Vec<u8>>) -> Option<Layout> {
        let shift = self.shift()?;
        let file_len = self.file.len().ok()?;
        let to = To::OwnOffsets { shift };
        let segments = segments::place(self.programs, file_len, to, self.pages).ok()?;
        let apart = self.apart(file_len)?;
        // Nothing but text and what one segment with it holds may lie in a huge page of text.
        let is_in_text =
            |range: &Range<u64>| segments.huge.iter().any(|huge| segments::overlap(range, huge));
        let is_less = segments::total(&segments.huge) < segments::total(huge);
        if is_less || apart.iter().any(is_in_text) {
            return None;
        }
        let copies = self.copies(&segments, apart, file_len);
        let end = copies.last().map_or(0, |last| last.to + last.len);
        let len = segments.huge.last().map_or(end, |last| last.end.max(end));
        // The parts of an image are hashed as the nodes of a tree, which has two or more. Holes are hashed, too, and a file may
        // claim any.
        if len <= self.pages.pmd.bytes() || len > segments::MAX_LEN {
            return None;
        }
        Some(Layout {
            len,
            copies,
            writes: Vec::new(),
            build_id,
            pages: self.pages,
            bias: self.bias,
            shift,
            texts: segments.texts,
            huge: segments.huge,
        })
    }

    /// Returns the distance of text's offsets from its vaddrs, wrapping; `None` if there are several, if one does not fit the
    /// processes, or if no segment holds the headers.
    fn shift(&self) -> Option<u64> {
        let mut shift = None;
        let mut has_headers = false;
        for header in self.programs.iter().filter(|header| is(header, elf::PT_LOAD)) {
            let [offset, vaddr, len] =
                [header.p_offset, header.p_vaddr, header.p_filesz].map(|it| it.get(LittleEndian));
            has_headers |= offset == 0 && len >= ElfHeader::LEN as u64;
            let flags = header.p_flags.get(LittleEndian);
            if len > 0 && flags.contains(elf::PF_X) && !flags.contains(elf::PF_W) {
                let its = offset.wrapping_sub(vaddr);
                if *shift.get_or_insert(its) != its {
                    return None;
                }
            }
        }
        let fits = |shift: &u64| shift.wrapping_sub(self.bias) & (self.pages.pmd.bytes() - 1) == 0;
        shift.filter(fits).filter(|_| has_headers)
    }

    /// Returns the offsets of what no LOAD segment holds: sections, and their headers.
    fn apart(&self, file_len: u64) -> Option<Vec<Range<u64>>> {
        let table = size_of_val(self.sections) as u64;
        let table_offset = self.header.e_shoff.get(LittleEndian);
        let sections = self.sections.iter().filter(|section| {
            let kind = section.sh_type.get(LittleEndian);
            let flags = section.sh_flags.get(LittleEndian);
            kind != elf::SHT_NULL && kind != elf::SHT_NOBITS && !flags.contains(elf::SHF_ALLOC)
        });
        let ranges = sections
            .map(|section| [section.sh_offset, section.sh_size].map(|it| it.get(LittleEndian)))
            .chain([[table_offset, table]])
            .filter(|[_, len]| *len > 0);
        let within = |[start, len]: [u64; 2]| {
            let end = start.checked_add(len).filter(|&end| end <= file_len)?;
            Some(start..end)
        };
        ranges.map(within).collect()
    }

    /// Returns what the image holds of the file: text, what is `apart`, the headers, and what tools read of other segments.
    fn copies(&self, segments: &Segments, apart: Vec<Range<u64>>, file_len: u64) -> Vec<Copied> {
        let kept = kept::kept(self.header, self.sections, self.sections, self.file, segments);
        let programs = self.header.e_phoff.get(LittleEndian);
        let notes = self.programs.iter().filter(|header| is(header, elf::PT_NOTE)).map(|note| {
            let [offset, len] = [note.p_offset, note.p_filesz].map(|it| it.get(LittleEndian));
            offset..offset.saturating_add(len)
        });
        let table = programs..programs.saturating_add(size_of_val(self.programs) as u64);
        let ranges = kept
            .iter()
            .map(|copy| copy.from..copy.from + copy.len)
            .chain(apart)
            .chain(notes)
            .chain(once(0..ElfHeader::LEN as u64))
            .chain(once(table))
            .map(|range| range.start..range.end.min(file_len))
            .filter(|range| range.start < range.end);
        let copied = |Range { start, end }| Copied { from: start, to: start, len: end - start };
        segments::union(ranges.collect()).into_iter().map(copied).collect()
    }
}
