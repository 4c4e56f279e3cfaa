//! Output to stderr and stdout. A stream that is broken, full or stopped is not an error: the program must run, even if
//! nobody reads our output. The only exception is the product on stdout.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use clap::error::ContextValue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as RawErrno;
use tiexec_core::escape::AsShown;
use tiexec_engine::output::{write_briefly, write_to_the_end};
use tiexec_sys::process::without_write_signals;
use tiexec_sys::{Errno, with_symbols};

use crate::exit;
use crate::fold::{folded_message, width};

static NAME: OnceLock<&str> = OnceLock::new();

/// Makes messages begin with `name` instead of `tiexec`.
pub fn speak_as(name: &'static str) {
    let _said_before = NAME.set(name);
}

/// The number of [`Overwritten`] lines.
static LINES: AtomicUsize = AtomicUsize::new(0);

/// While this lives, a line of progress may be on the terminal, and each output of this process and of its children
/// begins in its place.
#[derive(Debug)]
pub(crate) struct Overwritten(());

impl Overwritten {
    pub(crate) fn new() -> Self {
        LINES.fetch_add(1, Relaxed);
        Self(())
    }
}

impl Drop for Overwritten {
    fn drop(&mut self) {
        LINES.fetch_sub(1, Relaxed);
    }
}

/// The bytes that wipe the line of a terminal.
pub(crate) const WIPE: &str = "\r\x1b[K";

/// Wipes the line of the terminal before an output to `stream`, if progress may be on it.
pub(crate) fn wipe_line(stream: impl AsFd) {
    if LINES.load(Relaxed) > 0 && rustix::termios::isatty(&stream) {
        write_over(stream, WIPE);
    }
}

/// Writes to a terminal that takes the text at once. The user may have stopped it (Ctrl-S); then nothing is written.
pub(crate) fn write_over(stream: impl AsFd, text: &str) {
    let mut ready = [PollFd::new(&stream, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut ready, Some(&now)) == Ok(1) {
        without_write_signals(|| {
            let _nobody_looks = rustix::io::write(&stream, text.as_bytes());
        });
    }
}

/// Writes `tiexec: MESSAGE` and a line end, in one write, so that lines of several processes do not
/// mix.
pub fn warn(message: impl Display) {
    let message = with_symbols(&message.to_string());
    let line = format!("{}: {message}", NAME.get().unwrap_or(&"tiexec"));
    let stderr = std::io::stderr();
    let line = folded_message(&line, width(&stderr));
    wipe_line(&stderr);
    let _nobody_listens = write_briefly(&stderr, &(line + "\n"));
}

/// Returns whether the environment wants colours: `NO_COLOR` is unset or empty (no-color.org), and the terminal has them.
pub(crate) fn wants_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

/// Warns that standard output cannot be written. Warns once, even if more lines are lost.
pub(crate) fn say_unwritten(errno: RawErrno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        let why = Errno::from(errno);
        warn(format_args!(
            "cannot write to standard output: {why}; fix: write the output to another file"
        ));
    }
}

/// Returns the end of a message: the fix, unless the detail before it names a better one.
pub(crate) fn and_fix(detail: &str, fix: Option<impl Display>) -> String {
    let fix = fix.filter(|_| !detail.contains("; fix: "));
    fix.map_or(String::new(), |fix| format!("; fix: {fix}"))
}

/// As [`and_fix`], with the fix for a user who is not root.
pub(crate) fn and_as_root(detail: &str) -> String {
    and_fix(detail, (!rustix::process::geteuid().is_root()).then_some("run it as root"))
}

/// Writes the output of the command-line parser. Returns the exit status: `usage` for a malformed command line,
/// `failed` if help cannot be written.
pub(crate) fn answer(error: clap::Error, usage: u8, failed: u8) -> u8 {
    let malformed = error.use_stderr();
    match say_usage(error) {
        _ if malformed => usage,
        Ok(()) | Err(RawErrno::PIPE) => exit::OK,
        Err(errno) => {
            say_unwritten(errno);
            failed
        }
    }
}

/// Writes the output of the command-line parser: help, or an error.
///
/// # Errors
/// As [`write_briefly`].
pub fn say_usage(mut error: clap::Error) -> Result<(), RawErrno> {
    // Arguments may contain line ends.
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
    if error.use_stderr() {
        write_briefly(std::io::stderr(), &text)
    } else {
        write_to_the_end(&text)
    }
}
