//! Controls another process: seizes it, makes it run system calls, and lets it go.
//!
//! The one rule: **the tracer may die at any instant, and the tracee then goes on as if it had never been traced.**
//! Every register set that TiExec gives a tracee leads it home by itself ([`session`]). TiExec uses only stops that
//! a tracer's death ends without harm ([`tiexec_sys::ptrace`]).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod absence;
pub mod arch;
pub mod clock;
pub mod cut_short;
mod error;
pub mod executor;
mod failure;
mod fault;
pub mod gadgets;
pub mod handshake;
mod interrupted;
pub mod ld_so;
pub mod remote;
pub mod running;
pub mod session;
pub mod stopped;
pub mod syscall_manifest;
pub mod target;
mod temporary_mask;
pub mod threads;

pub use error::TraceError;
pub use failure::Failure;
