//! The basis of every test: the places of the binaries, programs compiled on demand, children with time limits, and
//! smaps read from outside.
//!
//! This crate uses no crate of the project, so that the tests observe a launch independently.

#![allow(
    clippy::new_without_default,
    reason = "each makes a directory, opens a terminal or prints a seed"
)]

pub mod attaching;
pub mod child;
pub mod databases;
pub mod edges;
pub mod extent;
pub mod first_output;
pub mod fresh;
pub mod journal;
pub mod launch;
pub mod machine;
pub mod objects;
pub mod once;
pub mod page;
pub mod places;
pub mod podman;
pub mod programs;
pub mod pty;
pub mod schema;
pub mod smaps;
pub mod store;
mod stuck;
mod surroundings;
pub mod systemd;
pub mod tmux;
pub mod traced;
pub mod uprobe;
pub mod warm;

use std::path::{Path, PathBuf};

pub use child::{Done, Held};
pub use extent::rounds;
pub use fresh::{Fresh, Pinned, Report};
pub use launch::{Prep, Run};
pub use once::once;
pub use places::{files, sources, tiexec, tiexecctl, tiexecd};
pub use programs::{BUSY_NODE, Kind, Linked, busy_java, program, program_big, program_with};
pub use smaps::{Coverage, coverage, pmd_size};

/// Ends the test with a visible line if the machine lacks a requirement. Fails the test instead if
/// `TIEXEC_TEST_NO_SKIP=1`.
#[macro_export]
macro_rules! require {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            $crate::skip(&format!($($why)+));
            return;
        }
    };
}

/// The visible half of `require!`.
pub fn skip(why: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    assert!(
        std::env::var_os("TIEXEC_TEST_NO_SKIP").is_none_or(|v| v != "1"),
        "SKIP {name}: {why} (TIEXEC_TEST_NO_SKIP=1)"
    );
    say_skipped(&name, why);
}

/// Like `require!`, but skips even where skips are forbidden. For requirements that no setting can provide, such as a
/// second NUMA node or a security module that the kernel does not have.
#[macro_export]
macro_rules! require_of_machine {
    ($cond:expr, $why:expr) => {
        if !$cond {
            $crate::skip_for_want_of_a_machine($why);
            return;
        }
    };
}

/// The visible half of `require_of_machine!`.
pub fn skip_for_want_of_a_machine(why: &str) {
    say_skipped(std::thread::current().name().unwrap_or("test"), why);
}

fn say_skipped(name: &str, why: &str) {
    // libtest captures the output of the print macros, but not writes to the descriptor.
    let line = format!("SKIP {name}: {why}\n");
    // SAFETY: the pointer and the length are those of a live buffer.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// A command by that name on PATH.
pub fn installed(name: &str) -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from);
    std::env::split_paths(&dirs).chain(more).map(|d| d.join(name)).find(|p| p.is_file())
}

/// Returns the shared objects with which the dynamic linker starts a program, by ldd(1).
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let asked = std::process::Command::new("ldd").arg(program).output().expect("ldd");
    let said = String::from_utf8_lossy(&asked.stdout).into_owned();
    let paths = said.split_whitespace().filter(|word| word.starts_with('/'));
    paths.filter_map(|path| Path::new(path).canonicalize().ok()).collect()
}

/// Returns whether the dynamic linker starts a program with a shared object of that name.
pub fn has_library(program: &Path, name: &str) -> bool {
    libraries(program).iter().any(|file| file.to_string_lossy().contains(name))
}

/// Returns whether the tests run as root, which mounts, cgroups and other users need.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no conditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A directory that all users can enter, with a copy of `tiexec` in it. (The target directory may lie in a private
/// home.)
pub struct Public {
    dir: tempfile::TempDir,
}

impl Public {
    /// Makes the directory.
    pub fn new() -> Public {
        let dir = tempfile::Builder::new()
            .prefix("tiexec-test-")
            .tempdir()
            .expect("a directory in the temporary directory");
        chmod(dir.path(), 0o755);
        let public = Public { dir };
        public.add(tiexec(), "tiexec", 0o755);
        public
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The copy of `tiexec`.
    pub fn tiexec(&self) -> PathBuf {
        self.path().join("tiexec")
    }

    /// Adds a copy of a file, with that mode.
    pub fn add(&self, file: &Path, name: &str, mode: u32) -> PathBuf {
        let copy = self.path().join(name);
        install(file, &copy, mode);
        copy
    }
}

/// Copies an executable by `dd`. If this process had the copy open for writing, a child that another test thread forks
/// would have it open too until its exec, and an exec of the copy in that moment would fail with ETXTBSY.
///
/// The writes are small, so that the copy is in small folios of the page cache. After the large writes of `cp` it could
/// be in huge ones, and its text huge without TiExec.
pub fn install(file: &Path, copy: &Path, mode: u32) {
    let mut words = [std::ffi::OsString::from("if="), "of=".into()];
    words[0].push(file);
    words[1].push(copy);
    let status = std::process::Command::new("dd")
        .args(["bs=4k", "status=none"])
        .args(words)
        .status()
        .expect("dd");
    assert!(status.success(), "dd {} {}", file.display(), copy.display());
    chmod(copy, mode);
}

/// Writes an executable file with this content, by another process for the same reason as in [`install`].
pub fn write_program(path: &Path, content: &[u8], mode: u32) {
    use std::io::Write;
    let mut cp = std::process::Command::new("cp")
        .arg("/dev/stdin")
        .arg(path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("cp");
    cp.stdin.take().expect("a pipe was asked for").write_all(content).expect("cp reads its input");
    assert!(cp.wait().expect("cp ends").success());
    chmod(path, mode);
}

/// A path to a file of our own for tools that take a blank for the end of a path: a symbolic link in the temporary
/// directory, if the file's own path has one.
pub fn without_blanks(file: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    if !file.as_os_str().as_encoded_bytes().contains(&b' ') {
        return file.to_owned();
    }
    let inode = std::fs::metadata(file).expect("an own file").ino();
    let link = std::env::temp_dir().join(format!("tiexec-test-{inode}"));
    if std::fs::read_link(&link).ok().as_deref() != Some(file) {
        // A link from an earlier run leads elsewhere. Another test may make the same link at the same time.
        let _from_before = std::fs::remove_file(&link);
        let _there = std::os::unix::fs::symlink(file, &link);
    }
    assert_eq!(std::fs::read_link(&link).expect("a symbolic link"), file);
    link
}

/// Writes the attribute of `setcap cap_net_bind_service+ep` (`struct vfs_cap_data`). Returns false if the file system
/// does not support it.
pub fn give_capability(file: &Path) -> bool {
    const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;
    const NET_BIND_SERVICE: u32 = 1 << 10;
    let words = [REVISION_2_EFFECTIVE, NET_BIND_SERVICE, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = std::ffi::CString::new(file.as_os_str().as_encoded_bytes())
        .expect("no zero bytes in a path");
    let (name, data) = (c"security.capability".as_ptr(), value.as_ptr().cast());
    // SAFETY: the path and the name are strings, and the value has that length; all live through the call.
    unsafe { libc::setxattr(path.as_ptr(), name, data, value.len(), 0) == 0 }
}

/// Sets the mode of a file of our own.
pub fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .expect("chmod of an own file");
}

/// A small generator for random moments. It prints its seed, so that a failure can be repeated.
pub struct Random(fastrand::Rng);

impl Random {
    /// Seeds the generator from `TIEXEC_TEST_SEED`, or else from the time.
    pub fn new() -> Random {
        let seed = std::env::var("TIEXEC_TEST_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .expect("the clock is past 1970");
                now.as_nanos() as u64
            });
        println!("TIEXEC_TEST_SEED={seed}");
        Random(fastrand::Rng::with_seed(seed))
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    /// Spins for a random time up to `limit` microseconds. This is not a synchronisation.
    pub fn spin(&mut self, limit: u64) {
        self.spin_within(child::patience(std::time::Duration::from_micros(limit)));
    }

    /// Spins for a random time up to `limit`, which was measured on this machine.
    pub fn spin_within(&mut self, limit: std::time::Duration) {
        let limit = u64::try_from(limit.as_micros()).expect("a short time").max(1);
        let time = std::time::Duration::from_micros(self.below(limit));
        let until = std::time::Instant::now() + time;
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}
