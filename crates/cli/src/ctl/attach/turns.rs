//! Treats several processes, each in its turn.
//!
//! At any moment, some processes of a family are in calls that a stop would cut short. Each process gets a short turn first.
//! Those that had no suitable moment get more turns, so that all of them wait at the same time.

use std::time::{Duration, Instant};

use tiexec_core::skip::FailureKind;
use tiexec_engine::locked_target::{LONGEST, Search};
use tiexec_remap::Failure;
use tiexec_remap::workers::{self, Pool};
use tiexec_sys::Pid;

use crate::ctl::families::{Printer, Seen};
use crate::ctl::targets::{failed, of_all};
use crate::ctl::told;
use crate::exit;
use crate::stdio::warn;

/// How long a turn searches for a suitable moment.
const TURN: Duration = Duration::from_millis(30);
/// How long the processes that had no suitable moment in their first turn get more turns.
const TOGETHER: Duration = Duration::from_secs(1);

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

/// Does `one` to each process, in a child process if it has other credentials. `one` returns the outcome, or `None` if the
/// process's turn [comes again](Turn::comes_again). Prints what `printer` prints at the end. Returns the combined exit
/// status. A process that has ended meanwhile counts only if the user `named` it.
pub(super) fn each(
    doing: &str,
    pids: &[Pid],
    named: bool,
    printer: &Printer<'_>,
    mut one: impl FnMut(Pid, &mut Pool, Turn) -> Option<Seen>,
) -> u8 {
    let mut all: Vec<(Pid, Option<Seen>)> = pids.iter().map(|&pid| (pid, None)).collect();
    let mut turn = Turn::first(pids.len());
    let mut since = None;
    loop {
        let waiting = all.iter().filter(|(_, done)| done.is_none());
        let waiting: Vec<Pid> = waiting.map(|(pid, _)| *pid).collect();
        if waiting.is_empty() {
            break;
        }
        let done = one_turn_each(doing, &waiting, |pid, pool| one(pid, pool, turn));
        let waited = all.iter_mut().filter(|(_, done)| done.is_none());
        for ((_, outcome), done) in waited.zip(done) {
            *outcome = done;
        }
        turn = turn.next(since.get_or_insert_with(Instant::now).elapsed());
    }
    let all: Vec<(Pid, Seen)> =
        all.into_iter().filter_map(|(pid, done)| Some((pid, done?))).collect();
    let printed = printer.all(doing, &all);
    let status = of_all(all.iter().map(|(_, seen)| seen.status).collect(), named);
    if status == exit::GONE && !named {
        warn(format_args!("cannot {doing} the selected processes: all have ended"));
    }
    told(status, printed)
}

/// Does `one` to each process once. Returns the outcomes.
fn one_turn_each(
    doing: &str,
    pids: &[Pid],
    mut one: impl FnMut(Pid, &mut Pool) -> Option<Seen>,
) -> Vec<Option<Seen>> {
    let mut all = Vec::new();
    for some in workers::are_of_others(pids).chunk_by(|one, other| one.1 == other.1) {
        let pids: Vec<Pid> = some.iter().map(|&(pid, _)| pid).collect();
        if some.first().is_some_and(|&(_, foreign)| foreign) {
            let gave_up = |pid, failure: &Failure| Some(Seen::from(failed(doing, pid, failure)));
            all.extend(workers::each_apart(&pids, LONGEST, &mut one, gave_up));
        } else {
            let mut pool = Pool::default();
            all.extend(pids.iter().map(|&pid| one(pid, &mut pool)));
        }
    }
    all
}
