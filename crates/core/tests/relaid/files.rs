//! Small ELF files with the features of large ones.

use object::LittleEndian;
use object::elf::{self, ProgramHeader64, SectionHeader64};
use object::{U32, U64, pod};
use proptest::prelude::*;
use tiexec_core::elf::native_machine;

/// The shape of a file.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    /// First vaddr, a multiple of the base page.
    pub(crate) vaddr: u64,
    /// Headers, notes and text in one LOAD segment.
    pub(crate) one_segment: bool,
    /// Bytes of text.
    pub(crate) text_len: u64,
    /// How much farther from the vaddr the text lies than from the file's beginning, base pages.
    pub(crate) skew: u64,
    /// Vaddr of the data, without its position in its page.
    pub(crate) data_vaddr: u64,
    pub(crate) data_len: u64,
    pub(crate) note: bool,
    pub(crate) sections: bool,
}

const PAGE: u64 = 4096;
const E_SHOFF: usize = 40;

impl Sketch {
    pub(crate) const BUILD_ID: [u8; 20] = *b"a build ID of 20 byt";

    pub(crate) fn typical() -> Self {
        Self {
            vaddr: 0x40_0000,
            one_segment: false,
            text_len: 0x3456,
            skew: 0,
            data_vaddr: 0x100_0000,
            data_len: 0x1234,
            note: true,
            sections: true,
        }
    }

    /// Returns the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = vec![0u8; PAGE as usize];
        let note_at = 0x300u64;
        file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        put(&mut file, 16, &2u16.to_le_bytes());
        put(&mut file, 18, &native_machine().0.to_le_bytes());
        put(&mut file, 32, &64u64.to_le_bytes());
        put(&mut file, 54, &56u16.to_le_bytes());
        put(&mut file, 58, &64u16.to_le_bytes());
        let mut note = Vec::new();
        for word in [4u32, 20, 3] {
            note.extend(word.to_le_bytes());
        }
        note.extend(b"GNU\0");
        note.extend(Self::BUILD_ID);
        put(&mut file, note_at as usize, &note);
        let note_len = note.len() as u64;

        let noise = |len: u64, seed: u64| (0..len).map(move |at| (at * 31 + seed + at / 251) as u8);
        let text_at = file.len() as u64;
        file.extend(noise(self.text_len, 1));
        file.resize(file.len().next_multiple_of(PAGE as usize), 0xcc);
        // The data begins within a page, as RELRO leaves it.
        let data_at = file.len() as u64 + 0x5c0;
        file.resize(data_at as usize, 0xdd);
        file.extend(noise(self.data_len, 2));
        let symbols_at = file.len() as u64;
        file.extend(noise(0x777, 3));

        let (r, x, w) = (elf::PF_R, elf::PF_X, elf::PF_W);
        let text_vaddr = self.vaddr + text_at + self.skew * PAGE;
        let data_vaddr = self.data_vaddr.wrapping_add(data_at % PAGE);
        let mut programs = Vec::new();
        if self.one_segment {
            let len = text_at + self.text_len;
            programs.push(program(elf::PT_LOAD, r | x, 0, self.vaddr, len, len));
        } else {
            programs.push(program(elf::PT_PHDR, r, 64, self.vaddr + 64, 56 * 5, 56 * 5));
            programs.push(program(elf::PT_LOAD, r, 0, self.vaddr, 0x400, 0x400));
            let len = self.text_len;
            programs.push(program(elf::PT_LOAD, r | x, text_at, text_vaddr, len, len));
        }
        let (len, bss) = (self.data_len, 0x2000);
        programs.push(program(
            elf::PT_LOAD,
            r | w,
            data_at,
            data_vaddr,
            len,
            len.wrapping_add(bss),
        ));
        if self.note {
            let vaddr = self.vaddr + note_at;
            programs.push(program(elf::PT_NOTE, r, note_at, vaddr, note_len, note_len));
        }
        put(&mut file, 64, pod::bytes_of_slice(&programs));
        put(&mut file, 56, &u16::try_from(programs.len()).unwrap().to_le_bytes());

        if self.sections {
            let text_vaddr = if self.one_segment { self.vaddr + text_at } else { text_vaddr };
            let alloc = elf::SHF_ALLOC;
            let none = elf::SectionFlags(0);
            let mut sections = vec![section(elf::SHT_NULL, none, 0, 0, 0)];
            if self.note {
                let vaddr = self.vaddr + note_at;
                sections.push(section(elf::SHT_NOTE, alloc, vaddr, note_at, note_len));
            }
            sections.push(section(elf::SHT_PROGBITS, alloc, text_vaddr, text_at, self.text_len));
            sections.push(section(elf::SHT_PROGBITS, alloc, data_vaddr, data_at, self.data_len));
            let bss = data_vaddr.wrapping_add(self.data_len);
            sections.push(section(elf::SHT_NOBITS, alloc, bss, symbols_at, 0x2000));
            sections.push(section(elf::SHT_SYMTAB, none, 0, symbols_at, 0x300));
            sections.push(section(elf::SHT_STRTAB, none, 0, symbols_at + 0x311, 0x400));
            file.resize(file.len().next_multiple_of(8), 0);
            let at = file.len() as u64;
            file.extend(pod::bytes_of_slice(&sections));
            put(&mut file, E_SHOFF, &at.to_le_bytes());
            put(&mut file, 60, &u16::try_from(sections.len()).unwrap().to_le_bytes());
        }
        file
    }

    /// Returns the places in the file of its headers' fields.
    pub(crate) fn header_fields(&self, file: &[u8]) -> Vec<usize> {
        let sections = u64::from_le_bytes(file[E_SHOFF..E_SHOFF + 8].try_into().unwrap()) as usize;
        let of_file = (16..64).step_by(2);
        let of_programs = (64..64 + 5 * 56).step_by(4);
        let of_notes = (0x300..0x310).step_by(4);
        let of_sections = if self.sections { sections..file.len() } else { 0..0 }.step_by(4);
        of_file.chain(of_programs).chain(of_notes).chain(of_sections).collect()
    }
}

/// Files of all possible forms, up to a few MiB.
pub(crate) fn any_sketch() -> impl Strategy<Value = Sketch> {
    let lens = prop_oneof![1u64..0x3000, (1u64..6).prop_map(|mib| (mib << 20) - 0x123)];
    (
        0u64..0x3000,
        any::<bool>(),
        lens,
        0u64..0x400,
        0u64..0x900,
        1u64..0x5000,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(page, one_segment, text_len, skew, gap, data_len, note, sections)| {
            let vaddr = page * PAGE;
            let skew = if one_segment { 0 } else { skew };
            let text_end = vaddr + PAGE + skew * PAGE + text_len;
            let data_vaddr = text_end.next_multiple_of(PAGE) + gap * PAGE;
            Sketch { vaddr, one_segment, text_len, skew, data_vaddr, data_len, note, sections }
        })
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn program(
    kind: elf::ProgramType,
    flags: elf::ProgramFlags,
    offset: u64,
    vaddr: u64,
    file_size: u64,
    mem_size: u64,
) -> ProgramHeader64<LittleEndian> {
    let word = |value| U64::new(LittleEndian, value);
    ProgramHeader64 {
        p_type: U32::new(LittleEndian, kind),
        p_flags: U32::new(LittleEndian, flags),
        p_offset: word(offset),
        p_vaddr: word(vaddr),
        p_paddr: word(vaddr),
        p_filesz: word(file_size),
        p_memsz: word(mem_size),
        p_align: word(4),
    }
}

fn section(
    kind: elf::SectionType,
    flags: elf::SectionFlags,
    vaddr: u64,
    offset: u64,
    size: u64,
) -> SectionHeader64<LittleEndian> {
    let word = |value| U64::new(LittleEndian, value);
    let half = |value| U32::new(LittleEndian, value);
    SectionHeader64 {
        sh_name: half(0),
        sh_type: U32::new(LittleEndian, kind),
        sh_flags: U64::new(LittleEndian, flags),
        sh_addr: word(vaddr),
        sh_offset: word(offset),
        sh_size: word(size),
        sh_link: half(0),
        sh_info: half(0),
        sh_addralign: word(1),
        sh_entsize: word(0),
    }
}
