//! The progress of long work, on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// The time before the first progress line.
const SILENCE: Duration = Duration::from_millis(500);
/// The pause between two progress lines.
const PACE: Duration = Duration::from_millis(100);

/// A line that is overwritten with each update, and wiped when dropped.
pub(super) struct Progress {
    next: Option<Instant>,
    shown: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let next = stderr().is_terminal().then(|| Instant::now() + SILENCE);
        Self { next, shown: false }
    }
}

impl Progress {
    /// Shows a line, if the pause is over.
    pub(super) fn at(&mut self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + PACE);
        self.shown = true;
        self.write(&line());
    }

    /// Prints an important line if standard error is not a terminal.
    pub(super) fn unless_shown(&self, line: &str) {
        if self.next.is_none() {
            crate::stdio::warn(line);
        }
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
