//! Opens images for use, and checks each one at every use.

use std::fs::File;

use rustix::fs::{FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use tiexec_core::escape::AsShown;
use tiexec_core::skip::FailureKind;
use tiexec_sys::Errno;

use super::directory::{Directory, Kind};
use tiexec_tracee::Failure;

/// Opens the image of that name; `None` if there is none. The name identifies the original, because it was computed
/// from the opened original's state.
///
/// # Errors
/// `store_refused`: the image is not as a builder leaves one.
pub(super) fn open(directory: &Directory, name: &str, len: u64) -> Result<Option<File>, Failure> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let about = |what: &str| format!("{} {what}", directory.path.join(name).shown());
    let refused = |what: &str| Failure::new(FailureKind::StoreRefused, about(what));
    let failed = |what, errno: rustix::io::Errno| {
        Failure::of(FailureKind::StoreRefused)(Errno::from(errno)).about(about(what))
    };
    let file = match rustix::fs::openat(&directory.fd, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // The second error means that the image is being pruned just now.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(refused("is a symbolic link")),
        Err(errno) => return Err(failed("cannot be opened", errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(|errno| failed("fstat", errno))?;
    if let Some(wrong) = wrong_with(directory, &stat) {
        return Err(refused(&wrong));
    }
    if stat.st_size.cast_unsigned() != len {
        return Err(refused(&format!("has {} bytes, not {len}", stat.st_size)));
    }
    if directory.kind == Kind::User {
        // The system's store is mounted strictatime, which records each use. A runtime directory records one use a
        // day.
        let (now, omit) = (rustix::fs::UTIME_NOW, rustix::fs::UTIME_OMIT);
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let used = Timestamps { last_access: time(now), last_modification: time(omit) };
        let _only_its_age = rustix::fs::futimens(&file, &used);
    }
    Ok(Some(file))
}

/// Returns the first way in which the inode of an image is not as its builder left it.
pub(super) fn wrong_with(directory: &Directory, stat: &Stat) -> Option<String> {
    let mode = stat.st_mode & 0o7777;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Some("is not a regular file".into());
    }
    if stat.st_uid != directory.owner {
        return Some(format!("belongs to user {}", stat.st_uid));
    }
    if mode & !0o444 != 0 {
        return Some(format!("has mode {mode:04o}"));
    }
    if stat.st_nlink != 1 {
        return Some(format!("has {} names", stat.st_nlink));
    }
    (stat.st_dev != directory.device).then(|| "lies on another file system".into())
}
