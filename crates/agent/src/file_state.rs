//! A file in one state, so that its text is hashed once, and an upgraded program counts as a new one.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use tiexec_sys::reopen::{PathFile, Version};

/// A file in one state. A write to the file, or a change of its owner, changes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FileState {
    device: u64,
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl FileState {
    /// Returns the state of a file as far as the kernel knows it already. Never waits for the file's server.
    pub fn of(file: &PathFile) -> Option<Self> {
        let Version { device: (major, minor), inode, len, changed, .. } = file.version().ok()?;
        let device = rustix::fs::makedev(major, minor);
        Some(Self { device, inode, len, changed: (changed.0, changed.1.into()) })
    }

    /// Returns the state of an open file, as fstat(2) shows it.
    pub(crate) fn of_open(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}
