//! The drop-in of a unit: its text, and the check whether somebody has edited it.
//!
//! The first line has a hash of the rest. TiExec changes or removes only a file whose hash is right.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tiexec_core::escape::AsShown;

/// The file's name, which sorts after the drop-ins of packages and before most drop-ins of the administrator.
const NAME: &str = "50-tiexec.conf";
/// The start of the first line. The hash follows.
const MARK: &str = "# Made by `tiexecctl enable`; an edited file is kept. Hash of the rest: ";

/// The state of a drop-in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// There is no drop-in.
    Missing,
    /// The drop-in has this text, as TiExec wrote it.
    Ours(String),
    /// Somebody else has edited or created the drop-in.
    Edited,
}

/// Returns the path of a unit's drop-in below a directory of units.
pub(super) fn path(units: &Path, unit: &str) -> PathBuf {
    units.join(format!("{unit}.d")).join(NAME)
}

/// Returns the text for a unit that runs these commands.
pub(super) fn text(commands: &[String]) -> String {
    let rest = format!("[Service]\n{}\n", commands.join("\n"));
    format!("{MARK}{}\n{rest}", hash(&rest))
}

fn hash(rest: &str) -> String {
    blake3::hash(rest.as_bytes()).to_hex()[..32].to_owned()
}

/// Reads a drop-in.
///
/// # Errors
/// The drop-in cannot be read.
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

/// Writes a drop-in atomically: systemd reads either the new file or the old one.
///
/// # Errors
/// The drop-in is not written.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Removes a drop-in, and its directory if nothing else is there.
///
/// # Errors
/// The drop-in is not removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    if let Some(directory) = path.parent() {
        let _others_are_there = fs::remove_dir(directory);
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
        let path = path(directory.path(), "x.service");
        assert_eq!(read(&path).unwrap(), State::Missing);
        let text = text(&["ExecStartPost=-true".to_owned()]);
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
