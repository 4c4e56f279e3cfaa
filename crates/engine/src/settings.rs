//! The settings that no option gives: the configuration file, `TIEXEC`, and the kill switch.

use std::fs::File;
use std::io::Read;

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use tiexec_core::config::Settings;
use tiexec_core::setting::Malformed;
use tiexec_sys::Errno;
use tiexec_sys::startup::is_secure;

use crate::follow::Patterns;
use crate::switched_off::{self, is_switched_off};

/// Settings for the machine, one `key=value` a line.
pub const CONFIG_FILE: &str = "/etc/tiexec/config";

/// The most bytes that are read of it.
const LONGEST: u64 = 1 << 20;

/// The settings of this machine and this environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineSettings {
    /// The settings. `off` stays set, whatever settings are taken over later.
    pub settings: Settings,
    /// The sources with invalid parts, and these parts.
    pub malformed: Vec<(&'static str, Vec<Malformed>)>,
    /// Why the configuration file cannot be read, in one line. The file may say off, so `off` is set.
    pub unread: Option<String>,
}

impl MachineSettings {
    /// Reads the settings. A file that does not exist has no settings.
    pub fn read() -> Self {
        let mut settings = Settings::default();
        let (file, unread) = match config_file() {
            Ok(file) => (file, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let of_file =
            with_patterns(&mut settings, |all| all.take_file(&String::from_utf8_lossy(&file)));
        // A program that runs with more privilege than its user must not obey its user's environment.
        let environment = std::env::var_os("TIEXEC").filter(|_| !is_secure()).unwrap_or_default();
        let of_environment = with_patterns(&mut settings, |all| {
            all.take_environment(&environment.to_string_lossy())
        });
        // The administrator's kill switch: nothing overrules it.
        settings.off |= is_switched_off() || unread.is_some();
        let mut malformed = vec![("TIEXEC", of_environment), (CONFIG_FILE, of_file)];
        malformed.retain(|(_, parts)| !parts.is_empty());
        Self { settings, malformed, unread }
    }

    /// Returns a line for each source with invalid parts, and a line for a file that cannot be read.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        let malformed = self.malformed.iter().map(|(source, parts)| {
            let list: Vec<String> = parts.iter().map(ToString::to_string).collect();
            format!("{source} ignored in part: {}", list.join("; "))
        });
        self.unread.iter().cloned().chain(malformed)
    }
}

/// Takes over a source, and drops its invalid patterns. If no pattern of a list is left, the list of the weaker source
/// stays in force. Returns the invalid parts.
///
/// An empty list `only` selects every program. If only invalid patterns are left, the list therefore keeps them, and
/// [`Patterns::new`] fails: nothing is followed, and a preloaded library leaves the program alone.
fn with_patterns(
    settings: &mut Settings,
    take: impl FnOnce(&mut Settings) -> Vec<Malformed>,
) -> Vec<Malformed> {
    let (only, except) = (settings.only.clone(), settings.except.clone());
    let mut malformed = take(settings);
    let lists = [("only", &mut settings.only, only), ("except", &mut settings.except, except)];
    for (key, list, weaker) in lists {
        // This source has no such list.
        if *list == weaker {
            continue;
        }
        let all = list.clone();
        list.retain(|pattern| match Patterns::new(std::slice::from_ref(pattern), &[]) {
            Ok(_is_one) => true,
            Err(problem) => {
                malformed.push(Malformed { item: format!("{key}={pattern}"), problem });
                false
            }
        });
        if list.is_empty() && !all.is_empty() {
            *list = if key == "only" && weaker.is_empty() { all } else { weaker };
        }
    }
    malformed
}

/// Reads the configuration file. A file that does not exist counts as empty.
///
/// # Errors
/// The reason why it cannot be read, in one line.
pub fn config_file() -> Result<Vec<u8>, String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let says = |errno: rustix::io::Errno, fix: &str| {
        format!("cannot read {CONFIG_FILE}: {}; fix: {fix}", Errno::from(errno))
    };
    let failed = |errno, fix: &str| says(errno, &format!("{fix} {CONFIG_FILE}"));
    // openat(2), as for every other file: libtiexec reads this file before it tests which calls a seccomp
    // filter kills for.
    let file = match openat(CWD, CONFIG_FILE, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(Vec::new()),
        Err(errno @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
            return Err(failed(errno, "raise the limit on open files (ulimit -n), for"));
        }
        // The file may not even be there.
        Err(errno) if std::fs::symlink_metadata(CONFIG_FILE).is_err() => {
            return Err(says(errno, switched_off::SEARCHABLE));
        }
        Err(errno) => return Err(failed(errno, "chmod a+r")),
    };
    let kind = rustix::fs::fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match kind {
        Ok(FileType::RegularFile) => {}
        Ok(FileType::Directory) => return Err(failed(rustix::io::Errno::ISDIR, "rmdir")),
        // Another kind of file, such as /dev/null, with which a container hides a file.
        _ => return Ok(Vec::new()),
    }
    let mut text = Vec::new();
    let read = File::from(file).take(LONGEST).read_to_end(&mut text);
    let errno = |error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
    read.map(|_| text).map_err(|error| failed(errno(error), "cat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_pattern_is_reported_and_ignored() {
        let mut settings = Settings::default();
        let file = "only=cc1\nexcept=[\n";
        let malformed = with_patterns(&mut settings, |all| all.take_file(file));
        assert_eq!(malformed.len(), 1, "{malformed:?}");
        assert!(malformed[0].to_string().starts_with("\"except=[\": \"[\" is not a pattern: "));
        let malformed = with_patterns(&mut settings, |all| {
            all.take_environment("only=[,except=a*,except=[z,backing=foo")
        });
        let items: Vec<&str> = malformed.iter().map(|bad| bad.item.as_str()).collect();
        assert_eq!(items, ["backing=foo", "only=[", "except=[z"]);
        assert_eq!(settings.only, ["cc1"], "the list of the file stays in force");
        assert_eq!(settings.except, ["a*"]);
        let mut settings = Settings::default();
        let malformed = with_patterns(&mut settings, |all| all.take_environment("only=["));
        assert_eq!(malformed.len(), 1, "{malformed:?}");
        assert!(Patterns::new(&settings.only, &settings.except).is_err(), "it selects no program");
        let malformed = with_patterns(&mut settings, |all| all.take_environment("verbose"));
        assert!(malformed.is_empty(), "each pattern is reported once: {malformed:?}");
    }
}
