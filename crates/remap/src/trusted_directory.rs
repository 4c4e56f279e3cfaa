//! Opens the directories in which TiExec reads and makes files, so that no other user decides which directory that is.
//!
//! A path is followed component by component, each below the descriptor of the one before. [`Trust`] says which
//! directories and links the path may lead through.
//!
//! The mode of a directory with a POSIX access list has the list's mask in the place of the group's rights (acl(5)). So
//! the mode never claims fewer writers than the list allows.

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use tiexec_core::escape::AsShown;
use tiexec_sys::Errno;

use crate::files;

/// The requirements on a path.
pub struct Rule<'a> {
    /// The user who may own the directories, besides root.
    pub user: u32,
    /// The directories and links through which the path may lead.
    pub trust: Trust,
    /// The modes with which the last components are made if they are missing. The last mode is the last
    /// component's.
    pub make: &'a [u32],
}

/// The directories and links through which a path may lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// For what TiExec itself relies on: state, locks, rules, images. Each directory from the root down belongs to
    /// root (or, in the user's own part, to the user), is writable by nobody else, and is not a symbolic link.
    Own {
        /// True if the path may lead through root's sticky directories, such as `/tmp`. Others may create names there,
        /// but cannot replace what belongs to the user.
        sticky: bool,
    },
    /// For what others will execute or obey as root's, in a directory that the user named. As `Own`, but symbolic links
    /// of root and of the user are followed, and others may create names in sticky directories and in volumes: mount
    /// points to which everybody may write, as Kubernetes makes them for a pod. All users of a volume trust each other.
    Installed,
    /// For reports and figures, in a directory that the user named. A directory may be another user's. But where others
    /// may rename the components of a path, no link is followed and `..` leads nowhere: such a component leads to
    /// directories only that those users can move there.
    Named,
}

/// The defect of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Distrust {
    /// The directory.
    pub path: PathBuf,
    /// The predicate after the path, such as `is a symbolic link`; or the call that failed.
    pub what: String,
    /// The error of the call that failed.
    pub source: Option<Errno>,
}

impl Distrust {
    /// The failure of a call on a directory.
    pub fn of(call: &str, path: &Path, errno: Errno) -> Self {
        Self { path: path.to_owned(), what: call.to_owned(), source: Some(errno) }
    }

    /// Returns whether another user could have chosen the file or the directory.
    pub fn is_of_others(&self) -> bool {
        self.source.is_none() && ![IRREGULAR, FILE, RELATIVE].contains(&&*self.what)
    }

    /// Returns the command or action that removes the defect.
    pub fn fix(&self) -> String {
        let path = self.path.word();
        match (self.source, &*self.what) {
            (Some(Errno::ACCES | Errno::PERM), _) => "run it as root".to_owned(),
            (Some(_), _) | (None, LINK | FILE | RELATIVE | MOVABLE) => {
                "name another directory".to_owned()
            }
            (None, what) if what.starts_with(FOREIGN) => "name another directory".to_owned(),
            (None, what) if what.starts_with(OWNED) => format!("chown root {path}"),
            (None, _) => format!("chmod go-w {path}"),
        }
    }
}

/// Defects that no change of the directory can remove.
const LINK: &str = "is a symbolic link";
const FILE: &str = "is not a directory";
const IRREGULAR: &str = "is not a regular file";
const RELATIVE: &str = "is a relative path";
const MOVABLE: &str = "is behind a directory that others may move";
/// The beginning of the text for a link that is not followed.
const FOREIGN: &str = "is a symbolic link of user";
/// Most links of a path (`MAXSYMLINKS` in `include/linux/namei.h`).
const MOST_LINKS: u32 = 40;
/// The beginning of the text for a wrong owner.
const OWNED: &str = "belongs to user";

impl Error for Distrust {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|errno| errno as _)
    }
}

impl From<Distrust> for std::io::Error {
    fn from(distrust: Distrust) -> Self {
        match distrust.source {
            Some(errno) => Self::from_raw_os_error(errno.0),
            None => Self::other(format!("{distrust}; fix: {}", distrust.fix())),
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.shown(), self.what)?;
        self.source.map_or(Ok(()), |errno| write!(f, ": {errno}"))
    }
}

/// Opens a directory component by component, and checks each. Returns `None` if one does not exist and is not to be
/// made.
///
/// # Errors
/// The path is relative and [`Trust::Own`] is wanted. Otherwise the first directory or link that the rule forbids, or
/// that cannot be opened or made.
pub fn open(path: &Path, rule: &Rule<'_>) -> Result<Option<(OwnedFd, Stat)>, Distrust> {
    let mut ahead = components(path);
    let mut walk = Walk::begin(path, rule, ahead.is_empty())?;
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if rule.trust == Trust::Named && name == ".." && walk.others_rename() {
            return Err(distrust(&walk.at.join(name), MOVABLE));
        }
        walk.at.push(&name);
        if let Some(&mode) = rule.make.iter().rev().nth(ahead.len()) {
            walk.make(&name, mode)?;
        }
        let flags = if ahead.is_empty() { rule.trust.last() } else { PASSING };
        match rustix::fs::openat(&walk.fd, &name, flags, Mode::empty()) {
            Ok(next) => walk.enter(next, ahead.is_empty())?,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => {
                links += 1;
                let leads_to = walk.link(&name, errno)?;
                if links > MOST_LINKS {
                    return Err(failed(&walk.at, "open", rustix::io::Errno::LOOP));
                }
                if leads_to.is_absolute() {
                    walk = Walk::begin(&leads_to, rule, false)?;
                } else {
                    walk.at.pop();
                }
                let behind = std::mem::replace(&mut ahead, components(&leads_to));
                ahead.extend(behind);
                if ahead.is_empty() {
                    // A link to `/` or `.`: the directory is open already, but not as the last one.
                    ahead.push_back(".".into());
                }
            }
        }
    }
    Ok(Some((walk.fd, walk.stat)))
}

/// Opens the directory of a file that the user named, by [`Trust::Named`].
///
/// # Errors
/// As [`open`]. ENOENT if the directory does not exist.
pub fn of_file(path: &Path) -> Result<OwnedFd, Distrust> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let user = rustix::process::geteuid().as_raw();
    let opened = open(parent, &Rule { user, trust: Trust::Named, make: &[] })?;
    opened.map(|(fd, _)| fd).ok_or_else(|| failed(parent, "open", rustix::io::Errno::NOENT))
}

/// Opens a regular file for reading that no other user chose: its directories, and the links that lead to it, are as the
/// rule says, and it belongs to root or to the user.
///
/// # Errors
/// As [`open`]. ENOENT if it does not exist.
pub fn open_file(path: &Path, rule: &Rule<'_>) -> Result<File, Distrust> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let missing = || failed(&path, "open", rustix::io::Errno::NOENT);
        let name = path.file_name().ok_or_else(missing)?.to_owned();
        let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
        let (fd, stat) = open(&parent, rule)?.ok_or_else(missing)?;
        let walk = Walk { rule, root: owner_of_slash()?, at: path.clone(), fd, stat };
        // An open has effects on a device, and may wait for a FIFO.
        let found = rustix::fs::statat(&walk.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(|errno| failed(&path, "stat", errno))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => path = parent.join(walk.link(&name, rustix::io::Errno::LOOP)?),
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&walk.fd, &name, flags, Mode::empty());
                let file = file.map_err(|errno| failed(&path, "open", errno))?;
                let stat = rustix::fs::fstat(&file).map_err(|e| failed(&path, "fstat", e))?;
                return match walk.trusts(stat.st_uid) {
                    true => Ok(file.into()),
                    false => Err(distrust(&path, format_args!("{OWNED} {}", stat.st_uid))),
                };
            }
            _ => return Err(distrust(&path, IRREGULAR)),
        }
    }
    Err(failed(&path, "open", rustix::io::Errno::LOOP))
}

/// Returns the user who owns `/`.
fn owner_of_slash() -> Result<u32, Distrust> {
    let slash = Path::new("/");
    let stat = rustix::fs::stat(slash).map_err(|errno| failed(slash, "stat", errno))?;
    Ok(stat.st_uid)
}

fn components(path: &Path) -> VecDeque<OsString> {
    let named =
        |component: &Component<'_>| !matches!(component, Component::RootDir | Component::CurDir);
    path.components().filter(named).map(|component| component.as_os_str().to_owned()).collect()
}

const PASSING: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Trust {
    /// Returns how the last directory is opened. A file may be made in a directory that may not be read.
    fn last(self) -> OFlags {
        let readable = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self == Self::Named { PASSING } else { readable }
    }
}

/// The way along a path.
struct Walk<'a> {
    rule: &'a Rule<'a>,
    /// The owner of `/`, who is root. In a user namespace root's files may show another user ID.
    root: u32,
    at: PathBuf,
    fd: OwnedFd,
    stat: Stat,
}

impl<'a> Walk<'a> {
    /// Opens the directory where the path begins.
    fn begin(path: &Path, rule: &'a Rule<'a>, last: bool) -> Result<Self, Distrust> {
        let slash = Path::new("/");
        let flags = if last { rule.trust.last() } else { PASSING };
        let opened = |at: &Path| {
            let fd = rustix::fs::openat(CWD, at, flags, Mode::empty());
            let fd = fd.map_err(|errno| failed(at, "open", errno))?;
            let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(at, "fstat", errno))?;
            Ok((fd, stat))
        };
        let (fd, stat) = opened(slash)?;
        let mut walk = Self { rule, root: stat.st_uid, at: slash.to_owned(), fd, stat };
        if path.is_absolute() {
            walk.check(last)?;
        } else if rule.trust == Trust::Named {
            (walk.fd, walk.stat) = opened(Path::new("."))?;
            walk.at = PathBuf::new();
        } else {
            return Err(distrust(path, RELATIVE));
        }
        Ok(walk)
    }

    fn trusts(&self, user: u32) -> bool {
        user == 0
            || user == self.rule.user
            || user == self.root && !matches!(self.rule.trust, Trust::Own { .. })
    }

    /// Returns whether others may rename the names in the present directory. A group of root's, or of the user's, does
    /// not count as others.
    fn others_rename(&self) -> bool {
        !self.trusts(self.stat.st_uid) || self.stat.st_mode & 0o1002 == 0o002
    }

    /// Makes the directory of that name, unless it exists.
    fn make(&self, name: &OsStr, mode: u32) -> Result<(), Distrust> {
        match files::make_directory(&self.fd, name, mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            // A directory that exists already is fine, even where none can be made.
            Err(_) if rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
                Ok(())
            }
            Err(errno) => Err(failed(&self.at, "mkdir", errno)),
        }
    }

    fn enter(&mut self, next: OwnedFd, last: bool) -> Result<(), Distrust> {
        self.stat = rustix::fs::fstat(&next).map_err(|errno| failed(&self.at, "fstat", errno))?;
        self.fd = next;
        self.check(last)
    }

    /// Returns where the link of that name leads to, if it may be followed. `errno` says why no directory of that name
    /// could be opened.
    fn link(&self, name: &OsStr, errno: rustix::io::Errno) -> Result<PathBuf, Distrust> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The owner and the text are read from one open link, because another could take its place.
        let link = rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let link = link.map_err(|_gone| failed(&self.at, "open", errno))?;
        let stat = rustix::fs::fstat(&link).map_err(|errno| failed(&self.at, "fstat", errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if matches!(self.rule.trust, Trust::Own { .. }) => {
                Err(distrust(&self.at, LINK))
            }
            FileType::Symlink if !self.trusts(stat.st_uid) => {
                Err(distrust(&self.at, format_args!("{FOREIGN} {}", stat.st_uid)))
            }
            FileType::Symlink if self.others_rename() => Err(distrust(&self.at, MOVABLE)),
            FileType::Symlink => {
                let text = rustix::fs::readlinkat(&link, "", Vec::new());
                let text = text.map_err(|errno| failed(&self.at, "readlink", errno))?;
                Ok(OsString::from_vec(text.into_bytes()).into())
            }
            FileType::Directory => Err(failed(&self.at, "open", errno)),
            _ => Err(distrust(&self.at, FILE)),
        }
    }

    /// Checks the present directory.
    fn check(&self, last: bool) -> Result<(), Distrust> {
        let Stat { st_uid, st_mode, .. } = self.stat;
        if self.rule.trust == Trust::Named {
            return Ok(());
        }
        if !self.trusts(st_uid) {
            return Err(distrust(&self.at, format_args!("{OWNED} {st_uid}")));
        }
        let is_sticky = self.trusts(st_uid) && st_mode & 0o1000 != 0;
        let may_be_others = match self.rule.trust {
            Trust::Own { sticky } => sticky && !last && st_uid == 0 && is_sticky,
            _ => is_sticky || is_mount(&self.fd, &self.stat),
        };
        if st_mode & 0o022 != 0 && !may_be_others {
            let mode = st_mode & 0o7777;
            return Err(distrust(
                &self.at,
                format_args!("is writable by others (mode {mode:04o})"),
            ));
        }
        Ok(())
    }
}

/// Returns whether a directory is the root of a file system.
pub(crate) fn is_mount(fd: &OwnedFd, stat: &Stat) -> bool {
    let above = rustix::fs::statat(fd, "..", AtFlags::empty());
    above.is_ok_and(|above| above.st_dev != stat.st_dev)
}

fn failed(at: &Path, call: &str, errno: rustix::io::Errno) -> Distrust {
    Distrust::of(call, at, errno.into())
}

fn distrust(path: &Path, what: impl fmt::Display) -> Distrust {
    Distrust { path: path.to_owned(), what: what.to_string(), source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_does_not_begin_at_the_root() {
        let rule = Rule { user: 0, trust: Trust::Own { sticky: true }, make: &[] };
        let refused = open(Path::new("proc"), &rule).map(|opened| opened.is_some());
        assert_eq!(refused, Err(distrust(Path::new("proc"), RELATIVE)));
    }

    #[test]
    fn a_defect_has_its_own_fix() {
        let fix = |what: &str, source| Distrust { source, ..distrust(Path::new("/a"), what) }.fix();
        assert_eq!(fix("belongs to user 7", None), "chown root /a");
        assert_eq!(fix("is writable by others (mode 0777)", None), "chmod go-w /a");
        assert_eq!(fix("mkdir", Some(Errno::ACCES)), "run it as root");
        assert_eq!(fix("mkdir", Some(rustix::io::Errno::ROFS.into())), "name another directory");
        assert_eq!(fix(LINK, None), "name another directory");
    }
}
