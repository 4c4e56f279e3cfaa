//! An image under its temporary name, which is also its lock.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use blake3::Hash;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode};
use tiexec_core::escape::AsShown;
use tiexec_core::skip::FailureKind;
use tiexec_sys::{Errno, SysError};

use crate::files;

use super::Wanted;
use super::directory::Directory;
use super::key::{SCHEMA, Sidecar, sidecar_name, temporary_name};
use tiexec_tracee::Failure;

/// An image that is being built. Removed when dropped, unless it was finished.
#[derive(Debug)]
pub(super) struct Temporary<'a> {
    /// The store.
    pub(super) directory: &'a Directory,
    name: String,
    /// The file, empty and open for writing.
    pub(super) file: File,
    finished: bool,
}

impl<'a> Temporary<'a> {
    /// Makes or takes over the temporary file of an image and locks it; `None` while another process
    /// holds it.
    pub(super) fn lock(directory: &'a Directory, image: &str) -> Result<Option<Self>, Failure> {
        let name = temporary_name(image);
        let file = match files::open_or_create(&directory.fd, &name) {
            Ok(file) => file,
            Err(errno @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)) => {
                return Err(Failure::of(FailureKind::StoreFull)(SysError::of("open")(errno)));
            }
            Err(errno) => {
                return Err(refused(directory, &name)(SysError::of("open")(errno)));
            }
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => {
                return Err(refused(directory, &name)(SysError::of("flock")(errno)));
            }
        }
        // The last holder may have renamed or removed the file between the open and the lock.
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
            let what =
                format!("{}: is not what a builder leaves", directory.path.join(name).shown());
            return Err(Failure::new(FailureKind::StoreRefused, what));
        }
        let temporary = Self { directory, name, file, finished: false };
        temporary.empty()?;
        Ok(Some(temporary))
    }

    /// Empties the file, so that building can begin again.
    pub(super) fn empty(&self) -> Result<(), Failure> {
        rustix::fs::ftruncate(&self.file, 0)
            .and_then(|()| rustix::fs::fchmod(&self.file, Mode::RUSR | Mode::WUSR))
            .map_err(Errno::from)
            .map_err(refused(self.directory, &self.name))
    }

    /// Gives the image its sidecar, its mode and its name.
    pub(super) fn finish(
        mut self,
        wanted: &Wanted,
        original: &Path,
        hash: &Hash,
    ) -> Result<(), Failure> {
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
        let renamed = rustix::fs::fchmod(&self.file, directory.image_mode())
            .and_then(|()| files::rename(&directory.fd, &self.name, &wanted.name));
        renamed.map_err(Errno::from).map_err(refused(directory, &wanted.name))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let _gone = files::remove(&self.directory.fd, &self.name);
        }
    }
}

/// Writes a sidecar under a temporary name, then renames it. The caller must hold the image's lock.
fn write_sidecar(directory: &Directory, name: &str, text: &[u8]) -> Result<(), Failure> {
    let temporary = temporary_name(name);
    let _left_by_a_dead_builder = files::remove(&directory.fd, &temporary);
    let failed = |errno| {
        let full = matches!(errno, rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT);
        let _nothing_left = files::remove(&directory.fd, &temporary);
        let reason = if full { FailureKind::StoreFull } else { FailureKind::StoreRefused };
        Failure::of(reason)(Errno::from(errno)).about(format_args!("writing {name}"))
    };
    let mut file = files::create(&directory.fd, &temporary, 0o600).map_err(failed)?;
    let written = file.write_all(text);
    written.map_err(|error| {
        failed(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
    })?;
    rustix::fs::fchmod(&file, directory.image_mode()).map_err(failed)?;
    files::rename(&directory.fd, &temporary, name).map_err(failed)
}

fn refused<E: Error + Send + Sync + 'static>(
    directory: &Directory,
    name: &str,
) -> impl FnOnce(E) -> Failure {
    move |error| {
        let path = directory.path.join(name);
        Failure::of(FailureKind::StoreRefused)(error).about(path.shown())
    }
}
