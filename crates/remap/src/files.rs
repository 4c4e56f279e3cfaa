//! Every file that TiExec's programs create, replace or remove.
//!
//! A path that is resolved twice may lead to two places, if another user renames one of its directories in between. So
//! no function here takes a path: each takes a name below a directory that was opened once, by
//! [`trusted_directory`](crate::trusted_directory). A new file never has the name of an existing one, and no link is
//! followed. `clippy.toml` and `xtask/tests/architecture.rs` keep all other code from making files in another way.

#![expect(clippy::disallowed_methods, reason = "this module is the one that makes files")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use tiexec_sys::random;

/// Longest part of a name that the name of a new file repeats. The rest of `NAME_MAX` is for what makes it unique.
const REPEATED: usize = 200;

/// Creates a file, open for writing. The umask applies to the mode.
///
/// # Errors
/// The errors of openat(2). EEXIST if the name exists, even if it is a link.
pub fn create(directory: impl AsFd, name: impl AsRef<OsStr>, mode: u32) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_ref(), flags, Mode::from_raw_mode(mode)).map(File::from)
}

/// Opens a file of this user's own for reading and writing, such as a lock, and creates it if it is missing.
///
/// # Errors
/// The errors of openat(2). ELOOP if the name is a link.
pub fn open_or_create(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::openat(directory, name.as_ref(), flags, mode).map(File::from)
}

/// Makes a directory of exactly this mode, whatever the umask is.
///
/// # Errors
/// The errors of mkdirat(2) and fchmod(2).
pub fn make_directory(directory: impl AsFd, name: &OsStr, mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::mkdirat(&directory, name, mode)?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(made) = rustix::fs::openat(&directory, name, flags, Mode::empty()) else {
        // The umask took the owner's right to read it.
        return rustix::fs::chmodat(directory, name, mode, AtFlags::SYMLINK_NOFOLLOW);
    };
    rustix::fs::fchmod(made, mode)
}

/// Removes a file, a link, a FIFO or a socket.
///
/// # Errors
/// The errors of unlinkat(2).
pub fn remove(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<(), Errno> {
    rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::empty())
}

/// Removes an empty directory.
///
/// # Errors
/// The errors of unlinkat(2).
pub fn remove_directory(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<(), Errno> {
    rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::REMOVEDIR)
}

/// Gives a file another name in its directory, and replaces the file that has the name.
///
/// # Errors
/// The errors of renameat(2).
pub fn rename(
    directory: impl AsFd,
    from: impl AsRef<OsStr>,
    to: impl AsRef<OsStr>,
) -> Result<(), Errno> {
    rustix::fs::renameat(&directory, from.as_ref(), &directory, to.as_ref())
}

/// Listens at a unix(7) socket. Only this user may connect until the socket has its group and its mode. Replaces a
/// socket that exists, but no other file.
///
/// # Errors
/// The errors of bind(2), chownat(2) and chmodat(2).
pub fn listen(
    directory: &OwnedFd,
    name: &str,
    mode: u32,
    group: Option<u32>,
) -> std::io::Result<UnixListener> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket) {
        let _somebody_did = remove(directory, name);
    }
    // bind(2) takes a path, but no descriptor of a directory.
    let path = below(directory, name);
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound?;
    if let Some(group) = group.map(rustix::fs::Gid::from_raw) {
        rustix::fs::chownat(directory, name, None, Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    rustix::fs::chmodat(directory, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    Ok(listener)
}

/// Returns a path of a name below an open directory, for calls that take no descriptor. Valid while the directory is
/// open.
pub fn below(directory: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}

/// A new file that has not got its name yet. Removed if it is dropped before.
#[derive(Debug)]
#[must_use = "dropping it removes the file"]
pub struct New<'a> {
    directory: BorrowedFd<'a>,
    name: OsString,
    file: File,
}

impl<'a> New<'a> {
    /// Creates an empty file beside `name`, open for writing. The umask applies to the mode.
    ///
    /// # Errors
    /// The errors of openat(2), and of getrandom(2).
    pub fn beside(
        directory: &'a impl AsFd,
        name: impl AsRef<OsStr>,
        mode: u32,
    ) -> Result<Self, Errno> {
        let directory = directory.as_fd();
        let name = name.as_ref().as_bytes();
        loop {
            // Another user could create each name first that can be guessed.
            let random = random::word().map_err(|error| Errno::from_raw_os_error(error.errno.0))?;
            let mut new = OsString::from(".");
            new.push(OsStr::from_bytes(&name[..name.len().min(REPEATED)]));
            new.push(format!(".{random:016x}"));
            match create(directory, &new, mode) {
                Ok(file) => return Ok(Self { directory, name: new, file }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns the file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, and replaces what has the name, even a link.
    ///
    /// # Errors
    /// The errors of renameat(2). ESTALE if another user, who may rename files in this directory, has put another file
    /// in its place.
    pub fn put(self, name: impl AsRef<OsStr>) -> Result<(), Errno> {
        let name = name.as_ref();
        rename(self.directory, &self.name, name)?;
        let there = rustix::fs::statat(self.directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let here = rustix::fs::fstat(&self.file)?;
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) {
            return Err(Errno::STALE);
        }
        Ok(())
    }

    /// Gives the file its name when it is on the disk, so that a power failure leaves the old file or the new one.
    /// Needs a directory that is open for reading.
    ///
    /// # Errors
    /// As [`put`](Self::put), and the errors of fsync(2).
    pub fn put_durably(self, name: impl AsRef<OsStr>) -> Result<(), Errno> {
        let directory = self.directory;
        rustix::fs::fsync(&self.file)?;
        self.put(name)?;
        // The rename changed the directory, so that the directory has to be synced too.
        rustix::fs::fsync(directory)
    }
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        // Without effect if the file has got its name.
        let _gone = remove(self.directory, &self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn directory() -> (tempfile::TempDir, OwnedFd) {
        let directory = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(directory.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        (directory, fd)
    }

    #[test]
    fn a_new_file_replaces_a_link_and_not_what_it_leads_to() {
        let (at, fd) = directory();
        std::fs::write(at.path().join("kept"), b"kept").unwrap();
        std::os::unix::fs::symlink("kept", at.path().join("name")).unwrap();
        let mut new = New::beside(&fd, "name", 0o600).unwrap();
        new.file().write_all(b"new").unwrap();
        new.put_durably("name").unwrap();
        assert_eq!(std::fs::read(at.path().join("kept")).unwrap(), b"kept");
        assert_eq!(std::fs::read(at.path().join("name")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_gets_no_name_is_removed() {
        let (at, fd) = directory();
        let long = "x".repeat(255);
        drop(New::beside(&fd, &long, 0o600).unwrap());
        assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_file_in_its_place_is_an_error() {
        let (at, fd) = directory();
        let new = New::beside(&fd, "name", 0o600).unwrap();
        std::fs::write(at.path().join("theirs"), b"theirs").unwrap();
        std::fs::rename(at.path().join("theirs"), at.path().join(&new.name)).unwrap();
        assert_eq!(new.put("name"), Err(Errno::STALE));
    }

    #[test]
    fn only_a_socket_is_replaced() {
        let (at, fd) = directory();
        std::fs::write(at.path().join("file"), b"kept").unwrap();
        assert!(listen(&fd, "file", 0o660, None).is_err());
        drop(listen(&fd, "socket", 0o660, None).unwrap());
        drop(listen(&fd, "socket", 0o660, None).unwrap());
        assert_eq!(std::fs::read(at.path().join("file")).unwrap(), b"kept");
    }
}
