//! With an image store, the text of running programs comes from the store: one image, with its symbols, serves all
//! programs that map the file at the same place.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::attaching::{Before, assert_untouched, ctl, json, revert};
use support::smaps::{Vma, vmas};
use support::store::{self, IMAGES, own_run, set_up};
use support::{Held, Kind, Public, Run, installed, is_root, pmd_size, program, require};

/// The mappings of text from the store.
fn stored(pid: i32) -> Vec<Vma> {
    vmas(pid).into_iter().filter(|vma| vma.path.starts_with(IMAGES)).collect()
}

/// Attaches. Returns the reports.
fn attach(pids: &str) -> Vec<serde_json::Value> {
    let done = ctl(["attach", "--backing=image", "--json", pids]);
    done.assert_code(0).assert_silent();
    let text = done.out();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn assert_stored(pid: i32) {
    let ours = stored(pid);
    assert!(!ours.is_empty(), "{:?}", vmas(pid));
    for vma in &ours {
        assert_eq!(vma.perms, "r-xp", "{vma:?}");
        assert_eq!(vma.counter("ShmemPmdMapped"), vma.end - vma.start, "{vma:?}");
    }
}

/// Sets up a store, and a program with this mode in small folios.
fn setting(name: &str, kind: Kind, mode: u32) -> (Public, PathBuf) {
    own_run();
    set_up("128M");
    let public = Public::new();
    let program = public.add(&program(name, kind), name, mode);
    support::warm::cache_small(&program);
    (public, program)
}

fn held(program: &Path) -> Held {
    Run::new(program, ["7"]).plain().hold()
}

#[test]
fn an_image_is_built_once_and_used_again() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("128M");
    let public = Public::new();
    for kind in [Kind::DynamicNoPie, Kind::StaticNoPie] {
        let program = public.add(&program("hold", kind), &format!("{kind:?}"), 0o755);
        support::warm::cache_small(&program);
        let held = held(&program);
        let pid = held.pid();
        let before = Before::of(pid);
        for _ in 0..2 {
            let reports = attach(&pid.to_string());
            let report = &reports[0]["attach"];
            assert_eq!(report["backing"], "store", "{report}");
            assert_eq!(report["setback"], serde_json::Value::Null, "{report}");
            assert_eq!(report["bytes_copied"], 0, "{report}");
            assert_stored(pid);
            revert(pid).assert_code(0);
            assert_untouched(pid, &before);
        }
        let images = store::json(&["list", "--json"]);
        let of_it =
            |image: &&serde_json::Value| image["original"] == program.to_str().expect("UTF-8");
        let count = images["images"].as_array().expect("images").iter().filter(of_it).count();
        assert_eq!(count, 1, "{images}");
        held.finish().assert_code(7);
    }
}

#[test]
fn a_family_maps_one_copy_and_takes_it_along() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, program) = setting("brood", Kind::DynamicPie, 0o755);
    let (parent, all, copies) = loop {
        let parent = Run::new(&program, ["3"]).plain().hold();
        let said = parent.out_text();
        let mut all: Vec<i32> =
            said.lines().filter_map(|line| line.strip_prefix("child ")?.parse().ok()).collect();
        all.push(parent.pid());
        let pids = all.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        // The last object is the sum.
        assert_eq!(attach(&pids).len(), 5);
        // One plain start in 512 lies where launches put the program, so that the store has an image for it.
        if all.iter().all(|&pid| stored(pid).is_empty()) {
            break (parent, pids, copies(&all));
        }
        ctl(["revert", &pids]).assert_code(0);
    };
    assert!(copies.len() >= 4 && copies.iter().all(|copy| *copy == copies[0]), "{copies:?}");
    assert_eq!(store::names(IMAGES), [""; 0]);
    ctl(["revert", &all]).assert_code(0);
    assert_eq!(store::names(IMAGES), [""; 0]);
    drop(parent);
}

/// Device and inode of each copy of text in a memfd that one of the processes maps.
fn copies(pids: &[i32]) -> Vec<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let of_it = |pid: &i32| {
        let pid = *pid;
        let all = vmas(pid).into_iter().filter(|vma| vma.path.starts_with("/memfd:tiexec:"));
        all.map(move |vma| {
            let link = format!("/proc/{pid}/map_files/{:x}-{:x}", vma.start, vma.end);
            let meta = std::fs::metadata(&link).unwrap_or_else(|error| panic!("{link}: {error}"));
            (meta.dev(), meta.ino())
        })
    };
    pids.iter().flat_map(of_it).collect()
}

#[test]
fn reverting_needs_no_store() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, program) = setting("hold", Kind::DynamicNoPie, 0o755);
    let held = held(&program);
    let pid = held.pid();
    let before = Before::of(pid);
    attach(&pid.to_string());
    assert_stored(pid);
    for name in store::names(IMAGES) {
        std::fs::remove_file(Path::new(IMAGES).join(name)).expect("root removes");
    }
    let unmounted = Command::new("umount").args(["--lazy", IMAGES]).status().expect("umount");
    assert!(unmounted.success());
    let done = revert(pid);
    done.assert_code(0).assert_silent();
    assert!(json(&done)["reverted_bytes"].as_u64() >= Some(pmd_size()), "{done}");
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

/// The names of the images that the store holds of `hold`.
fn images() -> Vec<String> {
    store::names(IMAGES).into_iter().filter(|name| name.ends_with(".tiexec")).collect()
}

#[test]
fn what_not_everybody_may_read_gets_an_image_of_its_own() {
    require!(is_root(), "a mount namespace needs root");
    let (_public, program) = setting("hold", Kind::DynamicNoPie, 0o700);
    let held = held(&program);
    let pid = held.pid();
    let reports = attach(&pid.to_string());
    let report = &reports[0]["attach"];
    assert_eq!(report["backing"], "image", "{report}");
    let setback = report["setback"].as_str().expect("a reason");
    assert!(setback.starts_with("not_shareable"), "{setback}");
    assert!(stored(pid).is_empty() && images().is_empty());
    support::attaching::assert_switched(pid);
    revert(pid).assert_code(0);
    held.finish().assert_code(7);
}

#[test]
fn perf_finds_the_names_of_functions_in_an_image() {
    require!(is_root(), "a mount namespace needs root");
    require!(installed("perf").is_some(), "needs perf");
    let (_public, program) = setting("spinner", Kind::DynamicNoPie, 0o755);
    let held = Run::new(&program, ["spin"]).plain().hold();
    let pid = held.pid();
    attach(&pid.to_string());
    assert_stored(pid);
    let work = tempfile::tempdir().expect("a directory");
    let data = work.path().join("perf.data");
    let perf = |args: &[&str]| {
        let output = Command::new("perf").args(args).env("HOME", work.path()).output();
        output.expect("perf runs")
    };
    let data = data.to_str().expect("UTF-8");
    let pid_text = pid.to_string();
    perf(&["record", "-q", "-e", "cpu-clock", "-o", data, "-p", &pid_text, "--", "sleep", "0.5"]);
    let shown = perf(&["report", "-i", data, "--stdio", "--sort", "dso,symbol"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let named = |line: &&str| line.contains(".tiexec") && line.contains("[.] big_");
    assert!(shown.lines().any(|line| named(&line)), "{shown}");
}
