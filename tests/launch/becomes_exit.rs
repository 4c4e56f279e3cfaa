//! A launched program ends as without TiExec: its exit status and its death signal are its own, and no process of
//! TiExec stays.

use support::child::{eventually, state};
use support::extent::{met, rounds};
use support::programs::COMMON;
use support::smaps::{children, status_field};
use support::{Kind, Random, Run, program};

#[test]
fn exit_codes_are_the_programs_own() {
    for kind in COMMON {
        for code in [0, 1, 7, 255] {
            let done = Run::new(program("exits", kind), ["code", &code.to_string()]).output();
            done.assert_code(code).assert_silent();
            assert_eq!(done.out(), "ran\n", "{done}");
        }
    }
}

#[test]
fn death_signals_are_the_programs_own() {
    for signal in [
        libc::SIGSEGV,
        libc::SIGTERM,
        libc::SIGKILL,
        libc::SIGABRT,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGHUP,
    ] {
        let done =
            Run::new(program("exits", Kind::DynamicPie), ["signal", &signal.to_string()]).output();
        done.assert_signal(signal).assert_silent();
        assert_eq!(done.out(), "ran\n", "{done}");
    }
}

#[test]
fn every_whole_huge_page_is_mapped_when_main_runs() {
    for kind in COMMON {
        let held = Run::new(program("hold", kind), ["7"]).hold();
        let coverage = held.coverage();
        assert!(coverage.is_full(), "{kind:?}: {coverage:?}");
        assert_eq!(
            held.said("huge"),
            Some(coverage.huge.to_string()),
            "what the program sees is what we see"
        );
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn no_tracer_no_child_and_no_thread_stays() {
    let held = Run::new(program("hold", Kind::DynamicPie), ["0"]).hold();
    assert_eq!(held.said_pid(), held.pid(), "the program has the PID of the launch");
    assert_eq!(held.said("ppid"), Some(std::process::id().to_string()));
    assert_eq!(children(held.pid()), Vec::<i32>::new());
    assert_eq!(status_field(held.pid(), "TracerPid").as_deref(), Some("0"));
    assert_eq!(status_field(held.pid(), "Threads").as_deref(), Some("1"));
    assert_eq!(
        std::fs::read_to_string(format!("/proc/{}/comm", held.pid())).expect("comm"),
        "hold-dynamicpie\n"
    );
    held.finish().assert_code(0).assert_silent();
}

#[test]
fn a_program_with_nothing_to_gain_runs_the_same() {
    let done = Run::new(program("small", Kind::DynamicPie), ["5"]).output();
    done.assert_code(5).assert_silent();
    assert_eq!(done.out(), "small ran\n");
    Run::new("/bin/true", [""; 0]).output().assert_code(0).assert_silent();
    Run::new("/bin/false", [""; 0]).output().assert_code(1).assert_silent();
}

#[test]
fn everything_after_the_program_is_the_programs() {
    let text = "Hi, I am loaded by tiexec ❤️\\n";
    let done = Run::new("echo", ["-e", text]).output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "Hi, I am loaded by tiexec ❤️\n\n");
    let done = Run::new("echo", ["--report", "--", "-v", "--strict"]).output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "--report -- -v --strict\n");
    let done = Run::new("echo", ["--dry-run"]).options(["--"]).output();
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), "--dry-run\n");
}

#[test]
fn forks_vforks_and_threads_run_the_switched_text() {
    for kind in COMMON {
        let run = Run::new(program("family", kind), [""; 0]);
        let done = run.output();
        done.assert_code(0).assert_silent();
        let huge: u64 = support::child::said(&done.out(), "huge")
            .expect("a huge line")
            .parse()
            .expect("a number");
        assert!(huge >= 4 << 20, "{done}");
    }
}

#[test]
fn many_launches_at_once_do_not_disturb_each_other() {
    let programs = [Kind::DynamicPie, Kind::StaticNoPie].map(|kind| program("hold", kind));
    std::thread::scope(|scope| {
        for lane in 0..8 {
            let programs = &programs;
            scope.spawn(move || {
                for round in 0..6 {
                    let code = (lane * 6 + round).to_string();
                    // Other tests take a share of the two processors, so the deadline is long.
                    let run = Run::new(&programs[round % 2], [&code]).options(["--deadline", "2m"]);
                    let mut held = run.hold();
                    held.assert_full();
                    held.finish().assert_code((lane * 6 + round) as i32).assert_silent();
                }
            });
        }
    });
}

#[test]
fn a_program_may_patch_its_own_text() {
    let program = program("self_patch", Kind::DynamicPie);
    // Two processes run the program, and one is patched. The other must not see the change.
    let patched = Run::new(&program, [""; 0]).hold();
    let other = Run::new(self::program("hold", Kind::DynamicPie), [""; 0]).hold();
    let again = Run::new(&program, [""; 0]).hold();
    assert!(patched.said("huge").is_some_and(|h| h != "0"));
    again.finish().assert_code(0).assert_silent();
    other.finish().assert_code(0).assert_silent();
    patched.finish().assert_code(0).assert_silent();
}

/// A deadly signal at any moment of a launch kills the program, and the helper ends with it.
fn killed_at_random(signal: i32) {
    let mut random = Random::new();
    let program = program("hold", Kind::DynamicPie);
    let mut helpers_seen = 0;
    let usual = Run::new(&program, [""; 0]).usual_start(0);
    let rounds = rounds(30);
    for _ in 0..rounds {
        let held = Run::new(&program, [""; 0]).start();
        random.spin_within(usual);
        let helpers = children(held.pid());
        held.signal(signal);
        let done = held.finish();
        done.assert_signal(signal).assert_silent();
        helpers_seen += helpers.len();
        for helper in helpers {
            // The process that adopts orphans may reap the helper late.
            eventually("the helper is gone", || state(helper).is_none_or(|s| s == 'Z'));
        }
    }
    met(helpers_seen, rounds, "killed while it had a helper");
}

#[test]
fn sigkill_at_any_moment_leaves_no_helper() {
    killed_at_random(libc::SIGKILL);
}

#[test]
fn sigterm_at_any_moment_kills_the_launch() {
    killed_at_random(libc::SIGTERM);
}
