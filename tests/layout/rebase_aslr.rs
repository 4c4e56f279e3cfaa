//! Moving a program leaves its address as random as the kernel made it, less the bits of the alignment.

use std::collections::BTreeSet;

use support::fresh::{NO_HUGE_FOLIOS, assert_pagecache, huge_folios};
use support::{Fresh, Kind, Report, Run, pmd_size, program, require};

/// The load bias that the program prints.
fn bias(run: &Run) -> u64 {
    let done = run.output();
    done.assert_code(7).assert_silent();
    let said = support::child::said(&done.out(), "bias").unwrap_or_else(|| panic!("{done}"));
    u64::from_str_radix(&said, 16).expect("a number")
}

/// As many as show a lost bit.
const LAUNCHES: usize = 64;

#[test]
fn the_kernels_entropy_is_kept() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let setting = std::fs::read_to_string("/proc/sys/kernel/randomize_va_space");
    require!(setting.is_ok_and(|s| s.trim() == "2"), "kernel.randomize_va_space is not 2");
    let copy = Fresh::copy(&program("rebased", Kind::DynamicPie));
    let report = Report::new();
    let run = report.of(&Run::new(copy.path(), ["brief"]));
    let mut seen = BTreeSet::new();
    for _ in 0..LAUNCHES {
        seen.insert(bias(&run));
        assert_pagecache(&report.read(), true);
    }
    // With gcc's layout, text is congruent if the image begins at a multiple of the huge page.
    assert!(seen.iter().all(|bias| bias % pmd_size() == 0), "{seen:x?}");
    // At least 28 bits of base pages (vm.mmap_rnd_bits) less 9 bits of alignment give 2^19 places. One run in 260 has
    // a pair of launches with the same place. Five pairs are practically impossible.
    assert!(seen.len() > LAUNCHES - 5, "only {} addresses: {seen:x?}", seen.len());
    let (first, last) = (seen.first().expect("many"), seen.last().expect("many"));
    let bits = std::fs::read_to_string("/proc/sys/vm/mmap_rnd_bits");
    let bits: u32 = bits.ok().and_then(|b| b.trim().parse().ok()).unwrap_or(28);
    // Among so many launches two lie further apart than half of the whole range.
    let range = 1_u64 << (bits + 12);
    assert!(last - first > range / 2, "{first:x} to {last:x} of {range:x}");
    // Every bit above the alignment occurs as 0 and as 1.
    for bit in pmd_size().trailing_zeros()..bits + 11 {
        let ones = seen.iter().filter(|&bias| bias >> bit & 1 == 1).count();
        // Six standard deviations to either side: each is half of the root of the launches.
        assert!(
            (LAUNCHES / 2 - 24..=LAUNCHES / 2 + 24).contains(&ones),
            "bit {bit} is 1 in {ones} of {}",
            seen.len()
        );
    }
}

#[test]
fn without_randomisation_the_address_is_always_the_same() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::LldPie));
    let report = Report::new();
    let run = Run::new(copy.path(), ["once"]).fixed_addresses();
    let plain = bias(&run.plain());
    let run = report.of(&run);
    let seen: BTreeSet<u64> = (0..5).map(|_| bias(&run)).collect();
    assert_eq!(seen.len(), 1, "{seen:x?}");
    assert_pagecache(&report.read(), true);
    // The program moves down by at least its own length, because both places are mapped at the same time, and no
    // further than necessary.
    let out = run.plain().output().out();
    let end = out.lines().rfind(|line| line.starts_with("piece ")).expect("its mappings");
    let end = end.split(['-', ' ']).nth(2).and_then(|end| u64::from_str_radix(end, 16).ok());
    let len = end.expect("a number");
    let moved = plain - seen.first().expect("one");
    assert!(moved > len && moved < len + (1 << 20) + pmd_size(), "{plain:x} to {seen:x?}, {len:x}");
}
