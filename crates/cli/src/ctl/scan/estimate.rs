//! Estimates the gain of a program and its cost, and finds the command for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;

use serde::{Deserialize, Serialize};
use tiexec_advise::advice::{Advice, Sampling};
use tiexec_advise::itlb::{Judgement, Verdict};
use tiexec_advise::samples::Tally;
use tiexec_core::budget::ENOUGH_SAMPLES;
use tiexec_core::escape::in_shell;
use tiexec_engine::sampling::number;
use tiexec_sys::Pid;

use super::group::Group;
use crate::ctl::advise::{self, Machine};
use crate::options::Targets;

/// The busiest processes of a family, which stand for all of them.
const MOST: usize = 16;
/// If this share of a program's time is in huge pages, a program that cannot save more has what it can have.
const MOSTLY: f64 = 0.5;

/// The way to the gain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    Attach,
    /// A start by `tiexec`: an attach would gain less.
    Restart,
    /// The text is on huge pages.
    Done,
    Nothing,
}

impl Way {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Restart => "restart",
            Self::Done => "done",
            Self::Nothing => "nothing",
        }
    }
}

/// The estimate for a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Estimate {
    #[serde(flatten)]
    pub(super) judgement: Judgement,
    pub(super) way: Way,
    /// The samples of the processes that stand for the program.
    pub(super) samples: u64,
    /// True if there were too few samples for a verdict.
    pub(super) few_samples: bool,
    /// The huge pages that the way takes, in bytes, by backing. A copy counts once for all processes of an attach.
    pub(super) memory: BTreeMap<String, u64>,
    /// The command to run next.
    pub(super) next: Option<String>,
}

impl Estimate {
    /// Makes it; `None` if the processes have ended, or execute other programs. Reads files of the processes, which can
    /// block the caller.
    pub(super) fn of(
        group: &Group,
        targets: &Targets,
        tally: &Tally,
        sampling: &Sampling,
        machine: &Machine,
    ) -> Option<Self> {
        let samples = tally.by_process();
        let of = |pid: &Pid| samples.get(&number(*pid)).copied().unwrap_or(0);
        let mut living = group.living();
        living.retain(|pid| of(pid) > 0);
        living.sort_by_key(|pid| Reverse(of(pid)));
        living.truncate(MOST);
        let part = tally.part(&living.iter().map(|&pid| number(pid)).collect::<HashSet<u32>>());
        let sampling = Sampling {
            samples: living.iter().map(of).sum(),
            processes: living.len(),
            ..sampling.clone()
        };
        let name = group.name().to_owned();
        let (advice, recommended) =
            advise::of_samples(&living, targets.clone(), name, part, sampling, machine)?;
        let few_samples = advice.sampling.samples < ENOUGH_SAMPLES;
        let way = way(&advice, recommended.starts);
        let memory = match way {
            Way::Attach | Way::Restart => advise::memory(&recommended, &living, machine.pages),
            Way::Done | Way::Nothing => BTreeMap::new(),
        };
        let of_advise = |more: &[&str]| {
            let words = ["tiexecctl", "advise"].iter().chain(more).map(OsString::from);
            in_shell(words.chain(targets.words()))
        };
        let next = match way {
            Way::Done | Way::Nothing => None,
            _ if few_samples => Some(of_advise(&["--duration", "60s"])),
            // The command line of the program is its owner's matter: `advise` shows the options for `tiexec`.
            Way::Restart => Some(of_advise(&[])),
            Way::Attach => advice.next,
        };
        let samples = advice.sampling.samples;
        Some(Self { judgement: advice.judgement, way, samples, few_samples, memory, next })
    }
}

fn way(advice: &Advice, starts: bool) -> Way {
    let Judgement { verdict, saving, .. } = advice.judgement;
    match verdict {
        Verdict::Done => Way::Done,
        Verdict::WorthIt | Verdict::Maybe if saving > 0.0 => {
            if starts {
                Way::Restart
            } else {
                Way::Attach
            }
        }
        _ if advice.text.on_huge_now >= MOSTLY => Way::Done,
        _ => Way::Nothing,
    }
}
