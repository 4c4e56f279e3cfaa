//! A launch, up to the exec: whether the program can gain from it, and the helper that works on the program.

pub mod image_file;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use tiexec_core::config::Settings;
use tiexec_core::coverage::{FileCoverage, Rest};
use tiexec_core::plan::Backing;
use tiexec_core::proc::status::{CAP_SYS_PTRACE, Status};
use tiexec_core::report::{Kind, Report};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_remap::Failure;
use tiexec_remap::launch::{Brought, Launched, Order, bring_in, bring_in_object, carry_out};
use tiexec_remap::objects::{self, Expected, Object};
use tiexec_remap::policy::Policy;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, process};
use tiexec_tracee::handshake::{Armed, Arming, MayTrace, arm, wait_for_exec};
use tiexec_tracee::{TraceError, clock};

use crate::follow::Patterns;
use crate::policy::{policy, too_large};
use crate::sampling::number;
use crate::times;

use self::image_file::{Image, Verdict, judge, search};

/// A program that is to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The program, as the command line names it.
    pub name: &'a OsStr,
    /// The settings.
    pub settings: &'a Settings,
    /// True if anybody will read the report in full.
    pub wants_report: bool,
    /// Plan only: the program never runs.
    pub dry_run: bool,
    /// The status with which a program ends by `--strict`, instead of running on base pages.
    pub refused: u8,
}

/// How the program is to be started.
#[derive(Debug)]
pub enum Start {
    /// By a plain exec, which finds the text in huge pages.
    HugeAlready,
    /// Traced by a helper.
    Held(Box<Caller>),
}

/// This process, before its exec.
#[derive(Debug)]
pub struct Caller {
    status: Status,
    /// The order; its deadline is already reduced by the time that the page cache took.
    order: Order,
    small: Option<SmallText>,
}

/// A file whose text the page cache holds in small folios, so that the text must be copied or stays on base pages.
#[derive(Debug)]
pub struct SmallText {
    /// The program or one of its shared objects, by the path where it was found.
    pub file: PathBuf,
    /// Why the launch did not change that.
    pub why: Failure,
}

impl Caller {
    /// Returns the first file whose text is in small folios.
    pub const fn small(&self) -> Option<&SmallText> {
        self.small.as_ref()
    }
}

/// The result of a launch, as the helper reports it.
#[derive(Debug)]
pub enum Told<'a> {
    /// The text is in its final place; the program has not run yet.
    Launched(&'a Launched),
    /// The launch waited for the program of this name, and the program never came.
    NotReached(&'a str, TraceError),
}

/// Distinguishes a missing `/proc` from a missing descriptor.
fn proc_unreadable(error: SysError) -> Failure {
    let reason = match error.errno {
        Errno::MFILE => FailureKind::FdLimit,
        _ => FailureKind::ProcUnavailable,
    };
    Failure::of(reason)(error)
}

/// Makes a failure of which the reason says everything.
fn plain(reason: SkipReason) -> Failure {
    Failure::new(reason, "")
}

impl Launch<'_> {
    /// Checks for any reason to exec plainly, the cheapest check first.
    ///
    /// # Errors
    /// The reason to exec plainly.
    pub fn prepare(&self) -> Result<Start, Failure> {
        let until_exec = self.settings.until_exec.is_some();
        if self.settings.is_off() {
            return Err(plain(SkipReason::Disabled));
        }
        if !self.settings.select.text() {
            return Err(plain(SkipReason::NotSelected));
        }
        let policy = policy(self.settings, self.dry_run);
        let verdict = search(self.name).map_or(Verdict::Unknown, |path| judge(&path));
        if !until_exec && !self.is_selected(&verdict) {
            return Err(plain(SkipReason::NotSelected));
        }
        let (fills, mut objects) = match &verdict {
            Verdict::Plain(SkipReason::ForeignImage) if until_exec => (true, Vec::new()),
            Verdict::Plain(reason) => return Err(plain(*reason)),
            _ if until_exec => (true, Vec::new()),
            Verdict::Treat(image) => self.may_gain(image, policy.as_ref().ok())?,
            // The exec will fail, or execvp(3) will run the file by /bin/sh.
            Verdict::Unknown => return Err(plain(SkipReason::TooSmall)),
        };
        let policy = policy?;
        if policy.sources.copy != Some(Backing::Hugetlb) && process::thp_disabled() {
            let detail = "PR_SET_THP_DISABLE is in force (prctl(2)); it is inherited";
            return Err(Failure::new(FailureKind::ThpDisabled, detail));
        }
        let image = match &verdict {
            Verdict::Treat(image) if !until_exec => Some(image),
            _ => None,
        };
        let process = ProcDir::this_process().map_err(proc_unreadable)?;
        let status = process.status().map_err(proc_unreadable)?;
        if !fills && status.seccomp != 0 {
            let detail = "shared objects are left alone under a seccomp filter";
            return Err(Failure::new(SkipReason::LinkerUnwatched, detail));
        }
        let begun = Instant::now();
        let mut small = None;
        // A filter may kill a process that examines the page cache, so under a filter the helper examines it.
        if let Some(image) = image.filter(|_| policy.sources.pagecache && status.seccomp == 0) {
            let huge;
            (huge, small) = bring_all_in(image, &objects, &policy);
            // A report, a dry run and `--strict` need the kernel's own figures of the process. `-v` names the objects'
            // text that stays on base pages.
            let plainly = !self.wants_report && !self.dry_run && !self.settings.strict;
            if plainly && !self.settings.verbose && objects::have_page_cache_only(&policy) {
                objects.clear();
            }
            if plainly && objects.is_empty() {
                if !fills {
                    let detail =
                        "of its shared objects, a plain exec maps what the page cache holds";
                    return Err(Failure::new(SkipReason::NoStore, detail));
                }
                if huge {
                    return Ok(Start::HugeAlready);
                }
            }
        }
        let objects = image.map(|_| Expected::of(&objects));
        let deadline = policy.deadline.saturating_sub(begun.elapsed());
        let order = Order {
            process,
            chain: until_exec,
            policy: Policy { deadline, ..policy },
            objects,
            refuse_with: self.settings.strict.then_some(self.refused),
            wants_report: self.wants_report || self.dry_run,
        };
        Ok(Start::Held(Box::new(Caller { status, order, small })))
    }

    /// Returns whether the program's own text could be huge, and the shared objects whose text could be.
    ///
    /// # Errors
    /// No text could be.
    fn may_gain(
        &self,
        Image { path, facts }: &Image,
        policy: Option<&Policy>,
    ) -> Result<(bool, Vec<Object>), Failure> {
        let Settings { select, edges, .. } = self.settings;
        let could_be_huge = |&Policy { pages, .. }: &Policy| {
            facts.may_fill(pages.pmd, pages.base) || edges.is_for(facts.text_bytes(), pages.pmd)
        };
        let fills = select.main && policy.is_none_or(could_be_huge);
        let loads = policy.filter(|_| select.dso && facts.dynamic);
        let objects = loads.map_or_else(Vec::new, |policy| objects::with_text(path, policy));
        if fills || !objects.is_empty() {
            return Ok((fills, objects));
        }
        Err(match self.settings.pool_page() {
            Some(size) => Failure::new(SkipReason::PageSize, too_large(size)),
            None if select.main => plain(SkipReason::TooSmall),
            None => plain(SkipReason::NotSelected),
        })
    }

    /// Returns whether the user selected the program.
    fn is_selected(&self, verdict: &Verdict) -> bool {
        let Settings { only, except, .. } = self.settings;
        let Verdict::Treat(image) = verdict else { return true };
        if only.is_empty() && except.is_empty() {
            return true;
        }
        let path = image.path.canonicalize().unwrap_or_else(|_| image.path.clone());
        let meant = |patterns: Patterns| patterns.accept(path.as_os_str().as_encoded_bytes());
        Patterns::new(only, except).map_or(true, meant)
    }

    /// Starts a helper, which traces this process and works on the program once this process has exec'ed it. The helper
    /// keeps the descriptors in `keep`, and calls `tell` before the program runs.
    ///
    /// # Errors
    /// The reason to exec plainly.
    pub fn hold<'a>(
        &self,
        caller: &'a Caller,
        mut keep: Vec<BorrowedFd<'a>>,
        tell: impl Fn(Told<'_>),
    ) -> Result<Armed, Failure> {
        let Caller { status, order, .. } = caller;
        if status.tracer_pid != 0 {
            let detail = format!("process {} traces this one", status.tracer_pid);
            return Err(Failure::new(FailureKind::AlreadyTraced, detail));
        }
        keep.push(order.process.as_fd());
        let arming = Arming {
            deadline: self.settings.deadline() + Settings::DEFAULT_DEADLINE,
            rehearse: status.seccomp != 0,
            // The programs before the one of `--until-exec` run in any case.
            ends_with_helper: (self.dry_run || self.settings.strict)
                && self.settings.until_exec.is_none(),
            keep: &keep,
        };
        let privileged = status.credentials.effective() & CAP_SYS_PTRACE != 0;
        arm(arming, |target| self.help(target, order, privileged, tell))
    }

    /// The helper's work, in the helper.
    fn help(&self, target: Pid, order: &Order, privileged: bool, tell: impl Fn(Told<'_>)) {
        let wanted = self.settings.until_exec.as_deref();
        let is_the_one = || wanted.is_none_or(|name| is_named(&order.process, name));
        // A direct launch has judged its image already; the images of a chain are not known yet.
        let may_trace = |image: &Path| {
            !matches!(
                judge(image),
                Verdict::Plain(SkipReason::PrivilegedImage | SkipReason::UnreadableImage)
            )
        };
        let may_trace: Option<MayTrace<'_>> =
            if wanted.is_some() && !privileged { Some(&may_trace) } else { None };
        let longest =
            wanted.map(|_| clock::limit(self.settings.settle().max(times::LONGEST_START)));
        let stop = match wait_for_exec(target, longest, may_trace, is_the_one) {
            Ok(stop) => stop,
            Err(end) => {
                // The caller itself reports an exec that failed. The helper reports the end of a program only
                // if the launch waited for a program that never came.
                if let Some(name) = wanted {
                    tell(Told::NotReached(name, end));
                }
                return;
            }
        };
        carry_out(order, stop, |launched| tell(Told::Launched(launched)));
    }

    /// Makes the report of a program that is left alone, from its file only.
    pub fn plain_report(&self, pid: Pid, why: &Failure) -> Report {
        let Failure { reason, ref detail, .. } = *why;
        let file = search(self.name).and_then(|path| match judge(&path) {
            Verdict::Treat(image) => Some(image),
            _ => None,
        });
        let files = file.into_iter().map(|image| FileCoverage {
            path: image.path.to_string_lossy().into_owned(),
            text_bytes: image.facts.text_bytes(),
            rest: vec![Rest { reason, bytes: image.facts.text_bytes() }],
            ..FileCoverage::default()
        });
        let name = Path::new(self.name).file_name().unwrap_or(self.name);
        let name = name.to_string_lossy().into_owned();
        let mut report = Report::new(Kind::Launch, number(pid), name, files.collect());
        report.reason = Some(reason);
        report.detail = (!detail.is_empty()).then(|| detail.clone());
        report
    }
}

/// Makes the page cache of the program and of its objects huge. Returns whether nothing more is to do for the program's
/// own text, and the first file whose text is still in small folios.
fn bring_all_in(image: &Image, objects: &[Object], policy: &Policy) -> (bool, Option<SmallText>) {
    let deadline = Instant::now() + policy.deadline;
    let mut brought = Brought { complete: !policy.select.main, left: None };
    if policy.select.main
        && let Ok(exe) = File::open(&image.path)
    {
        brought = bring_in(&exe, &image.facts, policy, deadline);
    }
    let of = |file: &Path, why| SmallText { file: file.to_owned(), why };
    let mut small = brought.left.map(|why| of(&image.path, why));
    for object in objects {
        let left = bring_in_object(object, policy, deadline);
        small = small.or_else(|| left.map(|why| of(&object.path, why)));
    }
    (brought.complete, small)
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
