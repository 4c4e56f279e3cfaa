//! The examples, in several languages: each is built as its first line says, and runs.

use std::path::Path;
use std::process::Command;

use support::attaching::collapses;
use support::{Run, installed, require};

use super::library::{directory, root};

fn examples() -> std::path::PathBuf {
    root().join("crates/self/examples")
}

/// Builds in a directory with the library's description at hand.
fn build(command: &str, at: &Path) {
    // It names the place where the library will be installed.
    let described = std::fs::read_to_string(directory().join("tiexec.pc")).expect("it is there");
    let here = directory().display();
    let lines = described.lines().map(|line| match line.split_once('=') {
        Some((key @ ("libdir" | "includedir"), _)) => format!("{key}={here}\n"),
        _ => format!("{line}\n"),
    });
    std::fs::write(at.join("tiexec.pc"), lines.collect::<String>()).expect("a file");
    let built = Command::new("sh")
        .args(["-ec", command])
        .current_dir(at)
        .env("PKG_CONFIG_PATH", at)
        .env("GOFLAGS", "-mod=mod")
        .env("HOME", at)
        .output()
        .expect("a shell");
    assert!(built.status.success(), "{command}: {}", String::from_utf8_lossy(&built.stderr));
}

/// Says how much of its text is huge.
fn runs(run: &Run) {
    let done = run.plain().env("LD_LIBRARY_PATH", directory()).output();
    done.assert_code(0).assert_silent();
    let out = done.out();
    let mut words = out.split(' ');
    let mut number = || words.find_map(|word| word.parse::<u64>().ok()).expect("a number");
    let (huge, text) = (number(), number());
    assert!(huge <= text && text > 500, "{out}");
}

fn compiled(compiler: &str, source: &str) {
    require!(collapses() && installed("pkg-config").is_some(), "no MADV_COLLAPSE or no pkg-config");
    require!(installed(compiler).is_some(), "no {compiler}");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy(examples().join(source), dir.path().join(source)).expect("it is there");
    // As the first line of the example says.
    build(
        &format!("{compiler} -Wall -Wextra -Werror {source} $(pkg-config --cflags --libs tiexec)"),
        dir.path(),
    );
    runs(&Run::new(dir.path().join("a.out"), [""; 0]));
}

#[test]
fn c() {
    compiled("cc", "huge.c");
}

#[test]
fn cxx() {
    compiled("c++", "huge.cc");
}

#[test]
fn go() {
    require!(collapses() && installed("pkg-config").is_some(), "no MADV_COLLAPSE or no pkg-config");
    require!(installed("go").is_some(), "no go");
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["go.mod", "main.go"] {
        std::fs::copy(examples().join("go").join(name), dir.path().join(name)).expect("there");
    }
    let go = installed("go").expect("just looked");
    let cache = support::files().canonicalize().expect("it is there").join("go-cache");
    build(&format!("GOCACHE={} {} build -o huge .", cache.display(), go.display()), dir.path());
    runs(&Run::new(dir.path().join("huge"), [""; 0]));
}

#[test]
fn python() {
    require!(
        collapses() && Path::new("/usr/bin/python3").exists(),
        "no MADV_COLLAPSE or no python3"
    );
    runs(&Run::new("/usr/bin/python3", [examples().join("huge.py")]));
}
