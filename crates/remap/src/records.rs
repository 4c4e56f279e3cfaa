//! What TiExec remembers about subjects for a time: empty files with a hash for a name, in a
//! [directory of this user](crate::runtime_directory) that ends with the boot.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use crate::{files, runtime_directory};

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Most records of one kind.
const MOST: usize = 4096;

/// The records of one kind.
#[derive(Debug)]
pub(crate) struct Records {
    directory: OwnedFd,
    /// How many there are.
    count: usize,
}

/// What became of a new record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Added {
    /// It was added.
    New,
    /// There was one of this subject.
    Known,
    /// It could not be added: there are too many others, or no memory is left.
    Full,
}

impl Records {
    /// Opens the records of this kind, and removes those that are older than `lifetime`; without one, they last until the
    /// next boot.
    ///
    /// # Errors
    /// The reason why this user has no directory for them.
    pub(crate) fn open(kind: &str, lifetime: Option<Duration>) -> Result<Self, String> {
        let directory = runtime_directory::open(kind)?;
        let mut count = 0;
        for entry in rustix::fs::Dir::read_from(&directory).into_iter().flatten().flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            count += 1;
            if lifetime.is_some_and(|lifetime| !is_younger(&directory, name, lifetime)) {
                let _another_removed_it = files::remove(&directory, name);
            }
        }
        Ok(Self { directory, count })
    }

    /// Returns whether there is a record of this subject.
    pub(crate) fn has(&self, subject: &[u8]) -> bool {
        let name = blake3::hash(subject).to_hex();
        statat(&self.directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Adds a record of this subject.
    pub(crate) fn add(&self, subject: &[u8]) -> Added {
        if self.count >= MOST && !self.has(subject) {
            return Added::Full;
        }
        match files::create(&self.directory, blake3::hash(subject).to_hex().as_str(), 0o600) {
            Ok(_) => Added::New,
            Err(Errno::EXIST) => Added::Known,
            Err(_) => Added::Full,
        }
    }
}

/// Returns whether a file was written within this time. A time in the future comes from a clock that was set back.
pub(crate) fn is_younger(directory: &OwnedFd, name: &OsStr, lifetime: Duration) -> bool {
    let age = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|stat| {
        let at = Duration::from_secs(u64::try_from(stat.st_mtime).ok()?);
        (SystemTime::UNIX_EPOCH + at).elapsed().ok()
    });
    age.is_some_and(|age| age < lifetime)
}

/// Returns whether no message about `subject` appeared within a day, and records that one appears now. Always
/// `true` if this user has no directory for the record, or if there are too many records, so that nobody can suppress
/// the messages about another's program.
pub fn first_today(subject: &[u8]) -> bool {
    !Records::open("told", Some(DAY)).is_ok_and(|told| told.add(subject) == Added::Known)
}
