//! `--report` writes the truth to the right place, before the program's first instruction; `--dry-run` never runs the program.

use serde_json::Value;
use support::child::said;
use support::smaps::NO_TEXT_FOR_LARGE;
use support::{Fresh, Kind, Prep, Run, coverage, pmd_size, program, program_big, require};

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// One JSON object on one line.
fn object(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text:?}");
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

#[test]
fn the_json_report_is_what_smaps_says() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    for kind in support::programs::COMMON {
        let path = program("hold", kind);
        let options = ["--report", "--json", "--backing", "image"];
        let held = Run::new(&path, ["7"]).options(options).hold();
        let (pid, coverage) = (held.pid(), held.coverage());
        assert!(coverage.is_full());
        let done = held.finish();
        done.assert_code(7);
        let report = object(&done.err());
        assert_eq!((number(&report, "schema"), &report["kind"]), (2, &"launch".into()));
        assert_eq!(number(&report, "pid"), pid as u64);
        assert_eq!(
            report["comm"],
            path.file_name().expect("a name").to_string_lossy()
                [..15.min(path.file_name().expect("a name").len())]
        );
        assert_eq!((&report["outcome"], &report["reason"]), (&"switched".into(), &Value::Null));
        assert_eq!(number(&report, "huge_bytes"), coverage.huge, "{report}");
        assert!(number(&report, "text_bytes") >= coverage.text, "{report} {coverage:?}");
        let files = report["files"].as_array().expect("files");
        let main = files
            .iter()
            .find(|f| f["path"] == *path.to_string_lossy())
            .unwrap_or_else(|| panic!("{report}"));
        assert_eq!(
            (number(main, "text_bytes"), number(main, "huge_bytes")),
            (coverage.text, coverage.huge),
            "{report}"
        );
        let rest: u64 =
            main["rest"].as_array().expect("rest").iter().map(|r| number(r, "bytes")).sum();
        assert_eq!(rest, coverage.text - coverage.huge, "{report}");
        assert_eq!(main["backings"], serde_json::json!(["image"]), "{report}");
        let total: u64 = files.iter().map(|f| number(f, "text_bytes")).sum();
        assert_eq!(total, number(&report, "text_bytes"), "{report}");

        let launch = &report["launch"];
        assert_eq!(launch["backing"], "image");
        assert!(number(launch, "stop_us") > 0 && number(launch, "remote_syscalls") > 0, "{report}");
        assert_eq!(number(launch, "bytes_copied"), coverage.huge, "{report}");
        let address = |v: &Value| {
            u64::from_str_radix(v.as_str().expect("an address"), 16).expect("hexadecimal")
        };
        let spans = launch["spans"].as_array().expect("spans");
        let lens: u64 = spans.iter().map(|s| address(&s["end"]) - address(&s["start"])).sum();
        assert_eq!(lens, coverage.huge, "{report}");
        assert!(
            spans
                .iter()
                .all(|s| address(&s["start"]).is_multiple_of(pmd_size())
                    && s["file_offset"].is_u64()),
            "{report}"
        );
    }
}

#[test]
fn a_report_to_a_file_leaves_the_streams_alone() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report");
    let option = format!("--report={}", file.display());
    let done = Run::new(program("exits", Kind::DynamicPie), ["code", "7"])
        .options([option.as_str(), "--json"])
        .output();
    done.assert_code(7).assert_silent();
    assert_eq!(done.out(), "ran\n");
    assert_eq!(object(&std::fs::read_to_string(&file).expect("a report"))["outcome"], "switched");
    // The program runs even if the file cannot be written.
    let option = format!("--report={}", dir.path().join("missing/report").display());
    let done = Run::new(program("exits", Kind::DynamicPie), ["code", "7"])
        .options([option.as_str()])
        .output();
    done.assert_code(7);
    assert_eq!(done.out(), "ran\n");
    assert!(done.err().lines().count() == 1 && done.err().starts_with("tiexec: "), "{done}");
}

#[test]
fn the_report_comes_before_the_program() {
    // Both write to one stream. The table must be complete before the program's first byte.
    for options in [&["--report"][..], &["--report", "--json"]] {
        let run = Run::new(program("exits", Kind::DynamicPie), ["code", "7"])
            .options(options)
            .behind_sh("exec \"$@\" 2>&1");
        let done = run.output();
        done.assert_code(7);
        let out = done.out();
        assert!(out.ends_with("\nran\n") && out.len() > 40, "{done}");
        assert!(!out.starts_with("ran"), "{done}");
    }
}

#[test]
fn the_table_names_the_file_the_backing_and_the_undo() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    let path = program("exits", Kind::DynamicPie);
    let done = Run::new(&path, ["code", "7"]).options(["--report"]).output();
    done.assert_code(7);
    assert_eq!(done.out(), "ran\n", "a launch never writes to standard output");
    let table = done.err();
    for word in [
        "text ",
        "huge ",
        "MiB",
        " %)",
        "FILE",
        "BACKING",
        "image",
        "too_small",
        "stop",
        "perf",
        "uprobes",
        "undo",
    ] {
        assert!(table.contains(word), "no {word:?}: {done}");
    }
    assert!(table.contains(&*path.to_string_lossy()), "{done}");
    assert!(table.is_ascii() || std::str::from_utf8(&done.stderr).is_ok());
}

#[test]
fn a_launch_that_gains_nothing_reports_why() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    let report = |run: Run, code: i32| {
        let done = run.options(["--report", "--json"]).output();
        done.assert_code(code);
        done.err()
            .lines()
            .rfind(|l| l.starts_with('{'))
            .map(object)
            .unwrap_or_else(|| panic!("{done}"))
    };
    let small = report(Run::new(program("small", Kind::DynamicPie), ["5"]), 5);
    assert_eq!(
        (&small["outcome"], &small["reason"], &small["launch"]),
        (&"skipped".into(), &"too_small".into(), &Value::Null)
    );
    assert_eq!(number(&small, "huge_bytes"), 0);
    let off = report(
        Run::new(program("exits", Kind::DynamicPie), ["code", "7"]).options(["--backing", "off"]),
        7,
    );
    assert_eq!((&off["outcome"], &off["reason"]), (&"skipped".into(), &"disabled".into()));
    let failed = report(
        Run::new(program("exits", Kind::DynamicPie), ["code", "7"]).prep(Prep::Prctl(41, 1, 0)),
        7,
    );
    assert_eq!(
        (&failed["outcome"], &failed["reason"]),
        (&"skipped".into(), &"thp_disabled".into())
    );
    assert_eq!(number(&failed, "huge_bytes"), 0);
}

#[test]
fn the_cost_is_bounded() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    // The huge bytes of 24 MiB are copied exactly once, and the number of calls does not grow with the text.
    let cost = |mib| {
        let done = Run::new(program_big("hold", Kind::StaticNoPie, mib), ["7"])
            .options(["--report", "--json"])
            .output();
        done.assert_code(7);
        object(&done.err())["launch"].clone()
    };
    let (small, big) = (cost(6), cost(32));
    assert!(number(&big, "bytes_copied") >= 28 << 20, "{big}");
    assert!(
        number(&big, "remote_syscalls") <= number(&small, "remote_syscalls") + 4,
        "{small} {big}"
    );
    assert!(number(&big, "remote_syscalls") <= 40, "{big}");
}

#[test]
fn a_dry_run_prints_the_plan_and_runs_nothing() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    let dir = tempfile::tempdir().expect("a directory");
    let facts = dir.path().join("facts");
    let path = program("identity", Kind::DynamicPie);
    for options in [&["--dry-run"][..], &["--dry-run", "-v"], &["--dry-run", "--json"]] {
        let done = Run::new(&path, [&facts]).options(options).output();
        done.assert_code(0);
        assert!(!facts.exists(), "the program ran: {done}");
        let said = done.out() + &done.err();
        assert!(said.contains("identity-dynamicpie-6"), "{done}");
        assert!(said.contains("image"), "the backing: {done}");
        if options.contains(&"--json") {
            object(&done.out());
        }
    }
    // For a program that will not be treated, the plan is the reason.
    let done =
        Run::new(program("small", Kind::DynamicPie), [""; 0]).options(["--dry-run"]).output();
    done.assert_code(0);
    assert!(
        (done.out() + &done.err()).contains("too_small") && !done.out().contains("small ran"),
        "{done}"
    );
}

/// With `--until-exec` the programs before the named one would have to run.
#[test]
fn a_dry_run_that_would_run_something_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = dir.path().join("made");
    let script = format!("touch '{}'; exec true", made.display());
    for name in ["true", "never"] {
        let until = format!("--until-exec={name}");
        let done = Run::new("sh", ["-c", &script]).options(["--dry-run", &until]).output();
        done.assert_code(125);
        assert!(done.err().contains("cannot make a dry run with --until-exec"), "{done}");
    }
    assert!(!made.exists());
}

#[test]
fn a_dry_run_of_what_is_not_there_is_the_launchs_error() {
    Run::new("/nonexistent/program", [""; 0]).options(["--dry-run"]).output().assert_code(127);
    Run::new("/etc/passwd", [""; 0]).options(["--dry-run"]).output().assert_code(126);
    Run::new("/etc/passwd/x", [""; 0]).options(["--dry-run"]).output().assert_code(126);
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/nonexistent/interpreter\n").expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("it is executable");
    let done = Run::new(script, [""; 0]).options(["--dry-run"]).output();
    done.assert_code(127);
    assert!(done.err().contains("its interpreter /nonexistent/interpreter is not there"), "{done}");
}

/// If there is no program to report on, one line says so, and the exit status is that of a failed launch.
#[test]
fn a_program_that_is_not_there_has_no_report() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report");
    let to_file = format!("--report={}", file.display());
    for (name, code) in
        [("no-such-program", 127), ("/nonexistent/program", 127), ("/etc/passwd", 126)]
    {
        for options in [&["--report"][..], &["--report", "--json"], &["-v"], &[&to_file]] {
            let done = Run::new(name, [""; 0]).options(options).output();
            done.assert_code(code);
            assert_eq!((done.out().as_str(), done.err().lines().count()), ("", 1), "{done}");
            assert!(done.err().starts_with(&format!("tiexec: cannot run {name}: ")), "{done}");
        }
    }
    assert_eq!(std::fs::read_to_string(&file).expect("it was opened"), "");
}

#[test]
fn a_verbose_launch_says_why_it_left_text_alone() {
    let done = Run::new(program("small", Kind::DynamicPie), ["5"]).options(["-v"]).output();
    done.assert_code(5);
    assert_eq!(done.out(), "small ran\n");
    assert!(done.err().contains("too_small"), "{done}");
}

#[test]
fn a_program_that_reports_on_itself_agrees() {
    let done = Run::new(program("family", Kind::DynamicPie), [""; 0])
        .options(["--report", "--json"])
        .output();
    done.assert_code(0);
    let seen: u64 = said(&done.out(), "huge").expect("a huge line").parse().expect("a number");
    assert_eq!(number(&object(&done.err()), "huge_bytes"), seen, "{done}");
}

/// The line says how much was staged. It says that all text stays on base pages only if that is true.
#[test]
fn a_deadline_that_cuts_the_copy() {
    // The linker's writes may have left huge folios in the page cache, which count as huge.
    let file = Fresh::small(&program_big("hold", Kind::DynamicNoPie, 64));
    let mut cut = 0;
    // Without --settle=0 the companion stages the rest.
    for deadline in ["1ms", "2ms", "4ms", "8ms", "16ms", "32ms"] {
        let options = ["--backing=image", "--settle=0", "--deadline", deadline];
        let held = Run::new(file.path(), ["7"]).options(options).hold();
        let huge = coverage(held.pid()).huge >> 20;
        let done = held.finish();
        done.assert_code(7);
        let err = done.err();
        let Some((before, _)) = err.split_once(" MiB were staged in time") else { continue };
        cut += 1;
        assert!(err.contains("; fix: allow more time (--deadline="), "{err}");
        assert!(before.contains(&format!(": {huge} of ")), "{huge} MiB are huge: {err}");
        assert_eq!(err.contains("text stays on base pages: "), huge == 0, "{err}");
        assert_eq!(err.contains(" MiB text stay on base pages: "), huge > 0, "{err}");
    }
    assert!(cut > 0, "64 MiB were copied in a millisecond");
}

#[test]
fn a_dry_run_that_cannot_write_its_plan_fails() {
    for program in [program("hold", Kind::DynamicPie), program("small", Kind::DynamicPie)] {
        let full = ["sh", "-c", "exec \"$@\" >/dev/full", "sh"];
        let run = Run::new(program, [""; 0]).options(["--dry-run"]);
        let done = run.behind(full).output();
        done.assert_code(125);
        assert!(done.err().contains("no space left on device (ENOSPC); fix: "), "{done}");
    }
}

#[test]
fn a_report_that_cannot_be_written_names_its_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing/report").display().to_string();
    for (file, why) in [("/dev/full", "no space left"), (missing.as_str(), "no such file")] {
        let report = format!("--report={file}");
        let hold = program("small", Kind::DynamicPie);
        let done = Run::new(hold, ["5"]).options([report.as_str()]).output();
        done.assert_code(5);
        assert!(
            done.err().starts_with(&format!("tiexec: cannot write the report to {file}: {why}"))
        );
        assert!(done.err().ends_with("; fix: name another file in --report\n"), "{done}");
        assert_eq!(done.err().lines().count(), 1, "{done}");
    }
}

#[test]
fn what_cannot_be_run_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "").expect("a file");
    let plain = plain.to_str().expect("UTF-8");
    let directory = dir.path().to_str().expect("UTF-8");
    let denied = "permission denied (EACCES)";
    for (name, code, says) in [
        (directory, 126, format!("{directory}: it is a directory: {denied}")),
        (plain, 126, format!("{plain}: it is not executable: {denied}; fix: chmod +x {plain}")),
        ("/dev/null", 126, format!("/dev/null: {denied}")),
        ("", 127, "'': no such file or directory (ENOENT)".to_owned()),
    ] {
        let done = Run::new(name, [""; 0]).output();
        done.assert_code(code);
        assert_eq!(done.err(), format!("tiexec: cannot run {says}\n"));
    }
}
