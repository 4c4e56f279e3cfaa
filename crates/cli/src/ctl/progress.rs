//! The progress of long work, on a terminal.
//!
//! There is one line on standard error. What a command prints meanwhile takes its place, also if a child process prints
//! it; see [`wipe_line`](crate::stdio::wipe_line).

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use tiexec_sys::Pid;

use crate::fold::columns;
use crate::stdio::{Overwritten, WIPE, write_over};

/// The time before the first progress line.
const SILENCE: Duration = Duration::from_millis(500);
/// The pause between two progress lines.
const PACE: Duration = Duration::from_millis(100);
/// Users wonder about a command that has printed nothing for this time.
const SLOW: Duration = Duration::from_secs(2);
/// The width of a line if the terminal does not tell its own.
const USUAL_WIDTH: usize = 80;

/// A line that is overwritten with each update, and wiped when dropped.
pub(super) struct Progress {
    next: Option<Instant>,
    shown: bool,
    _overwritten: Option<Overwritten>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::unless(false)
    }
}

impl Progress {
    /// Begins without a line. If `quiet`, or if standard error is not a terminal, there never is one.
    pub(super) fn unless(quiet: bool) -> Self {
        let shows = !quiet && stderr().is_terminal();
        let next = shows.then(|| Instant::now() + SILENCE);
        Self { next, shown: false, _overwritten: shows.then(Overwritten::new) }
    }

    /// Shows a line, if the pause is over.
    pub(super) fn at(&mut self, line: impl FnOnce() -> String) {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            self.now(line);
        }
    }

    /// Shows a line at once, because the next work can take long and has no moment for another line.
    pub(super) fn now(&mut self, line: impl FnOnce() -> String) {
        if self.next.is_some() {
            self.next = Some(Instant::now() + PACE);
            self.shown = true;
            self.write(&line());
        }
    }

    /// Prints an important line if standard error is not a terminal.
    pub(super) fn unless_shown(&self, line: &str) {
        if self.next.is_none() {
            crate::stdio::warn(line);
        }
    }

    fn write(&self, line: &str) {
        // A line that fills the last column would take two lines of some terminals.
        let width = columns(stderr()).unwrap_or(USUAL_WIDTH) - 1;
        let line: String = line.chars().take(width).collect();
        write_over(stderr(), &format!("{WIPE}{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            self.write("");
        }
    }
}

/// Prints one line on a terminal if the work takes longer than [`SLOW`]. Another process writes to the same terminal, so no line is
/// overwritten.
pub(super) struct Slow {
    from: Option<Instant>,
}

impl Slow {
    /// The work begins now.
    pub(super) fn begin() -> Self {
        Self { from: stderr().is_terminal().then(|| Instant::now() + SLOW) }
    }

    /// Prints the line, if it is time for it.
    pub(super) fn at(&mut self, line: impl FnOnce() -> String) {
        if self.from.is_some_and(|from| Instant::now() >= from) {
            self.from = None;
            crate::stdio::warn(line());
        }
    }
}

/// Returns the line for work on many objects, with the time that the rest takes at the same pace.
pub(super) fn counted(
    doing: &str,
    done: usize,
    all: usize,
    objects: &str,
    begun: Instant,
) -> String {
    format!("{doing}: {done} of {all} {objects}{}", left(done, all, begun))
}

/// Returns the remaining time in words, after a comma; nothing if it is not known.
pub(super) fn left(done: usize, all: usize, begun: Instant) -> String {
    match u32::try_from(done) {
        Ok(some @ 1..) => {
            let rest = u32::try_from(all.saturating_sub(done)).unwrap_or(u32::MAX);
            format!(", {} s left", (begun.elapsed() / some * rest).as_secs())
        }
        _ => String::new(),
    }
}

/// Returns the processes in words.
pub(super) fn who(pids: &[Pid]) -> String {
    match pids {
        [one] => format!("process {}", one.as_raw_nonzero()),
        all => format!("{} processes", all.len()),
    }
}

/// Returns the line for a sampling of `what`, which began at that time.
pub(super) fn sampling(what: &str, begun: Instant, duration: Duration, samples: u64) -> String {
    let (passed, all) = (begun.elapsed().as_secs(), duration.as_secs_f64().ceil());
    format!("sampling {what}: {passed} of {all} s, {samples} samples")
}
