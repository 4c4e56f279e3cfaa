//! The paths of the binaries under test, of the tests' files, and of the sources of their programs.
//!
//! Cargo gives these paths to a test program at build time, but not to a library. The test program itself lies in
//! `target/PROFILE/deps`, the binaries beside `deps`, and the files in `target/tmp`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directory of the profile: `target/debug`, or `target/TRIPLE/debug`.
fn profile() -> PathBuf {
    let own = std::env::current_exe().expect("/proc is mounted");
    let deps = own.parent().filter(|dir| dir.ends_with("deps"));
    let profile = deps.and_then(Path::parent);
    let profile = profile.unwrap_or_else(|| {
        panic!(
            "cannot tell where the binaries under test are: {} lies in no directory `deps` of cargo's; \
             fix: run it by `cargo test`",
            own.display()
        )
    });
    profile.to_owned()
}

fn binary(name: &str) -> PathBuf {
    let binary = profile().join(name);
    assert!(
        binary.is_file(),
        "cannot find {}; fix: cargo build --package tiexec --bins --features tiexec/fault-injection",
        binary.display()
    );
    binary
}

/// Returns the `tiexec` under test, and gives the thread [its own `/run`](super::store::own_run).
pub fn tiexec() -> &'static Path {
    super::store::own_run();
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| binary("tiexec"))
}

/// Returns the `tiexecctl` under test, and gives the thread [its own `/run`](super::store::own_run).
pub fn tiexecctl() -> &'static Path {
    super::store::own_run();
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| binary("tiexecctl"))
}

/// Returns the `tiexecd` under test, and gives the thread [its own `/run`](super::store::own_run) with
/// [what is known of the machine](super::attaching::share_jumps).
pub fn tiexecd() -> &'static Path {
    super::store::own_run();
    super::attaching::share_jumps();
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| binary("tiexecd"))
}

/// The directory for files of tests, which outlive the run: `target/tmp`.
pub fn files() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let files = profile().with_file_name("tmp");
        assert!(files.is_dir(), "cannot find {}; fix: cargo test --no-run", files.display());
        files
    })
}

/// The directory of the sources: `tests/programs`.
pub fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../programs"))
}
