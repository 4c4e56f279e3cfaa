//! The headers of ELF files.

use tiexec_core::elf::{ElfFacts, ElfHeader, LoadSegment};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_tracee::Failure;

use crate::target_file::{ReadAt, TargetFile};

/// Returns the LOAD segments of a file that a process maps; none if it is not an ELF file for this machine. A reader's file
/// is read once.
pub(crate) fn loads(file: &TargetFile) -> Vec<LoadSegment> {
    let read = || elf_facts(file).map_or_else(|_no_elf| Vec::new(), |(_, facts)| facts.loads);
    match file {
        TargetFile::Here(_) => read(),
        TargetFile::Apart(opened) => opened.loads.get_or_init(read).clone(),
    }
}

/// Reads the headers of the program's file.
pub(crate) fn elf_facts(exe: &impl ReadAt) -> Result<(ElfHeader, ElfFacts), Failure> {
    let (header, table) = elf_headers(exe)?;
    let facts = ElfFacts::parse(&header, &table).map_err(Failure::of(SkipReason::ForeignImage))?;
    Ok((header, facts))
}

/// Reads the ELF header of a file and its table of program headers.
///
/// # Errors
/// `read_failed`; `foreign_image` if it is no ELF file for this machine.
pub(crate) fn elf_headers(file: &impl ReadAt) -> Result<(ElfHeader, Vec<u8>), Failure> {
    let unread = Failure::of(FailureKind::ReadFailed);
    let mut header = [0; ElfHeader::LEN];
    file.read_exact_at(&mut header, 0).map_err(unread)?;
    let header = ElfHeader::parse(&header).map_err(Failure::of(SkipReason::ForeignImage))?;
    let mut table = vec![0; header.table_len];
    file.read_exact_at(&mut table, header.table_offset).map_err(unread)?;
    Ok((header, table))
}
