//! `attach` and `revert` of several processes print those with the same outcome as one line, and count a copy once.

use serde_json::Value;

use support::attaching::{ctl, held, small, switched};
use support::child::eventually;
use support::{Done, Held, Kind, Public, Run, is_root, require};

/// The children of a family, which end with it.
const CHILDREN: usize = 12;

fn lines(done: &Done) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {done}"));
    done.out().lines().map(line).collect()
}

fn family(program: &std::path::Path) -> Held {
    let mut family = Run::new(program, [CHILDREN.to_string()]).plain().start();
    family.wait_line("ready");
    family
}

fn children(family: &Held) -> Vec<String> {
    let said = family.out_text();
    said.lines().filter_map(|line| Some(line.strip_prefix("child ")?.to_owned())).collect()
}

/// Returns how many processes the line is about.
fn processes(line: &str) -> usize {
    let count = line.split_once(" processes").and_then(|(before, _)| before.rsplit(' ').next());
    count.map_or(1, |count| count.parse().unwrap_or_else(|e| panic!("{e}: {line}")))
}

/// Asserts that the output has few lines about the whole family, with these words in each, and the sum after them.
fn assert_grouped(done: &Done, all: usize, words: &[&str]) {
    done.assert_code(0).assert_silent();
    let out = done.out();
    let lines: Vec<&str> = out.lines().collect();
    let (sum, families) = lines.split_last().expect("lines");
    // The parent waits in another call than its children, and may be unlike them.
    assert!((1..=2).contains(&families.len()), "{done}");
    assert_eq!(families.iter().map(|line| processes(line)).sum::<usize>(), all, "{done}");
    for line in families {
        assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {done}");
    }
    assert!(sum.starts_with(&format!("all {all} processes   ")), "{done}");
}

/// The revert that `attach --for` schedules. `revert PID` reverts only that process.
#[test]
fn a_scheduled_revert_reaches_those_forked_later() {
    let copy = small("brood", Kind::DynamicNoPie);
    let mut family = Run::new(copy.path(), ["0"]).plain().start();
    family.wait_line("ready");
    let pid = family.pid();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let begun = fields.split(' ').nth(19).expect("a start time");
    ctl(["attach", "--backing=image", &pid.to_string()]).assert_code(0);
    family.write(b"\n");
    eventually("a child", || family.has_said("child"));
    let child = children(&family)[0].parse().expect("a process");
    assert!(switched(child) > 0);
    let revert = ["revert", "--quiet", "--forked", "--started-at", begun, &pid.to_string()];
    ctl(revert).assert_code(0).assert_silent();
    assert_eq!((switched(pid), switched(child)), (0, 0));
    drop(family);
}

#[test]
fn one_line_for_the_same_outcome() {
    let copy = small("brood", Kind::DynamicNoPie);
    let exe = copy.path().to_string_lossy().into_owned();
    let family = family(copy.path());
    let all = CHILDREN + 1;
    let done = ctl(["attach", "--dry-run", "--backing=image", "--exe", &exe]);
    done.assert_code(0).assert_silent();
    assert!(done.out().contains(" processes, each: plan   text "), "{done}");
    assert!(done.out().matches("plan   text ").count() <= 2, "{done}");

    let done = ctl(["attach", "--backing=image", "--exe", &exe]);
    let by = "%) by image, one thread stopped for ";
    let undo = " ms; undo: tiexecctl revert --exe ";
    assert_grouped(&done, all, &[": huge ", by, undo]);
    let sum = done.out().lines().last().expect("a sum").to_owned();
    assert!(sum.contains("   one copy of "), "{done}");
    // What `inspect` sums up is the same.
    assert_eq!(ctl(["inspect", "--exe", &exe]).out().lines().last(), Some(&*sum), "{done}");
    let again = ctl(["attach", "--backing=image", "--exe", &exe]);
    assert_grouped(&again, all, &[": huge ", "; nothing to do"]);
    let each = ctl(["attach", "--backing=image", "--each", "--exe", &exe]).out();
    assert_eq!(each.matches("; nothing to do").count(), all, "{each}");
    assert_eq!(each.lines().last(), Some(&*sum), "{each}");

    let done = ctl(["revert", "--exe", &exe]);
    assert_grouped(&done, all, &[" MiB text are the file's own again"]);
    assert!(done.out().trim_end().ends_with(" MiB (100 %)"), "{done}");
    let done = ctl(["revert", "--each", "--exe", &exe]);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out().matches(": nothing to revert\n").count(), all, "{done}");
    family.finish().assert_code(7);
}

#[test]
fn an_object_for_each_process_and_the_sum() {
    let copy = small("brood", Kind::DynamicNoPie);
    let exe = copy.path().to_string_lossy().into_owned();
    let family = family(copy.path());
    let done = ctl(["attach", "--json", "--backing=image", "--exe", &exe]);
    done.assert_code(0).assert_silent();
    let told = lines(&done);
    let (sum, reports) = told.split_last().expect("lines");
    assert_eq!((&sum["kind"], reports.len()), (&"attach_sum".into(), CHILDREN + 1), "{sum}");
    assert_eq!(sum["processes"], reports.len(), "{sum}");
    let total = |all: &[Value], key: &str| {
        all.iter().map(|one| one[key].as_u64().expect("a number")).sum::<u64>()
    };
    for key in ["text_bytes", "huge_bytes"] {
        assert_eq!(sum[key], total(reports, key), "{key}: {sum}");
    }
    let of_one = total(reports[0]["files"].as_array().expect("files"), "cost_bytes");
    assert!(of_one > 0, "{done}");
    assert_eq!((&sum["copies"], &sum["copies_bytes"]), (&1.into(), &of_one.into()), "{sum}");
    let told = lines(&ctl(["revert", "--json", "--exe", &exe]));
    let (sum, reverts) = told.split_last().expect("lines");
    assert_eq!((&sum["kind"], reverts.len()), (&"revert_sum".into(), CHILDREN + 1), "{sum}");
    for key in ["found_bytes", "reverted_bytes"] {
        assert_eq!(sum[key], total(reverts, key), "{key}: {sum}");
    }
    assert!(total(reverts, "reverted_bytes") > 0, "{sum}");
    family.finish().assert_code(7);
}

/// A process with another outcome has its own line, and a failure has its own message.
#[test]
fn other_outcomes_have_their_own_lines() {
    let copy = small("brood", Kind::DynamicNoPie);
    let family = family(copy.path());
    let mut all = children(&family);
    all.truncate(4);
    ctl(["attach", "-q", "--backing=image", &all[1]]).assert_code(0);
    let ended = Run::new("/bin/true", [""; 0]).plain().start();
    let gone = ended.pid().to_string();
    ended.finish();
    let mut words = vec!["attach", "--backing=image", &gone];
    words.extend(all.iter().map(String::as_str));
    let done = ctl(words);
    done.assert_code(3);
    let others = format!("{} {} {}", all[0], all[2], all[3]);
    let out = done.out();
    assert_eq!(out.lines().count(), 3, "{done}");
    assert_eq!(out.matches(&format!(" 3 processes {others}, each: huge ")).count(), 1, "{done}");
    assert!(out.contains(&format!("; undo: tiexecctl revert {others}\n")), "{done}");
    let own = out.lines().find(|line| line.contains(&format!(" {}: huge ", all[1])));
    assert!(own.is_some_and(|line| line.ends_with("; nothing to do")), "{done}");
    assert!(out.lines().last().expect("lines").starts_with("all 4 processes   "), "{done}");
    assert_eq!(done.err().lines().count(), 1, "{done}");
    assert!(done.err().contains(&format!("cannot attach to process {gone}: ")), "{done}");
    // A single process has no sum.
    assert_eq!(ctl(["revert", &all[0]]).out().lines().count(), 1);
    family.finish().assert_code(7);
}

/// The child process that works on another user's processes tells the outcomes.
#[test]
fn processes_of_another_user() {
    require!(is_root(), "needs root to be another user");
    let copy = small("hold", Kind::DynamicNoPie);
    let public = Public::new();
    let theirs = public.add(copy.path(), "hold", 0o755);
    let front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let start = || Run::new(&theirs, ["7"]).plain().behind(front).hold();
    let all = [start(), start(), held(&copy)];
    let pids = all.each_ref().map(|held| held.pid().to_string());
    let words = pids.each_ref().map(String::as_str);
    let done = ctl([&["attach", "--backing=image"], &words[..]].concat());
    done.assert_code(0).assert_silent();
    assert!(all.iter().all(|held| switched(held.pid()) > 0), "{done}");
    let family = format!(" 2 processes {} {}, each: huge ", pids[0], pids[1]);
    assert!(done.out().contains(&family), "{done}");
    assert!(done.out().contains(&format!(" {}: huge ", pids[2])), "another program: {done}");
    assert!(done.out().contains("\nall 3 processes   text "), "{done}");
    let done = ctl([&["revert"], &words[..]].concat());
    done.assert_code(0).assert_silent();
    assert_eq!(done.out().lines().count(), 3, "{done}");
    all.into_iter().for_each(|held| {
        held.finish().assert_code(7);
    });
}
