//! If the helper dies at any instruction, the program still runs: the tests kill the helper at each register write, at
//! each stop that it sees, and at random.

use std::path::Path;

use support::child::eventually;
use support::extent::{met, rounds, shared};
use support::programs::COMMON;
use support::smaps::{children, first_child, status_field};
use support::{Kind, Random, Run, program, require};

/// Launches with a fault. Returns true if the fault occurred, which is so if no report was written.
fn struck(kind: Kind, fault: &str, report: &Path) -> bool {
    let _none_yet = std::fs::remove_file(report);
    let option = format!("--report={}", report.display());
    // Without --settle=0 the companion may trace the program by then, to treat the text that the helper left.
    let run = Run::new(program("identity", kind), [""; 0])
        .options([option.as_str(), "--json", "--backing", "image", "--settle=0"])
        .env("TIEXEC_FAULT", fault);
    let held = run.hold();
    let complete = std::fs::read_to_string(report).is_ok_and(|r| r.contains("\"launch\":{"));
    assert_eq!(status_field(held.pid(), "TracerPid").as_deref(), Some("0"), "{fault}");
    assert_eq!(
        held.said("wait_plain").as_deref(),
        Some("No child processes"),
        "{fault}: an ordinary wait finds nobody"
    );
    if complete {
        assert!(held.coverage().is_full(), "{fault}: {:?}", held.coverage());
    }
    let done = held.finish();
    done.assert_code(0);
    if complete {
        done.assert_silent();
    } else if !done.stderr.is_empty() {
        done.assert_failed_open(&["helper_died"]);
    }
    !complete
}

/// Tries every place of the fault, until the fault no longer occurs.
fn at_every_place(fault: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let report = dir.path().join("report");
    for (share, kind) in shared(COMMON) {
        share.sweep(4, &format!("{kind:?}: {fault}"), |n| {
            struck(kind, &format!("{fault}:{n}"), &report)
        });
    }
}

#[test]
fn after_each_register_write() {
    at_every_place("die-after-setregs");
}

#[test]
fn after_each_stop_it_sees() {
    at_every_place("die-after-stop");
}

#[test]
fn the_registers_at_the_first_instruction_survive_each_death() {
    require!(cfg!(target_arch = "x86_64"), "the program is machine code of x86-64");
    let run = Run::new(program("entry_state", Kind::Bare), [""; 0]);
    let plain = run.plain().output();
    plain.assert_code(0);
    for n in 1..12 {
        let done = run.clone().env("TIEXEC_FAULT", format!("die-after-setregs:{n}")).output();
        done.assert_code(0);
        assert_eq!(done.out(), plain.out(), "after register write {n}");
    }
}

#[test]
fn no_stray_process_comes_up_when_it_dies() {
    let subreaper = program("subreaper", Kind::DynamicPie);
    for n in 1..12 {
        let run = Run::new(program("exits", Kind::DynamicPie), ["code", "7"]).behind([&subreaper]);
        let done = run.env("TIEXEC_FAULT", format!("die-after-setregs:{n}")).output();
        done.assert_code(0);
        assert!(done.out().starts_with("ran\nexited 7\n"), "{n}: {done}");
        // The subreaper may get a zombie that the program did not reap, but must not get a living process.
    }
}

#[test]
fn at_random_moments() {
    let mut random = Random::new();
    let programs = [Kind::DynamicPie, Kind::StaticNoPie].map(|kind| program("hold", kind));
    let (mut killed, mut too_late, mut never_seen) = (0, 0, 0);
    let usual = Run::new(&programs[0], ["7"]).usual_start(7);
    let rounds = rounds(20);
    for round in 0..rounds {
        let mut held = Run::new(&programs[round % 2], ["7"]).start();
        let pid = held.pid();
        match first_child(pid, usual) {
            None => never_seen += 1,
            Some(helper) => {
                random.spin_within(usual / 4);
                // SAFETY: kill has no memory conditions. The number can be another process's only if 4 million were made meanwhile.
                if unsafe { libc::kill(helper, libc::SIGKILL) } == 0 {
                    killed += 1;
                } else {
                    too_late += 1;
                }
            }
        }
        held.wait_line("ready");
        // The companion may trace the program once more, to treat the text that the helper left.
        eventually(&format!("round {round}: it is let go"), || {
            status_field(pid, "TracerPid").as_deref() == Some("0")
        });
        for child in children(pid) {
            eventually("nobody lives on beside the program", || {
                status_field(child, "State").is_none_or(|s| s.starts_with('Z'))
            });
        }
        let done = held.finish();
        done.assert_code(7);
        if !done.stderr.is_empty() {
            done.assert_failed_open(&["helper_died"]);
        }
    }
    println!("too late {too_late}, never seen {never_seen}");
    met(killed, rounds, "killed");
}
