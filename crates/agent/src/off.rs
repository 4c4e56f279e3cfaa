//! The two files that stop the agent from starting work. They change no process that already has huge text.

use std::fs::OpenOptions;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use tiexec_engine::switched_off::{self, is_switched_off};

/// The file of `tiexecctl agent drain`. Only the agent obeys it, and a reboot removes it.
pub const DRAINED: &str = "/run/tiexec/drained";

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

/// Stops the agent from starting work until [`resume`] or the next boot.
///
/// # Errors
/// The file cannot be made: EACCES, EROFS, ENOSPC.
pub fn drain() -> std::io::Result<()> {
    if let Some(directory) = Path::new(DRAINED).parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(DRAINED);
    match file {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// Undoes [`drain`]. Returns whether the drain was in effect.
///
/// # Errors
/// The file cannot be removed: EACCES, EROFS.
pub fn resume() -> std::io::Result<bool> {
    match std::fs::remove_file(DRAINED) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
