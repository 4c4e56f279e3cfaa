//! `--max-huge-pages` takes the hottest huge pages of a program, no more than its number, and reports them.

use serde_json::Value;

use support::attaching::{ctl, files_joined, joined, json, ok, revert, small, switched};
use support::smaps::vmas;
use support::{Held, Kind, Run, pmd_size};

/// Starts `hotset`, which executes in this many pages all over its text.
fn spinning(pages: &str) -> (support::Fresh, Held) {
    let copy = small("hotset", Kind::DynamicNoPie);
    let mut held = Run::new(copy.path(), [pages, "600"]).plain().start();
    held.wait_line("spinning");
    (copy, held)
}

fn attach(pid: i32, budget: &str) -> Value {
    let args = ["attach", "--json", "--settle=1s", "--max-huge-pages", budget, &pid.to_string()];
    let done = ctl(args);
    ok(&done);
    json(&done)
}

fn taken(report: &Value) -> Vec<(u64, u64)> {
    let pages = report["budget"]["pages"].as_array().unwrap_or_else(|| panic!("{report}"));
    let page = |page: &Value| {
        let start = page["start"].as_str().and_then(|hex| u64::from_str_radix(hex, 16).ok());
        start.zip(page["samples"].as_u64()).unwrap_or_else(|| panic!("{page}"))
    };
    pages.iter().map(page).collect()
}

#[test]
fn no_more_than_it_is_told_and_the_hottest() {
    // The first of the three hot pages may lie in the head of the text, which fills no huge page.
    let (_copy, held) = spinning("3");
    let pid = held.pid();
    let before = files_joined(pid);
    let report = attach(pid, "1");
    let pages = taken(&report);
    assert_eq!(switched(pid), pmd_size(), "{report}");
    assert_eq!(report["budget"]["budget"], "1");
    let ours = vmas(pid).into_iter().find(|vma| vma.is_switched()).expect("an image");
    assert_eq!((pages.len(), pages[0].0), (1, ours.start), "{report}");
    assert!(pages[0].1 > 0, "it was seen executing there: {report}");
    assert_eq!(ours.counter("ShmemPmdMapped"), pmd_size());
    let files = report["files"].as_array().expect("files");
    let rest = files.iter().flat_map(|file| file["rest"].as_array().expect("the rest"));
    assert!(rest.clone().any(|rest| rest["reason"] == "budget"), "{report}");
    // The budget includes the process's present huge pages.
    let again = attach(pid, "1");
    assert_eq!((taken(&again).len(), switched(pid)), (0, pmd_size()), "{again}");
    assert_eq!(again["budget"]["already"], 1, "{again}");
    // A larger budget takes more, and a revert undoes all of it. What the budget left alone stays a mapping of its own.
    ok(&revert(pid));
    assert_eq!(files_joined(pid), before);
    assert!(taken(&attach(pid, "100")).len() <= 2, "what nobody executes is not taken");
    ok(&revert(pid));
    attach(pid, "0");
    assert_eq!(switched(pid), 0);
    assert_eq!(files_joined(pid), before);
}

#[test]
fn auto_takes_all_of_what_is_used_all_over_and_nothing_of_what_fits() {
    let (_copy, wide) = spinning("1500");
    let report = attach(wide.pid(), "auto");
    let budget = &report["budget"];
    let misses = |when: &str| budget[when]["first"].as_f64().expect("misses");
    // The choice depends on the machine, but the report must match it.
    assert_eq!(switched(wide.pid()), taken(&report).len() as u64 * pmd_size(), "{report}");
    if taken(&report).is_empty() {
        assert_eq!(misses("misses_now"), misses("misses_then"), "{report}");
    } else {
        assert!(misses("misses_then") < misses("misses_now"), "{report}");
        assert!(budget["share"].as_f64().is_some_and(|share| share > 0.3), "{report}");
    }
    drop(wide);
    let (_copy, narrow) = spinning("5");
    let report = attach(narrow.pid(), "auto");
    assert_eq!((taken(&report).len(), switched(narrow.pid())), (0, 0), "{report}");
}

#[test]
fn an_idle_process_gives_its_first_or_nothing() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = support::attaching::held(&copy);
    let pid = held.pid();
    attach(pid, "auto");
    assert_eq!(switched(pid), 0);
    let report = attach(pid, "1");
    assert_eq!(switched(pid), pmd_size(), "{report}");
    held.finish().assert_code(7);
}

#[test]
fn a_dry_run_only_tells() {
    let (_copy, held) = spinning("1500");
    let pid = held.pid();
    let before = joined(pid);
    let done = ctl(["attach", "--dry-run", "--max-huge-pages=1", "--json", &pid.to_string()]);
    ok(&done);
    let plan = json(&done);
    assert_eq!(plan["huge_bytes"].as_u64(), Some(pmd_size()), "{plan}");
    assert_eq!(joined(pid), before);
}

#[test]
fn a_launch_takes_no_budget_and_names_the_attach() {
    let copy = small("hold", Kind::DynamicPie);
    let fix = "; fix: leave out --max-huge-pages, then tiexecctl attach --max-huge-pages=1 PID";
    for more in [&[][..], &["--strict"], &["--dry-run"], &["-q"], &["--settle=1s"]] {
        let options = [&["--max-huge-pages=1"], more].concat();
        let done = Run::new(copy.path(), [""; 0]).options(&options).output();
        done.assert_code(125);
        assert_eq!(done.out(), "", "the program must not run");
        assert!(done.err().starts_with("tiexec: cannot start "), "{done}");
        assert!(done.err().trim_end().ends_with(fix), "{done}");
    }
}

#[test]
fn a_budget_in_the_environment_keeps_no_program_from_starting() {
    let copy = small("hold", Kind::DynamicPie);
    for (environment, warned) in [("max-huge-pages=1", true), ("max-huge-pages=1,quiet", false)] {
        let run = Run::new(copy.path(), ["7"]).env("TIEXEC", environment);
        let held = run.hold();
        assert!(switched(held.pid()) > pmd_size(), "the launch takes all text");
        let done = held.finish();
        done.assert_code(7);
        let line = "tiexec: cannot take max-huge-pages=1 from TIEXEC";
        assert_eq!(done.err().contains(line), warned, "{done}");
    }
}

#[test]
fn with_a_pid_tiexec_takes_a_budget() {
    let (_copy, held) = spinning("3");
    let pid = held.pid();
    let args = ["--json", "--settle=1s", "--max-huge-pages=1", "-p", &pid.to_string()];
    let done = Run::new(support::tiexec(), args).plain().output();
    done.assert_code(0);
    let report: Value = serde_json::from_str(&done.out()).expect("a report");
    assert_eq!((taken(&report).len(), switched(pid)), (1, pmd_size()), "{report}");
}

#[test]
fn what_cannot_be_meant() {
    for args in [
        &["attach", "--max-huge-pages=some", "1"][..],
        &["attach", "--max-huge-pages=-1", "1"],
        &["attach", "--max-huge-pages=auto", "--follow", "1"],
    ] {
        ctl(args).assert_code(2);
    }
    Run::new("true", [""; 0]).options(["--max-huge-pages=1", "--strict"]).output().assert_code(125);
    // In the environment it is ignored like any other malformed setting.
    let done = Run::new("true", [""; 0]).env("TIEXEC", "max-huge-pages=many").output();
    done.assert_code(0);
    assert!(done.err().contains("max-huge-pages=many"), "{done}");
}
