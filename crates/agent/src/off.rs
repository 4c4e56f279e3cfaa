//! The two files that stop the agent from starting work. They change no process that already has huge text.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use tiexec_engine::switched_off::{self, is_switched_off};
use tiexec_remap::files;
use tiexec_remap::trusted_directory::{self, Rule, Trust};

/// The file of `tiexecctl agent drain`. Only the agent obeys it, and a reboot removes it.
pub const DRAINED: &str = "/run/tiexec/drained";
const DIRECTORY: &str = "/run/tiexec";
const NAME: &str = "drained";

/// The reason why the agent starts no work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Off {
    /// The administrator switched everything off.
    Disabled,
    /// `tiexecctl agent drain` is in effect.
    Drained,
}

impl Off {
    /// Returns its stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Drained => "drained",
        }
    }

    /// Returns the file that sets this state.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Disabled => switched_off::FILE,
            Self::Drained => DRAINED,
        }
    }
}

/// Returns why the agent starts no work, if one of the files exists or its absence cannot be proved.
pub fn now() -> Option<Off> {
    if is_switched_off() { Some(Off::Disabled) } else { is_drained().then_some(Off::Drained) }
}

fn is_drained() -> bool {
    match std::fs::symlink_metadata(DRAINED) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
    }
}

/// Opens the directory of [`DRAINED`]; `None` if it is missing and not to be made.
fn directory(make: &[u32]) -> std::io::Result<Option<OwnedFd>> {
    let rule = Rule { user: 0, trust: Trust::Own { sticky: true }, make };
    Ok(trusted_directory::open(Path::new(DIRECTORY), &rule)?.map(|(directory, _)| directory))
}

/// Stops the agent from starting work until [`resume`] or the next boot.
///
/// # Errors
/// The file cannot be made: EACCES, EROFS, ENOSPC; or another user could have replaced its directory.
pub fn drain() -> std::io::Result<()> {
    let directory = directory(&[0o755])?.ok_or(NotFound)?;
    match files::create(directory, NAME, 0o644) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Undoes [`drain`]. Returns whether the drain was in effect.
///
/// # Errors
/// The file cannot be removed: EACCES, EROFS; or another user could have replaced its directory.
pub fn resume() -> std::io::Result<bool> {
    let Some(directory) = directory(&[])? else { return Ok(false) };
    match files::remove(directory, NAME) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
