//! `tiexecd`: the agent that gives the programs of a machine huge text by rules.
//!
//! The modules, in the order in which the data passes through them:
//!
//! - [`rules`]: the administrator's rules, from files.
//! - [`processes`]: the cheap facts about a process. Reading them never waits for anything that the process controls.
//! - [`decide`]: the decision about a process by the rules and the state, and the reason. It changes nothing.
//! - [`reconcile`]: the loop that compares all processes with the rules. Events only make a comparison come sooner.
//! - `treat`: the work on processes, in a child process.
//! - `guard`: crashes soon after a switch.
//! - [`speak`]: the agent's answers to clients, and [`metrics`]: the figures.
//! - [`off`]: the files that stop the agent from starting work.
//! - [`nodes`]: the share of nodes on which a rule acts.
//! - `young`: processes that have not run for `min-age`; `forked`: those of them that were forked and execute nothing.
//! - `launches`: programs that `tiexec` has started and handed over.
//! - [`state`]: the builds in quarantine, which survive a restart; [`verdicts`]: the findings of canaries; [`canary`]:
//!   the files of canaries, and the undo of a killed canary.
//!
//! The agent has one thread, because it forks.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod canary;
pub mod decide;
mod events;
mod fair;
mod forked;
pub mod guard;
mod jvm;
mod kept;
mod launches;
pub mod machine;
mod matching_files;
mod measure;
pub mod metrics;
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
