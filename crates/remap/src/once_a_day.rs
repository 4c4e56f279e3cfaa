//! Messages that appear once a day only.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::{files, runtime_directory};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Most records. A message that finds no room for its record appears each time, so that nobody can suppress the
/// messages about another's program.
const MOST: usize = 4096;

/// Returns whether a file was written within a day. A time in the future comes from a clock that was set back.
pub(crate) fn is_of_today(directory: &OwnedFd, name: impl Arg) -> bool {
    let age = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|stat| {
        let at = Duration::from_secs(u64::try_from(stat.st_mtime).ok()?);
        (SystemTime::UNIX_EPOCH + at).elapsed().ok()
    });
    age.is_some_and(|age| age < DAY)
}

/// Returns whether no message about `subject` appeared within a day, and records that one appears now. Always
/// `true` if this user has no directory for the record. The records are empty files; older ones are removed.
pub fn first_today(subject: &[u8]) -> bool {
    let Ok(directory) = runtime_directory::open("told") else { return true };
    let mut records = 0;
    if let Ok(entries) = rustix::fs::Dir::read_from(&directory) {
        for entry in entries.flatten() {
            let name = entry.file_name();
            records += 1;
            if !is_of_today(&directory, name) {
                let _another_removed_it =
                    files::remove(&directory, OsStr::from_bytes(name.to_bytes()));
            }
        }
    }
    let name = blake3::hash(subject).to_hex();
    if records >= MOST && statat(&directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return true;
    }
    !matches!(files::create(&directory, name.as_str(), 0o600), Err(Errno::EXIST))
}
