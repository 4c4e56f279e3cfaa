//! The canary that runs on this machine, for commands that would disturb it.

use std::path::Path;

use tiexec_agent::canary::{Canaries, Runner};
use tiexec_core::escape::AsShown;
use tiexec_engine::locked_target::start_time;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use super::date;

/// Describes a running canary, with the fix.
pub(super) fn in_words(Runner { pid, subject, since, until, .. }: &Runner) -> String {
    let (subject, since, until) = (subject.shown(), date::of(*since), date::of(*until));
    format!(
        "the canary of process {pid} alternates {subject} since {since}; \
         fix: wait for its end, at about {until}"
    )
}

/// Describes the running canary that works on a process, with the fix; `None` if there is none, or if this user may not
/// know of it.
pub(super) fn on(pid: Pid, state_dir: &Path) -> Option<String> {
    let canaries = Canaries::open_existing(state_dir)?;
    let begun = start_time(&ProcDir::of(pid).ok()?)?;
    canaries.runner_on((pid.as_raw_nonzero().get(), begun)).as_ref().map(in_words)
}
