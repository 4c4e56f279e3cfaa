//! `tiexecctl inspect` and `tiexecctl doctor` report the truth about any process, and name the fix.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Kind, Prep, Public, Run, coverage, is_root, program, require};

fn ctl(args: &[&str]) -> std::process::Output {
    Command::new(support::tiexecctl())
        .args(args)
        .env_remove("TIEXEC")
        .stdin(Stdio::null())
        .output()
        .expect("tiexecctl")
}

fn out(output: &std::process::Output) -> String {
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inspected(pid: i32) -> Value {
    let output = ctl(&["inspect", &pid.to_string(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = out(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn inspect_says_what_smaps_says() {
    for treated in [true, false] {
        let path = program("hold", Kind::DynamicPie);
        let run = Run::new(&path, ["7"]);
        let held = if treated { run.hold() } else { run.plain().hold() };
        let seen = held.coverage();
        assert_eq!(seen.is_full(), treated);
        let report = inspected(held.pid());
        assert_eq!(report["kind"], "inspect");
        assert_eq!(report["launch"], Value::Null);
        assert_eq!(report["pid"], held.pid());
        assert_eq!(report["huge_bytes"], seen.huge, "{report}");
        let files = report["files"].as_array().expect("files");
        let main = files
            .iter()
            .find(|f| f["path"] == *path.to_string_lossy())
            .unwrap_or_else(|| panic!("{report}"));
        assert_eq!(
            (&main["text_bytes"], &main["huge_bytes"]),
            (&seen.text.into(), &seen.huge.into()),
            "{report}"
        );
        assert!(
            files.iter().any(|f| f["path"].as_str().is_some_and(|p| p.contains("libc"))),
            "the DSOs are shown too: {report}"
        );
        // The table has the same facts in words.
        let table = ctl(&["inspect", &held.pid().to_string()]);
        assert_eq!(table.status.code(), Some(0), "{table:?}");
        let table = out(&table);
        assert!(
            table.contains("FILE")
                && table.contains(&held.pid().to_string())
                && table.contains(&*path.to_string_lossy()),
            "{table}"
        );
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn inspect_agrees_with_the_launchs_own_report() {
    let held =
        Run::new(program("hold", Kind::StaticPie), ["7"]).options(["--report", "--json"]).hold();
    let now = inspected(held.pid());
    let done = held.finish();
    let then: Value = serde_json::from_str(&done.err()).expect("the launch's report");
    for key in ["schema", "pid", "comm", "text_bytes", "huge_bytes", "outcome"] {
        assert_eq!(now[key], then[key], "{key}");
    }
}

#[test]
fn inspect_changes_nothing() {
    let held = Run::new(program("hold", Kind::DynamicPie), ["7"]).hold();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", held.pid())).expect("maps");
    let before = maps();
    inspected(held.pid());
    ctl(&["doctor", &held.pid().to_string()]);
    assert_eq!(maps(), before);
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn inspect_of_any_process_of_this_machine() {
    let mut looked_at = 0;
    for entry in std::fs::read_dir("/proc").expect("proc").flatten().take(200) {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let output = ctl(&["inspect", &pid.to_string(), "--json"]);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1 | 4 | 5)), "{pid}: {output:?}");
        out(&output);
        looked_at += 1;
    }
    assert!(looked_at > 1);
}

#[test]
fn inspect_of_nobody() {
    let child = Command::new("true").spawn().expect("true");
    let pid = child.id();
    let mut child = child;
    child.wait().expect("an own child");
    // The kernel does not reuse a PID so soon.
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    for command in ["inspect", "doctor"] {
        let output = ctl(&[command, &pid.to_string()]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert_eq!(out(&output), "");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("tiexec"), "{output:?}");
    }
}

#[test]
fn wrong_usage_is_2() {
    for args in [
        &["inspect"][..],
        &["inspect", "nobody"],
        &["inspect", "-1"],
        &["inspect", "0"],
        &["inspect", "1", "2", "x"],
        &["inspect", "99999999999999999999"],
        &["frobnicate"],
        &[],
        &["doctor", "x"],
    ] {
        let output = ctl(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert_eq!(out(&output), "");
    }
    assert_eq!(ctl(&["--help"]).status.code(), Some(0));
    assert_eq!(ctl(&["--version"]).status.code(), Some(0));
}

#[test]
fn a_process_of_somebody_else_is_5() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let ctl = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let held = Run::new(program("hold", Kind::DynamicPie), ["7"]).hold();
    let pid = held.pid().to_string();
    let done = Run::new(&ctl, ["inspect", &pid])
        .plain()
        .behind(["runuser", "-u", "nobody", "--"])
        .output();
    done.assert_code(5);
    assert!(done.err().starts_with("tiexec") && done.err().contains(&pid), "{done}");
    held.finish().assert_code(7);
}

#[test]
fn an_unprivileged_user_inspects_own_processes() {
    require!(is_root(), "becoming another user needs root");
    let public = Public::new();
    let ctl = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let hold = public.add(&program("hold", Kind::DynamicPie), "hold", 0o755);
    let front = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let held = Run::new(&hold, ["7"]).binary(public.tiexec()).behind(front).hold();
    let done = Run::new(&ctl, ["inspect", &held.pid().to_string(), "--json"])
        .plain()
        .behind(front)
        .output();
    done.assert_code(0);
    let report: Value = serde_json::from_str(&done.out()).expect("JSON");
    assert_eq!(report["huge_bytes"], coverage(held.pid()).huge, "{done}");
    held.finish().assert_code(7).assert_silent();
}

/// The lines of doctor: verdict, thing, finding.
fn findings(args: &[&str]) -> Vec<(String, String)> {
    let output = ctl(args);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let text = out(&output);
    let lines: Vec<_> = text.lines().filter(|l| !l.starts_with(' ') && !l.is_empty()).collect();
    assert!(lines.len() >= 4, "{text}");
    assert!(
        !text.contains("echo always"),
        "never suggests changing THP for the whole machine: {text}"
    );
    lines
        .into_iter()
        .map(|line| {
            let (verdict, rest) =
                line.split_once(' ').unwrap_or_else(|| panic!("{line:?} in {text}"));
            assert!(["ok", "no", "off", "warn", "FAIL"].contains(&verdict), "{line:?} in {text}");
            (verdict.to_owned(), rest.trim().to_owned())
        })
        .collect()
}

#[test]
fn doctor_has_a_verdict_on_each_line() {
    findings(&["doctor"]);
    let held = Run::new(program("hold", Kind::DynamicPie), ["7"]).hold();
    let about = findings(&["doctor", &held.pid().to_string()]);
    assert!(!about.iter().any(|(v, _)| v == "FAIL"), "a treated program is well: {about:?}");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn doctor_judges_the_target_it_is_given() {
    let run = Run::new(program("hold", Kind::DynamicPie), ["7"]);
    let well = run.plain().hold();
    let ill = run.plain().prep(Prep::Prctl(41, 1, 0)).hold();
    let text = |pid: i32| out(&ctl(&["doctor", &pid.to_string()])).to_lowercase();
    let (a, b) = (text(well.pid()), text(ill.pid()));
    let bad = |text: &str| {
        text.lines()
            .filter(|l| {
                !l.starts_with("ok")
                    && (l.contains("thp_disable") || l.contains("pr_set_thp_disable"))
            })
            .count()
    };
    assert!(bad(&b) > bad(&a), "well: {a}\nill: {b}");
    // Attach treats both, and the advice names attach.
    for (held, said) in [(&well, a), (&ill, b)] {
        let advice = format!("fix: tiexecctl attach {}", held.pid());
        assert!(!said.contains("fail") && said.contains(&advice), "{said}");
        assert!(ctl(&["attach", "--backing=image", &held.pid().to_string()]).status.success());
        assert!(coverage(held.pid()).is_full(), "{said}");
    }
    well.finish().assert_code(7);
    ill.finish().assert_code(7);
}

/// `unshare --pid --fork` leaves such a /proc. The fix of doctor must help.
#[test]
fn doctor_names_a_proc_of_another_pid_namespace() {
    require!(is_root(), "not root");
    let look = |before: &str| {
        let script = format!("{before} \"$0\" doctor");
        let doctor = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "sh", "-c", &script])
            .arg(support::tiexecctl())
            .env_remove("TIEXEC")
            .output()
            .expect("unshare");
        out(&doctor)
    };
    let fix = "mount -t proc proc /proc";
    let line = |said: &str| {
        said.lines().find(|line| line.contains("another PID namespace")).map(str::to_owned)
    };
    let said = look("");
    let found = line(&said).unwrap_or_else(|| panic!("{said}"));
    assert!(found.starts_with("FAIL") && found.ends_with(&format!("; fix: {fix}")), "{found}");
    let said = look(&format!("{fix} &&"));
    assert!(line(&said).is_none() && said.contains("PAGEMAP_SCAN"), "{said}");
}

/// In such a /proc a PID stands for another process than in a system call.
#[test]
fn nothing_is_done_by_a_proc_of_another_pid_namespace() {
    require!(is_root(), "not root");
    let of_process = ["inspect", "doctor", "advise", "attach", "revert", "rules check"];
    let of_process = of_process.map(|command| (format!("{command} $$"), "process 1"));
    let of_all = [("scan --duration 1s".to_owned(), "the processes")];
    for (command, whom) in of_process.into_iter().chain(of_all) {
        let run = |before: &str| {
            let script = format!("{before} \"$0\" {command}");
            let front = ["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &script];
            let mut unshare = Command::new("unshare");
            unshare.args(front).arg(support::tiexecctl()).env_remove("TIEXEC");
            unshare.output().expect("unshare")
        };
        let refused = run("");
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert_eq!(out(&refused), "");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let (what, fix) = said.trim_end().split_once("; fix: ").expect("a fix");
        let why = format!("{whom}: proc_unavailable: /proc is that of another PID namespace");
        assert!(what.ends_with(&why), "{said}");
        let done = run(&format!("{fix};"));
        assert!(!String::from_utf8_lossy(&done.stderr).contains("proc_unavailable"), "{done:?}");
    }
}

#[test]
fn doctor_says_where_its_capability_does_not_apply() {
    require!(is_root(), "not root");
    let inside = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(support::tiexecctl())
        .arg("doctor")
        .output()
        .expect("unshare");
    let said = out(&inside);
    let line = said.lines().find(|line| line.contains("CAP_SYS_PTRACE")).expect("a line for it");
    assert!(line.starts_with("warn") && line.contains("of this user namespace only"), "{said}");
}

/// The pages of the pool may be those of a database, so the fix adds to them.
#[test]
fn pool_without_a_free_page_is_to_be_made_larger() {
    require!(is_root(), "the hugetlb pool needs root");
    let mut machine = support::machine::Machine::lock();
    require!(machine.pool(1), "a huge page cannot be reserved");
    let pool = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", support::pmd_size() / 1024);
    let pages = |name| -> u64 {
        let text = std::fs::read_to_string(format!("{pool}/{name}")).expect("a file of the pool");
        text.trim().parse().expect("a number")
    };
    let len =
        usize::try_from((pages("free_hugepages") - pages("resv_hugepages")) * support::pmd_size())
            .expect("a length");
    let size = (support::pmd_size().trailing_zeros().cast_signed()) << libc::MAP_HUGE_SHIFT;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
    // SAFETY: a new mapping, which nothing else refers to. It reserves the pages for this process.
    let taken = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0) };
    assert_ne!(taken, libc::MAP_FAILED, "the pages of the pool");
    let said = out(&ctl(&["doctor"]));
    // SAFETY: the mapping just made, whole.
    unsafe { libc::munmap(taken, len) };
    let all = pages("nr_hugepages");
    let fix = said.split(&format!("the pool has {all} pages, none of them free")).nth(1);
    let fix = fix.and_then(|rest| rest.split_once("echo ")?.1.lines().next()).expect("a fix");
    let (more, knob) = fix.split_once(" > ").expect("a command");
    assert!(more.parse::<u64>().is_ok_and(|more| more > all), "{said}");
    assert_eq!(knob, format!("{pool}/nr_hugepages"), "{said}");
}
