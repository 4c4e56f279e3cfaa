//! A program can be moved with any content of its stack: arguments and environment of every length, no arguments, and
//! very many.

use std::collections::BTreeMap;

use support::child::said;
use support::extent::is_whole;
use support::fresh::{NO_HUGE_FOLIOS, assert_pagecache, huge_folios};
use support::{Fresh, Kind, Report, Run, program, require};

/// Asserts that the launch moves the program, and that the program finds its arguments and itself.
fn moved(report: &Report, run: &Run) {
    let plain = run.plain().output();
    plain.assert_code(7);
    let done = report.of(run).output();
    done.assert_code(7).assert_silent();
    assert_pagecache(&report.read(), true);
    let strings = |text: &str| said(text, "strings").expect("a line");
    assert_eq!(strings(&done.out()), strings(&plain.out()), "{done}");
}

#[test]
fn every_place_of_the_vector_in_its_page() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::DynamicPie));
    let report = Report::new();
    // Without randomness only the environment determines the address of the vector.
    let run = report.of(&Run::new(copy.path(), ["brief"]).fixed_addresses());
    let mut launches_by_calls = BTreeMap::new();
    // Returns where the auxiliary vector begins in its page. More padding puts it lower.
    let launch = |padding: usize| {
        let done = run.clone().env("PADDING", "x".repeat(padding)).output();
        done.assert_code(7).assert_silent();
        let at = said(&done.out(), "place").and_then(|at| at.parse().ok());
        at.unwrap_or_else(|| panic!("no place: {done}"))
    };
    let first: usize = launch(0);
    for place in (0..4096).step_by(16) {
        // At the end of the page each place is tried, because there the vector lies in two pages.
        if !is_whole() && (96..3584).contains(&place) && place % 256 != 0 {
            continue;
        }
        let padding = (first + 4096 - place) % 4096;
        assert_eq!(launch(padding) / 16 * 16, place);
        let report = report.read();
        assert_pagecache(&report, true);
        let calls = report["launch"]["remote_syscalls"].as_u64().expect("a number");
        *launches_by_calls.entry(calls).or_insert(0) += 1;
    }
    // If the two words lie in two pages, the program copies them itself, by one more call. The launches must have taken
    // both ways.
    let launches: Vec<(u64, u32)> = launches_by_calls.into_iter().collect();
    let [(calls, often), (more_calls, seldom)] = launches[..] else { panic!("{launches:?}") };
    assert!(more_calls == calls + 1 && seldom >= 1 && seldom < often, "{launches:?}");
}

#[test]
fn nothing_at_all_on_the_stack() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::DynamicPie));
    let report = Report::new();
    moved(&report, &Run::new(copy.path(), [""; 0]).behind(["env", "-i"]));
    moved(&report, &Run::new(copy.path(), ["brief", ""]).behind(["env", "-i", "A="]));
}

#[test]
fn very_much_on_the_stack() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::DynamicPie));
    let report = Report::new();
    let many = |n: usize| std::iter::once("brief".to_owned()).chain((0..n).map(|i| i.to_string()));
    moved(&report, &Run::new(copy.path(), ["brief".to_owned(), "y".repeat(120_000)]));
    moved(&report, &Run::new(copy.path(), many(1000)));
    moved(&report, &Run::new(copy.path(), many(10_000)));
    let mut run = Run::new(copy.path(), many(500));
    for i in 0..3000 {
        run = run.env(format!("NAME{i}"), "z".repeat(i % 97));
    }
    moved(&report, &run);
}

#[test]
fn too_much_for_any_room_below_it() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::copy(&program("rebased", Kind::DynamicPie));
    // The pointers alone exceed the 128 KiB that the kernel maps below the strings.
    let args = std::iter::once("brief".to_owned()).chain((0..100_000).map(|i| i.to_string()));
    let run = Run::new(copy.path(), args);
    let plain = run.plain().output();
    let done = run.output();
    done.assert_code(7).assert_failed_open(&["stack_room"]);
    assert_eq!(said(&done.out(), "strings"), said(&plain.out(), "strings"));
}
