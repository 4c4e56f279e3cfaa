//! `--strict` refuses to start a program without huge text: the exit status is 125, and the program has not run.

use std::os::unix::process::ExitStatusExt;

use support::{Kind, Prep, Public, Run, is_root, program, require};

/// Asserts that the program did not run: there is no output, and the exit status is that of tiexec.
fn assert_refused(run: &Run, reasons: &[&str]) {
    let done = run.output();
    done.assert_code(125);
    assert_eq!(done.out(), "", "the program must not have run: {done}");
    let err = done.err();
    assert_eq!(err.lines().count(), 1, "{done}");
    assert!(err.starts_with("tiexec: ") && err.contains("refused"), "{done}");
    assert!(reasons.iter().any(|r| err.contains(&format!("{r}: "))), "none of {reasons:?}: {done}");
}

fn exits() -> Run {
    Run::new(program("exits", Kind::StaticNoPie), ["code", "7"]).options(["--strict"])
}

#[test]
fn refuses_before_the_program_has_run() {
    assert_refused(&exits().prep(Prep::Prctl(41, 1, 0)), &["thp_disabled"]);
    assert_refused(&exits().options(["--deadline", "0ms"]), &["deadline"]);

    let filter = program("seccomp_exec", Kind::DynamicPie);
    for (action, call) in [
        ("errno=1", "ptrace"),
        ("errno=1", "memfd_create"),
        ("kill", "mremap"),
        ("trap", "madvise"),
        ("errno=38", "clone,clone3,fork,vfork"),
    ] {
        let run = exits().behind([filter.as_os_str(), action.as_ref(), call.as_ref()]);
        assert_refused(
            &run,
            &[
                "seccomp",
                "ptrace_denied",
                "no_memfd",
                "no_huge_page",
                "fork_failed",
                "switch_failed",
            ],
        );
    }
}

/// Without a gadget the helper can lay no frame, and the status is 125 nevertheless.
#[test]
fn refuses_where_no_call_can_be_made() {
    let run = Run::new(program("no_gadget", Kind::Bare), [""; 0]);
    let options = ["--strict", "--backing=image"];
    assert_refused(&run.clone().options(options), &["no_gadget"]);
    let done = run.options(options).options(["--dry-run"]).output();
    done.assert_code(0);
    assert!(done.out().contains("no_gadget") && !done.out().contains("ran"), "the plan: {done}");
    assert!(done.err().contains("no_gadget: "), "{done}");
}

/// The program never runs without its helper, at whatever moment the helper dies.
#[test]
fn the_program_ends_with_a_helper_that_dies() {
    for option in ["--strict", "--dry-run"] {
        let mut struck = 0;
        for fault in ["die-after-stop", "die-after-setregs", "die-after-write"] {
            for n in 1.. {
                let run = Run::new(program("exits", Kind::StaticNoPie), ["code", "7"]).options([
                    option,
                    "--backing=image",
                    "--settle=0",
                ]);
                let done = run.env("TIEXEC_FAULT", format!("{fault}:{n}")).output();
                if done.status.signal() != Some(9) {
                    done.assert_code(if option == "--strict" { 7 } else { 0 });
                    break;
                }
                struck += 1;
                assert!(!done.out().contains("ran"), "{option} {fault}:{n}: {done}");
            }
        }
        assert!(struck > 2, "{option}: {struck}");
    }
}

#[test]
fn refuses_by_the_environment_too() {
    let run = Run::new(program("exits", Kind::StaticNoPie), ["code", "7"])
        .env("TIEXEC", "strict=1")
        .prep(Prep::Prctl(41, 1, 0));
    assert_refused(&run, &["thp_disabled"]);
}

#[test]
fn refuses_where_the_hugetlb_pool_is_empty() {
    let _quiet = support::machine::quiet();
    let knob = format!(
        "/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages",
        support::pmd_size() / 1024
    );
    require!(
        std::fs::read_to_string(knob).is_ok_and(|f| f.trim() == "0"),
        "somebody has filled the hugetlb pool"
    );
    assert_refused(&exits().options(["--backing", "hugetlb"]), &["hugetlb_pool"]);
}

#[test]
fn leaves_nobody_behind_when_it_refuses() {
    let subreaper = program("subreaper", Kind::DynamicPie);
    let done =
        exits().options(["--settle=0"]).behind([&subreaper]).prep(Prep::Prctl(41, 1, 0)).output();
    done.assert_code(0);
    assert_eq!(done.out(), "exited 125\nstrays 0\n", "{done}");
}

#[test]
fn a_treated_program_runs() {
    let held = Run::new(program("hold", Kind::DynamicPie), ["7"]).options(["--strict"]).hold();
    assert!(held.coverage().is_full(), "{:?}", held.coverage());
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_program_with_nothing_to_gain_runs() {
    let done = Run::new(program("small", Kind::DynamicPie), ["5"]).options(["--strict"]).output();
    done.assert_code(5);
    assert!(done.err().contains("--strict cannot judge what it executes or loads later"), "{done}");
    let quiet = Run::new(program("small", Kind::DynamicPie), ["5"]).options(["--strict", "-q"]);
    quiet.output().assert_code(5).assert_silent();
    assert_eq!(done.out(), "small ran\n");
}

#[test]
fn a_program_that_must_be_left_alone_runs() {
    require!(is_root(), "making a set-user-ID file needs root");
    let public = Public::new();
    let suid = public.add(&program("exits", Kind::StaticNoPie), "suid", 0o4755);
    let run = Run::new(suid, ["code", "7"])
        .binary(public.tiexec())
        .options(["--strict"])
        .behind(["runuser", "-u", "nobody", "--"]);
    assert_runs_with_a_line(&run, "privileged_image");
}

/// The program runs, and one line says that it does so on base pages.
fn assert_runs_with_a_line(run: &Run, reason: &str) {
    let done = run.output();
    done.assert_code(7);
    let err = done.err();
    let line = format!("text stays on base pages, which --strict does not refuse: {reason}");
    assert!(err.contains(&line) && err.lines().count() == 1, "{done}");
    run.clone().options(["-q"]).output().assert_code(7).assert_silent();
}

#[test]
fn a_program_that_cannot_be_read_runs_with_a_line() {
    require!(is_root(), "root can let another user run the program");
    let public = Public::new();
    let unreadable = public.add(&program("exits", Kind::StaticNoPie), "unreadable", 0o711);
    let run = Run::new(unreadable, ["code", "7"]).binary(public.tiexec());
    let run = run.options(["--strict"]).behind(["runuser", "-u", "nobody", "--"]);
    assert_runs_with_a_line(&run, "unreadable_image");
}

#[test]
fn switched_off_it_refuses_nothing() {
    let thp_disabled = Prep::Prctl(41, 1, 0);
    let by_the_environment = exits().env("TIEXEC", "off").prep(thp_disabled);
    by_the_environment.output().assert_code(7).assert_silent();
    let by_an_option = exits().options(["--backing", "off"]).prep(thp_disabled);
    assert_runs_with_a_line(&by_an_option, "disabled");
}
