//! `tiexecctl scan`: finds which services and programs of the machine would gain from huge pages.
//!
//! One sampling covers all processes at once. It stops no process and changes nothing. The estimate for a program is that
//! of `advise`.

mod estimate;
mod group;
mod table;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde::Serialize;
use tiexec_advise::advice;
use tiexec_advise::origin::Origin;
use tiexec_advise::samples::Tally;
use tiexec_core::escape;
use tiexec_core::proc::stat;
use tiexec_core::report::SCHEMA;
use tiexec_engine::sampling::{Sampling, number};
use tiexec_remap::workers;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, interrupt};
use tiexec_tracee::clock;

use super::advise::{self, Machine, clock_in_words};
use super::progress::{self, Progress};
use super::status::processes::All;
use super::{numbers_agree, origin, pages, print};
use crate::exit;
use crate::options;

use self::estimate::Estimate;
use self::group::Group;

/// The time limit for the estimates of all programs. A program whose turn does not come has none.
const LONGEST: Duration = Duration::from_secs(30);
/// The time limit for the estimate of one program.
const PATIENCE: Duration = Duration::from_secs(10);
/// A program that uses less of one processor than this is idle: nothing that it can save is noticed.
const IDLE: f64 = 0.005;

/// The result of a scan.
#[derive(Debug, Serialize)]
struct Found {
    schema: u32,
    kind: &'static str,
    /// Where, when and by which version the samples were taken.
    #[serde(flatten)]
    origin: Origin,
    /// How the samples were taken; `None` if there was nothing to sample.
    sampling: Option<advice::Sampling>,
    /// The samples of other processes: those that began meanwhile, that have less text, or that this user may not look at.
    other_samples: u64,
    /// True if the host of this machine splits huge pages.
    host_splits: bool,
    /// The programs with text of a huge page: the one that saves most is the first.
    programs: Vec<Row>,
    /// The number of processes that could not be sampled, because the user has too few descriptors or rights.
    not_sampled: usize,
    /// As `status` counts them.
    not_permitted: usize,
    silent: usize,
}

/// A program.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    group: Group,
    /// Its samples, and the share of one processor that it used in user mode.
    samples: u64,
    cpu: f64,
    /// The number of its processes that were not sampled: it may have used more.
    not_sampled: usize,
    /// The shares of one processor that it is expected to save, and their range; `None` without an estimate.
    saves: Option<f64>,
    saves_range: Option<[f64; 2]>,
    /// `None` if the program was idle, has ended, or could not be looked at in time.
    estimate: Option<Estimate>,
}

impl Row {
    fn new(
        group: Group,
        samples: u64,
        cpu: f64,
        not_sampled: usize,
        estimate: Option<Estimate>,
    ) -> Self {
        let judgement = estimate.as_ref().map(|of| &of.judgement);
        Self {
            samples,
            cpu,
            not_sampled,
            saves: judgement.map(|of| of.saving * cpu),
            saves_range: judgement.map(|of| of.saving_range.map(|end| end * cpu)),
            group,
            estimate,
        }
    }

    /// Returns whether the program was sampled, and used next to no processor time.
    fn is_idle(&self) -> bool {
        self.cpu < IDLE && self.not_sampled == 0
    }

    /// Returns the processor time that can be saved: the programs that save most are the first. Below 0 if nothing can
    /// be done.
    fn rank(&self) -> f64 {
        if self.gains() { self.saves.unwrap_or(0.0) } else { -1.0 }
    }

    /// Returns whether the program may gain by something that can be done.
    fn gains(&self) -> bool {
        self.estimate.as_ref().is_some_and(|of| of.next.is_some())
    }
}

/// Runs `scan`; returns the exit status.
pub(super) fn run(options: options::Scan) -> u8 {
    let pages = match numbers_agree("scan", "the processes").and_then(|()| pages("scan")) {
        Ok(pages) => pages,
        Err(status) => return status,
    };
    let mut progress = Progress::default();
    let all = All::look(|count| progress.at(|| format!("looking at text: {count} processes")));
    let groups = Group::all(&all.seen, pages.pmd.bytes());
    let mut found = Found {
        schema: SCHEMA,
        kind: tiexec_advise::scan::Scan::KIND,
        origin: origin(),
        sampling: None,
        other_samples: 0,
        host_splits: false,
        programs: Vec::new(),
        not_sampled: 0,
        not_permitted: all.denied,
        silent: all.silent,
    };
    if !groups.is_empty()
        && let Err(status) = found.sample(groups, options, pages, &mut progress)
    {
        return status;
    }
    drop(progress);
    if let Some(most) = options.most {
        found.programs.retain(|row| row.estimate.is_some());
        found.programs.truncate(most);
    }
    let text = if options.json { escape::json(&found) + "\n" } else { found.to_string() };
    match print(&text) {
        exit::OK if all.denied > 0 && all.seen.is_empty() => exit::NOT_PERMITTED,
        status => status,
    }
}

impl Found {
    /// Samples the programs, and estimates what each would gain.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    fn sample(
        &mut self,
        groups: Vec<Group>,
        options: options::Scan,
        pages: tiexec_core::addr::Pages,
        progress: &mut Progress,
    ) -> Result<(), u8> {
        let options::Scan { duration, frequency, .. } = options;
        let pids = busiest_first(groups.iter().flat_map(Group::pids));
        let (mut sampling, sampled) = Sampling::of_all(&pids, frequency, pages.base)
            .map_err(|error| advise::not_sampled("the processes", error))?;
        self.not_sampled = pids.len() - sampled.len();
        let sampled: HashSet<Pid> = sampled.into_iter().collect();
        // Ctrl-C ends the sampling early. The table has the samples until then.
        interrupt::catch();
        let (begun, samples) = (Instant::now(), Cell::new(0));
        let over = || {
            let what = format!("{} processes", sampled.len());
            progress.at(|| progress::sampling(&what, begun, duration, samples.get()));
            interrupt::asked()
        };
        let count = |tally: &Tally| samples.set(tally.by_process().values().sum::<u64>());
        let done = sampling.until(begun.checked_add(duration), over, count);
        done.map_err(|error| advise::not_sampled("the processes", error))?;
        let lasted = begun.elapsed();
        // A second signal ends the estimates.
        interrupt::take();
        self.other_samples = sampling.others();
        let of_samples = clock_in_words(sampling.clock());
        let tally = sampling.end();
        let by_process = tally.by_process();
        let of = |group: &Group| -> u64 {
            group.pids().filter_map(|pid| by_process.get(&number(pid))).sum()
        };
        let sampling = advice::Sampling {
            clock: of_samples,
            frequency,
            duration_ms: u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX),
            samples: by_process.values().sum(),
            lost: tally.lost(),
            processes: by_process.len(),
        };
        // The measurement follows the sampling, so that it disturbs no sampled process.
        let machine = Machine::look(pages);
        self.host_splits = machine.time.split;
        let mut groups: Vec<(u64, Group)> =
            groups.into_iter().map(|group| (of(&group), group)).collect();
        groups.sort_by_key(|(samples, _)| Reverse(*samples));
        let targets: Vec<_> = groups.iter().map(|(_, group)| group.targets(&groups)).collect();
        // One user can delay the others only once.
        let mut silent: HashSet<Vec<u32>> = HashSet::new();
        let (all, begun) = (groups.len(), Instant::now());
        for (done, ((samples, group), targets)) in groups.into_iter().zip(targets).enumerate() {
            progress.at(|| progress::counted("estimating", done, all, "programs", begun));
            let cpu = samples as f64 / f64::from(frequency) / lasted.as_secs_f64();
            let mut estimate = None;
            if cpu >= IDLE
                && !interrupt::asked()
                && !silent.contains(&group.users)
                && begun.elapsed() < clock::limit(LONGEST)
            {
                let work = || Estimate::of(&group, &targets, &tally, &sampling, &machine);
                match workers::apart(PATIENCE, work) {
                    Ok(estimated) => estimate = estimated,
                    Err(_late) => {
                        silent.insert(group.users.clone());
                    }
                }
            }
            let not_sampled = group.pids().filter(|pid| !sampled.contains(pid)).count();
            self.programs.push(Row::new(group, samples, cpu, not_sampled, estimate));
        }
        rank(&mut self.programs);
        self.sampling = Some(sampling);
        Ok(())
    }
}

/// Puts the program that saves most first, and of those without a gain the one with the most samples.
fn rank(programs: &mut [Row]) {
    programs.sort_by(|one, other| {
        other.rank().total_cmp(&one.rank()).then(other.samples.cmp(&one.samples))
    });
}

/// Orders the processes by the processor time that they have used.
fn busiest_first(pids: impl Iterator<Item = Pid>) -> Vec<Pid> {
    let used = |pid| {
        let text = ProcDir::of(pid).and_then(|process| process.read("stat")).unwrap_or_default();
        stat::run_time(&text).unwrap_or(0)
    };
    let mut pids: Vec<(u64, Pid)> = pids.map(|pid| (used(pid), pid)).collect();
    pids.sort_by_key(|&(used, pid)| (Reverse(used), pid.as_raw_nonzero()));
    pids.into_iter().map(|(_, pid)| pid).collect()
}
