//! The facts about this machine that stop rules, for all processes.

use tiexec_remap::host_pages;
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
