//! `tiexecctl advise`: whether huge pages would help a program.
//!
//! Nobody is stopped and nothing is changed: the kernel samples where the program executes, and its
//! `/proc` files are read.

mod gather;

use std::collections::HashSet;
use std::time::Duration;

use tiexec_advise::advice::{Advice, Circumstances, Sampling, TextAdvice};
use tiexec_advise::itlb::{Itlb, Verdict};
use tiexec_advise::samples::Tally;
use tiexec_core::escape::AsShown;
use tiexec_engine::locked_target::LONGEST;
use tiexec_engine::sampling::miss_time;
use tiexec_remap::store::directory::Directory;
use tiexec_remap::workers;
use tiexec_sys::perf_sampler::Clock;
use tiexec_sys::{Pid, process, processor, thp};

use super::attach::looked_at;
use super::{can_write, write};
use crate::exit;
use crate::options::Advise;
use crate::stdio::warn;

use gather::Gathered;

/// Advice, and what it is made of.
pub(super) struct Advised {
    pub(super) advice: Advice,
    pub(super) tally: Tally,
    pub(super) circumstances: Circumstances,
}

/// Runs `advise`; returns the exit status: that there was nothing to sample is a failure.
pub(super) fn run(options: &Advise) -> u8 {
    if let Err(status) = can_write(options.output.as_deref()) {
        return status;
    }
    let advise = || match sample(options) {
        Ok(Advised { advice, .. }) => {
            let text = if options.json { advice.to_json() + "\n" } else { advice.to_string() };
            write(&text, options.output.as_deref())
        }
        Err(status) => status,
    };
    match options.pid {
        Some(pid) => sampled("advise on", pid, options.duration, advise),
        None => advise(),
    }
}

/// Does `work`, which samples the process for `duration` and looks at it: apart if the process has other credentials.
pub(super) fn sampled(
    doing: &str,
    pid: i32,
    duration: Option<Duration>,
    work: impl FnOnce() -> u8,
) -> u8 {
    let patience = duration.unwrap_or(gather::USUAL).saturating_add(LONGEST);
    if Pid::from_raw(pid).is_some_and(workers::is_foreign) {
        // Ctrl-C ends the sampling, and what was seen until then is told.
        process::ignore_interrupts();
    }
    looked_at(doing, pid, patience, work)
}

/// Samples, and puts together what is to be told.
///
/// # Errors
/// The exit status for what has been said on stderr.
pub(super) fn sample(options: &Advise) -> Result<Advised, u8> {
    let pages = thp::pages().ok_or_else(|| {
        warn("cannot advise: the kernel has no transparent huge pages");
        exit::FAILED
    })?;
    let gathered = gather::gather(options, pages)?;
    let Gathered { pid, comm, tally, huge, planned, counted, clock, lasted } = gathered;
    let processes: HashSet<u32> =
        tally.pages().map(|page| tally.spaces()[page.space].pid).collect();
    let sampling = Sampling {
        clock: match clock {
            Clock::Cycles => "cycles",
            Clock::CpuClock => "cpu_clock",
        },
        frequency: options.frequency,
        duration_ms: u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX),
        samples: tally.pages().map(|page| page.samples).sum(),
        lost: tally.lost(),
        processes: processes.len(),
    };
    let itlb = Itlb::of(&processor::read());
    // This comes after the sampling, so that it disturbs no process that is sampled.
    let time = miss_time(pages);
    let circumstances = Circumstances { pages, huge, planned, itlb, time };
    let advice = Advice::new(pid, comm, &tally, &circumstances, sampling, counted);
    let mut advice = advice.ok_or_else(|| {
        let seconds = lasted.as_secs_f64();
        let what = match options.pid {
            Some(_) => format!("process {pid}"),
            None => options.command.first().map_or_else(String::new, |it| it.shown().to_string()),
        };
        let fix = match (options.pid, options.follow) {
            (None, false) => "with its children (advise --follow), or a run that takes longer",
            (None, true) => "a run that takes longer",
            (Some(_), false) => {
                "while it is busy, for longer (--duration), or with its children (advise --follow)"
            }
            (Some(_), true) => "while it is busy, or for longer (--duration)",
        };
        warn(format_args!(
            "{what}: there was nothing to sample in {seconds:.1} s: it was idle, in the kernel, or had ended; \
             fix: {fix}"
        ));
        exit::FAILED
    })?;
    if is_for_a_store(&advice) && Directory::all().is_ok_and(|stores| stores.usable.is_empty()) {
        let reason = "most of that is in shared libraries; a program that is launched gets them onto huge pages \
                      where their page cache can be huge, else by an image store (tiexecctl store setup) or \
                      with --backing image only";
        advice.judgement.reasons.push(reason.to_owned());
    }
    Ok(Advised { advice, tally, circumstances })
}

/// Whether most of what there is to gain lies in shared libraries.
fn is_for_a_store(advice: &Advice) -> bool {
    let gain = |text: &TextAdvice| text.share * (text.on_huge_then - text.on_huge_now).max(0.0);
    let is_library = |text: &&TextAdvice| text.path.ends_with(".so") || text.path.contains(".so.");
    let of_libraries: f64 = advice.files.iter().filter(is_library).map(gain).sum();
    advice.judgement.verdict != Verdict::NotWorthIt && of_libraries > gain(&advice.text) / 2.0
}
