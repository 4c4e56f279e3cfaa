//! Finds the stores, and decides whether one can be trusted.
//!
//! A store is trusted if no other user can have replaced its directory (`crate::trusted_directory`).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat, StatVfsMountFlags};
use tiexec_core::skip::FailureKind;
use tiexec_tracee::Failure;

use crate::trusted_directory::{self, Distrust, Rule, Trust, is_mount};

/// The mount point of the system's store, which `tiexecctl store setup` mounts.
pub const SYSTEM: &str = "/run/tiexec/images";

/// The path of the user's store, below the user's runtime directory.
const BELOW_RUNTIME: &str = "tiexec/images";

/// `TMPFS_MAGIC` (statfs(2)).
const TMPFS: u32 = 0x0102_1994;

/// The owner of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Root's, for everybody.
    System,
    /// One user's own.
    User,
}

/// A store's directory, trusted when it was opened.
#[derive(Debug)]
pub struct Directory {
    /// The open directory.
    pub(crate) fd: OwnedFd,
    /// Its path.
    pub path: PathBuf,
    /// The owner of the store.
    pub kind: Kind,
    /// The owner of the directory and of every image in it.
    pub(crate) owner: u32,
    /// The device on which every image lies.
    pub(crate) device: u64,
}

/// The existing stores. A defect of one of them does not affect the other.
#[derive(Debug)]
pub struct Directories {
    /// Those that can be used, the system's first.
    pub usable: Vec<Directory>,
    /// Why the other stores cannot be used.
    pub refused: Vec<Failure>,
}

impl Directories {
    /// Sorts the results into usable and refused stores.
    ///
    /// # Errors
    /// The first refusal, if no store can be used.
    pub(super) fn of(opened: [Result<Option<Directory>, Failure>; 2]) -> Result<Self, Failure> {
        let (mut usable, mut refused) = (Vec::new(), Vec::new());
        for one in opened {
            match one {
                Ok(directory) => usable.extend(directory),
                Err(failure) => refused.push(failure),
            }
        }
        match refused.first() {
            Some(failure) if usable.is_empty() => Err(failure.clone()),
            _ => Ok(Self { usable, refused }),
        }
    }
}

impl Directory {
    /// Opens the system's store; `None` if it is not set up. Only a separate file system counts as the store, so
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

    /// Opens the user's own store in `XDG_RUNTIME_DIR`; `None` if that is not set, does not exist, is not on a
    /// tmpfs, or does not allow execution. With `create`, makes the missing directories.
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
        // A directory that cannot hold images is not used: it needs no trust, and nothing is made there.
        if !rustix::fs::open(&runtime, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .is_ok_and(|fd| holds_images(&fd))
        {
            return Ok(None);
        }
        let user = rustix::process::geteuid().as_raw();
        let path = runtime.join(BELOW_RUNTIME);
        if stands_for_others(user) {
            let what = format!(
                "may be another user's: user {user} stands for all users without an ID in this user namespace"
            );
            return Err(refused(Distrust { path, what, source: None }));
        }
        let make: &[u32] = if create { &[0o700, 0o700] } else { &[] };
        let rule = Rule { user, trust: Trust::Own { sticky: true }, make };
        let Some((fd, stat)) = trusted_directory::open(&path, &rule).map_err(refused)? else {
            return Ok(None);
        };
        if stat.st_uid != user {
            let what = format!("belongs to user {}", stat.st_uid);
            return Err(refused(Distrust { path, what, source: None }));
        }
        Ok(Self::usable(fd, stat, &path, Kind::User))
    }

    /// Opens every store that this user can read, and makes none.
    ///
    /// # Errors
    /// As [`system`](Self::system), if no store is left.
    pub fn all() -> Result<Directories, Failure> {
        Directories::of([Self::system(), Self::of_user(false)])
    }

    /// Returns whether this user may build and remove images in it.
    pub fn is_ours(&self) -> bool {
        self.owner == rustix::process::geteuid().as_raw()
    }

    /// Returns the mode of an image.
    pub(crate) fn image_mode(&self) -> Mode {
        Mode::from_raw_mode(if self.kind == Kind::System { 0o444 } else { 0o400 })
    }

    fn usable(fd: OwnedFd, stat: Stat, path: &Path, kind: Kind) -> Option<Self> {
        let path = path.to_owned();
        let directory = Self { path, kind, owner: stat.st_uid, device: stat.st_dev, fd };
        holds_images(&directory.fd).then_some(directory)
    }
}

/// Opens the directory where the system's store is mounted, or would be; `None` if it does not exist.
///
/// # Errors
/// As [`Directory::system`].
pub(super) fn system_place() -> Result<Option<(OwnedFd, Stat)>, Failure> {
    let rule = Rule { user: 0, trust: Trust::Own { sticky: false }, make: &[] };
    trusted_directory::open(Path::new(SYSTEM), &rule).map_err(refused)
}

/// Returns whether files of other users can show this user ID: in a user namespace that does not have an ID for every
/// user (user_namespaces(7), "Unmapped user and group IDs"). Directories, images and originals are then not known to be
/// the user's.
fn stands_for_others(user: u32) -> bool {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid");
    let is_it = overflow.trim().parse().map_or(true, |overflow: u32| overflow == user);
    let all = ["0", "0", "4294967295"];
    is_it && !read("/proc/self/uid_map").split_ascii_whitespace().eq(all)
}

/// Returns whether the file or directory lies on a tmpfs.
pub fn is_on_tmpfs(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|fs| u32::try_from(fs.f_type) == Ok(TMPFS))
}

/// Returns whether the directory lies on a tmpfs that allows execution.
fn holds_images(fd: &OwnedFd) -> bool {
    let flags = rustix::fs::fstatvfs(fd).map(|fs| fs.f_flag);
    is_on_tmpfs(fd) && flags.is_ok_and(|flags| !flags.contains(StatVfsMountFlags::NOEXEC))
}

fn refused(distrust: Distrust) -> Failure {
    Failure::of(FailureKind::StoreRefused)(distrust)
}

/// Returns the memory that the system's image store takes, in bytes; `None` if there is no such store.
pub fn used_by_the_systems() -> Option<u64> {
    let (fd, stat) = system_place().ok()??;
    if !is_mount(&fd, &stat) {
        return None;
    }
    let used = rustix::fs::fstatvfs(&fd).ok()?;
    Some(used.f_blocks.saturating_sub(used.f_bfree).saturating_mul(used.f_frsize))
}
