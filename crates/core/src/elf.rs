//! The few facts of an ELF file that decide what can be done with its text.
//!
//! Reading is in two steps, so that a launch reads one page of the file and no more:
//! [`ElfHeader::parse`] on the first bytes says where the program headers are,
//! [`ElfFacts::parse`] turns them into values. Nothing in a file is trusted: every sum is checked.

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::LittleEndian;
use object::pod;
use thiserror::Error;

/// Why bytes are not an ELF image of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ElfError {
    /// The magic number is missing: a script, text, or anything else.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file of another class, byte order or machine.
    #[error("an ELF file for another machine or of another class")]
    Foreign,
    /// The headers contradict themselves or end early; the kernel answers ENOEXEC.
    #[error("malformed ELF headers")]
    Malformed,
}

/// Returns the `e_machine` of the machine this program was built for.
pub const fn native_machine() -> elf::Machine {
    if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 }
}

/// What the first 64 bytes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElfHeader {
    /// Whether the image is placed by the kernel (ET_DYN: a PIE or a DSO) or fixed (ET_EXEC).
    pub position_independent: bool,
    /// Entry point, as a vaddr.
    pub entry: u64,
    /// File offset of the program headers, in bytes.
    pub table_offset: u64,
    /// Length of the program headers, in bytes; at most 64 KiB, as in the kernel.
    pub table_len: usize,
}

impl ElfHeader {
    /// How many bytes of the file [`ElfHeader::parse`] wants to see.
    pub const LEN: usize = size_of::<FileHeader64<LittleEndian>>();

    /// Parses the first bytes of a file.
    ///
    /// # Errors
    /// [`ElfError`], with the meaning the kernel would give it at exec (`fs/binfmt_elf.c`).
    pub fn parse(prefix: &[u8]) -> Result<Self, ElfError> {
        if !prefix.starts_with(&elf::ELFMAG) {
            return Err(ElfError::NotElf);
        }
        if prefix.len() > 5 && (prefix[4] != elf::ELFCLASS64.0 || prefix[5] != elf::ELFDATA2LSB.0) {
            return Err(ElfError::Foreign);
        }
        let Ok((header, _)) = pod::from_bytes::<FileHeader64<LittleEndian>>(prefix) else {
            return Err(ElfError::Malformed);
        };
        if header.e_machine.get(LittleEndian) != native_machine() {
            return Err(ElfError::Foreign);
        }
        let position_independent = match header.e_type.get(LittleEndian) {
            elf::ET_EXEC => false,
            elf::ET_DYN => true,
            _ => return Err(ElfError::Malformed),
        };
        let entry_size = usize::from(header.e_phentsize.get(LittleEndian));
        let table_len = usize::from(header.e_phnum.get(LittleEndian))
            * size_of::<ProgramHeader64<LittleEndian>>();
        if entry_size != size_of::<ProgramHeader64<LittleEndian>>()
            || table_len == 0
            || table_len > 1 << 16
        {
            return Err(ElfError::Malformed);
        }
        Ok(Self {
            position_independent,
            entry: header.e_entry.get(LittleEndian),
            table_offset: header.e_phoff.get(LittleEndian),
            table_len,
        })
    }
}

/// One `PT_LOAD` program header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadSegment {
    /// `p_offset`, bytes into the file.
    pub file_offset: u64,
    /// `p_vaddr`; the run-time address is this plus the load bias.
    pub vaddr: u64,
    /// `p_filesz`, bytes.
    pub file_size: u64,
    /// `p_memsz`, bytes.
    pub mem_size: u64,
    /// Whether it is mapped executable.
    pub exec: bool,
    /// Whether it is mapped writable.
    pub write: bool,
}

impl LoadSegment {
    /// Returns whether the segment is text: executable and not writable.
    pub const fn is_text(&self) -> bool {
        self.exec && !self.write
    }
}

/// What the program headers say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElfFacts {
    /// As in [`ElfHeader`].
    pub position_independent: bool,
    /// Whether the kernel loads an interpreter (`ld.so`) to start it.
    pub dynamic: bool,
    /// The LOAD segments, in file order.
    pub loads: Vec<LoadSegment>,
}

impl ElfFacts {
    /// Parses the program headers that `header` points at.
    ///
    /// # Errors
    /// [`ElfError::Malformed`] if `table` is shorter than the header says, or a LOAD segment has
    /// more bytes in the file than in memory or wraps around.
    pub fn parse(header: &ElfHeader, table: &[u8]) -> Result<Self, ElfError> {
        let table = table.get(..header.table_len).ok_or(ElfError::Malformed)?;
        let count = header.table_len / size_of::<ProgramHeader64<LittleEndian>>();
        let Ok((headers, _)) = pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(table, count)
        else {
            return Err(ElfError::Malformed);
        };
        let mut facts = Self {
            position_independent: header.position_independent,
            dynamic: false,
            loads: Vec::new(),
        };
        for header in headers {
            match header.p_type.get(LittleEndian) {
                elf::PT_INTERP => facts.dynamic = true,
                elf::PT_LOAD => {
                    let flags = header.p_flags.get(LittleEndian);
                    let load = LoadSegment {
                        file_offset: header.p_offset.get(LittleEndian),
                        vaddr: header.p_vaddr.get(LittleEndian),
                        file_size: header.p_filesz.get(LittleEndian),
                        mem_size: header.p_memsz.get(LittleEndian),
                        exec: flags.contains(elf::PF_X),
                        write: flags.contains(elf::PF_W),
                    };
                    if load.file_size > load.mem_size
                        || load.vaddr.checked_add(load.mem_size).is_none()
                        || load.file_offset.checked_add(load.file_size).is_none()
                    {
                        return Err(ElfError::Malformed);
                    }
                    facts.loads.push(load);
                }
                _ => {}
            }
        }
        Ok(facts)
    }

    /// Returns the bytes of text in the file, all text segments together.
    pub fn text_bytes(&self) -> u64 {
        self.text().fold(0, |sum, load| sum.saturating_add(load.file_size))
    }

    /// Returns whether any text segment could hold a whole huge page of `huge` bytes: where the
    /// load bias is the kernel's choice, at the luckiest bias.
    pub fn may_fill(&self, huge: crate::addr::PageSize, base: crate::addr::PageSize) -> bool {
        self.text().any(|load| {
            // The kernel maps whole base pages.
            let start = load.vaddr & !(base.bytes() - 1);
            let end = load.vaddr.saturating_add(load.file_size).saturating_add(base.bytes() - 1)
                & !(base.bytes() - 1);
            if self.position_independent {
                return end - start >= huge.bytes();
            }
            let range = crate::addr::AddrRange::new(
                crate::addr::RemoteAddr::new(start),
                crate::addr::RemoteAddr::new(end),
            );
            range.and_then(|range| range.align_inward(huge)).is_some()
        })
    }

    fn text(&self) -> impl Iterator<Item = &LoadSegment> {
        self.loads.iter().filter(|load| load.is_text())
    }
}
