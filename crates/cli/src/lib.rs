//! The commands `tiexec` and `tiexecctl`: syntax, settings, and glue around the libraries.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod command_line;
pub mod ctl;
pub mod daemon;
pub mod exit;
mod fold;
mod launch;
mod memory_options;
pub mod options;
mod setting_options;
mod settings;
pub mod stdio;
