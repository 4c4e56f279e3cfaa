//! The report that a JVM writes when it crashes.
//!
//! With `-XX:-CreateCoredumpOnCrash` a JVM ends a crash with exit status 1, which is the status of an uncaught exception,
//! too, and it faults in normal work. The file `hs_err_pidPID.log` tells the two apart: `VMError::report_and_die`
//! (hotspot/share/utilities/vmError.cpp) writes it to the path of `-XX:ErrorFile=`, or in the working directory, and
//! in `/tmp` where it cannot.
//!
//! The process decides on these paths, and on how long an answer takes. So the agent looks in a process of its own, which it ends
//! after a second, for a regular file of the process's user, and opens none. All processes of users together have three seconds in a
//! round.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tiexec_remap::workers::apart;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas};

/// The exit status of a JVM that crashed and may not dump core.
pub(crate) const CRASH: i32 = 1;
/// The signal for which such a crash counts: with a core dump, the JVM would end by it.
pub(crate) const SIGNAL: i32 = 6;
/// The longest wait for an answer of one process, or of its file systems.
const LONGEST: Duration = Duration::from_secs(1);
/// The longest wait for all processes of users in one round of the agent.
const LONGEST_OF_USERS: Duration = Duration::from_secs(3);
/// Most bytes of a command line in which the option is looked for.
const COMMAND_LINE: u64 = 1 << 20;
const OPTION: &[u8] = b"-XX:ErrorFile=";

/// The time that the agent waits in one of its rounds. Many processes of users together delay it no longer than a few; the reports
/// of those that come later are not known.
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { left: LONGEST_OF_USERS }
    }

    /// Does the work in a process of its own. `None` if it takes too long, or if no time is left for a user's process.
    fn apart<T: Serialize + DeserializeOwned>(
        &mut self,
        is_of_user: bool,
        work: impl FnOnce() -> T,
    ) -> Option<T> {
        if !is_of_user {
            return apart(LONGEST, work).ok();
        }
        let begun = Instant::now();
        let longest = LONGEST.min(self.left);
        let done = (!longest.is_zero()).then(|| apart(longest, work).ok()).flatten();
        self.left = self.left.saturating_sub(begun.elapsed());
        done
    }
}

/// The places in which one JVM may write its report.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    places: Vec<OsString>,
    user: u32,
    since: SystemTime,
}

impl Report {
    /// As [`of`](Self::of), in a process of its own. Also `None` if that cannot be read in time.
    pub(crate) fn of_apart(pid: Pid, is_of_user: bool, patience: &mut Patience) -> Option<Self> {
        patience.apart(is_of_user, || Self::of(&ProcDir::of(pid).ok()?)).flatten()
    }

    /// `None` for a process that is not a JVM, is gone, or has another root or mount namespace than the agent, as in a
    /// container: its paths lead elsewhere here. The process decides how long this takes.
    pub(crate) fn of(process: &ProcDir) -> Option<Self> {
        if !process.has_our_mounts() || process.link("root").ok()? != b"/" {
            return None;
        }
        let vmas = areas::vmas(process).ok()?;
        if !vmas.iter().any(|vma| vma.path().ends_with(b"/libjvm.so")) {
            return None;
        }
        let status = process.status().ok()?;
        let pid = status.ns_tgid?.to_string();
        let directory = PathBuf::from(OsString::from_vec(process.link("cwd").ok()?));
        let command = process.read_start("cmdline", COMMAND_LINE).unwrap_or_default();
        Some(Self {
            places: places(&command, &directory, &pid),
            user: status.uids?.1,
            since: SystemTime::now(),
        })
    }

    /// Returns whether the report was written since [`of`](Self::of). False if the file systems do not answer.
    pub(crate) fn is_written(&self, is_of_user: bool, patience: &mut Patience) -> bool {
        let is_it = |place: &OsString| {
            std::fs::symlink_metadata(place).is_ok_and(|meta| {
                let is_new = meta.modified().is_ok_and(|written| written >= self.since);
                meta.is_file() && meta.uid() == self.user && is_new
            })
        };
        patience.apart(is_of_user, || self.places.iter().any(is_it)).unwrap_or(false)
    }
}

/// Returns where a JVM with this command line, working directory and PID may write its report.
fn places(command: &[u8], directory: &Path, pid: &str) -> Vec<OsString> {
    let name = format!("hs_err_pid{pid}.log");
    let mut words = command.split(|&byte| byte == 0);
    let chosen = words.rfind(|word| word.starts_with(OPTION)).map(|word| {
        let file = expand(&word[OPTION.len()..], pid);
        directory.join(OsStr::from_bytes(&file))
    });
    let usual = [directory.join(&name), Path::new("/tmp").join(&name)];
    chosen.into_iter().chain(usual).map(PathBuf::into_os_string).collect()
}

/// Puts the PID in the place of `%p`, and `%` in that of `%%`.
fn expand(file: &[u8], pid: &str) -> Vec<u8> {
    let mut expanded = Vec::new();
    let mut bytes = file.iter().peekable();
    while let Some(&byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'%', Some(b'p')) => expanded.extend(pid.as_bytes()),
            (b'%', Some(b'%')) => expanded.push(b'%'),
            _ => {
                expanded.push(byte);
                continue;
            }
        }
        bytes.next();
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_where_the_option_says_or_by_default() {
        let of = |command: &[u8]| places(command, Path::new("/srv/app"), "7");
        let usual = ["/srv/app/hs_err_pid7.log", "/tmp/hs_err_pid7.log"];
        assert_eq!(of(b"java\0-jar\0a.jar\0"), usual);
        for (option, file) in [
            ("/var/log/e.log", "/var/log/e.log"),
            ("logs/%p.log", "/srv/app/logs/7.log"),
            ("/100%%/%p%", "/100%/7%"),
            ("", "/srv/app/"),
        ] {
            // The JVM takes the last one.
            let command = format!("java\0-XX:ErrorFile=/no\0-XX:ErrorFile={option}\0Main\0");
            let [first, rest @ ..] = &*of(command.as_bytes()) else { panic!("no place") };
            assert_eq!(first, file);
            assert_eq!(rest, usual);
        }
    }
}
