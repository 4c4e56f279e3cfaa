//! A program that prints its own backtrace finds the same names in huge pages of the page cache as without TiExec.
//! Rust's standard library looks for them in the files of `/proc/self/maps`.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::fresh::{NO_HUGE_FOLIOS, assert_file_pmd_mapped, huge_folios};
use support::{Fresh, Run, installed, require};

/// Compiles `panic.rs` into the directory. A launch moves the position-independent program to where its text is congruent.
fn program(dir: &Path) -> PathBuf {
    let source = support::places::sources();
    let made = |command: &mut Command| {
        let output = command.current_dir(dir).output().expect("a compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    made(Command::new("cc").arg("-c").arg(source.join("panic_pad.s")).args(["-o", "pad.o"]));
    let mut rustc = Command::new("rustc");
    let words = ["-g", "--edition=2024", "-Clink-arg=pad.o"];
    made(rustc.args(words).arg(source.join("panic.rs")));
    dir.join("panic")
}

/// The functions of the program in its backtrace, innermost first.
fn trace(run: &Run, look: impl FnOnce(i32)) -> Vec<String> {
    let mut held = run.clone().env("RUST_BACKTRACE", "1").start();
    held.wait_line("ready");
    look(held.pid());
    held.write(b"now\n");
    let done = held.finish();
    done.assert_code(101);
    let named = |line: &str| Some(line.trim().split_once(": ")?.1.to_owned());
    done.err().lines().filter_map(named).filter(|name| name.starts_with("panic::")).collect()
}

#[test]
fn of_rust_in_the_page_cache() {
    require!(installed("rustc").is_some(), "no rustc");
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let dir = tempfile::tempdir().expect("a directory");
    let copy = Fresh::copy(&program(dir.path()));
    let run = Run::new(copy.path(), [""; 0]);
    let wanted = ["panic::deep", "panic::deep", "panic::deep", "panic::main"];
    assert_eq!(trace(&run.clone().plain(), |_| {}), wanted);
    let huge = run.options(["--backing=pagecache"]);
    assert_eq!(trace(&huge, |pid| assert_file_pmd_mapped(pid, copy.path())), wanted);
}
