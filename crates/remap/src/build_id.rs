//! The build ID of a file, and the key of its text.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::notes::{are_of_go, build_ids, parts};

use crate::elf_file::{elf_facts, elf_headers};

/// Returns the build ID of an ELF file in hexadecimal digits; `None` if it has none. Reads no more than 64 KiB of
/// headers, and as much of notes.
pub fn build_id(file: &File) -> Option<String> {
    of_notes(file, |notes, align| {
        let id = build_ids(notes, align).into_iter().next()?;
        Some(notes[id].iter().map(|byte| format!("{byte:02x}")).collect())
    })
}

/// Returns whether the compiler of Go made an ELF file.
pub fn is_of_go(file: &File) -> bool {
    of_notes(file, |notes, align| are_of_go(notes, align).then_some(())).is_some()
}

/// Returns what `find` finds in one of the file's parts with notes.
fn of_notes<T>(file: &File, find: impl Fn(&[u8], u64) -> Option<T>) -> Option<T> {
    let (header, table) = elf_headers(file).ok()?;
    parts(&header, &table).into_iter().find_map(|part| {
        let mut notes = vec![0; usize::try_from(part.len).ok()?];
        file.read_exact_at(&mut notes, part.offset).ok()?;
        find(&notes, part.align)
    })
}

/// The most bytes of text that are hashed. A program's owner decides how long its file says that the text is.
const MOST_TEXT: u64 = 256 << 20;

/// Returns a digest of an ELF file's text, in hexadecimal digits. Two files with the same build ID may hold
/// different text. `None` if the file is not ELF, cannot be read, or claims more text than any program has.
pub fn text_key(file: &File) -> Option<String> {
    let (_, facts) = elf_facts(file).ok()?;
    let mut digest = blake3::Hasher::new();
    let mut left = MOST_TEXT;
    let mut buffer = vec![0; 1 << 20];
    for load in facts.loads.iter().filter(|load| load.is_text()) {
        left = left.checked_sub(load.file_size)?;
        for number in [load.file_offset, load.vaddr, load.file_size] {
            digest.update(&number.to_le_bytes());
        }
        let (mut at, end) = (load.file_offset, load.file_offset.checked_add(load.file_size)?);
        while at < end {
            let len = usize::try_from(end - at).map_or(buffer.len(), |len| len.min(buffer.len()));
            file.read_exact_at(&mut buffer[..len], at).ok()?;
            digest.update(&buffer[..len]);
            at += len as u64;
        }
    }
    Some(digest.finalize().to_hex()[..32].to_owned())
}
