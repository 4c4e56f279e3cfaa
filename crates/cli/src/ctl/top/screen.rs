//! The terminal: the check whether there is one, and its modes.

use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The longest wait. A signal that arrives between the check for signals and the wait, or a new size of the terminal,
/// is noticed after at most this time.
const LOOK: Duration = Duration::from_millis(500);

/// Returns why there can be no screen.
pub(super) fn missing() -> Option<&'static str> {
    if !stdout().is_terminal() {
        Some("standard output is not a terminal")
    } else if !stdin().is_terminal() {
        Some("standard input is not a terminal")
    } else if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        Some("TERM names no terminal with a screen")
    } else {
        None
    }
}

/// The terminal in the modes of a screen. Drop, and a panic, restore its modes.
#[derive(Debug)]
pub(super) struct Screen(pub(super) DefaultTerminal);

impl Screen {
    /// Sets the modes of a screen.
    ///
    /// # Errors
    /// The errors of tcsetattr(3) and write(2).
    pub(super) fn enter() -> std::io::Result<Self> {
        let terminal = ratatui::try_init();
        if terminal.is_err() {
            let _as_it_was = ratatui::try_restore();
        }
        terminal.map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _it_may_be_gone = self.0.show_cursor();
        let _it_may_be_gone = ratatui::try_restore();
    }
}

/// Waits until a key or data from `sources` can be read, a signal arrives, or the time is over. Returns the events of
/// the terminal from poll(2).
pub(super) fn wait(sources: &[BorrowedFd<'_>], time: Duration) -> PollFlags {
    let all = [rustix::stdio::stdin()].into_iter().chain(sources.iter().copied());
    let mut fds: Vec<PollFd<'_>> =
        all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let time = Timespec::try_from(time.min(LOOK)).ok();
    match poll(&mut fds, time.as_ref()) {
        Ok(_) => fds.first().map_or(PollFlags::empty(), PollFd::revents),
        // A signal also ends the wait.
        Err(_) => PollFlags::empty(),
    }
}

/// Returns the columns and rows of the terminal.
pub(super) fn size() -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some((size.ws_col, size.ws_row))
}
