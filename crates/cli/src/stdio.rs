//! Output to stderr and stdout. A stream that is broken, full or stopped is nobody's failure: the
//! program must run, even if nobody reads our output.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use clap::error::ContextValue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tiexec_core::escape::{self, AsShown};
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
    let _nobody_listens = write_briefly(std::io::stderr(), &line);
}

/// Writes what the parser of command lines has to say: help, or what is wrong with one.
pub fn say_usage(mut error: clap::Error) {
    // Arguments may hold a line end.
    let given: Vec<_> = error.context().map(|(kind, value)| (kind, value.clone())).collect();
    for (kind, value) in given {
        let shown = match value {
            ContextValue::String(text) => ContextValue::String(text.shown().to_string()),
            ContextValue::Strings(texts) => {
                let texts = texts.iter().map(|text| text.shown().to_string());
                ContextValue::Strings(texts.collect())
            }
            other => other,
        };
        error.insert(kind, shown);
    }
    let text = error.render().to_string();
    let _nobody_listens = if error.use_stderr() {
        write_briefly(std::io::stderr(), &text)
    } else {
        write_briefly(std::io::stdout(), &text)
    };
}

/// The bytes that a pipe that is ready takes without blocking (`PIPE_BUF`).
const READY: usize = 4096;
/// How long a full stream is waited for, in milliseconds.
const PATIENCE_MS: i64 = 100;

/// Writes all of `text`, unless the stream stays full for a tenth of a second, without a signal if
/// it is broken. Names in it should be [escaped](escape); whatever is not does nothing to a terminal either.
///
/// # Errors
/// The error of write(2); EAGAIN for a full stream.
pub fn write_briefly(stream: impl AsFd, text: &str) -> Result<(), Errno> {
    let text = escape::lines(text);
    let text = text.as_bytes();
    let patience = Timespec { tv_sec: 0, tv_nsec: PATIENCE_MS * 1_000_000 };
    without_write_signals(|| {
        let mut rest = text;
        while !rest.is_empty() {
            // O_NONBLOCK will not do, because the program would share it.
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
