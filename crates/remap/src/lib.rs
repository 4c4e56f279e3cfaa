//! Carrying out a plan: the backings, and stage → switch → verify.
//!
//! Only this crate changes an address space, and it takes a plan to do so.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, reason = "names reach people by tiexec_core::shown only")]

mod areas;
pub mod attach;
pub mod build_id;
mod copy;
mod credentials;
mod file_facts;
pub mod headroom;
pub mod image;
pub mod images;
pub mod launch;
mod linked;
pub mod lock;
pub mod mapped;
pub mod numa;
pub mod objects;
mod open_mapped;
pub mod order;
pub mod pagecache;
mod program;
mod protection;
mod rebase;
pub mod sources;
pub mod store;
mod switch;
mod target_file;
mod trusted;
pub mod units;
mod verify;
pub mod warm;
mod way_home;
pub mod workers;

pub use open_mapped::open_exe;
pub use tiexec_tracee::Failure;
