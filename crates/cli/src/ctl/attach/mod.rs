//! `tiexec -p PID`, `tiexecctl attach`, `tiexecctl revert`.

pub(crate) mod journal;
mod later;
mod select;

use std::time::Duration;

use tiexec_core::addr::{Pages, mib};
use tiexec_core::config::{Layer, Settings};
use tiexec_core::plan::Plan;
use tiexec_core::proc::status::{self, Credentials};
use tiexec_core::report::{JitArea, Outcome, Report, percent};
use tiexec_core::select::Select;
use tiexec_core::shown::{self, AsShown};
use tiexec_core::skip::SkipReason;
use tiexec_remap::Failure;
use tiexec_remap::attach::{
    AttachOrder, Attached, Images, Reverted, attach, cause_at_first_look, collapse_jit, revert,
};
use tiexec_remap::launch::Sources;
use tiexec_remap::lock::Lock;
use tiexec_remap::mapped;
use tiexec_remap::workers::{self, Pool, Workers};
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, thp};
use tiexec_tracee::threads;

use super::print;
use crate::exit;
use crate::follow::{self, tree::start_time};
use crate::hottest::Hot;
use crate::memory;
use crate::options::{Attach, Revert, Targets};
use crate::sampling::refusal;
use crate::say::warn;

use journal::Record;

/// How long staging may take: the process runs meanwhile.
const STAGING: Duration = Duration::from_secs(30);
/// How long to look for a thread that takes a stop well.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `attach`; returns the exit status.
pub(crate) fn run(options: &Attach) -> u8 {
    let pids = match targets(&options.targets) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    // Only options can ask for later work: an attach that nobody asked to stay returns.
    let later = options.later.clone().layer();
    let layer = Layer {
        backing: options.backing,
        page_size: options.memory.page_size,
        numa: options.memory.numa,
        select: options.select,
        edges: options.edges.edges,
        pad_threshold: options.edges.pad_threshold,
        ..Layer::default()
    };
    let settings = Settings {
        follow: later.follow.unwrap_or(false),
        settle: later.settle.unwrap_or_default(),
        max_huge_pages: later.max_huge_pages,
        only: later.only.unwrap_or_default(),
        except: later.except.unwrap_or_default(),
        ..crate::launch::settings(layer)
    };
    if let Err(what) = memory::check(options.memory, &settings) {
        warn(what);
        return exit::USAGE;
    }
    // One for all: processes of a family get the same image.
    let mut images = Images::default();
    if let Some(budget) = settings.max_huge_pages {
        let hot = match Hot::sample(&pids, budget, &settings) {
            Ok(hot) => hot,
            Err(error) => {
                warn(format_args!("cannot tell what is hottest: {}", refusal(error)));
                return super::failed_status(error.errno);
            }
        };
        let one = |pid, pool: &mut Pool| {
            attach_one(pid, options, &settings, Some(&hot), &mut images, pool)
        };
        return each("attach to", &pids, named(&options.targets), one);
    }
    if !options.dry_run && (settings.follow || !settings.settle.is_zero()) {
        let first = |pid, images: &mut Images, pool: &mut Pool| {
            attach_one(pid, options, &settings, None, images, pool)
        };
        let mut tell = |target: &Target, attached: &Attached, report: &Report| {
            if options.json {
                print(&(report.to_json() + "\n"));
            } else if !options.quiet {
                print(&line(target, attached, report));
            }
        };
        return follow::stay::stay(&pids, &settings, first, &mut tell);
    }
    let one = |pid, pool: &mut Pool| attach_one(pid, options, &settings, None, &mut images, pool);
    each("attach to", &pids, named(&options.targets), one)
}

/// Runs `revert`; returns the exit status.
pub(crate) fn run_revert(options: &Revert) -> u8 {
    if let Some(time) = options.after {
        later::wait(Duration::from_millis(time));
    }
    let pids = if options.all {
        select::every(has_text_of_ours)
    } else {
        match targets(&options.targets) {
            Ok(pids) => pids,
            Err(status) => return status,
        }
    };
    let one = |pid, pool: &mut Pool| revert_one(pid, options, pool);
    each("revert", &pids, named(&options.targets) && !options.all, one)
}

fn targets(targets: &Targets) -> Result<Vec<Pid>, u8> {
    let found = if let Some(exe) = &targets.exe {
        let program = select::Program::at(exe);
        select::every(|process| program.is_run_by(process))
    } else if let Some(unit) = &targets.user {
        select::every(|process| select::is_of_user_unit(process, unit))
    } else if let Some(unit) = &targets.unit {
        select::every(|process| select::is_of_unit(process, unit))
    } else {
        return select::parse(&targets.pids).map_err(|error| {
            warn(error);
            exit::USAGE
        });
    };
    if found.is_empty() {
        warn("no such process");
        return Err(exit::GONE);
    }
    Ok(found)
}

/// Whether the processes were named by their ids.
fn named(targets: &Targets) -> bool {
    !targets.pids.is_empty()
}

/// How long one process of other credentials may take, to the end.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// How long it may take to look at one process of other credentials: looking waits for the lock of its memory, which it
/// may keep for ever (a page of a file of FUSE that another process of its user reads there).
pub(crate) const LOOKING: Duration = Duration::from_secs(30);

/// Does `one` to each process, apart where it has other credentials; returns the exit status of all together. A process
/// that has ended meanwhile counts only if the user `named` it.
pub(crate) fn each(
    doing: &str,
    pids: &[Pid],
    named: bool,
    mut one: impl FnMut(Pid, &mut Pool) -> u8,
) -> u8 {
    let mut statuses: Vec<u8> = Vec::new();
    let foreign: Vec<(Pid, bool)> =
        pids.iter().map(|&pid| (pid, workers::is_foreign(pid))).collect();
    for some in foreign.chunk_by(|one, other| one.1 == other.1) {
        let pids: Vec<Pid> = some.iter().map(|&(pid, _)| pid).collect();
        if some.first().is_some_and(|&(_, foreign)| foreign) {
            let gave_up = |pid, failure: &Failure| failed(doing, pid, failure);
            statuses.extend(workers::each_apart(&pids, LONGEST, &mut one, gave_up));
        } else {
            let mut pool = Pool::default();
            statuses.extend(pids.iter().map(|&pid| one(pid, &mut pool)));
        }
    }
    if !named && statuses.iter().any(|&status| status != exit::GONE) {
        statuses.retain(|&status| status != exit::GONE);
    }
    match statuses.first() {
        None => exit::OK,
        Some(&first) if statuses.iter().all(|&status| status == first) => first,
        Some(_) => exit::PARTIAL,
    }
}

/// A process that this one may work on.
pub(crate) struct Target {
    pub pid: Pid,
    /// A thread of it that has its address space.
    task: Pid,
    pub process: ProcDir,
    space: AddressSpace,
    credentials: Credentials,
    workers: Workers,
    pages: Pages,
    /// Its name, for people.
    comm: String,
    /// Held as long as this TiExec works on it.
    pub lock: Lock,
}

impl Target {
    pub(crate) fn open(pid: Pid) -> Result<Self, Failure> {
        Self::open_with(pid, &mut Pool::default())
    }

    /// As [`open`](Self::open), with workers of the pool if its credentials are others.
    pub(crate) fn open_with(pid: Pid, pool: &mut Pool) -> Result<Self, Failure> {
        Self::open_as_seen(pid, pool).map_err(|failure| cause_at_first_look(pid, failure))
    }

    fn open_as_seen(pid: Pid, pool: &mut Pool) -> Result<Self, Failure> {
        let named = ProcDir::of(pid).map_err(Failure::unreadable)?;
        let status = status::parse(&named.read("status").map_err(Failure::unreadable)?);
        let task = threads::list(&named, pid)
            .into_iter()
            .find(|&tid| threads::alive(&named, tid).is_some())
            .ok_or_else(|| {
                let what = "it has no address space (a kernel thread, or a process that has ended)";
                Failure::new(SkipReason::TargetGone, what)
            })?;
        let pages = thp::pages().ok_or_else(|| {
            Failure::new(SkipReason::ThpUnsupported, "the kernel has no transparent huge pages")
        })?;
        let process =
            if task == pid { named } else { ProcDir::of(task).map_err(Failure::unreadable)? };
        let lock = Lock::take(&process)?;
        let comm = status.name.shown().to_string();
        let space = AddressSpace::open(&process).map_err(Failure::untraceable)?;
        let alive = threads::alive(&process, task).unwrap_or_default();
        let credentials = alive.credentials;
        let workers = pool.workers(&process, &credentials)?;
        Ok(Self { pid, task, process, space, credentials, workers, pages, comm, lock })
    }

    pub(crate) fn order(&self, settings: &Settings, dry_run: bool) -> AttachOrder<'_> {
        let Self { pid, task, process, space, credentials, workers, pages, .. } = self;
        let Settings { backing, numa, select, edges, .. } = *settings;
        AttachOrder {
            pid: *pid,
            task: *task,
            process,
            space,
            credentials,
            workers,
            pages: memory::pages(settings).unwrap_or(*pages),
            sources: Sources::asked_for(backing, numa),
            select,
            edges,
            numa,
            allowed: None,
            only_shared: false,
            deadline: STAGING,
            patience: PATIENCE,
            dry_run,
        }
    }

    /// Warns that other TiExecs are not kept out, if so.
    fn say_if_unlocked(&self, quiet: bool) {
        let Some(why) = self.lock.missing().filter(|_| !quiet) else { return };
        let pid = self.pid.as_raw_nonzero();
        let fix = if rustix::process::geteuid().is_root() {
            "give root a /run that only root may write to"
        } else {
            "set XDG_RUNTIME_DIR to a directory of your own with mode 0700"
        };
        warn(format_args!("cannot lock process {pid} against other TiExecs: {why}; fix: {fix}"));
    }

    fn start_time(&self) -> Option<u64> {
        start_time(&self.process)
    }
}

/// Puts onto huge pages what is selected of a process; the report is of what the kernel says then.
///
/// # Errors
/// Nothing could be begun; the process is as it was.
pub(crate) fn carry_out(
    order: &AttachOrder<'_>,
    select: Select,
    images: &mut Images,
) -> Result<(Attached, Report), Failure> {
    let attached = if select.text() {
        attach(order, images)?
    } else {
        let plan = Plan { huge: order.pages.pmd, rebase: None, texts: Vec::new() };
        Attached {
            plan,
            failure: None,
            setback: None,
            stop: None,
            from_outside: 0,
            bytes_copied: 0,
            smaps_for: None,
        }
    };
    let jit = if select.jit { collapse_jit(order)? } else { Vec::new() };
    let mut report = tiexec_remap::attach::report(order, &attached);
    report.jit = jit;
    Ok((attached, report))
}

fn attach_one(
    pid: Pid,
    options: &Attach,
    settings: &Settings,
    hot: Option<&Hot>,
    images: &mut Images,
    pool: &mut Pool,
) -> u8 {
    if settings.off && !options.dry_run {
        return failed("attach to", pid, &Failure::new(SkipReason::Disabled, "it is switched off"));
    }
    let target = match Target::open_with(pid, pool) {
        Ok(target) => target,
        Err(failure) => return failed("attach to", pid, &failure),
    };
    target.say_if_unlocked(options.quiet);
    let done = match hot {
        Some(hot) => hot.carry_out(&target, settings, options.dry_run, images),
        None => {
            let order = target.order(settings, options.dry_run);
            carry_out(&order, settings.select, images)
        }
    };
    let (mut attached, report) = match done {
        Ok(done) => done,
        Err(failure) => {
            let result = failure.reason.as_str();
            let process = &target.process;
            Record { action: "attach", pid, process, bytes: 0, result }.write();
            return failed("attach to", pid, &failure);
        }
    };
    if options.dry_run {
        let plan = &attached.plan;
        return print(&if options.json {
            plan.to_json(None, None) + "\n"
        } else {
            plan.to_string()
        });
    }
    if let (Some(size), None, 0) =
        (settings.pool_page(), &attached.failure, attached.plan.huge_bytes().max(report.huge_bytes))
    {
        attached.failure = Some(Failure::new(SkipReason::PageSize, memory::too_large(size)));
    }
    if attached.touched_it() {
        let result = attached.failure.as_ref().map_or("ok", |failure| failure.reason.as_str());
        let bytes = attached.plan.huge_bytes();
        Record { action: "attach", pid, process: &target.process, bytes, result }.write();
    }
    let mut status = say(&target, &attached, &report, options);
    if let (Some(time), true) = (options.for_, attached.touched_it()) {
        let start_time = target.start_time().unwrap_or(0);
        if let Err(error) = later::revert_after(pid, start_time, time) {
            warn(format_args!("process {pid:?} will not be reverted by itself: {error}"));
            status = exit::PARTIAL;
        }
    }
    status
}

/// Tells what came of it; returns the exit status.
fn say(target: &Target, attached: &Attached, report: &Report, options: &Attach) -> u8 {
    if options.json {
        print(&(report.to_json() + "\n"));
    } else if !options.quiet {
        print(&line(target, attached, report));
    }
    let Some(failure) = &attached.failure else { return exit::OK };
    if report.outcome == Outcome::Partial {
        warn(format_args!("{} {}: in part: {failure}", target.comm, target.pid.as_raw_nonzero()));
        return exit::PARTIAL;
    }
    failed("attach to", target.pid, failure)
}

/// The one line for people.
pub(crate) fn line(target: &Target, attached: &Attached, report: &Report) -> String {
    let Report { text_bytes, huge_bytes, .. } = *report;
    let mut line = format!(
        "{} {}: huge {} of {} MiB text ({} %)",
        target.comm,
        target.pid.as_raw_nonzero(),
        mib(huge_bytes),
        mib(text_bytes),
        percent(huge_bytes, text_bytes)
    );
    match &attached.stop {
        Some(stop) => {
            let micros = stop.lasted.as_micros();
            let stopped =
                format!("one thread stopped for {}.{:02} ms", micros / 1000, micros % 1000 / 10);
            line += &match Plan::main_backing(&attached.plan) {
                Some(backing) => {
                    let pid = target.pid.as_raw_nonzero();
                    format!(" by {backing}, {stopped}; undo: tiexecctl revert {pid}")
                }
                None => format!("; removed what a killed TiExec had left, {stopped}"),
            };
        }
        None if attached.from_outside > 0 => line += " by pagecache, no thread stopped",
        None if attached.failure.is_none() && report.jit.is_empty() => {
            line += "; nothing to do";
            let parts = report.files.iter().flat_map(|file| &file.rest);
            if let (0, Some(largest)) = (huge_bytes, parts.max_by_key(|part| part.bytes)) {
                line += &format!(": {}", largest.reason);
            }
        }
        None => {}
    }
    let of_jit = |bytes: fn(&JitArea) -> u64| report.jit.iter().map(bytes).sum::<u64>();
    if !report.jit.is_empty() {
        let (huge, populated) =
            (of_jit(|area| area.huge_bytes), of_jit(|area| area.populated_bytes));
        line += &format!("; jit huge {} of {} MiB", mib(huge), mib(populated));
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

fn revert_one(pid: Pid, options: &Revert, pool: &mut Pool) -> u8 {
    let target = match Target::open_with(pid, pool) {
        Ok(target) => target,
        Err(failure) => return failed("revert", pid, &failure),
    };
    if options.started_at.is_some_and(|wanted| target.start_time() != Some(wanted)) {
        return exit::GONE;
    }
    target.say_if_unlocked(options.quiet);
    let mut order = target.order(&Settings::from_layers([]), options.dry_run);
    order.select = Select::ALL;
    let reverted = match revert(&order) {
        Ok(reverted) => reverted,
        Err(failure) => return failed("revert", pid, &failure),
    };
    let Reverted { found, reverted: bytes, failure, stop } = reverted;
    if stop.is_some() {
        let result = failure.as_ref().map_or("ok", |failure| failure.reason.as_str());
        Record { action: "revert", pid, process: &target.process, bytes, result }.write();
    }
    if options.json {
        let json = serde_json::json!({
            "schema": tiexec_core::report::SCHEMA,
            "kind": "revert",
            "pid": pid.as_raw_nonzero().get(),
            "found_bytes": found,
            "reverted_bytes": bytes,
            "reason": failure.as_ref().map(|failure| failure.reason),
            "detail": failure.as_ref().map(|failure| &failure.detail),
            "stop_us": stop.map(|stop| stop.lasted.as_micros() as u64),
        });
        print(&(shown::json(&json) + "\n"));
    } else if !options.quiet {
        let what = if found == 0 {
            "nothing to revert".to_owned()
        } else if options.dry_run {
            format!("{} MiB would be the file's own again", mib(found))
        } else {
            format!("{} of {} MiB are the file's own again", mib(bytes), mib(found))
        };
        print(&format!("{} {}: {what}\n", target.comm, pid.as_raw_nonzero()));
    }
    match failure {
        None => exit::OK,
        Some(failure) => {
            let status = failed("revert", pid, &failure);
            if bytes > 0 { exit::PARTIAL } else { status }
        }
    }
}

/// Says why nothing was done; returns the exit status for it.
fn failed(doing: &str, pid: Pid, failure: &Failure) -> u8 {
    let fix = failure.reason.fix().map_or(String::new(), |fix| format!("; fix: {fix}"));
    warn(format_args!("cannot {doing} process {}: {failure}{fix}", pid.as_raw_nonzero()));
    match failure.reason {
        SkipReason::TargetGone => exit::GONE,
        SkipReason::PtraceDenied => exit::NOT_PERMITTED,
        SkipReason::Changed => exit::PARTIAL,
        _ => exit::FAILED,
    }
}

/// Whether the process has text of ours; not so if it cannot be looked at.
pub(crate) fn has_text_of_ours(process: &ProcDir) -> bool {
    let has = || thp::pages().is_some_and(|pages| mapped::has_text_of_ours(process, pages));
    if !workers::is_of_others(process) {
        return has();
    }
    workers::told_apart(LOOKING, || vec![u8::from(has())]).is_ok_and(|told| told == [1])
}

/// Does `work`, which looks at the process, and returns its exit status: apart if the process has other credentials, for
/// at most `patience`.
pub(crate) fn looked_at(
    doing: &str,
    pid: i32,
    patience: Duration,
    work: impl FnOnce() -> u8,
) -> u8 {
    let foreign = Pid::from_raw(pid).filter(|&pid| workers::is_foreign(pid));
    let Some(pid) = foreign else { return work() };
    let mut work = Some(work);
    let one = |_pid, _: &mut Pool| work.take().map_or(exit::FAILED, |work| work());
    let gave_up = |pid, failure: &Failure| failed(doing, pid, failure);
    workers::each_apart(&[pid], patience, one, gave_up).first().copied().unwrap_or(exit::FAILED)
}
