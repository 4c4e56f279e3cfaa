//! A private image store for each test: its thread has a mount namespace with an empty `/run`.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::child::{Done, Held, LONGEST};
use super::smaps::{pmd_size, vmas};

/// The directory of the system's images.
pub const IMAGES: &str = "/run/tiexec/images";

/// The directory of the machine's settings, rules and kill switch.
const SETTINGS: &str = "/etc/tiexec";

/// The source name of the mount on a test's own `/run`.
const OWN: &str = "tiexec-test";

thread_local! {
    /// True if this thread is known to have its own `/run`.
    static HAS_OWN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Gives this thread, with its later threads and children, a private `/run`, unless it has one. TiExec keeps its images
/// and locks in `/run`, and a test must not touch those of the machine. Each test that runs as root has its own `/run`
/// before its first child. Other users cannot write to the machine's `/run`. The settings of an installed TiExec
/// (`SETTINGS`) are hidden from the thread in the same way.
pub fn own_run() {
    if HAS_OWN.replace(true) || !super::is_root() {
        return;
    }
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("its mounts");
    if mounts.contains(&format!(" tmpfs {OWN} ")) {
        // The parent thread has made it.
        return;
    }
    // SAFETY: unshare takes numbers; only this thread's view of the mounts changes.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(
        unshared,
        0,
        "cannot unshare mounts: {}; fix: give root CAP_SYS_ADMIN, or run the tests as another user",
        std::io::Error::last_os_error()
    );
    mount("none", "/", None, libc::MS_REC | libc::MS_PRIVATE, "");
    mount(OWN, "/run", Some("tmpfs"), 0, "mode=0755");
    if Path::new(SETTINGS).is_dir() {
        tmpfs(Path::new(SETTINGS), "mode=0755");
    }
}

/// Mounts a tmpfs with these options.
pub fn tmpfs(path: &Path, options: &str) {
    mount("none", path, Some("tmpfs"), 0, options);
}

/// mount(2), which must succeed.
pub fn mount(source: &str, path: impl AsRef<OsStr>, kind: Option<&str>, flags: u64, options: &str) {
    let text = |text: &OsStr| CString::new(text.as_bytes()).expect("no zero bytes in a path");
    let (source, path, options) =
        (text(source.as_ref()), text(path.as_ref()), text(options.as_ref()));
    let kind = kind.map(|kind| text(kind.as_ref()));
    let kind = kind.as_ref().map_or(std::ptr::null(), |kind| kind.as_ptr());
    // SAFETY: every pointer is null or a string that lives through the call.
    let mounted = unsafe {
        libc::mount(source.as_ptr(), path.as_ptr(), kind, flags, options.as_ptr().cast())
    };
    assert_eq!(mounted, 0, "mount {path:?}: {}", std::io::Error::last_os_error());
}

/// Starts `tiexecctl store …` behind a command that changes something first.
pub fn started(front: &[&str], args: &[&OsStr]) -> Held {
    started_from(super::tiexecctl(), front, args)
}

/// Does the same with another copy of `tiexecctl`.
pub fn started_from(ctl: &Path, front: &[&str], args: &[&OsStr]) -> Held {
    let mut words: Vec<&OsStr> = front.iter().map(|word| OsStr::new(*word)).collect();
    words.extend([ctl.as_os_str(), OsStr::new("store")]);
    words.extend(args);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_remove("XDG_RUNTIME_DIR").env_remove("TIEXEC");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    Held::spawn(command, shown, LONGEST, false)
}

/// Runs `tiexecctl store …` to its end.
pub fn ctl<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Done {
    let args: Vec<S> = args.into_iter().collect();
    started(&[], &args.iter().map(AsRef::as_ref).collect::<Vec<_>>()).finish()
}

/// Sets the system's store up.
pub fn set_up(size: &str) {
    ctl(["setup", "--size", size]).assert_code(0).assert_silent();
}

/// Builds the image of a file, or finds it. Returns the path of the image.
pub fn add(file: &Path) -> PathBuf {
    let done = ctl([OsStr::new("add"), file.as_os_str()]);
    done.assert_code(0).assert_silent();
    PathBuf::from(done.out().trim_end())
}

/// Returns the JSON object that a command prints.
pub fn json(args: &[&str]) -> serde_json::Value {
    let done = ctl(args);
    let text = done.out();
    assert_eq!(text.lines().count(), 1, "{done}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {done}"))
}

/// The names of the files in a directory, sorted.
pub fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let directory = directory.as_ref();
    let entries = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// One LOAD segment, as `readelf` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Its offset in the file.
    pub offset: u64,
    /// Its first vaddr.
    pub vaddr: u64,
    /// Its bytes in the file.
    pub size: u64,
    /// True if it is executable and not writable.
    pub text: bool,
}

/// Returns the LOAD segments of a file.
pub fn loads(file: &Path) -> Vec<Load> {
    let text = readelf(&["-lW"], file);
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("hex");
    text.lines()
        .filter(|line| line.trim_start().starts_with("LOAD "))
        .map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let flags = words[6..words.len() - 1].concat();
            Load {
                offset: number(words[1]),
                vaddr: number(words[2]),
                size: number(words[4]),
                text: flags.contains('E') && !flags.contains('W'),
            }
        })
        .collect()
}

/// Returns the output of `readelf` on a file, its complaints first.
pub fn readelf(options: &[&str], file: &Path) -> String {
    let output = Command::new("readelf").args(options).arg(file).output().expect("readelf");
    assert!(output.status.success(), "readelf {options:?} {}: {output:?}", file.display());
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Returns the offsets of an image's huge pages that hold only text.
pub fn text_pages(image: &Path) -> Vec<u64> {
    let (pmd, base) = (pmd_size(), 4096);
    let texts = loads(image).into_iter().filter(|load| load.text && load.size > 0);
    texts
        .flat_map(|load| {
            let start = load.offset / base * base;
            let end = (load.offset + load.size).next_multiple_of(base);
            (start.next_multiple_of(pmd)..end)
                .step_by(pmd as usize)
                .filter(move |at| at + pmd <= end)
        })
        .collect()
}

/// A part of a file, mapped as TiExec maps text: private, r-x, at a multiple of the huge page.
pub struct Mapped {
    start: usize,
    len: usize,
}

impl Mapped {
    /// Maps one huge page of a file and touches it.
    pub fn page(file: &Path, offset: u64) -> Mapped {
        use std::os::fd::AsRawFd;
        let pmd = pmd_size() as usize;
        let opened = std::fs::File::open(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let (r, rx) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_EXEC);
        let anywhere = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let there = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let room = unsafe { libc::mmap(std::ptr::null_mut(), 2 * pmd, r, anywhere, -1, 0) };
        let start = (room as usize).next_multiple_of(pmd);
        let fd = opened.as_raw_fd();
        // SAFETY: the range lies in the new room, which no other code knows.
        let page = unsafe { libc::mmap(start as *mut _, pmd, rx, there, fd, offset as i64) };
        assert_eq!(page as usize, start, "mmap {file:?}: {}", std::io::Error::last_os_error());
        Mapped { start: room as usize, len: 2 * pmd }
    }

    /// Returns the bytes that PMD entries map.
    pub fn huge(&self) -> u64 {
        let start = self.start.next_multiple_of(pmd_size() as usize) as u64;
        let all = vmas(std::process::id() as i32);
        let vma = all.iter().find(|vma| vma.start <= start && start < vma.end);
        let vma = vma.expect("an own mapping");
        vma.counter("ShmemPmdMapped") + vma.counter("FilePmdMapped")
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and nothing refers into it.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}
