//! The work on programs over time. This crate prints nothing: it returns results, and its callers print
//! them.
//!
//! - [`launch`]: whether a program can gain from a launch, and the helper that works on the program.
//! - [`locked_target`]: one process, opened, locked, and treated once.
//! - [`policy`]: what the settings want done with a program's text.
//! - [`settings`]: the settings that no option gives.
//! - [`output`]: how files and streams are written, for the crates that print.
//! - [`watch`]: the parts that all watchers share; [`times`]: all their times, as a table; [`pauses`]: the pause until the next
//!   look.
//! - [`follow`]: a program's descendants, and what they map later.
//! - [`sampling`] and [`hottest`]: where a program executes, and its hottest huge pages only.
//! - [`identity`]: the program that a process runs, to notice another one in its place.
//! - [`programs`]: the programs that TiExec starts.
//! - [`journal`]: one record for each switch.
//! - [`switched_off`]: the administrator's kill switch.
//! - [`wait_exec`]: the start of a service, until its program runs.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod follow;
pub mod hottest;
pub mod identity;
pub mod journal;
pub mod launch;
pub mod locked_target;
pub mod output;
pub mod pauses;
pub mod policy;
pub mod programs;
pub mod sampling;
pub mod settings;
pub mod switched_off;
pub mod times;
pub mod wait_exec;
pub mod watch;
