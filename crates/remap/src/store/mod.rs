//! The image store: files on a tmpfs that hold the text of programs in huge pages, one for the whole
//! machine.
//!
//! An image is its original in a new layout ([`tiexec_core::relaid`]), so that its text can be mapped over the
//! original's. A process that maps an image executes it. An image is therefore used only if its owner, mode, place
//! and name show that only this user, or root, can have made it.
//!
//! - `directory`: where the stores are, and whether one can be trusted.
//! - `key`: the file and the state from which an image is made; its name; its sidecar.
//! - `share`: which originals may have an image that everybody can read.
//! - `lookup`: opens images for use. `build`, `fill`: make new ones. `proof`: which files cannot change without a
//!   sign.
//! - `memory`: the memory that images take. `state`, `users`, `prune`, `verify`, `setup`: the work of `tiexecctl
//!   store`.

mod build;
pub mod directory;
mod fill;
pub mod integrity;
pub mod key;
mod lookup;
pub mod memory;
mod proof;
pub mod prune;
pub mod setup;
pub mod share;
pub mod state;
mod temporary;
pub mod users;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use object::read::ReadCache;
use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::escape::AsShown;
use tiexec_core::plan::Span;
use tiexec_core::relaid::{Layout, LayoutError};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::procfs::ProcDir;

use directory::{Directories, Directory, Kind};
use key::Key;
use tiexec_tracee::Failure;

use crate::image::Staged;

/// The end of every image's file name, by which TiExec recognizes an image in `/proc/PID/maps`.
pub const SUFFIX: &str = ".tiexec";

/// The stores that this user can use.
#[derive(Debug)]
pub struct Store {
    directories: Directories,
    pages: Pages,
}

/// An image that may be used.
#[derive(Debug)]
pub struct StoredImage {
    /// Its path.
    pub path: PathBuf,
    /// The image, open for reading.
    pub file: File,
    /// The layout: which bytes of the original lie where in it.
    pub layout: Layout,
}

impl StoredImage {
    /// Returns the part of the image that holds a span of a process whose load bias is `bias`. Its offset is congruent
    /// with the addresses modulo the PMD size.
    ///
    /// # Errors
    /// `store_refused` unless all of the span is text of one segment.
    pub(crate) fn part(&self, span: &Span, bias: u64) -> Result<Staged, Failure> {
        let vaddr = |at: RemoteAddr| RemoteAddr::new(at.get().wrapping_sub(bias));
        let vaddrs = AddrRange::new(vaddr(span.range.start()), vaddr(span.range.end()));
        vaddrs
            .and_then(|vaddrs| self.layout.offset_of(vaddrs))
            .map(|image_offset| Staged { span: *span, image_offset })
            .ok_or_else(|| Failure::new(FailureKind::StoreRefused, "the image has no such text"))
    }
}

/// The order to build an image, and its limits.
#[derive(Clone, Copy, Debug)]
pub struct BuildOrder<'a> {
    /// The original, open for reading.
    pub original: &'a File,
    /// Its path, as `/proc/PID/exe` or maps show it.
    pub path: &'a Path,
    /// The load bias of a running process that the image must fit; `None` for a launch, which moves the program.
    pub bias: Option<u64>,
    /// The directory under `/proc` of the process whose memory cgroup pays for the image.
    pub process: &'a ProcDir,
    /// When to give up.
    pub deadline: Instant,
}

impl Store {
    /// Opens the stores of this user: the system's, if it is set up, and the user's own, if there is a place for
    /// it. Makes the user's own directory. Returns `None` if there is no store.
    ///
    /// # Errors
    /// `store_refused`: there are stores, but other users could have put each of their directories there or could
    /// write to them.
    pub fn open_for_this_user(pages: Pages) -> Result<Option<Self>, Failure> {
        let directories = Directories::of([Directory::system(), Directory::of_user(true)])?;
        Ok((!directories.usable.is_empty()).then_some(Self { directories, pages }))
    }

    /// Returns the reasons why stores cannot be used.
    pub fn refused(&self) -> &[Failure] {
        &self.directories.refused
    }

    /// Returns the image of the original's present state; `None` if there is none. With `bias`, the image must fit
    /// a process with that load bias.
    ///
    /// # Errors
    /// `store_refused`: the image must not be used. `misplaced`: it does not fit. `odd_file`, `foreign_image`,
    /// `read_failed`: the original can have no image.
    pub fn find(
        &self,
        original: &File,
        path: &Path,
        bias: Option<u64>,
    ) -> Result<Option<StoredImage>, Failure> {
        let wanted = Wanted::read(original, path, self.pages, bias)?;
        Ok(self.find_wanted(wanted)?.ok())
    }

    fn find_wanted(&self, wanted: Wanted) -> Result<Result<StoredImage, Wanted>, Failure> {
        let mut refused = None;
        for directory in &self.directories.usable {
            match lookup::open(directory, &wanted.name, wanted.layout.len) {
                Ok(Some(file)) => return Ok(Ok(wanted.found(directory, file))),
                Ok(None) => {}
                Err(failure) => refused = refused.or(Some(failure)),
            }
        }
        refused.map_or(Ok(Err(wanted)), Err)
    }

    /// Returns the image of the original's present state. Builds it if there is none and this user may.
    ///
    /// If several processes need the same image, one builds it. The others wait for it, each until its own
    /// deadline. If the builder dies, nobody uses the half image, and the next process takes over.
    ///
    /// # Errors
    /// As [`find`](Self::find), and also `not_shareable`, `not_stored` (only another user may build it),
    /// `store_full`, `no_huge_page`, `memcg_headroom`, `deadline`. Nothing is left behind.
    ///
    /// # Kernel
    /// 6.1, for `MADV_COLLAPSE` on shared memory; 5.14 if the tmpfs has `huge=advise`.
    pub fn find_or_build(&self, order: &BuildOrder<'_>) -> Result<StoredImage, Failure> {
        let wanted = Wanted::read(order.original, order.path, self.pages, order.bias)?;
        let wanted = match self.find_wanted(wanted)? {
            Ok(image) => return Ok(image),
            Err(wanted) => wanted,
        };
        let directory = self.place_for(order.original, order.path)?;
        let has_build_id = wanted.key.build_id.is_some();
        let _proof = proof::of(order.original, order.path, directory, has_build_id)?;
        // The proof covers only what is read after it.
        let wanted = Wanted::read(order.original, order.path, self.pages, order.bias)?;
        let file = build::build(directory, &wanted, order)?;
        Ok(wanted.found(directory, file))
    }

    /// Checks that this user may build an image of `original`.
    ///
    /// # Errors
    /// `not_shareable`, `not_stored`, `store_refused`.
    pub(crate) fn may_build(&self, original: &File, path: &Path) -> Result<(), Failure> {
        self.place_for(original, path).map(|_directory| ())
    }

    /// Chooses the store in which this user may build an image of `original`.
    fn place_for(&self, original: &File, path: &Path) -> Result<&Directory, Failure> {
        let Directories { usable, refused } = &self.directories;
        let find = |kind| usable.iter().find(|directory| directory.kind == kind);
        let system = find(Kind::System);
        let shareable = system.map(|_| share::check(original, path));
        let why = match (system, shareable) {
            (Some(system), Some(Ok(()))) if system.is_ours() => return Ok(system),
            (_, Some(Err(not_shareable))) => not_shareable,
            _ => refused.first().cloned().unwrap_or_else(|| {
                let detail = format!("only root builds images in {}", directory::SYSTEM);
                Failure::new(SkipReason::NotStored, detail)
            }),
        };
        find(Kind::User).ok_or(why)
    }

    /// Returns the first store in which this user may build images.
    pub fn path(&self) -> Option<&Path> {
        let ours = self.directories.usable.iter().find(|directory| directory.is_ours());
        ours.map(|directory| directory.path.as_path())
    }
}

/// An image that is needed: its name, and all facts for building it.
#[derive(Debug)]
pub(crate) struct Wanted {
    key: Key,
    layout: Layout,
    name: String,
}

impl Wanted {
    fn read(
        original: &File,
        path: &Path,
        pages: Pages,
        bias: Option<u64>,
    ) -> Result<Self, Failure> {
        let stat = rustix::fs::fstat(original).map_err(|errno| {
            Failure::of(FailureKind::ReadFailed)(tiexec_sys::Errno::from(errno))
                .about(format_args!("fstat({})", path.shown()))
        })?;
        let headers = ReadCache::new(Headers { file: original, at: 0 });
        let layout = Layout::read(&headers, pages).map_err(|error| {
            let reason = match error {
                LayoutError::Elf(_) => SkipReason::ForeignImage,
                LayoutError::Malformed(_) | LayoutError::Odd(_) => SkipReason::OddFile,
            };
            Failure::of(reason)(error).about(path.shown())
        })?;
        if bias.is_some_and(|bias| !layout.fits(bias)) {
            let detail = format!("{} lies where only this start of it has it", path.shown());
            return Err(Failure::new(SkipReason::Misplaced, detail));
        }
        let key = Key::new(&stat, &layout);
        let name = key.image_name(path);
        Ok(Self { key, layout, name })
    }

    fn found(self, directory: &Directory, file: File) -> StoredImage {
        StoredImage { path: directory.path.join(&self.name), file, layout: self.layout }
    }
}

/// Reads a file at positions of its own, because other processes may share the file's offset.
#[derive(Debug)]
struct Headers<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Headers<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Headers<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.at, by),
            SeekFrom::End(by) => (self.file.metadata()?.len(), by),
        };
        self.at = from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
