//! JSON files that outlive the agent, in a directory that nobody else may write to.
//!
//! The agent writes a file under another name in the same directory, syncs it and renames it. A reader renames a file
//! out of the way, and treats it as empty, if it is torn, if somebody else owns it or may write to it, or if a newer
//! version has written it. A file that the kernel cannot read at the moment stays as it is, and nothing is written over it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tiexec_core::escape::AsShown;
use tiexec_remap::files::{self, New};
use tiexec_remap::trusted_directory::{self, Rule, Trust};
use tiexec_sys::Errno as Said;

/// Held while a file is read, changed and written.
const LOCK: &str = ".lock";
/// Most bytes of a file that is written.
pub(crate) const LONGEST: u64 = 4 << 20;
/// Most bytes of a file that is read. An earlier version could write more than [`LONGEST`].
const MOST_READ: u64 = 64 << 20;

/// The stamp of a file: its inode and the time when it was written. Two states of the file have two stamps.
pub(crate) type Stamp = (u64, i64, u64);

/// The directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    directory: OwnedFd,
    user: u32,
}

/// Why a file could not be read.
enum Unread {
    /// No reader can use it, now or later.
    Unusable(String),
    /// The kernel could not read it at the moment, such as for want of descriptors or memory.
    Now(Errno),
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Self {
        match errno {
            // A symbolic link, or a socket, in the place of the file.
            Errno::LOOP | Errno::NXIO => Self::Unusable(Said::from(errno).to_string()),
            errno => Self::Now(errno),
        }
    }
}

/// A lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct Locked(#[expect(dead_code, reason = "closing it lets the lock go")] File);

impl Directory {
    /// Opens the directory, and makes it if it is missing.
    ///
    /// # Errors
    /// Another user could have replaced the directory, or it cannot be made. The text ends with the command that mends
    /// it.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let user = rustix::process::geteuid().as_raw();
        let rule = Rule { user, trust: Trust::Own { sticky: true }, make: &[0o700] };
        match trusted_directory::open(path, &rule) {
            Ok(Some((directory, _))) => Ok(Self { path: path.to_owned(), directory, user }),
            Ok(None) => {
                let above = path.parent().unwrap_or(path).word();
                Err(format!("{} has no directory above it; fix: mkdir -p {above}", path.shown()))
            }
            Err(distrust) => Err(format!("{distrust}; fix: {}", distrust.fix())),
        }
    }

    /// Returns the content of a file, and the reason if the file was set aside.
    ///
    /// # Errors
    /// The file could not be read at the moment. It stays as it is.
    pub(crate) fn load<T>(&self, name: &str, version: u32) -> Result<(T, Option<String>), String>
    where
        T: DeserializeOwned + Default,
    {
        let why = match self.try_read(name, version) {
            Ok(value) => return Ok((value, None)),
            Err(Unread::Now(errno)) => return Err(self.failed("read", name, errno)),
            Err(Unread::Unusable(why)) => why,
        };
        let aside = format!("{name}.aside");
        let moved = files::rename(&self.directory, name, &aside).is_ok();
        let done =
            if moved { format!("set aside as {aside}") } else { "left where it is".to_owned() };
        Ok((T::default(), Some(format!("{}: {why}; {done}", self.path.join(name).shown()))))
    }

    /// Reads a file, and changes nothing. A file that is not there is empty.
    ///
    /// # Errors
    /// The file cannot be read, or its owner or mode is not safe.
    pub(crate) fn read<T>(&self, name: &str, version: u32) -> Result<T, String>
    where
        T: DeserializeOwned + Default,
    {
        self.try_read(name, version).map_err(|why| match why {
            Unread::Unusable(why) => why,
            Unread::Now(errno) => Said::from(errno).to_string(),
        })
    }

    fn try_read<T>(&self, name: &str, version: u32) -> Result<T, Unread>
    where
        T: DeserializeOwned + Default,
    {
        let unusable = |why: String| Err(Unread::Unusable(why));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(T::default()),
            Err(errno) => return Err(errno.into()),
        };
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return unusable("it is not a regular file".to_owned());
        }
        if stat.st_uid != self.user || stat.st_mode & 0o022 != 0 {
            let mode = stat.st_mode & 0o7777;
            return unusable(format!("it belongs to user {} with mode {mode:04o}", stat.st_uid));
        }
        let mut text = Vec::new();
        let read = File::from(file).take(MOST_READ + 1).read_to_end(&mut text);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        if let Ok(Versioned { version: its }) = serde_json::from_slice(&text)
            && its > version
        {
            return unusable(format!("its version is {its}, newer than {version}"));
        }
        serde_json::from_slice(&text)
            .map_err(|error| Unread::Unusable(format!("it is torn: {error}")))
    }

    /// Changes the present content of a file and writes it. Returns the new content, and the reason if it could not be
    /// written.
    ///
    /// # Errors
    /// The present content could not be read at the moment. The file stays as it is.
    pub(crate) fn update<T>(
        &self,
        name: &str,
        version: u32,
        change: impl FnOnce(&mut T),
    ) -> Result<(T, Option<String>), String>
    where
        T: DeserializeOwned + Serialize + Default + PartialEq + Clone,
    {
        let locked = self.lock(LOCK, FlockOperation::LockExclusive);
        let (mut value, aside) = self.load::<T>(name, version)?;
        let before = value.clone();
        change(&mut value);
        let written = match locked {
            _ if value == before => aside,
            Ok(_held) => self.write(name, &value).err().or(aside),
            Err(errno) => Some(self.failed("lock", LOCK, errno)),
        };
        Ok((value, written))
    }

    /// Takes a lock.
    ///
    /// # Errors
    /// The errors of openat(2) and flock(2). EWOULDBLOCK if another process holds the lock and `how` does not block.
    pub(crate) fn lock(&self, name: &str, how: FlockOperation) -> Result<Locked, Errno> {
        let file = files::open_or_create(&self.directory, name)?;
        rustix::fs::flock(&file, how)?;
        Ok(Locked(file))
    }

    /// Takes a lock that only this process holds, until the result is dropped. A forked process shares a lock of
    /// flock(2) and may outlive this process, so the lock is one of fcntl(2). The kernel releases it as soon as this
    /// process closes any descriptor of the file, so nothing else may open the file.
    ///
    /// # Errors
    /// The inner error: another process holds the lock. Its PID is given if this process can see it. The outer error:
    /// that of openat(2) or fcntl(2).
    pub(crate) fn lock_alone(&self, name: &str) -> Result<Result<Locked, Option<Pid>>, Errno> {
        let file = files::open_or_create(&self.directory, name)?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Locked(file))),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let holder = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
                let holder = holder.ok().flatten().and_then(|lock| lock.pid);
                // The kernel gives a PID below 1 for a lock that no process of this machine holds.
                Ok(Err(holder.filter(|pid| pid.as_raw_nonzero().get() > 0)))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The file could not be written. The old file is still there.
    pub(crate) fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), String> {
        let text = serde_json::to_vec_pretty(value).map_err(|error| error.to_string())?;
        // A file that could not be read back would be set aside, and all that it knows with it.
        if text.len() as u64 > LONGEST {
            return Err(self.failed("write", name, Errno::FBIG));
        }
        let done = (|| {
            let mut new = New::beside(&self.directory, name, 0o600)?;
            let written = new.file().write_all(&text);
            written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            new.put_durably(name)
        })();
        done.map_err(|errno| self.failed("write", name, errno))
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &str) {
        let _none = files::remove(&self.directory, name);
    }

    pub(crate) fn failed(&self, verb: &str, name: &str, errno: Errno) -> String {
        format!("cannot {verb} {}: {}", self.path.join(name).shown(), Said::from(errno))
    }

    /// Returns the stamp of a file; `None` if there is no file.
    pub(crate) fn stamp(&self, name: &str) -> Option<Stamp> {
        let stat = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_ino, stat.st_mtime, stat.st_mtime_nsec))
    }
}
