//! The daily scan: the agent runs `tiexecctl scan` as a child, and keeps the table of the programs that would gain.
//!
//! The scan stops no process and changes nothing. The table outlives the agent, so that `tiexecctl status` has it after a
//! restart, too.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tiexec_remap::workers::time_out_of;
use tiexec_sys::kernel_file;

use super::children::{spawn, tiexecctl};
use super::{Agent, Level};
use crate::kept::{self, Directory};
use crate::state::now;

const NAME: &str = "scan.json";
/// The version of the file's form.
const VERSION: u32 = 1;
/// The time after the agent's start in which it begins no scan, because services start up.
const FIRST: Duration = Duration::from_secs(600);
/// The time between two scans.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// For how long a scan samples.
const SAMPLING: Duration = Duration::from_secs(30);
const LEAST_SAMPLING: Duration = Duration::from_secs(2);
/// The samples per second of each processor. In a virtual machine, where a sample costs 25 µs, this is 0.25 % of the time.
const FREQUENCY: &str = "99";
/// Most programs that are kept. Users decide how many programs there are, and how long their paths.
const MOST: &str = "100";
/// A scan that takes longer is killed.
const PATIENCE: Duration = Duration::from_secs(300);

/// The last scan.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Scanned {
    version: u32,
    /// The end of the scan, in seconds since 1970.
    when: u64,
    /// The output of `tiexecctl scan --json`.
    table: serde_json::Value,
}

/// The daily scan.
#[derive(Debug)]
pub(super) struct Daily {
    last: Scanned,
    due: Instant,
    running: Option<Running>,
}

/// A scan that runs.
#[derive(Debug)]
struct Running {
    child: Child,
    /// The child's standard output.
    answer: File,
    begun: Instant,
}

impl Daily {
    /// Reads the last table from the directory of the state.
    pub(super) fn new(state: &Path) -> Self {
        let read = Directory::open(state).and_then(|it| it.read::<Scanned>(NAME, VERSION));
        // The next scan replaces a file that cannot be read.
        let last = read.unwrap_or_default();
        // The clock may have been set back since.
        let age = now().checked_sub(last.when).map_or(DAY, Duration::from_secs);
        Self { last, due: time_out_of(DAY.saturating_sub(age).max(FIRST)), running: None }
    }

    /// Returns the last scan.
    pub(super) fn last(&self) -> Option<&Scanned> {
        Some(&self.last).filter(|last| last.when > 0)
    }
}

impl Running {
    fn start() -> std::io::Result<Self> {
        let answer = File::from(memfd_create("tiexec:scan", MemfdFlags::CLOEXEC)?);
        let mut command = tiexecctl(Signal::KILL)?;
        let sampling = time_out_of(SAMPLING).saturating_duration_since(Instant::now());
        let sampling = sampling.max(LEAST_SAMPLING).as_secs_f64().ceil();
        command.args([
            "scan",
            "--json",
            "--most",
            MOST,
            "-F",
            FREQUENCY,
            "--duration",
            &format!("{sampling}s"),
        ]);
        command.stdout(answer.try_clone()?);
        let child = spawn(command)?;
        // The scan has a part in the memory limit of the agent's unit. Its death harms nobody.
        let _no_proc = kernel_file::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
        Ok(Self { child, answer, begun: Instant::now() })
    }

    /// Returns the table.
    ///
    /// # Errors
    /// The scan has failed. Its message is in the log already.
    fn table(mut self) -> Result<serde_json::Value, String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(status.to_string());
        }
        let mut text = Vec::new();
        let read = self.answer.rewind();
        let read = read.and_then(|()| self.answer.take(kept::LONGEST).read_to_end(&mut text));
        read.map_err(|error| error.to_string())?;
        serde_json::from_slice(&text).map_err(|error| format!("its answer: {error}"))
    }
}

impl Agent<'_> {
    /// Begins the scan when it is due, and takes its table when it has ended.
    pub(super) fn scan_daily(&mut self) {
        let Some(running) = &mut self.daily.running else { return self.begin_scan() };
        if matches!(running.child.try_wait(), Ok(None)) {
            if running.begun.elapsed() > PATIENCE {
                let _it_has_ended = running.child.kill();
            }
            return;
        }
        let Some(running) = self.daily.running.take() else { return };
        match running.table() {
            Ok(table) => {
                self.daily.last = Scanned { version: VERSION, when: now(), table };
                let kept = Directory::open(&self.state_directory)
                    .and_then(|directory| directory.write(NAME, &self.daily.last));
                self.say_once("scan", Level::Warning, kept.err().unwrap_or_default());
            }
            Err(why) => self.has_no_scan(&why),
        }
    }

    /// Returns whether a scan runs.
    pub(super) fn is_scanning(&self) -> bool {
        self.daily.running.is_some()
    }

    fn begin_scan(&mut self) {
        let is_busy = self.proofs.running.is_some() || self.agenda.aside.is_some();
        if Instant::now() < self.daily.due || self.off.is_some() || is_busy {
            return;
        }
        if self.pressure().is_some() {
            return;
        }
        self.daily.due = time_out_of(DAY);
        match Running::start() {
            Ok(running) => self.daily.running = Some(running),
            Err(error) => self.has_no_scan(&error.to_string()),
        }
    }

    fn has_no_scan(&mut self, why: &str) {
        let text = format!("cannot scan the machine: {why}; fix: tiexecctl scan");
        self.say_once("scan", Level::Warning, text);
    }
}
