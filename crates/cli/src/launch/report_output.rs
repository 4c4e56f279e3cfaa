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
    File(File),
}

impl Sink {
    pub(super) fn write(&self, text: &str) {
        let written = match self {
            Self::Stderr => {
                let stderr = std::io::stderr();
                write_briefly(&stderr, &folded(text, width(&stderr)))
            }
            Self::File(file) => write_briefly(file, text),
        };
        if let Err(errno) = written {
            warn(format_args!("cannot write the report: {}", Errno::from(errno)));
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
        .map(Sink::File)
        .inspect_err(|why| warn(format_args!("no report: cannot open {}: {why}", file.shown())))
        .ok()
}
