//! The build ID of a file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::notes::{build_ids, parts};

use crate::program::elf_headers;

/// Returns the build ID of an ELF file in hexadecimal digits; `None` if it has none. Reads no more than 64 KiB of
/// headers, and as much of notes.
pub fn build_id(file: &File) -> Option<String> {
    let (header, table) = elf_headers(file).ok()?;
    parts(&header, &table).into_iter().find_map(|part| {
        let mut notes = vec![0; usize::try_from(part.len).ok()?];
        file.read_exact_at(&mut notes, part.offset).ok()?;
        let id = build_ids(&notes, part.align).into_iter().next()?;
        Some(notes[id].iter().map(|byte| format!("{byte:02x}")).collect())
    })
}
