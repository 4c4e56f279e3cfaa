//! The parts of the LOAD segments that an image holds: text, and the data that tools read from files.
//!
//! Processes map text from the image and nothing else; the program's data stays in its own file. An image lies in
//! memory, so each part that nobody reads from it is a hole.

use object::elf::{self, FileHeader64, SectionHeader64};
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, SectionHeader};
use object::read::{ReadRef, StringTable};

use super::Copied;
use super::segments::{Segments, union};
use crate::addr::AddrRange;

/// Sections that profilers and debuggers read, but whose type data sections have, too: call frames, Go's table of
/// functions, and the relocations that name the functions of other libraries.
const NAMES: [&[u8]; 4] = [b".eh_frame", b".eh_frame_hdr", b".gopclntab", b".rela.plt"];

/// Returns the copies that the image holds of the LOAD segments. `sections` are the original's, `placed` are those with their
/// new offsets.
pub(super) fn kept<'data, R: ReadRef<'data>>(
    header: &FileHeader64<LittleEndian>,
    sections: &[SectionHeader64<LittleEndian>],
    placed: &[SectionHeader64<LittleEndian>],
    file: R,
    segments: &Segments,
) -> Vec<Copied> {
    let strings = header.section_strings(LittleEndian, file, sections).unwrap_or_default();
    let read = placed.iter().filter(|section| is_read(section, strings)).map(|section| {
        let start = section.sh_offset.get(LittleEndian);
        start..start.saturating_add(section.sh_size.get(LittleEndian))
    });
    let in_image = |text: &AddrRange| {
        let [start, end] = [text.start(), text.end()];
        start.get().wrapping_add(segments.shift)..end.get().wrapping_add(segments.shift)
    };
    let texts = segments.texts.iter().map(in_image);
    let joined = union(read.chain(texts).chain(segments.huge.iter().cloned()).collect());
    let mut kept = Vec::new();
    for copy in &segments.copies {
        let first = joined.partition_point(|range| range.end <= copy.to);
        for range in joined[first..].iter().take_while(|range| range.start < copy.to + copy.len) {
            let (to, end) = (copy.to.max(range.start), (copy.to + copy.len).min(range.end));
            if to < end {
                kept.push(Copied { from: copy.from + (to - copy.to), to, len: end - to });
            }
        }
    }
    kept
}

/// Returns whether tools read the section from the file: code, tables of every kind, and sections that no segment
/// loads.
fn is_read<'data, R: ReadRef<'data>>(
    section: &SectionHeader64<LittleEndian>,
    strings: StringTable<'data, R>,
) -> bool {
    let flags = section.sh_flags.get(LittleEndian);
    let loaded = flags.contains(elf::SHF_ALLOC);
    match section.sh_type.get(LittleEndian) {
        elf::SHT_NULL | elf::SHT_NOBITS => false,
        elf::SHT_SYMTAB
        | elf::SHT_DYNSYM
        | elf::SHT_STRTAB
        | elf::SHT_DYNAMIC
        | elf::SHT_NOTE
        | elf::SHT_HASH
        | elf::SHT_GNU_HASH
        | elf::SHT_GNU_VERSYM
        | elf::SHT_GNU_VERDEF
        | elf::SHT_GNU_VERNEED => true,
        _ if !loaded || flags.contains(elf::SHF_EXECINSTR) => true,
        _ => section.name(LittleEndian, strings).is_ok_and(|name| NAMES.contains(&name)),
    }
}
