//! A file that a process maps, open for reading: here, or in a reader with the process's own credentials.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use tiexec_core::addr::Pages;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process;
use tiexec_sys::reopen::PathFile;
use tiexec_tracee::Failure;

use crate::file_facts::FileFacts;
use crate::pagecache::{self, Small};
use crate::workers::OpenApart;

/// Reading bytes at a position of a file.
pub(crate) trait ReadAt {
    /// As pread(2). Returns fewer bytes than wanted only at the end of the file.
    ///
    /// # Errors
    /// As pread(2).
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Fills all of `buffer`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; otherwise as pread(2).
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read_at(&mut buffer[done..], at + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, at)
    }
}

/// A file that a process maps.
#[derive(Debug)]
pub(crate) enum TargetFile {
    /// Open in this process, because the process has the same credentials.
    Here(File),
    /// Open in a reader.
    Apart(Arc<OpenApart>),
}

impl TargetFile {
    /// Returns the facts that the kernel reports; zeros if it reports none.
    pub(crate) fn facts(&self) -> FileFacts {
        match self {
            Self::Here(file) => FileFacts::of(file).unwrap_or_default(),
            Self::Apart(opened) => opened.facts,
        }
    }

    /// Makes its page cache huge, as [`pagecache::prepare`] does.
    ///
    /// # Errors
    /// As [`pagecache::prepare`].
    pub(crate) fn prepare_cache(
        &self,
        chunks: &[Range<u64>],
        pages: Pages,
        small: Small,
        deadline: Instant,
    ) -> Result<pagecache::Prepared, Failure> {
        match self {
            Self::Here(file) => pagecache::prepare(file, chunks, pages, small, deadline),
            Self::Apart(opened) => {
                opened.reader.prepare_cache(opened.id, chunks, pages, small, deadline)
            }
        }
    }

    /// Sends the open file over a socket.
    ///
    /// # Errors
    /// `switch_failed`; `helper_died`.
    pub(crate) fn send_over(&self, socket: BorrowedFd<'_>) -> Result<(), Failure> {
        match self {
            Self::Here(file) => process::send_descriptor(socket, file.as_fd(), None)
                .map_err(Failure::of(FailureKind::SwitchFailed)),
            Self::Apart(opened) => opened.reader.send_over(opened.id, socket),
        }
    }

    /// Returns another handle of the same file.
    ///
    /// # Errors
    /// EMFILE.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Here(file) => Self::Here(file.try_clone()?),
            Self::Apart(opened) => Self::Apart(Arc::clone(opened)),
        })
    }

    /// Opens the file for the image store, which everybody uses. A file that is open here is accepted as it is. For
    /// a reader's file, opens the same file by its path in this process's own mount namespace, through no link, if
    /// it belongs to root and only root may change it. Returns `None` otherwise.
    pub(crate) fn for_the_store(&self, path: &[u8]) -> Option<File> {
        match self {
            Self::Here(file) => file.try_clone().ok(),
            Self::Apart(opened) => of_roots_at(path, (opened.facts.device, opened.facts.inode)),
        }
    }
}

/// Opens the file at `path`, in this process's own mount namespace and through no link. Returns `None` unless the
/// file has this device and inode, belongs to root, and may be changed only by root.
pub(crate) fn of_roots_at(path: &[u8], is: (u64, u64)) -> Option<File> {
    let strictly = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), strictly);
    let file = PathFile::from(found.ok()?).open().ok()?;
    let meta = file.metadata().ok()?;
    let of_root = meta.is_file() && meta.uid() == 0 && meta.mode() & 0o022 == 0;
    ((meta.dev(), meta.ino()) == is && of_root).then_some(file)
}

impl ReadAt for TargetFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::Here(file) => FileExt::read_at(file, buffer, at),
            Self::Apart(opened) => opened.reader.read_at(opened.id, buffer, at),
        }
    }
}
