//! Where the kernel has neither transparent huge pages nor hugetlb pages, programs run plain, running ones are left alone, and every
//! command says why.

mod support;

use std::path::Path;

use support::attaching::{Before, assert_untouched, attach, ctl, held, json, small};
use support::programs::COMMON;
use support::{Kind, Run, program, require_of_machine};

const WHY: &str = "the kernel has no transparent huge pages";

fn has_none() -> bool {
    !Path::new("/sys/kernel/mm/transparent_hugepage").exists()
}

#[test]
fn programs_are_launched_plainly() {
    require_of_machine!(has_none(), "this kernel has huge pages");
    for backing in ["auto", "image", "hugetlb", "pagecache"] {
        for kind in COMMON {
            let run = Run::new(program("exits", kind), ["code", "7"]);
            let run = run.options(["--backing", backing]);
            let done = run.output();
            done.assert_code(7).assert_failed_open(&["thp_unsupported"]);
            assert!(done.err().contains(WHY) && done.out() == "ran\n", "{done}");
            let done = run.options(["--strict"]).output();
            done.assert_code(125);
            assert!(done.err().contains(WHY) && done.out().is_empty(), "{done}");
        }
    }
}

#[test]
fn running_programs_are_left_alone() {
    require_of_machine!(has_none(), "this kernel has huge pages");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let before = Before::of(held.pid());
    let done = attach(held.pid());
    done.assert_code(1);
    assert!(done.err().contains("thp_unsupported"), "{done}");
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
    let done = ctl(["doctor", "--json"]);
    done.assert_code(1);
    let findings = json(&done)["findings"].as_array().expect("findings").clone();
    let of = |thing: &str| {
        let found = findings.iter().find(|finding| finding["thing"] == thing);
        found.unwrap_or_else(|| panic!("{thing}: {done}")).clone()
    };
    assert_eq!((&of("pages")["level"], &of("pages")["finding"]), (&"fail".into(), &WHY.into()));
    let auto = of("auto")["finding"].to_string();
    assert!(auto.contains("comes to nothing"), "{auto}");
}
