//! Private copies of files for `tiexecctl warm`, with a known state of their page cache. The tests never warm the
//! system's own files.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// An empty directory on the file system of the target directory.
pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::Builder::new()
        .prefix("warm-")
        .tempdir_in(super::files())
        .expect("a directory under the target directory");
    super::chmod(dir.path(), 0o755);
    dir
}

/// Returns whether the file system of the target directory has large folios on this kernel: ext4 since 6.16, or xfs.
pub fn has_large_folios(dir: &Path) -> bool {
    let name = said(Command::new("stat").args(["-f", "-c", "%T"]).arg(dir));
    let release = said(Command::new("uname").arg("-r"));
    let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    name.trim() == "xfs" || (name.starts_with("ext") && version >= (6, 16))
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("a tool of coreutils");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A copy that is written back and not cached.
pub fn cold(program: &Path, dir: &Path) -> PathBuf {
    let copy = dir.join(program.file_name().expect("a file"));
    super::install(program, &copy, 0o755);
    File::open(&copy).and_then(|f| f.sync_all()).expect("fsync");
    evict(&copy);
    copy
}

/// A copy that is cached in small folios.
pub fn small(program: &Path, dir: &Path) -> PathBuf {
    let copy = cold(program, dir);
    cache_small(&copy);
    copy
}

/// Drops the file from the page cache. No process may have it mapped.
pub fn evict(file: &Path) {
    advise(file, libc::POSIX_FADV_DONTNEED);
    assert_eq!(cached_pages(file), 0, "{}", file.display());
}

fn advise(path: &Path, advice: i32) -> File {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // SAFETY: the call takes an open descriptor and numbers.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) }, 0);
    file
}

/// Reads the file page by page, without read-ahead.
pub fn cache_small(path: &Path) {
    let file = advise(path, libc::POSIX_FADV_RANDOM);
    let len = file.metadata().expect("an open file").len();
    for at in (0..len).step_by(4096) {
        file.read_exact_at(&mut [0], at).expect("a readable file");
    }
}

/// Returns the number of cached pages of the file by cachestat(2), of the file itself or of overlayfs's own file.
pub fn cached_pages(path: &Path) -> u64 {
    const SYS_CACHESTAT: libc::c_long = 451;
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (range, mut state) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: the two buffers are as long as the kernel's structures and live through the call.
    let returned = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), state.as_mut_ptr(), 0)
    };
    assert_eq!(returned, 0, "cachestat: {}", std::io::Error::last_os_error());
    state[0]
}

/// The outcome of `tiexecctl warm …`.
pub struct Warm {
    /// The exit status.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Warm {
    /// Takes the output of a finished command. Panics if the command panicked.
    pub fn of(output: Output) -> Warm {
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!err.contains("panicked"), "{err}");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let code = output.status.code();
        Warm { code: code.unwrap_or_else(|| panic!("{}: {out}{err}", output.status)), out, err }
    }

    /// Its one line of JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}{}", self.out, self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }

    /// The only file's report.
    pub fn file(&self) -> Value {
        let json = self.json();
        assert_eq!(json["files"].as_array().map(Vec::len), Some(1), "{}{}", self.out, self.err);
        json["files"][0].clone()
    }
}

/// The command, which the test may change before it runs it.
pub fn command(options: &[&str], files: &[&Path]) -> Command {
    let mut command = Command::new(super::tiexecctl());
    command.arg("warm").args(options).args(files).env_remove("TIEXEC").stdin(Stdio::null());
    command
}

/// Runs the command.
pub fn warm(options: &[&str], files: &[&Path]) -> Warm {
    Warm::of(command(options, files).output().expect("tiexecctl"))
}

/// Bytes of the file that are huge now, by `--check`.
pub fn huge(file: &Path) -> u64 {
    warm(&["--check", "--json"], &[file]).file()["huge_bytes"].as_u64().expect("a number")
}

/// Bytes left for one reason.
pub fn rest(file: &Value, reason: &str) -> u64 {
    let rest = file["rest"].as_array().expect("a list");
    rest.iter().find(|r| r["reason"] == reason).map_or(0, |r| r["bytes"].as_u64().expect("bytes"))
}

/// Runs `body` on a thread with private mounts, which vanish with the thread.
pub fn with_private_mounts(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let name = std::thread::current().name().unwrap_or("test").to_owned();
        let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, || {
            // SAFETY: takes flags only; the thread gets its own mounts, the others keep theirs.
            let own = unsafe { libc::unshare(libc::CLONE_NEWNS) };
            assert_eq!(own, 0, "unshare: {}", std::io::Error::last_os_error());
            run("mount", &["--make-rprivate".as_ref(), "/".as_ref()]);
            body();
        });
        if let Err(panic) = thread.expect("a thread").join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs a tool that must succeed.
pub fn run(tool: &str, arguments: &[&Path]) {
    let output =
        Command::new(tool).args(arguments).output().unwrap_or_else(|e| panic!("{tool}: {e}"));
    assert!(output.status.success(), "{tool} {arguments:?}: {output:?}");
}

/// Makes a file system in a file and mounts it; both lie in `dir`.
pub fn mount_new(kind: &str, dir: &Path) -> PathBuf {
    let (image, point) = (dir.join("image"), dir.join("mnt"));
    let file = File::create(&image).expect("an image");
    // The file is sparse: blocks are allocated as they are written. mkfs.xfs requires 300 MiB.
    file.set_len(400 << 20).expect("a sparse file");
    drop(file);
    run(&format!("mkfs.{kind}"), &["-q".as_ref(), &image]);
    std::fs::create_dir(&point).expect("a mount point");
    run("mount", &["-o".as_ref(), "loop".as_ref(), &image, &point]);
    point
}
