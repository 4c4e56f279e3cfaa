//! A pseudo-terminal: the test types on the master.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Both ends; the slave is for the child.
pub struct Pty {
    master: File,
    /// The side that programs have.
    pub slave: OwnedFd,
    seen: String,
}

impl Pty {
    /// Opens one of 33 rows and 77 columns.
    pub fn new() -> Pty {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two descriptors are written to live integers, the size is read from a live struct.
        let ret = unsafe {
            libc::openpty(
                &mut master,
                &mut slave,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &size,
            )
        };
        assert_eq!(ret, 0, "openpty: {}", std::io::Error::last_os_error());
        for fd in [master, slave] {
            // SAFETY: an own descriptor; no other test's child may inherit it.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        // SAFETY: an all-zero termios is a valid object to overwrite.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, the struct live.
        assert_eq!(unsafe { libc::tcgetattr(slave, &mut modes) }, 0);
        // Without it Ctrl-C and Ctrl-Z throw away what the program has just written.
        modes.c_lflag |= libc::NOFLSH;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::tcsetattr(slave, libc::TCSANOW, &modes) }, 0);
        // SAFETY: openpty made this descriptor, and nothing else owns it.
        let master = unsafe { File::from_raw_fd(master) };
        // SAFETY: as above.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        Pty { master, slave, seen: String::new() }
    }

    /// The number of the programs' side.
    pub fn slave_fd(&self) -> i32 {
        self.slave.as_raw_fd()
    }

    /// Types.
    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Changes the size of the window.
    pub fn resize(&self, rows: u16, cols: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the ioctl reads one live winsize.
        let ret = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(ret, 0);
    }

    /// Returns the text on the screen that was not waited for yet, without waiting; forgets it.
    pub fn drain(&mut self) -> String {
        let mut poll =
            libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        if unsafe { libc::poll(&mut poll, 1, 1) } == 1 && poll.revents & libc::POLLIN != 0 {
            let mut buf = [0; 4096];
            if let Ok(n) = self.master.read(&mut buf) {
                self.seen.push_str(&String::from_utf8_lossy(&buf[..n]));
            }
        }
        std::mem::take(&mut self.seen)
    }

    /// Reads the screen until the text has come; returns everything up to its end and forgets it.
    pub fn wait_for(&mut self, text: &str) -> String {
        read_until(&self.master, &mut self.seen, text)
    }
}

/// Reads until the text has come; returns everything up to its end and forgets it. Panics after twenty seconds.
pub fn read_until(mut source: &File, seen: &mut String, text: &str) -> String {
    let until = Instant::now() + super::child::patience(Duration::from_secs(20));
    loop {
        if let Some(at) = seen.find(text) {
            let rest = seen.split_off(at + text.len());
            return std::mem::replace(seen, rest);
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(left > Duration::ZERO, "no {text:?}, only {seen:?}");
        let mut poll = libc::pollfd { fd: source.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        if unsafe { libc::poll(&mut poll, 1, left.as_millis() as i32) } == 1 {
            let mut buf = [0; 4096];
            let n =
                source.read(&mut buf).unwrap_or_else(|e| panic!("{e}: no {text:?}, only {seen:?}"));
            assert!(n > 0, "the end: no {text:?}, only {seen:?}");
            seen.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
    }
}

/// A pipe whose read end is the test's, closed on exec at both ends.
pub fn pipe() -> (File, File) {
    let mut fds = [0; 2];
    // SAFETY: two descriptors are written to a live array.
    let ret = unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(ret, 0);
    // SAFETY: pipe2 made this descriptor, and nothing else owns it.
    let read = unsafe { File::from_raw_fd(fds[0]) };
    // SAFETY: as above.
    let write = unsafe { File::from_raw_fd(fds[1]) };
    (read, write)
}
