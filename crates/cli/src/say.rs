//! What goes to stderr and stdout. A stream that is broken, full or stopped is nobody's failure: the
//! program must run, whoever does not read what we say.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tiexec_sys::process::without_write_signals;

static NAME: OnceLock<&str> = OnceLock::new();

/// Makes messages begin with `name` rather than `tiexec`.
pub fn speak_as(name: &'static str) {
    let _said_before = NAME.set(name);
}

/// Writes `tiexec: MESSAGE` and a line end, in one write, so that lines of several processes do not
/// mix.
pub fn warn(message: impl Display) {
    let line = format!("{}: {message}\n", NAME.get().unwrap_or(&"tiexec"));
    let _nobody_listens = write_briefly(std::io::stderr(), line.as_bytes());
}

/// What a pipe that is ready takes without blocking (`PIPE_BUF`).
const READY: usize = 4096;
/// How long a full stream is waited for, in milliseconds.
const PATIENCE_MS: i64 = 100;

/// Writes all of `text`, unless the stream stays full for a tenth of a second, without a signal if
/// it is broken.
///
/// # Errors
/// What write(2) says; EAGAIN for a full stream.
pub fn write_briefly(stream: impl AsFd, text: &[u8]) -> Result<(), Errno> {
    let patience = Timespec { tv_sec: 0, tv_nsec: PATIENCE_MS * 1_000_000 };
    without_write_signals(|| {
        let mut rest = text;
        while !rest.is_empty() {
            // Not by O_NONBLOCK, which the program would share.
            let mut ready = [PollFd::new(&stream, PollFlags::OUT)];
            if poll(&mut ready, Some(&patience))? == 0 {
                return Err(Errno::AGAIN);
            }
            match rustix::io::write(&stream, &rest[..rest.len().min(READY)]) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    })
}
