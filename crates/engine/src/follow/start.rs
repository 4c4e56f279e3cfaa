//! The watch of a program's start, unless `--settle` or `--follow` say more.
//!
//! Much text appears only after the first exec: a script or a launcher executes another program, or a program loads the
//! library that does the work. So the companion reads the process through `/proc`, at growing intervals. The reads stop
//! no thread of the process. They need no perf event, for which the kernel would make the start wait for an RCU grace
//! period, and they work under a seccomp profile that forbids perf. New text is treated as that of a running program
//! ([`crate::locked_target`]), with one difference: libraries are copied for one process alone only when the start is
//! over, and only if they are not large.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use tiexec_core::addr::AddrRange;
use tiexec_core::config::Settings;
use tiexec_core::coverage::{FileCoverage, Rest};
use tiexec_core::escape::AsShown;
use tiexec_core::proc::maps::FileId;
use tiexec_core::report::Report;
use tiexec_core::skip::{Reason, SkipReason};
use tiexec_remap::attach::{AttachOrder, PrivateCopies};
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_remap::store::share::is_shareable;
use tiexec_remap::workers;
use tiexec_sys::perf_watch::wait_for_end;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, areas, process};

use super::Patterns;
use crate::locked_target::{Treated, has_text_of_ours};
use crate::pauses::Growing;
use crate::policy::policy;
use crate::switched_off::is_switched_off;
use crate::times;
use crate::watch::{self, Copies, Outcome, has_worked};

/// The most text of libraries, in bytes, that is copied for one process. The copy is made when the start is over and
/// the process still runs.
const MOST_COPIED: u64 = 64 << 20;

/// Text that is still on base pages when the start is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    /// The process.
    pub pid: Pid,
    /// Its image file, as `/proc/PID/exe` names it.
    pub exe: Vec<u8>,
    /// Bytes of text that could be huge and are not.
    pub bytes: u64,
    /// Bytes of text, in all.
    pub text_bytes: u64,
    /// Why most of these bytes are not huge.
    pub reason: Reason,
    /// The files with such text, each as a word for a command, the one with the most text first.
    pub files: Vec<String>,
    /// The cause in words, where there is one.
    pub detail: Option<String>,
}

/// Watches the start of `program`, from which this process was forked, until the start is over, the program has ended, or
/// somebody has reverted it. `tell` receives the report of each switch, and `left` the text that is left when the start is
/// over.
pub fn watch(
    settings: &Settings,
    program: Pid,
    tell: &mut dyn FnMut(&Report),
    left: &mut dyn FnMut(&Left),
) {
    let Ok(pidfd) = process::open_pidfd(program) else { return };
    let (begun, pauses) = (Instant::now(), times::PROGRAM.begin());
    // Many programs end before the first look, so nothing is read before it.
    if !ends_within(&pidfd, pauses.next())
        && let Some(watch) = StartWatch::new(settings, program, tell, left)
    {
        watch.run(&pidfd, begun, pauses);
    }
}

/// Waits for the end of the process. Returns true if it has ended, or if a filter refuses the wait: without a wait the
/// watch would never rest.
fn ends_within(pidfd: &OwnedFd, pause: Duration) -> bool {
    loop {
        match wait_for_end(Some(pidfd.as_fd()), Some(pause)) {
            Err(error) if error.errno == Errno::INTR => {}
            ended => return ended.unwrap_or(true),
        }
    }
}

/// The watch of one process.
struct StartWatch<'a> {
    program: Pid,
    policy: Policy,
    patterns: Patterns,
    /// The number of seccomp filters that this process has, and the program had at the fork.
    common_filters: u32,
    images: Images,
    /// The text on base pages that was there at the last look.
    looked_at: Vec<(AddrRange, FileId)>,
    copies: Copies,
    /// Receives the report of each switch.
    tell: &'a mut dyn FnMut(&Report),
    /// Receives the text that is left when the start is over.
    left: &'a mut dyn FnMut(&Left),
}

impl<'a> StartWatch<'a> {
    /// Returns `None` where nothing can be huge.
    fn new(
        settings: &Settings,
        program: Pid,
        tell: &'a mut dyn FnMut(&Report),
        left: &'a mut dyn FnMut(&Left),
    ) -> Option<Self> {
        let patterns = Patterns::new(&settings.only, &settings.except).ok()?;
        let policy = policy(settings, false).ok()?;
        let own = ProcDir::this_process().and_then(|this| this.status()).unwrap_or_default();
        let common_filters = own.seccomp_filters.unwrap_or(0);
        let (images, looked_at, copies) = (Images::default(), Vec::new(), Copies::default());
        Some(Self {
            program,
            policy,
            patterns,
            common_filters,
            images,
            looked_at,
            copies,
            tell,
            left,
        })
    }

    /// Looks after each pause. The first pause is over.
    fn run(mut self, pidfd: &OwnedFd, begun: Instant, mut pauses: Growing) {
        let (mut exe, mut changed, mut has_text) = (Vec::new(), begun, false);
        loop {
            let now = Instant::now();
            let next = self.exe();
            if next != exe {
                (exe, changed, has_text) = (next, now, false);
                pauses.restart();
                self.looked_at.clear();
            }
            let settled = has_text && now >= changed + times::settled();
            let is_over = settled || now >= begun + times::longest_start();
            if is_switched_off() {
                return;
            }
            self.see_copies();
            let begins = !is_traced(self.program)
                && (has_worked(self.program) || self.copies.were_seen(self.program));
            if is_over || begins {
                match self.look(is_over) {
                    Outcome::Unseen | Outcome::Nothing => {}
                    Outcome::Copied | Outcome::Text => (changed, has_text) = (now, true),
                    Outcome::MayPass => has_text = true,
                    Outcome::Reverted => return,
                }
            }
            pauses.take();
            if is_over || ends_within(pidfd, pauses.next()) {
                return;
            }
        }
    }

    fn exe(&self) -> Vec<u8> {
        ProcDir::of(self.program).and_then(|process| process.exe_path()).unwrap_or_default()
    }

    /// Notes the copies that the launch has made, even if the program has not worked yet: somebody may revert it before
    /// it does.
    fn see_copies(&mut self) {
        let program = self.program;
        if !self.copies.were_seen(program) && !workers::pid_is_of_others(program) {
            let has = ProcDir::of(program).is_ok_and(|process| has_text_of_ours(&process));
            self.copies.note(program, has);
        }
    }

    /// Looks at the program; `is_over` says that this is the last look.
    fn look(&mut self, is_over: bool) -> Outcome {
        let (program, mut copies) = (self.program, self.copies);
        let treat = |process: &ProcDir, has_copies: &mut bool| {
            self.look_at_text(process, is_over, has_copies)
        };
        let outcome = watch::look(program, &mut copies, |_| true, treat);
        self.copies = copies;
        outcome
    }

    fn look_at_text(&mut self, process: &ProcDir, is_over: bool, has_copies: &mut bool) -> Outcome {
        let Ok(exe) = process.exe_path() else { return Outcome::Unseen };
        if !self.patterns.accept(&exe) {
            return Outcome::Unseen;
        }
        let Ok(seen) = areas::look(process, self.policy.pages) else { return Outcome::Unseen };
        let huge = self.policy.pages.pmd;
        let on_base_pages = seen.areas.iter().filter(|area| {
            let whole = area.vma.range.align_inward(huge).map_or(0, |whole| whole.len());
            let made = area.huge_parts(huge).iter().map(|part| part.len()).sum::<u64>();
            area.vma.is_text() && area.vma.file.inode != 0 && made < whole
        });
        let texts: Vec<_> = on_base_pages.map(|area| (area.vma.range, area.vma.file)).collect();
        if texts.is_empty() || (texts == self.looked_at && !is_over) {
            return Outcome::Nothing;
        }
        let outcome = self.treat(&exe, is_over, has_copies);
        if outcome == Outcome::Text {
            self.looked_at = texts;
        }
        outcome
    }

    fn treat(&mut self, exe: &[u8], is_over: bool, has_copies: &mut bool) -> Outcome {
        let Self { program, policy, common_filters, .. } = *self;
        let change = |order: &mut AttachOrder<'_>| {
            order.common_filters = common_filters;
            if policy.sources.pagecache && policy.sources.store {
                order.private_copies = private_copies(program, is_over);
            }
        };
        let tell = &mut |_: &_, treated: &Treated| (self.tell)(&treated.report);
        let treated = watch::treat(program, policy, &mut self.images, change, tell, has_copies);
        let Treated { attached, report } = match treated {
            Ok(treated) => treated,
            Err(reason) => return Outcome::of_failure(reason),
        };
        if is_over && let Some(left) = self.left_of(exe, &report) {
            (self.left)(&left);
        }
        attached.failure.map_or(Outcome::Text, |failure| Outcome::of_failure(failure.reason))
    }

    /// Returns the text that could be huge according to the report and is not; `None` if it is less than a huge page.
    fn left_of(&self, exe: &[u8], report: &Report) -> Option<Left> {
        let mut by_reason: BTreeMap<Reason, u64> = BTreeMap::new();
        for rest in report.files.iter().flat_map(could_be_huge) {
            *by_reason.entry(rest.reason).or_default() += rest.bytes;
        }
        let bytes = by_reason.values().sum();
        let (mut reason, _) = by_reason.into_iter().max_by_key(|&(_, bytes)| bytes)?;
        // The file with the most text is the first.
        let files: Vec<_> = report
            .files
            .iter()
            .filter(|file| could_be_huge(file).any(|rest| rest.reason == reason))
            .collect();
        if let Reason::Skipped(SkipReason::NoStore | SkipReason::NotCongruent) = reason
            && !files.iter().all(|file| is_shareable(Path::new(&file.path)))
        {
            // Only a store that would not take these files could help.
            reason = SkipReason::NotShareable.into();
        }
        (bytes >= self.policy.pages.pmd.bytes()).then(|| Left {
            pid: self.program,
            exe: exe.to_owned(),
            bytes,
            text_bytes: report.text_bytes,
            files: files.iter().map(|file| file.path.word().to_string()).collect(),
            reason,
            detail: report.detail.clone(),
        })
    }
}

/// Returns which text is copied for this program alone: the program's own in any case, libraries only if the start is
/// over, the program has worked, and they are not large.
pub fn private_copies(program: Pid, is_over: bool) -> PrivateCopies {
    PrivateCopies::UpTo(if is_over && has_worked(program) { MOST_COPIED } else { 0 })
}

/// Returns whether somebody traces the program. The launch's helper does so until the program begins: a look before that
/// would plan for maps that the helper changes.
fn is_traced(program: Pid) -> bool {
    let status = ProcDir::of(program).and_then(|process| process.status());
    status.is_ok_and(|status| status.tracer_pid != 0)
}

/// Returns the parts of the file's text that could be huge and are not.
fn could_be_huge(file: &FileCoverage) -> impl Iterator<Item = &Rest> {
    const NEVER: [SkipReason; 8] = [
        SkipReason::TooSmall,
        SkipReason::Edges,
        SkipReason::AlreadyPmdMapped,
        SkipReason::CutInPieces,
        SkipReason::NotSelected,
        SkipReason::ModifiedText,
        SkipReason::Sealed,
        SkipReason::ProtectionKey,
    ];
    file.rest.iter().filter(|rest| !NEVER.into_iter().any(|why| rest.reason == why))
}
