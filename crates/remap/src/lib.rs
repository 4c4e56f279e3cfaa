//! Carrying out a plan: the backings, and stage → switch → verify.
//!
//! Only this crate changes an address space, and it takes a plan to do so.

#![forbid(unsafe_code)]

pub mod attach;
mod copy;
mod failure;
pub mod headroom;
pub mod image;
pub mod launch;
mod linked;
pub mod mapped;
pub mod numa;
pub mod objects;
pub mod pagecache;
mod program;
mod protection;
mod rebase;
pub mod store;
mod switch;
mod verify;
pub mod warm;

pub use failure::Failure;
