//! The pure half of TiExec: values in, values out.
//!
//! The layout of the crate follows the data. Kernel text is parsed ([`proc`]), file headers become
//! facts ([`elf`]), both make a [`snapshot`], a snapshot and a policy make a [`plan`], and the
//! kernel's state afterwards makes a [`report`]. Nothing here performs I/O or is unsafe, so
//! everything here is tested with captured text and by property.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod addr;
pub mod area;
pub mod budget;
pub mod config;
pub mod coverage;
pub mod dynamic;
pub mod elf;
pub mod escape;
pub mod file_ranges;
pub mod ldcache;
pub mod marks;
pub mod notes;
pub mod numa;
pub mod order;
pub mod pattern;
pub mod perf;
pub mod plan;
mod plan_text;
pub mod pmu_counts;
pub mod proc;
pub mod processor;
pub mod ragged;
pub mod rebase;
pub mod relaid;
pub mod report;
pub mod script;
pub mod seccomp;
pub mod select;
pub mod setting;
pub mod skip;
pub mod smaps;
pub mod snapshot;
pub mod tlb_sweep;
pub mod value;
