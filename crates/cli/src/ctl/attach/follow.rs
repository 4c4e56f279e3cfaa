//! `tiexec -p PID --follow`, `--settle`: an attach that continues to watch the processes.

use std::time::Instant;

use tiexec_core::config::Settings;
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::follow::{Follower, Patterns, without_watch};
use tiexec_engine::watch::Tell;
use tiexec_remap::images::Images;
use tiexec_sys::perf_watch::{Heirs, Watch};
use tiexec_sys::procfs::{self, ProcDir};
use tiexec_sys::{Pid, process};
use tiexec_tracee::absence::Absence;
use tiexec_tracee::threads;

use super::{ATTACH, Job, Many};
use crate::exit;
use crate::stdio::warn;

/// Attaches to each process and, with `--follow`, to their descendants. Then watches them until all have ended or, with
/// `--settle`, until that time is over. Returns the exit status of the first pass.
pub(super) fn stay(pids: &[Pid], job: &Job<'_>, tell: Tell<'_>) -> u8 {
    let settings = job.settings;
    let patterns = match Patterns::new(&settings.only, &settings.except) {
        Ok(patterns) => patterns,
        Err(error) => {
            warn(error);
            return exit::USAGE;
        }
    };
    let end = (!settings.settle().is_zero()).then(|| Instant::now() + settings.settle());
    // A signal ends the watch only between two processes, never during the work on one.
    process::block_signals();
    // The watch starts first, so that it reports a process that begins during the first pass.
    let watch = watch(pids, settings.follow);
    let mut all = Tree::of(pids).walk(settings.follow);
    all.retain(|pid| {
        let path = || ProcDir::of(*pid).and_then(|process| process.exe_path());
        pids.contains(pid) || path().is_ok_and(|path| patterns.accept(&path))
    });
    if all.is_empty() {
        all.extend(pids);
    }
    let mut images = Images::default();
    let many = Many { quiet: settings.quiet, ..ATTACH };
    let status = job.each(&many, &all, &mut images);
    if !failed_for_good(&all, settings, status)
        && let Some(follower) = Follower::new(settings, &all, watch, images, tell)
    {
        follower.run(end);
    }
    status
}

/// Returns whether every later attach to the processes must fail.
fn failed_for_good(all: &[Pid], settings: &Settings, status: u8) -> bool {
    matches!(status, exit::GONE | exit::NOT_PERMITTED)
        || settings.is_off()
        || procfs::is_of_another_namespace()
        || all.iter().all(|&pid| Absence::of(pid).is_some())
}

/// Watches every thread of the processes and, with `follow`, of their descendants.
fn watch(pids: &[Pid], follow: bool) -> Option<Watch> {
    let heirs = if follow { Heirs::Processes } else { Heirs::Threads };
    // The watch needs one descriptor for each thread on each processor.
    process::lift_descriptor_limit();
    let tids: Vec<Pid> = Tree::of(pids)
        .walk(follow)
        .into_iter()
        .filter_map(|pid| Some(threads::list(&ProcDir::of(pid).ok()?, pid)))
        .flatten()
        .collect();
    Watch::open(&tids, heirs)
        .inspect_err(|error| warn(without_watch(&error.to_string(), follow)))
        .ok()
}
