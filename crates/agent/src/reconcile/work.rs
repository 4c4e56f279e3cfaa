//! The work on the processes that a rule acts on, one batch at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tiexec_core::escape::AsShown;
use tiexec_core::plan::Backing;
use tiexec_core::proc::pressure;
use tiexec_sys::{Pid, interrupt};

use super::prove::Unproved;
use super::{Agent, LATEST, Last, Level, Wanted};
use crate::decide::held_back;
use crate::guard::Held;
use crate::metrics::Share;
use crate::rules::Action;
use crate::state::now;
use crate::treat::{self, Job, Outcome, Told};

/// Most processes in one batch. Between two batches the agent checks crashes and the state.
const BATCH: usize = 16;
/// The time for which the first process of a program runs with huge text before other processes of the program get it.
const PROOF: Duration = Duration::from_millis(500);
/// The first pause before a process is retried: `SOON` for an obstacle that may pass, `LATER` for any other. Each pause
/// is twice the one before.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(60);
/// The time after which text in the page cache is checked again, because the kernel may have reclaimed it.
const KEEP: Duration = Duration::from_secs(600);
/// Most files whose builds are cached.
const MOST_BUILDS: usize = 1024;

impl Agent<'_> {
    /// Works on the wanted processes, one batch after the other, until memory is short or a signal arrives.
    pub(super) fn work(&mut self) {
        let mut rounds = self.wanted.len();
        while rounds > 0 && !self.wanted.is_empty() && !interrupt::asked() {
            self.read_state();
            self.see_ends();
            if let Some(why) = self.pressure() {
                self.say_once("pressure", Level::Warning, why);
                return;
            }
            self.say_once("pressure", Level::Info, String::new());
            let batch = self.batch();
            rounds = rounds.saturating_sub(batch.len().max(1));
            if !batch.is_empty() {
                self.treat(batch);
                let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
            }
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

    /// Takes the next processes that may go into one batch: processes of one rule, one program and one user.
    fn batch(&mut self) -> Vec<Wanted> {
        let mut batch: Vec<Wanted> = Vec::new();
        let Some(next) = self.wanted.pop_front() else { return batch };
        let rule = &self.rules.rules[next.rule];
        if held_back(rule, &self.state, self.machine).is_some() {
            return batch;
        }
        if self.refused.contains_key(&next.facts.whose()) {
            return batch;
        }
        let first = self.first.get(&next.facts.shown_exe).map(Instant::elapsed);
        if rule.action == Action::Attach && first.is_some_and(|since| since < PROOF) {
            self.wanted.push_back(next);
            return batch;
        }
        let alone = first.is_none() || !next.facts.counts_for_all();
        let like = |one: &Wanted| {
            one.rule == next.rule
                && one.facts.shown_exe == next.facts.shown_exe
                && one.facts.uids == next.facts.uids
        };
        let mut rest = VecDeque::new();
        for one in self.wanted.drain(..) {
            if !alone && batch.len() + 1 < BATCH && like(&one) {
                batch.push(one);
            } else {
                rest.push_back(one);
            }
        }
        self.wanted = rest;
        batch.insert(0, next);
        batch
    }

    fn treat(&mut self, batch: Vec<Wanted>) {
        // The agent opens the pidfds before it changes anything, so that it sees the end of every process.
        let (mut wanted, mut held) = (Vec::new(), Vec::new());
        for one in batch {
            if let Some(hold) = Held::of(one.pid, one.facts.identity) {
                held.push(hold);
                wanted.push(one);
            }
        }
        let rules = &self.rules.rules;
        let jobs: Vec<Job<'_>> = wanted
            .iter()
            .map(|one| Job {
                pid: one.pid,
                identity: one.facts.identity,
                whose: one.facts.whose(),
                had_copies: self.known.get(&one.pid).is_some_and(|known| known.has_copies),
                rule: &rules[one.rule],
                settings: rules[one.rule].settings_for(&one.facts),
            })
            .collect();
        let left = self.copies_left();
        let mut stuck = Vec::new();
        let told = treat::all(
            &jobs,
            &|file| self.builds.get(file).cloned(),
            (&self.state, &self.verdicts),
            left,
            |pid, failure| {
                let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
                stuck.push((pid, failure.to_string()));
            },
        );
        let told = match told {
            Ok(told) => told,
            Err(why) => {
                let text = format!("cannot begin to work on processes: {why}");
                self.say_once("memory", Level::Warning, text);
                wanted.into_iter().for_each(|one| self.again(one.pid, true));
                return;
            }
        };
        for ((one, hold), told) in wanted.into_iter().zip(held).zip(told) {
            let why = stuck.iter().find(|(pid, _)| *pid == one.pid).map(|(_, why)| why.as_str());
            self.take_in(one, hold, told, why);
        }
    }

    /// Returns how many bytes of copies may still be made.
    pub(super) fn copies_left(&self) -> u64 {
        let taken: u64 = self.known.values().map(|known| known.copied).sum();
        self.rules.limits.max_copies.saturating_sub(taken)
    }

    /// Handles the outcome for one process.
    fn take_in(&mut self, one: Wanted, hold: Held, told: Told, stuck: Option<&str>) {
        let Wanted { pid, facts, rule } = one;
        let rule = &self.rules.rules[rule];
        let (name, action, measures) = (rule.name.clone(), rule.action, rule.measure.is_some());
        let build = told.build.as_ref().map(|(_, build)| build.clone());
        if let Some((file, build)) = told.build {
            if self.builds.len() >= MOST_BUILDS {
                self.builds.clear();
            }
            self.builds.insert(file, build.clone());
            if told.outcome.as_ref().is_none_or(|outcome| outcome.switched) {
                self.guard.add(hold.watch(&facts, &name, build));
                self.first.entry(facts.shown_exe.clone()).or_insert_with(Instant::now);
            }
        }
        let number = pid.as_raw_nonzero();
        let what = format!("{} {number} (rule {name})", facts.comm.shown());
        let Some(outcome) = told.outcome else {
            let why = stuck.unwrap_or("its tracer ended");
            if stuck.is_some() && !facts.counts_for_all() {
                self.refused.insert(facts.whose(), Instant::now());
            }
            self.say(Level::Warning, &format!("cannot {} {what}: {why}", action.as_str()));
            self.again(pid, false);
            return;
        };
        if let Some(build) = build.filter(|_| outcome.result == "canary_required" && measures) {
            let program = facts.shown_exe.clone();
            self.want_proof(Unproved { rule: name.clone(), program, build });
        }
        let Outcome {
            result,
            detail,
            passing,
            text_bytes,
            huge_bytes,
            backings,
            copied,
            has_copies,
            stop_us,
            ..
        } = outcome;
        let known = self.known.get(&pid).and_then(|known| known.last.as_ref());
        let was = known.filter(|last| result == "ok" && last.result == "ok");
        let is_news = stop_us.is_some() || was.is_none_or(|last| last.huge_bytes != huge_bytes);
        let reverted = result == "reverted";
        if action == Action::Attach && is_news && !reverted {
            self.metrics.count(result == "ok", &result, stop_us);
        }
        // Copies stay. The kernel may reclaim page cache.
        let may_go = action == Action::Warm
            || backings.iter().any(|(name, _)| *name == Backing::Pagecache.to_string());
        if let Some(known) = self.known.get_mut(&pid) {
            known.copied = if reverted { 0 } else { known.copied + copied };
            known.has_copies |= has_copies;
            if result == "ok" && may_go {
                (known.due, known.gap) = (Some(Instant::now() + KEEP), None);
            }
            let unit = facts.unit.clone().filter(|_| facts.counts_for_all());
            let share = Share { rule: name.clone(), unit, text_bytes, huge: backings };
            let (comm, exe) = (facts.comm.shown().to_string(), facts.shown_exe.shown().to_string());
            known.last =
                Some(Last { share, huge_bytes, comm, exe, result: result.clone(), when: now() });
        }
        if result == "ok" && !is_news {
            return;
        }
        if result == "ok" {
            let mib = |bytes: u64| bytes >> 20;
            let stop = stop_us.map_or(String::new(), |micros| format!(", stopped for {micros} us"));
            let text = format!(
                "{what}: {} done, huge {} of {} MiB text{stop}",
                action.as_str(),
                mib(huge_bytes),
                mib(text_bytes)
            );
            self.say(Level::Info, &text);
            return;
        }
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let fresh = self.known.get(&pid).is_some_and(|known| known.gap.is_none());
        if fresh && result != "target_gone" {
            self.say(Level::Info, &format!("{what}: left as it is: {result}{}", detail.shown()));
        }
        if !matches!(result.as_str(), "target_gone" | "quarantined" | "too_small" | "reverted") {
            self.again(pid, passing);
        }
    }

    /// Schedules a retry for a process, after a growing pause.
    fn again(&mut self, pid: Pid, passing: bool) {
        let Some(known) = self.known.get_mut(&pid) else { return };
        let first = if passing { SOON } else { LATER };
        let gap = known.gap.map_or(first, |gap| (gap * 2).min(LATEST));
        (known.gap, known.due) = (Some(gap), Some(Instant::now() + gap));
    }
}
