//! Tests which chunks `prepare` brings into huge folios, which chunks it leaves alone, and that `state` changes
//! nothing. The file lies on the file system of the target directory, and each test creates it again.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use tiexec_core::addr::Pages;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_remap::pagecache::{ChunkState, Prepared, Small, prepare, state};
use tiexec_sys::pagecache::{FileMapping, cache_state, evict, is_open_for_writing};
use tiexec_sys::thp;

const HUGE_PAGES: u64 = 5;

struct Fixture {
    named: NamedTempFile,
    file: File,
    pages: Pages,
}

/// A file of five huge pages and a bit, written back and not cached.
fn cold() -> Fixture {
    let pages = thp::pages().expect("a kernel with THP");
    let mut named = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary file");
    let block: Vec<u8> = (0..pages.pmd.bytes()).map(|at| ((at * 31) >> 3) as u8).collect();
    for _ in 0..HUGE_PAGES {
        named.write_all(&block).expect("room on the disk");
    }
    named.write_all(b"the end").expect("room on the disk");
    named.as_file().sync_all().expect("fsync");
    let file = File::open(named.path()).expect("an own file");
    let fixture = Fixture { named, file, pages };
    evict(&fixture.file, &fixture.all()).expect("fadvise");
    assert_eq!(fixture.cached_pages(), 0, "nobody has the file mapped");
    fixture
}

impl Fixture {
    /// The whole huge pages of the file.
    fn whole(&self) -> Range<u64> {
        0..HUGE_PAGES * self.pages.pmd.bytes()
    }

    /// The whole huge pages and the one in which the file ends.
    fn all(&self) -> Range<u64> {
        0..(HUGE_PAGES + 1) * self.pages.pmd.bytes()
    }

    fn prepare(&self, chunks: &[Range<u64>]) -> Prepared {
        let deadline = Instant::now() + Duration::from_secs(600);
        prepare(&self.file, chunks, self.pages, Small::Collapse, deadline)
            .expect("a file that can be mapped")
    }

    fn states(&self) -> Vec<ChunkState> {
        let states =
            state(&self.file, &[self.all()], self.pages).expect("a file that can be mapped");
        states.into_iter().map(|(_, state)| state).collect()
    }

    /// Maps the pages of that part, which are cached. The kernel reclaims no page that is mapped.
    fn pinned(&self, part: Range<u64>) -> FileMapping {
        let mapping = FileMapping::new(&self.file, self.all(), self.pages.pmd).expect("a file");
        mapping.advise_random().expect("madvise");
        mapping.populate(&part).expect("memory");
        mapping
    }

    fn cached_pages(&self) -> u64 {
        cache_state(&self.file, &(0..0)).expect("Linux 6.5").cached
    }
}

#[test]
fn what_is_not_cached_becomes_huge() {
    let fixture = cold();
    let whole = fixture.whole();
    let prepared = fixture.prepare(std::slice::from_ref(&whole));
    assert_eq!((&prepared.huge, &prepared.shortfall), (&vec![whole], &None));
    let states = fixture.states();
    assert_eq!(states[..HUGE_PAGES as usize], [ChunkState::Huge; HUGE_PAGES as usize]);
    assert_ne!(states[HUGE_PAGES as usize], ChunkState::Huge, "the file ends there");
}

#[test]
fn chunks_may_have_gaps() {
    let fixture = cold();
    let pmd = fixture.pages.pmd.bytes();
    let chunks = [0..pmd, 3 * pmd..4 * pmd, 4 * pmd..5 * pmd];
    assert_eq!(fixture.prepare(&chunks).huge, [0..pmd, 3 * pmd..5 * pmd]);
}

#[test]
fn text_as_large_as_the_memory_is_not_read_in() {
    let fixture = cold();
    let pmd = fixture.pages.pmd.bytes();
    let info = rustix::system::sysinfo();
    let len = (info.totalram * u64::from(info.mem_unit)).next_multiple_of(pmd);
    fixture.named.as_file().set_len(len).expect("a file system with sparse files");
    let (before, all) = (fixture.cached_pages(), 0..len);
    let deadline = Instant::now() + Duration::from_secs(600);
    let refused = prepare(
        &fixture.file,
        std::slice::from_ref(&all),
        fixture.pages,
        Small::Collapse,
        deadline,
    );
    assert_eq!(refused.expect_err("too much").reason, FailureKind::MemoryHeadroom);
    assert_eq!(fixture.cached_pages(), before);
}

#[test]
fn what_is_cached_small_stays_as_it_is() {
    let fixture = cold();
    rustix::fs::fadvise(&fixture.file, 0, None, rustix::fs::Advice::Random).expect("fadvise");
    for at in fixture.whole().step_by(fixture.pages.base.bytes() as usize) {
        rustix::io::pread(&fixture.file, &mut [0; 1], at).expect("an own file");
    }
    let _pinned = fixture.pinned(fixture.whole());
    let cached = fixture.cached_pages();
    let prepared = fixture.prepare(&[fixture.whole()]);
    // A kernel that collapses file pages makes them huge; no kernel may lose one.
    if prepared.huge.is_empty() {
        let failure = prepared.shortfall.expect("a reason");
        assert_eq!(failure.reason, SkipReason::SmallFolios);
        assert!(failure.detail.contains("5 of 5"), "{failure}");
        assert_eq!(fixture.states()[..5], [ChunkState::Small; 5]);
    }
    assert_eq!(fixture.cached_pages(), cached);
}

#[test]
fn looking_reads_nothing() {
    let fixture = cold();
    assert_eq!(fixture.states(), [ChunkState::Absent; HUGE_PAGES as usize + 1]);
    assert_eq!(fixture.cached_pages(), 0);
    // Cache one base page of the second huge page: `state` must not begin readahead from there.
    let pmd = fixture.pages.pmd.bytes();
    evict(&fixture.file, &fixture.all()).expect("fadvise");
    let one = fixture.pages.base.bytes() as usize;
    rustix::fs::fadvise(&fixture.file, 0, None, rustix::fs::Advice::Random).expect("fadvise");
    rustix::io::pread(&fixture.file, &mut vec![0; one], pmd).expect("an own file");
    let _pinned = fixture.pinned(pmd..pmd + one as u64);
    let cached = fixture.cached_pages();
    assert_eq!(fixture.states()[..3], [ChunkState::Absent, ChunkState::Small, ChunkState::Absent]);
    assert_eq!(fixture.cached_pages(), cached);
}

#[test]
fn past_the_end_and_past_the_deadline_are_results() {
    let fixture = cold();
    let pmd = fixture.pages.pmd.bytes();
    let past = 64 * pmd..66 * pmd;
    let prepared = fixture.prepare(std::slice::from_ref(&past));
    assert_eq!(prepared.huge, []);
    assert!(prepared.shortfall.is_some());
    let prepared =
        prepare(&fixture.file, &[fixture.whole()], fixture.pages, Small::Collapse, Instant::now());
    let prepared = prepared.expect("a file that can be mapped");
    assert_eq!(prepared.shortfall.expect("a reason").reason, FailureKind::Deadline);
    assert_eq!(fixture.cached_pages(), 0, "nothing was touched in no time");
    let nothing = fixture.prepare(&[]);
    assert_eq!((nothing.huge, nothing.shortfall), (vec![], None));
}

#[test]
fn who_writes_is_seen() {
    let fixture = cold();
    assert!(is_open_for_writing(&fixture.file).expect("an own file"));
    let path = fixture.named.into_temp_path();
    assert!(!is_open_for_writing(&fixture.file).expect("an own file"));
    drop(path);
}
