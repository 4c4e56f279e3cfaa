//! A program held at its exec stop.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::file_ranges::Parts;
use tiexec_core::plan::{Backing, Means, Plan, plan};
use tiexec_core::proc::{auxv, maps, stat};
use tiexec_core::rebase::MainImage;
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_core::smaps;
use tiexec_core::snapshot::Snapshot;
use tiexec_sys::Errno;
use tiexec_tracee::Failure;
use tiexec_tracee::arch;

use super::Order;
use crate::elf_file::elf_facts;
use crate::open_mapped::{must_all_be_local, open_exe};
use crate::pagecache::{self, Small};
use crate::policy::Policy;
use crate::store::{BuildOrder, Store, StoredImage};
use crate::target_file::of_roots_at;

/// The facts about a program held at its exec stop.
pub(crate) struct Program {
    /// Its executable, open.
    pub exe: File,
    /// `/proc/PID/auxv`.
    pub auxv: Vec<u8>,
    /// Its address space.
    pub snapshot: Snapshot,
    /// Its segments, and where they are.
    pub image: MainImage,
    /// The parts of its file that are in PMD-sized folios and can be PMD-mapped.
    pub folios: Vec<Range<u64>>,
    /// Keeps those folios cached until the program has mapped them itself.
    _held: pagecache::Held,
    /// Its image in the store.
    pub stored: Option<StoredImage>,
    /// True if an interpreter maps shared objects for it.
    pub dynamic: bool,
    /// Its RELRO, as vaddrs.
    relro: Option<Range<u64>>,
    policy: Policy,
    start_brk: Option<u64>,
}

impl Program {
    /// Reads the facts about the program. Until `deadline`, also makes its page cache huge if that costs no other
    /// process anything. `foreign` says whether the program has other credentials than this process.
    ///
    /// # Errors
    /// The program must be left alone; nothing was done to it.
    pub(crate) fn read(order: &Order, foreign: bool, deadline: Instant) -> Result<Self, Failure> {
        let process = &order.process;
        let malformed = Failure::of(FailureKind::ProcUnavailable);
        let exe = if foreign {
            open_exe(process)?
        } else {
            process.open_file("exe", false).map_err(|error| match error.errno {
                Errno::ACCES | Errno::PERM => Failure::of(SkipReason::UnreadableImage)(error),
                _ => Failure::unreadable(error),
            })?
        };
        let (header, facts) = elf_facts(&exe)?;
        let auxv = process.read("auxv").map_err(Failure::unreadable)?;
        if auxv::get(&auxv, auxv::AT_SECURE).is_some_and(|secure| secure != 0) {
            return Err(Failure::new(SkipReason::PrivilegedImage, "AT_SECURE is set"));
        }
        let entry = RemoteAddr::new(auxv::get(&auxv, auxv::AT_ENTRY).unwrap_or(0));
        let vmas = if arch::GUARDS_TEXT && !facts.dynamic {
            let entries = smaps::parse(&process.read("smaps").map_err(Failure::unreadable)?);
            entries.map_err(malformed)?.into_iter().map(|entry| entry.vma).collect()
        } else {
            maps::parse(&process.read("maps").map_err(Failure::unreadable)?).map_err(malformed)?
        };
        if foreign {
            // The program chose its dynamic linker too, so check all its files.
            must_all_be_local(process, &vmas)?;
        }
        let snapshot = Snapshot { pages: order.policy.pages, vmas, entry };
        let image = MainImage::new(&facts, header.entry, entry);
        let relro = facts.relro;
        let (dynamic, policy) = (facts.dynamic, order.policy);
        let cached = if policy.sources.pagecache && policy.select.main {
            folios(&exe, &image, &policy, deadline)
        } else {
            pagecache::Prepared::default()
        };
        let layout = process.read("stat").ok().and_then(|text| stat::layout(&text).ok());
        let start_brk = layout.map(|layout| layout.start_brk);
        Ok(Self {
            exe,
            auxv,
            snapshot,
            image,
            folios: cached.huge,
            _held: cached.held,
            stored: None,
            dynamic,
            relro,
            policy,
            start_brk,
        })
    }

    /// Returns the address range of the program's `ld.so`, and whether that is its libc as well (musl's). `None`
    /// without one.
    pub(crate) fn linker(&self) -> Option<(AddrRange, bool)> {
        let at = RemoteAddr::new(auxv::get(&self.auxv, auxv::AT_BASE).filter(|&at| at != 0)?);
        let vma = self.snapshot.vma_at(at)?;
        let name = Path::new(OsStr::from_bytes(&vma.name)).file_name().unwrap_or_default();
        let is_libc = !name.as_bytes().starts_with(b"ld-linux");
        let file = vma.file;
        let mut own = self.snapshot.vmas.iter().filter(|vma| vma.file == file);
        let (first, last) = (own.next()?, own.next_back());
        let range = AddrRange::new(first.range.start(), last.unwrap_or(first).range.end())?;
        Some((range, is_libc))
    }

    /// Returns the first page of the program's own data that `ld.so` makes read-only; `None` if that data ends in the
    /// page in which it begins.
    pub(crate) fn relro(&self, base: PageSize) -> Option<RemoteAddr> {
        let relro = self.relro.as_ref()?;
        let page =
            |vaddr: u64| RemoteAddr::new(vaddr.wrapping_add(self.image.load_bias)).align_down(base);
        (page(relro.start) != page(relro.end)).then(|| page(relro.start))
    }

    /// Makes the plan. `may_move` says whether the program may be moved.
    pub(crate) fn plan(&self, may_move: bool) -> Plan {
        let fixed = MainImage { position_independent: false, ..self.image.clone() };
        let image = if may_move { &self.image } else { &fixed };
        let store = self.stored.as_ref().map(|_| Backing::Store);
        let copies: Vec<Backing> = store.into_iter().chain(self.policy.sources.copy).collect();
        let means = Means {
            leave_main: !self.policy.select.main,
            image: Some(image),
            folios: &self.folios,
            copies: &copies,
            edges: self.policy.edges,
            start_brk: self.start_brk,
        };
        plan(&self.snapshot, &means)
    }

    /// Returns which of the file's bytes belong where.
    pub(crate) fn parts(&self) -> Option<Parts> {
        Parts::of(&self.image.loads, self.image.load_bias, self.snapshot.pages.base)
    }

    /// Finds the program's image in the store. If the store has none, has one built until `deadline`. Returns
    /// whether there is one now. With `dry_run` nothing is built.
    ///
    /// # Errors
    /// The reason why there is no image although there is a store.
    pub(crate) fn find_in_store(
        &mut self,
        order: &Order,
        foreign: bool,
        deadline: Instant,
    ) -> Result<bool, Failure> {
        let Some(store) = Store::open_for_this_user(order.policy.pages)? else { return Ok(false) };
        // A file that has no name any more will not be started again.
        if self.exe.metadata().is_ok_and(|meta| meta.nlink() == 0) {
            return Ok(false);
        }
        let path = order.process.exe_path().map_err(Failure::of(FailureKind::ProcUnavailable))?;
        let path = Path::new(OsStr::from_bytes(&path));
        let shared = if foreign {
            let Ok(meta) = self.exe.metadata() else { return Ok(false) };
            let file = of_roots_at(path.as_os_str().as_bytes(), (meta.dev(), meta.ino()));
            let Some(file) = file else { return Ok(false) };
            Some(file)
        } else {
            None
        };
        let (original, process) = (shared.as_ref().unwrap_or(&self.exe), &order.process);
        let found = if order.policy.dry_run {
            store.find(original, path, None)?
        } else {
            let order = BuildOrder { original, path, bias: None, process, deadline };
            match store.find_or_build(&order) {
                Err(failure) if failure.reason == SkipReason::NotStored => None,
                found => Some(found?),
            }
        };
        // The image does not fit a program whose headers look like a library's.
        let bias = self.image.bias_for_copies(order.policy.pages);
        self.stored = found.filter(|image| image.layout.fits(bias));
        Ok(self.stored.is_some())
    }
}

/// Returns the parts of the text that lie in the page cache in PMD-sized folios, where they can be PMD-mapped.
fn folios(
    exe: &File,
    image: &MainImage,
    policy: &Policy,
    deadline: Instant,
) -> pagecache::Prepared {
    let Policy { pages, edges, dry_run, .. } = *policy;
    let len = exe.metadata().map_or(0, |meta| meta.len());
    let chunks = image.cacheable_chunks(pages, edges, len);
    let small = Small::of(dry_run);
    let prepare = |chunks: Vec<_>| pagecache::prepare(exe, &chunks, pages, small, deadline).ok();
    chunks.and_then(prepare).unwrap_or_default()
}
