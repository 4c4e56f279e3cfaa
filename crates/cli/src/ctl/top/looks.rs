//! Reads the text of processes in a child process, because a process can block its reader.
//!
//! A look reads the maps and page tables of a process, which costs twenty times as much as everything else. A refresh
//! therefore takes only the processes that are due, and stops after a share of the processor's time.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tiexec_remap::workers::{Aside, Heard, Sender};
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use super::processes::{Identity, Looked, Process, Processes};
use crate::ctl::status::processes::{PATIENCE, Told, look_at};
use crate::ctl::thread_with_text;

/// The share of one processor that looks may use once the screen is filled.
const SHARE: f64 = 0.002;
/// The factor by which a process off the screen waits longer than one on the screen.
const OFF_SCREEN: u32 = 10;
/// The time for which the processes of a user are skipped after one of them blocked the reader.
const SILENCE: Duration = Duration::from_secs(60);

/// The answer about one process.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    pid: i32,
    /// The identity at the time of the answer. It is compared with the requested one, because the process may have
    /// executed another program.
    identity: Option<Identity>,
    told: Told,
}

/// The processes that looks prefer.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) selected: Option<i32>,
    /// The rows on the screen.
    pub(super) on_screen: &'a [i32],
    pub(super) delay: Duration,
    /// The size of a huge page. A process with less text gains nothing.
    pub(super) least: u64,
}

/// The state of the looks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    round: Option<Round>,
    /// True once every process has been read since the start.
    filled: bool,
    silent: HashMap<Vec<u32>, Instant>,
}

/// One round, and the processes without an answer so far.
#[derive(Debug)]
struct Round {
    aside: Aside<Answer>,
    asked: VecDeque<(i32, Identity)>,
    answered: bool,
    last: Instant,
}

impl Looks {
    /// Marks the processes that are skipped for now because another process of their user blocked the reader.
    pub(super) fn note_silent(&self, processes: &mut Processes) {
        let unseen = |process: &&mut Process| process.looked == Looked::Never;
        for process in processes.all.values_mut().filter(unseen) {
            if self.silent.contains_key(&process.uids) {
                process.looked = Looked::Silent;
            }
        }
    }

    /// Starts a round, unless a round is running.
    pub(super) fn begin(&mut self, processes: &Processes, wanted: &Wanted<'_>) {
        if self.round.is_some() {
            return;
        }
        let now = Instant::now();
        self.silent.retain(|_, until| *until > now);
        let asked = self.due(processes, wanted, now);
        if asked.is_empty() {
            self.filled = true;
            return;
        }
        let limit = self.filled.then(|| wanted.delay.mul_f64(SHARE));
        let pids: Vec<i32> = asked.iter().map(|&(pid, _)| pid).collect();
        // If the fork fails, the next refresh tries again.
        let Ok(aside) = Aside::start(|to| look_at_all(&pids, limit, &to)) else { return };
        self.round = Some(Round { aside, asked, answered: false, last: now });
    }

    /// Returns the processes that are due: the selected process first, then those that have waited longest.
    fn due(
        &self,
        processes: &Processes,
        wanted: &Wanted<'_>,
        now: Instant,
    ) -> VecDeque<(i32, Identity)> {
        let mut due: Vec<(Option<Instant>, i32, Identity)> = Vec::new();
        for (&pid, process) in &processes.all {
            if self.silent.contains_key(&process.uids) {
                continue;
            }
            let turn = process.when.map(|(when, size)| {
                let on_screen = wanted.on_screen.contains(&pid);
                let grew = process.size > size.saturating_add(wanted.least);
                let worth = process.bytes().0 >= wanted.least || grew;
                match (on_screen, worth) {
                    (true, _) => Some(when + wanted.delay / 2),
                    (false, true) => Some(when + wanted.delay * OFF_SCREEN),
                    (false, false) => None,
                }
            });
            match turn {
                None => due.push((None, pid, process.identity)),
                Some(Some(turn)) if turn <= now => due.push((Some(turn), pid, process.identity)),
                Some(_) => {}
            }
        }
        due.sort_by_key(|&(turn, pid, _)| (Some(pid) != wanted.selected, turn, pid));
        due.into_iter().map(|(_, pid, identity)| (pid, identity)).collect()
    }

    /// Reads the available answers. Returns whether more will follow.
    pub(super) fn take(&mut self, processes: &mut Processes) -> bool {
        let Some(round) = &mut self.round else { return false };
        let more = round.take(processes);
        if more && round.last.elapsed() < PATIENCE {
            return true;
        }
        // The first process without an answer blocked the reader, or made it crash.
        if let Some((pid, _)) = round.asked.front().filter(|_| more || !round.answered)
            && let Some(process) = processes.all.get_mut(pid)
        {
            note(process, Looked::Silent);
            self.silent.insert(process.uids.clone(), Instant::now() + SILENCE);
        }
        self.filled |= round.asked.is_empty();
        self.round = None;
        false
    }

    /// Returns whether some processes have not been read since the start.
    pub(super) fn fill_the_screen(&self) -> bool {
        !self.filled
    }
}

impl Round {
    /// Reads the available answers of the round. Returns whether more will follow.
    fn take(&mut self, processes: &mut Processes) -> bool {
        loop {
            match self.aside.hear() {
                Heard::Message(answer) => self.put(answer, processes),
                Heard::Nothing => return true,
                Heard::End => return false,
            }
        }
    }

    fn put(&mut self, answer: Answer, processes: &mut Processes) {
        (self.answered, self.last) = (true, Instant::now());
        let Some((pid, identity)) = self.asked.pop_front() else { return };
        let process = processes.all.get_mut(&pid).filter(|it| it.identity == identity);
        let same = answer.pid == pid && answer.identity == Some(identity);
        if let Some(process) = process.filter(|_| same) {
            note(
                process,
                match answer.told {
                    Told::Seen(text) => Looked::Seen(text),
                    Told::Denied => Looked::Denied,
                    Told::Gone => return,
                },
            );
        }
    }
}

fn note(process: &mut Process, looked: Looked) {
    process.looked = looked;
    process.when = Some((Instant::now(), process.size));
}

/// Runs in the child process: reads one process after the other, until `limit` of processor time is used.
fn look_at_all(pids: &[i32], limit: Option<Duration>, answers: &Sender<'_, Answer>) {
    for &pid in pids {
        let process = Pid::from_raw(pid).and_then(|pid| ProcDir::of(pid).ok());
        let shown = Pid::from_raw(pid).and_then(|pid| thread_with_text(pid).ok());
        let told = shown.as_ref().map_or(Told::Gone, look_at);
        let identity = process.as_ref().and_then(Identity::again);
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        let spent = Duration::try_from(spent).unwrap_or_default();
        let is_heard = answers.send(&Answer { pid, identity, told });
        if !is_heard || limit.is_some_and(|limit| spent > limit) {
            return;
        }
    }
}
