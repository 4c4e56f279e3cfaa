//! A launch also puts the text of shared objects on huge pages, before the program's first instruction, and the objects
//! work as without TiExec.

use std::path::Path;

use support::attaching::descriptors;
use support::objects::{Made, WithObject, object_coverage, own_text};
use support::smaps::{children, status_field, vmas};
use support::{Held, Pinned, Report, Run, installed, pmd_size, require};

/// Asserts that every whole huge page of the object's text is PMD-mapped, and that the process contains nothing else of
/// TiExec.
fn assert_switched(held: &Held, with: &WithObject) {
    let pid = held.pid();
    let coverage = with.coverage(pid);
    assert!(coverage.is_full(), "{coverage:?}");
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"));
    assert_eq!(children(pid), [0; 0], "no helper is left, dead or alive");
    let waited = held.said("wait").unwrap_or_default();
    assert!(waited.starts_with("No child process"), "an ordinary wait finds nobody: {waited}");
    let strange =
        descriptors(pid).into_iter().filter(|fd| fd.contains("tiexec") || fd.contains("socket:"));
    assert_eq!(strange.collect::<Vec<_>>(), [""; 0]);
    let main = std::fs::read_link(format!("/proc/{pid}/exe")).expect("an own child's program");
    assert_eq!(main, with.program);
}

fn assert_works(run: &Run, with: &WithObject) {
    let held = run.hold();
    assert_switched(&held, with);
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn an_object_of_each_linker_and_libc() {
    for made in [Made::Gnu, Made::Lld, Made::Musl, Made::NoRelro] {
        require!(made.can_build(), "no compiler or linker for {made:?}");
        let with = WithObject::new(made);
        let plain = with.run(&["7"]).plain().hold();
        assert_eq!(with.coverage(plain.pid()).huge, 0, "{made:?}: nothing is huge without us");
        plain.finish().assert_code(7);
        assert_works(&with.run(&["7"]), &with);
    }
}

#[test]
fn the_program_and_its_object() {
    let with = WithObject::sized(Made::Gnu, 6, 8);
    let report = Report::new();
    let held = report.of(&with.run(&["7"])).hold();
    assert_switched(&held, &with);
    let main = held.coverage();
    assert!(main.is_full(), "{main:?}");
    let said = report.read();
    assert_eq!(said["outcome"], "switched", "{said}");
    assert_eq!(said["huge_bytes"], main.huge + with.coverage(held.pid()).huge);
    assert!(said["launch"]["linked_stop_us"].as_u64().is_some_and(|us| us > 0), "{said}");
    let file = |path: &Path| {
        let files = said["files"].as_array().expect("files").clone();
        files.into_iter().find(|file| file["path"] == path.to_string_lossy().as_ref())
    };
    for path in [&with.program, &with.object] {
        let file = file(path).unwrap_or_else(|| panic!("{} in {said}", path.display()));
        assert_eq!(file["backings"][0], "image", "{said}");
    }
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn bound_at_once_and_preloaded() {
    let with = WithObject::new(Made::Gnu);
    assert_works(&with.run(&["7"]).env("LD_BIND_NOW", "1"), &with);
    // The object is preloaded into a program that does not need it, and that has no other object with text.
    let other = WithObject::new(Made::Gnu);
    // In LD_PRELOAD, a blank is the end of a name.
    let preloaded = support::without_blanks(other.dir()).join("libbig_object.so");
    let run = with.run(&["7"]).env("LD_PRELOAD", preloaded);
    let held = run.hold();
    let coverage = object_coverage(held.pid(), &other.object);
    assert!(coverage.is_full(), "{coverage:?}");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn exceptions_and_backtraces_go_through_switched_text() {
    require!(Made::Cxx.can_build(), "no C++ compiler");
    let with = WithObject::new(Made::Cxx);
    let held = with.run(&["7"]).hold();
    let coverage = with.coverage(held.pid());
    assert!(coverage.is_full(), "{coverage:?}");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_huge_page_with_a_text_relocation_stays() {
    let with = WithObject::new(Made::TextRelocation);
    let report = Report::new();
    let held = report.of(&with.run(&["7"])).hold();
    let coverage = with.coverage(held.pid());
    assert_eq!(coverage.huge, coverage.whole - pmd_size(), "{coverage:?}");
    let written: u64 =
        own_text(held.pid(), &with.object).iter().map(|vma| vma.counter("Private_Dirty")).sum();
    assert!(written > 0, "the relocated page is the process's own still");
    let said = report.read();
    let files = said["files"].as_array().expect("files");
    let rests = files.iter().flat_map(|file| file["rest"].as_array().cloned().unwrap_or_default());
    assert!(rests.into_iter().any(|rest| rest["reason"] == "modified_text"), "{said}");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn an_object_replaced_before_the_entry_point() {
    let with = WithObject::new(Made::Gnu);
    let by = with.dir().join("other.so");
    std::fs::copy(&with.program, &by).expect("a copy");
    let run = with.run(&["7"]).env("OBJECT_INIT", "replace").env("OBJECT_FILE", &with.object);
    let held = run.env("OBJECT_BY", &by).hold();
    // The program itself checks all the time that the bytes equal the mapped file's.
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn selected_or_not() {
    let with = WithObject::sized(Made::Gnu, 6, 6);
    for (select, main, object) in
        [("main", true, false), ("dso", false, true), ("none", false, false), ("all", true, true)]
    {
        let held = with.run(&["7"]).options(["--select", select]).hold();
        let (of_main, of_object) = (held.coverage(), with.coverage(held.pid()));
        assert_eq!((of_main.huge > 0, of_object.huge > 0), (main, object), "{select}");
        assert!(!main || of_main.is_full(), "{select}: {of_main:?}");
        assert!(!object || of_object.is_full(), "{select}: {of_object:?}");
        held.finish().assert_code(7).assert_silent();
        let by_environment = Run::new(&with.program, ["7"])
            .env("TIEXEC", format!("backing=image,deadline=2m,select={select}"))
            .hold();
        assert_eq!(with.coverage(by_environment.pid()).huge > 0, object, "TIEXEC, {select}");
        by_environment.finish().assert_code(7).assert_silent();
    }
    with.run(&["7"]).options(["--select", "text"]).output().assert_code(125);
}

#[test]
fn without_text_to_gain_there_is_no_second_stop() {
    let with = WithObject::sized(Made::Gnu, 6, 1);
    let report = Report::new();
    report.of(&with.run(&["7"])).hold().finish().assert_code(7).assert_silent();
    let said = report.read();
    assert!(
        said["launch"]["stop_us"].is_u64() && said["launch"]["linked_stop_us"].is_null(),
        "{said}"
    );
    // Neither the program nor its object fills a huge page, so the launch is a plain exec.
    let with = WithObject::sized(Made::Gnu, 1, 1);
    report.of(&with.run(&["7"])).hold().finish().assert_code(7).assert_silent();
    let said = report.read();
    assert_eq!((&said["reason"], &said["launch"]), (&"too_small".into(), &serde_json::Value::Null));
}

/// Without an image store an object has the huge pages of its page cache, which a plain exec also maps. So no helper
/// starts and, without a watch of the start, no other process. The test runs under strace, where a launch that needs a
/// helper reports that it cannot have one.
#[test]
fn an_object_of_the_page_cache_costs_no_helper() {
    require!(installed("strace").is_some(), "no strace");
    let mut with = WithObject::new(Made::Gnu);
    let dir = with.dir().to_owned();
    let run = Run::new(&with.program, ["7"]).options(["--deadline", "2m", "--settle=0"]);
    let traced = |run: &Run| {
        let log = dir.join("log").to_string_lossy().into_owned();
        let held = run.clone().behind(["strace", "-f", "-o", &log]).hold();
        (held.finish(), std::fs::read_to_string(&log).expect("strace's log"))
    };
    let (done, log) = traced(&run);
    done.assert_code(7).assert_silent();
    // strace escapes letters beyond ASCII, so only the end of the path is known.
    let exec = "/program\", [";
    let before = log.split(exec).next().expect("the log begins with tiexec's calls");
    let count = |call: &str| before.matches(&format!(" {call}(")).count();
    assert!(before.len() < log.len(), "{log}");
    assert_eq!(["clone", "clone3", "fork", "ptrace"].map(count), [0; 4], "{log}");
    // An edge, a copy and a report need a helper.
    for options in [&["--edges=pad"][..], &["--backing=image"], &["--report=/dev/null"]] {
        traced(&run.clone().options(options)).0.assert_failed_open(&["already_traced"]);
    }
    if support::fresh::huge_folios() {
        with.uncache_object();
        let held = run.hold();
        let coverage = with.coverage(held.pid());
        // The program touches all of it. No process has a huge page mapped between the exec and the touch, so the kernel
        // may reclaim one, which the program then reads in small folios.
        assert!(coverage.whole > 0 && 2 * coverage.huge >= coverage.whole, "{coverage:?}");
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn strict_takes_objects_into_account() {
    let with = WithObject::new(Made::Gnu);
    let done = with.run(&["7"]).options(["--strict"]).hold().finish();
    done.assert_code(7).assert_silent();
    let done = with.run(&["7"]).options(["--strict", "--deadline", "0"]).output();
    done.assert_code(125);
    assert_eq!(done.out(), "", "its main has not run");
}

#[test]
fn an_object_in_huge_folios_is_not_copied() {
    require!(support::fresh::huge_folios(), "{}", support::fresh::NO_HUGE_FOLIOS);
    let mut with = WithObject::new(Made::Gnu);
    with.uncache_object();
    let _pinned = Pinned::huge(&with.object);
    let report = Report::new();
    let held = report.of(&Run::new(&with.program, ["7"]).options(["--deadline", "2m"])).hold();
    let coverage = with.coverage(held.pid());
    assert!(coverage.is_full(), "{coverage:?}");
    assert!(!vmas(held.pid()).iter().any(|vma| vma.is_switched()), "nothing is a copy");
    held.finish().assert_code(7).assert_silent();
    assert_eq!(report.read()["launch"]["bytes_copied"], 0);
}

#[test]
fn a_dry_run_tells_of_objects_and_runs_none_of_their_code() {
    let with = WithObject::new(Made::Gnu);
    // The object's init function would end the program with another status.
    let run = with.run(&["7"]).env("OBJECT_INIT", "exit");
    let done = run.clone().options(["--dry-run"]).output();
    done.assert_code(0);
    assert!(done.out().contains("libbig_object.so") && done.out().contains("by image"), "{done}");
    let done = run.options(["--dry-run", "--json"]).output();
    let said: serde_json::Value = serde_json::from_slice(&done.stdout).expect("one line of JSON");
    assert_eq!(said["huge_bytes"], 0, "{said}");
    let object = &said["objects"];
    let text = &object["texts"][0];
    let at =
        |end: &str| u64::from_str_radix(text[end].as_str().expect("an address"), 16).expect("hex");
    let pmd = support::pmd_size();
    let whole = at("end") / pmd * pmd - at("start").next_multiple_of(pmd);
    assert!(whole >= 2 * pmd, "{said}");
    assert_eq!(object["huge_bytes"].as_u64(), Some(whole), "{said}");
}
