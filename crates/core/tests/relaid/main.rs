//! Images by property: files that a linker could have written, and files that an enemy has changed.

mod check;
mod files;

use check::{PAGES, built, check, has_own_offsets};
use files::{Sketch, any_sketch};
use proptest::prelude::*;
use tiexec_core::addr::{AddrRange, RemoteAddr};
use tiexec_core::elf::ElfError;
use tiexec_core::relaid::{Layout, LayoutError};

fn layout(file: &[u8]) -> Result<Layout, LayoutError> {
    Layout::read(file, PAGES)
}

fn range(start: u64, end: u64) -> AddrRange {
    AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap()
}

#[test]
fn a_non_pie_as_gnu_ld_links_it() {
    let file = Sketch::typical().bytes();
    let layout = layout(&file).unwrap();
    check(&layout, &file);
    // One huge page for the headers; the text begins as far into the image as into its huge page.
    assert_eq!(layout.offset_of(range(0x40_1000, 0x40_2000)), Some(0x20_1000));
    assert_eq!(layout.offset_of(range(0x3f_f000, 0x40_2000)), None, "beyond its huge pages");
    assert_eq!(layout.build_id.as_deref(), Some(&Sketch::BUILD_ID[..]));
}

#[test]
fn the_build_id_is_another_and_the_texts_bytes_are_not() {
    // The headers and the notes inside the text, as without -z separate-code.
    let file = Sketch { one_segment: true, ..Sketch::typical() }.bytes();
    let layout = layout(&file).unwrap();
    check(&layout, &file);
    let image = built(&layout, &file);
    let again = self::layout(&image).unwrap();
    let derived = again.build_id.expect("a build ID");
    assert_eq!(derived.len(), Sketch::BUILD_ID.len());
    assert_ne!(derived, Sketch::BUILD_ID);
    let find = |bytes: &[u8]| bytes.windows(20).filter(|part| *part == Sketch::BUILD_ID).count();
    assert_eq!((find(&file), find(&image)), (1, 1), "the text keeps its own");
}

#[test]
fn an_image_of_an_image_is_an_image() {
    let file = Sketch::typical().bytes();
    let image = built(&layout(&file).unwrap(), &file);
    let again = layout(&image).unwrap();
    check(&again, &image);
}

#[test]
fn huge_pages_with_text_and_nothing_writable_need_be_huge() {
    let file = Sketch { text_len: 5 << 20, ..Sketch::typical() }.bytes();
    let layout = layout(&file).unwrap();
    let huge = |page: u64| layout.is_text(page * PAGES.pmd.bytes());
    // Text 0x401000-0x901000: its first huge page holds read-only headers as well, its last one nothing.
    assert_eq!([0, 1, 2, 3, 4].map(huge), [false, true, true, true, false]);
    let data_beside = Sketch { text_len: 5 << 20, data_vaddr: 0x9f_f000, ..Sketch::typical() };
    let layout = self::layout(&data_beside.bytes()).unwrap();
    let huge = |page: u64| layout.is_text(page * PAGES.pmd.bytes());
    assert_eq!([0, 1, 2, 3, 4].map(huge), [true, true, false, false, false]);
    assert_eq!(layout.offset_of(range(0x60_0000, 0x80_0000)), Some(0x20_0000));
}

#[test]
fn text_that_fits_at_its_own_offsets_keeps_them() {
    // Data shares the text's last huge page, so the other layout would have no huge page more.
    let typical = Sketch { text_len: 5 << 20, data_vaddr: 0x9f_f000, ..Sketch::typical() };
    let file = typical.bytes();
    let layout = layout(&file).unwrap();
    check(&layout, &file);
    assert!(has_own_offsets(&layout));
    let image = built(&layout, &file);
    assert_eq!(image[..0x1000], file[..0x1000], "headers");
    assert_eq!(self::layout(&image).unwrap().build_id.as_deref(), Some(&Sketch::BUILD_ID[..]));
    assert_eq!(layout.offset_of(range(0x40_1000, 0x90_1000)), Some(0x1000));
    // Data with a huge page of its own: the text's last huge page is huge only in the other layout.
    let apart = Sketch { text_len: 5 << 20, ..Sketch::typical() };
    assert!(!has_own_offsets(&self::layout(&apart.bytes()).unwrap()));
}

#[test]
fn a_file_without_sections_or_notes_has_an_image() {
    let file = Sketch { sections: false, note: false, ..Sketch::typical() }.bytes();
    let layout = layout(&file).unwrap();
    check(&layout, &file);
    assert_eq!(layout.build_id, None);
}

#[test]
fn what_is_no_elf_file_has_no_image() {
    assert_eq!(layout(b""), Err(LayoutError::Elf(ElfError::NotElf)));
    assert_eq!(layout(b"#!/bin/sh\n"), Err(LayoutError::Elf(ElfError::NotElf)));
    assert_eq!(layout(b"\x7fELF"), Err(LayoutError::Elf(ElfError::Malformed)));
}

#[test]
fn segments_that_contradict_each_other_have_no_image() {
    let typical = Sketch::typical();
    let odd = |sketch: &Sketch| layout(&sketch.bytes()).unwrap_err();
    let overlapping = Sketch { data_vaddr: 0x40_1000, ..typical.clone() };
    assert_eq!(odd(&overlapping), LayoutError::Odd("segments that overlap"));
    let far = Sketch { data_vaddr: 0x7000_0000_0000, ..typical.clone() };
    assert_eq!(odd(&far), LayoutError::Odd("segments too far apart"));
    let wraps = Sketch { data_vaddr: u64::MAX - 0xfff, ..typical };
    assert!(matches!(odd(&wraps), LayoutError::Malformed(_)));
}

#[test]
fn a_file_cut_off_anywhere_has_no_image_or_a_sound_one() {
    let whole = Sketch::typical().bytes();
    for len in (0..whole.len()).step_by(61) {
        if let Ok(layout) = layout(&whole[..len]) {
            check(&layout, &whole[..len]);
        }
    }
}

/// Found by chance: the data begin behind the last page of the text, and nothing follows them.
#[test]
fn data_behind_the_text_may_be_missing() {
    let sketch = Sketch {
        vaddr: 2 << 20,
        one_segment: true,
        text_len: 2_096_861,
        skew: 0,
        data_vaddr: 4_198_400,
        data_len: 1,
        note: false,
        sections: false,
    };
    let file = sketch.bytes();
    check(&layout(&file).unwrap(), &file);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_file_a_linker_could_write_has_a_sound_image(sketch in any_sketch()) {
        let file = sketch.bytes();
        let layout = layout(&file).unwrap();
        check(&layout, &file);
    }

    #[test]
    fn nothing_written_over_the_headers_makes_it_panic_or_lie(
        sketch in any_sketch(),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0u32..9), 1..8),
    ) {
        let mut file = sketch.bytes();
        let spots = sketch.header_fields(&file);
        for (spot, value, shift) in hits {
            let at = spots[spot.index(spots.len())];
            // Small numbers as often as large ones.
            let value = value.checked_shr(shift * 8).unwrap_or(0).to_le_bytes();
            let len = value.len().min(file.len() - at);
            file[at..at + len].copy_from_slice(&value[..len]);
        }
        if let Ok(layout) = layout(&file) {
            check(&layout, &file);
        }
    }

    #[test]
    fn noise_has_no_image(noise in proptest::collection::vec(any::<u8>(), 0..4096)) {
        prop_assert!(layout(&noise).is_err());
    }
}
