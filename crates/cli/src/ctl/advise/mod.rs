//! `tiexecctl advise`: predicts whether huge pages would help a program.
//!
//! It stops no process and changes nothing. The kernel samples where the program executes, and `advise` reads the
//! program's `/proc` files.

mod gather;
mod ways;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::time::Duration;

use tiexec_advise::advice::{Advice, Circumstances, Sampling, TextAdvice, Way};
use tiexec_advise::itlb::{Itlb, MissTime, Verdict};
use tiexec_advise::samples::Tally;
use tiexec_core::addr::Pages;
use tiexec_core::config::{EdgePolicy, Settings};
use tiexec_core::escape::{AsShown, in_shell};
use tiexec_core::plan::Plan;
use tiexec_core::pmu_counts::Counted;
use tiexec_engine::locked_target::{LONGEST, LockedTarget};
use tiexec_engine::policy::policy;
use tiexec_engine::sampling::{number, tlb};
use tiexec_remap::attach::attach;
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_remap::store::directory::Directory;
use tiexec_remap::{restart, workers};
use tiexec_sys::perf_sampler::Clock;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas, interrupt};

use super::progress::Progress;
use super::targets::{looked_at, targets, together};
use super::{can_write, pages, told, write};
use crate::exit;
use crate::options::{Advise, Targets};
use crate::stdio::warn;

pub(super) use gather::not_sampled;
use gather::{Gathered, Known, command_of};

/// Advice, and its sources.
pub(super) struct Advised {
    pub(super) advice: Advice,
    pub(super) tally: Tally,
    pub(super) circumstances: Circumstances,
    /// The exit status of each process that could not be sampled.
    refused: Vec<u8>,
    /// The selected processes that were sampled.
    pub(super) sampled: Vec<Pid>,
}

impl Advised {
    /// Returns the combined exit status of the selected processes.
    pub(super) fn status(&self, selected: &Targets) -> u8 {
        let sampled = self.sampled.iter().map(|_| exit::OK);
        together(self.refused.iter().copied().chain(sampled).collect(), selected)
    }
}

/// Runs `advise`; returns the exit status. It is a failure if there was nothing to sample.
pub(super) fn run(options: &Advise) -> u8 {
    if let Err(status) = can_write(options.output.as_deref()) {
        return status;
    }
    let pids = if options.targets.is_empty() {
        Vec::new()
    } else {
        match targets(&options.targets) {
            Ok(pids) => pids,
            Err(status) => return status,
        }
    };
    let doing = "advise on";
    sampled(doing, &pids, options.duration, || match sample(doing, &pids, options) {
        Ok(advised) => {
            let advice = &advised.advice;
            let text = if options.json { advice.to_json() + "\n" } else { advice.to_string() };
            told(write(&text, options.output.as_deref()), advised.status(&options.targets))
        }
        Err(status) => status,
    })
}

/// Does `work`, which samples the processes for `duration` and examines them. A child process does the work if one of
/// them has other credentials.
pub(super) fn sampled(
    doing: &str,
    pids: &[Pid],
    duration: Option<Duration>,
    work: impl FnOnce() -> u8,
) -> u8 {
    let Some(foreign) = pids.iter().copied().find(|&pid| workers::pid_is_of_others(pid)) else {
        return work();
    };
    let patience = duration.unwrap_or(gather::USUAL).saturating_add(LONGEST);
    // Ctrl-C ends the sampling, in the child. The report has the samples until then.
    interrupt::catch_interrupts();
    looked_at(doing, foreign.as_raw_nonzero().get(), patience, work)
}

/// Samples, and makes the advice.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn sample(doing: &str, pids: &[Pid], options: &Advise) -> Result<Advised, u8> {
    let pages = pages(doing)?;
    // A command writes to the same terminal.
    let mut progress = Progress::unless(!options.command.is_empty());
    let Gathered { pid, sampled, refused, comm, tally, known, counted, clock, lasted } =
        gather::gather(doing, pids, options, pages, &mut progress)?;
    progress.at(|| "estimating".to_owned());
    // Messages and the advice propose commands. These name only processes that can be sampled.
    let mut options = options.clone();
    if !options.targets.pids.is_empty() {
        let named = sampled.iter().map(|pid| pid.as_raw_nonzero().to_string());
        options.targets.pids = named.collect();
    }
    let options = &options;
    let processes: HashSet<u32> =
        tally.pages().map(|page| tally.spaces()[page.space].pid).collect();
    let sampling = Sampling {
        clock: clock_in_words(clock),
        frequency: options.frequency,
        duration_ms: u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX),
        samples: tally.pages().map(|page| page.samples).sum(),
        lost: tally.lost(),
        processes: processes.len(),
    };
    // The measurement follows the sampling, so that it disturbs no sampled process.
    let machine = Machine::look(pages);
    let circumstances = circumstances(options, &comm, &tally, known, &machine);
    let advice = Advice::new(pid, comm, &tally, &circumstances, sampling, counted);
    let mut advice =
        advice.ok_or_else(|| nothing_sampled(doing, pid, &sampled, options, lasted))?;
    if advice.has_few_samples() {
        advice.next = Some(longer(doing, options, lasted));
    } else if machine.time.split {
        measure_first(&mut advice, options);
    }
    // An attach also copies the text of libraries.
    let starts = advice.ways.last().is_some_and(|way| way.command.starts_with("tiexec "));
    if starts
        && is_for_a_store(&advice)
        && Directory::all().is_ok_and(|stores| stores.usable.is_empty())
    {
        let reason = "most of that is in shared libraries; a program that is launched gets them onto huge pages \
                      where their page cache can be huge, else by an image store (as root: tiexecctl store setup; \
                      for other users' programs also: tiexecctl store add FILE) or with --backing image only";
        advice.judgement.reasons.push(reason.to_owned());
        // Only root sets a store up, and only a start by root builds its images.
        let is_root = rustix::process::geteuid().is_root();
        let start = advice.next.take_if(|next| is_root && next.starts_with("tiexec "));
        advice.next =
            start.map(|start| format!("tiexecctl store setup && {start}")).or(advice.next);
    }
    Ok(Advised { advice, tally, circumstances, refused, sampled })
}

/// The facts about the machine.
pub(super) struct Machine {
    pub(super) pages: Pages,
    pub(super) itlb: Itlb,
    pub(super) time: MissTime,
}

impl Machine {
    /// Reads them, and measures the TLB if that is not known.
    pub(super) fn look(pages: Pages) -> Self {
        let (itlb, time) = tlb(pages);
        Self { pages, itlb, time }
    }
}

/// Returns the facts beside the samples.
fn circumstances(
    options: &Advise,
    comm: &str,
    tally: &Tally,
    known: HashMap<usize, Known>,
    machine: &Machine,
) -> Circumstances {
    let Machine { pages, itlb, time } = machine;
    let ways = ways::ways(options, comm, tally, &known, *pages);
    let huge = known.into_iter().map(|(space, known)| (space, known.huge)).collect();
    Circumstances { pages: *pages, huge, ways, itlb: itlb.clone(), time: *time }
}

/// Makes the advice about living processes from samples that others have taken. The tally needs no mappings: they are
/// read here, which the processes can block. Processes that have ended are left out. Returns the recommended way, too;
/// `None` if nothing is left.
pub(super) fn of_samples(
    pids: &[Pid],
    targets: Targets,
    comm: String,
    mut tally: Tally,
    sampling: Sampling,
    machine: &Machine,
) -> Option<(Advice, Way)> {
    for &pid in pids {
        let vmas = ProcDir::of(pid).and_then(|process| areas::vmas(&process));
        tally.add_process(number(pid), &vmas.unwrap_or_default());
    }
    let mut known = HashMap::new();
    gather::look(&tally, None, machine.pages, &mut known);
    gather::plan(&tally, pids, &mut known);
    let tally = gather::attributed(tally, &known);
    let options = Advise::of(targets, None);
    let mut circumstances = circumstances(&options, &comm, &tally, known, machine);
    let first = pids.first().map_or(0, |&pid| number(pid));
    let mut advice =
        Advice::new(first, comm, &tally, &circumstances, sampling, Counted::default())?;
    if machine.time.split {
        measure_first(&mut advice, &options);
    }
    let way = circumstances.ways.swap_remove(advice.way);
    Some((advice, way))
}

/// Proposes a measurement in the place of a change: huge text can lose where the host splits huge pages.
fn measure_first(advice: &mut Advice, options: &Advise) {
    if let Some(next) = &mut advice.next {
        *next = in_shell(measurement(options));
    }
}

/// Returns the command that measures what huge pages gain for the same processes, or for the same command.
fn measurement(options: &Advise) -> Vec<OsString> {
    let (command, rest): (&[&str], Vec<OsString>) = match options.command.is_empty() {
        true => (&["tiexecctl", "canary", "--counter", "CMD"], options.targets.words()),
        false => (&["tiexecctl", "bench", "--"], options.command.clone()),
    };
    command.iter().map(OsString::from).chain(rest).collect()
}

/// Returns the size of the huge pages that the way takes in these processes, in bytes, by backing. A copy counts once for
/// all processes. Reads files of the processes, which can block the caller.
pub(super) fn memory(way: &Way, pids: &[Pid], pages: Pages) -> BTreeMap<String, u64> {
    let edges = EdgePolicy { edges: way.edges, ..EdgePolicy::default() };
    let settings = Settings::default();
    let mut seen = HashSet::new();
    let mut memory: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |plan: &Plan| {
        for text in &plan.texts {
            for span in &text.spans {
                if seen.insert((text.vma.file, span.file_offset, span.backing)) {
                    *memory.entry(span.backing.to_string()).or_default() += span.range.len();
                }
            }
        }
    };
    for &pid in pids {
        if way.starts {
            let started =
                ProcDir::of(pid).ok().and_then(|it| restart::plan(&it, edges, pages).ok());
            started.iter().for_each(|started| add(&started.plan));
        } else if let (Ok(locked), Ok(policy)) = (LockedTarget::open(pid), policy(&settings, true))
        {
            let order = locked.order(Policy { edges, ..policy });
            let attached = attach(&order, &mut Images::default());
            attached.iter().for_each(|attached| add(&attached.plan));
        }
    }
    memory
}

/// Returns the name of the clock in JSON.
pub(super) fn clock_in_words(clock: Clock) -> &'static str {
    match clock {
        Clock::Cycles => "cycles",
        Clock::CpuClock => "cpu_clock",
    }
}

/// Reports that nothing was sampled. Returns the exit status.
fn nothing_sampled(doing: &str, pid: u32, pids: &[Pid], options: &Advise, lasted: Duration) -> u8 {
    let seconds = lasted.as_secs_f64();
    let command = options.command.first().map_or_else(String::new, |it| it.shown().to_string());
    let what = match pids.len() {
        0 => command,
        1 => format!("process {pid}"),
        count => format!("{count} processes"),
    };
    let moment = match pids.len() {
        0 => "in a run that takes longer",
        1 => "while it is busy",
        _ => "while they are busy",
    };
    // `report` has no option `--follow`.
    let may_follow = !options.follow && command_of(doing) == "advise";
    let children = if may_follow { ", with --follow if children do the work" } else { "" };
    warn(format_args!(
        "cannot {doing} {what}: there was nothing to sample in {seconds:.1} s (idle, in the kernel, or ended); \
         fix: `{}` {moment}{children}",
        longer(doing, options, lasted)
    ));
    exit::FAILED
}

/// Returns a command that samples for longer or, for a command that ended, more often.
fn longer(doing: &str, options: &Advise, lasted: Duration) -> String {
    let mut words: Vec<OsString> = vec!["tiexecctl".into(), command_of(doing).into()];
    if options.follow {
        words.push("--follow".into());
    }
    if let Some(output) = &options.output {
        words.extend(["--output".into(), output.into()]);
    }
    if options.command.is_empty() {
        words.extend(["--duration".into(), format!("{}s", lasted.as_secs() * 6 + 6).into()]);
        words.extend(options.targets.words());
    } else {
        words.extend(["-F".into(), (options.frequency * 10).min(100_000).to_string().into()]);
        words.push("--".into());
        words.extend(options.command.iter().cloned());
    }
    in_shell(words)
}

/// Returns whether most of the possible gain lies in shared libraries.
fn is_for_a_store(advice: &Advice) -> bool {
    let gain = |text: &TextAdvice| text.share * (text.on_huge_then - text.on_huge_now).max(0.0);
    let is_library = |text: &&TextAdvice| text.path.ends_with(".so") || text.path.contains(".so.");
    let of_libraries: f64 = advice.files.iter().filter(is_library).map(gain).sum();
    advice.judgement.verdict != Verdict::NotWorthIt && of_libraries > gain(&advice.text) / 2.0
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::Ctl;

    #[test]
    fn a_measurement_is_a_command_of_ours() {
        let of = |targets, command: Option<&str>| {
            let mut options = Advise::of(targets, None);
            options.command.extend(command.map(OsString::from));
            measurement(&options)
        };
        let pids = Targets { pids: vec!["7".to_owned()], ..Targets::default() };
        let unit = Targets { unit: Some("a b.service".to_owned()), ..Targets::default() };
        for (words, command) in [
            (of(pids, None), "tiexecctl canary --counter CMD 7"),
            (of(unit, None), "tiexecctl canary --counter CMD --unit 'a b.service'"),
            (of(Targets::default(), Some("true")), "tiexecctl bench -- true"),
        ] {
            assert_eq!(in_shell(&words), command);
            assert!(Ctl::try_parse_from(words).is_ok(), "{command}");
        }
    }
}
