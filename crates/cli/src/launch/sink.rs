//! Where a launch's report goes.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use tiexec_sys::Errno;

use crate::say::{warn, write_briefly};

/// Where reports go.
pub(super) enum Sink {
    Stderr,
    File(File),
}

impl Sink {
    pub(super) fn write(&self, text: &str) {
        let written = match self {
            Self::Stderr => write_briefly(std::io::stderr(), text.as_bytes()),
            Self::File(file) => write_briefly(file, text.as_bytes()),
        };
        if let Err(errno) = written {
            warn(format_args!("cannot write the report: {}", Errno::from(errno)));
        }
    }
}

/// Opens where the report goes. A file that cannot be opened is no reason not to run the program.
pub(super) fn open_sink(file: &str) -> Option<Sink> {
    if file.is_empty() {
        return Some(Sink::Stderr);
    }
    // Not to wait for the other end of a FIFO.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = File::options();
    options.write(true).create(true).truncate(true).custom_flags(nonblock);
    options
        .open(file)
        .map(Sink::File)
        .inspect_err(|error| warn(format_args!("no report: cannot open {file}: {error}")))
        .ok()
}
