//! Holds files that another user chose, without opening them.
//!
//! Opening a file may wait for its server (FUSE), for a lease, or for the other end of a FIFO, and no signal may be
//! able to end that wait. `O_PATH` waits for none of these: holding a mapped file, reading its type and closing it make
//! no request to its file system.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};

use crate::error::SysError;
use crate::procfs::ProcDir;

/// A file that is held but not open.
#[derive(Debug)]
pub struct PathFile(OwnedFd);

impl From<OwnedFd> for PathFile {
    /// Wraps a descriptor that was opened with `O_PATH`.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for PathFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The type and the identity of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// True if it is a regular file.
    pub regular: bool,
    /// The device, by its two numbers.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
}

/// Returns whether the process has this file open for writing. The mode of a descriptor's link shows how the file is
/// open (`tid_fd_update_inode` in `fs/proc/fd.c`), so only files that are open for writing are held.
///
/// # Errors
/// ESRCH or ENOENT if the process is gone; EACCES without the right to trace it.
pub fn has_open_for_writing(process: &ProcDir, file: Identity) -> Result<bool, SysError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let of = SysError::of;
    let links = rustix::fs::openat(process, "fd", flags, Mode::empty()).map_err(of("fd"))?;
    // A process decides how many descriptors it has, so their names are not collected.
    let names = rustix::fs::Dir::read_from(&links).map_err(of("fd"))?;
    Ok(names.filter_map(Result::ok).any(|entry| {
        let name = entry.file_name();
        let link = rustix::fs::statat(&links, name, AtFlags::SYMLINK_NOFOLLOW);
        let writes = link.is_ok_and(|link| {
            let is_link = FileType::from_raw_mode(link.st_mode) == FileType::Symlink;
            is_link && Mode::from_raw_mode(link.st_mode).contains(Mode::WUSR)
        });
        writes && {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let held = rustix::fs::openat(&links, name, flags, Mode::empty()).map(PathFile);
            held.is_ok_and(|held| held.identity() == Ok(file))
        }
    }))
}

/// The identity of a file with its length and its times. If a file that stays open has the same version at two times, it
/// is the same file, and nobody has written to it in between, except through a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// The device, by its two numbers.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
    /// The length in bytes.
    pub len: u64,
    /// When its content was last changed, in seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// When the file or its metadata was last changed, in seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
}

/// The owner of a file, and how many names it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The user.
    pub owner: u32,
    /// The number of its names: 0 once it is deleted.
    pub links: u32,
}

impl PathFile {
    /// `openat(O_PATH)` — holds the file that a file or magic link of a process leads to, such as
    /// `map_files/START-END`.
    ///
    /// # Errors
    /// As open(2). For `map_files`: EPERM without `CAP_CHECKPOINT_RESTORE` in the initial user namespace, ENOENT if no
    /// mapping has exactly these addresses.
    pub fn of_process(process: &ProcDir, name: &str) -> Result<Self, SysError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat(process, name, flags, Mode::empty())
            .map(Self)
            .map_err(SysError::of("open(O_PATH)"))
    }

    /// `open(O_PATH)` — holds the file at `path` as this process finds it, through links.
    ///
    /// # Errors
    /// As open(2).
    pub fn at(path: &Path) -> Result<Self, SysError> {
        rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(SysError::of("open(O_PATH)"))
    }

    /// `openat2(RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)` — holds the file at `path` as the
    /// process would find it, without following any link. Since Linux 5.6.
    ///
    /// # Errors
    /// ELOOP if there is a link on the way; as open(2).
    pub fn in_root_of(process: &ProcDir, path: &[u8]) -> Result<Self, SysError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(process, "root", flags, Mode::empty())
            .map_err(SysError::of("open(/proc/PID/root)"))?;
        let strictly =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(&root, path, flags, Mode::empty(), strictly)
            .map(Self)
            .map_err(SysError::of("openat2(RESOLVE_IN_ROOT)"))
    }

    /// `statx(AT_STATX_DONT_SYNC)` — returns what the kernel knows of the file already.
    ///
    /// # Errors
    /// EACCES for a file of FUSE that another user mounted.
    pub fn identity(&self) -> Result<Identity, SysError> {
        let facts = self.facts(StatxFlags::TYPE | StatxFlags::INO)?;
        Ok(Identity {
            regular: FileType::from_raw_mode(facts.stx_mode.into()) == FileType::RegularFile,
            device: (facts.stx_dev_major, facts.stx_dev_minor),
            inode: facts.stx_ino,
        })
    }

    /// As [`identity`](Self::identity), but returns what changes when the file does.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn version(&self) -> Result<Version, SysError> {
        let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
        let facts = self.facts(wanted)?;
        Ok(Version {
            device: (facts.stx_dev_major, facts.stx_dev_minor),
            inode: facts.stx_ino,
            len: facts.stx_size,
            modified: (facts.stx_mtime.tv_sec, facts.stx_mtime.tv_nsec),
            changed: (facts.stx_ctime.tv_sec, facts.stx_ctime.tv_nsec),
        })
    }

    /// As [`identity`](Self::identity), but returns who owns the file, and whether it is deleted.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn holding(&self) -> Result<Holding, SysError> {
        let facts = self.facts(StatxFlags::UID | StatxFlags::NLINK)?;
        Ok(Holding { owner: facts.stx_uid, links: facts.stx_nlink })
    }

    fn facts(&self, wanted: StatxFlags) -> Result<rustix::fs::Statx, SysError> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(&self.0, c"", flags, wanted)
            .map_err(SysError::of("statx(AT_STATX_DONT_SYNC)"))
    }

    /// `open(/proc/self/fd/N, O_RDONLY | O_NONBLOCK)` — opens the very file for reading, with the credentials of this
    /// process.
    ///
    /// # Errors
    /// EACCES; EWOULDBLOCK while a process holds a lease on it; ENOENT if `/proc` is not mounted.
    pub fn open(&self) -> Result<File, SysError> {
        let link = format!("/proc/thread-self/fd/{}", self.0.as_fd().as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, Path::new(&link), flags, Mode::empty())
            .map(File::from)
            .map_err(SysError::of("open(/proc/thread-self/fd)"))
    }
}

/// Returns the number of the mount on which this process found the file, from `/proc/self/fdinfo`; `None` if `/proc` is
/// not mounted.
pub fn mount_id(file: impl AsFd) -> Option<u64> {
    let path = format!("/proc/thread-self/fdinfo/{}", file.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// Returns the inode number of the user namespace that a process's mount namespace belongs to (ioctl_ns(2),
/// `NS_GET_USERNS`); `None` if it is neither this process's own nor one below it.
///
/// # Errors
/// EACCES without the right to read about the process; ESRCH.
pub fn owner_of_mounts(process: &ProcDir) -> Result<Option<u64>, SysError> {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    let namespace = process.open_file("ns/mnt", false)?;
    // SAFETY: the request takes no argument; it returns a new descriptor or -1.
    let owner = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if owner < 0 {
        return Ok(None);
    }
    // SAFETY: the kernel has just returned this descriptor, and no other code knows it.
    let owner = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(owner) };
    let stat = rustix::fs::fstat(&owner).map_err(SysError::of("fstat(ns/user)"))?;
    Ok(Some(stat.st_ino))
}
