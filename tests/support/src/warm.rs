//! Private copies of files for `tiexecctl warm`, with a known state of their page cache. The tests never warm the
//! system's own files.
//!
//! `warm` leaves files alone that a process has mapped. So these copies are not mapped, and the kernel may reclaim some
//! of their pages at any moment (DAMON). A test does not count cached pages therefore: it asks which parts `warm` evicted
//! ([`watched`]), and whether all that is not huge was reclaimed ([`assert_huge`]).

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

/// A copy that is cached in small folios. The kernel may reclaim some of them.
pub fn small(program: &Path, dir: &Path) -> PathBuf {
    let copy = cold(program, dir);
    cache_small(&copy);
    copy
}

/// Drops the file from the page cache. No process may have it mapped.
pub fn evict(file: &Path) {
    super::fresh::uncache(file);
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
    cache_small_part(path, 1);
}

/// Reads the first of so many equal parts of the file in this way.
pub fn cache_small_part(path: &Path, parts: u64) {
    let file = advise(path, libc::POSIX_FADV_RANDOM);
    let len = file.metadata().expect("an open file").len() / parts;
    for at in (0..len).step_by(4096) {
        file.read_exact_at(&mut [0], at).expect("a readable file");
    }
}

/// Returns the number of cached pages of the file by cachestat(2), of the file itself or of overlayfs's own file.
pub fn cached_pages(path: &Path) -> u64 {
    cachestat(path)[0]
}

/// Returns the number of pages that the kernel has reclaimed and that no process has read again. The page cache has a
/// mark (shadow entry) in the place of such a page, but not in the place of a page that posix_fadvise(2) evicted.
pub fn reclaimed_pages(path: &Path) -> u64 {
    cachestat(path)[3]
}

/// The counters of cachestat(2) for the whole file: the pages that are cached, dirty, being written back, evicted, and
/// evicted a short time ago.
fn cachestat(path: &Path) -> [u64; 5] {
    const SYS_CACHESTAT: libc::c_long = 451;
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (range, mut state) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: the two buffers are as long as the kernel's structures and live through the call.
    let returned = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), state.as_mut_ptr(), 0)
    };
    assert_eq!(returned, 0, "cachestat: {}", std::io::Error::last_os_error());
    state
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
    // On a busy machine, the search for who uses a file takes longer.
    command.env("TIEXEC_TEST_ANSWER", "10");
    command.arg("warm").args(options).args(files).env_remove("TIEXEC").stdin(Stdio::null());
    command
}

/// Runs the command.
pub fn warm(options: &[&str], files: &[&Path]) -> Warm {
    Warm::of(command(options, files).output().expect("tiexecctl"))
}

/// The changes that a command made to the page cache.
pub struct Watched {
    /// The lengths of the parts of files that it evicted, in bytes.
    pub evicted: Vec<u64>,
    /// True if it had the kernel collapse pages.
    pub collapsed: bool,
}

/// Runs the command under strace, which must be installed. The calls tell what the command evicts. The pages do not,
/// because the kernel may reclaim some of them meanwhile, and keeps others that are mapped.
pub fn watched(command: &Command) -> (Warm, Watched) {
    let log = tempfile::NamedTempFile::new().expect("a file for strace's log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=fadvise64,madvise", "-o"]).arg(log.path()).stdin(Stdio::null());
    strace.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    let warm = Warm::of(strace.output().expect("strace"));
    let calls = std::fs::read_to_string(log.path()).expect("strace's log");
    assert!(calls.contains(&format!("+++ exited with {} +++", warm.code)), "{calls}");
    // PID fadvise64(3, OFFSET, LENGTH, POSIX_FADV_DONTNEED) = 0
    let evictions = calls.lines().filter(|call| call.contains("FADV_DONTNEED"));
    let lens = evictions.map(|call| call.split(", ").nth(2).and_then(|len| len.parse().ok()));
    let evicted = lens.map(|len| len.unwrap_or_else(|| panic!("{calls}"))).collect();
    (warm, Watched { evicted, collapsed: calls.contains("MADV_COLLAPSE") })
}

/// Warms the file, and asserts that all whole huge pages of its text become huge. Returns their bytes.
pub fn assert_warms(file: &Path) -> u64 {
    assert_warmed(&warm(&["--json"], &[file]), file)
}

/// Asserts that the command, which ran with `--json` and has just ended, made all whole huge pages of the file's text
/// huge. Returns their bytes.
pub fn assert_warmed(done: &Warm, file: &Path) -> u64 {
    let report = done.file();
    let is_whole = rest(&report, "not_cached") == 0;
    assert_eq!((done.code == 0, done.err.as_str()), (is_whole, ""), "{}", done.out);
    assert_reported_warm(&report, file)
}

/// Does the same with the report of a command that had other files, too.
///
/// The kernel may have reclaimed some of the huge pages before the command looked at the result. The command reports
/// these as not cached.
pub fn assert_reported_warm(report: &Value, file: &Path) -> u64 {
    let number = |key: &str| report[key].as_u64().expect("bytes");
    let whole = number("huge_bytes") + rest(report, "not_cached");
    assert_eq!(whole + rest(report, "edges"), number("text_bytes"), "{report}");
    assert!(whole > 0 && whole.is_multiple_of(super::pmd_size()), "{report}");
    assert_huge(file, whole);
    whole
}

/// Asserts that this many bytes of the file's text are huge now, except those that the kernel has reclaimed.
pub fn assert_huge(file: &Path, bytes: u64) {
    let huge = huge(file);
    // A reclaimed page stays so while no process reads the file, so these are counted last.
    let reclaimed = 4096 * reclaimed_pages(file);
    let sum = huge + reclaimed.next_multiple_of(super::pmd_size());
    assert!(huge <= bytes && bytes <= sum, "{huge} of {bytes} are huge, {reclaimed} reclaimed");
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
