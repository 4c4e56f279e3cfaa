//! `tiexec PROGRAM ARGS…`: decide, arm the helper if there is something to gain, become the program.

mod report_output;

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use tiexec_core::config::{Layer, Settings};
use tiexec_core::coverage::{FileCoverage, Rest};
use tiexec_core::escape::AsShown;
use tiexec_core::plan::Backing;
use tiexec_core::proc::status::{CAP_SYS_PTRACE, Status};
use tiexec_core::report::{Kind, Report};
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_engine::follow::companion::{self, Companion};
use tiexec_engine::follow::{Follower, Patterns, obstacle, without_watch};
use tiexec_engine::hottest;
use tiexec_engine::policy::{policy, too_large};
use tiexec_engine::sampling::number;
use tiexec_remap::Failure;
use tiexec_remap::images::Images;
use tiexec_remap::launch::{Launched, bring_in, bring_in_object, carry_out};
use tiexec_remap::objects::{self, Expected, Object};
use tiexec_remap::order::Order;
use tiexec_remap::policy::Policy;
use tiexec_remap::workers::{self, Pool};
use tiexec_sys::perf_watch::Heirs;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::startup::Argv;
use tiexec_sys::{Errno, Pid, SysError, process};
use tiexec_tracee::handshake::{Arming, MayTrace, arm, wait_for_exec};

use crate::exit;
use crate::image_file::{Image, Verdict, is_executable, judge, search};
use crate::settings;
use crate::stdio::{warn, write_briefly};

use self::report_output::{Sink, open_sink};

/// Everything decided before the exec.
struct Launcher {
    argv: Argv,
    /// Which argument is the program.
    program: usize,
    /// The program's name, as that argument gives it.
    name: OsString,
    settings: Settings,
    sink: Option<Sink>,
    dry_run: bool,
    /// The process that works on the program after the start.
    companion: OnceCell<Pid>,
}

/// How the program is to be started.
enum Start {
    /// Plainly: a plain exec finds its text in huge pages.
    HugeAlready,
    /// Under the eyes of a helper.
    Held(Box<Caller>),
}

/// This process, before its exec.
struct Caller {
    process: ProcDir,
    status: Status,
    /// The wishes; the page cache has taken some of the time already.
    policy: Policy,
    /// The program's shared objects that have something to gain; `None` where it is not known yet which
    /// program it will be.
    objects: Option<Expected>,
}

/// Runs the program that stands at that place of the arguments; returns an exit status only if it could not become
/// the program.
pub(crate) fn run(argv: Argv, program: usize, options: Layer, dry_run: bool) -> u8 {
    let settings = match settings::settings(options) {
        Ok(settings) => settings,
        Err(what) => {
            warn(what);
            return exit::LAUNCH_FAILED;
        }
    };
    let sink = settings.report.as_deref().and_then(open_sink);
    let companion = OnceCell::new();
    let name = argv.get(program).unwrap_or_default();
    let launcher = Launcher { argv, program, name, settings, sink, dry_run, companion };
    // A bug of ours, or a filter that makes the impossible happen, is no reason not to run it.
    let ended = catch_unwind(AssertUnwindSafe(|| launcher.launch()));
    ended.unwrap_or_else(|_panicked| launcher.exec())
}

/// Tells a missing `/proc` from a missing descriptor.
fn proc_unreadable(error: SysError) -> Failure {
    let reason = match error.errno {
        Errno::MFILE => FailureKind::FdLimit,
        _ => FailureKind::ProcUnavailable,
    };
    Failure::new(reason, error)
}

impl Launcher {
    fn launch(&self) -> u8 {
        if self.settings.off && !self.dry_run {
            return self.plainly(SkipReason::Disabled.into(), "");
        }
        if !self.dry_run {
            self.accompany();
            if self.settings.max_huge_pages.is_some() {
                // Which pages are hot is not known yet.
                return self.exec();
            }
        }
        match self.prepare() {
            Ok(Start::Held(caller)) => self.held(&caller),
            Ok(Start::HugeAlready) => self.exec(),
            Err(why) => self.plainly(why.reason, &why.detail),
        }
    }

    /// Starts the process that works on the program after the start, if the settings want one.
    fn accompany(&self) {
        let settings = &self.settings;
        let budget = settings.max_huge_pages;
        if !settings.follow && settings.settle.is_zero() && budget.is_none() {
            return;
        }
        let complain = |what: &dyn std::fmt::Display| {
            if !settings.quiet {
                warn(what);
            }
        };
        if let Err(error) = Patterns::new(&settings.only, &settings.except) {
            complain(&format_args!("nothing is followed: {error}"));
            return;
        }
        let heirs = if settings.follow { Heirs::Processes } else { Heirs::Threads };
        let stderr = std::io::stderr();
        let keep = match &self.sink {
            Some(Sink::File(file)) => vec![file.as_fd()],
            // A reader that waits for the end of standard error asked for the reports that go there.
            Some(Sink::Stderr) => vec![stderr.as_fd()],
            None => Vec::new(),
        };
        let started = companion::start(heirs, &keep, |program, watch| {
            let mut tell = |_: &_, _: &_, report: &Report| {
                if let Some(sink) = &self.sink {
                    sink.write(&self.render(report));
                }
            };
            if let Some(budget) = budget {
                let fails = |why: &Failure| {
                    let report = self.report_of_a_plain_exec(program, why.reason, &why.detail);
                    if let Some(sink) = &self.sink {
                        sink.write(&self.render(&report));
                    }
                };
                // Apart, for by the time it has been sampled the program may have changed its user.
                let one = |_pid, _: &mut Pool| {
                    let done = hottest::look_after(program, budget, settings, &mut tell);
                    done.inspect_err(fails).map_or(exit::FAILED, |()| exit::OK)
                };
                let gave_up = |_pid, why: &Failure| {
                    fails(why);
                    exit::FAILED
                };
                let patience = hottest::longest(settings);
                let _said = workers::each_apart(&[program], patience, one, gave_up);
                return;
            }
            let images = Images::default();
            let follower = Follower::new(settings, &[program], watch, images, &mut tell);
            if let Some(follower) = follower {
                follower.run(None);
            }
        });
        match started {
            Ok(Companion { pid, no_watch }) => {
                if let (Some(why), Some(_)) = (&no_watch, budget) {
                    complain(&format_args!(
                        "{}: text stays on base pages: what is hottest cannot be told: {why}",
                        self.name().shown()
                    ));
                } else if let Some(why) = no_watch {
                    complain(&without_watch(&why, settings.follow));
                }
                let status = ProcDir::this_process().and_then(|process| process.status());
                let capabilities = status.map(|status| status.credentials.effective());
                if let Some(why) = obstacle(capabilities.unwrap_or(0)).filter(|_| settings.follow) {
                    complain(&why);
                }
                if let Some(pid) = pid {
                    let _once = self.companion.set(pid);
                }
            }
            Err(error) => complain(&format_args!("nothing is followed: {error}")),
        }
    }

    /// Lets the companion trace the program where Yama asks for leave.
    fn allow_companion(&self) {
        if let Some(&companion) = self.companion.get() {
            let _no_yama = process::set_ptracer(Some(companion));
        }
    }

    fn name(&self) -> &OsStr {
        &self.name
    }

    /// Looks for any reason to exec plainly, the cheapest to find first.
    fn prepare(&self) -> Result<Start, Failure> {
        let plain = |reason| Err(Failure::new(reason, ""));
        if self.settings.off {
            return plain(SkipReason::Disabled);
        }
        let select = self.settings.select;
        if !select.text() {
            return plain(SkipReason::NotSelected);
        }
        let policy = policy(&self.settings, self.dry_run);
        let pages = policy.as_ref().ok().map(|policy| policy.pages);
        let mut objects = Vec::new();
        let mut fills = true;
        let verdict = search(self.name()).map_or(Verdict::Unknown, |path| judge(&path));
        if self.settings.until_exec.is_none() && !self.is_selected(&verdict) {
            return plain(SkipReason::NotSelected);
        }
        match verdict {
            Verdict::Plain(SkipReason::ForeignImage) if self.settings.until_exec.is_some() => {}
            Verdict::Plain(reason) => return plain(reason),
            _ if self.settings.until_exec.is_some() => {}
            Verdict::Treat(ref image) => {
                let edges = self.settings.edges;
                fills = select.main
                    && pages.is_none_or(|pages| {
                        image.facts.may_fill(pages.pmd, pages.base)
                            || edges.is_for(image.facts.text_bytes(), pages.pmd)
                    });
                if let Some(policy) =
                    policy.as_ref().ok().filter(|_| select.dso && image.facts.dynamic)
                {
                    objects = objects::with_text(&image.path, policy);
                }
                if let (false, true, Some(size)) =
                    (fills, objects.is_empty(), self.settings.pool_page())
                {
                    return Err(Failure::new(SkipReason::PageSize, too_large(size)));
                }
                if !fills && objects.is_empty() {
                    let main =
                        if select.main { SkipReason::TooSmall } else { SkipReason::NotSelected };
                    return plain(main);
                }
            }
            // The exec will fail, or run it by /bin/sh.
            Verdict::Unknown => return plain(SkipReason::TooSmall),
        }
        let policy = policy?;
        if policy.sources.copy != Some(Backing::Hugetlb) && process::thp_disabled() {
            let detail = "PR_SET_THP_DISABLE is in force (prctl(2)); it is inherited";
            return Err(Failure::new(FailureKind::ThpDisabled, detail));
        }
        let image = match &verdict {
            Verdict::Treat(image) if self.settings.until_exec.is_none() => Some(image),
            _ => None,
        };
        let process = ProcDir::this_process().map_err(proc_unreadable)?;
        let status = process.status().map_err(proc_unreadable)?;
        if !fills && status.seccomp != 0 {
            let detail = "shared objects are left alone under a seccomp filter";
            return Err(Failure::new(SkipReason::LinkerUnwatched, detail));
        }
        let begun = Instant::now();
        // A filter may kill a process that looks at the page cache. Then the helper looks at it.
        let huge = policy.sources.pagecache
            && status.seccomp == 0
            && image.is_some_and(|image| self.bring_in(image, &objects, &policy));
        // A report, a dry run and `--strict` need the kernel's own figures of the process.
        if huge && self.sink.is_none() && !self.dry_run && !self.settings.strict {
            return Ok(Start::HugeAlready);
        }
        let objects = image.map(|_| Expected::of(&objects));
        let deadline = policy.deadline.saturating_sub(begun.elapsed());
        let policy = Policy { deadline, ..policy };
        Ok(Start::Held(Box::new(Caller { process, status, policy, objects })))
    }

    /// Whether the program is one that the user means.
    fn is_selected(&self, verdict: &Verdict) -> bool {
        let Settings { select, only, except, .. } = &self.settings;
        let Verdict::Treat(image) = verdict else { return true };
        let path = image.path.canonicalize().unwrap_or_else(|_| image.path.clone());
        let meant = |patterns: Patterns| patterns.accept(path.as_os_str().as_encoded_bytes());
        select.text() && Patterns::new(only, except).map_or(true, meant)
    }

    /// Has the page cache made huge; returns whether that is all there is to do.
    fn bring_in(&self, image: &Image, objects: &[Object], policy: &Policy) -> bool {
        let deadline = Instant::now() + policy.deadline;
        let main = !policy.select.main
            || File::open(&image.path)
                .is_ok_and(|exe| bring_in(&exe, &image.facts, policy, deadline));
        for object in objects {
            bring_in_object(object, policy.pages, deadline);
        }
        main && objects.is_empty()
    }

    /// Execs under the eyes of a helper.
    fn held(&self, caller: &Caller) -> u8 {
        let Caller { process, status, policy, objects } = caller;
        if status.tracer_pid != 0 {
            let detail = format!("process {} traces this one", status.tracer_pid);
            return self.plainly(FailureKind::AlreadyTraced.into(), &detail);
        }
        let order = Order {
            process,
            chain: self.settings.until_exec.is_some(),
            policy: *policy,
            objects: *objects,
            refuse_with: self.settings.strict.then_some(exit::LAUNCH_FAILED),
            wants_report: self.sink.is_some() || self.dry_run,
        };
        let mut keep = vec![process.as_fd()];
        if let Some(Sink::File(file)) = &self.sink {
            keep.push(file.as_fd());
        }
        let stdout = std::io::stdout();
        if self.dry_run {
            keep.push(stdout.as_fd());
        }
        let arming = Arming {
            deadline: self.settings.deadline + Settings::DEFAULT_DEADLINE,
            rehearse: status.seccomp != 0,
            keep: &keep,
        };
        let privileged = status.credentials.effective() & CAP_SYS_PTRACE != 0;
        let armed = match arm(arming, |target| self.help(target, &order, privileged)) {
            Ok(armed) => armed,
            Err(why) => return self.plainly(why.reason, &why.detail),
        };
        self.allow_companion();
        // Returns only if the exec failed.
        let _under_trace = self.argv.exec_from(self.program);
        armed.disarm();
        // A traced exec may be refused where a plain one is not (a security module): once more.
        self.exec()
    }

    /// The helper's work, in the helper.
    fn help(&self, target: Pid, order: &Order<'_>, privileged: bool) {
        let wanted = self.settings.until_exec.as_deref();
        let is_the_one = || wanted.is_none_or(|name| is_named(order.process, name));
        // The image of a direct launch has been judged already; those of a chain are not known yet.
        let may_trace = |image: &Path| {
            !matches!(
                judge(image),
                Verdict::Plain(SkipReason::PrivilegedImage | SkipReason::UnreadableImage)
            )
        };
        let may_trace: Option<MayTrace<'_>> =
            if wanted.is_some() && !privileged { Some(&may_trace) } else { None };
        let stop = match wait_for_exec(target, may_trace, is_the_one) {
            Ok(stop) => stop,
            Err(end) => {
                // The caller itself reports an exec that failed. A program that ended is no news,
                // unless the program that was waited for never came.
                if let Some(name) = wanted.filter(|_| !self.settings.quiet) {
                    warn(format_args!("{name} was not reached: {end}"));
                }
                return;
            }
        };
        carry_out(order, stop, |launched| self.tell(launched));
    }

    fn tell(&self, launched: &Launched) {
        if self.dry_run {
            self.show_plan(launched);
            return;
        }
        if let Some(sink) = &self.sink {
            sink.write(&self.render(&launched.report));
        }
        if let Some(reason) = launched.report.reason {
            self.explain(reason, launched.report.detail.as_deref().unwrap_or_default());
        }
    }

    fn render(&self, report: &Report) -> String {
        if self.settings.json { report.to_json() + "\n" } else { report.to_string() }
    }

    fn show_plan(&self, launched: &Launched) {
        let text = match &launched.plan {
            Some(plan) if self.settings.json => {
                plan.to_json(launched.report.reason, launched.objects.as_ref()) + "\n"
            }
            Some(plan) => {
                let objects = launched.objects.as_ref().map(|objects| {
                    format!("\nshared objects, at the addresses in their files\n{objects}")
                });
                plan.to_string() + &objects.unwrap_or_default()
            }
            None => self.render(&launched.report),
        };
        let _broken_pipe = write_briefly(std::io::stdout(), &text);
    }

    /// Says why text stays on base pages: failures always, the rest if asked for.
    fn explain(&self, reason: Reason, detail: &str) {
        let wanted = if reason.is_failure() { !self.settings.quiet } else { self.settings.verbose };
        if !wanted {
            return;
        }
        let name = Path::new(self.name()).file_name().unwrap_or(self.name()).shown();
        let what = if self.settings.strict && reason.is_failure() {
            "refused, its text would stay on base pages"
        } else {
            "text stays on base pages"
        };
        let colon = if detail.is_empty() { "" } else { ": " };
        let fix = reason.fix().map_or(String::new(), |fix| format!("; fix: {fix}"));
        warn(format_args!("{name}: {what}: {reason}{colon}{detail}{fix}"));
    }

    /// Execs without a helper, after saying so where that is due.
    fn plainly(&self, reason: Reason, detail: &str) -> u8 {
        if self.dry_run {
            // A program that would not run has no plan.
            match search(self.name()) {
                Some(path) if is_executable(&path) => {}
                Some(path) if path.exists() => return self.not_executed(Errno::ACCES),
                _ => return self.not_executed(Errno::NOENT),
            }
        }
        let report = self.sink.is_some() || self.dry_run;
        if report {
            let report = self.report_of_a_plain_exec(process::this(), reason, detail);
            let text = self.render(&report);
            match &self.sink {
                Some(sink) => sink.write(&text),
                None => {
                    let _broken_pipe = write_briefly(std::io::stdout(), &text);
                }
            }
        }
        if self.dry_run {
            return exit::OK;
        }
        self.explain(reason, detail);
        if self.settings.strict && reason.is_failure() {
            return exit::LAUNCH_FAILED;
        }
        self.exec()
    }

    /// Makes the report of a program that nothing is done to, from its file alone.
    fn report_of_a_plain_exec(&self, pid: Pid, reason: Reason, detail: &str) -> Report {
        let file = search(self.name()).and_then(|path| match judge(&path) {
            Verdict::Treat(image) => Some(image),
            _ => None,
        });
        let files = file.into_iter().map(|image| FileCoverage {
            path: image.path.to_string_lossy().into_owned(),
            text_bytes: image.facts.text_bytes(),
            rest: vec![Rest { reason, bytes: image.facts.text_bytes() }],
            ..FileCoverage::default()
        });
        let name = Path::new(self.name()).file_name().unwrap_or(self.name());
        let name = name.to_string_lossy().into_owned();
        let mut report = Report::new(Kind::Launch, number(pid), name, files.collect());
        report.reason = Some(reason);
        report.detail = (!detail.is_empty()).then(|| detail.to_owned());
        report
    }

    /// Becomes the program; returns the exit status if that cannot be.
    fn exec(&self) -> u8 {
        self.allow_companion();
        let error = self.argv.exec_from(self.program);
        self.not_executed(error.errno)
    }

    fn not_executed(&self, errno: Errno) -> u8 {
        warn(format_args!("cannot run {}: {errno}", self.name().shown()));
        if errno == Errno::NOENT { exit::NOT_FOUND } else { exit::CANNOT_EXECUTE }
    }
}

/// Returns whether the process runs the program that the user called `name`: by the name of its
/// image file, or by the name it was called with (`mysqld` may be a link to `mariadbd`).
fn is_named(process: &ProcDir, name: &str) -> bool {
    let fits = |path: &[u8]| {
        let base = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        path == name.as_bytes() || base == name.as_bytes()
    };
    let called = process.read_start("cmdline", 4096).unwrap_or_default();
    let called = called.split(|&byte| byte == 0).next().unwrap_or_default();
    process.exe_path().is_ok_and(|path| fits(&path)) || fits(called)
}
