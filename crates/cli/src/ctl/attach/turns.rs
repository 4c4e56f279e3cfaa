//! Treats several processes, each in its turn.
//!
//! At any moment, some processes of a family are in calls that a stop would cut short. Each process gets a short turn first.
//! Those that had no suitable moment get more turns, so that all of them wait at the same time.

use std::time::{Duration, Instant};

use tiexec_core::skip::FailureKind;
use tiexec_engine::locked_target::{LONGEST, Search};
use tiexec_remap::Failure;
use tiexec_remap::workers::{self, Pool};
use tiexec_sys::{Pid, interrupt};

use super::REVERT;
use crate::ctl::families::{Printer, Seen};
use crate::ctl::progress::{Progress, counted};
use crate::ctl::targets::{failed, of_all};
use crate::ctl::told;
use crate::exit;
use crate::stdio::warn;

/// How long a turn searches for a suitable moment.
const TURN: Duration = Duration::from_millis(30);
/// How long the processes that had no suitable moment in their first turn get more turns.
const TOGETHER: Duration = Duration::from_secs(1);

/// Most scans for processes that were forked meanwhile.
const LOOKS: usize = 3;

/// One process's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// The search for a suitable moment in this turn.
    pub search: Search,
    /// True if the process gets no other turn.
    last: bool,
}

impl Turn {
    /// Returns the first turn of each of `count` processes.
    fn first(count: usize) -> Self {
        match count {
            0 | 1 => Self { search: Search::ONLY, last: true },
            _ => Self { search: Search { patience: TURN, looked: Duration::ZERO }, last: false },
        }
    }

    /// Returns the next turn, if the first turns ended so long ago.
    fn next(self, ago: Duration) -> Self {
        let looked = self.search.looked + self.search.patience;
        Self { search: Search { looked, ..self.search }, last: ago >= TOGETHER }
    }

    /// Returns whether a later turn may find what this one has not: the failure is not to be reported.
    pub(super) fn comes_again(self, failure: &Failure) -> bool {
        !self.last && failure.reason == FailureKind::NoThread
    }
}

/// The work on many processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Many {
    /// The words after `cannot` in a message.
    pub(super) doing: &'static str,
    /// The first word of the progress.
    pub(super) label: &'static str,
    /// True if the user named the processes. A process that has ended meanwhile counts only then.
    pub(super) named: bool,
    /// True if a terminal shows no progress.
    pub(super) quiet: bool,
    /// The end of the message after Ctrl-C or another such signal: the next command. `None`: the signals act as they do
    /// without this work.
    pub(super) after_interrupt: Option<String>,
}

/// Does `one` to each process, in a child process if it has other credentials. `one` returns the outcome, or `None` if the
/// process's turn [comes again](Turn::comes_again). Prints what `printer` prints at the end. Returns the combined exit
/// status. After Ctrl-C, the work on one process goes on to its end, and no other is begun.
pub(super) fn each(
    many: &Many,
    pids: &[Pid],
    printer: &Printer<'_>,
    one: impl FnMut(Pid, &mut Pool, Turn) -> Option<Seen>,
) -> u8 {
    each_and_more(many, pids, printer, one, |_| Vec::new())
}

/// Does the same, and then also to the processes that `more` finds beside those that it is given: a process that was forked
/// before its parent's turn is as the parent was.
pub(super) fn each_and_more(
    many: &Many,
    pids: &[Pid],
    printer: &Printer<'_>,
    mut one: impl FnMut(Pid, &mut Pool, Turn) -> Option<Seen>,
    mut more: impl FnMut(&[Pid]) -> Vec<Pid>,
) -> u8 {
    let Many { doing, label, named, quiet, ref after_interrupt } = *many;
    let after_interrupt = after_interrupt.as_ref().filter(|_| pids.len() > 1);
    if after_interrupt.is_some() {
        interrupt::catch();
    }
    let is_over = || after_interrupt.is_some() && interrupt::asked();
    let mut all: Vec<(Pid, Option<Seen>)> = pids.iter().map(|&pid| (pid, None)).collect();
    let mut turn = Turn::first(pids.len());
    let mut since = None;
    let mut looks = 0..LOOKS;
    let (mut progress, begun) = (Progress::unless(quiet || pids.len() < 2), Instant::now());
    loop {
        let waiting = all.iter().filter(|(_, done)| done.is_none());
        let waiting: Vec<Pid> = waiting.map(|(pid, _)| *pid).collect();
        if is_over() {
            break;
        }
        if waiting.is_empty() {
            let known: Vec<Pid> = all.iter().map(|(pid, _)| *pid).collect();
            let found = looks.next().map_or_else(Vec::new, |_| more(&known));
            if found.is_empty() {
                break;
            }
            all.extend(found.into_iter().map(|pid| (pid, None)));
            continue;
        }
        let count = all.len();
        let mut done = count - waiting.len();
        let line = |done| counted(label, done, count, "processes done", begun);
        match since {
            None => progress.now(|| line(done)),
            Some(_) => progress.at(|| line(done)),
        }
        let answered = |is_done: bool| {
            done += usize::from(is_done);
            progress.at(|| line(done));
        };
        let one = |pid, pool: &mut Pool| if is_over() { None } else { one(pid, pool, turn) };
        let outcomes = one_turn_each(doing, &waiting, one, answered);
        let waited = all.iter_mut().filter(|(_, done)| done.is_none());
        for ((_, outcome), done) in waited.zip(outcomes) {
            *outcome = done;
        }
        turn = turn.next(since.get_or_insert_with(Instant::now).elapsed());
    }
    drop(progress);
    // A reader that does not read must not keep this process from its end.
    if after_interrupt.is_some() {
        interrupt::release();
    }
    let count = all.len();
    let all: Vec<(Pid, Seen)> =
        all.into_iter().filter_map(|(pid, done)| Some((pid, done?))).collect();
    let printed = printer.all(doing, &all);
    if let Some(command) = after_interrupt
        && let Some(signal) = interrupt::signal()
        && all.len() < count
    {
        let is_done = |seen: &Seen| matches!(seen.status, exit::OK | exit::PARTIAL);
        let done = all.iter().filter(|(_, seen)| is_done(seen)).count();
        let next = match (doing, done) {
            (_, 0) if doing != REVERT.doing => String::new(),
            _ => format!("; {command}"),
        };
        warn(format_args!("interrupted: {done} of {count} processes done{next}"));
        return exit::of_signal(signal);
    }
    let status = of_all(all.iter().map(|(_, seen)| seen.status).collect(), named);
    if status == exit::GONE && !named {
        warn(format_args!("cannot {doing} the selected processes: all have ended"));
    }
    told(status, printed)
}

/// Does `one` to each process once. Returns the outcomes. Tells `answered` after each process whether it has one.
fn one_turn_each(
    doing: &str,
    pids: &[Pid],
    mut one: impl FnMut(Pid, &mut Pool) -> Option<Seen>,
    mut answered: impl FnMut(bool),
) -> Vec<Option<Seen>> {
    let mut all = Vec::new();
    for some in workers::are_of_others(pids).chunk_by(|one, other| one.1 == other.1) {
        let pids: Vec<Pid> = some.iter().map(|&(pid, _)| pid).collect();
        if some.first().is_some_and(|&(_, foreign)| foreign) {
            let gave_up = |pid, failure: &Failure| Some(Seen::from(failed(doing, pid, failure)));
            let one = |pid, pool: &mut Pool, note: &mut dyn FnMut(bool)| {
                let outcome = one(pid, pool);
                note(outcome.is_some());
                outcome
            };
            let heard = |_, is_done| answered(is_done);
            all.extend(workers::each_apart_noting(&pids, LONGEST, one, heard, gave_up));
        } else {
            let mut pool = Pool::default();
            all.extend(pids.iter().map(|&pid| {
                let outcome = one(pid, &mut pool);
                answered(outcome.is_some());
                outcome
            }));
        }
    }
    all
}
