//! `libtiexec`: the text of the calling process on huge pages, put there by itself. It is for programs that nobody may trace,
//! and for authors who want huge text without a tool around their program.
//!
//! It is the attach of `tiexec -p`, carried out by a thread of the very process: the same look, plan, backings, switch and
//! report. The functions here are its Rust API, `include/tiexec.h` is its C API, and `LD_PRELOAD=libtiexec.so` needs
//! neither.
//!
//! ```no_run
//! match tiexec_self::attach(&tiexec_self::Settings::default()) {
//!     Ok(report) => println!("{} of {} bytes are huge", report.huge_bytes, report.text_bytes),
//!     Err(why) => eprintln!("text stays on base pages: {why}"),
//! }
//! ```
//!
//! Other threads may execute the very text that is switched, and so may the code here and the allocator. One mremap(2)
//! changes the pages of each part of the text, and everything that can fail is done before it. Between two such calls
//! all text is executable. Nothing of this library stays behind: no thread, no descriptor, no handler.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod abi;
mod calls;
mod outcome;
mod preload;
mod settle;
mod texts;
mod treat;
mod turn;

pub use tiexec_core::config::Settings;
pub use tiexec_core::report::Report;
pub use tiexec_remap::Failure;
pub use tiexec_remap::attach::Reverted;
pub use treat::{attach, report, revert};
