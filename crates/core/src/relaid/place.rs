//! The load bias that many starts of a file have.

use object::elf::{self, Dyn64, ProgramHeader64};
use object::endian::LittleEndian;
use object::pod;
use object::read::ReadRef;

use super::is;
use crate::elf::ElfHeader;

/// The longest dynamic section that is read, in bytes: more than a linker writes.
const MAX_DYNAMIC: u64 = 1 << 16;

/// The load bias that many starts of a file have, modulo the huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// 0: the file has fixed addresses.
    Fixed,
    /// The load bias to which a launch moves a program.
    Moved,
    /// The load bias at which the kernel maps a large shared object: the address of a mapping equals its file offset
    /// modulo the huge page (`thp_get_unmapped_area`, mm/huge_memory.c, for the file systems that ask for it). On other
    /// file systems `ld.so` has the object at another place at each start.
    Kernels(u64),
}

/// Finds the place from the headers of a file.
pub(super) fn of<'data, R: ReadRef<'data>>(
    header: &ElfHeader,
    programs: &[ProgramHeader64<LittleEndian>],
    file: R,
) -> Place {
    if !header.position_independent {
        return Place::Fixed;
    }
    if is_program(programs, file) {
        return Place::Moved;
    }
    let first = programs.iter().find(|program| is(program, elf::PT_LOAD));
    Place::Kernels(first.map_or(0, |first| {
        first.p_offset.get(LittleEndian).wrapping_sub(first.p_vaddr.get(LittleEndian))
    }))
}

/// Returns whether a position-independent file is a program. It is one if the linker says so (`DF_1_PIE`), or if it has
/// an interpreter but no name as a library (some libraries that can be run have an interpreter, too).
fn is_program<'data, R: ReadRef<'data>>(
    programs: &[ProgramHeader64<LittleEndian>],
    file: R,
) -> bool {
    let interpreted = programs.iter().any(|program| is(program, elf::PT_INTERP));
    let dynamic = programs.iter().find(|program| is(program, elf::PT_DYNAMIC));
    let bytes = dynamic.and_then(|dynamic| {
        let len = dynamic.p_filesz.get(LittleEndian).min(MAX_DYNAMIC);
        file.read_bytes_at(dynamic.p_offset.get(LittleEndian), len).ok()
    });
    let bytes = bytes.unwrap_or_default();
    let count = bytes.len() / size_of::<Dyn64<LittleEndian>>();
    let entries = pod::slice_from_bytes::<Dyn64<LittleEndian>>(bytes, count);
    let mut named = false;
    for entry in entries.map_or(&[][..], |(entries, _)| entries) {
        match entry.d_tag.get(LittleEndian) {
            elf::DT_NULL => break,
            elf::DT_SONAME => named = true,
            elf::DT_FLAGS_1 if entry.d_val.get(LittleEndian) & elf::DF_1_PIE.0 != 0 => {
                return true;
            }
            _ => {}
        }
    }
    interpreted && !named
}
