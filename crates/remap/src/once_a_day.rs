//! Messages that appear once a day only.

use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;

use crate::runtime_directory;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns whether no message about `subject` appeared within a day, and records that one appears now. Always
/// `true` if this user has no directory for the record. The records are empty files; older ones are removed.
pub fn first_today(subject: &[u8]) -> bool {
    let Ok(directory) = runtime_directory::open("told") else { return true };
    if let Ok(entries) = rustix::fs::Dir::read_from(&directory) {
        for entry in entries.flatten() {
            let name = entry.file_name();
            let age = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|stat| {
                let at = Duration::from_secs(u64::try_from(stat.st_mtime).ok()?);
                (SystemTime::UNIX_EPOCH + at).elapsed().ok()
            });
            // A time in the future comes from a clock that was set back.
            if age.is_none_or(|age| age >= DAY) {
                let _another_removed_it = unlinkat(&directory, name, AtFlags::empty());
            }
        }
    }
    let name = blake3::hash(subject).to_hex();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let noted = openat(&directory, name.as_str(), flags, Mode::RUSR | Mode::WUSR);
    !matches!(noted, Err(Errno::EXIST))
}
