//! The list of all processes: their names, their use of the processor, and the known facts about their text.
//!
//! Each refresh reads one file of each process, `stat`, and a few more files of a new process or program. No such read
//! takes the lock of the process's memory, so no process can block the reader.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tiexec_core::escape::AsShown;
use tiexec_core::proc::stat;
use tiexec_remap::systemd_units;
use tiexec_sys::procfs::{self, ProcDir};
use tiexec_sys::{Pid, process};

use crate::ctl::status::processes::{Text, TextSum};
use crate::ctl::thread_with_text;

/// The shortest time over which the use of the processor is measured: a clock tick is a hundredth of a second.
const SHORTEST: Duration = Duration::from_millis(250);

/// A program that a process runs: the kernel chooses the place of the stack at each exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Identity {
    /// In clock ticks since boot.
    pub(super) start_time: u64,
    start_stack: u64,
}

impl Identity {
    fn of(summary: &stat::Summary<'_>) -> Self {
        Self { start_time: summary.start_time, start_stack: summary.start_stack }
    }

    /// Reads the identity again; `None` once the process is gone.
    pub(super) fn again(process: &ProcDir) -> Option<Self> {
        let text = process.read("stat").ok()?;
        Some(Self::of(&stat::summary(&text).ok()?))
    }
}

/// The result of the last look at a process's text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Looked {
    /// There was no look yet.
    #[default]
    Never,
    Seen(Text),
    /// This user may not read it.
    Denied,
    /// The process, or another process of its user, blocked the reader.
    Silent,
}

/// A process. All names are escaped for display.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) identity: Identity,
    pub(super) name: String,
    pub(super) exe: String,
    pub(super) unit: String,
    pub(super) uids: Vec<u32>,
    /// Per cent of one processor since the last refresh.
    pub(super) cpu: Option<f64>,
    /// The processor time that was last read, in clock ticks, and when it was read.
    run_time: (u64, Instant),
    /// The size of its address space, in bytes.
    pub(super) size: u64,
    pub(super) looked: Looked,
    /// The time of the last look, and the size of the address space at that time.
    pub(super) when: Option<(Instant, u64)>,
}

impl Process {
    fn new(process: &ProcDir, summary: &stat::Summary<'_>) -> Self {
        let status = process.status().unwrap_or_default();
        Self {
            identity: Identity::of(summary),
            name: summary.name.shown().to_string(),
            exe: process.exe_path().unwrap_or_default().shown().to_string(),
            unit: systemd_units::shown(process).unwrap_or_default().shown().to_string(),
            uids: status.credentials.uids,
            cpu: None,
            run_time: (summary.run_time, Instant::now()),
            size: summary.size,
            looked: Looked::Never,
            when: None,
        }
    }

    /// Measures the use of the processor since the last measurement.
    fn measure(&mut self, run_time: u64, now: Instant) {
        let (before, when) = self.run_time;
        let lasted = now.duration_since(when);
        if lasted < SHORTEST {
            return;
        }
        let ticks = run_time.saturating_sub(before) as f64;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        self.cpu = Some(100.0 * ticks / per_second / lasted.as_secs_f64());
        self.run_time = (run_time, now);
    }

    /// Returns the sums over several processes of one program; `None` without processes. A copy counts once. If the text of
    /// one process is not known, the sum is not known.
    pub(super) fn sum(all: &[&Self]) -> Option<Self> {
        let first = all.first()?;
        let mut text = TextSum::default();
        all.iter().filter_map(|process| process.text()).for_each(|of| text.add(of));
        let unseen = all.iter().find(|process| process.text().is_none());
        Some(Self {
            cpu: all.iter().filter_map(|process| process.cpu).reduce(|sum, cpu| sum + cpu),
            name: format!("{} x{}", first.name, all.len()),
            looked: unseen.map_or_else(|| Looked::Seen(text.into()), |it| it.looked.clone()),
            ..(*first).clone()
        })
    }

    /// Returns the facts about its text, if known.
    pub(super) fn text(&self) -> Option<&Text> {
        match &self.looked {
            Looked::Seen(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the bytes of its text, and the number of huge ones.
    pub(super) fn bytes(&self) -> (u64, u64) {
        self.text().map_or((0, 0), |text| (text.bytes, text.huge.min(text.bytes)))
    }
}

/// Returns the directory and the `stat` of a thread that lives, for a process whose first thread has ended.
fn another_thread(number: i32) -> Option<(ProcDir, Vec<u8>)> {
    let thread = thread_with_text(Pid::from_raw(number)?).ok()?;
    let text = thread.read("stat").ok()?;
    Some((thread, text))
}

/// All processes except this one and the kernel's threads, by their IDs.
#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) all: BTreeMap<i32, Process>,
}

impl Processes {
    /// Reads the list of processes and their use of the processor.
    pub(super) fn refresh(&mut self) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.all);
        let this = process::this().as_raw_nonzero().get();
        procfs::every_stat(|number, text| {
            let Ok(mut summary) = stat::summary(text) else { return };
            if number == this {
                return;
            }
            let mut other = None;
            if summary.size == 0 && stat::state(text).is_ok_and(|state| state == b'Z') {
                other = another_thread(number);
                let of_other = other.as_ref().and_then(|(_, text)| stat::summary(text).ok());
                summary.size = of_other.map_or(0, |other| other.size);
            }
            if summary.size == 0 {
                return;
            }
            let known = before.remove(&number).filter(|it| it.identity == Identity::of(&summary));
            let process = match known {
                None => {
                    let directory = Pid::from_raw(number).and_then(|pid| ProcDir::of(pid).ok());
                    let Some(directory) = other.map(|(other, _)| other).or(directory) else {
                        return;
                    };
                    Process::new(&directory, &summary)
                }
                Some(mut process) => {
                    process.measure(summary.run_time, now);
                    process.size = summary.size;
                    if process.name.as_bytes() != summary.name {
                        process.name = summary.name.shown().to_string();
                    }
                    process
                }
            };
            self.all.insert(number, process);
        });
    }
}
