//! The terminal: whether there is one, its modes, and their end.

use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a signal may go unnoticed that comes between the look at it and the wait, and a new size of the terminal.
const LOOK: Duration = Duration::from_millis(500);

/// Returns why there can be no screen.
pub(super) fn missing() -> Option<&'static str> {
    if !stdout().is_terminal() {
        Some("standard output is no terminal")
    } else if !stdin().is_terminal() {
        Some("standard input is no terminal")
    } else if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        Some("TERM names no terminal with a screen")
    } else {
        None
    }
}

/// The terminal in the modes of a screen; it gets its own back when this is dropped, and on a panic.
#[derive(Debug)]
pub(super) struct Screen(pub(super) DefaultTerminal);

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// As tcsetattr(3) and write(2).
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

/// Waits until a key or something from `sources` can be read, a signal has come, or the time is over; returns what poll(2)
/// found of the terminal.
pub(super) fn wait(sources: &[BorrowedFd<'_>], time: Duration) -> PollFlags {
    let all = [rustix::stdio::stdin()].into_iter().chain(sources.iter().copied());
    let mut fds: Vec<PollFd<'_>> =
        all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let time = Timespec::try_from(time.min(LOOK)).ok();
    match poll(&mut fds, time.as_ref()) {
        Ok(_) => fds.first().map_or(PollFlags::empty(), PollFd::revents),
        // A signal ends the wait, too.
        Err(_) => PollFlags::empty(),
    }
}

/// Returns the columns and rows of the terminal.
pub(super) fn size() -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some((size.ws_col, size.ws_row))
}
