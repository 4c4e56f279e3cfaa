//! The commands `tiexec` and `tiexecctl`: syntax, settings, and glue around the libraries.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, reason = "names reach people by tiexec_core::shown only")]

pub mod ctl;
pub mod exit;
mod follow;
mod hottest;
pub mod image_file;
pub mod launch;
mod memory;
pub mod options;
mod output;
mod sampling;
pub mod say;
