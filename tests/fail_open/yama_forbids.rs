//! If Yama forbids all tracing (`ptrace_scope` 3), programs run plain, and TiExec leaves running programs alone and
//! names the knob. The setting is irreversible until the next boot, so the test makes it only on a machine that is
//! discarded afterwards.

use support::attaching::{Before, assert_untouched, attach, ctl, held, small};
use support::machine::{YAMA, is_throwaway, yama_scope};
use support::{Kind, Run, is_root};

/// Returns whether tracing is forbidden, and forbids it on a machine that is discarded.
fn forbidden() -> bool {
    if is_throwaway() && is_root() && yama_scope().is_some() {
        std::fs::write(YAMA, "3").expect("a higher scope may always be set");
    }
    match yama_scope() {
        None => support::skip_for_want_of_a_machine("no Yama in this kernel"),
        Some(3) => return true,
        Some(_) => support::skip_for_want_of_a_machine(
            "kernel.yama.ptrace_scope=3 cannot be taken back (TIEXEC_TEST_THROWAWAY=1 sets it)",
        ),
    }
    false
}

const NAMED: &str = "kernel.yama.ptrace_scope is 3";

#[test]
fn programs_are_launched_plainly() {
    if !forbidden() {
        return;
    }
    let copy = small("hold", Kind::DynamicPie);
    let run = Run::new(copy.path(), ["7"]).options(["--backing=image"]);
    let held = run.hold();
    assert_eq!(held.coverage().huge, 0);
    let done = held.finish();
    done.assert_code(7).assert_failed_open(&["ptrace_denied"]);
    assert!(done.err().contains(NAMED), "{done}");
    let done = run.options(["--strict"]).output();
    done.assert_code(125);
    assert!(done.err().contains(NAMED) && done.out().is_empty(), "{done}");
}

#[test]
fn running_programs_are_left_alone() {
    if !forbidden() {
        return;
    }
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = attach(pid);
    done.assert_code(5);
    for part in ["ptrace_denied", NAMED] {
        assert!(done.err().contains(part), "{part}: {done}");
    }
    assert_untouched(pid, &before);
    // `inspect` does not trace.
    ctl(["inspect", &pid.to_string()]).assert_code(0);
    held.finish().assert_code(7);
}

#[test]
fn the_doctor_says_so() {
    if !forbidden() {
        return;
    }
    let done = ctl(["doctor"]);
    done.assert_code(1);
    let line = done.out();
    let line = line.lines().find(|line| line.contains("ptrace")).expect("a line for it");
    assert!(line.starts_with("FAIL") && line.contains("ptrace_scope"), "{line}");
}
