//! What TiExec remembers about subjects for a time: empty files with a hash for a name, in a
//! directory of this user that ends with the boot.

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
    /// How long a record counts.
    lifetime: Duration,
}

/// The result of [`Records::add`].
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
    /// Opens the records of this kind. A record counts until it is older than `lifetime`, or until the next boot.
    ///
    /// # Errors
    /// The reason why this user has no directory for them.
    pub(crate) fn open(kind: &str, lifetime: Duration) -> Result<Self, String> {
        Ok(Self { directory: runtime_directory::open(kind)?, lifetime })
    }

    /// Returns whether there is a record of this subject.
    pub(crate) fn has(&self, subject: &[u8]) -> bool {
        let name = blake3::hash(subject).to_hex();
        is_younger(&self.directory, OsStr::new(name.as_str()), self.lifetime)
    }

    /// Adds a record of this subject, and removes old ones.
    pub(crate) fn add(&self, subject: &[u8]) -> Added {
        if self.has(subject) {
            return Added::Known;
        }
        if self.remove_old() >= MOST {
            return Added::Full;
        }
        match files::create(&self.directory, blake3::hash(subject).to_hex().as_str(), 0o600) {
            Ok(_) => Added::New,
            Err(Errno::EXIST) => Added::Known,
            Err(_) => Added::Full,
        }
    }

    /// Removes the records that are too old. Returns how many are left.
    fn remove_old(&self) -> usize {
        let mut left = 0;
        for entry in rustix::fs::Dir::read_from(&self.directory).into_iter().flatten().flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if matches!(name.as_bytes(), b"." | b"..") {
                continue;
            }
            if is_younger(&self.directory, name, self.lifetime) {
                left += 1;
            } else {
                let _another_removed_it = files::remove(&self.directory, name);
            }
        }
        left
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
    !Records::open("told", DAY).is_ok_and(|told| told.add(subject) == Added::Known)
}
