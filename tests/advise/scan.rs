//! `tiexecctl scan` finds the busy programs of the machine by one sampling, estimates each, and disturbs none.

use std::path::Path;

use serde_json::Value;

use support::attaching::{Before, assert_untouched, ctl, ctl_behind, json, small, started};
use support::child::eventually;
use support::smaps::stat_field;
use support::tmux::Screen;
use support::{Held, Kind, Public, Run, install, installed, is_root, program, require, tiexecctl};

/// A scan that takes longer than a test. Ctrl-C ends it.
const LONG: [&str; 4] = ["scan", "--duration", "10m", "--json"];

/// Starts a scan, and waits until it samples.
fn sampling(front: &[&str], tool: &Path, args: &[&str]) -> Held {
    let scan = started(front, tool, args);
    eventually("it samples", || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", scan.pid()));
        maps.unwrap_or_default().contains("perf_event")
    });
    scan
}

/// Starts `hotset`, which executes in many pages for longer than a test takes.
fn spinning(path: &Path, front: &[&str]) -> Held {
    let mut held = Run::new(path, ["1500", "600"]).plain().behind(front).start();
    held.wait_line("spinning");
    held
}

/// Processor time, in clock ticks, in which a scan takes some samples of a process.
const SOME: u64 = 30;
/// Processor time, in clock ticks, in which a scan with [`OFTEN`] takes enough samples of a process for an estimate: 200, and
/// three times as many, because the kernel may take fewer.
const ENOUGH: u64 = 60;
/// As [`LONG`], with 997 samples a second.
const OFTEN: [&str; 6] = ["scan", "--duration", "10m", "--json", "-F", "997"];

/// Waits until each process has used so much more processor time.
fn work<const N: usize>(pids: [i32; N], for_ticks: u64) {
    let ticks = |pid| stat_field(pid, 14);
    let before = pids.map(ticks);
    eventually("each works for long enough", || {
        pids.into_iter().zip(before).all(|(pid, before)| ticks(pid) > before + for_ticks)
    });
}

/// Returns the row of the program that this process runs.
fn row(scan: &Value, pid: i32) -> Option<&Value> {
    let rows = scan["programs"].as_array().expect("programs");
    rows.iter().find(|row| row["pids"].as_array().expect("PIDs").contains(&pid.into()))
}

fn may_sample() -> bool {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    paranoid.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(2) <= 2
}

/// The arguments of `setpriv` for a user whose processes all belong to one test.
fn user(offset: u32) -> [String; 4] {
    let uid = 200_000_000 + std::process::id() * 8 + offset;
    let [reuid, regid] = ["reuid", "regid"].map(|which| format!("--{which}={uid}"));
    ["setpriv".to_owned(), reuid, regid, "--clear-groups".to_owned()]
}

#[test]
fn ctrl_c_shows_the_busy_programs_and_those_that_have_ended() {
    let (stays, ends) = (small("hotset", Kind::DynamicNoPie), small("hotset", Kind::StaticNoPie));
    let (stays, ended) = (spinning(stays.path(), &[]), spinning(ends.path(), &[]));
    let (pid, gone) = (stays.pid(), ended.pid());
    let before = Before::of(pid);
    let scan = sampling(&[], tiexecctl(), &LONG);
    work([pid, gone], SOME);
    ended.signal(libc::SIGKILL);
    ended.finish();
    scan.signal(libc::SIGINT);
    let done = scan.finish();
    done.assert_code(0).assert_silent();
    assert_untouched(pid, &before);
    let scan = json(&done);
    assert_eq!((&scan["schema"], &scan["kind"]), (&2.into(), &"scan".into()));
    assert!(scan["sampling"]["duration_ms"].as_u64().is_some_and(|ms| ms < 600_000), "{scan}");
    for pid in [pid, gone] {
        let row = row(&scan, pid).unwrap_or_else(|| panic!("{pid}: {scan}"));
        assert!(row["samples"].as_u64().is_some_and(|samples| samples > 0), "{row}");
        assert!(row["cpu"].as_f64().is_some_and(|cpu| cpu > 0.0), "{row}");
        assert!(row["text_bytes"].as_u64().is_some_and(|bytes| bytes >= 6 << 20), "{row}");
    }
    let gone = row(&scan, gone).expect("just seen");
    assert_eq!((&gone["estimate"], &gone["saves"]), (&Value::Null, &Value::Null), "{gone}");
}

/// A shell without job control ignores SIGINT and SIGQUIT in its background: Ctrl-C is meant for others.
#[test]
fn in_the_background_of_a_script_ctrl_c_is_for_others() {
    let args = ["scan", "--duration", "2s", "--json"];
    let scan = sampling(&["env", "--ignore-signal=INT,QUIT"], tiexecctl(), &args);
    scan.signal(libc::SIGINT);
    scan.signal(libc::SIGQUIT);
    let done = scan.finish();
    done.assert_code(0);
    let lasted = &json(&done)["sampling"]["duration_ms"];
    assert!(lasted.as_u64() >= Some(2000), "{lasted}");
}

#[test]
fn an_ordinary_user_gets_an_estimate_of_their_own_programs_only() {
    require!(is_root(), "needs root to be another user");
    require!(may_sample(), "kernel.perf_event_paranoid forbids users to sample");
    let public = Public::new();
    let tool = public.add(tiexecctl(), "tiexecctl", 0o755);
    let hot = public.add(&program("hotset", Kind::DynamicNoPie), "hotset", 0o755);
    // A name that would act on a terminal, and would be several words to a shell.
    let odd = public.path().join("\u{1b}[31m'; $(id)");
    install(&hot, &odd, 0o755);
    let user = user(0);
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    let others = spinning(&hot, &[]);
    let (own, odd) = (spinning(&hot, &user), spinning(&odd, &user));
    let scan = sampling(&user, &tool, &OFTEN);
    work([own.pid(), odd.pid()], ENOUGH);
    scan.signal(libc::SIGINT);
    let done = scan.finish();
    done.assert_code(0).assert_silent();
    assert!(!done.out().contains('\u{1b}'), "{done}");
    let scan = json(&done);
    assert!(row(&scan, others.pid()).is_none(), "{scan}");
    assert!(scan["not_permitted"].as_u64().is_some_and(|count| count > 0), "{scan}");
    assert_eq!(scan["not_sampled"], 0, "{scan}");
    for pid in [own.pid(), odd.pid()] {
        let row = row(&scan, pid).unwrap_or_else(|| panic!("{pid}: {scan}"));
        let estimate = &row["estimate"];
        assert_eq!(estimate["few_samples"], false, "{row}");
        assert_eq!(row["saves_range"].as_array().map(Vec::len), Some(2), "{row}");
        let memory: u64 = estimate["memory"]
            .as_object()
            .expect("backings")
            .values()
            .filter_map(Value::as_u64)
            .sum();
        // What huge pages gain depends on the machine.
        match estimate["way"].as_str().expect("a way") {
            "attach" => {
                assert!((4 << 20..=10 << 20).contains(&memory), "{row}");
                let next = estimate["next"].as_str().expect("a command");
                assert!(next.starts_with("tiexecctl attach "), "{row}");
                assert!(next.ends_with(&format!(" {pid}")), "{row}");
            }
            "nothing" => assert_eq!((memory, &estimate["next"]), (0, &Value::Null), "{row}"),
            way => panic!("{way}: {row}"),
        }
    }
    // The table escapes names, too.
    drop((others, own));
    let scan = sampling(&user, &tool, &LONG[..3]);
    work([odd.pid()], SOME);
    scan.signal(libc::SIGINT);
    let done = scan.finish();
    done.assert_code(0);
    assert!(done.out().contains("\\x1b[31m"), "{done}");
    assert!(!done.out().contains('\u{1b}'), "{done}");
    assert!(done.out().lines().any(|line| line.starts_with("SAVES %")), "{done}");
}

#[test]
fn a_user_without_text_of_a_huge_page_is_told_so_at_once() {
    require!(is_root(), "needs root to be another user");
    let public = Public::new();
    let tool = public.add(tiexecctl(), "tiexecctl", 0o755);
    let user = user(1);
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    let sleep = Run::new("sleep", ["600"]).plain().behind(&user).start();
    eventually("sleep runs", || support::child::state(sleep.pid()) == Some('S'));
    let done = started(&user, &tool, ["scan", "--duration", "1h"]).finish();
    done.assert_code(0).assert_silent();
    assert!(done.out().starts_with("nothing gains: no process "), "{done}");
}

#[test]
fn three_hundred_processes_are_one_program() {
    require!(is_root(), "needs root to be another user");
    let public = Public::new();
    let tool = public.add(tiexecctl(), "tiexecctl", 0o755);
    let brood = public.add(&program("brood", Kind::DynamicNoPie), "brood", 0o755);
    let user = user(2);
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    let mut brood = Run::new(&brood, ["300"]).plain().behind(&user).start();
    brood.wait_line("ready");
    let args = ["scan", "--duration", "1s", "--json"];
    let seen = |scan: &Value| {
        let row = row(scan, brood.pid()).unwrap_or_else(|| panic!("{scan}"));
        row["pids"].as_array().expect("PIDs").len()
    };
    // Root samples all at once.
    let done = ctl(args);
    done.assert_code(0).assert_silent();
    assert_eq!((seen(&json(&done)), &json(&done)["not_sampled"]), (301, &0.into()));
    if !may_sample() {
        return;
    }
    // A user opens each, as far as the descriptors go.
    let limited: Vec<&str> = ["prlimit", "--nofile=100:100"].into_iter().chain(user).collect();
    let done = started(&limited, &tool, args).finish();
    done.assert_code(0).assert_silent();
    let scan = json(&done);
    assert_eq!(seen(&scan), 301);
    assert!(scan["not_sampled"].as_u64().is_some_and(|count| count > 200), "{scan}");
}

#[test]
fn a_terminal_shows_the_progress_and_then_the_table() {
    require!(installed("tmux").is_some(), "no tmux");
    let hot = small("hotset", Kind::DynamicNoPie);
    let hot = spinning(hot.path(), &[]);
    // Without the trap, Ctrl-C would end the shell, too, and the screen with it.
    let command = format!("trap : INT; '{}' scan --duration 10m", tiexecctl().display());
    // Other programs of the machine are in the table, too.
    let screen = Screen::new(80, 400, &command, &[]);
    screen.go();
    screen.wait_for("sampling ");
    work([hot.pid()], SOME);
    screen.keys(&["C-c"]);
    let text = screen
        .wait_until("the table", |text| text.contains("user mode)") && text.contains("hotset"));
    assert!(
        text.contains("SAVES %     RANGE %  OF ITS TIME %  CPU %  HUGE %  WAY      PROGRAM"),
        "{text}"
    );
    assert!(!text.contains("sampling ") && !text.contains("estimating"), "{text}");
}

#[test]
fn wrong_options() {
    for args in [&["scan", "1"][..], &["scan", "--duration", "0s"], &["scan", "-F", "0"]] {
        ctl(args).assert_code(2);
    }
    require!(is_root(), "needs root to hide the processes of others");
    let done = ctl_behind(
        &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
        ["scan", "--duration", "1h"],
    );
    done.assert_code(0).assert_silent();
    assert!(done.out().starts_with("nothing gains: "), "{done}");
}
