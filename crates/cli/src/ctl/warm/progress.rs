//! How far a long file is, on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use tiexec_core::addr::mib;

/// How long nothing is said.
const SILENCE: Duration = Duration::from_millis(500);
/// How often something is, then.
const PACE: Duration = Duration::from_millis(100);

/// A line that is written over and over. Wiped when dropped.
pub(super) struct Progress {
    file: String,
    total: u64,
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    pub(super) fn new(path: &Path, total: u64) -> Self {
        let next = stderr().is_terminal().then(|| Instant::now() + SILENCE);
        Self { file: path.display().to_string(), total, next, shown: false }
    }

    pub(super) fn at(&mut self, bytes: u64) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + PACE);
        self.shown = true;
        self.write(&format!("{}: {} of {} MiB", self.file, mib(bytes), mib(self.total)));
    }

    fn write(&self, line: &str) {
        let _nobody_looks = write!(stderr(), "\r\x1b[K{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            self.write("");
        }
    }
}
