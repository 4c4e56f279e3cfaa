//! Sampling a process, or a command that is started for it.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tiexec_core::addr::{AddrRange, Pages};
use tiexec_core::advice::Counted;
use tiexec_core::config::EdgePolicy;
use tiexec_core::itlb::walk_event;
use tiexec_core::plan::Backing;
use tiexec_core::proc::{maps, status};
use tiexec_core::samples::{Tally, What};
use tiexec_core::select::Select;
use tiexec_remap::attach::{Images, attach};
use tiexec_remap::launch::Sources;
use tiexec_sys::counters::Counters;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::sampler::{Clock, Heirs, Sampler, Woken};
use tiexec_sys::{Errno, Pid, SysError, cpu, mapped, process};
use tiexec_tracee::threads;

use super::super::attach::Target;
use super::super::failed;
use crate::exit;
use crate::follow::tree::Tree;
use crate::options::Advise;
use crate::say::warn;

/// How long a running process is sampled if nothing else is said.
const USUAL: Duration = Duration::from_secs(5);
/// How often the buffers are emptied.
const DRAIN: Duration = Duration::from_millis(100);
/// How often is looked what is on huge pages: a command may end at any time.
const LOOK: Duration = Duration::from_millis(500);

/// What came of the sampling.
pub(super) struct Gathered {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) tally: Tally,
    /// What is PMD-mapped, by the tally's spaces.
    pub(super) huge: HashMap<usize, Vec<AddrRange>>,
    /// What an attach would put onto huge pages, likewise.
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
    let refuse = |error| failed(format_args!("advise on process {shown}"), error);
    let named = ProcDir::of(pid).map_err(refuse)?;
    let status = status::parse(&named.read("status").map_err(refuse)?);
    if !status.has_mm {
        warn(format_args!(
            "cannot advise on process {shown}: it has no address space (a kernel thread, or a process \
             that has ended)"
        ));
        return Err(exit::FAILED);
    }
    let (heirs, members) = if options.follow {
        (Heirs::Processes, Tree::of(&[pid]).walk(true))
    } else {
        (Heirs::Threads, vec![pid])
    };
    let mut tids = Vec::new();
    let mut tally = Tally::new(pages.base);
    for &member in &members {
        // Of those beside the one that was named some may have ended, or be others'.
        let read = ProcDir::of(member).and_then(|process| Ok((process.read("maps")?, process)));
        match read {
            Ok((text, process)) => {
                tids.extend(threads::list(&process, member));
                tally.add_process(number(member), &maps::parse(&text).unwrap_or_default());
            }
            Err(error) if member == pid => return Err(refuse(error)),
            Err(_gone) => {}
        }
    }
    process::lift_descriptor_limit();
    let sampler = Sampler::open(&tids, heirs, options.frequency)
        .map_err(|error| refused(number(pid), error))?;
    let counters = Counters::open(&tids, heirs, walk_event(&cpu::itlb::read()));
    let only = (!options.follow).then(|| number(pid));
    let mut run = Run { sampler, tally, huge: HashMap::new(), only, pages };
    let begun = Instant::now();
    let end = begun.checked_add(options.duration.unwrap_or(USUAL));
    run.until(end, || false).map_err(refuse)?;
    let lasted = begun.elapsed();
    let counted = counters.read();
    let planned = run.planned(&members);
    let comm = String::from_utf8_lossy(&status.name).into_owned();
    Ok(run.gathered(number(pid), comm, planned, counted, lasted))
}

/// Starts the command, with this process as the one whose events it inherits.
fn command(options: &Advise, pages: Pages) -> Result<Gathered, u8> {
    let (program, arguments) = options.command.split_first().ok_or(exit::USAGE)?;
    let name = program.to_string_lossy().into_owned();
    let this = process::this();
    // It must be inherited by a process: what is not wanted is passed over later.
    let sampler = Sampler::open(&[this], Heirs::Processes, options.frequency)
        .map_err(|error| refused(number(this), error))?;
    let counters = Counters::open(&[this], Heirs::Processes, walk_event(&cpu::itlb::read()));
    let before = counters.read();
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            warn(format_args!("cannot start {name}: {error}"));
            return Err(exit::FAILED);
        }
    };
    // Ctrl-C is the command's; what it did until then is told.
    process::ignore_interrupts();
    let only = (!options.follow).then_some(child.id());
    let mut run = Run { sampler, tally: Tally::new(pages.base), huge: HashMap::new(), only, pages };
    let begun = Instant::now();
    let end = options.duration.and_then(|duration| begun.checked_add(duration));
    let pid = child.id();
    let sampled = run.until(end, || has_ended(&mut child));
    let lasted = begun.elapsed();
    // This process does little in user mode, but is counted too.
    let counted = counters.read().since(&before);
    let planned = HashMap::new();
    let ended = child.wait();
    sampled.map_err(|error| failed(format_args!("sample {name}"), error))?;
    if let Some(signal) = ended.ok().and_then(|status| status.signal()) {
        warn(format_args!("{name} was killed by signal {signal}"));
    }
    let comm = name.rsplit('/').next().unwrap_or(&name).to_owned();
    Ok(run.gathered(pid, comm, planned, counted, lasted))
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// Says that sampling is refused, and what would help; returns the exit status.
fn refused(pid: u32, error: SysError) -> u8 {
    let knob = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let fix = match error.errno {
        Errno::PERM | Errno::ACCES => format!(
            "; kernel.perf_event_paranoid is {}: up to 2 a user may sample processes of their own, beyond \
             that it takes CAP_PERFMON",
            knob("perf_event_paranoid")
        ),
        Errno::MFILE => {
            "; it has more threads, times processors, than descriptors are allowed; fix: ulimit -n"
                .to_owned()
        }
        Errno::INVAL => {
            format!("; kernel.perf_event_max_sample_rate is {}", knob("perf_event_max_sample_rate"))
        }
        _ => String::new(),
    };
    warn(format_args!("cannot sample process {pid}: {error}{fix}"));
    match error.errno {
        Errno::SRCH => exit::GONE,
        Errno::PERM | Errno::ACCES => exit::NOT_PERMITTED,
        _ => exit::FAILED,
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// A sampling under way.
struct Run {
    sampler: Sampler,
    tally: Tally,
    huge: HashMap<usize, Vec<AddrRange>>,
    /// The one process that is wanted; all that comes otherwise, this one left out.
    only: Option<u32>,
    pages: Pages,
}

impl Run {
    /// Samples until `end`, until all have ended, or until `over`.
    fn until(
        &mut self,
        end: Option<Instant>,
        mut over: impl FnMut() -> bool,
    ) -> Result<(), SysError> {
        // Early once: what ends soon is seen too.
        let mut look_at = Instant::now() + DRAIN;
        loop {
            let left = end.map_or(DRAIN, |end| end.saturating_duration_since(Instant::now()));
            // Before the records are read, so that none of the last is missed.
            let over = over() || left.is_zero();
            let woken = match self.sampler.wait(left.min(DRAIN)) {
                Err(error) if error.errno == Errno::INTR => Woken::Records,
                woken => woken?,
            };
            self.drain();
            if over || woken == Woken::End {
                self.look();
                return Ok(());
            }
            if Instant::now() >= look_at {
                self.look();
                look_at = Instant::now() + LOOK;
            }
        }
    }

    fn drain(&mut self) {
        let this = std::process::id();
        for what in self.sampler.read() {
            let of = match &what {
                What::Sample { pid, .. } => Some(*pid),
                _ => None,
            };
            let wanted =
                self.only.map_or(of != Some(this), |only| of.is_none_or(|pid| pid == only));
            if wanted {
                self.tally.add(what);
            }
        }
    }

    /// Sees what is on huge pages of those that live.
    fn look(&mut self) {
        for (space, of) in self.tally.spaces().iter().enumerate() {
            let wanted = of.current && self.only.is_none_or(|only| only == of.pid);
            let Some(pid) = i32::try_from(of.pid).ok().and_then(Pid::from_raw) else { continue };
            let huge = || mapped::huge_text(&ProcDir::of(pid)?, self.pages.pmd);
            if wanted && let Ok(huge) = huge() {
                self.huge.insert(space, huge);
            }
        }
    }

    /// Plans an attach to those that live, as `attach --dry-run` does.
    fn planned(&self, pids: &[Pid]) -> HashMap<usize, Vec<AddrRange>> {
        let sources = Sources { pagecache: false, store: false, copy: Some(Backing::Image) };
        let spans = |pid: Pid| {
            let target = Target::open(pid).ok()?;
            let order = target.order(sources, Select::default(), EdgePolicy::default(), true);
            let attached = attach(&order, &mut Images::default()).ok()?;
            Some(attached.plan.spans().map(|span| span.range).collect())
        };
        let mut planned = HashMap::new();
        for &pid in pids {
            let space = self.tally.spaces().iter().rposition(|of| of.pid == number(pid));
            if let (Some(space), Some(spans)) = (space, spans(pid)) {
                planned.insert(space, spans);
            }
        }
        planned
    }

    fn gathered(
        self,
        pid: u32,
        comm: String,
        planned: HashMap<usize, Vec<AddrRange>>,
        counted: Counted,
        lasted: Duration,
    ) -> Gathered {
        let clock = self.sampler.clock();
        Gathered { pid, comm, tally: self.tally, huge: self.huge, planned, counted, clock, lasted }
    }
}
