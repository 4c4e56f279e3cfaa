//! After `tiexecctl warm`, plain execs have their text on huge pages of the page cache, with every earlier state of the
//! cache.

use std::path::{Path, PathBuf};

use support::fresh::collapses_files;
use support::programs::whole_node;
use support::warm::{
    assert_warmed, assert_warms, cold, command, directory, has_large_folios, huge, small, warm,
    watched,
};
use support::{Kind, Pinned, Run, installed, pmd_size, program, program_big, require};

/// Warms a copy of a program, first uncached, then cached in small folios. Returns the bytes that become huge.
fn warms(program: &Path) -> u64 {
    let dir = directory();
    let copy = cold(program, dir.path());
    let first = warm(&["--json"], &[&copy]);
    let report = first.file();
    assert_eq!(report["path"], *copy.to_string_lossy());
    assert_eq!(report["reason"], serde_json::Value::Null);
    let bytes = assert_warmed(&first, &copy);

    let copy = small(program, dir.path());
    // khugepaged may collapse what the look maps, where it can.
    assert!(huge(&copy) == 0 || collapses_files());
    assert_eq!(assert_warms(&copy), bytes);
    bytes
}

#[test]
fn programs_of_every_kind() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    for kind in [Kind::DynamicNoPie, Kind::DynamicPie, Kind::StaticNoPie, Kind::StaticPie] {
        let bytes = warms(&program("hold", kind));
        assert!(bytes >= 4 << 20, "{kind:?}: {bytes}");
    }
}

/// Of a cached file, at most the huge pages are evicted that are read again.
#[test]
fn nothing_is_lost_from_the_page_cache() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    require!(installed("strace").is_some(), "no strace");
    let dir = directory();
    let copy = small(&program_big("hold", Kind::StaticNoPie, 24), dir.path());
    let (done, calls) = watched(&command(&["--json"], &[&copy]));
    let huge = assert_warmed(&done, &copy);
    assert!(huge >= 20 << 20, "{}", done.out);
    // Of a length of 0, posix_fadvise(2) would evict the rest of the file.
    assert!(calls.evicted.iter().all(|len| (1..=huge).contains(len)), "{:?}", calls.evicted);
    assert!(calls.evicted.iter().sum::<u64>() <= huge, "{:?}", calls.evicted);
}

/// What the guide's page of undo says.
#[test]
fn dd_drops_the_huge_pages() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let dir = directory();
    let copy = cold(&program_big("hold", Kind::StaticNoPie, 24), dir.path());
    assert_warms(&copy);
    let file = format!("if={}", copy.display());
    Run::new("dd", [&*file, "iflag=nocache", "count=0"]).plain().output().assert_code(0);
    assert_eq!(huge(&copy), 0);
}

#[test]
fn node() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let Some(node) = whole_node() else {
        return support::skip("no node on PATH whose text is its own");
    };
    warms(&node);
}

fn printed(command: &str, arguments: &[&str]) -> Option<PathBuf> {
    let output = std::process::Command::new(command).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(PathBuf::from(text.trim())).filter(|path| path.is_absolute())
}

#[test]
fn a_compiler() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let Some(cc1plus) = printed("gcc", &["-print-prog-name=cc1plus"]) else {
        return support::skip("no cc1plus");
    };
    warms(&cc1plus);
}

#[test]
fn a_shared_library() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let Some(sysroot) = printed("rustc", &["--print", "sysroot"]) else {
        return support::skip("no rustc on PATH");
    };
    let library = std::fs::read_dir(sysroot.join("lib")).ok().and_then(|mut entries| {
        entries.find_map(|e| {
            e.ok().filter(|e| e.file_name().to_string_lossy().starts_with("librustc_driver"))
        })
    });
    let Some(library) = library else { return support::skip("no librustc_driver") };
    warms(&library.path());
}

/// Minor faults of a process so far.
fn minor_faults(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let after_name = stat.rsplit_once(')').expect("a name").1;
    after_name.split_whitespace().nth(7).and_then(|n| n.parse().ok()).expect("minflt")
}

#[test]
fn a_plain_exec_of_a_warm_file_has_huge_text_and_fewer_faults() {
    require!(has_large_folios(directory().path()), "no large folios on this file system");
    let dir = directory();
    let copy = small(&program_big("hold", Kind::DynamicNoPie, 24), dir.path());
    let plain = Run::new(&copy, ["0"]).plain();
    let run = || {
        let held = plain.hold();
        let seen = (held.coverage(), minor_faults(held.pid()));
        held.finish().assert_code(0);
        seen
    };
    let pinned = Pinned::new(&copy);
    let (before, faults_before) = run();
    assert_eq!(before.huge, 0, "{before:?}");
    drop(pinned);
    let bytes = assert_warms(&copy);
    // This reads the pages again that the kernel has reclaimed since.
    let _pinned = Pinned::huge(&copy);
    let (after, faults_after) = run();
    assert!(after.is_full() && after.huge == bytes, "{after:?}, {bytes}");
    // One fault maps at most 16 base pages, but a whole huge page.
    let saved = after.huge / (16 * 4096) - after.huge / pmd_size();
    assert!(
        faults_after + saved / 2 < faults_before,
        "{faults_before} before, {faults_after} after"
    );
    assert_eq!(huge(&copy), after.huge);
}
