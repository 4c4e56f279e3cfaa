//! On a kernel without huge pages, or without huge pages for text (5.10), programs run plain, TiExec leaves running
//! programs alone, and every command says why.

use std::path::Path;

use serde_json::Value;

use support::attaching::{Before, assert_untouched, attach, ctl, held, json, small};
use support::programs::COMMON;
use support::{Kind, Run, pmd_size, program, require_of_machine};

const HAS_THEM: &str = "this kernel has huge pages, or larger ones than the test's programs";
const WHY: &str = "the kernel has no transparent huge pages";

fn has_none() -> bool {
    !Path::new("/sys/kernel/mm/transparent_hugepage").exists()
}

/// Returns the doctor's finding on a thing.
fn finding(thing: &str) -> Value {
    let done = ctl(["doctor", "--json"]);
    let findings = json(&done)["findings"].as_array().expect("findings").clone();
    let found = findings.into_iter().find(|finding| finding["thing"] == thing);
    found.unwrap_or_else(|| panic!("{thing}: {done}"))
}

/// The text of the programs of these tests, in bytes.
const TEXT: u64 = 6 << 20;

/// The reason why text stays on base pages with every option; none if huge pages are possible, or larger than the text.
fn reason() -> Option<&'static str> {
    match finding("auto")["level"] == "no" {
        _ if has_none() => Some("thp_unsupported"),
        true => (pmd_size() <= TEXT).then_some("no_huge_page"),
        false => None,
    }
}

#[test]
fn programs_are_launched_plainly() {
    let Some(reason) = reason() else {
        return support::skip_for_want_of_a_machine(HAS_THEM);
    };
    let backings: &[&str] =
        if has_none() { &["auto", "image", "hugetlb", "pagecache"] } else { &["auto", "image"] };
    for backing in backings {
        for kind in COMMON {
            let run = Run::new(program("exits", kind), ["code", "7"]);
            let run = run.options(["--backing", backing]);
            let done = run.output();
            done.assert_code(7).assert_failed_open(&[reason]);
            assert_eq!(done.out(), "ran\n", "{done}");
            let done = run.options(["--strict"]).output();
            done.assert_code(125);
            assert!(done.err().contains(reason) && done.out().is_empty(), "{done}");
        }
    }
}

#[test]
fn running_programs_are_left_alone() {
    let Some(reason) = reason() else {
        return support::skip_for_want_of_a_machine(HAS_THEM);
    };
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let before = Before::of(held.pid());
    let done = attach(held.pid());
    done.assert_code(1);
    // Before 5.13 the kernel does not report a fact that an attach needs, and the attach finds that first.
    let untold = "no_thread: this kernel does not tell";
    assert!(done.err().contains(reason) || done.err().contains(untold), "{done}");
    assert_untouched(held.pid(), &before);
    held.finish().assert_code(7);
}

#[test]
fn what_looks_says_why() {
    require_of_machine!(has_none(), "this kernel has huge pages");
    let own = std::process::id().to_string();
    let file = std::env::current_exe().expect("this test").to_string_lossy().into_owned();
    for args in [&["inspect", &own][..], &["advise", "--duration", "1s", &own], &["warm", &file]] {
        let done = ctl(args);
        done.assert_code(1);
        assert!(done.err().contains(WHY), "{args:?}: {done}");
    }
    ctl(["doctor"]).assert_code(1);
    let pages = finding("pages");
    assert_eq!((&pages["level"], &pages["finding"]), (&"fail".into(), &WHY.into()));
    let auto = finding("auto")["finding"].to_string();
    assert!(auto.contains("comes to nothing"), "{auto}");
}
