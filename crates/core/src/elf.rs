//! The few facts of an ELF file that decide what can be done with its text.
//!
//! Reading is in two steps, so that a launch reads one page of the file and no more:
//! [`ElfHeader::parse`] on the first bytes says where the program headers are,
//! [`ElfFacts::parse`] turns them into values. Nothing in a file is trusted: every sum is checked.

use std::ops::Range;

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::LittleEndian;
use object::pod;
use object::read::elf::NoteIterator;
use thiserror::Error;

use crate::addr::{AddrRange, PageSize, RemoteAddr};
use crate::order;
use crate::proc::maps::Vma;

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

/// The facts in the first 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElfHeader {
    /// True if the kernel chooses the image's place (ET_DYN: a PIE or a DSO); else it is fixed (ET_EXEC).
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
    /// True if it is mapped executable.
    pub exec: bool,
    /// True if it is mapped writable.
    pub write: bool,
}

impl LoadSegment {
    /// Returns whether the segment is text: executable and not writable.
    pub const fn is_text(&self) -> bool {
        self.exec && !self.write
    }

    /// Returns the vaddrs at which the kernel maps the file part: whole base pages.
    pub fn mapped(&self, base: PageSize) -> Option<AddrRange> {
        let mask = base.bytes() - 1;
        let end = self.vaddr.saturating_add(self.file_size).saturating_add(mask) & !mask;
        AddrRange::new(RemoteAddr::new(self.vaddr & !mask), RemoteAddr::new(end))
    }
}

/// The facts in the program headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElfFacts {
    /// As in [`ElfHeader`].
    pub position_independent: bool,
    /// True if the kernel loads an interpreter (`ld.so`) to start it.
    pub dynamic: bool,
    /// The LOAD segments, in file order.
    pub loads: Vec<LoadSegment>,
    /// The vaddrs that `ld.so` makes read-only after it has relocated them (`PT_GNU_RELRO`).
    pub relro: Option<Range<u64>>,
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
            relro: None,
        };
        for header in headers {
            match header.p_type.get(LittleEndian) {
                elf::PT_INTERP => facts.dynamic = true,
                elf::PT_GNU_RELRO => {
                    let start = header.p_vaddr.get(LittleEndian);
                    facts.relro = Some(start..start.wrapping_add(header.p_memsz.get(LittleEndian)));
                }
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

    /// Returns the load bias of a process that maps this file at `vma`; `None` if no LOAD segment is
    /// mapped from that part of it.
    pub fn load_bias(&self, vma: &Vma, base: PageSize) -> Option<u64> {
        let offset = vma.file_offset;
        let holds = |load: &&LoadSegment| {
            let first = load.file_offset & !(base.bytes() - 1);
            first <= offset && offset < load.file_offset.saturating_add(load.file_size)
        };
        // If one segment ends and the next begins within a page of the file, the kernel maps that page for both.
        let alike = |load: &&LoadSegment| holds(load) && load.exec == vma.perms.exec;
        let load = self.loads.iter().find(alike).or_else(|| self.loads.iter().find(holds))?;
        let vaddr = load.vaddr.wrapping_add(offset.wrapping_sub(load.file_offset));
        Some(vma.range.start().get().wrapping_sub(vaddr))
    }

    /// Returns the bytes of text in the file, all text segments together.
    pub fn text_bytes(&self) -> u64 {
        self.text().fold(0, |sum, load| sum.saturating_add(load.file_size))
    }

    /// Returns whether any text segment could hold a whole huge page of `huge` bytes: where the
    /// load bias is the kernel's choice, at the luckiest bias.
    pub fn may_fill(&self, huge: crate::addr::PageSize, base: crate::addr::PageSize) -> bool {
        self.text().any(|load| {
            if self.position_independent {
                return load.mapped(base).is_some_and(|mapped| mapped.len() >= huge.bytes());
            }
            load.mapped(base).and_then(|mapped| mapped.align_inward(huge)).is_some()
        })
    }

    /// Returns whether any text segment of a shared object holds a whole huge page of `huge` bytes: either if the
    /// kernel maps large files from a multiple of the huge page on, or at any address.
    pub fn fills_as_object(
        &self,
        huge: crate::addr::PageSize,
        base: crate::addr::PageSize,
    ) -> bool {
        self.text()
            .filter_map(|load| load.mapped(base))
            .any(|mapped| mapped.align_inward(huge).is_some() || mapped.len() >= 2 * huge.bytes())
    }

    /// Returns the parts of the file that are mapped as text, in whole base pages as the kernel maps
    /// them; ascending, those that meet merged.
    pub fn text_parts(&self, base: crate::addr::PageSize) -> Vec<Range<u64>> {
        let mask = base.bytes() - 1;
        let mut parts: Vec<Range<u64>> = self
            .text()
            .map(|load| {
                let end = load.file_offset.saturating_add(load.file_size).saturating_add(mask);
                (load.file_offset & !mask)..(end & !mask)
            })
            .filter(|part| !part.is_empty())
            .collect();
        order::by_key(&mut parts, |part| part.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for part in parts {
            match merged.last_mut() {
                Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
                _ => merged.push(part),
            }
        }
        merged
    }

    fn text(&self) -> impl Iterator<Item = &LoadSegment> {
        self.loads.iter().filter(|load| load.is_text())
    }
}

/// Returns where the file holds the path of its interpreter (`ld.so`), with the closing zero byte. Returns `None` if
/// the file names no interpreter, or if that place is invalid.
pub fn interpreter_part(header: &ElfHeader, table: &[u8]) -> Option<Range<u64>> {
    part_of_type(header, table, elf::PT_INTERP)
}

/// Returns the place in the file of its GNU properties (`PT_GNU_PROPERTY`); `None` if it has none, or their place is
/// invalid.
pub fn properties_part(header: &ElfHeader, table: &[u8]) -> Option<Range<u64>> {
    part_of_type(header, table, elf::PT_GNU_PROPERTY)
}

fn part_of_type(header: &ElfHeader, table: &[u8], wanted: elf::ProgramType) -> Option<Range<u64>> {
    let table = table.get(..header.table_len)?;
    let count = header.table_len / size_of::<ProgramHeader64<LittleEndian>>();
    let (headers, _) = pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(table, count).ok()?;
    let found = headers.iter().find(|header| header.p_type.get(LittleEndian) == wanted)?;
    let start = found.p_offset.get(LittleEndian);
    Some(start..start.checked_add(found.p_filesz.get(LittleEndian))?)
}

/// Returns whether GNU properties ask for text that is guarded against indirect branches
/// (`GNU_PROPERTY_AARCH64_FEATURE_1_BTI`). The kernel, or `ld.so`, may then have mapped the text so.
pub fn asks_for_guards(properties: &[u8]) -> bool {
    let notes = NoteIterator::<FileHeader64<LittleEndian>>::new(LittleEndian, 8, properties);
    let notes = notes.into_iter().flatten().map_while(Result::ok);
    let properties = notes.filter_map(|note| note.gnu_properties(LittleEndian)).flatten();
    let features = properties
        .map_while(Result::ok)
        .filter(|property| property.pr_type() == elf::GNU_PROPERTY_AARCH64_FEATURE_1_AND)
        .filter_map(|property| property.data_u32(LittleEndian).ok());
    { features }.any(|features| features & elf::GNU_PROPERTY_AARCH64_FEATURE_1_BTI != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::addr::PageSize;

    const BASE: PageSize = PageSize::new(4 << 10).unwrap();
    const HUGE: PageSize = PageSize::new(2 << 20).unwrap();

    const E_TYPE: usize = 16;
    const E_MACHINE: usize = 18;
    const E_PHOFF: usize = 32;
    const E_PHENTSIZE: usize = 54;
    const E_PHNUM: usize = 56;

    /// A LOAD segment of text.
    fn text(vaddr: u64, file_size: u64) -> LoadSegment {
        let file_offset = vaddr & 0xfff;
        let mem_size = file_size;
        LoadSegment { file_offset, vaddr, file_size, mem_size, exec: true, write: false }
    }

    /// The file header of an executable of this machine with `count` program headers after it.
    fn header(kind: elf::FileType, count: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; ElfHeader::LEN];
        bytes[..4].copy_from_slice(&elf::ELFMAG);
        bytes[4] = elf::ELFCLASS64.0;
        bytes[5] = elf::ELFDATA2LSB.0;
        bytes[6] = 1;
        put(&mut bytes, E_TYPE, &kind.0.to_le_bytes());
        put(&mut bytes, E_MACHINE, &native_machine().0.to_le_bytes());
        put(&mut bytes, 24, &0x40_1000u64.to_le_bytes());
        put(&mut bytes, E_PHOFF, &64u64.to_le_bytes());
        put(&mut bytes, E_PHENTSIZE, &56u16.to_le_bytes());
        put(&mut bytes, E_PHNUM, &count.to_le_bytes());
        bytes
    }

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn program_header(load: &LoadSegment) -> Vec<u8> {
        let flags = 4 | u32::from(load.exec) | u32::from(load.write) << 1;
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        let LoadSegment { file_offset, vaddr, file_size, mem_size, .. } = *load;
        for word in [file_offset, vaddr, vaddr, file_size, mem_size, 0x1000] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// A whole file: header and program headers.
    fn image(kind: elf::FileType, loads: &[LoadSegment]) -> Vec<u8> {
        let mut bytes = header(kind, u16::try_from(loads.len()).unwrap());
        loads.iter().for_each(|load| bytes.extend(program_header(load)));
        bytes
    }

    /// Reads the two steps as a launch does.
    fn read(image: &[u8]) -> Result<ElfFacts, ElfError> {
        let header = ElfHeader::parse(image)?;
        let at = usize::try_from(header.table_offset).unwrap_or(usize::MAX);
        ElfFacts::parse(&header, image.get(at..).unwrap_or_default())
    }

    #[test]
    fn a_sound_image_gives_its_segments_in_file_order() {
        let data = LoadSegment {
            file_offset: 0x60_0ff0,
            vaddr: 0xc0_0ff0,
            file_size: 0x10,
            mem_size: 0x5000,
            exec: false,
            write: true,
        };
        let loads = [text(0x40_0000, 0x60_0001), data];
        let facts = read(&image(elf::ET_EXEC, &loads)).unwrap();
        assert_eq!(facts.loads, loads);
        assert_eq!((facts.position_independent, facts.dynamic), (false, false));
        assert_eq!(facts.text_bytes(), 0x60_0001);
        let header = ElfHeader::parse(&image(elf::ET_DYN, &loads)).unwrap();
        assert!(header.position_independent);
        assert_eq!((header.entry, header.table_offset, header.table_len), (0x40_1000, 64, 112));
    }

    #[test]
    fn text_parts_are_whole_pages_and_merged() {
        let mut one = text(0x40_0123, 0x1000);
        one.file_offset = 0x1123;
        let mut next = text(0x50_0000, 0x2000);
        next.file_offset = 0x3000;
        let data = LoadSegment { exec: false, file_offset: 0x9000, ..text(0x60_0000, 0x1000) };
        let empty = LoadSegment { file_offset: 0x20_0000, ..text(0x70_0000, 0) };
        let facts = read(&image(elf::ET_DYN, &[next, one, data, empty])).unwrap();
        assert_eq!(facts.text_parts(BASE), vec![0x1000..0x5000; 1]);
        let high = LoadSegment { file_offset: u64::MAX - 0x1fff, ..text(0, 0x1000) };
        let facts = read(&image(elf::ET_DYN, &[high])).unwrap();
        assert!(facts.text_parts(BASE).iter().all(|part| part.start <= part.end));
    }

    #[test]
    fn what_does_not_begin_like_elf_is_not_elf() {
        for bytes in [&b""[..], b"\x7f", b"\x7fEL", b"#!/bin/sh\n", b"\x7fELG", &[0; 4096]] {
            assert_eq!(ElfHeader::parse(bytes), Err(ElfError::NotElf), "{bytes:?}");
        }
    }

    #[test]
    fn a_header_cut_off_anywhere_is_malformed() {
        let whole = header(elf::ET_EXEC, 1);
        for len in 4..whole.len() {
            assert_eq!(ElfHeader::parse(&whole[..len]), Err(ElfError::Malformed), "{len} bytes");
        }
        assert!(ElfHeader::parse(&whole).is_ok());
    }

    #[test]
    fn another_class_byte_order_or_machine_is_foreign() {
        let foreign_at = |at: usize, value: u8| {
            let mut bytes = header(elf::ET_EXEC, 1);
            bytes[at] = value;
            ElfHeader::parse(&bytes)
        };
        assert_eq!(foreign_at(4, elf::ELFCLASS32.0), Err(ElfError::Foreign));
        assert_eq!(foreign_at(4, 0), Err(ElfError::Foreign));
        assert_eq!(foreign_at(5, elf::ELFDATA2MSB.0), Err(ElfError::Foreign));
        assert_eq!(foreign_at(E_MACHINE, 3), Err(ElfError::Foreign));
    }

    #[test]
    fn only_programs_and_shared_objects_are_executed() {
        for kind in [0, 1, 4, 0xfe00, u16::MAX] {
            let bytes = header(elf::FileType(kind), 1);
            assert_eq!(ElfHeader::parse(&bytes), Err(ElfError::Malformed), "e_type {kind}");
        }
    }

    #[test]
    fn program_headers_of_another_size_are_malformed() {
        for size in [0u16, 1, 32, 55, 57, 64, u16::MAX] {
            let mut bytes = image(elf::ET_EXEC, &[text(0x40_0000, 0x1000)]);
            put(&mut bytes, E_PHENTSIZE, &size.to_le_bytes());
            assert_eq!(read(&bytes), Err(ElfError::Malformed), "e_phentsize {size}");
        }
    }

    #[test]
    fn the_number_of_program_headers_has_the_kernels_limits() {
        let count = |number| ElfHeader::parse(&header(elf::ET_EXEC, number));
        assert_eq!(count(0), Err(ElfError::Malformed));
        // 65536 / 56, rounded down.
        assert_eq!(count(1170).unwrap().table_len, 1170 * 56);
        assert_eq!(count(1171), Err(ElfError::Malformed));
        assert_eq!(count(u16::MAX), Err(ElfError::Malformed));
    }

    #[test]
    fn a_table_that_ends_early_or_lies_past_the_end_is_malformed() {
        let whole = image(elf::ET_EXEC, &[text(0x40_0000, 0x1000); 3]);
        for len in ElfHeader::LEN..whole.len() {
            assert_eq!(read(&whole[..len]), Err(ElfError::Malformed), "{len} bytes");
        }
        for offset in [u64::MAX, u64::MAX - 63, 1 << 63, 4096, 65] {
            let mut bytes = whole.clone();
            put(&mut bytes, E_PHOFF, &offset.to_le_bytes());
            assert_eq!(read(&bytes), Err(ElfError::Malformed), "e_phoff {offset:#x}");
        }
    }

    #[test]
    fn segments_that_contradict_themselves_are_malformed() {
        let sound = text(0x40_0000, 0x1000);
        for (hostile, why) in [
            (LoadSegment { mem_size: 0xfff, ..sound }, "more in the file than in memory"),
            (LoadSegment { file_size: u64::MAX, ..sound }, "more in the file than in memory"),
            (LoadSegment { vaddr: u64::MAX - 0xffe, ..sound }, "vaddr wraps around"),
            (LoadSegment { mem_size: u64::MAX, ..sound }, "memory wraps around"),
            (LoadSegment { file_offset: u64::MAX - 0xffe, ..sound }, "file offset wraps around"),
        ] {
            let bytes = image(elf::ET_DYN, &[sound, hostile]);
            assert_eq!(read(&bytes), Err(ElfError::Malformed), "{why}");
        }
        // The last possible addresses do not wrap around.
        let last = LoadSegment { vaddr: u64::MAX - 0x1000, ..sound };
        assert_eq!(read(&image(elf::ET_DYN, &[last])).unwrap().loads, [last]);
    }

    #[test]
    fn overlapping_and_unordered_segments_are_facts_like_others() {
        // The kernel maps them one over the other; a plan reads maps, not these.
        let loads = [text(0x60_0000, 0x40_0000), text(0x40_0000, 0x80_0000), text(0x60_0000, 0)];
        let facts = read(&image(elf::ET_EXEC, &loads)).unwrap();
        assert_eq!(facts.loads, loads);
        assert_eq!(facts.text_bytes(), 0xc0_0000);
    }

    #[test]
    fn text_bytes_stop_at_the_largest_number() {
        let half = LoadSegment { file_offset: 0, ..text(0, 1 << 63) };
        let facts = read(&image(elf::ET_EXEC, &[half, half, half])).unwrap();
        assert_eq!(facts.text_bytes(), u64::MAX);
    }

    #[test]
    fn writable_code_is_no_text() {
        let writable = LoadSegment { write: true, ..text(0x40_0000, 64 << 20) };
        let data = LoadSegment { exec: false, ..text(0x40_0000, 64 << 20) };
        let facts = read(&image(elf::ET_EXEC, &[writable, data])).unwrap();
        assert_eq!(facts.text_bytes(), 0);
        assert!(!facts.may_fill(HUGE, BASE));
    }

    #[test]
    fn a_fixed_image_fills_a_huge_page_only_where_one_lies() {
        let fills = |load| read(&image(elf::ET_EXEC, &[load])).unwrap().may_fill(HUGE, BASE);
        assert!(fills(text(0x40_0000, 2 << 20)));
        assert!(!fills(text(0x40_1000, (4 << 20) - 0x2000)), "a page short at both ends");
        // The kernel maps whole base pages: a byte in the last one is enough.
        assert!(fills(text(0x40_0fff, (4 << 20) - 0x1ffe)));
        assert!(!fills(text(0x40_0000, (2 << 20) - 0x1000)));
        assert!(fills(text(0x40_0000, (2 << 20) - 0xfff)));
    }

    #[test]
    fn a_placed_image_fills_a_huge_page_at_the_luckiest_bias() {
        let fills = |load| read(&image(elf::ET_DYN, &[load])).unwrap().may_fill(HUGE, BASE);
        assert!(fills(text(0x1000, 2 << 20)));
        assert!(fills(text(0x1fff, (2 << 20) - 0x1ffe)));
        assert!(!fills(text(0x1000, (2 << 20) - 0x1000)));
        // At the top of the address space too.
        assert!(!fills(text(u64::MAX - 0x2000, 0x1000)));
        assert!(fills(text(0, u64::MAX)));
    }

    #[test]
    fn an_interpreter_makes_an_image_dynamic() {
        let mut bytes = image(elf::ET_DYN, &[text(0, 0x1000); 2]);
        put(&mut bytes, ElfHeader::LEN, &3u32.to_le_bytes());
        let facts = read(&bytes).unwrap();
        assert!(facts.dynamic);
        assert_eq!(facts.loads.len(), 1);
    }

    /// Reads everything that a launch reads from a file. Any answer will do.
    fn ask(bytes: &[u8]) -> Option<bool> {
        let facts = read(bytes).ok()?;
        assert!(facts.loads.len() <= (1 << 16) / 56);
        for load in &facts.loads {
            assert!(load.file_size <= load.mem_size);
            assert!(load.vaddr.checked_add(load.mem_size).is_some());
        }
        let large = PageSize::new(512 << 20)?;
        let fills = facts.may_fill(HUGE, BASE);
        assert!(fills || !facts.may_fill(large, BASE), "a larger page is harder to fill");
        assert!(!fills || facts.text_bytes() > 0);
        Some(fills)
    }

    const NODE: &[u8] = include_bytes!("../testdata/elf/node");

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            ask(&bytes);
            let mut like_elf = header(elf::ET_DYN, 4);
            like_elf.extend_from_slice(&bytes);
            ask(&like_elf);
        }

        #[test]
        fn arbitrary_segments_never_panic(
            loads in prop::collection::vec(any::<(u64, u64, u64, u64, bool, bool)>(), 1..8),
            placed in any::<bool>(),
        ) {
            let segments: Vec<LoadSegment> = loads
                .into_iter()
                .map(|(file_offset, vaddr, file_size, mem_size, exec, write)| LoadSegment {
                    file_offset, vaddr, file_size, mem_size, exec, write,
                })
                .collect();
            let kind = if placed { elf::ET_DYN } else { elf::ET_EXEC };
            let answer = read(&image(kind, &segments));
            let sound = segments.iter().all(|load| {
                load.file_size <= load.mem_size
                    && load.vaddr.checked_add(load.mem_size).is_some()
                    && load.file_offset.checked_add(load.file_size).is_some()
            });
            prop_assert_eq!(answer.is_ok(), sound);
            ask(&image(kind, &segments));
            // Facts that no parser has checked must not panic either.
            let facts = ElfFacts { position_independent: placed, dynamic: false, loads: segments, relro: None };
            facts.may_fill(HUGE, BASE);
            facts.text_bytes();
        }

        #[test]
        fn a_real_header_with_any_bytes_changed_never_panics(
            changes in prop::collection::vec((0..900usize, any::<u8>()), 0..24),
            len in prop_oneof![Just(NODE.len()), 0..NODE.len()],
        ) {
            let mut bytes = NODE.to_vec();
            for (at, value) in changes {
                bytes[at] = value;
            }
            ask(&bytes[..len]);
        }

        #[test]
        fn a_real_header_with_any_words_changed_never_panics(
            changes in prop::collection::vec((0..106usize, any::<u64>()), 0..8),
        ) {
            let mut bytes = NODE.to_vec();
            for (word, value) in changes {
                put(&mut bytes, 8 * (word + 2), &value.to_le_bytes());
            }
            ask(&bytes);
        }
    }
}
