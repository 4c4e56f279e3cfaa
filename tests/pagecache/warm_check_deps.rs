//! `tiexecctl warm --check` changes nothing. `--deps` finds the libraries that the file's own ld.so finds.

use std::path::{Path, PathBuf};

use support::warm::{cached_pages, cold, command, directory, small, warm, watched};
use support::{Kind, Pinned, Public, installed, program, require};

#[test]
fn check_reads_nothing() {
    let dir = directory();
    let copy = cold(&program("hold", Kind::DynamicNoPie), dir.path());
    let told = warm(&["--check", "--json"], &[&copy]);
    assert_eq!(told.code, 1, "{}", told.out);
    assert_eq!(told.json()["check"], true);
    assert!(support::warm::rest(&told.file(), "not_cached") > 0, "{}", told.out);
    assert!(cached_pages(&copy) <= 1, "nothing is read but the headers");
}

#[test]
fn check_evicts_nothing() {
    require!(installed("strace").is_some(), "no strace");
    let dir = directory();
    let copy = small(&program("hold", Kind::DynamicNoPie), dir.path());
    let _pinned = Pinned::new(&copy);
    let (told, calls) = watched(&command(&["--check"], &[&copy]));
    assert_eq!((calls.evicted.as_slice(), calls.collapsed), (&[][..], false));
    assert_eq!((told.code, told.err.as_str()), (1, ""));
    let mut lines = told.out.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("FILE ")), "{}", told.out);
    let row = lines.next().unwrap_or_default();
    assert!(row.starts_with(&*copy.to_string_lossy()) && row.contains("small_folios"), "{row}");
}

#[test]
fn quiet_prints_errors_only() {
    let done = warm(&["-q", "--check"], &[Path::new("/bin/true"), Path::new("/missing")]);
    assert_eq!((done.code, done.out.as_str()), (3, ""));
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
}

#[test]
fn one_file_by_two_names_is_one_file() {
    let dir = directory();
    let copy = cold(&program("hold", Kind::DynamicNoPie), dir.path());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&copy, &link).expect("an own directory");
    let told = warm(&["--check", "--json"], &[&link, &copy]);
    assert_eq!(told.file()["path"], *link.to_string_lossy());
}

/// Returns a copy of a program where every user can read it: root has ld.so read it as nobody.
fn public(name: &str, kind: Kind) -> (Public, PathBuf) {
    let public = Public::new();
    let copy = public.add(&program(name, kind), name, 0o755);
    (public, copy)
}

/// The paths of a report.
fn paths(file: &Path) -> Vec<String> {
    let told = warm(&["--check", "--deps", "--json"], &[file]);
    assert_eq!(told.err, "");
    let json = told.json();
    let files = json["files"].as_array().expect("a list");
    files.iter().map(|f| f["path"].as_str().expect("a path").to_owned()).collect()
}

#[test]
fn a_program_needs_its_libraries_and_its_interpreter() {
    let (_public, hold) = public("hold", Kind::DynamicPie);
    let all = paths(&hold);
    assert_eq!(all[0], hold.to_string_lossy());
    assert!(all.iter().any(|path| path.contains("/libc.so.6")), "{all:?}");
    assert!(all.iter().any(|path| path.contains("/ld-linux")), "{all:?}");
    assert!(!all.iter().any(|path| path.contains("vdso")), "{all:?}");
    // For a library without its own interpreter, the machine's ld.so lists the dependencies.
    let libc = all.iter().find(|path| path.contains("/libc.so.6")).expect("as just seen");
    assert!(paths(Path::new(libc)).len() >= 2);
}

#[test]
fn a_static_program_needs_nothing() {
    for kind in [Kind::StaticNoPie, Kind::StaticPie] {
        let (_public, hold) = public("hold", kind);
        let all = paths(&hold);
        // The output may have the machine's ld.so, which listed the dependencies of the PIE, but no library.
        assert!(!all.iter().any(|path| path.contains("libc")), "{kind:?}: {all:?}");
    }
}

#[test]
fn musls_loader_lists_too() {
    require!(Kind::Musl.can_build(), "no musl-gcc");
    let (_public, small) = public("small", Kind::Musl);
    let all = paths(&small);
    assert!(all.iter().any(|path| path.contains("musl")), "{all:?}");
}

#[test]
fn a_loader_that_others_may_write_is_not_run() {
    let dir = directory();
    let made = dir.path().join("made");
    let loader = dir.path().join("ld.so");
    // A loader that leaves a file behind if it runs.
    let script = format!("#!/bin/sh\n: > {}\n", made.display());
    support::write_program(&loader, script.as_bytes(), 0o755);
    let bytes = std::fs::read(program("small", Kind::DynamicPie)).expect("a program");
    let at = bytes.windows(15).position(|w| w == b"/lib64/ld-linux").expect("PT_INTERP");
    let len = bytes[at..].iter().position(|&b| b == 0).expect("its end");
    // The new path must not be longer, so a symlink in a short directory is used.
    let short = Path::new("/tmp").join(format!("ti{}", std::process::id()));
    std::os::unix::fs::symlink(&loader, &short).expect("/tmp");
    let name = short.as_os_str().as_encoded_bytes();
    assert!(name.len() <= len);
    let mut forged = bytes;
    forged[at..at + len].fill(b'/');
    forged[at + len - name.len()..at + len].copy_from_slice(name);
    let program = dir.path().join("program");
    support::write_program(&program, &forged, 0o755);
    let told = warm(&["--check", "--deps"], &[&program]);
    std::fs::remove_file(&short).expect("an own link");
    assert_eq!(told.code, 3, "{}{}", told.out, told.err);
    assert!(told.err.contains("will not run "), "{}", told.err);
    assert!(!made.exists());
}
