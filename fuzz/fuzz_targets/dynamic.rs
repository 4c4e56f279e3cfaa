//! Any bytes as an ELF file with a dynamic section.
#![no_main]

use tiexec_core::dynamic::{Dynamic, dynamic_part};
use tiexec_core::elf::{ElfFacts, ElfHeader};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(header) = ElfHeader::parse(input) else { return };
    let start = usize::try_from(header.table_offset).unwrap_or(usize::MAX);
    let Some(table) = input.get(start..) else { return };
    let Ok(facts) = ElfFacts::parse(&header, table) else { return };
    let part = dynamic_part(&header, table);
    let bytes = part.and_then(|part| {
        input.get(usize::try_from(part.start).ok()?..usize::try_from(part.end).ok()?)
    });
    let _any = Dynamic::parse(bytes.unwrap_or(input), &facts);
});
