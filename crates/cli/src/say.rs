//! What goes to stderr. A broken stderr is nobody's failure: the program must run.

use std::fmt::Display;
use std::io::Write;

/// Writes `tiexec: MESSAGE` and a line end, in one write, so that lines of several processes do not
/// mix.
pub fn warn(message: impl Display) {
    let line = format!("tiexec: {message}\n");
    let _no_stderr = std::io::stderr().write_all(line.as_bytes());
}
