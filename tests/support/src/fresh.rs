//! Private copies of programs. A copy is in the page cache, either in huge folios if the file system has them or in
//! small ones, and stays there as it is; or it is not cached.
//!
//! The kernel may reclaim cached pages that no process has mapped, at any moment and although much memory is free
//! (DAMON). So the test maps each copy that must stay cached.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;

use super::launch::Run;
use super::programs::Kind;
use super::smaps::{Vma, pmd_size, vmas};

/// A copy of a program. Drop removes it.
pub struct Fresh {
    dir: tempfile::TempDir,
    path: PathBuf,
    pinned: Option<Pinned>,
}

fn directory() -> tempfile::TempDir {
    // The real path is used, because a program shows the path that the kernel knows.
    let parent = super::files().canonicalize().expect("the directory is there");
    tempfile::Builder::new().prefix("fresh-").tempdir_in(parent).expect("a directory")
}

impl Fresh {
    /// Copies a program under its own name, and reads the copy into the page cache in huge folios.
    pub fn copy(program: &Path) -> Fresh {
        let mut copy = Fresh::cold(program);
        copy.pinned = Some(Pinned::huge(&copy.path));
        copy
    }

    /// Copies a program under its own name, without any part of the copy in the page cache.
    pub fn cold(program: &Path) -> Fresh {
        let dir = directory();
        let path = dir.path().join(program.file_name().expect("a program has a name"));
        super::install(program, &path, 0o755);
        uncache(&path);
        Fresh { dir, path, pinned: None }
    }

    /// Copies a program under its own name, and reads the copy into the page cache in small folios, so that no part of
    /// its text is huge.
    pub fn small(program: &Path) -> Fresh {
        let mut copy = Fresh::cold(program);
        copy.pinned = Some(Pinned::small(&copy.path));
        copy
    }

    /// Does the same with a program of this machine by that name, whose own page cache may be in any state and may
    /// change at any moment.
    pub fn installed(name: &str) -> Option<Fresh> {
        Some(Fresh::small(&super::installed(name)?.canonicalize().ok()?))
    }

    /// Unmaps the copy, so that a command can evict or warm it. The kernel may reclaim its pages from now on.
    pub fn let_go(&mut self) {
        self.pinned = None;
    }

    /// The same copy by a path without blanks, below the test's own `/run`, for tools that take a blank for the end of a
    /// path.
    pub fn without_blanks(mut self) -> Fresh {
        if self.path.as_os_str().as_encoded_bytes().contains(&b' ') && super::is_root() {
            super::store::own_run();
            let own = self.dir.path();
            let at = Path::new("/run").join(own.file_name().expect("a directory has a name"));
            std::fs::create_dir(&at).expect("a directory in a /run of its own");
            super::store::mount(&own.to_string_lossy(), &at, None, libc::MS_BIND, "");
            self.path = at.join(self.path.file_name().expect("a program has a name"));
        }
        self
    }

    /// The copy.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that holds the copy and nothing else.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Takes a file of our own out of the page cache. No process may have it mapped.
pub fn uncache(path: &Path) {
    let file = std::fs::File::open(path).expect("an own file");
    file.sync_all().expect("fsync of an own file");
    // The kernel does not evict a page that another part of the kernel holds for a moment, such as DAMON.
    for _ in 0..1000 {
        evict_unmapped(path);
        if !is_cached(path) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Evicts the pages of a file of our own that no process has mapped.
pub fn evict_unmapped(path: &Path) {
    let file = std::fs::File::open(path).expect("an own file");
    // SAFETY: the call takes an open descriptor and numbers.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(error, 0, "posix_fadvise {}", path.display());
}

/// Returns whether any page of a file of our own is in the page cache.
fn is_cached(path: &Path) -> bool {
    let mapping = Mapping::new(path, libc::PROT_READ);
    let mut pages = vec![0_u8; mapping.len.div_ceil(4096)];
    // SAFETY: the range is the mapping's, and the kernel writes at most one byte for each page of it.
    let looked = unsafe { libc::mincore(mapping.at, mapping.len, pages.as_mut_ptr()) };
    looked == 0 && pages.iter().any(|page| page & 1 == 1)
}

/// A mapping of a file of our own, at a multiple of the huge page. Drop unmaps it.
struct Mapping {
    area: *mut libc::c_void,
    area_len: usize,
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(path: &Path, protection: libc::c_int) -> Mapping {
        let file = std::fs::File::open(path).expect("an own file");
        let len = file.metadata().expect("an open file").len() as usize;
        let pmd = pmd_size() as usize;
        let area_len = len.next_multiple_of(pmd) + pmd;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice, large enough to hold the file at an aligned one.
        let area = unsafe {
            libc::mmap(std::ptr::null_mut(), area_len, libc::PROT_NONE, anonymous, -1, 0)
        };
        assert_ne!(area, libc::MAP_FAILED, "address space");
        let at = (area as usize).next_multiple_of(pmd) as *mut libc::c_void;
        let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
        // SAFETY: the range lies in the area, which no other code knows.
        let mapped = unsafe { libc::mmap(at, len, protection, fixed, file.as_raw_fd(), 0) };
        assert_eq!(mapped, at, "{} can be mapped", path.display());
        Mapping { area, area_len, at, len }
    }

    /// Calls madvise(2) on all of it. Returns whether the kernel did it.
    fn advise(&self, advice: libc::c_int) -> bool {
        // SAFETY: none of the advice here changes contents, and the range is the mapping's.
        unsafe { libc::madvise(self.at, self.len, advice) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the area is this value's own.
        unsafe { libc::munmap(self.area, self.area_len) };
    }
}

/// A file of our own whose pages stay in the page cache as they are: they are mapped and locked, so that the kernel can
/// reclaim none of them. No command can evict or warm the file meanwhile. Drop unmaps it.
pub struct Pinned {
    mapping: Mapping,
}

impl Pinned {
    /// Pins all pages of the file. Those that are not cached are read into small folios.
    pub fn new(path: &Path) -> Pinned {
        Pinned::advised(path, &[])
    }

    /// Pins all pages of the file. Huge pages of which nothing is cached are read into huge folios.
    pub fn huge(path: &Path) -> Pinned {
        Pinned::advised(path, &[libc::MADV_HUGEPAGE])
    }

    /// Reads the file into small folios, as far as it is not cached, and pins all pages of it.
    pub fn small(path: &Path) -> Pinned {
        super::warm::cache_small(path);
        Pinned::new(path)
    }

    fn advised(path: &Path, advice: &[libc::c_int]) -> Pinned {
        let mapping = Mapping::new(path, libc::PROT_READ);
        // The kernel must not read ahead, because the folios of a read-ahead have any size.
        for &advice in [libc::MADV_RANDOM].iter().chain(advice) {
            mapping.advise(advice);
        }
        // SAFETY: the range is the mapping's.
        let locked = unsafe { libc::mlock(mapping.at, mapping.len) } == 0;
        // Other users may lock little memory. Pages that are mapped and used are the last that the kernel takes.
        assert!(locked || !super::is_root(), "mlock: {}", std::io::Error::last_os_error());
        assert!(locked || mapping.advise(libc::MADV_POPULATE_READ), "{}", path.display());
        mapping.advise(libc::MADV_NORMAL);
        Pinned { mapping }
    }

    /// The number of bytes in huge folios.
    fn huge_bytes(&self) -> u64 {
        let all = vmas(std::process::id() as i32);
        let own = all.iter().filter(|vma| vma.start == self.mapping.at as u64);
        own.map(|vma| vma.counter("FilePmdMapped")).sum()
    }
}

/// Reads a file into small folios, as far as it is not cached, and pins it until this process ends.
pub fn keep_small(path: &Path) {
    static KEPT: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());
    let meta = std::fs::metadata(path).expect("an own file");
    let is_new = KEPT.lock().is_ok_and(|mut kept| kept.insert((meta.dev(), meta.ino())));
    if is_new {
        std::mem::forget(Pinned::small(path));
    }
}

/// Tests, without TiExec, whether the file system of the copies reads files as huge folios.
pub fn huge_folios() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let dir = directory();
        let path = dir.path().join("probe");
        let len = 2 * pmd_size();
        std::fs::write(&path, vec![1; len as usize]).expect("a file");
        uncache(&path);
        Pinned::huge(&path).huge_bytes() == len
    })
}

/// Tests, without TiExec, whether the kernel collapses small folios of a file on the file system of the copies
/// (`MADV_COLLAPSE`).
pub fn collapses_files() -> bool {
    let dir = directory();
    let path = dir.path().join("probe");
    let pmd = pmd_size() as usize;
    std::fs::write(&path, vec![1; pmd]).expect("a file");
    uncache(&path);
    assert_eq!(std::fs::read(&path).expect("an own file").len(), pmd);
    let mapping = Mapping::new(&path, libc::PROT_READ | libc::PROT_EXEC);
    mapping.advise(libc::MADV_COLLAPSE)
}

/// The message of `require!` if there are no huge folios.
pub const NO_HUGE_FOLIOS: &str =
    "the file system of the target directory reads nothing in as huge folios";

/// The report of one launch, in a file.
pub struct Report {
    dir: tempfile::TempDir,
}

impl Report {
    /// Makes a directory for the report.
    pub fn new() -> Report {
        Report { dir: tempfile::tempdir().expect("a directory") }
    }

    /// Makes the launch write the report.
    pub fn of(&self, run: &Run) -> Run {
        let option = format!("--report={}", self.path().display());
        run.clone().options([option.as_str(), "--json"])
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("report")
    }

    /// Returns whether a helper has written the whole report.
    pub fn complete(&self) -> bool {
        std::fs::read_to_string(self.path()).is_ok_and(|text| text.contains("\"launch\":{"))
    }

    /// Returns the text that has been written so far.
    pub fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_default()
    }

    /// The report of the launch. A companion may have added one of an attach.
    pub fn read(&self) -> Value {
        let text = std::fs::read_to_string(self.path()).expect("a report");
        let mut reports = serde_json::Deserializer::from_str(&text).into_iter();
        let first = reports.next().unwrap_or_else(|| panic!("no report: {text:?}"));
        first.unwrap_or_else(|e| panic!("{e}: {text:?}"))
    }
}

/// Asserts that the launch put text only on the page cache's own folios. With `may_move` the launch may have moved the
/// program for that; one program in 512 lies right without a move.
pub fn assert_pagecache(report: &Value, may_move: bool) {
    let launch = &report["launch"];
    assert_eq!(report["outcome"], "switched", "{report}");
    assert!(may_move || launch["rebased"] == false, "{report}");
    assert_eq!(launch["setback"], Value::Null, "{report}");
    assert_eq!(launch["backing"], "pagecache", "{report}");
    assert_eq!(launch["bytes_copied"], 0, "{report}");
    let spans = launch["spans"].as_array().expect("spans");
    assert!(!spans.is_empty() && spans.iter().all(|s| s["backing"] == "pagecache"), "{report}");
}

/// Launches a copy of `hold` twice, and asserts the same of both launches and of the running programs.
pub fn assert_launched_on_pagecache(copy: &Fresh, kind: Kind) {
    let report = Report::new();
    let options = ["--deadline=2m", "--evict=never"];
    let run = report.of(&Run::new(copy.path(), ["7"]).options(options));
    for _ in 0..2 {
        let held = run.hold();
        assert_pagecache(&report.read(), kind == Kind::DynamicPie);
        assert_file_pmd_mapped(held.pid(), copy.path());
        held.finish().assert_code(7).assert_silent();
    }
}

/// Asserts that all mapped bytes in the whole huge pages of this file's congruent text are mapped by PMD entries, and
/// that there are some. (Pages that the program has not touched may be unmapped.)
pub fn assert_file_pmd_mapped(pid: i32, file: &Path) {
    let name = file.to_string_lossy();
    let all = vmas(pid);
    let text: Vec<&Vma> = all.iter().filter(|vma| vma.is_text() && vma.path == name).collect();
    assert!(!text.is_empty(), "{name}: no text in {all:?}");
    assert!(!all.iter().any(Vma::is_switched), "{name}: a copy: {all:?}");
    let pmd = pmd_size();
    let mut whole = 0;
    for vma in text {
        let inside = (vma.end / pmd * pmd).saturating_sub(vma.start.next_multiple_of(pmd));
        let by_pmd = vma.counter("FilePmdMapped");
        assert!(by_pmd <= inside && (by_pmd > 0 || inside == 0), "{vma:?}");
        assert!(vma.counter("Rss") - by_pmd <= vma.end - vma.start - inside, "{vma:?}");
        assert!(inside == 0 || vma.start % pmd == vma.offset % pmd, "not congruent: {vma:?}");
        whole += inside;
    }
    assert!(whole > 0, "{name}: no whole huge page");
}
