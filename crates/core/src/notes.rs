//! The notes of an ELF file, one of which is the build ID (elf(5)). Only this module reads them.
//!
//! The file claims their length, so TiExec reads no more than real files have.

use std::ops::Range;

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::LittleEndian;
use object::pod;
use object::read::elf::NoteIterator;

use crate::elf::ElfHeader;

/// The most bytes of notes that are read of one file, all together. Real files have a few hundred.
pub const LONGEST: u64 = 64 << 10;
/// The longest build ID, in bytes: linkers write 8 to 32, and accept any length that a user gives.
const LONGEST_ID: usize = 64;

/// The place of notes in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotePart {
    /// The offset of the first, in bytes.
    pub offset: u64,
    /// Their length in bytes.
    pub len: u64,
    /// Their alignment, which decides how they are read.
    pub align: u64,
}

/// The bytes left of [`LONGEST`]; `None` after a request that exceeded them.
#[derive(Debug)]
pub struct NoteLimit(Option<u64>);

impl Default for NoteLimit {
    fn default() -> Self {
        Self(Some(LONGEST))
    }
}

impl NoteLimit {
    /// Returns whether this many bytes more may be read. After the first refusal, all are refused.
    pub fn allows(&mut self, len: u64) -> bool {
        self.0 = self.0.and_then(|left| left.checked_sub(len));
        self.0.is_some()
    }
}

/// Returns the places of the notes that the program headers name (`PT_NOTE`), as far as they may be
/// read.
pub fn parts(header: &ElfHeader, table: &[u8]) -> Vec<NotePart> {
    let count = header.table_len / size_of::<ProgramHeader64<LittleEndian>>();
    let headers = table.get(..header.table_len).and_then(|table| {
        pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(table, count).ok()
    });
    let Some((headers, _)) = headers else { return Vec::new() };
    let mut limit = NoteLimit::default();
    let notes = headers.iter().filter(|header| header.p_type.get(LittleEndian) == elf::PT_NOTE);
    notes
        .map(|header| NotePart {
            offset: header.p_offset.get(LittleEndian),
            len: header.p_filesz.get(LittleEndian),
            align: header.p_align.get(LittleEndian),
        })
        .filter(|part| part.len > 0)
        .take_while(|part| limit.allows(part.len))
        .collect()
}

/// Returns the places of the build IDs in `notes`. Notes of an unknown form cannot be read, and give
/// none.
pub fn build_ids(notes: &[u8], align: u64) -> Vec<Range<usize>> {
    let iterator = NoteIterator::<FileHeader64<LittleEndian>>::new(LittleEndian, align, notes);
    let all = iterator.into_iter().flatten().map_while(Result::ok);
    all.filter(|note| note.name() == b"GNU" && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID)
        .map(|note| note.desc())
        .filter(|id| !id.is_empty() && id.len() <= LONGEST_ID)
        .map(|id| {
            let at = id.as_ptr().addr() - notes.as_ptr().addr();
            at..at + id.len()
        })
        .collect()
}

/// Returns whether `notes` have the build ID that the linker of Go writes (`.note.go.buildid`): the program is Go's.
pub fn are_of_go(notes: &[u8], align: u64) -> bool {
    const NT_GO_BUILD_ID: elf::NoteType = elf::NoteType(4);
    let iterator = NoteIterator::<FileHeader64<LittleEndian>>::new(LittleEndian, align, notes);
    let mut all = iterator.into_iter().flatten().map_while(Result::ok);
    all.any(|note| note.name() == b"Go" && note.n_type(LittleEndian) == NT_GO_BUILD_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u32, name: &[u8], desc: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len(), desc.len(), kind as usize] {
            bytes.extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        for part in [name, desc] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_build_id_is_found_among_others() {
        let mut notes = note(1, b"GNU\0", &[0; 16]);
        notes.extend(note(3, b"stapsdt\0", b"probe"));
        notes.extend(note(3, b"GNU\0", b"twenty bytes of hash"));
        let found = build_ids(&notes, 4);
        assert_eq!(found.len(), 1);
        assert_eq!(&notes[found[0].clone()], b"twenty bytes of hash");
    }

    #[test]
    fn one_that_is_empty_or_cut_off_or_endless_is_none() {
        let long = note(3, b"GNU\0", &[7; LONGEST_ID + 1]);
        let whole = note(3, b"GNU\0", &[7; LONGEST_ID]);
        assert_eq!(build_ids(&whole, 4).len(), 1);
        for notes in
            [&note(3, b"GNU\0", b"")[..], &long, &whole[..whole.len() - 1], b"", &[0xff; 64]]
        {
            assert!(build_ids(notes, 4).is_empty(), "{notes:?}");
        }
        for align in [0, 1, 2, 3, 16, u64::MAX] {
            let _no_panic = build_ids(&whole, align);
        }
    }

    #[test]
    fn no_more_is_read_than_the_limit() {
        let mut limit = NoteLimit::default();
        assert!(limit.allows(LONGEST) && !limit.allows(1) && !limit.allows(0));
        assert!(!NoteLimit::default().allows(u64::MAX));
    }
}
