//! What goes to stderr. A broken stderr is nobody's failure: the program must run.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

static NAME: OnceLock<&str> = OnceLock::new();

/// Makes messages begin with `name` rather than `tiexec`.
pub fn speak_as(name: &'static str) {
    let _said_before = NAME.set(name);
}

/// Writes `tiexec: MESSAGE` and a line end, in one write, so that lines of several processes do not
/// mix.
pub fn warn(message: impl Display) {
    let line = format!("{}: {message}\n", NAME.get().unwrap_or(&"tiexec"));
    let _no_stderr = std::io::stderr().write_all(line.as_bytes());
}
