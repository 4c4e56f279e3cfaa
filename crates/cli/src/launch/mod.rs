//! `tiexec PROGRAM ARGS…`: decides, arms the helper if huge pages can gain something, and becomes the program.

mod report_output;
mod start;
mod wrappers;

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use tiexec_core::addr::mib;
use tiexec_core::config::{BackingChoice, Settings};
use tiexec_core::escape::AsShown;
use tiexec_core::report::Report;
use tiexec_core::select::Select;
use tiexec_core::skip::{FailureKind, Reason, SkipReason};
use tiexec_engine::follow::companion::{self, Begun, Companion, UnderSubreaper};
use tiexec_engine::follow::counted::{self, Counted};
use tiexec_engine::follow::{Follower, Patterns, obstacle, without_watch};
use tiexec_engine::launch::image_file::{is_executable, missing_interpreter, search};
use tiexec_engine::launch::{Caller, Launch, SmallText, Start, Told};
use tiexec_engine::locked_target::Treated;
use tiexec_engine::output::{standard_output, write_briefly};
use tiexec_engine::settings::CONFIG_FILE;
use tiexec_remap::Failure;
use tiexec_remap::host_pages;
use tiexec_remap::images::Images;
use tiexec_remap::launch::Launched;
use tiexec_sys::perf_watch::Heirs;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::startup::Argv;
use tiexec_sys::{Errno, Pid, process};

use crate::exit;
use crate::fold::{folded, width};
use crate::options::LaunchSettings;
use crate::settings;
use crate::stdio::{and_fix, warn};

use self::report_output::{Sink, open_sink};

/// Address space that the helper needs beside its copy of this process, in bytes. Its largest buffer has 128 KiB.
const FOR_HELPER: usize = 1 << 20;

/// Everything decided before the exec.
struct Launcher {
    argv: Argv,
    /// The index of the argument that is the program.
    program: usize,
    /// The program's name, as that argument gives it.
    name: OsString,
    settings: Settings,
    sink: Option<Sink>,
    dry_run: bool,
    /// The companion process, which works on the program after the start.
    companion: OnceCell<Pid>,
}

/// Runs the program at this index of the arguments. Returns an exit status only if this process could not become the
/// program.
pub(crate) fn run(argv: Argv, program: usize, options: LaunchSettings, dry_run: bool) -> u8 {
    let mut settings = match settings::settings(&options) {
        Ok(settings) => settings,
        Err(what) => {
            warn(what);
            return exit::LAUNCH_FAILED;
        }
    };
    // An attach takes the same configuration file, so there the setting may be meant for it.
    let is_meant = settings.verbose
        || std::env::var("TIEXEC").is_ok_and(|text| text.contains("max-huge-pages"));
    if let Some(budget) = settings.max_huge_pages.take()
        && is_meant
        && !settings.quiet
        && !settings.is_off()
    {
        warn(format_args!(
            "cannot take max-huge-pages={budget} from TIEXEC or {CONFIG_FILE} at a start: only a running program can be \
             sampled; fix: tiexecctl attach --max-huge-pages={budget} PID"
        ));
    }
    if let Some(name) = settings.until_exec.as_deref().filter(|_| dry_run) {
        // The programs before it would have to run.
        warn(format_args!(
            "cannot make a dry run with --until-exec={}; fix: leave it out, and name that program in the place of the command",
            name.shown()
        ));
        return exit::LAUNCH_FAILED;
    }
    let sink = settings.report.as_deref().and_then(open_sink);
    let companion = OnceCell::new();
    let name = argv.get(program).unwrap_or_default();
    let launcher = Launcher { argv, program, name, settings, sink, dry_run, companion };
    // The program must run even if our code panics, because of a bug or of a seccomp filter that breaks system calls.
    let ended = catch_unwind(AssertUnwindSafe(|| launcher.launch()));
    ended.unwrap_or_else(|_panicked| match launcher.settings.strict {
        true => exit::LAUNCH_FAILED,
        false => launcher.exec(),
    })
}

impl Launcher {
    fn launch(&self) -> u8 {
        if self.settings.is_off() && !self.dry_run {
            return self.plainly(&Failure::new(SkipReason::Disabled, ""));
        }
        if !self.dry_run {
            self.say_wrapper();
            self.accompany();
        }
        // The watch process becomes an orphan while this process examines the program.
        let watch = self.begin_watch();
        let start = self.as_launch().prepare();
        if let Some(watch) = watch {
            self.keep_watch(watch, start.as_ref().err());
        }
        match start {
            Ok(Start::Held(caller)) => self.held(&caller),
            Ok(Start::HugeAlready) => self.exec(),
            Err(why) => self.plainly(&why),
        }
    }

    /// Starts the companion, if the settings require one.
    fn accompany(&self) {
        let settings = &self.settings;
        let stays = settings.follow || !settings.settle().is_zero();
        // With `all` the user need not expect that the program generates code, so the line needs `-v` then.
        let wants_jit = settings.select.jit && (settings.select != Select::ALL || settings.verbose);
        if !stays && wants_jit && !settings.quiet {
            warn(format_args!(
                "{}: the code that it makes stays on base pages: it is there only after the start; \
                 fix: add --settle=1m, or attach later (tiexecctl attach --select jit PID)",
                self.name().shown()
            ));
        }
        if !stays {
            return;
        }
        if let Err(error) = Patterns::new(&settings.only, &settings.except) {
            self.unless_quiet(format_args!("nothing is followed: {error}"));
            return;
        }
        let heirs = if settings.follow { Heirs::Processes } else { Heirs::Threads };
        let stderr = std::io::stderr();
        let keep = match &self.sink {
            Some(Sink::File(file, _)) => vec![file.as_fd()],
            // The companion keeps standard error open for its reports. A reader that waits for the end of standard
            // error therefore waits for the companion too.
            Some(Sink::Stderr) => vec![stderr.as_fd()],
            None => Vec::new(),
        };
        // The user has asked for the companion, so it starts also where somebody counts it.
        self.say_counted(counted::by_whom().as_ref());
        let stays = UnderSubreaper::Stays;
        let started = companion::begin(Some(heirs), stays, &keep, |program, watch| {
            let mut tell = |_: &_, treated: &Treated| {
                if let Some(sink) = &self.sink {
                    sink.write(&self.render(&treated.report));
                }
            };
            let images = Images::default();
            let follower = Follower::new(settings, &[program], watch, images, &mut tell);
            if let Some(follower) = follower {
                follower.run(None);
            }
        });
        match started.and_then(Begun::finish) {
            Ok(Companion { pid, subreaper, no_watch }) => {
                self.say_counted(subreaper.map(Counted::Subreaper).as_ref());
                if let Some(why) = no_watch {
                    self.unless_quiet(without_watch(&why, settings.follow));
                }
                let status = ProcDir::this_process().and_then(|process| process.status());
                let capabilities = status.map(|status| status.credentials.effective());
                if let Some(why) = obstacle(capabilities.unwrap_or(0)).filter(|_| settings.follow) {
                    self.unless_quiet(&why);
                }
                if let Some(pid) = pid {
                    let _once = self.companion.set(pid);
                }
            }
            Err(error) => self.unless_quiet(format_args!("nothing is followed: {error}")),
        }
    }

    /// Allows the companion to trace the program, which Yama may require.
    fn allow_companion(&self) {
        if let Some(&companion) = self.companion.get() {
            let _no_yama = process::set_ptracer(Some(companion));
        }
    }

    fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the parameters of the launch for the engine.
    fn as_launch(&self) -> Launch<'_> {
        let Self { name, settings, dry_run, .. } = self;
        let (wants_report, refused) = (self.sink.is_some(), exit::LAUNCH_FAILED);
        Launch { name, settings, wants_report, dry_run: *dry_run, refused }
    }

    /// Execs while a helper traces this process.
    fn held(&self, caller: &Caller) -> u8 {
        if let Some(SmallText { file, why }) = caller.small().filter(|_| self.settings.verbose) {
            // Without `--backing=pagecache`, the program gets a copy now, and this fix avoids it later.
            let reason = match why.reason {
                Reason::Skipped(SkipReason::SmallFolios)
                    if self.settings.backing != BackingChoice::Pagecache =>
                {
                    SkipReason::NotCached.into()
                }
                reason => reason,
            };
            let fix = and_fix(&why.detail, reason.fix_for(Some(&file.word().to_string())));
            self.unless_quiet(format_args!(
                "{}: the page cache holds text of {} in small pages: {}: {}{fix}",
                self.name().shown(),
                file.shown(),
                why.reason,
                why.detail
            ));
        }
        let mut keep = Vec::with_capacity(3);
        if let Some(Sink::File(file, _)) = &self.sink {
            keep.push(file.as_fd());
        }
        let stdout = std::io::stdout();
        if self.dry_run {
            keep.push(stdout.as_fd());
        }
        let told = |told: Told<'_>| match told {
            Told::Launched(launched) => self.tell(launched),
            Told::NotReached(name, end) if !self.settings.quiet => {
                warn(format_args!("{name} was not reached: {end}"));
            }
            Told::NotReached(..) => {}
        };
        let armed = match has_room().and_then(|()| self.as_launch().hold(caller, keep, told)) {
            Ok(armed) => armed,
            Err(why) => return self.plainly(&why),
        };
        self.allow_companion();
        // The call returns only if the exec failed.
        let under_trace = self.argv.exec_from(self.program);
        armed.disarm();
        if self.dry_run || self.settings.strict {
            return self.not_executed(under_trace.errno);
        }
        // A security module may refuse a traced exec and allow a plain one, so the exec is retried.
        self.exec()
    }

    fn tell(&self, launched: &Launched) {
        if self.dry_run {
            launched.dry_run_status.set(self.show_plan(launched));
            let Report { reason, detail, .. } = &launched.report;
            if let Some(reason) = reason.filter(|reason| reason.is_failure()) {
                // Without a cost, no call could be made in the program, and all text stays as it is.
                let plan = launched.plan.as_ref().filter(|_| launched.report.launch.is_some());
                let (all, huge) =
                    plan.map_or((0, 0), |plan| (plan.text_bytes(), plan.huge_bytes()));
                let rest = (huge > 0).then_some((all.saturating_sub(huge), all));
                self.explain(reason, detail.as_deref().unwrap_or_default(), rest);
            }
            return;
        }
        // A launch takes no time for a measurement.
        let host_splits = (launched.report.huge_bytes > 0).then(host_pages::known).flatten();
        if let Some(sink) = &self.sink {
            sink.write(&self.render(&Report { host_splits, ..launched.report.clone() }));
        }
        if host_splits == Some(true) && !self.settings.quiet {
            self.warn_of_host(launched);
        }
        let Report { reason, detail, text_bytes, huge_bytes, .. } = &launched.report;
        if let Some(reason) = *reason {
            let rest = (text_bytes.saturating_sub(*huge_bytes), *text_bytes);
            let rest = Some(rest).filter(|_| *huge_bytes > 0);
            let directory = format!("/proc/{}", launched.report.pid);
            let detail = detail.as_deref().unwrap_or_default().replace("/proc/PID", &directory);
            self.explain(reason, &detail, rest);
        }
    }

    /// Warns, once a day and program, that the host splits huge pages.
    fn warn_of_host(&self, launched: &Launched) {
        let pid = i32::try_from(launched.report.pid).ok().and_then(Pid::from_raw);
        let exe = pid.and_then(|pid| ProcDir::of(pid).ok()?.exe_path().ok());
        if let Some(warning) = host_pages::warning_of_today(&exe.unwrap_or_default()) {
            let name = self.name().shown();
            warn(format_args!("{name}: {warning}; to measure it: tiexecctl bench -- COMMAND"));
        }
    }

    fn render(&self, report: &Report) -> String {
        if self.settings.json { report.to_json() + "\n" } else { report.to_string() }
    }

    fn show_plan(&self, launched: &Launched) -> u8 {
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
        let stdout = std::io::stdout();
        self.print(&folded(&text, width(&stdout)))
    }

    /// Writes the output of a dry run. Returns the exit status. A closed pipe counts as success.
    fn print(&self, text: &str) -> u8 {
        match standard_output().and_then(|stdout| write_briefly(stdout, text)) {
            Ok(()) | Err(rustix::io::Errno::PIPE) => exit::OK,
            Err(errno) => {
                let (name, why) = (self.name().shown(), Errno::from(errno));
                warn(format_args!(
                    "cannot write the plan of {name}: {why}; fix: write standard output to another file"
                ));
                exit::LAUNCH_FAILED
            }
        }
    }

    /// Prints why text stays on base pages. Failures are always printed, other reasons only on request. If some text is
    /// huge, `rest` has the bytes that are not huge and the total.
    fn explain(&self, reason: Reason, detail: &str, rest: Option<(u64, u64)>) {
        let settings = &self.settings;
        let alone = settings.strict && self.is_left_alone(reason);
        let wanted = if reason.is_failure() || alone { !settings.quiet } else { settings.verbose };
        if !wanted {
            return;
        }
        let name = Path::new(self.name()).file_name().unwrap_or(self.name()).shown();
        let what = if settings.refuses(reason) {
            "refused, its text would stay on base pages".to_owned()
        } else if let Some((rest, all)) = rest {
            format!("{} of {} MiB text stay on base pages", mib(rest), mib(all))
        } else {
            let not_refused = if alone { ", which --strict does not refuse" } else { "" };
            format!("text stays on base pages{not_refused}")
        };
        let colon = if detail.is_empty() { "" } else { ": " };
        let file = search(self.name()).map(|path| path.word().to_string());
        // A detail may end with a fix of its own, which is more exact than that of the reason.
        let fix = and_fix(detail, reason.fix_for(file.as_deref()));
        warn(format_args!("{name}: {what}: {reason}{colon}{detail}{fix}"));
    }

    /// Returns whether TiExec leaves the program alone because of its kind, or because of an option. A user who
    /// switches TiExec off wants programs to run as without it, so that case does not count.
    fn is_left_alone(&self, reason: Reason) -> bool {
        let Reason::Skipped(why) = reason else { return false };
        match why {
            SkipReason::PrivilegedImage
            | SkipReason::UnreadableImage
            | SkipReason::ForeignImage => true,
            SkipReason::Disabled => !self.settings.off,
            _ => false,
        }
    }

    /// Execs without a helper. Prints the reason first, where the settings ask for it.
    fn plainly(&self, why: &Failure) -> u8 {
        // There is no plan and no report for a program that cannot run.
        let path = search(self.name());
        if !path.as_deref().is_some_and(is_executable) {
            if !self.dry_run {
                return self.exec();
            }
            let seen = path.map(std::fs::metadata);
            return self.not_executed(match seen {
                Some(Ok(_)) => Errno::ACCES,
                Some(Err(error)) => error.raw_os_error().map_or(Errno::NOENT, Errno),
                None => Errno::NOENT,
            });
        }
        if self.dry_run && path.as_deref().is_some_and(|path| missing_interpreter(path).is_some()) {
            return self.not_executed(Errno::NOENT);
        }
        let report = self.sink.is_some() || self.dry_run;
        let mut status = exit::OK;
        if report {
            let report = self.as_launch().plain_report(process::this(), why);
            let text = self.render(&report);
            match &self.sink {
                Some(sink) => sink.write(&text),
                None => status = self.print(&text),
            }
        }
        if self.dry_run {
            return status;
        }
        self.explain(why.reason, &why.detail, None);
        if self.settings.refuses(why.reason) {
            return exit::LAUNCH_FAILED;
        }
        if self.settings.strict && !self.settings.quiet && why.reason == SkipReason::TooSmall {
            warn(format_args!(
                "{}: it has no text of a huge page itself; --strict cannot judge what it executes or loads later",
                self.name().shown()
            ));
        }
        self.exec()
    }

    /// Becomes the program. Returns the exit status if the exec fails.
    /// Executes the program without a helper. A dry run never does.
    fn exec(&self) -> u8 {
        if self.dry_run {
            return exit::LAUNCH_FAILED;
        }
        self.allow_companion();
        let error = self.argv.exec_from(self.program);
        self.not_executed(error.errno)
    }

    fn not_executed(&self, errno: Errno) -> u8 {
        // The kernel returns ENOENT for a missing program and for a missing interpreter.
        let missing = || missing_interpreter(&search(self.name())?);
        let (mut why, mut fix) = (String::new(), String::new());
        match errno {
            Errno::NOENT => {
                if let Some(path) = missing() {
                    why = format!("its interpreter {} is not there: ", path.shown());
                }
            }
            // The kernel returns EACCES for a directory, for a file without execute permission, and for a path through
            // a directory without search permission.
            Errno::ACCES => match search(self.name()).and_then(|path| std::fs::metadata(path).ok())
            {
                Some(file) if file.is_dir() => why = "it is a directory: ".to_owned(),
                Some(file) if file.is_file() && file.mode() & 0o111 == 0 => {
                    why = "it is not executable: ".to_owned();
                    fix = format!("; fix: chmod +x {}", self.name().word());
                }
                _ => {}
            },
            _ => {}
        }
        let name = match self.name().is_empty() {
            true => "''".to_owned(),
            false => self.name().shown().to_string(),
        };
        warn(format_args!("cannot run {name}: {why}{errno}{fix}"));
        if errno == Errno::NOENT { exit::NOT_FOUND } else { exit::CANNOT_EXECUTE }
    }
}

/// Checks that the helper can allocate its buffers below a limit on address space (RLIMIT_AS). A Rust program that cannot
/// allocate ends at once, and its lines do not say what that means for the program.
///
/// # Errors
/// `address_space`
fn has_room() -> Result<(), Failure> {
    if getrlimit(Resource::As).current.is_none() {
        return Ok(());
    }
    let tried = black_box(&mut Vec::<u8>::new()).try_reserve_exact(FOR_HELPER);
    tried.map_err(|_no_room| Failure::new(FailureKind::AddressSpace, "too little for the helper"))
}
