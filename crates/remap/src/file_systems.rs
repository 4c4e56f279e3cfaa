//! File systems, by the types that mountinfo names. (The number that statfs(2) gives is a server's own word on 9p and FUSE.)

use std::os::fd::AsFd;

use tiexec_core::proc::mountinfo;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{SysError, reopen};

/// Those whose pages come from this kernel and a local device, or from memory. All others have a server, which decides what
/// their files hold, whose they are, and when a read ends.
pub(crate) const LOCAL: [&[u8]; 18] = [
    b"bcachefs",
    b"btrfs",
    b"erofs",
    b"exfat",
    b"ext2",
    b"ext3",
    b"ext4",
    b"f2fs",
    b"hugetlbfs",
    b"iso9660",
    b"ramfs",
    b"rootfs",
    b"squashfs",
    b"tmpfs",
    b"udf",
    b"vfat",
    b"xfs",
    b"zfs",
];

/// Those on a block device that this kernel writes to itself. They update a file's times at the first write through a new
/// mapping.
pub(crate) const ON_DISK: [&[u8]; 7] =
    [b"bcachefs", b"btrfs", b"ext2", b"ext3", b"ext4", b"f2fs", b"xfs"];

/// The file system whose files are those of its layers.
pub(crate) const OVERLAY: &[u8] = b"overlay";

/// The most bytes of mountinfo that are read.
const MOST_MOUNTS: u64 = 4 << 20;

/// Reads the mountinfo of a process, at most 4 MiB.
///
/// # Errors
/// As open(2) and read(2); EFBIG.
pub(crate) fn mounts_of(process: &ProcDir) -> Result<Vec<u8>, SysError> {
    process.read_limited("mountinfo", MOST_MOUNTS)
}

/// The place of a file.
#[derive(Debug)]
pub(crate) struct Place {
    /// The type of its file system.
    pub kind: Vec<u8>,
    /// True if its mount [shows other owners](mountinfo::Mount::is_idmapped) than the file system has.
    pub is_idmapped: bool,
}

/// Returns where this process has found the file; `None` if the mount is not in this process's mountinfo.
pub(crate) fn of(file: impl AsFd) -> Option<Place> {
    let id = reopen::mount_id(file)?;
    let text = ProcDir::this_process().and_then(|this| mounts_of(&this)).ok()?;
    let mounts = mountinfo::parse(&text);
    let mount = mounts.iter().find(|mount| mount.id == id)?;
    Some(Place { kind: mount.kind.to_vec(), is_idmapped: mount.is_idmapped })
}
