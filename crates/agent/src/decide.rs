//! The decision about a process and the reason, in a form that commands can show.

use std::time::Duration;

use tiexec_remap::file_state::FileState;
use tiexec_sys::process::ticks;
use tiexec_sys::procfs::ProcDir;

use crate::machine::Machine;
use crate::off::{self, Off};
use crate::processes::Process;
use crate::rules::{Action, Rule, Rules};
use crate::state::{Build, State};
use crate::treat;
use crate::verdicts::{Standing, Verdicts};

/// The reason why the agent does less than the rule says. The names are an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Instead {
    /// Everything is switched off, or the agent is drained.
    Off(Off),
    /// The kernel does not report how a program ended (before Linux 6.15).
    NoCrashGuard,
    /// Builds of this rule have crashed.
    RuleOff,
    /// Builds of several rules have crashed.
    ObserveOnly,
    /// The rule acts on other nodes.
    HeldOut,
    /// The program has run for less than `min-age`.
    TooYoung,
    /// The host of this machine splits huge pages, and the rule does not say what to do about canaries.
    HostSplits,
    /// The process has less text than `min-text`.
    TooSmall,
    /// An annotation of the pod does not go with the rule.
    BadAnnotation,
    /// This build has crashed.
    Quarantined,
    /// The rule requires a canary, and there is no verdict about this build on this machine.
    CanaryRequired,
    /// The rule requires a canary, and the verdict on this machine is not that this build is better.
    NotBetter,
    /// The agent cannot examine the process, for this reason.
    Unseen(String),
}

impl Instead {
    /// Returns its stable name.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Off(off) => off.as_str(),
            Self::NoCrashGuard => "no_crash_guard",
            Self::RuleOff => "rule_off",
            Self::ObserveOnly => "observe_only",
            Self::HeldOut => "held_out",
            Self::TooYoung => "too_young",
            Self::HostSplits => "host_splits",
            Self::TooSmall => "too_small",
            Self::BadAnnotation => "bad_annotation",
            Self::Quarantined => "quarantined",
            Self::CanaryRequired => "canary_required",
            Self::NotBetter => "not_better",
            Self::Unseen(reason) => reason,
        }
    }
}

/// Returns why a rule does nothing at the moment for any process.
pub(crate) fn held_back(rule: &Rule, state: &State, machine: Machine) -> Option<Instead> {
    match rule.action {
        Action::Observe | Action::Never => None,
        action => match (off::now(), action) {
            (Some(off), _) => Some(Instead::Off(off)),
            (None, _) if !rule.nodes.has_this_node(&rule.name) => Some(Instead::HeldOut),
            (None, Action::Attach) if !machine.has_guard => Some(Instead::NoCrashGuard),
            (None, Action::Attach) if state.only_observes() => Some(Instead::ObserveOnly),
            (None, Action::Attach) if state.is_off(&rule.name) => Some(Instead::RuleOff),
            (None, Action::Attach) => machine.yields(rule).then_some(Instead::HostSplits),
            (None, _) => None,
        },
    }
}

/// A decision about one process.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision<'a> {
    /// The rule that matches, if one does.
    pub rule: Option<&'a Rule>,
    /// Why the agent does less than the rule says.
    pub instead: Option<Instead>,
}

/// Examines a process and decides about it.
pub fn decide<'a>(
    process: &ProcDir,
    facts: &Process,
    rules: &'a Rules,
    state: &State,
    verdicts: &Verdicts,
    machine: Machine,
) -> Decision<'a> {
    let Some(rule) = rules.of(facts) else { return Decision { rule: None, instead: None } };
    let instead = || {
        if let Some(instead) = held_back(rule, state, machine) {
            return Some(instead);
        }
        if !rule.action.acts() {
            return None;
        }
        if age(facts) < rule.min_age {
            return Some(Instead::TooYoung);
        }
        let Ok(settings) = rule.settings_for(facts) else { return Some(Instead::BadAnnotation) };
        let looked = match treat::look(process) {
            Ok(looked) => looked,
            Err(reason) => return Some(Instead::Unseen(reason.to_string())),
        };
        if looked.text_bytes < rule.min_text {
            return Some(Instead::TooSmall);
        }
        match looked.build.map(|(_, build)| build) {
            Err(reason) => Some(Instead::Unseen(reason)),
            Ok(build) if state.quarantined(&build, &facts.whose()).is_some() => {
                Some(Instead::Quarantined)
            }
            Ok(build) if rule.waits_for_canary() => match verdicts.standing(&build, &settings) {
                Standing::Better => None,
                Standing::Not(_) => Some(Instead::NotBetter),
                Standing::Unknown => Some(Instead::CanaryRequired),
            },
            Ok(_) => None,
        }
    };
    Decision { rule: Some(rule), instead: instead() }
}

/// Returns the build of a process's program, and the file that was examined. A child process examines the target.
///
/// # Errors
/// The reason why the process could not be examined.
pub fn build_of(process: &ProcDir) -> Result<(FileState, Build), String> {
    let looked = treat::look(process).map_err(|reason| reason.to_string())?;
    looked.build
}

/// Returns for how long the process has run.
pub(crate) fn age(process: &Process) -> Duration {
    let since = process.identity.start_time;
    let now = tiexec_sys::process::ticks_since_boot();
    let per_second = ticks(Duration::from_secs(1)).max(1);
    Duration::from_millis(now.saturating_sub(since).saturating_mul(1000) / per_second)
}
