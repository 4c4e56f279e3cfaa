//! Samples where processes execute.

use std::time::{Duration, Instant};

use tiexec_advise::itlb::MissTime;
use tiexec_advise::samples::Tally;
use tiexec_core::addr::{PageSize, Pages};
use tiexec_core::perf::samples::What;
use tiexec_remap::headroom;
use tiexec_sys::perf_sampler::{Clock, Heirs, Sampler, Woken};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, areas, jump_timing, process, split_pages};
use tiexec_tracee::threads;

/// How often the buffers are emptied.
const DRAIN: Duration = Duration::from_millis(100);
/// The pause between two checks of which processes still live: a command may end at any time.
const LOOK: Duration = Duration::from_millis(500);
/// Samples in a second of each thread's time, unless an option says otherwise. The number divides no
/// usual frequency of a program's periodic work. In a guest, where an interrupt takes 25 µs, the samples
/// cost little more than 1 % of the threads' time.
pub const FREQUENCY: u32 = 499;

/// Sampling in progress.
pub struct Sampling {
    sampler: Sampler,
    tally: Tally,
    /// The only process to count; if `None`, all processes except this one.
    pub only: Option<u32>,
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
        Ok(Self { sampler, tally, only: None })
    }

    /// Begins with this process, which is about to start another.
    ///
    /// # Errors
    /// As [`Sampler::open`].
    pub fn of_children(frequency: u32, base: PageSize) -> Result<Self, SysError> {
        // Child processes must inherit the event. Unwanted samples are dropped later.
        let sampler = Sampler::open(&[process::this()], Heirs::Processes, frequency)?;
        Ok(Self { sampler, tally: Tally::new(base), only: None })
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
            let wanted =
                self.only.map_or(of != Some(this), |only| of.is_none_or(|pid| pid == only));
            if wanted {
                self.tally.add(what);
            }
        }
    }
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

/// Measures what a miss costs on this machine. Returns the usual cost if there is no memory to spare for
/// the measurement.
pub fn miss_time(pages: Pages) -> MissTime {
    let room = |process: ProcDir| headroom::check(&process, jump_timing::MEMORY).is_ok();
    if !ProcDir::this_process().is_ok_and(room) {
        return MissTime::USUAL;
    }
    jump_timing::measure(pages).map_or(MissTime::USUAL, |times| {
        MissTime::of_jumps(times.iter().map(|times| (times.base_ns, times.huge_ns)))
            .on_host(split_pages::are_split_here(pages) == Some(true))
    })
}

/// Returns a process id as records have it.
pub fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
