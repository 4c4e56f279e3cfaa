//! The dynamic section of an ELF file: which libraries `ld.so` loads, and where it searches for them.

use std::ops::Range;

use object::elf::{self, Dyn64, ProgramHeader64};
use object::endian::LittleEndian;
use object::pod;

use crate::elf::{ElfFacts, ElfHeader};

/// The most libraries that one file may ask for here.
const MOST: usize = 256;

/// Returns the place of the dynamic section in the file; `None` if the file has none.
pub fn dynamic_part(header: &ElfHeader, table: &[u8]) -> Option<Range<u64>> {
    let table = table.get(..header.table_len)?;
    let count = header.table_len / size_of::<ProgramHeader64<LittleEndian>>();
    let (headers, _) = pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(table, count).ok()?;
    let dynamic =
        headers.iter().find(|header| header.p_type.get(LittleEndian) == elf::PT_DYNAMIC)?;
    let start = dynamic.p_offset.get(LittleEndian);
    Some(start..start.checked_add(dynamic.p_filesz.get(LittleEndian))?)
}

/// The entries that TiExec reads. Each string is the offset of its text in the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dynamic {
    /// `DT_NEEDED`: libraries, in order.
    pub needed: Vec<u64>,
    /// `DT_RUNPATH`: directories in which `ld.so` searches for this file's libraries.
    pub runpath: Option<u64>,
    /// `DT_RPATH`: directories also for the libraries of its libraries; `ld.so` ignores it beside a
    /// runpath.
    pub rpath: Option<u64>,
}

impl Dynamic {
    /// Parses a dynamic section; `None` if it names no string table within the file.
    pub fn parse(bytes: &[u8], facts: &ElfFacts) -> Option<Self> {
        let count = bytes.len() / size_of::<Dyn64<LittleEndian>>();
        let (entries, _) = pod::slice_from_bytes::<Dyn64<LittleEndian>>(bytes, count).ok()?;
        let entries = || {
            let each = entries
                .iter()
                .map(|entry| (entry.d_tag.get(LittleEndian), entry.d_val.get(LittleEndian)));
            each.take_while(|(tag, _)| *tag != elf::DT_NULL)
        };
        let (_, strings) = entries().find(|(tag, _)| *tag == elf::DT_STRTAB)?;
        let segment = facts.loads.iter().find(|load| {
            (load.vaddr..load.vaddr.saturating_add(load.file_size)).contains(&strings)
        })?;
        let strings = segment.file_offset.checked_add(strings - segment.vaddr)?;
        let mut dynamic = Self::default();
        for (tag, value) in entries() {
            let Some(at) = strings.checked_add(value) else { continue };
            match tag {
                elf::DT_NEEDED if dynamic.needed.len() < MOST => dynamic.needed.push(at),
                elf::DT_RUNPATH => dynamic.runpath = Some(at),
                elf::DT_RPATH => dynamic.rpath = Some(at),
                _ => {}
            }
        }
        Some(dynamic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::LoadSegment;

    fn facts() -> ElfFacts {
        let load = LoadSegment {
            file_offset: 0x1000,
            vaddr: 0x40_1000,
            file_size: 0x100,
            mem_size: 0x100,
            exec: false,
            write: false,
        };
        ElfFacts { position_independent: true, dynamic: true, loads: vec![load], relro: None }
    }

    fn section(entries: &[(i64, u64)]) -> Vec<u8> {
        let words = entries.iter().flat_map(|(tag, value)| [tag.cast_unsigned(), *value]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    const NEEDED: i64 = 1;
    const STRTAB: i64 = 5;
    const RPATH: i64 = 15;
    const RUNPATH: i64 = 29;

    #[test]
    fn strings_are_placed_in_the_file() {
        let entries = [
            (NEEDED, 1),
            (NEEDED, 9),
            (RUNPATH, 17),
            (STRTAB, 0x40_1010),
            (RPATH, 33),
            (0, 0),
            (NEEDED, 5),
        ];
        let dynamic = Dynamic::parse(&section(&entries), &facts()).unwrap();
        assert_eq!(dynamic.needed, [0x1011, 0x1019]);
        assert_eq!((dynamic.runpath, dynamic.rpath), (Some(0x1021), Some(0x1031)));
    }

    #[test]
    fn nonsense_gives_nothing() {
        assert_eq!(Dynamic::parse(&section(&[(NEEDED, 1)]), &facts()), None);
        assert_eq!(Dynamic::parse(&section(&[(STRTAB, 0x50_0000)]), &facts()), None);
        assert_eq!(Dynamic::parse(&[1; 15], &facts()), None);
        let far = section(&[(STRTAB, 0x40_1010), (NEEDED, u64::MAX)]);
        assert_eq!(Dynamic::parse(&far, &facts()).unwrap(), Dynamic::default());
    }
}
