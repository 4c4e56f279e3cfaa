//! If the helper dies at any instant of a launch with shared objects, the program still runs.

use std::path::Path;

use support::child::eventually;
use support::extent::{met, rounds, shared};
use support::objects::{Made, WithObject};
use support::smaps::{first_child, status_field};
use support::{Random, Run};

/// Launches with a fault. Returns true if the fault occurred.
fn struck(with: &WithObject, run: &Run, fault: &str, report: &Path) -> bool {
    let _none_yet = std::fs::remove_file(report);
    let option = format!("--report={}", report.display());
    let held = run.clone().options([option.as_str(), "--json"]).env("TIEXEC_FAULT", fault).hold();
    let complete = std::fs::read_to_string(report).is_ok_and(|r| r.contains("\"linked_stop_us\":"));
    // The companion may trace the program once more, to treat the text that the helper left.
    eventually(&format!("{fault}: it is let go"), || {
        status_field(held.pid(), "TracerPid").as_deref() == Some("0")
    });
    assert!(held.out_text().contains("wait No child process"), "{fault}: {}", held.out_text());
    if complete {
        let coverage = with.coverage(held.pid());
        assert!(coverage.is_full(), "{fault}: {coverage:?}");
    }
    let done = held.finish();
    done.assert_code(7);
    if complete {
        done.assert_silent();
    } else if !done.stderr.is_empty() {
        done.assert_failed_open(&["helper_died"]);
    }
    !complete
}

fn at_every_place(fault: &str, least: u32) {
    let dir = tempfile::tempdir().expect("a directory");
    let report = dir.path().join("report");
    let kinds = [(Made::Gnu, 1), (Made::Gnu, 6), (Made::Musl, 1)].into_iter();
    let kinds: Vec<_> = kinds.filter(|(made, _)| made.can_build()).collect();
    for (share, (made, main_mib)) in shared(kinds) {
        let with = WithObject::sized(made, main_mib, 6);
        let run = with.run(&["7"]);
        share.sweep(least, &format!("{made:?}, {main_mib} MiB: {fault}"), |n| {
            struck(&with, &run, &format!("{fault}:{n}"), &report)
        });
    }
}

#[test]
fn after_each_register_write() {
    at_every_place("die-after-setregs", 8);
}

#[test]
fn after_each_stop_it_sees() {
    at_every_place("die-after-stop", 8);
}

#[test]
fn after_each_write_to_its_memory() {
    at_every_place("die-after-write", 8);
}

#[test]
fn at_random_moments() {
    randomly(Made::Gnu);
}

#[test]
fn at_random_moments_of_a_long_relocation() {
    randomly(Made::Relocated);
}

fn randomly(made: Made) {
    let with = WithObject::new(made);
    let mut random = Random::new();
    let mut killed = 0;
    let usual = with.run(&["7"]).usual_start(7);
    let rounds = rounds(15);
    for round in 0..rounds {
        let mut held = with.run(&["7"]).start();
        let pid = held.pid();
        if let Some(helper) = first_child(pid, usual) {
            random.spin_within(usual / 2);
            // SAFETY: kill has no memory conditions. The number can be another process's only if 4 million were made meanwhile.
            killed += usize::from(unsafe { libc::kill(helper, libc::SIGKILL) } == 0);
        }
        held.wait_line("ready");
        eventually(&format!("round {round}: it is let go"), || {
            status_field(pid, "TracerPid").as_deref() == Some("0")
        });
        let done = held.finish();
        done.assert_code(7);
        if !done.stderr.is_empty() {
            done.assert_failed_open(&["helper_died"]);
        }
    }
    met(killed, rounds, "killed");
}
