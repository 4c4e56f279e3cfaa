//! The image store: files on a tmpfs that hold the text of programs in huge pages, one for the whole
//! machine.
//!
//! An image is its original laid out anew ([`tiexec_core::relaid`]), so that its text can be mapped
//! over the original's. A process that maps it runs it. So no image is used unless its owner, mode, place
//! and name are such as only this user, or root, could have made.
//!
//! - `directory`: where the stores are, and whether one is to be trusted.
//! - `key`: which file, and which state of it, an image is of; its name; its sidecar.
//! - `share`: which originals may have an image that everybody can read.
//! - `lookup`: images in use. `build`, `fill`: new ones.
//! - `memory`: what images cost. `state`, `users`, `prune`, `verify`, `setup`: what `tiexecctl store` does.

mod build;
pub mod directory;
mod fill;
pub mod integrity;
pub mod key;
mod lookup;
pub mod memory;
pub mod prune;
pub mod setup;
mod share;
pub mod state;
mod temporary;
pub mod users;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use object::read::ReadCache;
use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::escape::AsShown;
use tiexec_core::relaid::{Layout, LayoutError};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::procfs::ProcDir;

use directory::{Directories, Directory, Kind};
use key::Key;
use tiexec_tracee::Failure;

/// The end of every image's file name, by which TiExec knows one in `/proc/PID/maps`.
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
    /// It, open for reading.
    pub file: File,
    /// The layout: which bytes of the original lie where in it.
    pub layout: Layout,
}

impl StoredImage {
    /// Returns the image offset, in bytes, of the text at these vaddrs (run-time addresses less the
    /// load bias); congruent with those addresses modulo the PMD size. `None` unless all of them are text of
    /// one segment.
    pub fn offset_of(&self, vaddrs: AddrRange) -> Option<u64> {
        self.layout.offset_of(vaddrs)
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
    /// The building process's directory under `/proc`: its memory cgroup pays.
    pub process: &'a ProcDir,
    /// When to give up.
    pub deadline: Instant,
}

impl Store {
    /// Opens the stores of this user: the system's, if it is set up, and the user's own, if there is
    /// a place for it; `None` without any. Makes the user's own directory.
    ///
    /// # Errors
    /// `store_refused`: the only stores are in directories that others could have put there or could write
    /// to.
    pub fn open_for_this_user(pages: Pages) -> Result<Option<Self>, Failure> {
        let directories = Directories::of([Directory::system(), Directory::of_user(true)])?;
        Ok((!directories.usable.is_empty()).then_some(Self { directories, pages }))
    }

    /// Returns why a store cannot be used, of those that cannot.
    pub fn refused(&self) -> &[Failure] {
        &self.directories.refused
    }

    /// Returns the image of the original's present state, if there is one. With `bias`, it must fit a process with that load
    /// bias.
    ///
    /// # Errors
    /// `store_refused`: there is one that must not be used; `misplaced`: the image does not fit; `odd_file`,
    /// `foreign_image`, `read_failed`: there can be none.
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

    /// Returns the image of the original's present state, building it where there is none and this
    /// user may.
    ///
    /// If several processes want the same image, one builds it, and the others wait for it until their own
    /// deadlines. If the builder dies, no half image is in use, and the next process takes over.
    ///
    /// # Errors
    /// As [`find`](Self::find); besides `not_shareable`, `not_stored` (only another user may build it), `store_full`,
    /// `no_huge_page`, `memcg_headroom`, `deadline`. Nothing is left behind.
    ///
    /// # Kernel
    /// 6.1, for `MADV_COLLAPSE` on shared memory; 5.14 where the tmpfs has `huge=advise`.
    pub fn find_or_build(&self, order: &BuildOrder<'_>) -> Result<StoredImage, Failure> {
        let wanted = Wanted::read(order.original, order.path, self.pages, order.bias)?;
        let wanted = match self.find_wanted(wanted)? {
            Ok(image) => return Ok(image),
            Err(wanted) => wanted,
        };
        let directory = self.place_for(order.original, order.path)?;
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

    /// Chooses where an image of `original` may be built by this user.
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

    /// Returns the directory where images that everybody may read are built by this user.
    pub fn path(&self) -> Option<&Path> {
        let ours = self.directories.usable.iter().find(|directory| directory.is_ours());
        ours.map(|directory| directory.path.as_path())
    }
}

/// An image that somebody wants: its name, and all that is needed to build it.
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

/// A file read at positions of our own: its offset may be shared with other processes.
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
