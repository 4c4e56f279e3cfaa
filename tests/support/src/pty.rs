//! A pseudo-terminal: the test types on the master.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

/// Both ends of the terminal. The slave is for the child.
pub struct Pty {
    master: File,
    /// The programs' side.
    pub slave: OwnedFd,
    seen: String,
}

impl Pty {
    /// Opens a pseudo-terminal of 33 rows and 77 columns.
    pub fn new() -> Pty {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a pseudo-terminal");
        unlockpt(&master).expect("its other side may be opened");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("its other side");
        let mut modes = tcgetattr(&slave).expect("the modes of a terminal");
        // Without NOFLSH, Ctrl-C and Ctrl-Z discard output that the program has just written.
        modes.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&slave, OptionalActions::Now, &modes).expect("a terminal takes modes");
        let pty = Pty { master: master.into(), slave, seen: String::new() };
        pty.resize(33, 77);
        pty
    }

    /// The descriptor of the programs' side.
    pub fn slave_fd(&self) -> i32 {
        self.slave.as_raw_fd()
    }

    /// Types keys.
    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Changes the size of the window.
    pub fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).expect("a terminal takes a size");
    }

    /// Returns the screen text that no call has returned yet, without waiting, and forgets it.
    pub fn drain(&mut self) -> String {
        if has_news(&self.master, Duration::from_millis(1)) {
            let mut buf = [0; 4096];
            if let Ok(n) = self.master.read(&mut buf) {
                self.seen.push_str(&String::from_utf8_lossy(&buf[..n]));
            }
        }
        std::mem::take(&mut self.seen)
    }

    /// Reads the screen until the text appears. Returns everything up to the end of the text, and forgets it.
    pub fn wait_for(&mut self, text: &str) -> String {
        read_until(&self.master, &mut self.seen, text)
    }
}

/// Reads until the text appears. Returns everything up to the end of the text, and forgets it. Panics after twenty
/// seconds.
pub fn read_until(mut source: &File, seen: &mut String, text: &str) -> String {
    let until = Instant::now() + super::child::patience(Duration::from_secs(20));
    loop {
        if let Some(at) = seen.find(text) {
            let rest = seen.split_off(at + text.len());
            return std::mem::replace(seen, rest);
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(left > Duration::ZERO, "no {text:?}, only {seen:?}");
        if has_news(source, left) {
            let mut buf = [0; 4096];
            let n =
                source.read(&mut buf).unwrap_or_else(|e| panic!("{e}: no {text:?}, only {seen:?}"));
            assert!(n > 0, "the end: no {text:?}, only {seen:?}");
            seen.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
    }
}

/// Waits until there is input, or the end of the input.
fn has_news(source: &File, wait: Duration) -> bool {
    let wait = wait.try_into().expect("a short time");
    poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&wait)) == Ok(1)
}

/// A pipe whose read end belongs to the test. Both ends are close-on-exec.
pub fn pipe() -> (File, File) {
    let (read, write) = std::io::pipe().expect("a pipe");
    (OwnedFd::from(read).into(), OwnedFd::from(write).into())
}
