//! The work on the processes that a rule acts on, one batch at a time.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tiexec_core::escape::AsShown;
use tiexec_core::plan::Backing;
use tiexec_core::proc::maps::FileId;
use tiexec_core::proc::pressure;
use tiexec_engine::times;
use tiexec_remap::file_state::FileState;
use tiexec_sys::{Pid, interrupt};

use super::prove::Unproved;
use super::{Agent, By, Known, Last, Level, Wanted};
use crate::decide::held_back;
use crate::guard::Held;
use crate::metrics::Share;
use crate::processes::Process;
use crate::rules::{Action, Rule};
use crate::state::{Whose, now};
use crate::treat::{self, Given, Job, Made, Outcome, Running, Told};

/// Most processes in one batch. Between two batches the agent checks crashes and the state.
const BATCH: usize = 16;
/// The time for which the first process of a program runs with huge text before other processes of the program get it.
const PROOF: Duration = Duration::from_millis(500);
/// Most programs whose first process is remembered.
const MOST_FIRST: usize = 4096;
/// For how long such a program is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The time for which the agent works on no process of a user, after the work on one of them did not finish.
const PENALTY: Duration = Duration::from_secs(3600);
/// How long the agent counts the copies of users' processes when it starts.
const LONGEST_COUNT: Duration = Duration::from_secs(10);
/// Most files whose builds are cached.
const MOST_BUILDS: usize = 1024;

/// The work that waits, and what the agent remembers of the work that it has done.
#[derive(Default)]
pub(super) struct Agenda {
    pub(super) wanted: VecDeque<Wanted>,
    /// The work on a user's process.
    pub(super) aside: Option<Aside>,
    /// True once the agent has counted the copies that an earlier one made.
    has_counted: bool,
    builds: HashMap<FileState, Made>,
    /// Programs of which a first process has been switched, and when.
    first: HashMap<Program, Instant>,
    /// Users on whose processes the agent does not work, and since when.
    pub(super) refused: HashMap<Whose, Instant>,
    /// The time that the work on the processes of each user has taken. It counts half after each scan.
    spent: HashMap<Whose, Duration>,
}

impl Agenda {
    /// Forgets what is too old to matter. Called after each scan of all processes.
    pub(super) fn forget_old(&mut self) {
        self.first.retain(|_, since| since.elapsed() < REMEMBERED);
        self.refused.retain(|_, since| since.elapsed() < PENALTY);
        self.spent.values_mut().for_each(|spent| *spent /= 2);
        self.spent.retain(|_, spent| !spent.is_zero());
    }

    /// Returns when the penalty of the user whose process this is ends; `None` without one.
    fn end_of_penalty(&self, one: &Wanted) -> Option<Instant> {
        let end = *self.refused.get(&one.payer()?)? + PENALTY;
        (Instant::now() < end).then_some(end)
    }

    /// Remembers what a file is.
    fn remember(&mut self, file: FileState, made: Made) {
        if self.builds.len() >= MOST_BUILDS {
            self.builds.clear();
        }
        self.builds.insert(file, made);
    }

    /// Returns whether the process is known to run another build.
    pub(super) fn runs_another(&self, process: &Process, made: &Made) -> bool {
        let known = process.file.as_ref().and_then(|file| self.builds.get(file));
        known.is_some_and(|known| known != made)
    }

    /// Remembers that a process of the program has been switched.
    fn has_switched(&mut self, program: Program) {
        if self.first.len() >= MOST_FIRST {
            self.first.clear();
        }
        self.first.entry(program).or_insert_with(Instant::now);
    }
}

/// A program as the agent remembers it: a user may show any path, and an upgrade puts another file there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Program {
    whose: Option<Whose>,
    /// The path that the process shows.
    path: Vec<u8>,
    file: Option<FileState>,
}

/// The work on a user's process, beside all other work.
pub(super) struct Aside {
    one: Wanted,
    under: Under,
    hold: Held,
    pub(super) running: Running,
    begun: Instant,
}

/// The parts of a rule that the end of the work needs. The rules may change before.
struct Under {
    name: String,
    action: Action,
    measures: bool,
}

impl Under {
    fn of(rule: &Rule) -> Self {
        Self { name: rule.name.clone(), action: rule.action, measures: rule.measure.is_some() }
    }
}

impl Wanted {
    /// Returns the user whose share of the agent's time and of copies the work takes, and for whom alone a crash counts;
    /// `None` for the machine. A launch is its user's own wish, root's too.
    fn payer(&self) -> Option<Whose> {
        let is_launch = matches!(self.by, By::Launch { .. });
        (is_launch || !self.facts.counts_for_all()).then(|| self.facts.whose())
    }

    /// Returns the user who has launched the program; `None` under a rule.
    fn launched_by(&self) -> Option<Whose> {
        self.payer().filter(|_| matches!(self.by, By::Launch { .. }))
    }

    /// Returns whether both may go into one batch: processes of one rule, one program and one user, in the agent's own work. A
    /// user's process is alone.
    fn goes_with(&self, other: &Self) -> bool {
        self.by == other.by
            && self.program() == other.program()
            && self.facts.uids == other.facts.uids
            && self.payer().is_none()
            && other.payer().is_none()
    }

    fn program(&self) -> Program {
        let Process { shown_exe, file, .. } = &self.facts;
        Program { whose: self.payer(), path: shown_exe.clone(), file: *file }
    }
}

impl Agent<'_> {
    /// Works on the wanted processes, one batch after the other, until memory is short or a signal arrives.
    pub(super) fn work(&mut self) {
        if !self.canary_known {
            return;
        }
        if !self.agenda.wanted.is_empty() {
            self.count_copies();
        }
        let mut rounds = self.agenda.wanted.len();
        while rounds > 0 && !self.agenda.wanted.is_empty() && !interrupt::asked() {
            if !self.read_state() {
                return;
            }
            self.see_ends();
            if let Some(why) = self.pressure() {
                self.say_once("pressure", Level::Warning, why);
                return;
            }
            self.say_once("pressure", Level::Info, String::new());
            self.see_aside();
            let Some(next) = self.next() else { return };
            let mut batch = self.batch(next);
            rounds = rounds.saturating_sub(batch.len().max(1));
            if batch.is_empty() {
                continue;
            }
            match batch.pop_if(|one| one.payer().is_some()) {
                Some(one) => self.begin_aside(one),
                None => self.treat(batch),
            }
            let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
            self.answer();
        }
    }

    /// If memory is short, returns the message that the agent attaches to nothing.
    pub(super) fn pressure(&self) -> Option<String> {
        let text = std::fs::read("/proc/pressure/memory").ok()?;
        let (share, most) = (pressure::some_avg10(&text)?, self.rules.limits.max_memory_pressure);
        (share > most).then(|| {
            format!(
                "attaches to nothing as long as memory is short: tasks waited for memory for {share} % of the time, \
                 and max-memory-pressure is {most}"
            )
        })
    }

    /// Takes the process whose turn it is, so that nobody delays others by many or slow processes. `None` if all processes
    /// have to wait.
    ///
    /// Processes of root and of the system's services come first. One process of a user is worked on beside them: the first
    /// process of the user on whom the agent has spent the least time.
    fn next(&mut self) -> Option<Wanted> {
        let aside = self.agenda.aside.as_ref();
        let waits = |one: &Wanted| {
            let first = self.agenda.first.get(&one.program()).map(Instant::elapsed);
            let attaches = self.rule(one.by).action == Action::Attach;
            let is_in_work =
                aside.is_some_and(|aside| one.payer().is_some() || aside.one.pid == one.pid);
            is_in_work || attaches && first.is_some_and(|since| since < PROOF)
        };
        let spent = |one: &Wanted| {
            one.payer().map(|whose| self.agenda.spent.get(&whose).copied().unwrap_or_default())
        };
        let turns = self.agenda.wanted.iter().enumerate().filter(|(_, one)| !waits(one));
        let (next, _) = turns.min_by_key(|(_, one)| spent(one))?;
        self.agenda.wanted.remove(next)
    }

    /// Takes all processes that may go into one batch with `next`. If the agent does not work on `next` now, the batch is empty.
    fn batch(&mut self, next: Wanted) -> Vec<Wanted> {
        let mut batch: Vec<Wanted> = Vec::new();
        let rule = self.rule(next.by);
        if held_back(rule, &self.state, self.machine).is_some() {
            return batch;
        }
        if let Some(end) = self.agenda.end_of_penalty(&next) {
            if let Some(known) = self.known.get_mut(&next.pid) {
                known.due = Some(known.due.map_or(end, |due| due.min(end)));
            }
            return batch;
        }
        let is_first = !self.agenda.first.contains_key(&next.program());
        let mut rest = VecDeque::new();
        for one in self.agenda.wanted.drain(..) {
            if !is_first && batch.len() + 1 < BATCH && next.goes_with(&one) {
                batch.push(one);
            } else {
                rest.push_back(one);
            }
        }
        self.agenda.wanted = rest;
        batch.insert(0, next);
        batch
    }

    fn treat(&mut self, batch: Vec<Wanted>) {
        // The agent opens the pidfds before it changes anything, so that it sees the end of every process.
        let (mut wanted, mut held) = (Vec::new(), Vec::new());
        for one in batch {
            if let Some(hold) = Held::of(one.pid, one.facts.identity) {
                self.expect_faults(&one);
                held.push(hold);
                wanted.push(one);
            }
        }
        let jobs: Vec<Job<'_>> = wanted.iter().map(|one| self.job(one)).collect();
        let counted = self.copies(|known| known.launched_by.is_none()).into_keys().collect();
        let known = |file: &FileState| self.agenda.builds.get(file).cloned();
        let told = treat::all(&jobs, self.given(&known, None), counted, || {
            let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
        });
        for ((one, hold), told) in wanted.into_iter().zip(held).zip(told) {
            let under = Under::of(self.rule(one.by));
            self.take_in(one, under, hold, told);
        }
    }

    /// Has the guard record faults from the beginning of the work, as long as the program could be Go's.
    fn expect_faults(&mut self, one: &Wanted) {
        let is_first = !self.agenda.first.contains_key(&one.program());
        self.guard.expect_faults(one.pid, &one.facts.comm, is_first);
    }

    fn job(&self, one: &Wanted) -> Job<'_> {
        let rule = self.rule(one.by);
        Job {
            pid: one.pid,
            identity: one.facts.identity,
            whose: one.facts.whose(),
            had_copies: self.known.get(&one.pid).is_some_and(|known| known.has_copies),
            rule,
            settings: rule.settings_for(&one.facts),
            start_is_over: match one.by {
                By::Rule(_) => None,
                By::Launch { settled } => Some(settled),
            },
        }
    }

    fn given<'b>(
        &'b self,
        known: &'b dyn Fn(&FileState) -> Option<Made>,
        launched_by: Option<&Whose>,
    ) -> Given<'b> {
        let copies_left = self.copies_left(launched_by);
        Given { known, state: &self.state, verdicts: &self.verdicts, copies_left }
    }

    /// Begins the work on a user's process, for which nobody else waits.
    fn begin_aside(&mut self, one: Wanted) {
        let Some(hold) = Held::of(one.pid, one.facts.identity) else { return };
        self.expect_faults(&one);
        let known = |file: &FileState| self.agenda.builds.get(file).cloned();
        match Running::begin(&self.job(&one), self.given(&known, one.launched_by().as_ref())) {
            Ok(running) => {
                let under = Under::of(self.rule(one.by));
                self.agenda.aside =
                    Some(Aside { one, under, hold, running, begun: Instant::now() });
            }
            Err(failure) => {
                let text = format!("cannot begin to work on processes: {failure}");
                self.say_once("memory", Level::Warning, text);
                self.guard.expect_no_faults(one.pid);
                self.again(one.pid, true);
            }
        }
    }

    /// Takes in the work on a user's process, if it has ended or takes too long.
    pub(super) fn see_aside(&mut self) {
        let Some(aside) = self.agenda.aside.take_if(|aside| aside.running.is_over()) else {
            return;
        };
        self.end_aside(aside);
    }

    /// Ends the work on a user's process, finished or not.
    pub(super) fn end_aside(&mut self, aside: Aside) {
        let Aside { one, under, hold, running, begun } = aside;
        if let Some(whose) = one.payer() {
            *self.agenda.spent.entry(whose).or_default() += begun.elapsed();
        }
        self.take_in(one, under, hold, running.end());
    }

    /// Returns how many bytes of copies may still be made under the rules, or for the launches of one user. A process says
    /// itself how large its copies are, and every user may launch, so that launches leave the rules their room.
    pub(super) fn copies_left(&self, launched_by: Option<&Whose>) -> u64 {
        let made = self.copies_of(|known| known.launched_by.as_ref() == launched_by);
        self.rules.limits.max_copies.saturating_sub(made)
    }

    /// Returns the bytes of the copies of some processes.
    pub(super) fn copies_of(&self, counts: impl Fn(&Known) -> bool) -> u64 {
        self.copies(counts).into_values().fold(0, u64::saturating_add)
    }

    /// Returns the copies of some processes, and the bytes of each. Processes may share one.
    fn copies(&self, counts: impl Fn(&Known) -> bool) -> HashMap<FileId, u64> {
        let mut all = HashMap::new();
        let processes = self.known.values().filter(|known| counts(known));
        for &(copy, bytes) in processes.flat_map(|known| &known.copies) {
            let most: &mut u64 = all.entry(copy).or_default();
            *most = bytes.max(*most);
        }
        all
    }

    /// Counts the copies of processes that the rules match, before the first of them is worked on: an earlier agent may
    /// have made them.
    fn count_copies(&mut self) {
        if std::mem::replace(&mut self.agenda.has_counted, true) {
            return;
        }
        let mut of_users: HashMap<Option<Whose>, Vec<Pid>> = HashMap::new();
        for one in &self.agenda.wanted {
            of_users.entry(one.payer()).or_default().push(one.pid);
        }
        // Users together have some seconds, and come last. The copies of others are counted when the agent works on them.
        let mut of_users: Vec<_> = of_users.into_iter().collect();
        of_users.sort_by_key(|(payer, _)| payer.is_some());
        let begun = Instant::now();
        for (payer, pids) in of_users {
            if payer.is_some() && begun.elapsed() > LONGEST_COUNT {
                break;
            }
            let Ok(told) = treat::copies_of(&pids) else {
                self.agenda.refused.extend(payer.map(|whose| (whose, Instant::now())));
                continue;
            };
            for (pid, copies) in told {
                let known = Pid::from_raw(pid).and_then(|pid| self.known.get_mut(&pid));
                if let Some(known) = known {
                    known.copies = copies;
                }
            }
            let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    /// Handles the outcome for one process.
    fn take_in(&mut self, one: Wanted, under: Under, hold: Held, told: Told) {
        let (payer, program) = (one.payer(), one.program());
        let Wanted { pid, facts, by: _ } = one;
        let Under { name, action, measures } = under;
        let made = told.program.as_ref().map(|program| program.made.clone());
        if let Some(treat::Program { file, made, report_of_jvm }) = told.program {
            self.agenda.remember(file, made.clone());
            if !matches!(&told.outcome, Some(Ok(outcome)) if !outcome.switched) {
                self.watch(hold.watch(&facts, payer.clone(), &name, made, report_of_jvm));
                self.agenda.has_switched(program);
            }
        }
        self.guard.expect_no_faults(pid);
        let what = format!("{} {} (rule {name})", facts.comm.shown(), pid.as_raw_nonzero());
        let outcome = match told.outcome {
            Some(Ok(outcome)) => outcome,
            unfinished => {
                let failure = unfinished.and_then(Result::err);
                if failure.is_some() {
                    self.agenda.refused.extend(payer.map(|whose| (whose, Instant::now())));
                }
                let why = failure
                    .map_or_else(|| "the agent ended the work".to_owned(), |it| it.to_string());
                self.say(Level::Warning, &format!("cannot {} {what}: {why}", action.as_str()));
                self.again(pid, false);
                return;
            }
        };
        if let Some(made) = made.filter(|_| outcome.result == "canary_required" && measures) {
            let program = facts.shown_exe.clone();
            self.want_proof(Unproved { whose: payer.clone(), rule: name.clone(), program, made });
        }
        let last = self.known.get(&pid).and_then(|known| known.last.as_ref());
        let is_news = outcome.stop_us.is_some() || last.is_none_or(|last| !last.is_like(&outcome));
        if action == Action::Attach && is_news && outcome.result != "reverted" {
            self.metrics.count(outcome.result == "ok", &outcome.result, outcome.stop_us);
        }
        if is_news || outcome.result != "ok" {
            self.say_outcome(pid, action, &what, &outcome);
        }
        let share = Share {
            rule: name,
            unit: facts.unit.clone().filter(|_| payer.is_none()),
            text_bytes: outcome.text_bytes,
            huge: outcome.backings.clone(),
        };
        self.note_outcome(pid, &facts, share, &outcome, action);
        let ends = ["ok", "target_gone", "quarantined", "too_small", "reverted"];
        if !ends.contains(&&*outcome.result) {
            self.again(pid, outcome.passing);
        }
    }

    /// Logs the outcome for a process.
    fn say_outcome(&mut self, pid: Pid, action: Action, what: &str, outcome: &Outcome) {
        let Outcome { result, detail, switched, text_bytes, huge_bytes, stop_us, .. } = outcome;
        let text = if result == "ok" {
            let done = match switched {
                true => format!("{} done", action.as_str()),
                // The kernel has made it huge by itself, or another process of the program has had it made.
                false => "nothing to do".to_owned(),
            };
            let stop = stop_us.map_or(String::new(), |micros| format!(", stopped for {micros} us"));
            format!(
                "{what}: {done}, huge {} of {} MiB text{stop}",
                huge_bytes >> 20,
                text_bytes >> 20
            )
        } else {
            // Later tries of the same work say nothing new.
            let is_first = self.known.get(&pid).is_some_and(|known| known.pauses.is_none());
            if !is_first || result == "target_gone" {
                return;
            }
            let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
            format!("{what}: left as it is: {result}{}", detail.shown())
        };
        self.say(Level::Info, &text);
    }

    /// Remembers the outcome for a process.
    fn note_outcome(
        &mut self,
        pid: Pid,
        facts: &Process,
        share: Share,
        outcome: &Outcome,
        action: Action,
    ) {
        // It may have executed another program, or ended, since.
        let same = |known: &&mut Known| known.identity == facts.identity;
        let Some(known) = self.known.get_mut(&pid).filter(same) else { return };
        let Outcome { result, huge_bytes, has_copies, .. } = outcome;
        // A refusal before the work says nothing about the copies.
        if *has_copies || result == "reverted" {
            known.copies.clone_from(&outcome.copies);
        }
        known.has_copies |= has_copies;
        // Copies stay. The kernel may reclaim page cache.
        let may_go = action == Action::Warm
            || share.huge.iter().any(|(name, _)| *name == Backing::Pagecache.to_string());
        if result == "ok" && may_go {
            let next = Instant::now() + times::KEEP;
            (known.due, known.pauses) = (Some(known.due.map_or(next, |due| due.min(next))), None);
        }
        let (comm, exe) = (facts.comm.shown().to_string(), facts.shown_exe.shown().to_string());
        let (huge_bytes, result) = (*huge_bytes, result.clone());
        known.last = Some(Last { share, huge_bytes, comm, exe, result, when: now() });
    }

    /// Schedules a retry for a process, after a growing pause.
    fn again(&mut self, pid: Pid, passing: bool) {
        let Some(known) = self.known.get_mut(&pid) else { return };
        let first = if passing { times::SOON } else { times::LATER };
        let pauses = known.pauses.get_or_insert(first.begin());
        let next = Instant::now() + pauses.take();
        // The look at the end of a program's start comes in any case.
        known.due = Some(known.due.map_or(next, |due| due.min(next)));
    }
}

#[cfg(test)]
mod tests {
    use tiexec_sys::reopen::PathFile;

    use super::*;

    fn of_root(contained: bool) -> Wanted {
        let facts = Process { uids: vec![0; 4], contained, ..Process::default() };
        Wanted { pid: tiexec_sys::process::this(), facts, by: By::Rule(0) }
    }

    #[test]
    fn a_process_of_a_container_goes_into_no_batch() {
        assert!(of_root(false).goes_with(&of_root(false)));
        for (one, other) in [(false, true), (true, false), (true, true)] {
            assert!(!of_root(one).goes_with(&of_root(other)), "{one} {other}");
        }
    }

    /// An upgrade of a package puts another file at the path.
    #[test]
    fn another_build_at_a_path_is_another_program() {
        let directory = tempfile::tempdir().unwrap();
        let running = |text: &str| {
            let (new, path) = (directory.path().join("new"), directory.path().join("server"));
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &path).unwrap();
            let mut one = of_root(false);
            one.facts.shown_exe = b"/server".to_vec();
            one.facts.file = FileState::of(&PathFile::at(&path).unwrap());
            assert!(one.facts.file.is_some());
            (PathFile::at(&path).unwrap(), one)
        };
        let ((_old, old), (_new, new)) = (running("a"), running("b"));
        let mut agenda = Agenda::default();
        agenda.has_switched(old.program());
        assert!(agenda.first.contains_key(&old.program()));
        assert!(!agenda.first.contains_key(&new.program()) && !old.goes_with(&new));
    }

    #[test]
    fn a_penalty_holds_for_those_who_pay() {
        let mut agenda = Agenda::default();
        agenda.refused.insert(of_root(true).facts.whose(), Instant::now());
        assert!(agenda.end_of_penalty(&of_root(true)).is_some());
        assert_eq!(agenda.end_of_penalty(&of_root(false)), None);
        // A look that comes when the penalty has ended must not find it again.
        let old = Instant::now().checked_sub(PENALTY);
        agenda.refused.values_mut().zip(old).for_each(|(since, old)| *since = old);
        assert_eq!(agenda.end_of_penalty(&of_root(true)), None);
    }
}
