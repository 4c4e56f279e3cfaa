//! What this machine does, whatever the process: it holds rules back.

use tiexec_sys::{pidfd, split_pages, thp};

use crate::rules::{Action, Rule};

/// The facts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// True if the kernel tells how a program ends.
    pub has_guard: bool,
    /// True if the host of this machine splits huge pages.
    pub splits: bool,
}

impl Machine {
    /// Returns whether the rule attaches to nothing here because huge pages are split, and it does not say what to do
    /// about canaries.
    pub fn yields(self, rule: &Rule) -> bool {
        self.splits && rule.action == Action::Attach && !rule.says_canary
    }

    /// Looks, and measures: takes about 10 ms.
    pub fn look() -> Self {
        let splits = thp::pages().and_then(split_pages::are_split_here);
        Self { has_guard: pidfd::tells_ends() == Ok(true), splits: splits == Some(true) }
    }
}
