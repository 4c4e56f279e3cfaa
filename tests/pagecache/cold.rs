//! The first launch of a program that is not cached reads its text as huge folios, and every later launch uses them.

use support::fresh::{NO_HUGE_FOLIOS, assert_launched_on_pagecache, assert_pagecache, huge_folios};
use support::{Fresh, Kind, Report, Run, installed, program, require};

#[test]
fn node() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let node = installed("node");
    require!(node.is_some(), "no node on PATH");
    let copy = Fresh::cold(&node.expect("just found").canonicalize().expect("a path"));
    let report = Report::new();
    let run = report.of(&Run::new(copy.path(), ["-p", "6*7"]).options(["--deadline=2m"]));
    for _ in 0..2 {
        let done = run.output();
        done.assert_code(0).assert_silent();
        assert_eq!(done.out(), "42\n");
        assert_pagecache(&report.read(), false);
    }
}

#[test]
fn a_program_whose_data_follows_its_text() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        assert_launched_on_pagecache(&Fresh::cold(&program("hold", kind)), kind);
    }
}
