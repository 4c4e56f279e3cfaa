//! `--max-huge-pages`: sampling a process first, and then taking its hottest huge pages only.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tiexec_advise::budget::{Heat, choose};
use tiexec_advise::itlb::{Itlb, MissTime};
use tiexec_advise::samples::Tally;
use tiexec_core::addr::RemoteAddr;
use tiexec_core::budget::{Budget, Choice};
use tiexec_core::config::{BackingChoice, Settings};
use tiexec_remap::Failure;
use tiexec_remap::attach::attach;
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_sys::perf_sampler::Heirs;
use tiexec_sys::{Pid, SysError, areas, processor};

use crate::locked_target::{LockedTarget, Treated};
use crate::policy::policy;
use crate::sampling::{FREQUENCY, Sampling, number, tlb};

/// How long to sample if `--settle` does not say.
const USUAL: Duration = Duration::from_secs(5);

/// The places where some processes have executed.
#[derive(Debug)]
pub struct Hot {
    tally: Tally,
    budget: Budget,
    itlb: Itlb,
    time: MissTime,
    policy: Policy,
}

impl Hot {
    /// Samples the processes, for as long as the settings say; with `dry_run`, only to plan. Calls `progress` meanwhile
    /// with the whole time and the number of samples so far.
    ///
    /// # Errors
    /// EACCES, EPERM where `kernel.perf_event_paranoid` or a filter forbids it, and for processes of other
    /// users; ESRCH if the processes have ended; ENOSYS without transparent huge pages.
    pub fn sample(
        pids: &[Pid],
        budget: Budget,
        settings: &Settings,
        dry_run: bool,
        mut progress: impl FnMut(Duration, u64),
    ) -> Result<Self, SysError> {
        let mut policy = policy(settings, dry_run)
            .map_err(|_none| SysError { call: "huge pages", errno: tiexec_sys::Errno::NOSYS })?;
        // Use copies, unless the user names the page cache. Once a file's page cache is huge, the kernel maps
        // all of it huge, not only the hottest part.
        policy.sources.pagecache = settings.backing == BackingChoice::Pagecache;
        let pages = policy.pages;
        let mut sampling = Sampling::of_running(pids, Heirs::Threads, FREQUENCY, pages.base)?;
        let time = if settings.settle().is_zero() { USUAL } else { settings.settle() };
        let samples = Cell::new(0);
        let over = || {
            progress(time, samples.get());
            false
        };
        let count = |tally: &Tally| samples.set(tally.by_process().values().sum());
        sampling.until(Instant::now().checked_add(time), over, count)?;
        // Only `auto` needs to know this machine.
        let (itlb, time) = match budget {
            Budget::Auto | Budget::AutoUpTo(_) => tlb(pages),
            Budget::Pages(_) => (Itlb::of(&processor::read()), MissTime::USUAL),
        };
        Ok(Self { tally: sampling.end(), budget, itlb, time, policy })
    }

    /// Chooses the huge pages of a process.
    ///
    /// # Errors
    /// The process could not be read.
    pub fn choose(&self, locked: &LockedTarget) -> Result<Choice, Failure> {
        let order = locked.order(Policy { dry_run: true, ..self.policy });
        let planned = attach(&order, &mut Images::default())?.plan;
        let pages = self.policy.pages;
        let step = pages.pmd.bytes() as usize;
        let candidates: Vec<RemoteAddr> = planned
            .spans()
            .flat_map(|span| (span.range.start().get()..span.range.end().get()).step_by(step))
            .map(RemoteAddr::new)
            .collect();
        let pid = number(locked.target.pid);
        let space = self.tally.spaces().iter().rposition(|of| of.pid == pid && of.current);
        let samples: Vec<(RemoteAddr, u64)> = self
            .tally
            .pages()
            .filter(|page| Some(page.space) == space)
            .map(|page| (page.at, page.samples))
            .collect();
        let huge = areas::huge_text(&locked.target.process, pages).unwrap_or_default();
        let heat = Heat {
            pages,
            samples: &samples,
            huge: &huge,
            candidates: &candidates,
            itlb: &self.itlb,
            time: self.time,
        };
        Ok(choose(self.budget, &heat))
    }

    /// Treats a process once: takes its hottest huge pages. The report says which.
    ///
    /// # Errors
    /// As [`LockedTarget::treat_once`].
    pub fn treat_once(
        &self,
        locked: &LockedTarget,
        images: &mut Images,
    ) -> Result<Treated, Failure> {
        let choice = self.choose(locked)?;
        let allowed: Vec<RemoteAddr> = choice.pages.iter().map(|page| page.start).collect();
        let mut order = locked.order(self.policy);
        order.allowed = Some(&allowed);
        let mut treated = locked.treat_once(&order, images)?;
        treated.report.budget = Some(choice);
        Ok(treated)
    }
}
