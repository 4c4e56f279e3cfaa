//! The sections, and the parts of them that no LOAD segment holds.

use object::elf::{self, FileHeader64, SectionHeader64};
use object::endian::LittleEndian;
use object::read::ReadRef;
use object::read::elf::FileHeader;

use super::notes::Notes;
use super::segments::Segments;
use super::{Copied, LayoutError, object_error};

/// The most section headers that are read: as many as fit into the file header's own count. An object
/// file that has a section for each function may have more, but no process executes it.
const MAX_SECTIONS: u32 = 1 << 16;

/// Gaps between sections up to this long, in bytes, are copied with them: alignment padding.
const PADDING: u64 = 4096;

/// The part of the image that follows the LOAD segments.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) copies: Vec<Copied>,
    pub(super) sections: Vec<SectionHeader64<LittleEndian>>,
    /// Image offset of the section headers; 0 if there are none.
    pub(super) table_offset: u64,
    /// Length of the image.
    pub(super) end: u64,
}

/// Reads the section headers; returns none if the file has none.
pub(super) fn read<'data, R: ReadRef<'data>>(
    header: &FileHeader64<LittleEndian>,
    file: R,
) -> Result<Vec<SectionHeader64<LittleEndian>>, LayoutError> {
    if header.e_shoff.get(LittleEndian) == 0 {
        return Ok(Vec::new());
    }
    let count = header.shnum(LittleEndian, file).map_err(object_error("the number of sections"))?;
    if count > MAX_SECTIONS {
        return Err(LayoutError::Odd("too many sections"));
    }
    let sections = header.section_headers(LittleEndian, file);
    sections.map(<[_]>::to_vec).map_err(object_error("the section headers"))
}

/// Finds a place for every section.
pub(super) fn place(
    sections: &[SectionHeader64<LittleEndian>],
    file_len: u64,
    segments: &Segments,
    notes: &Notes,
) -> Result<Tail, LayoutError> {
    let mut apart: Vec<(u64, u64)> = Vec::new();
    for section in sections.iter().filter(|section| has_bytes(section)) {
        let (offset, size) =
            (section.sh_offset.get(LittleEndian), section.sh_size.get(LittleEndian));
        let end = offset.checked_add(size).filter(|&end| end <= file_len);
        let end = end.ok_or(LayoutError::Malformed("a section past the end of the file"))?;
        if size > 0 && loaded(section, segments, notes).is_none() {
            apart.push((offset, end));
        }
    }
    apart.sort_unstable();
    let mut tail =
        Tail { copies: Vec::new(), sections: Vec::new(), table_offset: 0, end: segments.end };
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (start, end) in apart {
        match runs.last_mut() {
            Some(last) if start <= last.1.saturating_add(PADDING) => last.1 = last.1.max(end),
            _ => runs.push((start, end)),
        }
    }
    for (from, end) in runs {
        // The sections keep the alignment that they have in the file, up to this one.
        let to = tail.end.next_multiple_of(PADDING) + from % PADDING;
        tail.copies.push(Copied { from, to, len: end - from });
        tail.end = to + (end - from);
    }
    tail.sections = sections.to_vec();
    for section in &mut tail.sections {
        let new = if has_bytes(section) {
            let offset = section.sh_offset.get(LittleEndian);
            loaded(section, segments, notes)
                .or_else(|| {
                    tail.copies.iter().find_map(|copy| {
                        let into = offset.checked_sub(copy.from)?;
                        (into <= copy.len).then(|| copy.to + into)
                    })
                })
                .unwrap_or(0)
        } else if section.sh_type.get(LittleEndian) == elf::SHT_NOBITS {
            segments.of_memory(section.sh_addr.get(LittleEndian)).unwrap_or(0)
        } else {
            continue;
        };
        section.sh_offset.set(LittleEndian, new);
    }
    if !tail.sections.is_empty() {
        tail.table_offset = tail.end.next_multiple_of(8);
        tail.end = tail.table_offset + size_of_val(&tail.sections[..]) as u64;
    }
    Ok(tail)
}

fn has_bytes(section: &SectionHeader64<LittleEndian>) -> bool {
    !matches!(section.sh_type.get(LittleEndian), elf::SHT_NULL | elf::SHT_NOBITS)
}

/// Returns the image offset of a section that a LOAD segment or the notes hold.
fn loaded(
    section: &SectionHeader64<LittleEndian>,
    segments: &Segments,
    notes: &Notes,
) -> Option<u64> {
    let (offset, size) = (section.sh_offset.get(LittleEndian), section.sh_size.get(LittleEndian));
    if section.sh_type.get(LittleEndian) == elf::SHT_NOTE
        && let Some(at) = notes.of_file(offset, size).filter(|_| size > 0)
    {
        return Some(at);
    }
    if section.sh_flags.get(LittleEndian).contains(elf::SHF_ALLOC)
        && let Some(at) = segments.of_both(offset, section.sh_addr.get(LittleEndian), size)
    {
        return Some(at);
    }
    segments.of_file(offset, size)
}

impl Tail {
    /// Returns the image offset of a file range that was copied here.
    pub(super) fn of_file(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.checked_add(len)?;
        let holds = |copy: &&Copied| copy.from <= offset && end <= copy.from + copy.len;
        self.copies.iter().find(holds).map(|copy| copy.to + (offset - copy.from))
    }
}
