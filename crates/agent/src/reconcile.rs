//! All processes against the rules, again and again.
//!
//! The truth is a look at all processes, at least every [`EVERY`]. Events make the look at one process come sooner. So the
//! order in which programs and the agent start does not matter, and a lost event costs time only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tiexec_core::escape::{self, AsShown};
use tiexec_core::proc::pressure;
use tiexec_engine::journal;
use tiexec_engine::switched_off::{self, is_switched_off};
use tiexec_remap::store::directory;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, interrupt, pidfd, process};

use crate::decide::{age, held_back};
use crate::events::Events;
use crate::guard::{Crash, Guard, Held, signal_name};
use crate::metrics::{Metrics, Share};
use crate::processes::{Identity, Process, Surroundings, every};
use crate::rules::{Action, Rules};
use crate::speak::{SOCKET, answer, listen};
use crate::state::{Build, State, Store, now};
use crate::treat::{self, FileState, Job, Outcome, Told};

/// The longest time between two looks at all processes.
pub const EVERY: Duration = Duration::from_secs(60);
/// The same where nobody tells of execs.
const POLL: Duration = Duration::from_secs(1);
/// How often events and ends are looked at.
const TICK: Duration = Duration::from_millis(500);
/// How often the figures are published.
const PUBLISH: Duration = Duration::from_secs(15);
/// The least time between two looks at all processes.
const PAUSE: Duration = Duration::from_secs(1);
/// Most processes that are worked on before the agent looks at anything else.
const BATCH: usize = 16;
/// How long the first process of a program runs with huge text before others of it get it.
const PROOF: Duration = Duration::from_secs(1);
/// The first pause before a process is tried again, if the obstacle may pass, and if it is another one. Each pause is twice
/// the one before.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(60);
/// The longest such pause.
const LATEST: Duration = Duration::from_secs(3600);
/// For how long no process of a user is worked on after one of them came to no end.
const PENALTY: Duration = Duration::from_secs(3600);
/// Most files whose builds are remembered.
const MOST_BUILDS: usize = 1024;

/// How much a line of the log matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Something was left out, or cannot be done.
    Warning,
    /// A crash, and what follows.
    Error,
    /// What is done.
    Info,
}

/// The callback that writes a line of the log.
pub type Log<'a> = Box<dyn FnMut(Level, &str) + 'a>;

/// The callback that puts the figures where a collector reads them; its error says why it could not.
pub type Publish<'a> = Box<dyn FnMut(&str) -> Result<(), String> + 'a>;

/// A process that has been seen.
#[derive(Debug)]
struct Known {
    identity: Identity,
    /// When to look at it; `None` if it is settled.
    due: Option<Instant>,
    /// When its program was seen to begin, if it was.
    begun: Option<Instant>,
    /// The pause before the next try.
    gap: Option<Duration>,
    /// Bytes that were copied for it.
    copied: u64,
    /// What came of it last.
    last: Option<Last>,
}

/// What came of a process, for those who ask.
#[derive(Debug)]
struct Last {
    share: Share,
    comm: String,
    exe: String,
    result: String,
    when: u64,
}

impl Known {
    fn new(identity: Identity, due: Instant) -> Self {
        Self { identity, due: Some(due), begun: None, gap: None, copied: 0, last: None }
    }
}

/// A process that a rule wants something done to.
struct Wanted {
    pid: Pid,
    facts: Process,
    /// The place of the rule.
    rule: usize,
}

/// The agent.
pub struct Agent<'a> {
    log: Log<'a>,
    publish: Option<Publish<'a>>,
    published: Option<Instant>,
    directory: PathBuf,
    rules: Rules,
    store: Option<Store>,
    state: State,
    stamp: Option<(u64, i64, u64)>,
    has_guard: bool,
    /// True while the kill switch is there.
    off: bool,
    events: Events,
    known: HashMap<Pid, Known>,
    /// Processes that began a program, and when that was told.
    begun: HashMap<Pid, Instant>,
    looked_at_all: Option<Instant>,
    surroundings: Surroundings,
    wanted: VecDeque<Wanted>,
    guard: Guard,
    listener: Option<UnixListener>,
    metrics: Metrics,
    builds: HashMap<FileState, Build>,
    /// Programs of which a first process has been switched, and when.
    first: HashMap<Vec<u8>, Instant>,
    refused: HashMap<u32, Instant>,
    /// What was said last of these, so that it is said once.
    said: HashMap<&'static str, String>,
}

impl<'a> Agent<'a> {
    /// Reads the rules and the state.
    pub fn new(rules: &Path, state: &Path, log: Log<'a>) -> Self {
        let has_guard = pidfd::tells_ends() == Ok(true);
        let (events, why) = Events::open();
        let (guard, deaf) = Guard::new();
        let mut agent = Self {
            log,
            publish: None,
            published: None,
            directory: rules.to_owned(),
            rules: Rules::default(),
            store: None,
            state: State::default(),
            stamp: None,
            has_guard,
            off: false,
            events,
            known: HashMap::new(),
            begun: HashMap::new(),
            looked_at_all: None,
            surroundings: Surroundings::default(),
            wanted: VecDeque::new(),
            guard,
            listener: None,
            metrics: Metrics::new(),
            builds: HashMap::new(),
            first: HashMap::new(),
            refused: HashMap::new(),
            said: HashMap::new(),
        };
        if rustix::process::geteuid().is_root() {
            match listen() {
                Ok(listener) => agent.listener = Some(listener),
                Err(why) => {
                    agent.say(Level::Warning, &format!("cannot listen at {SOCKET}: {why}"));
                }
            }
        }
        match Store::open(state) {
            Ok(store) => agent.store = Some(store),
            Err(why) => agent.say(
                Level::Warning,
                &format!(
                    "cannot keep the quarantine over a restart: {why}; fix: chown root, chmod go-w"
                ),
            ),
        }
        if let Some(why) = why {
            let text = format!("cannot be told of execs, polls /proc instead: {why}");
            agent.say(Level::Warning, &text);
        }
        if let Some(why) = deaf.filter(|_| has_guard) {
            let text = format!(
                "cannot tell who sends a signal, so that any SIGABRT counts as a crash: {why}"
            );
            agent.say(Level::Warning, &text);
        }
        if !has_guard {
            let text = "cannot attach to anything: this kernel does not tell how a program ends \
                (PIDFD_GET_INFO); fix: Linux 6.15";
            agent.say(Level::Warning, text);
        }
        agent
    }

    /// Has the figures published at each look at all processes.
    #[must_use]
    pub fn publishing(self, publish: Publish<'a>) -> Self {
        Self { publish: Some(publish), ..self }
    }

    /// Runs until SIGTERM or SIGINT. No signal disturbs the work on a process.
    pub fn run(mut self) {
        interrupt::catch();
        process::block_signals();
        process::lift_descriptor_limit();
        self.read_rules();
        self.read_state();
        let _nobody_listens = sd_notify::notify(&[NotifyState::Ready]);
        loop {
            let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
            self.see_switch();
            self.read_events();
            self.see_ends();
            self.answer();
            let pause = if matches!(self.events, Events::Polled) { POLL } else { EVERY };
            if self.looked_at_all.is_none_or(|last| last.elapsed() >= pause) {
                self.look_at_all();
            }
            self.look_at_due();
            self.work();
            self.publish();
            self.wait();
            match interrupt::take() {
                None => {}
                Some(signal) if signal == interrupt::HANGUP => {
                    self.read_rules();
                    self.looked_at_all = None;
                }
                Some(_) => return,
            }
        }
    }

    /// Sees whether the administrator has switched everything off, or on again.
    fn see_switch(&mut self) {
        let off = is_switched_off();
        if off != self.off {
            self.off = off;
            let text =
                if off { "does nothing from now on: {} is there" } else { "goes on: {} is gone" };
            self.say(Level::Info, &text.replace("{}", switched_off::FILE));
            self.decide_anew();
        }
    }

    fn say(&mut self, level: Level, text: &str) {
        (self.log)(level, text);
    }

    /// Says it unless it was what was said last of this.
    fn say_once(&mut self, of: &'static str, level: Level, text: String) {
        if self.said.get(of) != Some(&text) {
            if !text.is_empty() {
                self.say(level, &text);
            }
            self.said.insert(of, text);
        }
    }

    /// Reads the rules; what changed decides about all processes anew.
    fn read_rules(&mut self) {
        let rules = Rules::read(&self.directory);
        if rules == self.rules {
            return;
        }
        if rules.defects != self.rules.defects {
            for defect in &rules.defects {
                (self.log)(Level::Warning, &defect.to_string());
            }
        }
        let acting = rules.rules.iter().filter(|rule| rule.action.acts()).count();
        let text = format!("{} rules, {acting} of them do something", rules.rules.len());
        self.rules = rules;
        self.say_once("rules", Level::Info, text);
        self.wanted.clear();
        self.decide_anew();
    }

    fn decide_anew(&mut self) {
        let now = Instant::now();
        for known in self.known.values_mut() {
            (known.due, known.gap) = (Some(now), None);
        }
    }

    /// Reads the state if somebody has changed it.
    fn read_state(&mut self) {
        let Some(store) = &self.store else { return };
        let stamp = store.stamp();
        if stamp == self.stamp && stamp.is_some() {
            return;
        }
        let (state, problem) = store.load();
        self.stamp = store.stamp();
        let unwritten = self.stamp.is_none() && problem.is_none();
        // Where nothing could be written, memory is all there is.
        if !unwritten && state != self.state {
            self.state = state;
            self.decide_anew();
        }
        self.say_once("state", Level::Warning, problem.unwrap_or_default());
        self.say_trips();
    }

    fn say_trips(&mut self) {
        let off: Vec<&str> = self
            .rules
            .rules
            .iter()
            .filter(|rule| self.state.is_off(&rule.name))
            .map(|rule| rule.name.as_str())
            .collect();
        let fix = "fix: tiexecctl quarantine --release ID";
        let text = if self.state.only_observes() {
            format!("only observes from now on: three builds have crashed after a switch; {fix}")
        } else if off.is_empty() {
            String::new()
        } else {
            format!("rule {} is off: two builds have crashed after a switch; {fix}", off.join(", "))
        };
        self.say_once("trips", Level::Error, text);
    }

    fn read_events(&mut self) {
        let news = self.events.read();
        let now = Instant::now();
        if self.rules.least_age().is_some() {
            self.begun.extend(news.execs.into_iter().map(|pid| (pid, now)));
        }
        if news.lost && self.looked_at_all.is_some_and(|last| last.elapsed() >= PAUSE) {
            self.looked_at_all = None;
        }
        let Some(least) = self.rules.least_age() else {
            self.begun.clear();
            return;
        };
        // Most programs have ended by now.
        let old: Vec<(Pid, Instant)> = self
            .begun
            .iter()
            .filter(|(_, begun)| now.duration_since(**begun) >= least)
            .map(|(&pid, &begun)| (pid, begun))
            .collect();
        for (pid, begun) in old {
            self.begun.remove(&pid);
            let identity = ProcDir::of(pid).ok().and_then(|process| Identity::of(&process));
            let Some(identity) = identity else { continue };
            if self.known.get(&pid).is_none_or(|known| known.identity != identity) {
                let known = Known { begun: Some(begun), ..Known::new(identity, now) };
                self.known.insert(pid, known);
            }
        }
    }

    /// Looks at all processes: who is new, and who is gone.
    fn look_at_all(&mut self) {
        self.read_rules();
        let now = Instant::now();
        self.looked_at_all = Some(now);
        self.surroundings = Surroundings::look();
        let mut alive = HashSet::new();
        for (pid, process) in every() {
            let Some(identity) = Identity::of(&process) else { continue };
            alive.insert(pid);
            match self.known.get(&pid) {
                Some(known) if known.identity == identity => {}
                // It began a program since: when that was, is known.
                _ if self.begun.contains_key(&pid) => {}
                Some(known) => {
                    // It runs another program; when that began is not known.
                    let begun = (known.identity.start_time == identity.start_time).then_some(now);
                    self.known.insert(pid, Known { begun, ..Known::new(identity, now) });
                }
                None => {
                    self.known.insert(pid, Known::new(identity, now));
                }
            }
        }
        self.known.retain(|pid, _| alive.contains(pid));
        self.begun.retain(|pid, _| alive.contains(pid));
        self.metrics.set_reconcile(now.elapsed().as_secs_f64());
        self.first.retain(|_, since| since.elapsed() < LATEST);
        self.refused.retain(|_, since| since.elapsed() < PENALTY);
    }

    /// Decides about the processes whose time has come.
    fn look_at_due(&mut self) {
        let now = Instant::now();
        let due: Vec<Pid> = self
            .known
            .iter()
            .filter(|(_, known)| known.due.is_some_and(|due| due <= now))
            .map(|(&pid, _)| pid)
            .collect();
        for pid in due {
            let Some(known) = self.known.get_mut(&pid) else { continue };
            known.due = None;
            let process = ProcDir::of(pid).ok();
            let facts = process.and_then(|process| self.surroundings.process(&process));
            let Some(facts) = facts.filter(|facts| facts.identity == known.identity) else {
                continue;
            };
            let Some(rule) = self.rules.rules.iter().position(|rule| rule.matches(&facts)) else {
                continue;
            };
            let min_age = match self.rules.rules[rule].action {
                action if action.acts() => self.rules.rules[rule].min_age,
                _ => continue,
            };
            let age = known.begun.map_or_else(|| age(&facts), |begun| now.duration_since(begun));
            if let Some(left) = min_age.checked_sub(age).filter(|left| !left.is_zero()) {
                known.due = Some(now + left);
                continue;
            }
            self.wanted.push_back(Wanted { pid, facts, rule });
        }
    }

    /// Works on what is wanted, as far as judgement allows.
    fn work(&mut self) {
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

    /// Says why nothing is to be attached to now, if memory is short.
    fn pressure(&self) -> Option<String> {
        let text = std::fs::read("/proc/pressure/memory").ok()?;
        let (share, most) = (pressure::some_avg10(&text)?, self.rules.limits.max_memory_pressure);
        (share > most).then(|| {
            format!(
                "attaches to nothing as long as memory is short: tasks waited for memory for {share} % of the time, \
                 and max-memory-pressure is {most}"
            )
        })
    }

    /// Takes the next processes that may be worked on together: those of one rule, one program and one user.
    fn batch(&mut self) -> Vec<Wanted> {
        let mut batch: Vec<Wanted> = Vec::new();
        let Some(next) = self.wanted.pop_front() else { return batch };
        let rule = &self.rules.rules[next.rule];
        if held_back(rule, &self.state, self.has_guard).is_some() {
            return batch;
        }
        if self.refused.contains_key(&next.facts.uid()) {
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
        // Held before anything is done: no end of them goes unseen.
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
                uid: one.facts.uid(),
                rule: &rules[one.rule],
            })
            .collect();
        let taken: u64 = self.known.values().map(|known| known.copied).sum();
        let left = self.rules.limits.max_copies.saturating_sub(taken);
        let mut stuck = Vec::new();
        let told = treat::all(
            &jobs,
            &|file| self.builds.get(file).cloned(),
            &self.state,
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

    /// Takes in what came of one process.
    fn take_in(&mut self, one: Wanted, hold: Held, told: Told, stuck: Option<&str>) {
        let Wanted { pid, facts, rule } = one;
        let rule = &self.rules.rules[rule];
        let (name, action) = (rule.name.clone(), rule.action);
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
                self.refused.insert(facts.uid(), Instant::now());
            }
            self.say(Level::Warning, &format!("cannot {} {what}: {why}", action.as_str()));
            self.again(pid, false);
            return;
        };
        let Outcome {
            result,
            detail,
            passing,
            text_bytes,
            huge_bytes,
            backings,
            copied,
            stop_us,
            ..
        } = outcome;
        if action == Action::Attach {
            self.metrics.count(result == "ok", &result, stop_us);
        }
        if let Some(known) = self.known.get_mut(&pid) {
            known.copied += copied;
            let unit = facts.unit.clone().filter(|_| facts.counts_for_all());
            let share = Share { rule: name.clone(), unit, text_bytes, huge: backings };
            let (comm, exe) = (facts.comm.shown().to_string(), facts.shown_exe.shown().to_string());
            known.last = Some(Last { share, comm, exe, result: result.clone(), when: now() });
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
        if !matches!(result.as_str(), "target_gone" | "quarantined" | "too_small") {
            self.again(pid, passing);
        }
    }

    /// Answers those who ask.
    fn answer(&self) {
        let Some(listener) = &self.listener else { return };
        answer(listener, |path| match path {
            "/status" => Some(("application/json", escape::json(&self.status()) + "\n")),
            "/metrics" => Some(("text/plain; version=0.0.4; charset=utf-8", self.figures())),
            _ => None,
        });
    }

    fn figures(&self) -> String {
        let shares: Vec<Share> = self.lasts().map(|(_, last)| last.share.clone()).collect();
        let store = directory::used_by_the_systems().unwrap_or(0);
        self.metrics.text(&shares, store, self.state.quarantine.len())
    }

    /// Publishes the figures, if the last time is long enough ago and somebody wants them.
    fn publish(&mut self) {
        if self.published.is_some_and(|last| last.elapsed() < PUBLISH) {
            return;
        }
        let Some(mut publish) = self.publish.take() else { return };
        self.published = Some(Instant::now());
        let problem = publish(&self.figures()).err();
        self.publish = Some(publish);
        self.say_once("figures", Level::Warning, problem.unwrap_or_default());
    }

    fn lasts(&self) -> impl Iterator<Item = (Pid, &Last)> {
        self.known.iter().filter_map(|(&pid, known)| Some((pid, known.last.as_ref()?)))
    }

    fn status(&self) -> serde_json::Value {
        let off = self.rules.rules.iter().filter(|rule| self.state.is_off(&rule.name));
        let processes: Vec<_> = self
            .lasts()
            .map(|(pid, last)| {
                serde_json::json!({
                    "pid": pid.as_raw_nonzero().get(),
                    "comm": last.comm,
                    "exe": last.exe,
                    "unit": last.share.unit,
                    "rule": last.share.rule,
                    "result": last.result,
                    "text_bytes": last.share.text_bytes,
                    "huge": last.share.huge.iter().cloned().collect::<HashMap<_, _>>(),
                    "when": last.when,
                })
            })
            .collect();
        serde_json::json!({
            "schema": 1,
            "kind": "agent",
            "version": env!("CARGO_PKG_VERSION"),
            "rules": self.rules.rules.len(),
            "rule_defects": self.rules.defects.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "rules_off": off.map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
            "disabled": self.off,
            "crash_guard": self.has_guard,
            "observes_only": self.state.only_observes(),
            "quarantine": self.state.quarantine,
            "processes": processes,
        })
    }

    /// Has a process tried again, after a pause that grows.
    fn again(&mut self, pid: Pid, passing: bool) {
        let Some(known) = self.known.get_mut(&pid) else { return };
        let first = if passing { SOON } else { LATER };
        let gap = known.gap.map_or(first, |gap| (gap * 2).min(LATEST));
        (known.gap, known.due) = (Some(gap), Some(Instant::now() + gap));
    }

    /// Takes in the ends that have come.
    fn see_ends(&mut self) {
        for Crash { pid, entry, after, sender } in self.guard.crashes() {
            let (number, exe) = (pid.as_raw_nonzero(), entry.exe.clone());
            if let Some(sender) = sender {
                let signal = signal_name(entry.signal);
                let text = format!(
                    "{exe} {number}: process {sender} sent the {signal} that ended it; no crash"
                );
                self.say(Level::Info, &text);
                continue;
            }
            let whose = entry.uid.map_or(String::new(), |uid| format!(" for user {uid} alone"));
            let text = format!(
                "{exe} {number} (rule {}) crashed by {} {} s after its text was switched: build {} is in quarantine{whose}; \
                 fix: tiexecctl quarantine --release {}",
                entry.rule,
                signal_name(entry.signal),
                after.as_secs(),
                entry.build,
                entry.build.text
            );
            journal::crash(&text, pid, &entry.build.build_id, &entry.rule);
            self.say(Level::Error, &text);
            self.state.add(entry.clone());
            if let Some(store) = &self.store {
                let (state, problem) = store.update(|state| state.add(entry.clone()));
                self.stamp = store.stamp();
                // What could not be written counts nevertheless, until the agent ends.
                self.state = state;
                self.state.add(entry);
                self.say_once("state", Level::Warning, problem.unwrap_or_default());
            }
            self.say_trips();
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let now = Instant::now();
        let due = self.known.values().filter_map(|known| known.due).min();
        let next = due.map_or(EVERY, |due| due.saturating_duration_since(now));
        let idle = self.rules.least_age().is_none() && self.guard.is_empty();
        let longest = if idle { EVERY / 2 } else { TICK };
        let longest = if self.publish.is_some() { longest.min(PUBLISH) } else { longest };
        let time = next.clamp(Duration::from_millis(10), longest);
        let mut input: Vec<BorrowedFd<'_>> =
            if idle { Vec::new() } else { self.events.descriptors() };
        input.extend(self.listener.as_ref().map(AsFd::as_fd));
        let ends: Vec<BorrowedFd<'_>> = self.guard.descriptors().collect();
        if pidfd::wait_for_any(&input, &ends, time).is_err() {
            // Nothing that comes again at once.
            std::thread::sleep(TICK);
        }
    }
}
