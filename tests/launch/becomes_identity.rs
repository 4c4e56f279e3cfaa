//! A launched program sees itself exactly as without TiExec: its output about itself is the same plain and through
//! `tiexec`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use support::programs::COMMON;
use support::{Kind, Prep, Run, is_root, program, require, write_program};

/// Returns the program's own view, without the lines that are different in any two launches.
fn seen(run: &Run, treated: bool) -> Vec<String> {
    let held = run.hold();
    let text = held.out_text();
    let huge: u64 = held.said("huge").expect("a huge line").parse().expect("a number");
    assert!(huge >= 4 << 20 || !treated, "{run:?}: {huge} bytes are huge");
    held.finish().assert_code(0).assert_silent();
    text.lines()
        .filter(|l| !l.starts_with("pid ") && !l.starts_with("huge "))
        .map(str::to_owned)
        .collect()
}

fn assert_same(run: &Run) {
    let plain = seen(&run.plain(), false);
    assert!(plain.len() > 60, "{plain:?}");
    let launched = seen(run, true);
    for (l, p) in launched.iter().zip(&plain) {
        assert_eq!(l, p, "{run:?}");
    }
    assert_eq!(launched.len(), plain.len());
}

fn identity(kind: Kind) -> Run {
    Run::new(program("identity", kind), [""; 0])
}

#[test]
fn every_kind_of_program_sees_the_same() {
    for kind in COMMON {
        assert_same(&identity(kind));
    }
}

#[test]
fn limits_and_attributes_are_inherited() {
    // For a subreaper the companion that watches the start is a child, so there is no watch.
    let run = identity(Kind::DynamicPie)
        .options(["--settle=0"])
        .prep(Prep::Rlimit(libc::RLIMIT_NOFILE, 77))
        .prep(Prep::Rlimit(libc::RLIMIT_CORE, 0))
        .prep(Prep::Rlimit(libc::RLIMIT_STACK, 1 << 20))
        .prep(Prep::Rlimit(libc::RLIMIT_MEMLOCK, 0))
        .prep(Prep::Umask(0o137))
        .prep(Prep::Alarm(1000))
        .prep(Prep::Nice(3))
        .prep(Prep::Prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR2 as u64, 0))
        .prep(Prep::Prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0))
        .prep(Prep::Prctl(libc::PR_SET_TIMERSLACK, 123_456, 0))
        .prep(Prep::Prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0))
        .env("LD_LIBRARY_PATH", "/nonexistent")
        .env("", "no name")
        .cwd(std::path::Path::new("/usr/share"));
    assert_same(&run);
}

#[test]
fn personality_is_inherited() {
    for bits in [
        libc::ADDR_NO_RANDOMIZE,
        libc::ADDR_COMPAT_LAYOUT,
        libc::ADDR_LIMIT_3GB,
        libc::READ_IMPLIES_EXEC,
    ] {
        let run = identity(Kind::DynamicPie).prep(Prep::Personality(bits as u64));
        let held = run.plain().start();
        drop(held);
        if bits == libc::READ_IMPLIES_EXEC {
            // With this personality readable mappings are executable, so the test checks only the end and does not
            // compare the output.
            run.output().assert_code(0).assert_silent();
        } else {
            assert_same(&run);
        }
    }
}

#[test]
fn scheduling_and_oom_score_are_inherited() {
    require!(is_root(), "raising oom_score_adj back and ioprio need root");
    assert_same(&identity(Kind::DynamicPie).behind_sh("echo 321 >/proc/self/oom_score_adj; exec nice -n 4 ionice -c 3 chrt --batch 0 taskset 1 \"$@\""));
    assert_same(&identity(Kind::DynamicPie).behind_sh(
        "echo 500 >/proc/self/oom_score_adj; echo 7 >/proc/self/coredump_filter; exec \"$@\"",
    ));
}

#[test]
fn session_and_process_group_are_inherited() {
    assert_same(&identity(Kind::DynamicPie).prep(Prep::Setsid));
    assert_same(&identity(Kind::DynamicPie).same_group());
}

#[test]
fn children_from_before_stay_the_programs() {
    let with_child = program("with_child", Kind::DynamicPie);
    let run = identity(Kind::DynamicPie).behind([&with_child]);
    assert_same(&run);
    let held = run.hold();
    assert_eq!(
        held.said("wait_plain").as_deref(),
        Some("a zombie"),
        "the child from before is there to be reaped"
    );
    assert_eq!(held.said("wait_all").as_deref(), Some("No child processes"), "and no other");
    held.finish().assert_code(0).assert_silent();
}

#[test]
fn scripts_see_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = program("identity", Kind::DynamicPie);
    // The interpreter gets the script as its first argument, and prints it, so the output contains the file name.
    let hold = support::without_blanks(&program("argv", Kind::DynamicPie));
    let script = dir.path().join("script");
    write_program(&script, format!("#!{} one two\nrest\n", hold.display()).as_bytes(), 0o755);
    let run = Run::new(&script, ["three", ""]);
    let (plain, launched) = (run.plain().output(), run.output());
    assert_eq!(launched.out(), plain.out());
    assert!(plain.out().contains("\0one two\0"), "{plain}");
    launched.assert_code(0).assert_silent();

    let outer = dir.path().join("outer");
    let sh = dir.path().join("inner.sh");
    write_program(
        &sh,
        format!("#!/bin/sh\nexec '{}' \"$@\"\n", identity.display()).as_bytes(),
        0o755,
    );
    write_program(&outer, format!("#!{}\n", sh.display()).as_bytes(), 0o755);
    let file = dir.path().join("facts");
    let facts = |run: Run| {
        run.output().assert_code(0).assert_silent();
        std::fs::read_to_string(&file).expect("the facts")
    };
    let run = Run::new(&sh, [&file]);
    let without = |s: String| {
        s.lines().filter(|l| !l.starts_with("pid ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        without(facts(run.clone())),
        without(facts(run.plain())),
        "a shell is too small to be treated, and what it execs is not"
    );
}

#[test]
fn argv_zero_and_path_search_are_execvps() {
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("another name");
    std::os::unix::fs::symlink(program("identity", Kind::DynamicPie), &link).expect("a link");
    assert_same(&Run::new(&link, ["a", "", "b c"]).env("X", "y"));

    let name = program("identity", Kind::DynamicPie).file_name().expect("a name").to_owned();
    let path = program("identity", Kind::DynamicPie).parent().expect("a directory").to_owned();
    let run = Run::new(name, [""; 0])
        .env("PATH", format!("/nonexistent:{}:/usr/bin:/bin", path.display()));
    let (env, launched) = (seen(&run.through_env(), false), seen(&run, true));
    assert_eq!(launched, env);
}

#[test]
fn arguments_and_environment_keep_every_byte() {
    let every: Vec<u8> = (1..=255).collect();
    let every = OsString::from_vec(every);
    let odd = OsString::from_vec(b"\xff\xfe=\n\t \x80".to_vec());
    let run = Run::new(
        program("argv", Kind::DynamicPie),
        [every.clone(), OsString::new(), odd.clone(), "--".into(), "-v".into()],
    )
    .env("EVERY", &every)
    .env("ODD", &odd);
    let (plain, launched) = (run.plain().output(), run.output());
    assert_eq!(launched.stdout, plain.stdout);
    assert!(plain.stdout.windows(255).any(|w| w.iter().copied().eq(1..=255)));
    launched.assert_code(0).assert_silent();
}

#[test]
fn huge_arguments_and_environment_arrive() {
    let word = "x".repeat(100_000);
    let with_env = |run: Run| (0..6).fold(run, |run, i| run.env(format!("BIG{i}"), &word));
    let argv = program("argv", Kind::DynamicPie);
    let check = |run: &Run| {
        let (plain, launched) = (run.plain().output(), run.output());
        assert!(plain.stdout.len() > 600_000, "{}", plain.stdout.len());
        assert!(
            launched.stdout == plain.stdout,
            "{} bytes, plain {}",
            launched.stdout.len(),
            plain.stdout.len()
        );
        launched.assert_code(0);
        launched
    };
    check(&with_env(Run::new(&argv, std::iter::repeat_n(word.as_str(), 12)))).assert_silent();
    // The pointers to this many arguments fill the present stack, so that there may be no room for a frame.
    let many = check(&with_env(Run::new(&argv, std::iter::repeat_n("y", 30_000))));
    if let Some(reason) = many.fail_open_reason() {
        assert_eq!(reason, "stack_room", "{many}");
    }
    // The arguments take most of a small stack. The frames of the remote calls must not use up the rest.
    let small = Run::new(program("argv", Kind::DynamicPie), std::iter::repeat_n(word.as_str(), 1))
        .prep(Prep::Rlimit(libc::RLIMIT_STACK, 450_000));
    let (plain, launched) = (small.plain().output(), small.output());
    assert!(launched.stdout == plain.stdout, "{launched}");
    launched.assert_code(0);
}

#[test]
fn an_argument_list_that_is_too_long_is_the_same_error() {
    let word = "x".repeat(130_000);
    let run = Run::new("/bin/echo", std::iter::repeat_n(word.as_str(), 1))
        .prep(Prep::Rlimit(libc::RLIMIT_STACK, 450_000));
    assert_eq!(run.output().end(), run.through_env().output().end());
}

#[test]
fn registers_at_the_first_instruction_are_the_kernels() {
    let run = Run::new(program("entry_state", Kind::Bare), [""; 0]).env("ONE", "1");
    let (plain, launched) = (run.plain().output(), run.output());
    plain.assert_code(0);
    launched.assert_code(0).assert_silent();
    assert_eq!(plain.out().lines().count(), 31);
    assert_eq!(launched.out(), plain.out());
}
