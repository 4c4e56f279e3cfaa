//! The message that no process matches a selector, with the number of processes searched and near names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tiexec_core::escape::AsShown;
use tiexec_remap::systemd_units;
use tiexec_sys::Errno;
use tiexec_sys::procfs::ProcDir;

use super::select::{self, Executable};
use crate::ctl::systemctl::is_near;

/// Most near names that a message lists.
const NAMES: usize = 3;

/// The processes that were searched.
struct Searched {
    /// The number of processes that could be examined.
    seen: usize,
    /// The number of processes that this user may not examine.
    unseen: usize,
    /// The names of these processes that resemble the wanted name.
    near: BTreeSet<String>,
    /// True if root could find more.
    root_sees_more: bool,
}

impl Default for Searched {
    fn default() -> Self {
        let root_sees_more = !rustix::process::geteuid().is_root();
        Self { seen: 0, unseen: 0, near: BTreeSet::new(), root_sees_more }
    }
}

impl Searched {
    /// Makes the message, with the first fix that applies: a near name, another user, or `otherwise`.
    fn message(&self, object: &str, option: &str, cause: &str, otherwise: &str) -> String {
        let Self { seen, unseen, near, root_sees_more } = self;
        let mut message = format!("cannot find a process {object}: {cause} ({seen} searched");
        if *unseen > 0 {
            message += &format!(", {unseen} could not be looked at");
        }
        let near: Vec<String> =
            near.iter().take(NAMES).map(|name| format!("{option} {}", name.shown())).collect();
        message += "); fix: ";
        message += &match &near[..] {
            [] if *unseen == 0 || !root_sees_more => otherwise.to_owned(),
            [] => "run it as root".to_owned(),
            _ => format!("use {}", near.join(" or ")),
        };
        message
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns the message for a program that no process runs.
pub(super) fn program(path: &Path) -> String {
    let mut searched = Searched::default();
    let name = path.file_name().unwrap_or_default().as_bytes();
    select::every(|_, process| {
        match process.exe_path() {
            Err(error) => searched.unseen += usize::from(error.errno == Errno::ACCES),
            Ok(exe) => {
                searched.seen += 1;
                let exe = Path::new(OsStr::from_bytes(&exe));
                let of = exe.file_name().unwrap_or_default().as_bytes();
                // The path of a process in another mount namespace may name another file here, so the file is compared
                // too.
                if of.starts_with(name) && Executable::at(exe).is_run_by(process) {
                    searched.near.insert(exe.to_string_lossy().into_owned());
                }
            }
        }
        false
    });
    let shown = path.as_os_str().as_bytes().shown().to_string();
    let (cause, otherwise) = match std::fs::metadata(path) {
        Ok(file) if file.is_dir() => {
            // No process can run a directory, so root would find nothing either.
            searched.root_sees_more = false;
            ("it is a directory".to_owned(), "name the file of a program".to_owned())
        }
        Ok(_) if searched.unseen > 0 => {
            let cause = "no process that you may look at runs it".to_owned();
            (cause, format!("start it as `tiexec {shown}`"))
        }
        Ok(_) => ("no process runs this file".to_owned(), format!("start it as `tiexec {shown}`")),
        Err(error) if !is_missing(&error) => (
            format!("cannot look at the file: {}", Errno::from(error)),
            "run it as root".to_owned(),
        ),
        Err(_) if path.components().count() == 1 => {
            let cause =
                format!("there is no file {shown} in this directory, and --exe takes a path");
            (cause, "name the file by its path".to_owned())
        }
        Err(_) => ("there is no such file".to_owned(), "name a file that is there".to_owned()),
    };
    searched.message(&format!("that runs {shown}"), "--exe", &cause, &otherwise)
}

/// Returns the message for a unit without processes. The unit belongs to the system's manager or to a user's.
pub(super) fn unit(name: &str, of_user: bool) -> String {
    let mut searched = Searched::default();
    let mut units = BTreeSet::new();
    select::every(|_, process| {
        searched.seen += 1;
        units.extend(own_unit(process, of_user));
        false
    });
    let (option, list) = match of_user {
        true => ("--user", "systemctl --user list-units --state=running"),
        false => ("--unit", "systemctl list-units --state=running"),
    };
    let fix = if units.is_empty() {
        "name the processes by --exe or by their ids".to_owned()
    } else {
        format!("use {option} with a unit that `{list}` shows")
    };
    let cause = match units.len() {
        0 => "no process here belongs to a unit".to_owned(),
        1 => "all processes belong to another unit".to_owned(),
        count => format!("the processes here belong to {count} other units"),
    };
    searched.near = units.into_iter().filter(|unit| is_near(unit, name)).collect();
    searched.message(&format!("of unit {}", name.shown()), option, &cause, &fix)
}

fn own_unit(process: &ProcDir, of_user: bool) -> Option<String> {
    let units = systemd_units::of(process)?;
    if !of_user {
        return Some(units.system);
    }
    let unit = units.user?.name;
    select::is_of_user_unit(process, &unit).then_some(unit)
}
