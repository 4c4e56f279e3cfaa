//! The build ID of the original, and the one of the image, which is derived from it.
//!
//! An image with its original's build ID would give wrong names: `perf` keeps one file for each
//! build ID in its cache, and the offsets of the two files differ.

use object::elf::{self, ProgramHeader64, SectionHeader64};
use object::endian::LittleEndian;
use object::read::ReadRef;

use super::{LayoutError, VERSION, Written, is};
use crate::notes::{NoteLimit, build_ids};

/// A range of notes with a build ID in it, in its new place.
#[derive(Debug)]
struct Moved {
    from: u64,
    written: Written,
}

/// The notes that stand in the front of the image.
#[derive(Debug)]
pub(super) struct Notes {
    moved: Vec<Moved>,
    /// The first image offset behind the notes.
    pub(super) end: u64,
    /// The original's build ID.
    pub(super) build_id: Option<Vec<u8>>,
}

/// Finds the notes with a build ID, places them from image offset `start` on, and derives the
/// image's build ID.
pub(super) fn gather<'data, R: ReadRef<'data>>(
    programs: &[ProgramHeader64<LittleEndian>],
    sections: &[SectionHeader64<LittleEndian>],
    file: R,
    start: u64,
) -> Result<Notes, LayoutError> {
    let segments = programs.iter().filter(|header| is(header, elf::PT_NOTE)).map(|header| {
        let size = header.p_filesz.get(LittleEndian);
        (header.p_offset.get(LittleEndian), size, header.p_align.get(LittleEndian))
    });
    let sections = sections
        .iter()
        .filter(|header| header.sh_type.get(LittleEndian) == elf::SHT_NOTE)
        .map(|header| {
            let size = header.sh_size.get(LittleEndian);
            (header.sh_offset.get(LittleEndian), size, header.sh_addralign.get(LittleEndian))
        });
    let mut notes = Notes { moved: Vec::new(), end: start, build_id: None };
    let mut limit = NoteLimit::default();
    for (from, len, align) in segments.chain(sections) {
        if len == 0 || notes.of_file(from, len).is_some() {
            continue;
        }
        if !limit.allows(len) {
            // The rest are notes of another kind, such as probes: the build ID is among the first
            // notes.
            break;
        }
        let past_end = |()| LayoutError::Malformed("notes past the end of the file");
        let original = file.read_bytes_at(from, len).map_err(past_end)?;
        let mut bytes = original.to_vec();
        let mut found = false;
        for id in build_ids(original, align) {
            derive(&original[id.clone()], &mut bytes[id.clone()]);
            notes.build_id.get_or_insert_with(|| original[id].to_vec());
            found = true;
        }
        if found {
            // A note may ask for this alignment.
            let at = notes.end.next_multiple_of(8);
            notes.end = at + len;
            notes.moved.push(Moved { from, written: Written { at, bytes } });
        }
    }
    Ok(notes)
}

/// Fills `place` with the build ID of the image of a file whose build ID is `id`.
fn derive(id: &[u8], place: &mut [u8]) {
    let mut hash = blake3::Hasher::new();
    hash.update(b"tiexec").update(&VERSION.to_le_bytes()).update(id);
    hash.finalize_xof().fill(place);
}

impl Notes {
    /// Returns the image offset of a file range that these notes hold.
    pub(super) fn of_file(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.checked_add(len)?;
        let holds = |moved: &&Moved| {
            moved.from <= offset && end <= moved.from + moved.written.bytes.len() as u64
        };
        self.moved.iter().find(holds).map(|moved| moved.written.at + (offset - moved.from))
    }

    pub(super) fn writes(&self) -> impl Iterator<Item = Written> {
        self.moved.iter().map(|moved| moved.written.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_build_id_has_its_originals_length_and_nothing_else_of_it() {
        for len in [1, 8, 16, 20, 32, 33, 64, 100] {
            let id: Vec<u8> = (0..len).collect();
            let derived = |id: &[u8]| {
                let mut place = id.to_vec();
                derive(id, &mut place);
                place
            };
            let first = derived(&id);
            assert_eq!((first.len(), &first), (id.len(), &derived(&id)), "stable");
            assert_ne!(first, id);
            let mut other = id.clone();
            other[0] ^= 1;
            assert!(len < 4 || derived(&other) != first);
        }
    }
}
