//! `inspect`, `doctor` and `advise` accept the selectors of `attach`: lists, `--exe` and `--unit`. `inspect` prints the
//! sum.

use std::process::{Command, Stdio};

use serde_json::Value;

use support::attaching::{ctl, held, small};
use support::child::eventually;
use support::{Done, Kind, Run, is_root, require};

fn lines(done: &Done) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {done}"));
    done.out().lines().map(line).collect()
}

fn sum<'a>(reports: impl IntoIterator<Item = &'a Value>, key: &str) -> u64 {
    reports.into_iter().map(|report| report[key].as_u64().expect("a number")).sum()
}

#[test]
fn lists_and_every_process_that_runs_a_file() {
    let copy = small("hold", Kind::DynamicNoPie);
    let all = [held(&copy), held(&copy), held(&copy)];
    let pids: Vec<String> = all.iter().map(|held| held.pid().to_string()).collect();
    ctl(["attach", "--backing=image", &pids[0]]).assert_code(0);
    let exe = copy.path().to_string_lossy().into_owned();
    let list = pids.join(",");
    let mut texts = Vec::new();
    for args in
        [&pids.iter().map(String::as_str).collect::<Vec<_>>()[..], &[&list], &["--exe", &exe]]
    {
        let done = ctl([&["inspect", "--json"], args].concat());
        done.assert_code(0).assert_silent();
        let told = lines(&done);
        let (sums, reports) = told.split_last().expect("lines");
        assert_eq!((reports.len(), &sums["kind"]), (3, &"inspect_sum".into()), "{done}");
        assert_eq!(sums["processes"], 3, "{done}");
        for key in ["text_bytes", "huge_bytes"] {
            assert_eq!(sums[key], sum(reports, key), "{key}: {done}");
        }
        assert!(sum(reports, "huge_bytes") > 0, "{done}");
        let table = ctl([&["inspect"], args].concat()).out();
        // One has a copy, and two are alike.
        assert_eq!(table.matches("FILE ").count(), 2, "{table}");
        let two = format!("2 processes {} {}, each   text ", pids[1], pids[2]);
        assert_eq!(table.matches(&two).count(), 1, "{table}");
        let last = table.lines().last().expect("lines");
        assert!(last.starts_with("all 3 processes   text "), "{table}");
        assert!(last.contains("   one copy of "), "{table}");
        let each = ctl([&["inspect", "--each"], args].concat()).out();
        assert_eq!(each.matches("FILE ").count(), 3, "{each}");
        assert_eq!(each.lines().last(), Some(last), "{each}");
        texts.push(table);
        let done = ctl([&["doctor"], args].concat());
        done.assert_code(0).assert_silent();
        assert_eq!(done.out().matches("process ").count(), 3, "{done}");
        // All selected processes are idle.
        let done = ctl([&["advise", "--duration", "100ms"], args].concat());
        done.assert_code(1);
        assert!(
            done.err().contains("cannot advise on 3 processes: there was nothing to sample"),
            "{done}"
        );
    }
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "{texts:?}");
    // For a single process there is no sum.
    assert_eq!(lines(&ctl(["inspect", "--json", &pids[0]])).len(), 1);
    // The revert selects the same processes.
    let done = ctl(["revert", "--exe", &exe]);
    done.assert_code(0).assert_silent();
    assert!(done.out().lines().last().is_some_and(|sum| sum.starts_with("all 3 ")), "{done}");
    let ended = Run::new("/bin/true", [""; 0]).plain().start();
    let gone = ended.pid().to_string();
    ended.finish();
    ctl(["inspect", &gone, &pids[0]]).assert_code(3);
    for held in all {
        held.finish().assert_code(7);
    }
}

/// Forty processes that share a copy take one table, and the copy counts once.
#[test]
fn a_family_is_one() {
    let copy = small("brood", Kind::DynamicNoPie);
    let exe = copy.path().to_string_lossy().into_owned();
    let mut brood = Run::new(copy.path(), ["40"]).plain().start();
    brood.wait_line("ready");
    ctl(["attach", "-q", "--backing=image", "--exe", &exe]).assert_code(0);
    let done = ctl(["inspect", "--exe", &exe]);
    done.assert_code(0).assert_silent();
    let table = done.out();
    // The parent waits in another state than its children, and may have other memory.
    let tables = table.matches("FILE ").count();
    assert!((1..=2).contains(&tables), "{table}");
    assert!(table.contains(" processes, each   text "), "{table}");
    assert!(table.contains("undo: tiexecctl revert --exe "), "{table}");
    let last = table.lines().last().expect("lines");
    assert!(last.starts_with("all 41 processes   text "), "{table}");
    let told = lines(&ctl(["inspect", "--json", "--exe", &exe]));
    let (sums, reports) = told.split_last().expect("lines");
    assert_eq!((reports.len(), &sums["copies"]), (41, &1.into()), "{sums}");
    let copied = reports[0]["files"].as_array().expect("files");
    assert_eq!(sums["copies_bytes"], sum(copied, "cost_bytes"), "{sums}");
    let status = ctl(["status", "--json"]).out();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let rows = status["programs"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["exe"] == exe).unwrap_or_else(|| panic!("{status}"));
    assert_eq!((&row["processes"], &row["copies"]), (&41.into(), &1.into()), "{row}");
    assert_eq!(row["copies_bytes"], sums["copies_bytes"], "{row}");
    let of_all = &status["machine"]["copies_bytes"];
    assert!(of_all.as_u64() >= row["copies_bytes"].as_u64(), "{status}");
    ctl(["revert", "-q", "--exe", &exe]).assert_code(0);
    let after = ctl(["inspect", "--exe", &exe]).out();
    assert!(!after.lines().last().expect("lines").contains("copy of"), "{after}");
    brood.finish().assert_code(7);
}

/// The service's process ends while the first report waits for the reader.
#[test]
fn a_process_that_ends_meanwhile_is_skipped() {
    let copy = small("hold", Kind::DynamicNoPie);
    let mut all = vec![held(&copy), held(&copy), held(&copy)];
    all.sort_by_key(|held| held.pid());
    let pids: Vec<String> = all.iter().map(|held| held.pid().to_string()).collect();
    let exe = copy.path().to_string_lossy().into_owned();
    for selected in [vec!["--exe", &exe], pids.iter().map(String::as_str).collect()] {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a smaller pipe");
        std::io::Write::write_all(&mut writer, &vec![b' '; size]).expect("room");
        let mut tool = Command::new(support::tiexecctl());
        tool.args(["inspect", "--json"]).args(&selected).stdout(writer).stderr(Stdio::piped());
        let child = tool.spawn().expect("tiexecctl");
        // The command has the pipe open, too.
        drop(tool);
        eventually("tiexecctl waits for its reader", || {
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id()));
            call.is_ok_and(|call| call.starts_with(&format!("{} 0x1 ", libc::SYS_write)))
        });
        if let Some(last) = (all.len() == 3).then(|| all.pop()).flatten() {
            last.finish().assert_code(7);
        }
        let mut told = String::new();
        std::io::Read::read_to_string(&mut reader, &mut told).expect("its output");
        let done = child.wait_with_output().expect("tiexecctl");
        let err = String::from_utf8_lossy(&done.stderr).into_owned();
        let sums: Value = serde_json::from_str(told.lines().last().expect("lines")).expect("JSON");
        assert_eq!(sums["processes"], 2, "{told}");
        // A process that the user has named is an error.
        let named = selected.len() == 3;
        assert_eq!(done.status.code(), Some(if named { 3 } else { 0 }), "{err}");
        assert_eq!(err.lines().count(), usize::from(named), "{err}");
    }
    for held in all {
        held.finish().assert_code(7);
    }
}

/// For root, a child process examines another user's process. The sum includes that process.
#[test]
fn processes_of_several_users() {
    require!(is_root(), "needs root to be another user");
    let copy = small("hold", Kind::DynamicNoPie);
    let own = held(&copy);
    let front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let public = support::Public::new();
    let theirs = public.add(copy.path(), "hold", 0o755);
    let other = Run::new(&theirs, ["7"]).plain().behind(front).hold();
    let (own_pid, other_pid) = (own.pid().to_string(), other.pid().to_string());
    let done = ctl(["inspect", "--json", &own_pid, &other_pid]);
    done.assert_code(0).assert_silent();
    let told = lines(&done);
    let (sums, reports) = told.split_last().expect("lines");
    let pids: Vec<&Value> = reports.iter().map(|report| &report["pid"]).collect();
    assert_eq!(pids, [&Value::from(own.pid()), &Value::from(other.pid())], "{done}");
    assert_eq!(sums["text_bytes"], sum(reports, "text_bytes"), "{done}");
    for held in [own, other] {
        held.finish().assert_code(7);
    }
}

#[test]
fn a_selection_of_nobody() {
    for command in ["inspect", "doctor", "advise", "attach", "revert"] {
        let done = ctl([command, "--unit", "tiexec-no-such-unit"]);
        done.assert_code(4);
        assert!(
            done.err().contains("cannot find a process of unit tiexec-no-such-unit.service: "),
            "{done}"
        );
        assert!(done.err().contains("; fix: ") && done.out().is_empty(), "{done}");
        let done = ctl([command, "--exe", "/nonexistent/program"]);
        done.assert_code(4);
        assert!(done.err().contains("there is no such file"), "{done}");
        ctl([command, "1", "--exe", "/bin/true"]).assert_code(2);
        ctl([command, "1,x"]).assert_code(2);
    }
}
