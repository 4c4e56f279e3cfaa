//! How far a long piece of work is, on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How long no progress is shown.
const SILENCE: Duration = Duration::from_millis(500);
/// How often something is, then.
const PACE: Duration = Duration::from_millis(100);

/// A line that is written over and over. Wiped when dropped.
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
    /// Shows a line, if it is time.
    pub(super) fn at(&mut self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + PACE);
        self.shown = true;
        self.write(&line());
    }

    /// Says a line that matters, where there is no terminal to show it on.
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
