//! The build ID of a file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tiexec_core::elf::ElfHeader;
use tiexec_core::notes::{build_ids, parts};

/// Returns the build ID of an ELF file in hexadecimal digits; `None` if it has none. Reads no more than 64 KiB of
/// headers, and as much of notes.
pub fn build_id(file: &File) -> Option<String> {
    let mut header = [0; ElfHeader::LEN];
    file.read_exact_at(&mut header, 0).ok()?;
    let header = ElfHeader::parse(&header).ok()?;
    let mut table = vec![0; header.table_len];
    file.read_exact_at(&mut table, header.table_offset).ok()?;
    parts(&header, &table).into_iter().find_map(|part| {
        let mut notes = vec![0; usize::try_from(part.len).ok()?];
        file.read_exact_at(&mut notes, part.offset).ok()?;
        let id = build_ids(&notes, part.align).into_iter().next()?;
        Some(notes[id].iter().map(|byte| format!("{byte:02x}")).collect())
    })
}
