//! The page cache of a program, and of its shared objects, before the exec.
//!
//! The exec itself would read some text in small folios: the kernel clears the page where the bss begins, and reads around
//! that fault; `ld.so` reads all its objects in small folios. So the caller, which becomes the program, makes the page cache
//! huge first. What it reads is charged to the memory cgroup of the program.
//!
//! Text that is cached in small folios is evicted and read back, once: after that it stays huge, and later launches find
//! it so. [`Eviction::begin`] has the rules. They keep three promises: no process loses a page that it uses, the launch
//! waits for a slow device for one huge page's read, and nobody makes launches evict a file over and over.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::config::Edges;
use tiexec_core::elf::ElfFacts;
use tiexec_core::escape::AsShown;
use tiexec_core::rebase::MainImage;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_sys::holes::Holes;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::{Failure, clock};

use crate::evict::{Asker, Evictor, not_owner};
use crate::file_systems::{self, LOCAL, ON_DISK};
use crate::headroom;
use crate::objects::{Object, chunks_of};
use crate::pagecache::{self, Prepared, Small, huge_pages, total};
use crate::policy::Policy;
use crate::records::{Added, DAY, Records};

/// The result for one file.
#[derive(Debug, Default)]
pub struct Brought {
    /// True if a plain exec finds all text of the program in huge pages, where it can be PMD-mapped, so that the program
    /// needs no change. With edges in the policy, it may always need one.
    pub complete: bool,
    /// Why the page cache holds some text in small folios, and the launch has not changed that.
    pub left: Option<Failure>,
}

/// Brings the text of `exe`, about to be exec'ed, into PMD-sized folios, until `deadline`, if that costs no other
/// process anything.
pub fn bring_in(exe: &File, facts: &ElfFacts, policy: &Policy, deadline: Instant) -> Brought {
    let Policy { pages, edges, .. } = *policy;
    let image = MainImage::new(facts, 0, RemoteAddr::new(0));
    let len = exe.metadata().map_or(0, |meta| meta.len());
    let chunks = image.cacheable_chunks(pages, edges, len);
    let Some(chunks) = chunks else { return Brought::default() };
    let (is_huge, left) = prepare(exe, &chunks, policy, deadline);
    let congruent = total(&chunks);
    let texts = facts.loads.iter().filter(|load| load.is_text());
    let whole = texts.filter_map(|load| load.mapped(pages.base)?.align_inward(pages.pmd));
    let all: u64 = whole.map(AddrRange::len).sum();
    let only_whole = edges.edges == Edges::Conservative;
    let complete = is_huge && only_whole && !image.position_independent && congruent == all;
    Brought { complete, left }
}

/// As [`bring_in`], for a shared object. The kernel maps large objects from an address that is a multiple of the
/// huge page on, and the object is brought in for such an address. Returns why text stays in small folios.
pub fn bring_in_object(object: &Object, policy: &Policy, deadline: Instant) -> Option<Failure> {
    prepare(&object.file, &chunks_of(object, policy.pages), policy, deadline).1
}

/// Makes the page cache of `chunks` huge. Returns whether all of it is, and why small folios are left.
fn prepare(
    file: &File,
    chunks: &[Range<u64>],
    policy: &Policy,
    deadline: Instant,
) -> (bool, Option<Failure>) {
    let pages = policy.pages;
    let prepare = || pagecache::prepare(file, chunks, pages, Small::of(policy.dry_run), deadline);
    let Ok(Prepared { huge, shortfall, held }) = prepare() else { return (false, None) };
    let is_small = |failure: &Failure| failure.reason == Reason::from(SkipReason::SmallFolios);
    if !policy.evict || !shortfall.as_ref().is_some_and(is_small) {
        return (shortfall.is_none(), shortfall.filter(is_small));
    }
    // The mappings that hold the huge folios have pages of the small ones mapped, too.
    drop(held);
    let holes = Holes::of(file);
    let is_huge = |page: &Range<u64>| {
        huge.iter().any(|part| part.start <= page.start && page.end <= part.end)
    };
    let all = chunks.iter().flat_map(|chunk| huge_pages(chunk, pages));
    let small: Vec<Range<u64>> =
        all.filter(|page| !is_huge(page) && holes.has_data(page)).collect();
    let eviction = Eviction { file, pages, small, seen_huge: !huge.is_empty() };
    match eviction.run(policy.deadline, deadline) {
        // Some other chunk may have been reclaimed meanwhile.
        Ok(()) => (prepare().is_ok_and(|prepared| prepared.shortfall.is_none()), None),
        Err(failure) => (false, Some(failure)),
    }
}

/// Evicting and reading back one file.
struct Eviction<'a> {
    file: &'a File,
    pages: Pages,
    /// The huge pages' worth of text that are cached in small folios.
    small: Vec<Range<u64>>,
    /// True if another part of the text is in a huge folio.
    seen_huge: bool,
}

/// The records of evictions.
struct Evictions {
    /// The last ones, for an hour.
    last: Records,
    /// Those after which the text was in small folios again, for a day. A shortage of memory passes sooner, but a
    /// file system does not get large folios.
    in_vain: Records,
}

impl Evictions {
    /// For how long an eviction counts.
    const LIFETIME: Duration = Duration::from_secs(60 * 60);
    /// How many evictions of one file may begin in that time: more than a large program needs whose first launches have too
    /// little time for all of it.
    const MOST: u8 = 8;

    fn open() -> Result<Self, Failure> {
        let open = || {
            let last = Records::open("evicted", Self::LIFETIME)?;
            Ok(Self { last, in_vain: Records::open("evicted-in-vain", DAY)? })
        };
        open().map_err(|why: String| unevicted(format_args!("it could not be recorded: {why}")))
    }

    /// Returns the names of the records of one file's evictions.
    fn records(file: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        (0..Self::MOST).map(move |number| [file, &[number]].concat())
    }

    /// Checks that the file may be evicted once more.
    fn allow(&self, file: &[u8]) -> Result<(), Failure> {
        if self.in_vain.has(file) {
            let detail = "an earlier launch evicted it in vain: it came back in small folios";
            return Err(Failure::new(SkipReason::SmallFolios, detail));
        }
        if Self::records(file).all(|record| self.last.has(&record)) {
            return Err(Self::too_often());
        }
        Ok(())
    }

    /// Records that the eviction of a file begins.
    fn begin(&self, file: &[u8]) -> Result<(), Failure> {
        let mut added = Self::records(file).map(|record| self.last.add(&record));
        match added.find(|added| *added != Added::Known) {
            Some(Added::New) => Ok(()),
            Some(_) => {
                Err(unevicted("it could not be recorded: there are too many records, or no room"))
            }
            None => Err(Self::too_often()),
        }
    }

    fn too_often() -> Failure {
        let detail = format!("launches evicted it {} times within an hour", Self::MOST);
        Failure::new(SkipReason::SmallFolios, detail)
    }
}

/// Returns the failure of a launch that has evicted nothing.
fn unevicted(why: impl std::fmt::Display) -> Failure {
    Failure::new(SkipReason::SmallFolios, format!("nothing was evicted: {why}"))
}

impl Eviction<'_> {
    /// Evicts and reads back as much as the time allows.
    ///
    /// # Errors
    /// Why some of it is still in small folios.
    fn run(self, patience: Duration, deadline: Instant) -> Result<(), Failure> {
        let mut evictor = Evictor::new(self.file, self.pages, Asker::Launch);
        evictor.seen_huge = self.seen_huge;
        // Half of the time is left for copies of the rest.
        let until = deadline.checked_sub(patience / 2).unwrap_or(deadline);
        let (id, evictions) = self.begin(&mut evictor, until)?;
        let slow = patience / 20;
        for chunk in &self.small {
            let begun = Instant::now();
            if begun >= until {
                let detail = "the rest of it is evicted by later launches";
                return Err(Failure::new(FailureKind::Deadline, detail));
            }
            if let Err(failure) = evictor.evict_and_read(chunk)? {
                if let Reason::Failed(FailureKind::NoHugePage | FailureKind::NoLargeFolios) =
                    failure.reason
                {
                    let _the_number_of_evictions_is_limited = evictions.in_vain.add(&id);
                }
                return Err(failure);
            }
            let took = clock::disk(begun.elapsed());
            if took > slow {
                let detail = format!(
                    "it lies on a slow device, which took {} ms for one huge page",
                    took.as_millis()
                );
                return Err(Failure::new(FailureKind::Deadline, detail));
            }
        }
        Ok(())
    }

    /// Checks the rules, the cheapest first, and records that the eviction begins. Returns the identity of the file in
    /// its present state, and the records. Whatever forbids the eviction costs the file no attempt.
    ///
    /// # Errors
    /// The rule that forbids to evict it.
    fn begin(
        &self,
        evictor: &mut Evictor<'_>,
        until: Instant,
    ) -> Result<(Vec<u8>, Evictions), Failure> {
        let meta = self.file.metadata().map_err(Failure::of(FailureKind::ReadFailed))?;
        let user = rustix::process::geteuid();
        // mincore(2) answers only the owner. Root evicts nothing that another user chose.
        if meta.uid() != user.as_raw() {
            return Err(if user.is_root() {
                let detail = "nothing was evicted: root's launches evict only root's files";
                Failure::new(SkipReason::NotOwner, detail)
            } else {
                not_owner("mincore")
            });
        }
        let numbers = [
            meta.dev(),
            meta.ino(),
            meta.len(),
            meta.ctime().cast_unsigned(),
            meta.ctime_nsec().cast_unsigned(),
        ];
        let id = numbers.map(u64::to_ne_bytes).concat();
        let evictions = Evictions::open()?;
        evictions.allow(&id)?;
        let kind = file_systems::of(self.file).map(|place| place.kind).unwrap_or_default();
        if !ON_DISK.contains(&&*kind) {
            return Err(if LOCAL.contains(&&*kind) {
                unevicted(format_args!("launches evict nothing on {}", kind.shown()))
            } else {
                unevicted(format_args!("on {}, a read may wait for a server", kind.shown()))
            });
        }
        if let Some((first, others)) = self.small.split_first() {
            check_unused(evictor, first, until)?;
            let process = ProcDir::this_process().map_err(Failure::unreadable)?;
            headroom::check(&process, total(&self.small))?;
            // This counts the dirty pages of the whole file, which takes milliseconds.
            evictor.may_evict(first)?;
            // A process that uses a part of the text keeps all of it.
            others.iter().try_for_each(|chunk| check_unused(evictor, chunk, until))?;
        }
        evictions.begin(&id)?;
        Ok((id, evictions))
    }
}

/// Checks in time that no process uses the chunk.
///
/// # Errors
/// `in_use`, `deadline`, or as [`Evictor::in_use`].
fn check_unused(evictor: &Evictor<'_>, chunk: &Range<u64>, until: Instant) -> Result<(), Failure> {
    if Instant::now() >= until {
        let detail = "nothing was evicted: half of the time was over before";
        return Err(Failure::new(FailureKind::Deadline, detail));
    }
    evictor.in_use(chunk)?.map_or(Ok(()), Err)
}
