//! Core dumps of a launched program are readable, and not larger than necessary.

use std::path::{Path, PathBuf};

use support::attaching::{assert_switched, ctl, ok, small};
use support::child::tool;
use support::traced::{By, Traced};
use support::{Done, Held, Kind, Run, installed, pmd_size, require};

/// The functions of a backtrace in a core dump, innermost first.
fn frames(program: &Path, core: &Path) -> Vec<String> {
    let output = tool(&[
        "gdb",
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-ex",
        "bt",
        &program.to_string_lossy(),
        &core.to_string_lossy(),
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| {
        let words: Vec<&str> = line.strip_prefix('#')?.split_ascii_whitespace().collect();
        let at = words.iter().position(|w| *w == "in").map_or(1, |at| at + 1);
        words.get(at).map(|w| (*w).to_owned())
    };
    let mut frames: Vec<String> = text.lines().filter_map(name).collect();
    // gdb also shows the innermost frame when it opens the core.
    frames.dedup();
    frames
}

fn size(core: &Path) -> u64 {
    std::fs::metadata(core).map(|m| m.len()).unwrap_or_else(|e| panic!("{}: {e}", core.display()))
}

fn by_gcore(traced: &Traced, held: &Held) -> (PathBuf, u64) {
    let prefix = traced.copy.dir().join("gcore");
    let done =
        Run::new("gcore", ["-o".as_ref(), prefix.as_os_str(), held.pid().to_string().as_ref()])
            .plain()
            .output();
    done.assert_code(0);
    let core = traced.copy.dir().join(format!("gcore.{}", held.pid()));
    let size = size(&core);
    (core, size)
}

/// Returns whether the kernel writes cores into the working directory.
fn kernel_writes_cores() -> bool {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default()
    };
    read("core_pattern").trim() == "core"
}

/// Has the program fail, after `first` has had its PID. Returns the core and its size.
fn by_the_kernel(traced: &Traced, run: &Run, first: impl FnOnce(i32)) -> (PathBuf, u64, Done) {
    let dir = tempfile::Builder::new()
        .prefix("core-")
        .tempdir_in(traced.copy.dir())
        .expect("a directory");
    let mut held = run.clone().behind_sh("ulimit -c unlimited; exec \"$@\"").cwd(dir.path()).hold();
    let pid = held.pid();
    first(pid);
    held.write(b"abort\n");
    let done = held.finish();
    done.assert_signal(libc::SIGSEGV);
    let names = ["core".to_owned(), format!("core.{pid}")];
    let core = names.iter().map(|name| dir.path().join(name)).find(|path| path.exists());
    let kept = traced.copy.dir().join(format!("kept.{pid}"));
    std::fs::rename(core.unwrap_or_else(|| panic!("no core: {done}")), &kept).expect("a rename");
    let size = size(&kept);
    (kept, size, done)
}

/// Checks the dumps. Returns how many bytes larger than plain ones they are, by the kernel and by gcore.
fn dumps(by: By) -> Option<(i64, i64)> {
    let traced = by.traced()?;
    let program = traced.copy.path();
    let (plain, held) = (traced.run().plain().hold(), traced.hold());
    let (_, plain_size) = by_gcore(&traced, &plain);
    let (core, ours) = by_gcore(&traced, &held);
    let seen = frames(program, &core);
    let from = seen.iter().position(|f| f == "wait_inner").unwrap_or_else(|| panic!("{seen:?}"));
    assert_eq!(seen[from..], ["wait_inner", "wait_outer", "main"], "{by:?}");
    plain.finish().assert_code(7);
    held.finish().assert_code(7).assert_silent();
    let gcore = ours as i64 - plain_size as i64;

    let (_, plain_size, _) = by_the_kernel(&traced, &traced.run().plain(), |_| {});
    let (core, ours, done) = by_the_kernel(&traced, &traced.run(), |_| {});
    done.assert_silent();
    assert_eq!(frames(program, &core), ["fail_inner", "fail_outer", "main"], "{by:?}");
    Some((ours as i64 - plain_size as i64, gcore))
}

/// Stacks and environments differ by a few pages from one launch to the next.
const NOISE: i64 = 512 << 10;

fn as_large_as_plain(by: By) {
    require!(installed("gdb").is_some() && installed("gcore").is_some(), "no gdb, or no gcore");
    require!(kernel_writes_cores(), "kernel.core_pattern is not \"core\"");
    let more = dumps(by);
    require!(more.is_some(), "no {by:?} on this machine");
    let (kernel, gcore) = more.expect("just looked");
    assert!(kernel.abs() < NOISE && gcore.abs() < NOISE, "{by:?}: {kernel} and {gcore} bytes more");
}

#[test]
fn of_moved_text() {
    as_large_as_plain(By::Rebase);
}

#[test]
fn of_the_page_cache() {
    as_large_as_plain(By::Pagecache);
}

#[test]
fn of_an_image() {
    as_large_as_plain(By::Image);
}

/// The guide's page of tools gives this line of gdb. The core itself names the copy in the place of the text.
#[test]
fn of_a_copy_that_an_attach_made() {
    require!(installed("gdb").is_some(), "no gdb");
    require!(kernel_writes_cores(), "kernel.core_pattern is not \"core\"");
    let mut traced = By::Image.traced().expect("a copy needs nothing of the machine");
    // Not huge in the page cache: else the attach would have nothing to do.
    traced.copy = small("traced", Kind::OneSegmentNoPie);
    let (core, _, _) = by_the_kernel(&traced, &traced.run().plain(), |pid| {
        ok(&ctl(["attach", "--backing=image", &pid.to_string()]));
        assert_switched(pid);
    });
    let (program, core) = (traced.copy.path(), core.to_string_lossy().into_owned());
    let done = tool(&["gdb", "-batch", "-ex", "bt", &program.to_string_lossy(), &core]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    for name in ["fail_inner", "fail_outer", "main"] {
        assert!(said.contains(&format!("{name} (")), "{said}");
    }
}

#[test]
fn of_hugetlb_pages() {
    require!(installed("gdb").is_some() && installed("gcore").is_some(), "no gdb, or no gcore");
    require!(kernel_writes_cores(), "kernel.core_pattern is not \"core\"");
    let more = dumps(By::Hugetlb);
    require!(more.is_some(), "no huge pages for the pool");
    let (kernel, gcore) = more.expect("just looked");
    let text = 3 * pmd_size() as i64;
    println!("{kernel} and {gcore} bytes more, {text} of text");
    // The default filter (bit 5 of /proc/PID/coredump_filter) dumps private hugetlb pages, so the core contains the
    // text.
    assert!((kernel - text).abs() < NOISE, "the kernel's: {kernel} bytes more, {text} of text");
}
