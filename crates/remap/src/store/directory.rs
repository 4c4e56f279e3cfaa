//! Where the stores are, and whether one is to be trusted.
//!
//! Each directory from the root down must belong to root (or, in the user's own part, to the user),
//! be writable by nobody else, and be no symbolic link. So nobody else can have exchanged one. On the
//! way to a user's own store a sticky directory such as `/tmp` will do: what belongs to the user in
//! it is exchanged by nobody else.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use tiexec_core::skip::SkipReason;
use tiexec_sys::Errno;

use crate::failure::Failure;

/// Where `tiexecctl store setup` mounts the system's store.
pub const SYSTEM: &str = "/run/tiexec/images";

/// Below the user's runtime directory.
const BELOW_RUNTIME: &str = "tiexec/images";

/// `TMPFS_MAGIC` (statfs(2)).
const TMPFS: u32 = 0x0102_1994;

/// Whose store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Root's, for everybody.
    System,
    /// One user's own.
    User,
}

/// A store's directory, open and trusted when it was opened.
#[derive(Debug)]
pub struct Directory {
    /// It.
    pub(crate) fd: OwnedFd,
    /// Its path.
    pub path: PathBuf,
    /// Whose store.
    pub kind: Kind,
    /// Owner of the directory and of every image in it.
    pub(crate) owner: u32,
    /// Device that every image lies on.
    pub(crate) device: u64,
}

impl Directory {
    /// Opens the system's store; `None` if it is not set up: only a file system of its own is it, so
    /// that images never fill `/run`.
    ///
    /// # Errors
    /// `store_refused`, with the directory and what is wrong with it.
    pub fn system() -> Result<Option<Self>, Failure> {
        let Some((fd, stat)) = system_place()? else { return Ok(None) };
        if !is_mount(&fd, &stat) {
            return Ok(None);
        }
        Ok(Self::usable(fd, stat, Path::new(SYSTEM), Kind::System))
    }

    /// Opens the user's own store in `XDG_RUNTIME_DIR`; `None` if that is not set, not there, not a
    /// tmpfs, or does not allow execution. With `create`, makes what of it is missing.
    ///
    /// # Errors
    /// As [`system`](Self::system).
    pub fn of_user(create: bool) -> Result<Option<Self>, Failure> {
        let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) else {
            return Ok(None);
        };
        if !runtime.is_absolute() {
            return Ok(None);
        }
        // What is of no use needs no trust, and nothing is made there.
        if !rustix::fs::open(&runtime, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .is_ok_and(|fd| holds_images(&fd))
        {
            return Ok(None);
        }
        let user = rustix::process::geteuid().as_raw();
        let path = runtime.join(BELOW_RUNTIME);
        let make_from = if create { runtime.components().count() } else { usize::MAX };
        let rule = Rule { user, sticky: true, make_from };
        let Some((fd, stat)) = walk(&path, &rule)? else { return Ok(None) };
        if stat.st_uid != user {
            return Err(refused(&path, format_args!("belongs to user {}", stat.st_uid)));
        }
        Ok(Self::usable(fd, stat, &path, Kind::User))
    }

    /// Opens every store that this user can look at, and makes none.
    ///
    /// # Errors
    /// As [`system`](Self::system).
    pub fn all() -> Result<Vec<Self>, Failure> {
        Ok([Self::system()?, Self::of_user(false)?].into_iter().flatten().collect())
    }

    /// Returns whether this user may build and remove images in it.
    pub fn is_ours(&self) -> bool {
        self.owner == rustix::process::geteuid().as_raw()
    }

    /// The mode of an image.
    pub(crate) fn image_mode(&self) -> Mode {
        Mode::from_raw_mode(if self.kind == Kind::System { 0o444 } else { 0o400 })
    }

    fn usable(fd: OwnedFd, stat: Stat, path: &Path, kind: Kind) -> Option<Self> {
        let path = path.to_owned();
        let directory = Self { path, kind, owner: stat.st_uid, device: stat.st_dev, fd };
        holds_images(&directory.fd).then_some(directory)
    }
}

/// Opens the directory where the system's store is mounted, or would be; `None` if it is not there.
///
/// # Errors
/// As [`Directory::system`].
pub(super) fn system_place() -> Result<Option<(OwnedFd, Stat)>, Failure> {
    walk(Path::new(SYSTEM), &Rule { user: 0, sticky: false, make_from: usize::MAX })
}

/// Returns whether a directory is the root of a file system.
pub(super) fn is_mount(fd: &OwnedFd, stat: &Stat) -> bool {
    let above = rustix::fs::statat(fd, "..", AtFlags::empty());
    above.is_ok_and(|above| above.st_dev != stat.st_dev)
}

/// Returns whether the directory lies on a tmpfs that allows execution.
fn holds_images(fd: &OwnedFd) -> bool {
    let tmpfs = rustix::fs::fstatfs(fd).is_ok_and(|fs| u32::try_from(fs.f_type) == Ok(TMPFS));
    let flags = rustix::fs::fstatvfs(fd).map(|fs| fs.f_flag);
    tmpfs && flags.is_ok_and(|flags| !flags.contains(StatVfsMountFlags::NOEXEC))
}

/// What a path to a store must be like.
struct Rule {
    /// Who may own its directories besides root.
    user: u32,
    /// Whether root's sticky directories may be written to by others, on the way.
    sticky: bool,
    /// From which component on a missing one is made, for the user alone.
    make_from: usize,
}

/// Opens a directory component by component, each checked; `None` if one is not there.
fn walk(path: &Path, rule: &Rule) -> Result<Option<(OwnedFd, Stat)>, Failure> {
    let failed = |at: &Path, call: &str, errno: rustix::io::Errno| {
        refused(at, format_args!("{call}: {}", Errno::from(errno)))
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let passing = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = PathBuf::from("/");
    let root = rustix::fs::openat(CWD, "/", passing, Mode::empty());
    let mut fd = root.map_err(|errno| failed(&at, "open", errno))?;
    let mut stat = trusted(&fd, &at, rule, false)?;
    let components: Vec<&OsStr> = path
        .components()
        .filter(|component| *component != Component::RootDir)
        .map(Component::as_os_str)
        .collect();
    for (index, name) in components.iter().enumerate() {
        at.push(name);
        let last = index + 1 == components.len();
        if index + 1 >= rule.make_from {
            match rustix::fs::mkdirat(&fd, *name, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(failed(&at, "mkdir", errno)),
            }
        }
        let opened =
            rustix::fs::openat(&fd, *name, if last { flags } else { passing }, Mode::empty());
        fd = match opened {
            Ok(next) => next,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => {
                let kind = rustix::fs::statat(&fd, *name, AtFlags::SYMLINK_NOFOLLOW)
                    .map(|stat| FileType::from_raw_mode(stat.st_mode));
                return Err(match kind {
                    Ok(FileType::Symlink) => refused(&at, "is a symbolic link"),
                    Ok(FileType::Directory) | Err(_) => failed(&at, "open", errno),
                    Ok(_) => refused(&at, "is no directory"),
                });
            }
        };
        stat = trusted(&fd, &at, rule, last)?;
    }
    Ok(Some((fd, stat)))
}

fn trusted(fd: &OwnedFd, at: &Path, rule: &Rule, last: bool) -> Result<Stat, Failure> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|errno| refused(at, format_args!("fstat: {}", Errno::from(errno))))?;
    if stat.st_uid != 0 && stat.st_uid != rule.user {
        return Err(refused(at, format_args!("belongs to user {}", stat.st_uid)));
    }
    let mode = stat.st_mode & 0o7777;
    let sticky = rule.sticky && !last && stat.st_uid == 0 && mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !sticky {
        return Err(refused(at, format_args!("is writable by others (mode {mode:04o})")));
    }
    Ok(stat)
}

fn refused(at: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::new(SkipReason::StoreRefused, format_args!("{} {what}", at.display()))
}
