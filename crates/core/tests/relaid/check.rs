//! The invariants of every layout, whatever the file. Shared with the fuzz target.

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::read::elf::FileHeader;
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::relaid::Layout;

/// Page sizes as on x86-64.
pub(crate) const PAGES: Pages =
    Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };

/// The longest image that is built to check it, in bytes.
const BUILT: u64 = 32 << 20;

/// Builds the image in memory.
pub(crate) fn built(layout: &Layout, file: &[u8]) -> Vec<u8> {
    let mut image = vec![0; usize::try_from(layout.len).unwrap()];
    for copy in &layout.copies {
        let part = |at: u64| at as usize..(at + copy.len) as usize;
        image[part(copy.to)].copy_from_slice(&file[part(copy.from)]);
    }
    for write in &layout.writes {
        let at = write.at as usize;
        image[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    image
}

/// Checks the layout of `file`.
pub(crate) fn check(layout: &Layout, file: &[u8]) {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for copy in &layout.copies {
        assert!(copy.len > 0 && copy.from + copy.len <= file.len() as u64, "{copy:?}");
        parts.push((copy.to, copy.len));
    }
    assert!(parts.is_sorted());
    if has_own_offsets(layout) {
        assert!(layout.copies.iter().all(|copy| copy.from == copy.to), "{layout:?}");
    }
    parts.extend(layout.writes.iter().map(|write| (write.at, write.bytes.len() as u64)));
    assert!(layout.writes.is_sorted_by_key(|write| write.at));
    parts.sort_unstable();
    for pair in parts.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
    }
    assert!(parts.iter().all(|&(at, len)| at + len <= layout.len), "{layout:?}");
    assert!(layout.memory() <= 3 * (file.len() as u64 + (2 << 20)), "not much more than the file");
    for &text in layout.texts() {
        assert!(layout.offset_of(text).is_some(), "{text}");
    }
    if layout.len <= BUILT {
        let mut image = built(layout, file);
        // An image ends with its last text or table. Loaded data behind that are a hole.
        image.resize(image.len().max(file.len()), 0);
        same_contents(layout, file, &image);
    }
}

/// Returns whether the image has the offsets, and the headers, of its file.
pub(crate) fn has_own_offsets(layout: &Layout) -> bool {
    layout.writes.is_empty()
}

fn same_contents(layout: &Layout, file: &[u8], image: &[u8]) {
    let old = Headers::read(file);
    let new = Headers::read(image);
    assert_eq!((old.programs.len(), old.sections.len()), (new.programs.len(), new.sections.len()));
    for (old, new) in old.programs.iter().zip(new.programs) {
        assert_eq!(old.p_type, new.p_type);
        if old.p_type.get(LittleEndian) != elf::PT_LOAD {
            continue;
        }
        let vaddr = new.p_vaddr.get(LittleEndian);
        let offset = new.p_offset.get(LittleEndian);
        let size = new.p_filesz.get(LittleEndian);
        let flags = new.p_flags.get(LittleEndian);
        let is_text = flags.contains(elf::PF_X) && !flags.contains(elf::PF_W);
        let must_fit = size > 0 && (is_text || !has_own_offsets(layout));
        assert!(!must_fit || layout.fits(offset.wrapping_sub(vaddr)), "congruent");
        let was = bytes(file, old.p_offset.get(LittleEndian), size);
        let is = bytes(image, offset, size);
        assert!(is_kept_or_hole(was, is), "LOAD at {vaddr:#x}");
        if is_text {
            assert_eq!(was, is, "text at {vaddr:#x}");
            let text = AddrRange::with_len(RemoteAddr::new(vaddr), size).unwrap();
            assert_eq!(layout.offset_of(text), (size > 0).then_some(offset), "text {text}");
        }
    }
    for (old, new) in old.sections.iter().zip(new.sections) {
        let kind = old.sh_type.get(LittleEndian);
        if matches!(kind, elf::SHT_NULL | elf::SHT_NOBITS | elf::SHT_NOTE) {
            continue;
        }
        let size = old.sh_size.get(LittleEndian);
        let was = bytes(file, old.sh_offset.get(LittleEndian), size);
        let is = bytes(image, new.sh_offset.get(LittleEndian), size);
        let flags = old.sh_flags.get(LittleEndian);
        // Loaded data may be holes, whatever kind the header gives it; tables that tools read may not.
        let table = matches!(
            kind,
            elf::SHT_SYMTAB
                | elf::SHT_DYNSYM
                | elf::SHT_STRTAB
                | elf::SHT_DYNAMIC
                | elf::SHT_HASH
                | elf::SHT_GNU_HASH
                | elf::SHT_GNU_VERSYM
                | elf::SHT_GNU_VERDEF
                | elf::SHT_GNU_VERNEED
        );
        let loaded = flags.contains(elf::SHF_ALLOC) && !flags.contains(elf::SHF_EXECINSTR);
        let data = loaded && !table;
        assert!(if data { is_kept_or_hole(was, is) } else { was == is }, "{old:?} {new:?}");
    }
}

/// Returns whether every byte is the original's, or lies in a hole.
fn is_kept_or_hole(was: &[u8], is: &[u8]) -> bool {
    // Blocks are compared first, because that is many times as fast.
    let blocks = was.chunks(4096).zip(is.chunks(4096));
    let holds = |(was, is): (&[u8], &[u8])| {
        was == is || was.iter().zip(is).all(|(was, is)| was == is || *is == 0)
    };
    was.len() == is.len() && blocks.into_iter().all(holds)
}

fn bytes(file: &[u8], at: u64, len: u64) -> &[u8] {
    if len == 0 { &[] } else { &file[at as usize..(at + len) as usize] }
}

struct Headers<'a> {
    programs: &'a [ProgramHeader64<LittleEndian>],
    sections: &'a [SectionHeader64<LittleEndian>],
}

impl<'a> Headers<'a> {
    fn read(file: &'a [u8]) -> Self {
        let header = FileHeader64::<LittleEndian>::parse(file).expect("a file header");
        Self {
            programs: header.program_headers(LittleEndian, file).expect("program headers"),
            sections: header.section_headers(LittleEndian, file).expect("section headers"),
        }
    }
}
