//! Sampling a process, or a command that is started for it.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tiexec_advise::itlb::{Itlb, walk_event};
use tiexec_advise::samples::Tally;
use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::config::Settings;
use tiexec_core::plan::Backing;
use tiexec_core::pmu_counts::Counted;
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::locked_target::LockedTarget;
use tiexec_engine::policy::policy;
use tiexec_engine::sampling::{Sampling, number, refusal};
use tiexec_remap::attach::attach;
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_remap::sources::Sources;
use tiexec_sys::counters::Counters;
use tiexec_sys::perf_sampler::{Clock, Heirs};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, areas, interrupt, process, processor};
use tiexec_tracee::threads;

use super::super::{failed, failed_status};
use crate::exit;
use crate::options::Advise;
use crate::stdio::warn;

/// How long a running process is sampled unless an option says otherwise.
pub(super) const USUAL: Duration = Duration::from_secs(5);

/// The result of the sampling.
pub(super) struct Gathered {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) tally: Tally,
    /// The PMD-mapped ranges, by the tally's spaces.
    pub(super) huge: HashMap<usize, Vec<AddrRange>>,
    /// The ranges that an attach would put onto huge pages, likewise.
    pub(super) planned: HashMap<usize, Vec<AddrRange>>,
    pub(super) counted: Counted,
    pub(super) clock: Clock,
    pub(super) lasted: Duration,
}

/// Samples what the options name.
///
/// # Errors
/// The exit status for what has been said on stderr.
pub(super) fn gather(options: &Advise, pages: Pages) -> Result<Gathered, u8> {
    match options.pid.and_then(Pid::from_raw) {
        Some(pid) => running(pid, options, pages),
        None => command(options, pages),
    }
}

fn running(pid: Pid, options: &Advise, pages: Pages) -> Result<Gathered, u8> {
    let shown = pid.as_raw_nonzero();
    let refuse = |error| failed("advise on", shown, error);
    let named = ProcDir::of(pid).map_err(refuse)?;
    let status = named.status().map_err(refuse)?;
    if !status.has_mm {
        warn(format_args!(
            "cannot advise on process {shown}: it has no address space (a kernel thread, or a process \
             that has ended)"
        ));
        return Err(exit::FAILED);
    }
    if let Some(process) = status.tgid.filter(|&tgid| tgid != number(pid)) {
        warn(format_args!("{shown} is a thread of process {process}; fix: advise on the process"));
        return Err(exit::USAGE);
    }
    // The named process must be readable. Other processes may have ended, or belong to other users.
    named.read("maps").map_err(refuse)?;
    let (heirs, members) = if options.follow {
        (Heirs::Processes, Tree::of(&[pid]).walk(true))
    } else {
        (Heirs::Threads, vec![pid])
    };
    let mut sampling = Sampling::of_running(&members, heirs, options.frequency, pages.base)
        .map_err(|error| refused(number(pid), error))?;
    sampling.only = (!options.follow).then(|| number(pid));
    let living = members.iter().filter_map(|&pid| Some((pid, ProcDir::of(pid).ok()?)));
    let tids: Vec<Pid> = living.flat_map(|(pid, process)| threads::list(&process, pid)).collect();
    let counters = Counters::open(&tids, heirs, walk_event(&Itlb::of(&processor::read())));
    let mut huge = HashMap::new();
    let (begun, only) = (Instant::now(), sampling.only);
    let end = begun.checked_add(options.duration.unwrap_or(USUAL));
    // Ctrl-C ends it early; the report has the samples until then.
    interrupt::catch();
    let look = |tally: &Tally| look(tally, only, pages, &mut huge);
    sampling.until(end, interrupt::asked, look).map_err(refuse)?;
    let lasted = begun.elapsed();
    let counted = counters.read();
    let planned = planned(sampling.tally(), &members);
    let comm = String::from_utf8_lossy(&status.name).into_owned();
    let clock = sampling.clock();
    let tally = sampling.end();
    Ok(Gathered { pid: number(pid), comm, tally, huge, planned, counted, clock, lasted })
}

/// Starts the command, with this process as the one whose events it inherits.
fn command(options: &Advise, pages: Pages) -> Result<Gathered, u8> {
    let (program, arguments) = options.command.split_first().ok_or(exit::USAGE)?;
    let name = program.to_string_lossy().into_owned();
    let this = process::this();
    let mut sampling = Sampling::of_children(options.frequency, pages.base)
        .map_err(|error| refused(number(this), error))?;
    let counters =
        Counters::open(&[this], Heirs::Processes, walk_event(&Itlb::of(&processor::read())));
    let before = counters.read();
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            warn(format_args!("cannot start {name}: {error}"));
            return Err(exit::FAILED);
        }
    };
    // Ctrl-C is the command's; the report has the samples until then.
    process::ignore_interrupts();
    sampling.only = (!options.follow).then_some(child.id());
    let begun = Instant::now();
    let end = options.duration.and_then(|duration| begun.checked_add(duration));
    let (pid, only) = (child.id(), sampling.only);
    let mut huge = HashMap::new();
    let look = |tally: &Tally| look(tally, only, pages, &mut huge);
    let sampled = sampling.until(end, || has_ended(&mut child), look);
    let lasted = begun.elapsed();
    // This process does little in user mode, but is counted too.
    let counted = counters.read().since(&before);
    let ended = child.wait();
    sampled.map_err(|error| {
        warn(format_args!("cannot sample {name}: {error}"));
        failed_status(error.errno)
    })?;
    if let Some(signal) = ended.ok().and_then(|status| status.signal()) {
        warn(format_args!("{name} was killed by signal {signal}"));
    }
    let comm = name.rsplit('/').next().unwrap_or(&name).to_owned();
    let (clock, planned) = (sampling.clock(), HashMap::new());
    let tally = sampling.end();
    Ok(Gathered { pid, comm, tally, huge, planned, counted, clock, lasted })
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// Says that sampling is refused, and what would help; returns the exit status.
fn refused(pid: u32, error: SysError) -> u8 {
    warn(format_args!("cannot sample process {pid}: {}", refusal(error)));
    match error.errno {
        Errno::SRCH => exit::GONE,
        Errno::PERM | Errno::ACCES => exit::NOT_PERMITTED,
        _ => exit::FAILED,
    }
}

/// Sees what is on huge pages of those that live.
fn look(
    tally: &Tally,
    only: Option<u32>,
    pages: Pages,
    found: &mut HashMap<usize, Vec<AddrRange>>,
) {
    for (space, of) in tally.spaces().iter().enumerate() {
        let wanted = of.current && only.is_none_or(|only| only == of.pid);
        let Some(pid) = i32::try_from(of.pid).ok().and_then(Pid::from_raw) else { continue };
        let huge = || areas::huge_text(&ProcDir::of(pid)?, pages);
        if wanted && let Ok(huge) = huge() {
            found.insert(space, huge);
        }
    }
}

/// Plans an attach to those that live, as `attach --dry-run` does.
fn planned(tally: &Tally, pids: &[Pid]) -> HashMap<usize, Vec<AddrRange>> {
    let settings = Settings::from_layers([]);
    let sources = Sources { pagecache: false, store: false, copy: Some(Backing::Image) };
    let spans = |pid: Pid| {
        let locked = LockedTarget::open(pid).ok()?;
        let policy = Policy { sources, ..policy(&settings, true).ok()? };
        let attached = attach(&locked.order(policy), &mut Images::default()).ok()?;
        Some(attached.plan.spans().map(|span| span.range).collect())
    };
    let mut planned = HashMap::new();
    for &pid in pids {
        let space = tally.spaces().iter().rposition(|of| of.pid == number(pid));
        if let (Some(space), Some(spans)) = (space, spans(pid)) {
            planned.insert(space, spans);
        }
    }
    planned
}
