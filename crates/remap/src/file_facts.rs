//! The facts of an open file on which decisions depend.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// The fields of fstat(2) on which decisions depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileFacts {
    /// The device.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Links to it; 0 once it is deleted.
    pub links: u64,
}

impl FileFacts {
    /// Asks the kernel.
    ///
    /// # Errors
    /// As fstat(2).
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let (device, inode, len, links) = (meta.dev(), meta.ino(), meta.len(), meta.nlink());
        Ok(Self { device, inode, len, links })
    }
}
