//! The parts that all watchers share. A watcher looks at a process more than once: the companion of a launch, `--settle`,
//! `--follow`, `--wait-exec`, the agent, and libtiexec.
//!
//! ```text
//!   due ──► look ──► outcome ──► next due
//! ```
//!
//! - `look`: one look at a process, by its own user if need be, and its outcome.
//! - `retry`: the failures after which a process is tried again.
//! - `copies`: the program in which copies were seen, to notice that somebody reverts it.

mod copies;
mod look;
mod retry;

pub(crate) use copies::Copies;
pub use look::Tell;
pub(crate) use look::{Outcome, has_worked, look, treat};
pub use retry::may_pass;
