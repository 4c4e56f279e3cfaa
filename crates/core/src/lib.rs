//! The pure half of TiExec: values in, values out.
//!
//! The way of the data is the layout of the crate: kernel text is parsed ([`proc`]), file headers
//! become facts ([`elf`]), both make a [`snapshot`], a snapshot and a policy make a [`plan`], and
//! what the kernel says afterwards makes a [`report`]. Nothing here performs I/O or is unsafe, so
//! everything here is tested with captured text and by property.

#![forbid(unsafe_code)]

pub mod addr;
pub mod advice;
pub mod budget;
pub mod compare;
pub mod config;
pub mod coverage;
pub mod dynamic;
pub mod elf;
pub mod heat;
pub mod itlb;
pub mod ldcache;
pub mod numa;
pub mod page;
pub mod parts;
pub mod perf;
pub mod plan;
pub mod proc;
pub mod rebase;
pub mod relaid;
pub mod report;
pub mod samples;
pub mod script;
pub mod seccomp;
pub mod select;
pub mod skip;
pub mod snapshot;
