//! Proves that a change of an original shows in its key, so that an image with that key never has other bytes than the
//! file.
//!
//! A process that maps a file shared and writable can write to it at any time. The kernel updates the file's times when
//! the first write makes a page dirty, and not at later writes to the page; on a tmpfs it never does. So an image may be
//! made in three cases:
//!
//! - The file cannot change: it has fs-verity, or lies on a file system without writers. The tools that make such file
//!   systems choose inode numbers and times, and the kernel uses device numbers again. So the next version of the file may
//!   have the same key, unless a build ID tells the two apart.
//! - Nobody has the file open for writing while it is copied, and later writers have to open it again: a read lease
//!   (fcntl(2)) shows that, because a mapping holds the file open. And the file system updates the times at the first
//!   write through a new mapping (`file_update_time` in its `page_mkwrite`).
//! - Only root, or the owner of the store, may write to the file. A lease shows that nobody else kept a mapping from the
//!   time before that was so. An overlay grants the lease although a layer is mapped writable, and an ordinary user gets
//!   no lease on root's files. There nothing but the owner and the mode is known. On a file system with a server (FUSE, NFS,
//!   9p) these are the server's word, so it has none of the three cases. On an idmapped mount the owner is another one than the
//!   file system's, who may write to the file through another mount.

use std::fs::File;
use std::path::Path;

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use tiexec_core::escape::AsShown;
use tiexec_core::skip::FailureKind;
use tiexec_sys::lease::{Against, Lease};
use tiexec_tracee::Failure;

use super::directory::Directory;
use crate::file_systems::{self, LOCAL, ON_DISK, OVERLAY, Place};

/// The file systems without writers.
const NEVER_CHANGE: [&[u8]; 4] = [b"cramfs", b"erofs", b"iso9660", b"squashfs"];

/// The proof, which holds as long as this value lives.
#[derive(Debug)]
#[must_use = "dropping it lets writers in"]
pub(super) struct Proof<'a> {
    /// Keeps writers out while the file is copied.
    _lease: Option<Lease<'a>>,
}

/// Proves it for a file of which an image is to be made in this store.
///
/// # Errors
/// `store_refused`, with the reason why the file could change without a sign.
pub(super) fn of<'a>(
    original: &'a File,
    path: &Path,
    directory: &Directory,
    has_build_id: bool,
) -> Result<Proof<'a>, Failure> {
    let refused = |what: &str| {
        let detail = format!("{} could change without a sign: {what}", path.shown());
        Failure::new(FailureKind::StoreRefused, detail)
    };
    let place = file_systems::of(original);
    let is_of = |kinds: &[&[u8]]| place.as_ref().is_some_and(|place| kinds.contains(&&*place.kind));
    if is_of(&NEVER_CHANGE) && !has_build_id {
        return Err(refused(
            "it has no build ID, and such a file system often gives the next version of a file the same inode and times; \
             fix: link it with --build-id",
        ));
    }
    if is_of(&NEVER_CHANGE) || is_of(&LOCAL) && has_verity(original) {
        return Ok(Proof { _lease: None });
    }
    if !is_of(&LOCAL) && !is_of(&[OVERLAY]) {
        let what = match &place {
            Some(Place { kind, .. }) => {
                format!("it lies on {}, whose server decides what it holds", kind.shown())
            }
            None => "its mount is not among those of this process".to_owned(),
        };
        return Err(refused(&format!("{what}; fix: put it on a local disk")));
    }
    let lease = match Lease::try_take(original, Against::Writers) {
        Ok(None) => {
            return Err(refused(
                "a process has it open for writing; fix: stop that process (lsof names it)",
            ));
        }
        Ok(lease) => lease,
        // The file system has no leases, or the file is another user's.
        Err(_not_known) => None,
    };
    if lease.is_some() && is_of(&ON_DISK) {
        return Ok(Proof { _lease: lease });
    }
    if place.is_some_and(|place| place.is_idmapped) {
        return Err(refused(
            "its mount shows other owners than its file system has, which does not show each change; \
             fix: name it below another mount",
        ));
    }
    let stat = rustix::fs::fstat(original)
        .map_err(|errno| Failure::of(FailureKind::ReadFailed)(tiexec_sys::Errno::from(errno)))?;
    if stat.st_uid != 0 && stat.st_uid != directory.owner {
        return Err(refused(&format!(
            "it belongs to user {} and lies on a file system that does not show each change; \
             fix: chown root {}",
            stat.st_uid,
            path.shown()
        )));
    }
    // With an access list the group's bits are the list's mask.
    if stat.st_mode & 0o022 != 0 {
        return Err(refused(&format!(
            "others may write to it, and it lies on a file system that does not show each change; \
             fix: chmod go-w {}",
            path.shown()
        )));
    }
    Ok(Proof { _lease: lease })
}

/// Returns whether the kernel checks each read of the file against a hash, and allows no write (fs-verity).
fn has_verity(file: &File) -> bool {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).is_ok_and(|statx| {
        let verity = StatxAttributes::VERITY;
        statx.stx_attributes_mask.contains(verity) && statx.stx_attributes.contains(verity)
    })
}
