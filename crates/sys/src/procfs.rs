//! A process's directory under `/proc`, opened once.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Pid;

use crate::error::SysError;

/// `/proc/PID`, pinned: reads through it never see another process that got the same id.
#[derive(Debug)]
pub struct ProcDir(OwnedFd);

impl ProcDir {
    /// Opens `/proc/self`. It goes on to mean this process after an exec, and in a forked child it
    /// means the parent; that also where `/proc` counts ids by another PID namespace.
    ///
    /// # Errors
    /// ENOENT where `/proc` is not mounted, or does not show this process.
    pub fn this_process() -> Result<Self, SysError> {
        Self::open(Path::new("/proc/self"), "open(/proc/self)")
    }

    /// Opens `/proc/PID`.
    ///
    /// # Errors
    /// ENOENT if there is no such process.
    pub fn of(pid: Pid) -> Result<Self, SysError> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        Self::open(Path::new(&path), "open(/proc/PID)")
    }

    /// Opens the directories of all processes, one after the other, those of the lowest ids first. What
    /// ends meanwhile is left out; where `/proc` is not mounted there are none.
    pub fn every() -> impl Iterator<Item = (Pid, Self)> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<Pid> = pids.filter_map(Pid::from_raw).collect();
        pids.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
        pids.into_iter().filter_map(|pid| Some((pid, Self::of(pid).ok()?)))
    }

    fn open(path: &Path, call: &'static str) -> Result<Self, SysError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, path, flags, Mode::empty()).map(Self).map_err(SysError::of(call))
    }

    /// Reads a whole file of the process, such as `maps`. A short read of a kernel file is not its
    /// end, so this reads until there is nothing more.
    ///
    /// # Errors
    /// `call` names the file; ESRCH or ENOENT if the process is gone; EACCES, EPERM.
    pub fn read(&self, name: &'static str) -> Result<Vec<u8>, SysError> {
        self.read_as(name, name)
    }

    /// As [`read`](Self::read), for a name made at run time, such as `task/7/syscall`; `call` names
    /// it in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_as(&self, name: &str, call: &'static str) -> Result<Vec<u8>, SysError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&self.0, name, flags, Mode::empty()).map_err(SysError::of(call))?;
        let mut text = Vec::with_capacity(16 << 10);
        File::from(file).read_to_end(&mut text).map_err(|error| SysError {
            call,
            errno: crate::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
        })?;
        Ok(text)
    }

    /// `flock(LOCK_EX|LOCK_NB)` on the directory — makes this process the only one of its kind at work
    /// on that one, until the descriptor is closed; `None` while another holds it.
    ///
    /// # Errors
    /// ESRCH or ENOENT if the process is gone.
    pub fn lock(&self) -> Result<Option<OwnedFd>, SysError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.0, ".", flags, Mode::empty())
            .map_err(SysError::of("open(/proc/PID)"))?;
        match rustix::fs::flock(&directory, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(directory)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(SysError { call: "flock(/proc/PID)", errno: errno.into() }),
        }
    }

    /// Lists a directory of the process, such as `task`.
    ///
    /// # Errors
    /// ESRCH or ENOENT if the process is gone.
    pub fn list(&self, name: &'static str) -> Result<Vec<std::ffi::OsString>, SysError> {
        use std::os::unix::ffi::OsStringExt;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(&self.0, name, flags, Mode::empty()).map_err(SysError::of(name))?;
        let entries = rustix::fs::Dir::new(directory).map_err(SysError::of(name))?;
        let names =
            entries.filter_map(Result::ok).map(|entry| entry.file_name().to_bytes().to_vec());
        Ok(names.filter(|name| !name.starts_with(b".")).map(std::ffi::OsString::from_vec).collect())
    }

    /// Opens a file or magic link of the process, such as `exe` or `fd/4`.
    ///
    /// # Errors
    /// As open(2); EACCES for an image that may be executed but not read.
    pub fn open_file(&self, name: &str, write: bool) -> Result<File, SysError> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        rustix::fs::openat(&self.0, name, access | OFlags::CLOEXEC, Mode::empty())
            .map(File::from)
            .map_err(SysError::of(if write { "open(/proc/PID/fd)" } else { "open(/proc/PID/exe)" }))
    }

    /// Reads the path that the link `exe` shows.
    ///
    /// # Errors
    /// ENOENT for kernel threads and processes that are gone; EACCES.
    pub fn exe_path(&self) -> Result<Vec<u8>, SysError> {
        rustix::fs::readlinkat(&self.0, "exe", Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(SysError::of("readlink(/proc/PID/exe)"))
    }
}

impl AsFd for ProcDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
