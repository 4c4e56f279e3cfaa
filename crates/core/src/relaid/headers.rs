//! The program headers of the image.

use object::elf::{self, ProgramHeader64};
use object::endian::LittleEndian;

use super::is;
use super::notes::Notes;
use super::segments::Segments;
use super::tail::Tail;
use crate::elf::ElfHeader;

/// Returns the program headers with their new offsets.
pub(super) fn headers(
    segments: &Segments,
    programs: &[ProgramHeader64<LittleEndian>],
    notes: &Notes,
    tail: &Tail,
) -> Vec<ProgramHeader64<LittleEndian>> {
    let mut programs = programs.to_vec();
    for header in &mut programs {
        let offset = header.p_offset.get(LittleEndian);
        let vaddr = header.p_vaddr.get(LittleEndian);
        let size = header.p_filesz.get(LittleEndian);
        let new = if is(header, elf::PT_LOAD) {
            // A segment without bytes in the file may have any congruent offset.
            let anywhere = vaddr % segments.pmd;
            Some(if size == 0 { anywhere } else { vaddr.wrapping_add(segments.shift) })
        } else if size == 0 {
            segments.of_both(offset, vaddr, 0)
        } else {
            notes
                .of_file(offset, size)
                .or_else(|| segments.of_both(offset, vaddr, size))
                // RELRO may reach into memory that no file backs.
                .or_else(|| segments.of_both(offset, vaddr, 0))
                .or_else(|| segments.of_file(offset, size))
                .or_else(|| tail.of_file(offset, size))
                .or_else(|| is(header, elf::PT_PHDR).then_some(ElfHeader::LEN as u64))
        };
        // A part that the image does not hold has no offset in it.
        header.p_offset.set(LittleEndian, new.unwrap_or(0));
    }
    programs
}
