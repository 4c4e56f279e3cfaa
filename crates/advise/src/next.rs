//! The next step that a report proposes.

use serde::{Deserialize, Serialize};

/// The next step: words, and a whole command where there is one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Next {
    /// The step in words, or the reason for the command.
    pub words: String,
    /// The command, as one types it into a shell.
    pub command: Option<String>,
}

impl Next {
    /// Makes a step without a command.
    pub fn words(words: impl Into<String>) -> Self {
        Self { words: words.into(), command: None }
    }

    /// Makes a step with a command.
    pub fn command(words: impl Into<String>, command: String) -> Self {
        Self { words: words.into(), command: Some(command) }
    }
}
