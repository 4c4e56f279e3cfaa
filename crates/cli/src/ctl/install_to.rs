//! `tiexecctl install-to DIR`: copies the programs out of an image that has no shell and no `cp`.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tiexec_core::escape::AsShown;

use crate::exit;
use crate::stdio::warn;

/// The programs, which lie in one directory.
const PROGRAMS: [&str; 2] = ["tiexec", "tiexecctl"];
/// The mode of the copies: all users may execute them.
const MODE: u32 = 0o755;

/// Copies the programs into the directory, and makes the directory if it is missing. Returns the exit status.
pub(super) fn run(directory: &Path) -> u8 {
    let failed = |what: &Path, error: &Error| {
        let what = what.shown();
        warn(format_args!("cannot copy {what} to {}: {error}", directory.shown()));
        status(error)
    };
    let this = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => return failed(Path::new("tiexecctl"), &error),
    };
    if let Err(error) = std::fs::create_dir_all(directory) {
        let directory = directory.shown();
        if error.kind() == ErrorKind::AlreadyExists {
            warn(format_args!(
                "cannot copy the programs to {directory}: it is no directory; fix: name a directory"
            ));
        } else {
            warn(format_args!("cannot create {directory}: {error}"));
        }
        return status(&error);
    }
    for program in PROGRAMS {
        let from = this.with_file_name(program);
        if let Err(error) = copy(&from, &directory.join(program)) {
            return failed(&from, &error);
        }
    }
    exit::OK
}

/// Returns the exit status for an error.
fn status(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
        _ => exit::FAILED,
    }
}

/// Copies a program to a temporary name and renames it, so that a running program is not disturbed.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let new = to.with_file_name(format!(".tiexec-{}", std::process::id()));
    let copied = || {
        let mut target = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
        std::io::copy(&mut File::open(from)?, &mut target)?;
        // The umask may have removed bits of the mode.
        target.set_permissions(std::fs::Permissions::from_mode(MODE))?;
        drop(target);
        std::fs::rename(&new, to)
    };
    copied().inspect_err(|_| {
        let _was_not_made = std::fs::remove_file(&new);
    })
}
