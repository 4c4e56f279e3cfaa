//! The facts of an open file on which decisions depend.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// The fields of fstat(2) and statfs(2) on which decisions depend.
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
    /// True if it lies on overlayfs. A mapping made before somebody wrote to the file shows the lower layer's file, and
    /// every later open the upper layer's (`ovl_copy_up` in fs/overlayfs/copy_up.c), with the same device and inode number.
    pub on_overlay: bool,
}

/// The type of overlayfs in statfs(2) (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAYFS: i64 = 0x794c_7630;

impl FileFacts {
    /// Asks the kernel.
    ///
    /// # Errors
    /// As fstat(2) and fstatfs(2).
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let (device, inode, len, links) = (meta.dev(), meta.ino(), meta.len(), meta.nlink());
        let on_overlay = rustix::fs::fstatfs(file)?.f_type == OVERLAYFS;
        Ok(Self { device, inode, len, links, on_overlay })
    }
}
