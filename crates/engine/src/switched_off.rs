//! The kill switch: a file that turns every launch into a plain exec, and every attach into a refusal.

use tiexec_sys::with_symbols;

/// The file. Nothing overrules it.
pub const FILE: &str = "/etc/tiexec/disabled";

/// Returns whether the kill switch is there, or cannot be ruled out.
pub fn is_switched_off() -> bool {
    why().is_some()
}

/// Returns why everything is off, with the command that ends it; `None` if the kill switch is not there.
pub fn why() -> Option<(String, &'static str)> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::symlink_metadata(FILE) {
        Ok(_) => Some((format!("{FILE} is there"), "rm /etc/tiexec/disabled")),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => None,
        Err(error) => {
            let why = with_symbols(&error.to_string());
            Some((format!("cannot look whether {FILE} is there: {why}"), SEARCHABLE))
        }
    }
}

/// The command that lets all users look into the directory of the configuration.
pub const SEARCHABLE: &str = "chmod a+x /etc/tiexec";
