//! Output to stderr and stdout. A stream that is broken, full or stopped is nobody's failure: the
//! program must run, even if nobody reads our output.

use std::fmt::Display;
use std::sync::OnceLock;

use clap::error::ContextValue;
use tiexec_core::escape::AsShown;
use tiexec_engine::output::write_briefly;
use tiexec_sys::with_symbols;

use crate::fold::{folded_message, width};

static NAME: OnceLock<&str> = OnceLock::new();

/// Makes messages begin with `name` rather than `tiexec`.
pub fn speak_as(name: &'static str) {
    let _said_before = NAME.set(name);
}

/// Writes `tiexec: MESSAGE` and a line end, in one write, so that lines of several processes do not
/// mix.
pub fn warn(message: impl Display) {
    let message = with_symbols(&message.to_string());
    let line = format!("{}: {message}", NAME.get().unwrap_or(&"tiexec"));
    let stderr = std::io::stderr();
    let _nobody_listens = write_briefly(&stderr, &(folded_message(&line, width(&stderr)) + "\n"));
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
