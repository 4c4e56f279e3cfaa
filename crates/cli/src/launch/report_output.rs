//! The output of a launch's report.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use tiexec_core::escape::AsShown;
use tiexec_engine::output::{Output, write_briefly};
use tiexec_sys::Errno;

use crate::fold::{folded, width};
use crate::stdio::warn;

/// The destination of reports.
pub(super) enum Sink {
    Stderr,
    /// A file, and its name for messages.
    File(File, String),
}

impl Sink {
    pub(super) fn write(&self, text: &str) {
        let (written, name) = match self {
            Self::Stderr => {
                let stderr = std::io::stderr();
                (write_briefly(&stderr, &folded(text, width(&stderr))), "standard error")
            }
            Self::File(file, name) => (write_briefly(file, text), name.as_str()),
        };
        if let Err(errno) = written {
            say_not_written(name, &Errno::from(errno));
        }
    }
}

/// Warns that the report is not in the file that `--report` names.
fn say_not_written(name: &str, why: &dyn Display) {
    warn(format_args!(
        "cannot write the report to {name}: {why}; fix: name another file in --report"
    ));
}

/// Opens the destination of the report. The program also runs if the file cannot be opened.
pub(super) fn open_sink(file: &str) -> Option<Sink> {
    if file.is_empty() {
        return Some(Sink::Stderr);
    }
    let name = file.shown().to_string();
    match Output::at(Path::new(file)).and_then(|output| output.open()) {
        Ok(opened) => Some(Sink::File(opened, name)),
        Err(why) => {
            say_not_written(&name, &why);
            None
        }
    }
}
