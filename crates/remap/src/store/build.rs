//! New images: under a temporary name that is also the lock, then renamed.
//!
//! The lock is `flock` on the temporary file, so it ends with its builder, however that ends. The
//! next builder takes over what a dead one left. The image has its name only when it is whole, its
//! sidecar stands beside it and its mode is the final one.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blake3::Hash;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use tiexec_core::addr::mib;
use tiexec_core::relaid::Layout;
use tiexec_core::shown::AsShown;
use tiexec_core::skip::SkipReason;
use tiexec_sys::{Errno, SysError};

use super::directory::{Directory, Kind};
use super::fill::{self, Stop};
use super::key::{SCHEMA, Sidecar, sidecar_name, temporary_name};
use super::{BuildOrder, Wanted, lookup, prune};
use crate::failure::Failure;
use crate::headroom;

/// How long a builder that waits for another's image sleeps between looks.
const LOOK: Duration = Duration::from_millis(1);

/// Coarsest step of a file's times: a change within the step of the one before shows no other time.
const TIME_STEP: Duration = Duration::from_millis(20);

/// Builds the image, or waits for whoever builds it already; returns it open for reading.
pub(super) fn build(
    directory: &Directory,
    wanted: &Wanted,
    order: &BuildOrder<'_>,
) -> Result<File, Failure> {
    let find = || lookup::open(directory, &wanted.name, wanted.layout.len);
    let temporary = loop {
        if let Some(temporary) = Temporary::lock(directory, &wanted.name)? {
            break temporary;
        }
        if Instant::now() >= order.deadline {
            let detail = format!("another process still builds {}", wanted.name);
            return Err(Failure::new(SkipReason::Deadline, detail));
        }
        std::thread::sleep(LOOK);
        if let Some(image) = find()? {
            return Ok(image);
        }
    };
    if let Some(image) = find()? {
        // The one before was done between our look and our lock.
        return Ok(image);
    }
    if order.path.to_str().is_none() {
        // Its sidecar could not name it.
        let detail = format!("the path {} is no UTF-8", order.path.shown());
        return Err(Failure::new(SkipReason::OddFile, detail));
    }
    headroom::check(order.process, wanted.layout.memory())?;
    leave_half(directory, wanted.layout.memory())?;
    settle(&wanted.key.ctime);
    let hash = fill_or_make_room(&temporary, wanted, order)?;
    let still = rustix::fs::fstat(order.original);
    if !still.is_ok_and(|stat| wanted.key.is_of(&stat)) {
        let detail = format!("{} changed while it was copied", order.path.shown());
        return Err(Failure::new(SkipReason::ReadFailed, detail));
    }
    temporary.finish(wanted, order.path, &hash)?;
    find()?.ok_or_else(|| {
        Failure::new(SkipReason::StoreRefused, format_args!("{} was removed again", wanted.name))
    })
}

/// Checks that an image of `bytes` leaves half of a user's runtime directory to those for whom it is
/// there; images that nobody uses go first.
fn leave_half(directory: &Directory, bytes: u64) -> Result<(), Failure> {
    if directory.kind == Kind::System {
        return Ok(());
    }
    let fits = || {
        rustix::fs::fstatvfs(&directory.fd).is_ok_and(|fs| {
            let (all, free) = (fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize);
            free >= bytes.saturating_add(all / 2)
        })
    };
    if fits() || (prune::make_room(directory, bytes) > 0 && fits()) {
        return Ok(());
    }
    let detail = format!(
        "an image of {} MiB would take more than half of {}",
        mib(bytes),
        directory.path.shown()
    );
    Err(Failure::new(SkipReason::StoreFull, detail))
}

/// Waits until a change of the file would show in its times.
fn settle(changed: &(i64, i64)) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed =
        Duration::new(u64::try_from(changed.0).unwrap_or(0), u32::try_from(changed.1).unwrap_or(0));
    // A file from the future has been changed by a clock, not just now.
    if let Some(age) = now.checked_sub(changed).filter(|&age| age < TIME_STEP) {
        std::thread::sleep(TIME_STEP - age);
    }
}

/// Fills the image; where the tmpfs is full, removes images that nobody uses, and tries once more.
fn fill_or_make_room(
    temporary: &Temporary<'_>,
    wanted: &Wanted,
    order: &BuildOrder<'_>,
) -> Result<Hash, Failure> {
    let layout: &Layout = &wanted.layout;
    let mut made_room = false;
    loop {
        match fill::fill(&temporary.file, order.original, layout, order.deadline) {
            Ok(hash) => return Ok(hash),
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Full) => {
                temporary.empty()?;
                if made_room || prune::make_room(temporary.directory, layout.memory()) == 0 {
                    let detail = format!(
                        "{} has no room for {} MiB",
                        temporary.directory.path.shown(),
                        mib(layout.memory())
                    );
                    return Err(Failure::new(SkipReason::StoreFull, detail));
                }
                made_room = true;
            }
        }
    }
}

/// An image that is being built. Removed when dropped, unless it was finished.
#[derive(Debug)]
pub(super) struct Temporary<'a> {
    directory: &'a Directory,
    name: String,
    file: File,
    finished: bool,
}

impl<'a> Temporary<'a> {
    /// Makes or takes over the temporary file of an image and locks it; `None` while another process
    /// holds it.
    pub(super) fn lock(directory: &'a Directory, image: &str) -> Result<Option<Self>, Failure> {
        let name = temporary_name(image);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory.fd, &name, flags, Mode::RUSR | Mode::WUSR);
        let file = match file {
            Ok(file) => File::from(file),
            Err(errno @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)) => {
                return Err(Failure::new(SkipReason::StoreFull, SysError::of("open")(errno)));
            }
            Err(errno) => {
                return Err(refused(
                    directory,
                    &name,
                    format_args!("open: {}", Errno::from(errno)),
                ));
            }
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => {
                return Err(refused(
                    directory,
                    &name,
                    format_args!("flock: {}", Errno::from(errno)),
                ));
            }
        }
        // Between our open and our lock its last holder may have renamed or removed it.
        let (Ok(opened), Ok(named)) = (
            rustix::fs::fstat(&file),
            rustix::fs::statat(&directory.fd, &name, AtFlags::SYMLINK_NOFOLLOW),
        ) else {
            return Ok(None);
        };
        if (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino) {
            return Ok(None);
        }
        let regular = FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile;
        if !regular || opened.st_uid != directory.owner || opened.st_nlink != 1 {
            return Err(refused(directory, &name, "is not what a builder leaves"));
        }
        let temporary = Self { directory, name, file, finished: false };
        temporary.empty()?;
        Ok(Some(temporary))
    }

    fn empty(&self) -> Result<(), Failure> {
        rustix::fs::ftruncate(&self.file, 0)
            .and_then(|()| rustix::fs::fchmod(&self.file, Mode::RUSR | Mode::WUSR))
            .map_err(|errno| refused(self.directory, &self.name, Errno::from(errno)))
    }

    /// Gives the image its sidecar, its mode and its name.
    fn finish(mut self, wanted: &Wanted, original: &Path, hash: &Hash) -> Result<(), Failure> {
        let directory = self.directory;
        let built = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sidecar = Sidecar {
            schema: SCHEMA,
            original: original.to_string_lossy().into_owned(),
            key: wanted.key.clone(),
            image_size: wanted.layout.len,
            blake3: hash.to_hex().to_string(),
            built: built.as_secs(),
        };
        let text = serde_json::to_vec(&sidecar).unwrap_or_default();
        write_sidecar(directory, &sidecar_name(&wanted.name), &text)?;
        let renamed = rustix::fs::fchmod(&self.file, directory.image_mode()).and_then(|()| {
            rustix::fs::renameat(&directory.fd, &self.name, &directory.fd, &wanted.name)
        });
        renamed.map_err(|errno| refused(directory, &wanted.name, Errno::from(errno)))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let _gone = rustix::fs::unlinkat(&self.directory.fd, &self.name, AtFlags::empty());
        }
    }
}

/// Writes a sidecar under a temporary name, then renames it. Only the holder of the image's lock
/// does.
fn write_sidecar(directory: &Directory, name: &str, text: &[u8]) -> Result<(), Failure> {
    let temporary = temporary_name(name);
    let _left_by_a_dead_builder = rustix::fs::unlinkat(&directory.fd, &temporary, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |errno| {
        let full = matches!(errno, rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT);
        let _nothing_left = rustix::fs::unlinkat(&directory.fd, &temporary, AtFlags::empty());
        let reason = if full { SkipReason::StoreFull } else { SkipReason::StoreRefused };
        Failure::new(reason, format_args!("writing {name}: {}", Errno::from(errno)))
    };
    let file = rustix::fs::openat(&directory.fd, &temporary, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(file.map_err(failed)?);
    let written = file.write_all(text);
    written.map_err(|error| {
        failed(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
    })?;
    rustix::fs::fchmod(&file, directory.image_mode()).map_err(failed)?;
    rustix::fs::renameat(&directory.fd, &temporary, &directory.fd, name).map_err(failed)
}

fn refused(directory: &Directory, name: &str, what: impl std::fmt::Display) -> Failure {
    let path = directory.path.join(name);
    Failure::new(SkipReason::StoreRefused, format_args!("{}: {what}", path.shown()))
}
