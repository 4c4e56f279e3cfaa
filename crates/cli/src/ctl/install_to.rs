//! `tiexecctl install-to DIR`: copies the programs out of an image that has no shell and no `cp`.

use std::fs::File;
use std::io::Error;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::Mode;
use tiexec_core::escape::AsShown;
use tiexec_remap::files::New;
use tiexec_remap::trusted_directory::{self, Distrust, Rule, Trust};
use tiexec_sys::Errno;

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
        exit::of_io(error)
    };
    let this = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => return failed(Path::new("tiexecctl"), &error),
    };
    let place = match open(directory) {
        Ok(place) => place,
        Err(distrust) => return refused(directory, &distrust),
    };
    for program in PROGRAMS {
        let from = this.with_file_name(program);
        if let Err(error) = copy(&from, &place, program) {
            return failed(&from, &error);
        }
    }
    exit::OK
}

/// Opens the directory, and makes it if it is missing. Others will execute what lies there, so nobody else may be able
/// to replace it.
fn open(directory: &Path) -> Result<OwnedFd, Distrust> {
    // A relative path begins at the working directory, and so does what others may rename.
    let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let make = vec![MODE; whole.components().count()];
    let user = rustix::process::geteuid().as_raw();
    let rule = Rule { user, trust: Trust::Installed, make: &make };
    let opened = trusted_directory::open(&whole, &rule)?;
    let removed = || Distrust::of("open", &whole, Errno::NOENT);
    opened.map(|(place, _)| place).ok_or_else(removed)
}

/// Reports that the programs cannot be copied there. Returns the exit status.
fn refused(directory: &Path, distrust: &Distrust) -> u8 {
    let Some(errno) = distrust.source else {
        let (directory, fix) = (directory.shown(), distrust.fix());
        warn(format_args!("cannot copy the programs to {directory}: {distrust}; fix: {fix}"));
        return exit::FAILED;
    };
    let verb = if distrust.what == "mkdir" { "create" } else { "open" };
    warn(format_args!("cannot {verb} {}: {errno}", distrust.path.shown()));
    exit::of_io(&Error::from_raw_os_error(errno.0))
}

/// Puts a copy of a program in the place of an older one, so that a running program is not disturbed.
fn copy(from: &Path, place: &OwnedFd, program: &str) -> Result<(), Error> {
    let mut source = File::open(from)?;
    let mut new = New::beside(place, program, MODE)?;
    std::io::copy(&mut source, new.file())?;
    // The umask may have removed bits of the mode.
    rustix::fs::fchmod(new.file(), Mode::from_raw_mode(MODE))?;
    Ok(new.put_durably(program)?)
}
