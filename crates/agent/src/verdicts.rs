//! The findings of canaries: which builds are better with copies of their text, on which processor and kernel.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tiexec_advise::canary::{Finding, Subject};
use tiexec_advise::sequential::Verdict;
use tiexec_core::config::{BackingChoice, EdgePolicy, Edges, Settings};

use crate::fair::surplus;
use crate::state::{Build, now};

/// The version of the files that canaries write.
pub(crate) const VERSION: u32 = 1;
/// Most verdicts that are kept of the machine's services, and as many of all users.
const MOST: usize = 256;
/// The fewest pairs after which a verdict can be known. With fewer pairs, a canary leaves no verdict.
pub const FEWEST_PAIRS: usize = 10;

/// All verdicts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdicts {
    version: u32,
    /// The findings, the oldest first.
    pub findings: Vec<Finding>,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self { version: VERSION, findings: Vec::new() }
    }
}

impl Verdicts {
    /// Adds a finding, which replaces an earlier finding about the same subject.
    pub fn add(&mut self, new: Finding) {
        let is_of_users = new.owner.is_some();
        self.findings.retain(|old| old.subject != new.subject);
        self.findings.push(new);
        let is_like = |one: &Finding| one.owner.is_some() == is_of_users;
        while self.findings.iter().filter(|one| is_like(one)).count() > MOST {
            // The oldest of the user who has the most goes first, and the oldest of the machine.
            let oldest = || self.findings.iter().position(is_like);
            let owners = self.findings.iter().map(|finding| finding.owner);
            let of_most = || surplus(owners).map(|(at, _)| at);
            let at = if is_of_users { of_most() } else { oldest() };
            self.findings.remove(at.unwrap_or(0));
        }
    }

    /// Returns what is known about a build on this machine with these settings of the attach.
    pub(crate) fn standing(&self, build: &Build, settings: &Settings) -> Standing {
        let subject = subject(build, settings);
        // Earlier versions also kept the verdict "undecided" of fewer pairs.
        let counts =
            |finding: &&Finding| finding.subject == subject && finding.pairs >= FEWEST_PAIRS;
        match self.findings.iter().find(counts) {
            Some(Finding { verdict: Verdict::Better, .. }) => Standing::Better,
            Some(Finding { verdict: Verdict::Undecided, when, .. })
                if now().saturating_sub(*when) >= AGAIN.as_secs() =>
            {
                Standing::Unknown
            }
            Some(Finding { verdict, .. }) => Standing::Not(*verdict),
            None => Standing::Unknown,
        }
    }
}

/// The time after which a canary with the verdict "undecided", or one whose time was too short for a verdict, may be
/// repeated.
pub(crate) const AGAIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The verdict that this machine has about a build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A canary found copies to be better.
    Better,
    /// A canary reached this other verdict.
    Not(Verdict),
    /// There is no verdict, or an old undecided one.
    Unknown,
}

/// Returns the settings with which a canary attaches, and a rule that requires a canary. They use a copy, because an
/// attach by page cache cannot be reverted.
#[must_use]
pub fn by_copies(settings: Settings) -> Settings {
    let backing = match settings.backing {
        BackingChoice::Auto => BackingChoice::Image,
        other => other,
    };
    Settings { backing, ..settings }
}

/// Returns the subject of a verdict about a build on this machine with these settings.
pub fn subject(build: &Build, settings: &Settings) -> Subject {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Subject {
        build_id: build.build_id.clone(),
        text: build.text.clone(),
        cpu: cpu_model(),
        kernel,
        backing: by_copies(settings.clone()).backing.to_string(),
        edges: edges(settings.edges),
    }
}

/// Returns the policy for edges in words.
fn edges(policy: EdgePolicy) -> String {
    let threshold = policy.pad_threshold;
    if policy.edges == Edges::Pad && threshold != EdgePolicy::DEFAULT_PAD_THRESHOLD {
        return format!("{} from {threshold}", policy.edges);
    }
    policy.edges.to_string()
}

/// Returns the model of the processor.
pub fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    // On aarch64 `/proc/cpuinfo` has no name of the model, only numbers.
    let numbers = || {
        let (implementer, part) = (field("CPU implementer")?, field("CPU part")?);
        Some(format!("{implementer}/{part}/{}", field("CPU variant").unwrap_or_default()))
    };
    let machine = || rustix::system::uname().machine().to_string_lossy().into_owned();
    field("model name").or_else(numbers).unwrap_or_else(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(text: usize, owner: Option<u32>) -> Finding {
        let text = serde_json::json!({
            "build_id": "none", "text": text.to_string(), "cpu": "c", "kernel": "k", "backing": "image", "edges": "conservative",
            "verdict": "better", "keep_above": 1.0, "ratio": 1.1, "low": 1.0, "high": 1.2, "standard_error": null,
            "pairs": 10, "hosts": 1, "exe": "/x", "machine": "m", "owner": owner, "when": 1,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_new_verdict_stays_however_many_there_are() {
        let mut verdicts = Verdicts::default();
        let has = |verdicts: &Verdicts, text: usize| {
            verdicts.findings.iter().any(|one| one.subject.text == text.to_string())
        };
        (0..2 * MOST).for_each(|text| verdicts.add(finding(text, None)));
        assert!(!has(&verdicts, 0) && has(&verdicts, 2 * MOST - 1));
        verdicts.add(finding(9000, Some(1)));
        verdicts.add(finding(9001, Some(2)));
        assert!(has(&verdicts, 9000) && has(&verdicts, 9001));
        // One user's verdicts leave those of the other and of the machine.
        (10_000..10_000 + 2 * MOST).for_each(|text| verdicts.add(finding(text, Some(1))));
        assert!(has(&verdicts, 9001) && has(&verdicts, 2 * MOST - 1) && !has(&verdicts, 9000));
        assert_eq!(verdicts.findings.len(), 2 * MOST);
    }
}
