//! Opens directories that no other user can have replaced.
//!
//! Each directory from the root down must belong to root (or, in the user's own part, to the user), be writable by
//! nobody else, and be no symbolic link. In a sticky directory of root's, such as `/tmp`, others may create names,
//! but cannot replace what belongs to the user. If the caller allows it, the path may lead through such a
//! directory.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use tiexec_core::escape::AsShown;
use tiexec_sys::Errno;

/// The requirements on a path.
pub struct Rule<'a> {
    /// The user who may own the directories, besides root.
    pub user: u32,
    /// True if the path may lead through root's sticky directories that others can write to.
    pub sticky: bool,
    /// The modes with which the last components are made if they are missing. The last mode is the last
    /// component's.
    pub make: &'a [u32],
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
    /// Returns the command or action that removes the defect.
    pub fn fix(&self) -> String {
        let path = self.path.shown();
        match (self.source, &*self.what) {
            (Some(Errno::ACCES | Errno::PERM), _) => "run it as root".to_owned(),
            (Some(_), _) | (None, LINK | FILE | RELATIVE) => "name another directory".to_owned(),
            (None, what) if what.starts_with(OWNED) => format!("chown root {path}"),
            (None, _) => format!("chmod go-w {path}"),
        }
    }
}

/// Defects that no change of the directory can remove.
const LINK: &str = "is a symbolic link";
const FILE: &str = "is no directory";
const RELATIVE: &str = "is a relative path";
/// The beginning of the text for a wrong owner.
const OWNED: &str = "belongs to user";

impl Error for Distrust {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|errno| errno as _)
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
/// The path is relative. Otherwise the first directory that another user could have put there, or that cannot be
/// opened or made.
pub fn open(path: &Path, rule: &Rule<'_>) -> Result<Option<(OwnedFd, Stat)>, Distrust> {
    let failed = |at: &Path, call: &str, errno: rustix::io::Errno| Distrust {
        source: Some(errno.into()),
        ..distrust(at, call)
    };
    if !path.is_absolute() {
        return Err(distrust(path, RELATIVE));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let passing = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = PathBuf::from("/");
    let root = rustix::fs::openat(CWD, "/", passing, Mode::empty());
    let mut fd = root.map_err(|errno| failed(&at, "open", errno))?;
    let mut stat = checked(&fd, &at, rule, false)?;
    let components: Vec<&OsStr> = path
        .components()
        .filter(|component| *component != Component::RootDir)
        .map(Component::as_os_str)
        .collect();
    for (index, name) in components.iter().enumerate() {
        at.push(name);
        let behind = components.len() - index - 1;
        if let Some(&mode) = rule.make.iter().rev().nth(behind) {
            let mode = Mode::from_raw_mode(mode);
            match rustix::fs::mkdirat(&fd, *name, mode) {
                // Set the mode, because the umask applies to a new directory.
                Ok(()) => rustix::fs::chmodat(&fd, *name, mode, AtFlags::empty())
                    .map_err(|errno| failed(&at, "chmod", errno))?,
                Err(rustix::io::Errno::EXIST) => {}
                // A directory that exists already is fine, even where none can be made.
                Err(_) if rustix::fs::statat(&fd, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {}
                Err(errno) => return Err(failed(&at, "mkdir", errno)),
            }
        }
        let opened = rustix::fs::openat(
            &fd,
            *name,
            if behind == 0 { flags } else { passing },
            Mode::empty(),
        );
        fd = match opened {
            Ok(next) => next,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => {
                let kind = rustix::fs::statat(&fd, *name, AtFlags::SYMLINK_NOFOLLOW)
                    .map(|stat| FileType::from_raw_mode(stat.st_mode));
                return Err(match kind {
                    Ok(FileType::Symlink) => distrust(&at, LINK),
                    Ok(FileType::Directory) | Err(_) => failed(&at, "open", errno),
                    Ok(_) => distrust(&at, FILE),
                });
            }
        };
        stat = checked(&fd, &at, rule, behind == 0)?;
    }
    Ok(Some((fd, stat)))
}

fn checked(fd: &OwnedFd, at: &Path, rule: &Rule<'_>, last: bool) -> Result<Stat, Distrust> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|errno| Distrust { source: Some(errno.into()), ..distrust(at, "fstat") })?;
    if stat.st_uid != 0 && stat.st_uid != rule.user {
        return Err(distrust(at, format_args!("{OWNED} {}", stat.st_uid)));
    }
    let mode = stat.st_mode & 0o7777;
    let sticky = rule.sticky && !last && stat.st_uid == 0 && mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !sticky {
        return Err(distrust(at, format_args!("is writable by others (mode {mode:04o})")));
    }
    Ok(stat)
}

fn distrust(path: &Path, what: impl fmt::Display) -> Distrust {
    Distrust { path: path.to_owned(), what: what.to_string(), source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_does_not_begin_at_the_root() {
        let rule = Rule { user: 0, sticky: true, make: &[] };
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
