//! The kinds of program headers.

use object::elf::{self, ProgramHeader64};
use object::endian::LittleEndian;

/// Returns whether a program header is of this kind (`p_type`, elf(5)).
pub(super) fn is(header: &ProgramHeader64<LittleEndian>, kind: elf::ProgramType) -> bool {
    header.p_type.get(LittleEndian) == kind
}
