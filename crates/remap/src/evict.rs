//! Evicts parts of a file from the page cache and reads them back in huge folios: the way of `tiexecctl warm` and of a
//! launch.
//!
//! It evicts one huge page's worth at a time and reads it back at once, and only if the kernel says that nobody
//! writes to the file and nobody has that part mapped. If the part does not become huge, the page cache holds it in small
//! folios again.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use tiexec_core::addr::Pages;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::compaction;
use tiexec_sys::pagecache::{FileMapping, cache_state, evict, is_open_for_writing};
use tiexec_sys::{Errno, SysError};
use tiexec_tracee::Failure;

use crate::file_systems;
use crate::pagecache::{Small, bring, map, total, unmapped, unseen};
use crate::users;

/// The program that evicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// A command, which has seconds: it waits for fragmented memory, and names the processes that use the file.
    Command,
    /// A launch, which has milliseconds.
    Launch,
}

/// Evicts parts of one file and reads them back.
pub(crate) struct Evictor<'a> {
    file: &'a File,
    pages: Pages,
    asker: Asker,
    /// True if a part of the file is in a huge folio.
    pub(crate) seen_huge: bool,
    /// True once the file system and the file's unwritten pages have been checked.
    asked: bool,
    /// The rest of the time to wait for fragmented memory.
    patience: Patience,
}

/// Waits for fragmented memory. The kernel compacts it within seconds.
struct Patience {
    /// The longest total of all waits, for all parts of the file.
    longest: Duration,
    /// The total of all waits so far.
    waited: Duration,
    /// The next wait.
    next: Duration,
    /// True once all memory was compacted.
    compacted: bool,
}

impl Patience {
    const FIRST: Duration = Duration::from_millis(10);
    /// For this total, a page that was not read here may be on a list of its processor.
    const ON_A_LIST: Duration = Duration::from_millis(100);
    /// After this total, root has the kernel compact all memory.
    const COMPACT_AFTER: Duration = Duration::from_millis(600);

    const fn of(asker: Asker) -> Self {
        let longest = match asker {
            Asker::Command => Duration::from_secs(5),
            Asker::Launch => Duration::ZERO,
        };
        Self { longest, waited: Duration::ZERO, next: Duration::ZERO, compacted: false }
    }

    /// Waits, each time twice as long, and has the kernel free a huge page. Returns false if the time is used up.
    fn wait(&mut self, pages: Pages) -> bool {
        if self.waited >= self.longest {
            return false;
        }
        self.next = (2 * self.next).max(Self::FIRST);
        std::thread::sleep(self.next);
        self.waited += self.next;
        if self.waited >= Self::COMPACT_AFTER && !self.compacted {
            self.compacted = true;
            let _not_root = compaction::compact_all();
        }
        let _still_fragmented = compaction::free_one(pages.pmd);
        true
    }

    /// Makes the next wait short again.
    const fn succeeded(&mut self) {
        self.next = Duration::ZERO;
    }
}

impl<'a> Evictor<'a> {
    pub(crate) const fn new(file: &'a File, pages: Pages, asker: Asker) -> Self {
        let patience = Patience::of(asker);
        Self { file, pages, asker, seen_huge: false, asked: false, patience }
    }

    /// Tries to make the chunk huge without evicting anything.
    ///
    /// # Errors
    /// As [`bring`].
    pub(crate) fn becomes_huge(&self, chunk: &Range<u64>) -> Result<bool, Failure> {
        let prepared =
            bring(self.file, std::slice::from_ref(chunk), self.pages, Small::Collapse, None)?;
        Ok(total(&prepared.huge) == chunk.end - chunk.start)
    }

    /// Evicts a chunk that is cached in small folios, and reads it back in a huge one. Returns the obstacle if it is
    /// not huge then; in that case the page cache holds at least as much of it as before.
    ///
    /// # Errors
    /// As [`bring`].
    pub(crate) fn evict_and_read(
        &mut self,
        chunk: &Range<u64>,
    ) -> Result<Result<(), Failure>, Failure> {
        if let Err(obstacle) = self.may_evict(chunk) {
            return Ok(Err(obstacle));
        }
        if let Some(in_use) = self.in_use(chunk)? {
            return Ok(Err(in_use));
        }
        // Mapped before the first page is evicted: if anything fails after that, the mapping reads the chunk back.
        let mapping = map(self.file, chunk, self.pages)?;
        let outcome = self.replace(chunk, &mapping);
        if !matches!(outcome, Ok(Ok(()))) {
            let _unreadable = mapping.populate(chunk);
        }
        outcome
    }

    /// Does the work of [`evict_and_read`](Self::evict_and_read). If the chunk is not huge then, some of it may not be
    /// cached.
    fn replace(
        &mut self,
        chunk: &Range<u64>,
        mapping: &FileMapping,
    ) -> Result<Result<(), Failure>, Failure> {
        let mut tries = 0;
        loop {
            evict(self.file, chunk).map_err(unmapped)?;
            if !mapping.cached_parts(chunk, self.pages.base).map_err(unseen)?.is_empty() {
                // A page that was just read is on a list of its processor for a moment, from which nothing evicts
                // it.
                let is_brief = self.patience.waited < Patience::ON_A_LIST;
                if (tries > 0 || is_brief) && self.patience.wait(self.pages) {
                    continue;
                }
                // On overlayfs, cachestat(2) does not count the pages that must be written back.
                let detail =
                    "it cannot be evicted: just mapped, locked in memory, or not written back";
                return Ok(Err(Failure::new(FailureKind::InUse, detail)));
            }
            if self.becomes_huge(chunk)? {
                self.patience.succeeded();
                self.seen_huge = true;
                return Ok(Ok(()));
            }
            tries += 1;
            if !self.may_be_fragmentation(tries) || !self.patience.wait(self.pages) {
                return Ok(Err(self.came_back_small()));
            }
        }
    }

    /// Returns whether a part that came in small folios may come in a huge one once memory is less fragmented. If
    /// no part of the file was ever huge, its file system may have no large folios. The part is then tried twice,
    /// or as long as few huge pages are free.
    fn may_be_fragmentation(&self, tries: u32) -> bool {
        /// As many huge pages as other users of memory may take between two attempts.
        const FEW: u64 = 16;
        self.seen_huge
            || tries < 2
            || compaction::free_huge_pages(self.pages).is_some_and(|free| free < FEW)
    }

    /// Checks whether anything but a mapping forbids evicting the chunk.
    ///
    /// # Errors
    /// The obstacle: dirty pages, a writer, or a question that the kernel does not answer.
    pub(crate) fn may_evict(&mut self, chunk: &Range<u64>) -> Result<(), Failure> {
        if !self.asked {
            let place = file_systems::of(self.file);
            if place.is_some_and(|place| matches!(&*place.kind, b"tmpfs" | b"ramfs" | b"devtmpfs"))
            {
                let detail = "the kernel makes no huge page of it now: memory may be fragmented";
                return Err(Failure::new(FailureKind::NoHugePage, detail));
            }
            self.clean(&(0..0))?;
            self.asked = true;
        }
        match is_open_for_writing(self.file) {
            Ok(false) => {}
            Ok(true) => {
                let writers = match self.asker {
                    Asker::Command => users::writers(self.file),
                    Asker::Launch => "a process has".to_owned(),
                };
                let detail = format!("{writers} the file open for writing");
                return Err(Failure::new(FailureKind::OpenForWriting, detail));
            }
            Err(error) => return Err(unknown(error)),
        }
        self.clean(chunk)
    }

    fn clean(&self, part: &Range<u64>) -> Result<(), Failure> {
        let state = cache_state(self.file, part).map_err(unknown)?;
        if state.dirty + state.writeback > 0 {
            let detail = "parts of it are not written back to the disk yet";
            return Err(Failure::new(FailureKind::DirtyFile, detail));
        }
        Ok(())
    }

    /// Returns the failure if anybody else has a page of the chunk mapped.
    ///
    /// # Errors
    /// The file cannot be mapped, or `/proc/self` cannot be read.
    pub(crate) fn in_use(&self, chunk: &Range<u64>) -> Result<Option<Failure>, Failure> {
        let mapping = map(self.file, chunk, self.pages)?;
        mapping.advise_random().map_err(unmapped)?;
        for cached in mapping.cached_parts(chunk, self.pages.base).map_err(unseen)? {
            let _unreadable = mapping.populate(&cached);
        }
        let is_mapped = mapping.is_mapped_elsewhere(chunk, self.pages.base).map_err(unseen)?;
        Ok(is_mapped.then(|| {
            let users = match self.asker {
                Asker::Command => users::mappers(&mapping, chunk),
                Asker::Launch => "a process has".to_owned(),
            };
            Failure::new(FailureKind::InUse, format!("{users} it mapped"))
        }))
    }

    fn came_back_small(&self) -> Failure {
        if self.seen_huge {
            let detail = "a part read anew came in small folios: memory is fragmented";
            return Failure::new(FailureKind::NoHugePage, detail);
        }
        let kind = file_systems::of(self.file).map(|place| place.kind);
        let name = kind.map_or_else(
            || "its file system".to_owned(),
            |kind| String::from_utf8_lossy(&kind).into_owned(),
        );
        let detail = format!(
            "{name} read it in small folios: it has no large ones here, or memory is fragmented; \
             tiexec makes a copy instead"
        );
        Failure::new(FailureKind::NoLargeFolios, detail)
    }
}

/// Returns the failure for a call that answers only the owner of the file.
pub(crate) fn not_owner(call: &str) -> Failure {
    let detail = format!(
        "nothing was evicted: {call} serves only the file's owner and those who may write to it"
    );
    Failure::new(SkipReason::NotOwner, detail)
}

/// Returns the failure for a fact that the kernel does not tell, and without which nothing may be evicted.
fn unknown(error: SysError) -> Failure {
    match error.errno {
        Errno::PERM | Errno::ACCES => not_owner(error.call),
        _ => Failure::of(SkipReason::SmallFolios)(error).about("nothing was evicted"),
    }
}
