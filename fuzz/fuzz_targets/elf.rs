//! Any bytes as the beginning of an ELF file.
#![no_main]

use tiexec_core::addr::PageSize;
use tiexec_core::elf::{ElfFacts, ElfHeader};

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let Ok(header) = ElfHeader::parse(file) else { return };
    assert!(header.table_len > 0 && header.table_len <= 1 << 16);
    let at = usize::try_from(header.table_offset).unwrap_or(usize::MAX);
    let Ok(facts) = ElfFacts::parse(&header, file.get(at..).unwrap_or_default()) else { return };
    for load in &facts.loads {
        assert!(load.file_size <= load.mem_size);
        assert!(load.vaddr.checked_add(load.mem_size).is_some());
        assert!(load.file_offset.checked_add(load.file_size).is_some());
    }
    let size = |bytes| PageSize::new(bytes).expect("a power of two");
    let small = facts.may_fill(size(2 << 20), size(4 << 10));
    let large = facts.may_fill(size(512 << 20), size(4 << 10));
    assert!(small || !large, "a larger page is harder to fill");
    assert!(!small || facts.text_bytes() > 0);
});
