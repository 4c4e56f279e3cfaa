//! Samples processes, or a command that it starts.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use tiexec_advise::itlb::{Itlb, walk_event};
use tiexec_advise::samples::{Tally, are_many};
use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::config::{EdgePolicy, Edges, Settings};
use tiexec_core::escape::AsShown;
use tiexec_core::plan::Backing;
use tiexec_core::pmu_counts::Counted;
use tiexec_core::proc::maps::Vma;
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::locked_target::LockedTarget;
use tiexec_engine::policy::policy;
use tiexec_engine::programs;
use tiexec_engine::sampling::{Sampling, number, refusal};
use tiexec_remap::attach::{attach, look_at_jit};
use tiexec_remap::images::Images;
use tiexec_remap::mapped::originals;
use tiexec_remap::policy::Policy;
use tiexec_remap::restart::{self, Started};
use tiexec_remap::sources::Sources;
use tiexec_remap::workers::Workers;
use tiexec_sys::counters::Counters;
use tiexec_sys::perf_sampler::{Clock, Heirs};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, areas, interrupt, process, processor};
use tiexec_tracee::threads;

use super::super::progress::{self, Progress, Slow};
use super::super::{failed, failed_status, has_text};
use crate::exit;
use crate::options::Advise;
use crate::stdio::warn;

/// The default time for which a running process is sampled.
pub(super) const USUAL: Duration = Duration::from_secs(5);

/// The result of the sampling.
pub(super) struct Gathered {
    pub(super) pid: u32,
    /// The selected processes that were sampled; none for a command.
    pub(super) sampled: Vec<Pid>,
    /// The exit status of each selected process that could not be sampled. The messages are on stderr already.
    pub(super) refused: Vec<u8>,
    pub(super) comm: String,
    pub(super) tally: Tally,
    /// The facts about each address space besides its samples, by the tally's spaces.
    pub(super) known: HashMap<usize, Known>,
    pub(super) counted: Counted,
    pub(super) clock: Clock,
    pub(super) lasted: Duration,
}

/// Samples these processes, or the command that the options name. Messages begin with `cannot` and `doing`.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn gather(
    doing: &str,
    pids: &[Pid],
    options: &Advise,
    pages: Pages,
    progress: &mut Progress,
) -> Result<Gathered, u8> {
    let (mut refused, mut names) = (Vec::new(), Vec::new());
    for &pid in pids {
        match may_sample(doing, pid) {
            Ok(name) => names.push((pid, name)),
            Err(why) => refused.push(why),
        }
    }
    // Some processes may have ended since they were selected.
    match names.first() {
        Some((first, name)) => {
            let living: Vec<Pid> = names.iter().map(|&(pid, _)| pid).collect();
            let first = (number(*first), name.clone());
            let gathered = running(doing, &living, first, options, pages, progress)?;
            Ok(Gathered { refused, ..gathered })
        }
        None if pids.is_empty() => command(options, pages),
        None => Err(refused.last().copied().unwrap_or(exit::GONE)),
    }
}

/// Returns the name of a process that can be sampled.
///
/// # Errors
/// The exit status. The message is on stderr already.
fn may_sample(doing: &str, pid: Pid) -> Result<String, u8> {
    let shown = pid.as_raw_nonzero().get();
    let refuse = |error| failed(doing, shown, error);
    let named = ProcDir::of(pid).map_err(refuse)?;
    let status = named.status().map_err(refuse)?;
    has_text(doing, shown)?;
    if let Some(process) = status.tgid.filter(|&tgid| tgid != number(pid)) {
        let fix = format!("tiexecctl {} {process}", command_of(doing));
        warn(format_args!(
            "cannot {doing} {shown}: it is a thread of process {process}; fix: {fix}"
        ));
        return Err(exit::USAGE);
    }
    // The named process must be readable. Its descendants may have ended, or belong to other users.
    named.read("maps").map_err(refuse)?;
    Ok(String::from_utf8_lossy(&status.name).into_owned())
}

/// Returns the command of `tiexecctl` for these words: `advise` for `advise on`.
pub(super) fn command_of(doing: &str) -> &str {
    doing.split(' ').next().unwrap_or_default()
}

fn running(
    doing: &str,
    pids: &[Pid],
    (first, comm): (u32, String),
    options: &Advise,
    pages: Pages,
    shown: &mut Progress,
) -> Result<Gathered, u8> {
    let refuse = |error| failed(doing, first.cast_signed(), error);
    let (heirs, members) = if options.follow {
        (Heirs::Processes, Tree::of(pids).walk(true))
    } else {
        (Heirs::Threads, pids.to_vec())
    };
    let mut sampling = Sampling::of_running(&members, heirs, options.frequency, pages.base)
        .map_err(|error| refused(first, error))?;
    let only = (members.len() == 1 && !options.follow).then(|| HashSet::from([first]));
    sampling.only = only.clone();
    let living = members.iter().filter_map(|&pid| Some((pid, ProcDir::of(pid).ok()?)));
    let tids: Vec<Pid> = living.flat_map(|(pid, process)| threads::list(&process, pid)).collect();
    let counters = Counters::open(&tids, heirs, walk_event(&Itlb::of(&processor::read())));
    let mut known = HashMap::new();
    let begun = Instant::now();
    let duration = options.duration.unwrap_or(USUAL);
    let end = begun.checked_add(duration);
    // Ctrl-C ends the sampling early. The report has the samples until then.
    interrupt::catch();
    let samples = Cell::new(0);
    let what = progress::who(&members);
    let over = || {
        shown.at(|| progress::sampling(&what, begun, duration, samples.get()));
        interrupt::asked()
    };
    let look = |tally: &Tally| {
        samples.set(tally.by_process().values().sum());
        look(tally, only.as_ref(), pages, &mut known);
    };
    sampling.until(end, over, look).map_err(refuse)?;
    let lasted = begun.elapsed();
    let counted = counters.read();
    plan(sampling.tally(), &members, &mut known);
    let clock = sampling.clock();
    let tally = attributed(sampling.end(), &known);
    let (sampled, refused) = (pids.to_vec(), Vec::new());
    Ok(Gathered { pid: first, sampled, refused, comm, tally, known, counted, clock, lasted })
}

/// Starts the command. The command inherits the perf events of this process.
fn command(options: &Advise, pages: Pages) -> Result<Gathered, u8> {
    let (program, arguments) = options.command.split_first().ok_or(exit::USAGE)?;
    let name = program.to_string_lossy().into_owned();
    let this = process::this();
    let mut sampling = Sampling::of_children(options.frequency, pages.base)
        .map_err(|error| refused(number(this), error))?;
    let counters =
        Counters::open(&[this], Heirs::Processes, walk_event(&Itlb::of(&processor::read())));
    let before = counters.read();
    let mut child = match programs::of_user(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            warn(format_args!("cannot start {}: {error}", name.shown()));
            return Err(exit::FAILED);
        }
    };
    // Ctrl-C ends only the command. The report has the samples until then.
    process::ignore_interrupts();
    let only = (!options.follow).then(|| HashSet::from([child.id()]));
    sampling.only = only.clone();
    let begun = Instant::now();
    let end = options.duration.and_then(|duration| begun.checked_add(duration));
    let pid = child.id();
    let mut known = HashMap::new();
    let look = |tally: &Tally| look(tally, only.as_ref(), pages, &mut known);
    let mut slow = Slow::begin();
    let over = || {
        slow.at(|| {
            let until = if end.is_some() { " (or --duration is over)" } else { "" };
            format!("sampling {} until it ends{until}; Ctrl-C ends it", name.shown())
        });
        has_ended(&mut child)
    };
    let sampled = sampling.until(end, over, look);
    let lasted = begun.elapsed();
    // The counts include this process, which does little in user mode.
    let counted = counters.read().since(&before);
    let samples = sampling.tally().by_process().values().sum();
    let counted = counted_of(counted, samples, sampling.others());
    let ended = child.wait();
    sampled.map_err(|error| {
        warn(format_args!("cannot sample {name}: {error}"));
        failed_status(error.errno)
    })?;
    if let Some(signal) = ended.ok().and_then(|status| status.signal()) {
        warn(format_args!("{name} was killed by signal {signal}"));
    }
    let comm = name.rsplit('/').next().unwrap_or(&name).to_owned();
    let clock = sampling.clock();
    let tally = attributed(sampling.end(), &known);
    let (sampled, refused) = (Vec::new(), Vec::new());
    Ok(Gathered { pid, sampled, refused, comm, tally, known, counted, clock, lasted })
}

/// Returns the counts if they are those of the sampled processes. The counters also count the processes that the command
/// starts: if these have the `others` of the samples, and more than a few, the counts say nothing about the command.
fn counted_of(counted: Counted, samples: u64, others: u64) -> Counted {
    if are_many(others, samples) { Counted::default() } else { counted }
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// Reports that sampling is refused, with the fix. Returns the exit status.
fn refused(pid: u32, error: SysError) -> u8 {
    not_sampled(&format!("process {pid}"), error)
}

/// As [`refused`]; `what` is to be sampled.
pub(in crate::ctl) fn not_sampled(what: &str, error: SysError) -> u8 {
    warn(format_args!("cannot sample {what}: {}", refusal(error)));
    match error.errno {
        Errno::SRCH => exit::GONE,
        Errno::PERM | Errno::ACCES => exit::NOT_PERMITTED,
        _ => exit::FAILED,
    }
}

/// The latest facts about an address space besides its samples.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The PMD-mapped ranges.
    pub(super) huge: Vec<AddrRange>,
    /// The text of files that one of our images replaces, or that the program has moved.
    originals: Vec<Vma>,
    /// The populated huge pages of code that the process generates.
    pub(super) jit: Vec<AddrRange>,
    /// The plan of an attach, with [`EDGES`]; `None` if the process has ended.
    pub(super) attach: Option<[Vec<AddrRange>; 2]>,
    /// The plan of a launch, with [`EDGES`]; `None` if it is not known.
    pub(super) start: Option<[Started; 2]>,
}

/// The settings of edges that are compared.
pub(super) const EDGES: [Edges; 2] = [Edges::Conservative, Edges::Pad];

/// Reads the facts about the address spaces of live processes.
pub(super) fn look(
    tally: &Tally,
    only: Option<&HashSet<u32>>,
    pages: Pages,
    found: &mut HashMap<usize, Known>,
) {
    for (space, of) in tally.spaces().iter().enumerate() {
        let wanted = of.current && only.is_none_or(|only| only.contains(&of.pid));
        let Some(pid) = i32::try_from(of.pid).ok().and_then(Pid::from_raw) else { continue };
        let Some(process) = ProcDir::of(pid).ok().filter(|_| wanted) else { continue };
        let Ok(seen) = areas::look(&process, pages) else { continue };
        let known = found.entry(space).or_default();
        let executable = seen.areas.iter().filter(|area| area.vma.perms.exec);
        known.huge = executable.flat_map(|area| area.huge_parts(pages.pmd)).collect();
        known.originals = originals(&process, &Workers::none(), &seen.areas, pages);
        let jit = look_at_jit(&process, &seen.areas, pages).unwrap_or_default();
        known.jit = jit.into_iter().flat_map(|area| area.populated).collect();
        if known.start.is_none() {
            let [leave, take] = EDGES.map(|edges| {
                let edges = EdgePolicy { edges, ..EdgePolicy::default() };
                restart::plan(&process, edges, pages).ok()
            });
            known.start = leave.zip(take).map(|(leave, take)| [leave, take]);
        }
    }
}

/// Attributes the samples to the original file of the text, also where one of our images replaces the file, or where the
/// program has moved the text.
pub(super) fn attributed(mut tally: Tally, known: &HashMap<usize, Known>) -> Tally {
    for (&space, known) in known {
        for text in &known.originals {
            tally.attribute(space, text.range, text.path());
        }
    }
    tally
}

/// Plans an attach to the live processes, as `attach --dry-run` does.
pub(super) fn plan(tally: &Tally, pids: &[Pid], known: &mut HashMap<usize, Known>) {
    let settings = Settings::default();
    let sources = Sources { pagecache: false, store: false, copy: Some(Backing::Image) };
    let spans = |locked: &LockedTarget, edges: Edges| {
        let edges = EdgePolicy { edges, ..EdgePolicy::default() };
        let policy = Policy { sources, edges, ..policy(&settings, true).ok()? };
        let attached = attach(&locked.order(policy), &mut Images::default()).ok()?;
        Some(attached.plan.spans().map(|span| span.range).collect())
    };
    for &pid in pids {
        let space = tally.spaces().iter().rposition(|of| of.pid == number(pid));
        let Some(known) = space.and_then(|space| known.get_mut(&space)) else { continue };
        let Ok(locked) = LockedTarget::open(pid) else { continue };
        let [leave, take] = EDGES.map(|edges| spans(&locked, edges));
        known.attach = leave.zip(take).map(|(leave, take)| [leave, take]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_the_children_are_not_the_commands() {
        let counted = Counted { cycles: Some(100), walk_cycles: Some(40), ..Counted::default() };
        for (samples, others, is_kept) in
            [(100, 0, true), (100, 5, true), (100, 6, false), (0, 9, false)]
        {
            let expected = if is_kept { counted } else { Counted::default() };
            assert_eq!(counted_of(counted, samples, others), expected, "{samples} {others}");
        }
    }
}
