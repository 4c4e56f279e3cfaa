//! A process's directory under `/proc`, opened once.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Pid;
use tiexec_core::order;
use tiexec_core::proc::status::{self, Status};

use crate::error::SysError;

/// `/proc/PID`, pinned: a read through it never sees another process that got the same id.
#[derive(Clone, Debug)]
pub struct ProcDir(Arc<OwnedFd>);

impl ProcDir {
    /// Opens `/proc/self`. After an exec it still means this process, and in a forked child it means the parent. This
    /// also holds if `/proc` counts ids by another PID namespace.
    ///
    /// # Errors
    /// ENOENT where `/proc` is not mounted, or does not show this process.
    pub fn this_process() -> Result<Self, SysError> {
        Self::open(Path::new("/proc/self"), "open(/proc/self)")
    }

    /// Returns whether seccomp filters are in force for this process; true if that is not known.
    pub fn this_may_have_filters() -> bool {
        let status = Self::this_process().and_then(|this| this.read("status"));
        status.map_or(true, |text| status::seccomp(&text) != 0)
    }

    /// Opens `/proc/PID`.
    ///
    /// # Errors
    /// ENOENT if there is no such process.
    pub fn of(pid: Pid) -> Result<Self, SysError> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        Self::open(Path::new(&path), "open(/proc/PID)")
    }

    /// Opens the directories of all processes, one after the other, the lowest ids first. Skips a process that ends
    /// meanwhile. Without a mounted `/proc` there are none.
    pub fn every() -> impl Iterator<Item = (Pid, Self)> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<Pid> = pids.filter_map(Pid::from_raw).collect();
        order::by_key(&mut pids, |pid| pid.as_raw_nonzero());
        pids.into_iter().filter_map(|pid| Some((pid, Self::of(pid).ok()?)))
    }

    fn open(path: &Path, call: &'static str) -> Result<Self, SysError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map(|directory| Self(Arc::new(directory)))
            .map_err(SysError::of(call))
    }

    /// Reads a whole file of the process, such as `maps`. A short read of a kernel file is not its end, so this reads
    /// until a read returns nothing.
    ///
    /// # Errors
    /// `call` names the file; ESRCH or ENOENT if the process is gone; EACCES, EPERM. EFBIG if the file is longer than
    /// that of any sound process.
    pub fn read(&self, name: &'static str) -> Result<Vec<u8>, SysError> {
        self.read_as(name, name)
    }

    /// As [`read`](Self::read), for a name made at run time, such as `task/7/syscall`; `call` names
    /// it in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_as(&self, name: &str, call: &'static str) -> Result<Vec<u8>, SysError> {
        read_to_end(self.open_named(name, call)?, longest(call), call)
    }

    /// Reads the beginning of a file of the process, such as `cmdline`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_start(&self, name: &'static str, len: u64) -> Result<Vec<u8>, SysError> {
        let mut text = Vec::new();
        self.open_named(name, name)?.take(len).read_to_end(&mut text).map_err(io_error(name))?;
        Ok(text)
    }

    /// As [`read`](Self::read), for a file whose length another process decides: never more than `most` bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read); EFBIG if the file is longer.
    pub fn read_limited(&self, name: &'static str, most: u64) -> Result<Vec<u8>, SysError> {
        read_to_end(self.open_named(name, name)?, most, name)
    }

    /// Reads and parses `status`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn status(&self) -> Result<Status, SysError> {
        self.read("status").map(|text| status::parse(&text))
    }

    /// As [`read`](Self::read), of one of the process's threads.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_of(&self, tid: Pid, name: &'static str) -> Result<Vec<u8>, SysError> {
        self.read_as(&format!("task/{}/{name}", tid.as_raw_nonzero()), name)
    }

    /// As [`status`](Self::status), of one of the process's threads.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn status_of(&self, tid: Pid) -> Result<Status, SysError> {
        self.read_of(tid, "status").map(|text| status::parse(&text))
    }

    /// Returns whether the process is in the mount namespace of this one. False if either cannot be read.
    pub fn has_our_mounts(&self) -> bool {
        let mounts = |process: &Self| process.namespace("ns/mnt").ok();
        let ours = Self::this_process().ok().as_ref().and_then(mounts);
        ours.is_some() && mounts(self) == ours
    }

    /// Returns the inode number of one of the process's namespaces, such as `ns/pid`; 0 if the kernel has no such
    /// namespaces.
    ///
    /// # Errors
    /// ESRCH if the process is gone; EACCES without the right to read about it (`PTRACE_MODE_READ`).
    pub fn namespace(&self, name: &'static str) -> Result<u64, SysError> {
        match rustix::fs::statat(&self.0, name, rustix::fs::AtFlags::empty()) {
            Ok(stat) => Ok(stat.st_ino),
            Err(rustix::io::Errno::NOENT) => {
                // If the file does not exist, the process is gone, or the kernel lacks these namespaces.
                self.read("stat").map(|_there| 0)
            }
            Err(errno) => Err(SysError { call: name, errno: errno.into() }),
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

    /// Opens a file of the process for reading; `call` names it in errors.
    pub(crate) fn open_named(&self, name: &str, call: &'static str) -> Result<File, SysError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, name, flags, Mode::empty())
            .map(File::from)
            .map_err(SysError::of(call))
    }

    /// Reads a link of the process, such as `fd/4`, without following it.
    ///
    /// # Errors
    /// ENOENT if there is no such link; EACCES.
    pub fn link(&self, name: &str) -> Result<Vec<u8>, SysError> {
        self.link_as(name, "readlink(/proc/PID/fd)")
    }

    /// Returns the type of the file to which a link of the process leads, such as `fd/4`. A file system that keeps the
    /// answer elsewhere is not asked (`AT_STATX_DONT_SYNC`).
    ///
    /// # Errors
    /// As statx(2).
    pub fn file_type(&self, name: &str) -> Result<FileType, SysError> {
        /// Consoles, `/dev/tty`, and pseudo-terminals (`Documentation/admin-guide/devices.txt`).
        const TERMINALS: [u32; 10] = [4, 5, 136, 137, 138, 139, 140, 141, 142, 143];
        let file = self.cached_stat(name)?;
        Ok(match rustix::fs::FileType::from_raw_mode(file.stx_mode.into()) {
            rustix::fs::FileType::Fifo => FileType::Fifo,
            rustix::fs::FileType::CharacterDevice if TERMINALS.contains(&file.stx_rdev_major) => {
                FileType::Terminal
            }
            _ => FileType::Other,
        })
    }

    /// Returns the numbers of the character device to which a link of the process leads; `None` for any other file.
    pub fn device(&self, name: &str) -> Option<Device> {
        let file = self.cached_stat(name).ok()?;
        let type_ = rustix::fs::FileType::from_raw_mode(file.stx_mode.into());
        (type_ == rustix::fs::FileType::CharacterDevice)
            .then_some(Device { major: file.stx_rdev_major, minor: file.stx_rdev_minor })
    }

    fn cached_stat(&self, name: &str) -> Result<rustix::fs::Statx, SysError> {
        use rustix::fs::{AtFlags, StatxFlags, statx};
        statx(&self.0, name, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
            .map_err(SysError::of("statx"))
    }

    /// Returns whether calls on a descriptor do not wait (`O_NONBLOCK`, in `fdinfo`); `None` if that is not known.
    pub fn is_nonblocking(&self, fd: i32) -> Option<bool> {
        let text = self.read_as(&format!("fdinfo/{fd}"), "fdinfo").ok()?;
        let line =
            text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"flags:"))?;
        let digits = std::str::from_utf8(line.trim_ascii()).ok()?;
        let flags = u32::from_str_radix(digits, 8).ok()?;
        Some(flags & libc::O_NONBLOCK.unsigned_abs() != 0)
    }

    /// Reads the path that the link `exe` shows.
    ///
    /// # Errors
    /// ENOENT for kernel threads and processes that are gone; EACCES.
    pub fn exe_path(&self) -> Result<Vec<u8>, SysError> {
        self.link_as("exe", "readlink(/proc/PID/exe)")
    }

    fn link_as(&self, name: &str, call: &'static str) -> Result<Vec<u8>, SysError> {
        rustix::fs::readlinkat(&self.0, name, Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(SysError::of(call))
    }
}

/// The types of files that differ for those who wait in a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileType {
    /// A pipe, with or without a name.
    Fifo,
    /// A console or a pseudo-terminal.
    Terminal,
    /// Any other file.
    Other,
}

/// The numbers of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device among those of its driver.
    pub minor: u32,
}

impl AsFd for ProcDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The cause and the fix if [`is_of_another_namespace`] returns true.
pub const OF_ANOTHER_NAMESPACE: &str =
    "/proc is that of another PID namespace; fix: mount -t proc proc /proc";

/// Returns whether `/proc` numbers processes otherwise than the PID namespace of this process does. Then a PID names
/// one process there, and another one in a system call. This checks once. Neither can change while the process runs,
/// except by a mount.
pub fn is_of_another_namespace() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let this = std::fs::read_link("/proc/self");
        this.is_ok_and(|this| this.as_os_str() != std::process::id().to_string().as_str())
    })
}

/// Passes the text of `/proc/PID/stat` of each process to `each`, in no order. It opens one file for each process and
/// reads it once: the kernel writes the file at once, and it is shorter than a page (`proc_tgid_stat` in
/// `fs/proc/array.c`).
pub fn every_stat(mut each: impl FnMut(i32, &[u8])) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = rustix::fs::openat(CWD, "/proc", flags, Mode::empty()) else { return };
    let Ok(entries) = rustix::fs::Dir::read_from(&proc) else { return };
    let mut text = [0; 4096];
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        let Some(number) = number else { continue };
        let path = [name, b"/stat"].concat();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&proc, path, flags, Mode::empty()) else { continue };
        if let Ok(count) = rustix::io::read(&file, &mut text) {
            each(number, &text[..count]);
        }
    }
}

/// The most bytes that are read of a file under `/proc/PID`, because the process decides its length. A mapping takes 60
/// bytes of maps, and up to 4200 with the longest path. The kernel allows 65,530 mappings (`vm.max_map_count`), and
/// some databases ask for four times that.
const fn longest(name: &str) -> u64 {
    match name.as_bytes() {
        b"maps" => LONGEST_MAPS,
        b"smaps" => 100 << 20,
        b"mountinfo" => 16 << 20,
        _ => 1 << 20,
    }
}

/// The most bytes that are read of maps.
pub(crate) const LONGEST_MAPS: u64 = 32 << 20;

/// Reads until the end; EFBIG if the file is longer than `longest`.
pub(crate) fn read_to_end(
    file: impl Read,
    longest: u64,
    call: &'static str,
) -> Result<Vec<u8>, SysError> {
    let mut text = Vec::with_capacity(16 << 10);
    file.take(longest + 1).read_to_end(&mut text).map_err(io_error(call))?;
    if text.len() as u64 > longest {
        return Err(SysError { call, errno: crate::Errno::FBIG });
    }
    Ok(text)
}

pub(crate) fn io_error(call: &'static str) -> impl Fn(std::io::Error) -> SysError {
    move |error| {
        let other =
            if error.kind() == std::io::ErrorKind::OutOfMemory { libc::ENOMEM } else { libc::EIO };
        SysError { call, errno: crate::Errno(error.raw_os_error().unwrap_or(other)) }
    }
}
