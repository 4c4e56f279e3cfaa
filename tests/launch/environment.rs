//! `TIEXEC=…`, the configuration file and the kill switches: options override the environment, which overrides the
//! configuration. A malformed setting is an error as an option, and a warning elsewhere.

use support::{Held, Kind, Public, Run, installed, is_root, program, require};

fn hold() -> Run {
    Run::new(program("hold", Kind::DynamicPie), ["7"])
}

fn huge(held: &Held) -> u64 {
    held.said("huge").expect("a huge line").parse().expect("a number")
}

/// Returns whether the launch treats the program. In both cases the program runs without a message.
fn is_treated(run: &Run) -> bool {
    let held = run.hold();
    let huge = huge(&held);
    held.finish().assert_code(7).assert_silent();
    huge > 0
}

#[test]
fn the_environment_does_what_options_do() {
    assert!(is_treated(&hold()));
    assert!(is_treated(&hold().env("TIEXEC", "")));
    assert!(is_treated(&hold().env("TIEXEC", "backing=image,deadline=5s")));
    for off in ["off", "backing=off", "backing=off,deadline=1s", "deadline=1s,off", "OFF"] {
        assert!(!is_treated(&hold().env("TIEXEC", off)), "TIEXEC={off}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let report = dir.path().join("report");
    assert!(is_treated(&hold().env("TIEXEC", format!("report={},json=1", report.display()))));
    assert!(std::fs::read_to_string(report).expect("a report").starts_with("{\"schema\":2"));
    let silent =
        Run::new(program("hold", Kind::DynamicPie), ["7"]).env("TIEXEC", "quiet=1,deadline=0ms");
    assert!(!is_treated(&silent));
}

#[test]
fn an_invalid_pattern_is_reported() {
    let held = hold().env("TIEXEC", "only=[").hold();
    assert!(huge(&held) > 0, "the rest of the settings holds");
    let done = held.finish();
    done.assert_code(7);
    assert_eq!(done.err().lines().count(), 1, "{done}");
    let says = "tiexec: TIEXEC ignored in part: \"only=[\": \"[\" is not a pattern: ";
    assert!(done.err().starts_with(says), "{done}");
}

#[test]
fn options_without_a_meaning_are_125() {
    for options in [["-f", "--only=["], ["-f", "--except=["], ["-v", "--until-exec="]] {
        let done = Run::new("/bin/true", [""; 0]).options(options).output();
        done.assert_code(125);
        assert!(done.out().is_empty() && done.err().contains(&options[1][..6]), "{done}");
    }
}

#[test]
fn options_beat_the_environment() {
    assert!(is_treated(&hold().env("TIEXEC", "backing=off").options(["--backing", "image"])));
    assert!(!is_treated(&hold().env("TIEXEC", "backing=image").options(["--backing", "off"])));
    assert!(is_treated(&hold().env("TIEXEC", "deadline=0ms").options(["--deadline", "10s"])));
}

#[test]
fn off_is_a_kill_switch_that_no_option_beats() {
    assert!(!is_treated(&hold().env("TIEXEC", "off").options(["--deadline", "10s", "--strict"])));
    assert!(!is_treated(&hold().env("TIEXEC", "off,backing=image")));
    assert!(!is_treated(&hold().env("TIEXEC", "off").options(["--backing", "image"])));
}

#[test]
fn nonsense_in_the_environment_is_one_warning() {
    for value in [
        "backing=paper",
        "frobnicate=1",
        "deadline=soon",
        "strict=perhaps",
        "=",
        "backing",
        "deadline=-1ms",
        "deadline=99999999999999999999s",
        "\u{fffd}",
    ] {
        let run = hold().env("TIEXEC", value);
        let held = run.hold();
        let treated = huge(&held) > 0;
        let done = held.finish();
        done.assert_code(7);
        assert_eq!(done.err().lines().count(), 1, "TIEXEC={value}: {done}");
        assert!(
            done.err().starts_with("tiexec: ") && done.err().contains("TIEXEC"),
            "TIEXEC={value}: {done}"
        );
        assert!(
            treated,
            "TIEXEC={value}: the program is treated as if nothing had been said: {done}"
        );
    }
    // A valid setting beside a malformed one counts.
    let held = hold().env("TIEXEC", "frobnicate=1,backing=off").hold();
    assert_eq!(huge(&held), 0);
    held.finish().assert_code(7);
    let quiet = hold().env("TIEXEC", "frobnicate=1").options(["--quiet"]);
    assert!(is_treated(&quiet), "--quiet prints no warning");
}

#[test]
fn bytes_that_are_no_text_in_the_environment_are_a_warning() {
    use std::os::unix::ffi::OsStrExt;
    let held = hold().env("TIEXEC", std::ffi::OsStr::from_bytes(b"backing=\xff\xfe")).hold();
    let done = held.finish();
    done.assert_code(7);
    assert_eq!(done.err().lines().count(), 1, "{done}");
}

#[test]
fn nonsense_as_an_option_is_125_and_the_program_does_not_run() {
    for options in [
        &["--backing", "paper"][..],
        &["--frobnicate"],
        &["--deadline", "soon"],
        &["--deadline", "-1ms"],
        &["--deadline"],
        &["--backing"],
        &["--strict=perhaps"],
        &["-Z"],
    ] {
        let done =
            Run::new(program("exits", Kind::DynamicPie), ["code", "7"]).options(options).output();
        done.assert_code(125);
        assert_eq!(done.out(), "", "{done}");
        assert!(!done.stderr.is_empty() && !done.err().contains("panicked"), "{done}");
    }
    // No program at all.
    let alone = std::process::Command::new(support::tiexec()).output().expect("tiexec");
    assert_eq!(alone.status.code(), Some(125), "{alone:?}");
    let alone = std::process::Command::new(support::tiexec()).arg("--").output().expect("tiexec");
    assert_eq!(alone.status.code(), Some(125), "{alone:?}");
}

#[test]
fn help_and_version() {
    for option in ["--help", "--version"] {
        let output =
            std::process::Command::new(support::tiexec()).arg(option).output().expect("tiexec");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn the_program_inherits_the_variable() {
    let done = Run::new(program("argv", Kind::DynamicPie), [""; 0])
        .env("TIEXEC", "backing=image")
        .output();
    done.assert_code(0).assert_silent();
    assert!(done.out().contains("\0TIEXEC=backing=image\0"), "{done}");
}

/// A launch in its own mount namespace, whose /etc/tiexec is made by a script (`$E` is that directory).
fn with_etc(public: &Public, script: &str) -> Run {
    let (upper, work) = (public.path().join("upper"), public.path().join("work"));
    for dir in [&upper, &work] {
        std::fs::create_dir_all(dir).expect("a directory");
    }
    let script = format!(
        "mount --make-rprivate /; mount -t overlay -o lowerdir=/etc,upperdir={},workdir={} overlay /etc; \
         E=/etc/tiexec; rm -rf $E; mkdir $E; {script}; exec \"$@\"",
        upper.display(),
        work.display()
    );
    hold().behind(["unshare", "--mount"]).behind_sh(&script)
}

#[test]
fn the_administrators_kill_switch_and_configuration() {
    require!(is_root() && installed("unshare").is_some(), "another /etc needs root");
    let treated = |script: &str, env: &str, options: &[&str]| {
        let public = Public::new();
        let mut run = with_etc(&public, script).options(options);
        if !env.is_empty() {
            run = run.env("TIEXEC", env);
        }
        is_treated(&run)
    };
    let public = Public::new();
    require!(
        with_etc(&public, "true").plain().hold().finish().status.code() == Some(7),
        "this kernel mounts no overlayfs on /etc"
    );
    assert!(treated("true", "", &[]));
    assert!(!treated(">$E/disabled", "", &[]));
    assert!(
        !treated(">$E/disabled", "backing=image", &["--backing", "image"]),
        "nobody beats the administrator"
    );
    assert!(!treated("mkdir $E/disabled", "", &[]), "it exists: that is enough");
    assert!(
        !treated("printf '# off here\\nbacking = off\\n' >$E/config", "", &[])
            || !treated("echo backing=off >$E/config", "", &[])
    );
    assert!(!treated("printf '\\n# comment\\nbacking=off\\n' >$E/config", "", &[]));
    assert!(
        treated("echo backing=off >$E/config", "backing=image", &[]),
        "environment beats configuration"
    );
    assert!(
        treated("echo backing=off >$E/config", "", &["--backing=image"]),
        "options beat configuration"
    );
    assert!(!treated("echo backing=image >$E/config", "backing=off", &[]));
    assert!(treated(">$E/config", "", &[]), "an empty file says nothing");
    // strict in the configuration does not stop a kill switch.
    assert!(!treated("echo strict=1 >$E/config; >$E/disabled", "", &[]));
}

#[test]
fn a_malformed_configuration_is_one_warning() {
    require!(is_root() && installed("unshare").is_some(), "another /etc needs root");
    let public = Public::new();
    require!(
        with_etc(&public, "true").plain().hold().finish().status.code() == Some(7),
        "this kernel mounts no overlayfs on /etc"
    );
    for script in ["echo nonsense=1 >$E/config", "printf 'backing=\\377\\376\\n' >$E/config"] {
        let public = Public::new();
        let held = with_etc(&public, script).hold();
        let treated = huge(&held) > 0;
        let done = held.finish();
        done.assert_code(7);
        assert!(treated, "{done}");
        assert_eq!(done.err().lines().count(), 1, "{script}: {done}");
        assert!(done.err().contains("/etc/tiexec/config"), "{script}: {done}");
    }
}
