//! Text that fills huge pages becomes huge on machines with huge pages of 2 MiB, and of 32 MiB with base pages of 16
//! KiB.

use support::attaching::{
    Before, assert_switched, assert_there_and_back, assert_untouched, attach,
};
use support::programs::program_big;
use support::smaps::NO_TEXT_FOR_LARGE;
use support::{Fresh, Kind, Run, pmd_size, require};

/// The program with text for two whole huge pages at any address.
fn large(kind: Kind) -> std::path::PathBuf {
    program_big("hold", kind, u32::try_from((3 * pmd_size()) >> 20).expect("megabytes"))
}

#[test]
fn at_launch() {
    require!(pmd_size() <= 32 << 20, "{NO_TEXT_FOR_LARGE}");
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let held = Run::new(large(kind), ["7"]).options(["--backing=image"]).hold();
        assert_switched(held.pid());
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn when_it_runs() {
    require!(pmd_size() <= 32 << 20, "{NO_TEXT_FOR_LARGE}");
    // Some kernels map text huge by themselves if it is cached in huge folios.
    let copy = Fresh::small(&large(Kind::DynamicPie));
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    assert_there_and_back(held.pid());
    held.finish().assert_code(7);
}

/// Text smaller than a huge page is not switched, and TiExec reports it.
#[test]
fn text_that_fills_none() {
    let mib = if pmd_size() > 8 << 20 { 6 } else { 1 };
    let run = Run::new(program_big("hold", Kind::DynamicPie, mib), ["7"]);
    let held = run.clone().options(["--backing=image", "-v"]).hold();
    assert_eq!(held.coverage().huge, 0);
    let done = held.finish();
    done.assert_code(7);
    assert!(done.err().contains("too_small"), "{done}");
    let held = run.plain().hold();
    let before = Before::of(held.pid());
    let done = attach(held.pid());
    assert!(done.out().contains("too_small"), "{done}");
    assert_untouched(held.pid(), &before);
    held.finish().assert_code(7);
}
