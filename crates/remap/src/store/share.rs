//! Decides which originals may have an image that everybody can read: only files that everybody can read.

use std::os::fd::AsFd;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use tiexec_core::escape::AsShown;
use tiexec_core::skip::SkipReason;
use tiexec_sys::Errno;

use tiexec_tracee::Failure;

/// Extended attributes that grant or deny access beyond the mode.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.nfs4_acl"];

/// Checks that `path` leads to this file, and that everybody may follow the path and read the file.
///
/// # Errors
/// `not_shareable`, with the file or directory that denies access.
pub(super) fn check(original: &impl AsFd, path: &Path) -> Result<(), Failure> {
    let wanted = rustix::fs::fstat(original).map_err(unseen(path))?;
    let mut at = std::path::PathBuf::from("/");
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let directory = flags | OFlags::DIRECTORY;
    let root = rustix::fs::openat(CWD, "/", directory, Mode::empty());
    let mut fd = root.map_err(unseen(&at))?;
    let mut components = path.components().peekable();
    if components.next() != Some(Component::RootDir) {
        return Err(closed(path, "is not an absolute path"));
    }
    open_to_all(&fd, &at, 0o111)?;
    while let Some(component) = components.next() {
        at.push(component);
        let flags = if components.peek().is_some() { directory } else { flags };
        fd = rustix::fs::openat(&fd, component.as_os_str(), flags, Mode::empty())
            .map_err(unseen(&at))?;
        if components.peek().is_some() {
            open_to_all(&fd, &at, 0o111)?;
        }
    }
    let found = open_to_all(&fd, &at, 0o444)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(closed(path, "is not a regular file"));
    }
    if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino) {
        return Err(closed(path, "is another file by now"));
    }
    Ok(())
}

/// Returns whether everybody may read the file at this path, so that it may have an image in the store of the system. Opens
/// nothing that would wait or act.
pub fn is_shareable(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let original = rustix::fs::openat(CWD, path, flags, Mode::empty());
    original.is_ok_and(|original| check(&original, path).is_ok())
}

/// Checks that owner, group and others all have the rights `mode`, and that the file has no access list.
fn open_to_all(fd: &impl AsFd, at: &Path, mode: u32) -> Result<Stat, Failure> {
    let stat = rustix::fs::fstat(fd).map_err(unseen(at))?;
    if stat.st_mode & mode != mode {
        return Err(closed(at, format_args!("has mode {:04o}", stat.st_mode & 0o7777)));
    }
    for list in LISTS {
        match rustix::fs::fgetxattr(fd, list, &mut [0u8; 0][..]) {
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {}
            Ok(_) | Err(rustix::io::Errno::RANGE) => return Err(closed(at, "has an access list")),
            Err(errno) => return Err(unseen(at)(errno)),
        }
    }
    Ok(stat)
}

fn closed(at: &Path, what: impl std::fmt::Display) -> Failure {
    let detail = format!("not everybody may read {}: it {what}", at.shown());
    Failure::new(SkipReason::NotShareable, detail)
}

fn unseen(at: &Path) -> impl FnOnce(rustix::io::Errno) -> Failure {
    move |errno| {
        let what = closed(at, "cannot be looked at").detail;
        Failure::of(SkipReason::NotShareable)(Errno::from(errno)).about(what)
    }
}
