//! Controls another process: seizes it, makes it run system calls, and lets it go.
//!
//! The one rule: **the tracer may die at any instant, and the tracee then goes on as if it had never been traced.**
//! Every register set that TiExec gives a tracee leads it home by itself ([`session`]). TiExec uses only stops that
//! a tracer's death ends without harm ([`tiexec_sys::ptrace`]).

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, reason = "names reach people by tiexec_core::escape only")]

pub mod absence;
pub mod arch;
mod error;
pub mod executor;
mod failure;
mod fault;
pub mod gadgets;
pub mod handshake;
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
