//! Carries out a plan: the backings, and stage → switch → verify.
//!
//! Only this crate changes an address space, and it takes a plan to do so.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod attach;
pub mod build_id;
mod credentials;
mod elf_file;
mod evict;
mod file_facts;
pub mod file_state;
mod file_systems;
pub mod files;
pub mod headroom;
pub mod host_pages;
pub mod image;
pub mod images;
pub mod jumps;
pub mod launch;
pub mod lock;
pub mod mapped;
pub mod numa_placement;
pub mod objects;
mod open_mapped;
pub mod pagecache;
pub mod policy;
mod protection;
pub mod record;
pub mod records;
pub mod restart;
mod runtime_directory;
pub mod sources;
pub mod store;
pub mod switch;
pub mod systemd_units;
mod target_file;
pub mod trusted_directory;
mod users;
pub mod verify;
pub mod warm;
pub mod workers;

pub use open_mapped::open_exe;
pub use tiexec_tracee::Failure;
