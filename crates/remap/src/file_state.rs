//! The state of a file, so that what was made of the file is used while it is the same.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use tiexec_sys::reopen::{PathFile, Version};

/// A file in one state. A write to the file, or a change of its owner or its names, changes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FileState {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// Returns the state of a file as far as the kernel knows it already. Never waits for the file's server.
    pub fn of(file: &PathFile) -> Option<Self> {
        let Version { device: (major, minor), inode, len, modified, changed } =
            file.version().ok()?;
        let device = rustix::fs::makedev(major, minor);
        let [modified, changed] =
            [modified, changed].map(|(seconds, nanos)| (seconds, nanos.into()));
        Some(Self { device, inode, len, modified, changed })
    }

    /// Returns the state of an open file.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn of_open(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// Returns whether the file has the same bytes as in the state `other`. A new name or owner changes only the time of
    /// the inode's change.
    pub(crate) fn has_the_bytes_of(&self, other: &Self) -> bool {
        (self.len, self.modified) == (other.len, other.modified)
    }
}
