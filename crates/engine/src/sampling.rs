//! Samples where processes execute.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tiexec_advise::itlb::{Itlb, MissTime};
use tiexec_advise::samples::Tally;
use tiexec_core::addr::{PageSize, Pages};
use tiexec_core::perf::samples::What;
use tiexec_remap::host_pages;
use tiexec_remap::jumps::{self, Jumps};
use tiexec_sys::perf_sampler::{Clock, Heirs, Sampler, Woken};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, areas, process, processor};
use tiexec_tracee::threads;

/// How often the buffers are emptied.
const DRAIN: Duration = Duration::from_millis(100);
/// The pause between two checks of which processes still live: a command may end at any time.
const LOOK: Duration = Duration::from_millis(500);
/// Samples in a second of each thread's time, unless an option says otherwise. The number divides no
/// usual frequency of a program's periodic work. In a guest, where an interrupt takes 25 µs, the samples
/// cost little more than 1 % of the threads' time.
pub const FREQUENCY: u32 = 499;
/// The same where all processes of the machine are sampled, most of which nobody has asked about. The samples cost them 0.6 % of
/// their time in a guest (`bench/scan`).
pub const OF_ALL: u32 = 199;

/// Sampling in progress.
pub struct Sampling {
    sampler: Sampler,
    tally: Tally,
    /// The only processes to count; if `None`, all processes except this one.
    pub only: Option<HashSet<u32>>,
    /// True if the caller reads what the processes map, after the sampling.
    samples_only: bool,
    /// Samples of other processes than `only`. Those of this process do not count.
    others: u64,
}

impl Sampling {
    /// Begins with all threads of some running processes. Skips processes that have ended.
    ///
    /// # Errors
    /// As [`Sampler::open`].
    pub fn of_running(
        pids: &[Pid],
        heirs: Heirs,
        frequency: u32,
        base: PageSize,
    ) -> Result<Self, SysError> {
        let living = pids.iter().filter_map(|&pid| Some((pid, ProcDir::of(pid).ok()?)));
        let living: Vec<(Pid, ProcDir)> = living.collect();
        let tids: Vec<Pid> =
            living.iter().flat_map(|(pid, process)| threads::list(process, *pid)).collect();
        process::lift_descriptor_limit();
        let sampler = Sampler::open(&tids, heirs, frequency)?;
        // Read maps after the sampler is open, because the records report only what is mapped from now
        // on.
        let mut tally = Tally::new(base);
        for (pid, process) in &living {
            if let Ok(vmas) = areas::vmas(process) {
                tally.add_process(number(*pid), &vmas);
            }
        }
        Ok(Self { sampler, tally, only: None, samples_only: false, others: 0 })
    }

    /// Begins with all processes of the machine at once, and counts these. Where the kernel forbids that, begins with each
    /// thread of these, for which the user may lack some rights or descriptors: processes without the rights are left
    /// out, and then the last ones of the list. The tally knows no mappings.
    ///
    /// Returns the processes that are sampled, too.
    ///
    /// # Errors
    /// As [`Sampler::open`], if none of the processes can be sampled.
    pub fn of_all(
        pids: &[Pid],
        frequency: u32,
        base: PageSize,
    ) -> Result<(Self, Vec<Pid>), SysError> {
        process::lift_descriptor_limit();
        let (sampler, sampled) = match Sampler::open_everywhere(frequency) {
            Ok(sampler) => (sampler, pids.to_vec()),
            Err(error) if is_forbidden(error) => Self::of_each(pids.to_vec(), frequency)?,
            Err(error) => return Err(error),
        };
        let only = Some(sampled.iter().map(|&pid| number(pid)).collect());
        let tally = Tally::new(base);
        Ok((Self { sampler, tally, only, samples_only: true, others: 0 }, sampled))
    }

    /// Opens a sampler of as many of the processes as may be sampled.
    fn of_each(mut pids: Vec<Pid>, frequency: u32) -> Result<(Sampler, Vec<Pid>), SysError> {
        let open = |pids: &[Pid]| {
            let living = pids.iter().filter_map(|&pid| Some((pid, ProcDir::of(pid).ok()?)));
            let tids: Vec<Pid> = living.flat_map(|(pid, of)| threads::list(&of, pid)).collect();
            Sampler::open_by_time(&tids, frequency)
        };
        loop {
            match open(&pids) {
                Err(error) if error.errno == Errno::MFILE && pids.len() > 1 => {
                    pids.truncate(pids.len() / 2);
                }
                Err(error) if is_forbidden(error) => {
                    let before = pids.len();
                    pids.retain(|&pid| !matches!(open(&[pid]), Err(error) if is_forbidden(error)));
                    if pids.is_empty() || pids.len() == before {
                        return Err(error);
                    }
                }
                opened => return Ok((opened?, pids)),
            }
        }
    }

    /// Begins with this process, which is about to start another.
    ///
    /// # Errors
    /// As [`Sampler::open`].
    pub fn of_children(frequency: u32, base: PageSize) -> Result<Self, SysError> {
        // Child processes must inherit the event. Unwanted samples are dropped later.
        let sampler = Sampler::open(&[process::this()], Heirs::Processes, frequency)?;
        let tally = Tally::new(base);
        Ok(Self { sampler, tally, only: None, samples_only: false, others: 0 })
    }

    /// Samples until `end`, until all have ended, or until `over`. Calls `look` on the living processes
    /// at intervals and at the end.
    ///
    /// # Errors
    /// As ppoll(2).
    pub fn until(
        &mut self,
        end: Option<Instant>,
        mut over: impl FnMut() -> bool,
        mut look: impl FnMut(&Tally),
    ) -> Result<(), SysError> {
        // The first look is early, so that it also sees processes that end soon.
        let mut look_at = Instant::now() + DRAIN;
        loop {
            let left = end.map_or(DRAIN, |end| end.saturating_duration_since(Instant::now()));
            // Ask before the records are read, so that no last record is missed.
            let over = over() || left.is_zero();
            let woken = match self.sampler.wait(left.min(DRAIN)) {
                Err(error) if error.errno == Errno::INTR => Woken::Records,
                woken => woken?,
            };
            self.drain();
            if over || woken == Woken::End {
                look(&self.tally);
                return Ok(());
            }
            if Instant::now() >= look_at {
                look(&self.tally);
                look_at = Instant::now() + LOOK;
            }
        }
    }

    /// Returns the clock by which samples are taken.
    pub fn clock(&self) -> Clock {
        self.sampler.clock()
    }

    /// Returns what has been seen.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns how many samples other processes had.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Ends it; returns what has been seen.
    pub fn end(self) -> Tally {
        self.tally
    }

    fn drain(&mut self) {
        let this = std::process::id();
        for what in self.sampler.read() {
            let of = match &what {
                What::Sample { pid, .. } => Some(*pid),
                _ => None,
            };
            let wanted = match &self.only {
                None => of != Some(this),
                Some(only) => of.is_none_or(|pid| only.contains(&pid)),
            };
            if !wanted {
                self.others += u64::from(of != Some(this));
            } else if !self.samples_only || matches!(what, What::Sample { .. } | What::Lost(_)) {
                self.tally.add(what);
            }
        }
    }
}

fn is_forbidden(error: SysError) -> bool {
    matches!(error.errno, Errno::PERM | Errno::ACCES)
}

/// Returns, in words, why sampling is refused, and what would help.
pub fn refusal(error: SysError) -> String {
    let knob = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let fix = match error.errno {
        // The kernel runs the filter before it checks the caller's rights.
        Errno::PERM | Errno::ACCES if is_filtered() => {
            "; it may be forbidden by the seccomp filter that tiexec runs under, such as that of a container"
                .to_owned()
        }
        Errno::PERM | Errno::ACCES => format!(
            "; kernel.perf_event_paranoid is {}: up to 2 a user may sample processes of their own, beyond \
             that it takes CAP_PERFMON",
            knob("perf_event_paranoid")
        ),
        Errno::MFILE => {
            "; it has more threads, times processors, than descriptors are allowed; fix: raise the limit (ulimit -n)"
                .to_owned()
        }
        Errno::INVAL => {
            format!("; kernel.perf_event_max_sample_rate is {}", knob("perf_event_max_sample_rate"))
        }
        _ => String::new(),
    };
    format!("{error}{fix}")
}

/// Returns whether this process runs under a seccomp filter.
fn is_filtered() -> bool {
    let status = ProcDir::this_process().and_then(|process| process.status());
    status.is_ok_and(|status| status.seccomp == 2)
}

/// Returns the instruction TLB of this machine and what a miss costs, as far as recorded jumps show them. Measures the jumps if there is no
/// record. Without memory to spare for that, the processor's own figures and the usual cost count.
pub fn tlb(pages: Pages) -> (Itlb, MissTime) {
    let itlb = Itlb::of(&processor::read());
    let Ok(Jumps { times, levels }) = jumps::of_machine(pages) else {
        return (itlb, MissTime::USUAL);
    };
    let is_split = host_pages::known().or_else(|| host_pages::measured(pages)) == Some(true);
    let itlb = itlb.measured(levels, is_split);
    let time = MissTime::of_jumps(&times, &itlb).on_host(is_split);
    (itlb, time)
}

/// Returns a process id as records have it.
pub fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
