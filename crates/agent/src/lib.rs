//! `tiexecd`: a machine whose programs have huge text by rules, and not by anybody's doing.
//!
//! The modules follow the way of the data:
//!
//! - [`rules`]: what the administrator wants, from files.
//! - [`processes`]: one cheap look at a process, which waits for nothing that the process decides.
//! - [`decide`]: a process against the rules and the state: what would be done, and why. Nothing is changed.
//! - [`reconcile`]: all processes against the rules, again and again; events only make it sooner.
//! - `treat`: the work on processes, in a process apart.
//! - `guard`: crashes soon after a switch.
//! - [`speak`]: what the agent tells of itself, and `metrics`: the figures.
//! - [`off`]: the files that keep the agent from beginning anything.
//! - [`nodes`]: the share of nodes on which a rule acts.
//! - `young`: processes that have not run for `min-age`.
//! - [`state`]: the builds in quarantine, over restarts; [`verdicts`]: what canaries have
//!   found; [`canary`]: their files, and what a killed one has left.
//!
//! The agent has one thread, because it forks.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, reason = "names reach people by tiexec_core::escape only")]

pub mod canary;
pub mod decide;
mod events;
pub mod guard;
mod kept;
pub mod machine;
mod measure;
mod metrics;
pub mod nodes;
pub mod off;
pub mod pod_watch;
pub mod pods;
pub mod processes;
pub mod reconcile;
pub mod rules;
pub mod speak;
pub mod state;
mod treat;
pub mod verdicts;
mod young;
