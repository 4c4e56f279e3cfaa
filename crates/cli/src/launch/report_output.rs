//! The output of a launch's report.

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
            let why = Errno::from(errno);
            warn(format_args!(
                "cannot write the report to {name}: {why}; fix: name another file in --report"
            ));
        }
    }
}

/// Opens the destination of the report. The program also runs if the file cannot be opened.
pub(super) fn open_sink(file: &str) -> Option<Sink> {
    if file.is_empty() {
        return Some(Sink::Stderr);
    }
    Output::at(Path::new(file))
        .and_then(|output| output.open())
        .map(|opened| Sink::File(opened, file.shown().to_string()))
        .inspect_err(|why| {
            warn(format_args!(
                "cannot write the report to {}: {why}; fix: name another file in --report",
                file.shown()
            ));
        })
        .ok()
}
