//! The facts about this machine that stop rules, for all processes.

use tiexec_remap::workers::Aside;
use tiexec_remap::{host_pages, jumps};
use tiexec_sys::{pidfd, thp};

use crate::rules::{Action, Rule};

/// The facts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// True if the kernel reports how a program ended.
    pub has_guard: bool,
    /// True if the host of this machine splits huge pages.
    pub splits: bool,
}

impl Machine {
    /// Returns whether the rule attaches to nothing on this machine, because the host splits huge pages and the rule
    /// does not say what to do about canaries.
    pub fn yields(self, rule: &Rule) -> bool {
        self.splits && rule.action == Action::Attach && !rule.says_canary
    }

    /// Probes the machine, and measures. This takes about 20 ms.
    pub fn look() -> Self {
        let splits = thp::pages().and_then(host_pages::measured);
        Self { has_guard: pidfd::tells_ends() == Ok(true), splits: splits == Some(true) }
    }
}

/// Begins to time the jumps that show the instruction TLB, in a process of its own, which ends at once if the times are recorded
/// already. A rule with `max-huge-pages = "auto"` and the daily scan use them. This takes about a second.
pub(crate) fn time_jumps() -> Option<Aside<()>> {
    let pages = thp::pages()?;
    // Without a record, whoever needs the times measures them again then.
    Aside::start(|_to| drop(jumps::of_machine(pages))).ok()
}
