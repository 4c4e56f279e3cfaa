//! The work on processes, in a child process: the agent itself never changes a process.
//!
//! The child says which program it is about to change, and then the outcome. The agent therefore knows what was begun even if
//! the child did not finish.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tiexec_core::config::Settings;
use tiexec_core::coverage::huge_by_backing;
use tiexec_core::proc::maps::FileId;
use tiexec_core::skip::{FailureKind, Reason};
use tiexec_engine::follow::start::private_copies;
use tiexec_engine::hottest::Hot;
use tiexec_engine::identity::Identity;
use tiexec_engine::locked_target::{LOOKING, LockedTarget, Treated};
use tiexec_engine::policy::policy;
use tiexec_engine::watch::may_pass;
use tiexec_remap::build_id::{build_id, is_of_go, text_key};
use tiexec_remap::file_state::FileState;
use tiexec_remap::images::Images;
use tiexec_remap::mapped::{Copied, copies};
use tiexec_remap::workers::{self, Aside, Heard, Pool, Said};
use tiexec_remap::{Failure, open_exe};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas};

use crate::jvm::Report;
use crate::off;
use crate::rules::{Action, Rule};
use crate::state::{Build, State, Whose};
use crate::verdicts::{Standing, Verdicts};

/// The time limit for one process, because others wait meanwhile.
const LONGEST: Duration = Duration::from_secs(30);

/// A process to work on.
pub(crate) struct Job<'a> {
    pub(crate) pid: Pid,
    pub(crate) identity: Identity,
    pub(crate) whose: Whose,
    /// True if it had copies when the agent last worked on it.
    pub(crate) had_copies: bool,
    pub(crate) rule: &'a Rule,
    /// The options, or the reason why the pod's annotations cannot be applied.
    pub(crate) settings: Result<Settings, String>,
    /// Whether its start is over, if `tiexec` has started it; `None` under a rule.
    pub(crate) start_is_over: Option<bool>,
}

/// The outcome for a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// `ok`, or the reason in snake_case.
    pub(crate) result: String,
    /// The reason in words.
    pub(crate) detail: String,
    /// True if a retry a moment later may succeed.
    pub(crate) passing: bool,
    /// True if the process has text of TiExec's, or its text was changed. The agent must then watch it for a crash.
    pub(crate) switched: bool,
    /// True if it has copies.
    pub(crate) has_copies: bool,
    /// Bytes of text.
    pub(crate) text_bytes: u64,
    /// Bytes of text in huge pages.
    pub(crate) huge_bytes: u64,
    /// Bytes of text in huge pages, by backing.
    pub(crate) backings: Vec<(String, u64)>,
    /// The copies that the process executes.
    pub(crate) copies: Vec<Copied>,
    /// Microseconds for which the threads were stopped.
    pub(crate) stop_us: Option<u64>,
}

impl Outcome {
    fn of(result: &str, detail: impl ToString) -> Self {
        Self { result: result.to_owned(), detail: detail.to_string(), ..Self::default() }
    }

    fn failed(failure: &Failure) -> Self {
        let passing = may_pass(failure.reason);
        Self { passing, ..Self::of(failure.reason.as_str(), &failure.detail) }
    }
}

/// What a program's file is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) build: Build,
    /// True if it is a Go program, which ends with exit status 2 after a fault, and by no signal.
    pub(crate) is_go: bool,
}

/// The program of a process whose work began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Its file.
    pub(crate) file: FileState,
    /// What the file is.
    pub(crate) made: Made,
    /// Where a JVM would report a crash.
    pub(crate) report_of_jvm: Option<Report>,
}

/// Everything that is known about the work on one process.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Its program, if the work began or a canary has to come first.
    pub(crate) program: Option<Program>,
    /// The outcome, or why the work did not finish. `None` if the agent itself ended the work.
    pub(crate) outcome: Option<Result<Outcome, Failure>>,
}

/// The knowledge of the agent on which the work depends.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    /// Returns what a file is whose text was hashed before.
    pub(crate) known: &'a dyn Fn(&FileState) -> Option<Made>,
    /// The quarantine.
    pub(crate) state: &'a State,
    /// The verdicts of canaries.
    pub(crate) verdicts: &'a Verdicts,
    /// The bytes of copies that may still be made.
    pub(crate) copies_left: u64,
}

/// Does the jobs one after the other, in a child process. Returns what is known about each job. `counted` are the copies
/// that count already. `gave_up` is called after each job that did not finish.
pub(crate) fn all(
    jobs: &[Job<'_>],
    mut given: Given<'_>,
    mut counted: HashSet<FileId>,
    mut gave_up: impl FnMut(),
) -> Vec<Told> {
    let pids: Vec<Pid> = jobs.iter().map(|job| job.pid).collect();
    let mut images = Images::default();
    let mut programs = HashMap::new();
    let outcomes = workers::each_apart_noting(
        &pids,
        LONGEST,
        |pid, pool, note| {
            let job = jobs.iter().find(|job| job.pid == pid);
            let job = job.ok_or_else(|| Failure::new(FailureKind::TargetGone, ""))?;
            let outcome = one(job, given, &mut images, pool, note);
            let new = outcome.copies.iter().filter(|(copy, _)| counted.insert(*copy));
            let new: u64 = new.map(|(_, bytes)| bytes).sum();
            given.copies_left = given.copies_left.saturating_sub(new);
            Ok(outcome)
        },
        |pid, program| {
            programs.insert(pid, program);
        },
        |_, failure| {
            gave_up();
            Err(failure.clone())
        },
    );
    let told = |(pid, outcome)| Told { program: programs.remove(pid), outcome: Some(outcome) };
    pids.iter().zip(outcomes).map(told).collect()
}

/// The work on one process, in a child process that nobody waits for. Dropping this value ends the work.
pub(crate) struct Running {
    work: Aside<Said<Program, Outcome>>,
    until: Instant,
    told: Told,
}

impl Running {
    /// Begins a job.
    ///
    /// # Errors
    /// The work gets no process.
    pub(crate) fn begin(job: &Job<'_>, given: Given<'_>) -> Result<Self, Failure> {
        let work = Aside::start(|to| {
            let note = &mut |program| {
                let _unheard = to.send(&Said::Note(program));
            };
            let outcome = one(job, given, &mut Images::default(), &mut Pool::default(), note);
            let _unheard = to.send(&Said::Answer(outcome));
        })?;
        Ok(Self { work, until: workers::time_out_of(LONGEST), told: Told::default() })
    }

    /// Returns a descriptor that is readable once the work has something to say.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.work.as_fd()
    }

    /// Takes in what the work has said. Returns whether it has ended, or takes too long.
    pub(crate) fn is_over(&mut self) -> bool {
        let has_ended = self.hear();
        if self.told.outcome.is_none() {
            let failure = if has_ended {
                Failure::new(FailureKind::HelperDied, "its tracer ended")
            } else if Instant::now() >= self.until {
                workers::unfinished(LONGEST)
            } else {
                return false;
            };
            self.told.outcome = Some(Err(failure));
        }
        true
    }

    /// Takes in the messages of the work. Returns whether it has ended.
    fn hear(&mut self) -> bool {
        loop {
            match self.work.hear() {
                Heard::Message(Said::Note(program)) => self.told.program = Some(program),
                Heard::Message(Said::Answer(outcome)) => self.told.outcome = Some(Ok(outcome)),
                Heard::Nothing => return false,
                Heard::End => return true,
            }
        }
    }

    /// Ends the work. Returns everything that is known about it.
    pub(crate) fn end(mut self) -> Told {
        self.is_over();
        self.work.stop(workers::BRIEF);
        // The work may have begun to change the process just before its end.
        self.hear();
        self.told
    }
}

fn one(
    job: &Job<'_>,
    given: Given<'_>,
    images: &mut Images,
    pool: &mut Pool,
    note: &mut dyn FnMut(Program),
) -> Outcome {
    let Given { known, state, verdicts, copies_left } = given;
    if let Some(off) = off::now() {
        return Outcome::of(off.as_str(), format_args!("{} is there", off.file()));
    }
    let settings = match &job.settings {
        Ok(settings) => settings,
        Err(why) => return Outcome::of("bad_annotation", why),
    };
    let Ok(process) = ProcDir::of(job.pid) else {
        return Outcome::of("target_gone", "");
    };
    if Identity::of(&process) != Some(job.identity) {
        return Outcome::of("changed", "it is another program by now");
    }
    let text_bytes = text_bytes(&process);
    if text_bytes < job.rule.min_text {
        return Outcome {
            text_bytes,
            ..Outcome::of("too_small", "it has less text than min-text")
        };
    }
    let (file, made) = match build_of(&process, known) {
        Ok(found) => found,
        Err(failure) => return Outcome::failed(&failure),
    };
    let build = &made.build;
    if let Some(entry) = state.quarantined(build, &job.whose) {
        let detail = format!("{} crashed by signal {}", entry.build, entry.signal);
        return Outcome { text_bytes, ..Outcome::of("quarantined", detail) };
    }
    if job.rule.waits_for_canary() {
        match verdicts.standing(build, settings) {
            Standing::Better => {}
            Standing::Not(verdict) => {
                let detail = format!("a canary on this machine found: {}", verdict.as_str());
                return Outcome { text_bytes, ..Outcome::of("not_better", detail) };
            }
            Standing::Unknown => {
                note(Program { file, made, report_of_jvm: None });
                let detail = "no canary has found this build to be better on this machine";
                return Outcome { text_bytes, ..Outcome::of("canary_required", detail) };
            }
        }
    }
    if job.rule.action == Action::Warm {
        return warm(&process, text_bytes);
    }
    if copies_left == 0 {
        let detail = "the copies of all programs have reached max-copies";
        return Outcome { text_bytes, passing: true, ..Outcome::of("memory_headroom", detail) };
    }
    let locked = match LockedTarget::open_with(job.pid, pool) {
        Ok(locked) => locked,
        Err(failure) => return Outcome::failed(&failure),
    };
    // From here on the address space cannot change to another one. Therefore the identity is checked once more.
    if Identity::of(&locked.target.process) != Some(job.identity) {
        return Outcome::of("changed", "it is another program by now");
    }
    if locked.stays_reverted(job.had_copies) {
        let detail =
            format!("somebody has reverted it; fix: tiexecctl attach {}", job.pid.as_raw_nonzero());
        return Outcome { text_bytes, ..Outcome::of("reverted", detail) };
    }
    // From now on the process may be changed.
    let report_of_jvm = Report::of(&locked.target.process);
    note(Program { file, made, report_of_jvm });
    attach(&locked, settings, job.start_is_over, images)
}

fn attach(
    locked: &LockedTarget,
    settings: &Settings,
    start_is_over: Option<bool>,
    images: &mut Images,
) -> Outcome {
    let done = match settings.max_huge_pages {
        None => policy(settings, false).and_then(|policy| {
            let mut order = locked.order(policy);
            if let Some(is_over) = start_is_over {
                order.private_copies = private_copies(locked.target.pid, is_over);
            }
            locked.treat_once(&order, images)
        }),
        Some(budget) => Hot::sample(&[locked.target.pid], budget, settings, false, |_, _| {})
            .map_err(Failure::of(FailureKind::ProcUnavailable))
            .and_then(|hot| hot.treat_once(locked, images)),
    };
    let Treated { attached, report } = match done {
        Ok(treated) => treated,
        Err(failure) => {
            locked.record_refusal(&failure);
            let has_copies = locked.has_text_of_ours() == Some(true);
            let copies = copies(&locked.target.process);
            return Outcome {
                switched: has_copies,
                has_copies,
                copies,
                ..Outcome::failed(&failure)
            };
        }
    };
    let outcome = match &attached.failure {
        None => Outcome::of("ok", ""),
        Some(failure) => Outcome::failed(failure),
    };
    let stop = attached.stop.map(|stop| stop.lasted.as_micros());
    let has_copies = locked.has_text_of_ours() == Some(true);
    Outcome {
        switched: attached.touched_it() || has_copies,
        has_copies,
        text_bytes: report.text_bytes,
        huge_bytes: report.huge_bytes,
        backings: huge_by_backing(&report.files).into_iter().collect(),
        // The kernel says which copies there are, whichever of TiExec's processes made them.
        copies: copies(&locked.target.process),
        stop_us: stop.and_then(|micros| u64::try_from(micros).ok()),
        ..outcome
    }
}

/// The time limit for reading the maps of all processes of one user.
const COUNTING: Duration = Duration::from_secs(5);

/// Returns the copies that each process executes.
///
/// # Errors
/// The processes do not let their maps be read in time.
pub(crate) fn copies_of(pids: &[Pid]) -> Result<Vec<(i32, Vec<Copied>)>, Failure> {
    workers::apart(COUNTING, || {
        let of = |pid: &Pid| Some((pid.as_raw_nonzero().get(), copies(&ProcDir::of(*pid).ok()?)));
        pids.iter().filter_map(of).collect()
    })
}

/// Brings the program's file into huge pages of the page cache, if root or the agent's user owns it: no other user may
/// choose a file for root to read.
fn warm(process: &ProcDir, text_bytes: u64) -> Outcome {
    let warmed = open_exe(process).and_then(|exe| {
        let owner = exe.metadata().map(|meta| meta.uid());
        if !owner.is_ok_and(|owner| owner == 0 || owner == rustix::process::geteuid().as_raw()) {
            let what = "the file is another user's";
            return Err(Failure::new(tiexec_core::skip::SkipReason::NotOwner, what));
        }
        tiexec_remap::warm::warm_program(&exe)
    });
    match warmed {
        Ok(huge_bytes) => Outcome { text_bytes, huge_bytes, ..Outcome::of("ok", "") },
        Err(failure) => Outcome { text_bytes, ..Outcome::failed(&failure) },
    }
}

/// Returns how many bytes of text the process maps.
fn text_bytes(process: &ProcDir) -> u64 {
    let vmas = areas::vmas(process).unwrap_or_default();
    let text = vmas.iter().filter(|vma| vma.is_text());
    text.map(|vma| vma.range.len()).sum()
}

fn build_of(
    process: &ProcDir,
    known: &dyn Fn(&FileState) -> Option<Made>,
) -> Result<(FileState, Made), Failure> {
    let exe = open_exe(process)?;
    let file = FileState::of_open(&exe).map_err(Failure::of(FailureKind::ReadFailed))?;
    if let Some(made) = known(&file) {
        return Ok((file, made));
    }
    let build_id = build_id(&exe).unwrap_or_else(|| "none".to_owned());
    let text = text_key(&exe).ok_or_else(|| {
        Failure::new(FailureKind::ReadFailed, "the text of the program cannot be hashed")
    })?;
    Ok((file, Made { build: Build { build_id, text }, is_go: is_of_go(&exe) }))
}

/// The facts about a process that only a child process reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Looked {
    pub(crate) text_bytes: u64,
    pub(crate) build: Result<(FileState, Build), String>,
}

/// Examines a process in a child process, and changes nothing.
///
/// # Errors
/// The examination took too long, or failed.
pub(crate) fn look(process: &ProcDir) -> Result<Looked, Reason> {
    let looked = workers::apart(LOOKING, || {
        let build = build_of(process, &|_| None);
        let build = build.map(|(file, made)| (file, made.build));
        let build = build.map_err(|failure| failure.reason.to_string());
        Looked { text_bytes: text_bytes(process), build }
    });
    looked.map_err(|failure| failure.reason)
}
