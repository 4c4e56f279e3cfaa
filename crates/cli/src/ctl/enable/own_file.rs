//! The files that `enable` writes for systemd: the check whether somebody has edited one, and words of command lines.
//!
//! The first line has a hash of the rest. TiExec changes or removes only a file whose hash is right.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tiexec_core::escape::AsShown;
use tiexec_remap::files::{self, New};
use tiexec_remap::trusted_directory::{self, Rule, Trust};

/// The name of a drop-in, which sorts after the drop-ins of packages and before most drop-ins of the administrator.
const DROP_IN: &str = "50-tiexec.conf";
/// The start of the first line. The hash follows.
const MARK: &str = "# Made by `tiexecctl enable`; an edited file is kept. Hash of the rest: ";

/// The state of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// There is no file.
    Missing,
    /// The file has this text, as TiExec wrote it.
    Ours(String),
    /// Somebody else has edited or created the file.
    Edited,
}

/// Returns the path of a unit's drop-in below a directory of units.
pub(super) fn drop_in(units: &Path, unit: &str) -> PathBuf {
    units.join(format!("{unit}.d")).join(DROP_IN)
}

/// Returns whether the path is that of a [`drop_in`].
pub(super) fn is_drop_in(path: &Path) -> bool {
    path.ends_with(DROP_IN)
}

/// Puts the line with the hash before the text of a file.
pub(super) fn marked(rest: &str) -> String {
    format!("{MARK}{}\n{rest}", hash(rest))
}

fn hash(rest: &str) -> String {
    blake3::hash(rest.as_bytes()).to_hex()[..32].to_owned()
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<State> {
    let is_file = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Missing),
        metadata => metadata?.is_file(),
    };
    let text = if is_file { fs::read(path)? } else { Vec::new() };
    let ours = String::from_utf8(text).ok().filter(|text| {
        let parts = text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n'));
        parts.is_some_and(|(written, rest)| written == hash(rest))
    });
    Ok(ours.map_or(State::Edited, State::Ours))
}

/// Writes a file atomically: systemd reads either the new file or the old one.
///
/// # Errors
/// The file is not written.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let (directory, name) = split(path)?;
    let directory = open(directory, true)?.ok_or(io::ErrorKind::NotFound)?;
    let mut file = New::beside(&directory, name, 0o644)?;
    file.file().write_all(text.as_bytes())?;
    // The umask may have removed bits of the mode.
    rustix::fs::fchmod(file.file(), Mode::from_raw_mode(0o644))?;
    Ok(file.put_durably(name)?)
}

fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).ok_or_else(|| io::ErrorKind::InvalidFilename.into())
}

/// Opens the directory of a file; `None` if it is missing and not to be made. systemd obeys what lies there.
fn open(directory: &Path, make: bool) -> io::Result<Option<OwnedFd>> {
    let user = rustix::process::geteuid().as_raw();
    let trust = if user == 0 { Trust::Installed } else { Trust::Named };
    let make = vec![0o755; if make { directory.components().count() } else { 0 }];
    let opened = trusted_directory::open(directory, &Rule { user, trust, make: &make })?;
    // Another descriptor, because one that only passes through a directory cannot sync it.
    opened.map(|(fd, _)| Ok(rustix::fs::openat(fd, ".", READ, Mode::empty())?)).transpose()
}

const READ: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// Removes a file or a link, and its directory if that is a unit's `.d` or `.wants` in which nothing else is.
///
/// # Errors
/// The file is not removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let (directory, name) = split(path)?;
    files::remove(open(directory, false)?.ok_or(io::ErrorKind::NotFound)?, name)?;
    let (units, of) = split(directory)?;
    if (of.ends_with(".d") || of.ends_with(".wants"))
        && let Some(units) = open(units, false)?
    {
        let _others_are_there = files::remove_directory(units, of);
    }
    Ok(())
}

/// Writes a word for a command line of systemd (systemd.service(5), "Command lines").
///
/// # Errors
/// The word cannot be written there.
pub(super) fn word(word: &str) -> Result<String, String> {
    if word.chars().any(char::is_control) {
        return Err(format!("{} has a control character", word.shown()));
    }
    let doubled = word.replace('%', "%%").replace('$', "$$");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=,:@%$*".contains(&byte);
    if !doubled.is_empty() && doubled.bytes().all(plain) {
        return Ok(doubled);
    }
    Ok(format!("\"{}\"", doubled.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_the_same_to_systemd() {
        for (given, written) in [
            ("--edges=pad", "--edges=pad"),
            ("", "\"\""),
            ("100%", "100%%"),
            ("$HOME", "$$HOME"),
            ("a b;\"c\\", "\"a b;\\\"c\\\\\""),
        ] {
            assert_eq!(word(given).unwrap(), written, "{given:?}");
        }
        assert!(word("a\nExecStart=b").is_err());
    }

    #[test]
    fn an_edited_file_is_told_from_ours() {
        let directory = tempfile::tempdir().unwrap();
        let path = drop_in(directory.path(), "x.service");
        assert_eq!(read(&path).unwrap(), State::Missing);
        let text = marked("[Service]\nExecStart=-true\n");
        write(&path, &text).unwrap();
        assert_eq!(read(&path).unwrap(), State::Ours(text.clone()));
        for edited in [text.replace("true", "false"), text.clone() + "#\n", text[1..].to_owned()] {
            write(&path, &edited).unwrap();
            assert_eq!(read(&path).unwrap(), State::Edited, "{edited}");
        }
        remove(&path).unwrap();
        assert!(!path.parent().unwrap().exists());
        std::os::unix::fs::symlink("/dev/null", directory.path().join("link")).unwrap();
        assert_eq!(read(&directory.path().join("link")).unwrap(), State::Edited);
    }
}
