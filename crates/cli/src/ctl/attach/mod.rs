//! `tiexec -p PID`, `tiexecctl attach`, `tiexecctl revert`.

mod follow;
mod scheduled_revert;
mod turns;
mod wait_exec;

use turns::{Many, Turn, each, each_and_more};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tiexec_core::addr::mib;
use tiexec_core::config::Settings;
use tiexec_core::coverage::backings_in_words;
use tiexec_core::escape::{self, in_shell};
use tiexec_core::plan::Plan;
use tiexec_core::report::{JitArea, Outcome, Report, Restart, percent};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::hottest::Hot;
use tiexec_engine::identity::Identity;
use tiexec_engine::locked_target::{Lasts, LockedTarget, Treated, look_for_text_of_ours};
use tiexec_engine::policy::{policy, too_large};
use tiexec_engine::sampling::refusal;
use tiexec_engine::switched_off;
use tiexec_remap::Failure;
use tiexec_remap::attach::Reverted;
use tiexec_remap::host_pages;
use tiexec_remap::images::Images;
use tiexec_remap::workers::{self, Pool};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::PathFile;
use tiexec_sys::{Pid, thp};
use tiexec_tracee::target::Target;

use super::families::{Figures, Printer, STOP, Seen, UNDO, WHO};
use super::progress::{Progress, sampling, who};
use super::targets::{failed, failed_of, fix_of, named, select, selected, targets};
use super::told;
use crate::exit;
use crate::options::{Attach, Common, Revert};
use crate::settings;
use crate::stdio::{and_fix, warn};

/// Runs `attach`; returns the exit status.
pub(crate) fn run(options: &Attach) -> u8 {
    // With --wait-exec the program need not have begun yet.
    let pids = match options.wait_exec {
        true => Vec::new(),
        false => match targets(&options.targets) {
            Ok(pids) => pids,
            Err(status) => return status,
        },
    };
    let settings = match settings_of(options) {
        Ok(settings) => settings,
        Err(what) => {
            warn(what);
            return exit::USAGE;
        }
    };
    let Attach { targets, common: Common { each: each_one, json, quiet, .. }, .. } = options;
    let job = |count: usize, hot| {
        // A unit may end the attach at any time: what is done by then has been said.
        let each_one = *each_one || options.wait_exec;
        let printer = Printer::new(targets, count, each_one, *json, *quiet && !options.dry_run);
        Job { options, settings: &settings, hot, printer }
    };
    // All processes share these images, so that processes of one program get the same image.
    let mut images = Images::default();
    if options.wait_exec {
        return wait_exec::run(targets, |pids| {
            let many = Many { quiet: true, ..ATTACH };
            job(pids.len(), None).each(&many, pids, &mut images)
        });
    }
    let many = Many {
        named: named(&options.targets),
        quiet: options.common.quiet,
        after_interrupt: (!options.dry_run)
            .then(|| format!("undo: {}", revert_command(options.targets.words()))),
        ..ATTACH
    };
    if let Some(budget) = settings.max_huge_pages {
        let (mut progress, begun) = (Progress::unless(options.common.quiet), Instant::now());
        let what = who(&pids);
        let shows = |time, samples| progress.at(|| sampling(&what, begun, time, samples));
        let hot = match Hot::sample(&pids, budget, &settings, options.dry_run, shows) {
            Ok(hot) => hot,
            Err(error) => {
                warn(format_args!("cannot tell what is hottest: {}", refusal(error)));
                return super::failed_status(error.errno);
            }
        };
        drop(progress);
        return job(pids.len(), Some(&hot)).each(&many, &pids, &mut images);
    }
    let job = job(pids.len(), None);
    if !options.dry_run && (settings.follow || !settings.settle().is_zero()) {
        let mut printed = exit::OK;
        let alone = Printer::new(targets, 1, true, *json, *quiet);
        let mut tell = |locked: &LockedTarget, treated: &Treated| {
            let json = || treated.report.to_json();
            let seen = alone.one(locked.target.pid, seen(locked, treated, false), json);
            printed = told(printed, seen.status);
        };
        return told(follow::stay(&pids, &job, &mut tell), printed);
    }
    job.each(&many, &pids, &mut images)
}

/// An attach to one or more processes.
struct Job<'a> {
    options: &'a Attach,
    settings: &'a Settings,
    /// The hottest huge pages, if only they are wanted.
    hot: Option<&'a Hot>,
    printer: Printer<'a>,
}

impl Job<'_> {
    /// Attaches to each process, and prints the outcomes. Returns the exit status.
    fn each(&self, many: &Many, pids: &[Pid], images: &mut Images) -> u8 {
        let one = |pid, pool: &mut Pool, turn| self.one(pid, images, pool, turn);
        each(many, pids, &self.printer, one)
    }

    /// Attaches to one process. Returns the outcome; `None` if its turn comes again.
    fn one(&self, pid: Pid, images: &mut Images, pool: &mut Pool, turn: Turn) -> Option<Seen> {
        let Self { options, settings, hot, printer } = self;
        if settings.is_off() && !options.dry_run {
            let by = if let Some((why, fix)) = switched_off::why() {
                format!("{why}; fix: {fix}")
            } else {
                let option =
                    options.settings.say("backing").then(|| options.settings.alone().backing);
                settings::switched_off_by(option).to_owned()
            };
            let failure = Failure::new(SkipReason::Disabled, by);
            return Some(failed("attach to", pid, &failure).into());
        }
        let mut locked = match LockedTarget::open_in_turn(pid, pool) {
            Ok(locked) => locked,
            Err(failure) => {
                return Some(failed_of("attach to", pid, &failure, &options.targets).into());
            }
        };
        (locked.search, locked.lasts) = (turn.search, options.common.lasts());
        if options.common.started_at.is_some_and(|wanted| locked.start_time() != Some(wanted)) {
            return Some(exit::GONE.into());
        }
        say_if_unlocked(&locked, options.common.quiet);
        let done = match hot {
            Some(hot) => hot.treat_once(&locked, images),
            None => policy(settings, options.dry_run)
                .and_then(|policy| locked.treat_once(&locked.order(policy), images)),
        };
        let mut treated = match done {
            Ok(treated) => treated,
            Err(failure) if turn.comes_again(&failure) => return None,
            Err(failure) => {
                locked.record_refusal(&failure);
                return Some(failed_of("attach to", pid, &failure, &options.targets).into());
            }
        };
        let Treated { attached, report } = &mut treated;
        if options.dry_run {
            let plan = &attached.plan;
            let whose = printer.has_several().then(|| format!("{} {WHO}: ", locked.target.comm));
            let text = format!("{}{plan}", whose.unwrap_or_default());
            let seen = Seen { text, program: program(&locked.target), ..Seen::default() };
            return Some(printer.one(pid, seen, || plan.to_json(None, None)));
        }
        if let (Some(size), None, 0) = (
            settings.pool_page(),
            &attached.failure,
            attached.plan.huge_bytes().max(report.huge_bytes),
        ) {
            attached.failure = Some(Failure::new(SkipReason::PageSize, too_large(size)));
        }
        let mut seen = seen(&locked, &treated, printer.has_several());
        seen.status = status_of(&locked, &treated);
        if let Some(time) = options.for_
            && (treated.attached.touched_it() || locked.has_text_of_ours() == Some(true))
        {
            let start_time = locked.start_time().unwrap_or(0);
            match scheduled_revert::revert_after(pid, start_time, time) {
                Ok(()) => {
                    let comm = &locked.target.comm;
                    seen.text += &format!("{comm} {WHO}: its own text comes back in {time:?}\n");
                }
                Err(error) => {
                    warn(format_args!(
                        "cannot revert process {} by itself in {time:?}: {error}; fix: tiexecctl revert {0}",
                        pid.as_raw_nonzero()
                    ));
                    seen.status = exit::PARTIAL;
                }
            }
        }
        // The measurement of a host takes a second or more. Others may work on the process meanwhile.
        let target = locked.into_target();
        if treated.report.huge_bytes > 0 {
            let split = thp::pages().and_then(host_pages::are_split);
            treated.report.host_splits = split;
            if split == Some(true) && treated.changed_it() && !options.common.quiet {
                warn_of_host(&target);
            }
        }
        Some(printer.one(pid, seen, || treated.report.to_json()))
    }
}

/// Warns, once a day and program, that the host splits huge pages.
fn warn_of_host(target: &Target) {
    if let Some(warning) = host_pages::warning_of_today(&program(target)) {
        let (comm, pid) = (&target.comm, target.pid.as_raw_nonzero());
        let pid = pid.to_string();
        warn(format_args!("{comm} {pid}: {warning}; {}", host_pages::how_to_measure(&pid)));
    }
}

/// An attach to many processes.
const ATTACH: Many = Many {
    doing: "attach to",
    label: "attaching",
    named: false,
    quiet: false,
    after_interrupt: None,
};
/// A revert of many processes.
const REVERT: Many = Many { doing: "revert", label: "reverting", ..ATTACH };

/// Returns the command that reverts the processes that these words select.
fn revert_command(words: Vec<OsString>) -> String {
    let command = ["tiexecctl", "revert"].map(OsString::from);
    in_shell(command.into_iter().chain(words))
}

/// Returns the settings of an attach, from all sources.
///
/// # Errors
/// The message about a value that is not valid.
fn settings_of(options: &Attach) -> Result<Settings, String> {
    // Only options can request later work. Other sources are ignored here, so that an attach returns unless the user
    // asked it to stay.
    let later = options.settings.alone();
    let said = options.settings.clone().and(options.common.quiet.then_some(("quiet", None)));
    Ok(Settings {
        follow: later.follow,
        settle: later.settle,
        max_huge_pages: later.max_huge_pages,
        only: later.only,
        except: later.except,
        ..settings::settings(&said)?
    })
}

/// Runs `revert`; returns the exit status.
pub(crate) fn run_revert(options: &Revert) -> u8 {
    if let Some(time) = options.after {
        scheduled_revert::wait(Duration::from_millis(time));
    }
    let mut unseen = Vec::new();
    let pids = if options.all {
        select::every(|pid, process| {
            let has = look_for_text_of_ours(process);
            unseen.extend(has.is_none().then_some(pid));
            has == Some(true)
        })
    } else {
        match targets(&options.targets) {
            Ok(pids) => pids,
            Err(status) => return status,
        }
    };
    let Common { each: each_one, json, quiet, .. } = options.common;
    let printer = Printer::new(&options.targets, pids.len(), each_one, json, quiet);
    let one = |pid, pool: &mut Pool, turn| {
        // The start time is that of the named process, not of those that were forked from it.
        let started_at = options.common.started_at.filter(|_| pids.contains(&pid));
        revert_one(pid, options, started_at, &printer, pool, turn)
    };
    let words = if options.all { vec!["--all".into()] } else { options.targets.words() };
    let many = Many {
        named: named(&options.targets) && !options.all,
        quiet,
        after_interrupt: (!options.dry_run).then(|| format!("the rest: {}", revert_command(words))),
        ..REVERT
    };
    // A process that was forked from one of them before that one was reverted.
    let forked = |known: &[Pid]| {
        let mut found = match (many.named || options.dry_run, options.all) {
            (true, _) if options.forked => forked_from(&pids, options.common.started_at),
            (true, _) => Vec::new(),
            (_, true) => select::every(|_, _| true),
            (_, false) => selected(&options.targets).unwrap_or_default(),
        };
        let has_text = |process: &ProcDir| look_for_text_of_ours(process) == Some(true);
        found.retain(|pid| {
            !known.contains(pid) && ProcDir::of(*pid).is_ok_and(|process| has_text(&process))
        });
        found
    };
    let status = each_and_more(&many, &pids, &printer, one, forked);
    match (say_unseen(&unseen), status) {
        (false, _) => status,
        (true, exit::OK) if pids.is_empty() => exit::NOT_PERMITTED,
        (true, exit::OK) => exit::PARTIAL,
        (true, _) => status,
    }
}

/// Returns the descendants of processes that have got their text by a fork. Returns none of a process that began at another
/// time.
fn forked_from(pids: &[Pid], started_at: Option<u64>) -> Vec<Pid> {
    let executed = |pid| {
        let process = ProcDir::of(pid).ok()?;
        let exe = PathFile::of_process(&process, "exe").ok()?.identity().ok()?;
        Some((Identity::of(&process)?, exe))
    };
    let mut found = Vec::new();
    for &pid in pids {
        let Some((its, exe)) = executed(pid) else { continue };
        if Some(its.start_time) == started_at && its.program() != 0 {
            let is_forked = |(one, of): (Identity, _)| one.program() == its.program() && of == exe;
            let tree = Tree::of(&[pid]).walk(true).into_iter();
            found.extend(tree.filter(|&one| executed(one).is_some_and(is_forked)));
        }
    }
    found
}

/// Warns that these processes could not be examined. Returns whether there are any.
fn say_unseen(unseen: &[Pid]) -> bool {
    let Some(first) = unseen.first() else { return false };
    let fix = if rustix::process::geteuid().is_root() {
        format!("`tiexecctl inspect {}` says why", first.as_raw_nonzero())
    } else {
        "run it as root".to_owned()
    };
    let (count, first) = (unseen.len(), first.as_raw_nonzero());
    let s = if count == 1 { "" } else { "es" };
    warn(format_args!("cannot look at {count} process{s} (the first is {first}); fix: {fix}"));
    true
}

/// Puts processes onto copies, or reverts them if `settings` is `None`. After `until` it begins with no other process, which
/// counts as failed. Reports only errors. Returns the exit status.
pub(crate) fn switch(
    pids: &[Pid],
    settings: Option<&Settings>,
    lasts: Lasts,
    until: Option<Instant>,
) -> u8 {
    let is_late = || until.is_some_and(|until| Instant::now() >= until);
    let common = Common { quiet: true, lasts, ..Common::default() };
    let Some(settings) = settings else {
        let options = Revert { common, ..Revert::default() };
        let printer = Printer::silent(&options.targets);
        return each(
            &Many { quiet: true, ..REVERT },
            pids,
            &printer,
            |pid, pool, turn| match is_late() {
                true => Some(exit::FAILED.into()),
                false => revert_one(pid, &options, None, &printer, pool, turn),
            },
        );
    };
    let options = &Attach { common, ..Attach::default() };
    let job = Job { options, settings, hot: None, printer: Printer::silent(&options.targets) };
    let mut images = Images::default();
    each(&Many { quiet: true, ..ATTACH }, pids, &job.printer, |pid, pool, turn| match is_late() {
        true => Some(exit::FAILED.into()),
        false => job.one(pid, &mut images, pool, turn),
    })
}

/// The plan of an attach.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rehearsed {
    /// How much text would become huge, in bytes.
    pub(crate) planned: u64,
    /// How much text is huge already, in bytes.
    pub(crate) huge: u64,
    /// Why the largest part of the other text would not, in words.
    why: Option<String>,
}

impl Rehearsed {
    /// Returns how much text would be huge after the attach, in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.planned.max(self.huge)
    }

    /// Returns the reason for a message: empty, or with a colon before it.
    pub(crate) fn because(&self) -> String {
        self.why.as_ref().map_or(String::new(), |why| format!(": {why}"))
    }
}

/// Plans an attach to a process, and changes nothing. For a process of another user it takes at most `patience`.
///
/// # Errors
/// An attach could not begin, such as because this process may not trace the process. Or none of the text would be huge,
/// and some of it is left out because something failed: then the plan does not show what is possible.
pub(crate) fn rehearse(
    pid: Pid,
    settings: &Settings,
    patience: Duration,
) -> Result<Rehearsed, Failure> {
    let one = |pid, pool: &mut Pool| {
        let locked = LockedTarget::open_in_turn(pid, pool)?;
        let order = locked.order(policy(settings, true)?);
        let Treated { attached, report } = locked.treat_once(&order, &mut Images::default())?;
        let planned = attached.plan.huge_bytes();
        let parts = || report.files.iter().flat_map(|file| &file.rest);
        let failed = parts().map(|part| part.reason).find(|why| matches!(why, Reason::Failed(_)));
        if let Some(why) = failed.filter(|_| planned == 0) {
            return Err(Failure::new(why, ""));
        }
        let largest = parts().max_by_key(|part| part.bytes);
        let why = largest.map(|part| part.reason.to_string());
        Ok(Rehearsed { planned, huge: report.huge_bytes, why })
    };
    if !workers::pid_is_of_others(pid) {
        return one(pid, &mut Pool::default());
    }
    let gave_up = |_, failure: &Failure| Err(failure.clone());
    let gone = || Err(Failure::new(FailureKind::TargetGone, ""));
    workers::each_apart(&[pid], patience, one, gave_up).pop().unwrap_or_else(gone)
}

/// How long the rehearsal of one process of another user may take, if only a warning depends on it.
const BRIEFLY: Duration = Duration::from_secs(10);
/// Most programs of a selection that are rehearsed.
const MOST_PROGRAMS: usize = 16;

/// Plans an attach to one process of each selected program, and changes nothing. Returns the plan by which most text is
/// huge; `None` if no process is selected, there are too many programs, or one of them cannot be examined. The processes
/// decide what the plans show, so nothing but a warning may depend on them.
pub(crate) fn rehearse_selected(options: &Attach) -> Option<Rehearsed> {
    let settings = settings_of(options).ok()?;
    // No plan has the code that the program makes itself.
    if settings.is_off() || settings.select.jit {
        return None;
    }
    let mut programs = BTreeMap::new();
    for pid in selected(&options.targets).ok()? {
        programs.entry(ProcDir::of(pid).ok()?.exe_path().ok()?).or_insert(pid);
    }
    if programs.len() > MOST_PROGRAMS {
        return None;
    }
    let mut best: Option<Rehearsed> = None;
    for pid in programs.into_values() {
        let one = rehearse(pid, &settings, BRIEFLY).ok()?;
        if best.as_ref().is_none_or(|best| best.total() < one.total()) {
            best = Some(one);
        }
    }
    best
}

/// Warns if the lock against other TiExecs is missing.
fn say_if_unlocked(locked: &LockedTarget, quiet: bool) {
    let Some(why) = locked.lock.missing().filter(|_| !quiet) else { return };
    let pid = locked.target.pid.as_raw_nonzero();
    let fix = if rustix::process::geteuid().is_root() {
        "give root a /run that only root may write to"
    } else {
        "set XDG_RUNTIME_DIR to a directory of your own with mode 0700"
    };
    warn(format_args!("cannot lock process {pid} against other TiExecs: {why}; fix: {fix}"));
}

/// Returns the path of the program of the process.
fn program(target: &Target) -> Vec<u8> {
    target.process.exe_path().unwrap_or_default()
}

/// Warns if the attach failed. Returns the exit status.
fn status_of(locked: &LockedTarget, treated: &Treated) -> u8 {
    let Treated { attached, report } = treated;
    let Some(failure) = &attached.failure else { return exit::OK };
    if report.outcome == Outcome::Partial {
        warn(format_args!(
            "cannot attach to all text of process {} ({}): {failure}{}",
            locked.target.pid.as_raw_nonzero(),
            locked.target.comm,
            and_fix(&failure.detail, fix_of(failure.reason))
        ));
        return exit::PARTIAL;
    }
    failed("attach to", locked.target.pid, failure)
}

/// Returns the outcome for people and for the sum. If nothing was done, there is no text, because the message about the
/// failure says everything. `several` as in [`text`].
fn seen(locked: &LockedTarget, treated: &Treated, several: bool) -> Seen {
    let Treated { attached, report } = treated;
    let has_text = attached.failure.is_none() || report.outcome == Outcome::Partial;
    Seen {
        status: exit::OK,
        program: program(&locked.target),
        text: if has_text { text(locked, treated, several) } else { String::new() },
        figures: Some(Figures::from(report)),
        stop: attached.stop.map(|stop| stop.lasted),
    }
}

/// Returns the text about the outcome for people: a line, and what needs more. The text about one of `several` processes,
/// which share their copies, has no cost; their sum has it.
fn text(locked: &LockedTarget, treated: &Treated, several: bool) -> String {
    let Treated { attached, report } = treated;
    let Report { text_bytes, huge_bytes, .. } = *report;
    let mut line = format!(
        "{} {WHO}: huge {} of {} MiB text ({} %)",
        locked.target.comm,
        mib(huge_bytes),
        mib(text_bytes),
        percent(huge_bytes, text_bytes)
    );
    let by = if several {
        let names: Vec<String> = report.by_backing.keys().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| names.join(" + "))
    } else {
        backings_in_words(&report.by_backing)
    };
    let by = by.map_or_else(String::new, |words| format!(" by {words}"));
    match &attached.stop {
        Some(_) => {
            let stopped = format!("one thread stopped for {STOP}");
            line += &match Plan::main_backing(&attached.plan) {
                Some(_) => format!("{by}, {stopped}; undo: tiexecctl revert {UNDO}"),
                None => format!("; removed what a killed TiExec had left, {stopped}"),
            };
        }
        None if attached.from_outside > 0 => line += &format!("{by}, no thread stopped"),
        None if attached.failure.is_none() && report.jit.is_empty() => {
            line += "; nothing to do";
            let parts = report.files.iter().flat_map(|file| &file.rest);
            if let (0, Some(largest)) = (huge_bytes, parts.max_by_key(|part| part.bytes)) {
                line += &format!(": {}", largest.reason);
            }
        }
        None => {}
    }
    if let Some((huge, populated)) = JitArea::sums(&report.jit) {
        line += &format!("; jit huge {} of {} MiB", mib(huge), mib(populated));
    }
    if let Some(Restart { text_bytes, launch_bytes, command, .. }) = &report.restart {
        let (text, launch) = (mib(*text_bytes), mib(*launch_bytes));
        line += &format!("; a start by {command} gives {launch} of {text} MiB of its own text");
    }
    line += "\n";
    if let Some(choice) = &report.budget {
        line += &format!("  budget {}: {choice}\n", choice.budget);
    }
    for area in &report.jit {
        if let Some(refused) = &area.refused {
            line += &format!("  jit {:?}: {refused}\n", area.range);
        }
    }
    line
}

/// Reverts one process, if it began at `started_at`, where that is given. Returns the outcome; `None` if its turn comes
/// again.
fn revert_one(
    pid: Pid,
    options: &Revert,
    started_at: Option<u64>,
    printer: &Printer<'_>,
    pool: &mut Pool,
    turn: Turn,
) -> Option<Seen> {
    let refused = |failure| Some(failed_of("revert", pid, &failure, &options.targets).into());
    let mut locked = match LockedTarget::open_in_turn(pid, pool) {
        Ok(locked) => locked,
        Err(failure) => return refused(failure),
    };
    (locked.search, locked.lasts) = (turn.search, options.common.lasts());
    if started_at.is_some_and(|wanted| locked.start_time() != Some(wanted)) {
        return Some(exit::GONE.into());
    }
    say_if_unlocked(&locked, options.common.quiet);
    let reverted = match locked.revert_once(options.dry_run) {
        Ok(reverted) => reverted,
        Err(failure) if turn.comes_again(&failure) => return None,
        Err(failure) => return refused(failure),
    };
    let Reverted { found, reverted, found_text, reverted_text, failure, stop } = reverted;
    let what = if found == 0 {
        "nothing to revert".to_owned()
    } else if options.dry_run {
        format!("{} MiB text would be the file's own again", mib(found_text))
    } else if found_text == 0 {
        format!("removed {} of {} MiB that a killed TiExec had left", mib(reverted), mib(found))
    } else {
        let (back, all) = (mib(reverted_text), mib(found_text));
        format!("{back} of {all} MiB text are the file's own again")
    };
    let status = failure.as_ref().map_or(exit::OK, |failure| {
        let status = failed("revert", pid, failure);
        if reverted > 0 { exit::PARTIAL } else { status }
    });
    let seen = Seen {
        status,
        program: program(&locked.target),
        text: format!("{} {WHO}: {what}\n", locked.target.comm),
        figures: Some(Figures::Reverted { found, reverted, found_text, reverted_text }),
        stop: None,
    };
    let json = || {
        let json = serde_json::json!({
            "schema": tiexec_core::report::SCHEMA,
            "kind": "revert",
            "pid": pid.as_raw_nonzero().get(),
            "found_bytes": found,
            "reverted_bytes": reverted,
            "reason": failure.as_ref().map(|failure| failure.reason),
            "detail": failure.as_ref().map(|failure| &failure.detail),
            "stop_us": stop.map(|stop| stop.lasted.as_micros() as u64),
            "interrupted": stop.map(|stop| stop.shown),
        });
        escape::json(&json)
    };
    Some(printer.one(pid, seen, json))
}
