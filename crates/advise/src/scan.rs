//! The findings of `tiexecctl scan`, as a page reads them from its JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;

/// A scan of a machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scan {
    /// [`SCHEMA`](tiexec_core::report::SCHEMA).
    pub schema: u32,
    /// `scan`.
    pub kind: String,
    /// How the samples were taken; `None` if there was nothing to sample.
    pub sampling: Option<Sampling>,
    /// Where, when and by which version the samples were taken.
    #[serde(flatten)]
    pub origin: Origin,
    /// True if the host of this machine splits huge pages: each program is measured before a change.
    #[serde(default)]
    pub host_splits: bool,
    /// The programs: the one that saves most is the first.
    pub programs: Vec<Program>,
    /// Samples of other processes, or of processes that began meanwhile.
    #[serde(default)]
    pub other_samples: u64,
    /// Processes that could not be sampled, because the user had too few descriptors or rights.
    #[serde(default)]
    pub not_sampled: usize,
    /// Processes that the user may not examine.
    #[serde(default)]
    pub not_permitted: usize,
    /// Processes that blocked the reader for too long, together with other processes of their users.
    #[serde(default)]
    pub silent: usize,
}

impl Scan {
    /// The value of `kind` in JSON.
    pub const KIND: &'static str = "scan";
}

/// How the samples of a scan were taken.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sampling {
    /// The length of the sampling, in milliseconds.
    pub duration_ms: u64,
    /// Samples taken in user mode.
    pub samples: u64,
    /// Processes that were seen executing.
    pub processes: usize,
    /// Records that were lost.
    #[serde(default)]
    pub lost: u64,
}

/// A program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The systemd unit, where there is one.
    pub unit: Option<String>,
    /// The path of the program.
    pub exe: String,
    /// Its processes.
    pub pids: Vec<i32>,
    /// Bytes of text, of all of its processes.
    pub text_bytes: u64,
    /// Bytes of it on huge pages.
    pub huge_bytes: u64,
    /// The share of one processor that it used in user mode.
    pub cpu: f64,
    /// The share of one processor that it is expected to save; `None` without an estimate.
    pub saves: Option<f64>,
    /// The range of it.
    pub saves_range: Option<[f64; 2]>,
    /// The estimate; `None` if the program was idle, has ended, or could not be looked at in time.
    pub estimate: Option<Estimate>,
}

/// The estimate for a program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The share of the program's time that is saved.
    pub saving: f64,
    /// The way to it, in a word.
    pub way: String,
    /// True if there were too few samples for a verdict: the command to run next samples for longer.
    #[serde(default)]
    pub few_samples: bool,
    /// The huge pages that the way takes, in bytes, by backing.
    pub memory: BTreeMap<String, u64>,
    /// The command to run next.
    pub next: Option<String>,
}
