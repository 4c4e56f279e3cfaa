//! The loop that compares all processes with the rules.
//!
//! The agent scans all processes at least every [`EVERY`], and only these scans decide what exists. Events make the
//! agent examine one process sooner. The order in which programs and the agent start therefore does not matter, and a
//! lost event costs only time.

mod children;
mod daily;
mod ends;
mod prove;
mod tell;
mod work;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tiexec_core::escape::AsShown;
use tiexec_engine::identity::Identity;
use tiexec_engine::pauses::Growing;
use tiexec_engine::times;
use tiexec_remap::mapped::Copied;
use tiexec_remap::workers::{self, Heard};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, cgroup_namespace, interrupt, pidfd, process, with_symbols};

use crate::canary::{Canaries, Member, TakenBack};
use crate::decide::age;
use crate::events::Events;
use crate::forked::Forked;
use crate::guard::Guard;
use crate::kept::{Locked, Stamp};
use crate::launches::Launches;
use crate::machine::{Machine, time_jumps};
use crate::metrics::{Metrics, Share};
use crate::off::{self, Off};
use crate::pod_watch::{PodWatch, Told};
use crate::pods::Pods;
use crate::processes::{Examiner, Process, every};
use crate::rules::{LAUNCHED, Rule, Rules};
use crate::state::{Quarantined, State, Store, Whose};
use crate::treat::Outcome;
use crate::verdicts::Verdicts;
use crate::young::Young;

use self::daily::Daily;
use self::prove::Proofs;
use self::tell::Sockets;
use self::work::Agenda;

/// The longest time between two scans of all processes.
pub const EVERY: Duration = Duration::from_secs(60);
/// The same if the kernel does not report execs.
const POLL: Duration = Duration::from_secs(1);
/// How long the agent's end waits for the end of the timing of jumps.
const LAST: Duration = Duration::from_secs(5);
/// The longest wait between two checks for events and ends of processes.
const TICK: Duration = Duration::from_millis(500);
/// The longest wait between two checks whether a canary was killed.
const CANARY: Duration = Duration::from_secs(5);
/// The time after which a round begins with no other revert of what a killed canary left. A process of a user may take a
/// minute and a half, and a user decides how many there are.
const REVERTS: Duration = Duration::from_secs(30);
/// The least time between two reads of events, so that a process which causes events without end does not keep the
/// agent busy.
const SPACING: Duration = Duration::from_millis(100);
/// The least time between two scans of all processes.
const PAUSE: Duration = Duration::from_secs(1);

/// How much a line of the log matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The agent ignores something, or cannot do something.
    Warning,
    /// A crash, and its consequences.
    Error,
    /// An action of the agent.
    Info,
}

/// The callback that writes a line of the log.
pub type Log<'a> = Box<dyn FnMut(Level, &str) + 'a>;

/// The callback that puts the figures where a collector reads them; `None` takes them away. Its error says why it could
/// not.
pub type Publish<'a> = Box<dyn FnMut(Option<&str>) -> Result<(), String> + 'a>;

/// A process that has been seen.
#[derive(Debug)]
struct Known {
    identity: Identity,
    /// The time at which to decide about the process; `None` if nothing is left to do.
    due: Option<Instant>,
    /// The time at which the agent saw its program start, if it did.
    begun: Option<Instant>,
    /// The pauses between tries, once it was left as it is.
    pauses: Option<Growing>,
    /// The UID of its pod.
    pod_uid: Option<String>,
    /// The user who has launched it by `tiexec`, if the agent treats it for that.
    launched_by: Option<Whose>,
    /// The copies that it executes.
    copies: Vec<Copied>,
    /// True if it had copies when the agent last worked on it.
    has_copies: bool,
    /// The last outcome.
    last: Option<Last>,
}

/// The last outcome for a process, for clients.
#[derive(Debug)]
struct Last {
    share: Share,
    huge_bytes: u64,
    comm: String,
    exe: String,
    result: String,
    when: u64,
}

impl Last {
    /// Returns whether the work has succeeded again, and as much text is huge as before.
    fn is_like(&self, outcome: &Outcome) -> bool {
        self.result == "ok" && outcome.result == "ok" && self.huge_bytes == outcome.huge_bytes
    }
}

impl Known {
    fn new(identity: Identity, due: Instant) -> Self {
        Self {
            identity,
            due: Some(due),
            begun: None,
            pauses: None,
            pod_uid: None,
            launched_by: None,
            copies: Vec::new(),
            has_copies: false,
            last: None,
        }
    }
}

/// The kernel's reports of new and ended programs.
struct Feed {
    events: Events,
    /// The time of the last read.
    read_at: Instant,
    /// True if a buffer may be half full.
    told: bool,
}

/// Why the agent acts on a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The rule with this index.
    Rule(usize),
    /// `tiexec` has started it; `settled` is true once its start is over.
    Launch { settled: bool },
}

impl By {
    /// Returns the rule by which the agent acts.
    fn rule<'a>(self, rules: &'a Rules, launches: &'a Launches) -> &'a Rule {
        match self {
            Self::Rule(rule) => &rules.rules[rule],
            Self::Launch { .. } => &launches.rule,
        }
    }
}

/// A process that the agent acts on.
struct Wanted {
    pid: Pid,
    facts: Process,
    by: By,
}

/// The agent.
pub struct Agent<'a> {
    log: Log<'a>,
    publish: Option<Publish<'a>>,
    published: Option<Instant>,
    directory: PathBuf,
    state_directory: PathBuf,
    rules: Rules,
    store: Option<Store>,
    /// The lock by which only one agent uses the state directory; `None` if it could not be taken.
    _alone: Option<Locked>,
    state: State,
    stamp: Option<Stamp>,
    /// The crashes that are not in the file of the state.
    unwritten: Vec<Quarantined>,
    daily: Daily,
    canaries: Option<Canaries>,
    verdicts: Verdicts,
    verdicts_stamp: Option<Stamp>,
    proofs: Proofs,
    /// The time at which the agent last checked whether a canary was killed.
    canary_seen: Option<Instant>,
    /// False while the processes of a canary are not known: nothing begins then.
    canary_known: bool,
    /// The time at which the agent last could not revert all processes of a killed canary, and those that failed.
    unreverted: (Option<Instant>, Vec<i32>),
    machine: Machine,
    /// The reason why the agent starts no work, if a file stops it.
    off: Option<Off>,
    feed: Feed,
    known: HashMap<Pid, Known>,
    /// Processes that began a program, and the time of that report.
    begun: Young,
    /// Processes that were forked, and have begun no program.
    forked: Forked,
    looked_at_all: Option<Instant>,
    examiner: Examiner,
    agenda: Agenda,
    guard: Guard,
    sockets: Sockets,
    launches: Launches,
    metrics: Metrics,
    /// The watch of pods, if a rule asks for pods.
    pod_watch: Option<PodWatch>,
    /// The last message about each of these, so that it is said once.
    said: HashMap<&'static str, String>,
}

impl<'a> Agent<'a> {
    /// Opens the socket and the state.
    ///
    /// # Errors
    /// Another agent runs already. Two agents would undo each other's work. The text is one line.
    pub fn new(rules: &Path, state: &Path, log: Log<'a>) -> Result<Self, String> {
        // Two agents may start at once. The second would then replace the socket of the first, so the lock comes before
        // the socket.
        let store = Store::open(state);
        let alone = match store.as_ref().map(Store::begin) {
            Ok(Ok(alone)) => alone,
            Ok(Err(another)) => return Err(format!("cannot start: {another}")),
            Err(_said_below) => None,
        };
        let machine = Machine::look();
        let (events, why) = Events::open();
        let (guard, deaf) = Guard::new();
        let mut agent = Self {
            log,
            publish: None,
            published: None,
            directory: rules.to_owned(),
            state_directory: state.to_owned(),
            rules: Rules::default(),
            store: None,
            _alone: alone,
            state: State::default(),
            stamp: None,
            unwritten: Vec::new(),
            daily: Daily::new(state),
            canaries: None,
            verdicts: Verdicts::default(),
            verdicts_stamp: None,
            proofs: Proofs::default(),
            canary_seen: None,
            canary_known: true,
            unreverted: (None, Vec::new()),
            machine,
            off: None,
            feed: Feed { events, read_at: Instant::now(), told: false },
            known: HashMap::new(),
            begun: Young::default(),
            forked: Forked::default(),
            looked_at_all: None,
            examiner: Examiner::default(),
            agenda: Agenda::default(),
            guard,
            sockets: Sockets::default(),
            launches: Launches::new(),
            metrics: Metrics::new(),
            pod_watch: None,
            said: HashMap::new(),
        };
        if rustix::process::geteuid().is_root() {
            agent.listen()?;
            agent.enter_cgroups();
        }
        // Both use the same directory, so the message below covers both.
        agent.canaries = Canaries::open(state).ok();
        match store {
            Ok(store) => agent.store = Some(store),
            Err(why) => agent
                .say(Level::Warning, &format!("cannot keep the quarantine over a restart: {why}")),
        }
        agent.say_what_is_missing(why, deaf);
        Ok(agent)
    }

    /// Shows the cgroups of other containers as the first process of the machine sees them.
    fn enter_cgroups(&mut self) {
        if let Err(error) = cgroup_namespace::enter_that_of_init() {
            let text = format!(
                "cannot see the cgroups of other containers: {error}; the agent makes no copies for them; \
                 fix: set hostPID, add SYS_PTRACE and SYS_ADMIN"
            );
            self.say(Level::Warning, &text);
        }
    }

    /// Logs what this machine or these rights do not allow. `no_events` and `deaf` say why the kernel reports no new programs, and
    /// why it does not tell who sends a signal.
    fn say_what_is_missing(&mut self, no_events: Option<String>, deaf: Option<String>) {
        if let Some(why) = no_events {
            let text = format!(
                "cannot learn of new programs from the kernel: {why}; the agent polls /proc instead"
            );
            self.say(Level::Warning, &text);
        }
        if let Some(why) = deaf.filter(|_| self.machine.has_guard) {
            let text = format!(
                "cannot tell who sends a signal, so that any SIGABRT counts as a crash: {why}"
            );
            self.say(Level::Warning, &text);
        }
        if !self.machine.has_guard {
            let text = "cannot attach to anything: this kernel does not tell how a program ends \
                (PIDFD_GET_INFO); fix: boot Linux 6.15 or later";
            self.say(Level::Warning, text);
        }
    }

    /// Sets the callback that publishes the figures, at most every 15 s, and takes them away when the agent ends.
    #[must_use]
    pub fn publishing(self, publish: Publish<'a>) -> Self {
        Self { publish: Some(publish), ..self }
    }

    /// Runs until SIGTERM or SIGINT. No signal interrupts the work on a process of the machine; that on a user's process ends.
    pub fn run(mut self) {
        interrupt::catch();
        process::block_signals();
        process::lift_descriptor_limit();
        self.read_rules();
        self.read_verdicts();
        let _nobody_listens = sd_notify::notify(&[NotifyState::Ready]);
        let mut timing = time_jumps();
        loop {
            let _nobody_listens = sd_notify::notify(&[NotifyState::Watchdog]);
            timing.take_if(|timing| matches!(timing.hear(), Heard::End));
            let _have_not_ended = workers::reap();
            self.see_switch();
            self.see_aside();
            // A release from quarantine concerns processes that wait for nothing else.
            self.read_state();
            if self.canary_seen.is_none_or(|last| last.elapsed() >= CANARY) {
                let _in_canary = self.see_canary();
            }
            self.read_events();
            self.read_pods();
            self.see_ends();
            self.answer();
            let pause = if matches!(self.feed.events, Events::Polled) { POLL } else { EVERY };
            if self.looked_at_all.is_none_or(|last| last.elapsed() >= pause) {
                self.look_at_all();
            }
            self.look_at_due();
            self.work();
            self.prove();
            self.scan_daily();
            self.publish();
            self.wait();
            match interrupt::take() {
                None => {}
                Some(signal) if signal == interrupt::HANGUP => {
                    self.read_rules();
                    self.looked_at_all = None;
                }
                Some(_) => {
                    self.end_canary();
                    self.withdraw();
                    // On cgroup v1, systemd does not see the end of what is left in a stopped service, and waits for minutes.
                    if let Some(mut timing) = timing {
                        timing.stop(LAST);
                    }
                    return;
                }
            }
        }
    }

    /// Checks whether the administrator has switched everything off, or on again.
    fn see_switch(&mut self) {
        let off = off::now();
        if off != self.off {
            let text = match (off, self.off) {
                (Some(off), _) => format!("does nothing from now on: {} is there", off.file()),
                (None, was) => format!("goes on: {} is gone", was.map_or("", Off::file)),
            };
            self.off = off;
            if off.is_some() {
                self.end_canary();
                if let Some(aside) = self.agenda.aside.take() {
                    self.end_aside(aside);
                }
            }
            self.say(Level::Info, &text);
            self.decide_anew();
        }
    }

    fn say(&mut self, level: Level, text: &str) {
        (self.log)(level, &with_symbols(text));
    }

    /// Logs the text, unless it equals the last text about this topic.
    fn say_once(&mut self, of: &'static str, level: Level, text: String) {
        if self.said.get(of) != Some(&text) {
            if !text.is_empty() {
                self.say(level, &text);
            }
            self.said.insert(of, text);
        }
    }

    /// Reads the rules. If they changed, the agent decides about all processes again. If the kernel cannot read one of their files at
    /// the moment, they stay as they were.
    fn read_rules(&mut self) {
        let rules = Rules::read(&self.directory);
        // A rule of that file may take processes out.
        let unknown = rules.unknown().map(|why| format!("the rules stay as they were: {why}"));
        let is_unknown = unknown.is_some();
        self.say_once("rules unread", Level::Warning, unknown.unwrap_or_default());
        if is_unknown || rules == self.rules {
            return;
        }
        if rules.defects != self.rules.defects {
            for defect in &rules.defects {
                (self.log)(Level::Warning, &defect.to_string());
            }
        }
        let acting = rules.rules.iter().filter(|rule| rule.action.acts()).count();
        let text = format!("rules: {}; rules that act: {acting}", rules.rules.len());
        let split = match rules.rules.iter().find(|rule| self.machine.yields(rule)) {
            None => String::new(),
            Some(Rule { name, .. }) => format!(
                "rule {name} attaches to nothing: the host of this machine splits huge pages, which can make programs \
                 slower; fix: write canary = \"required\" into it, or canary = \"off\" to attach all the same"
            ),
        };
        self.rules = rules;
        match (self.rules.want_pods(), &self.pod_watch) {
            (true, None) => self.pod_watch = Some(PodWatch::default()),
            (false, Some(_)) => {
                self.pod_watch = None;
                self.examiner.pods = Pods::default();
            }
            _ => {}
        }
        self.say_once("rules", Level::Info, text);
        self.say_once("split", Level::Warning, split);
        self.agenda.wanted.clear();
        self.decide_anew();
    }

    fn decide_anew(&mut self) {
        let now = Instant::now();
        for known in self.known.values_mut() {
            (known.due, known.pauses) = (Some(now), None);
        }
    }

    /// Reads the state if somebody has changed it. Returns false if it cannot be read at the moment: a build may be in quarantine.
    fn read_state(&mut self) -> bool {
        let Some(store) = &self.store else { return true };
        // A store without a file has no stamp, and is read again each time.
        let stamp = store.stamp();
        if stamp == self.stamp && stamp.is_some() {
            return true;
        }
        // The stamp is older than the content: a change in between is read the next time.
        let (mut state, problem) = match store.load() {
            Ok(loaded) => loaded,
            Err(why) => {
                let text = format!("begins nothing, because it {why}");
                self.say_once("state", Level::Warning, text);
                return false;
            }
        };
        self.stamp = stamp;
        // A crash that could not be written to the file counts as long as this agent runs.
        self.unwritten.iter().for_each(|one| state.add(one.clone()));
        if state != self.state {
            self.state = state;
            self.decide_anew();
        }
        self.say_once("state", Level::Warning, problem.unwrap_or_default());
        self.say_trips();
        true
    }

    /// Reads the verdicts if somebody has changed them.
    fn read_verdicts(&mut self) {
        let Some(canaries) = &self.canaries else { return };
        let stamp = canaries.stamp();
        if stamp == self.verdicts_stamp {
            return;
        }
        let (verdicts, problem) = match canaries.verdicts() {
            Ok(read) => read,
            Err(why) => return self.say_once("verdicts", Level::Warning, why),
        };
        // The stamp is older than the content: a change in between is read the next time.
        self.verdicts_stamp = stamp;
        if verdicts != self.verdicts {
            self.verdicts = verdicts;
            self.decide_anew();
        }
        self.say_once("verdicts", Level::Warning, problem.unwrap_or_default());
    }

    /// Reverts the processes of a killed canary. Returns the processes that the agent leaves alone: those of a live canary, and
    /// those that wait for their revert. `None` if they are not known.
    fn see_canary(&mut self) -> Option<BTreeSet<Member>> {
        self.canary_seen = Some(Instant::now());
        let seen = self.take_back();
        self.canary_known = seen.is_ok();
        seen.map_err(|why| {
            let text = format!(
                "begins nothing, because a canary may run: it {why}; it tries again; fix: raise LimitNOFILE= of tiexecd, or mount a disk that works"
            );
            self.say_once("canary unknown", Level::Warning, text);
        })
        .inspect(|_| self.say_once("canary unknown", Level::Info, String::new()))
        .ok()
    }

    /// As [`see_canary`](Self::see_canary).
    ///
    /// # Errors
    /// Why the processes are not known.
    fn take_back(&mut self) -> Result<BTreeSet<Member>, String> {
        let Some(canaries) = self.canaries.as_ref().filter(|canaries| canaries.has_record()) else {
            return Ok(BTreeSet::new());
        };
        let (since, last) = &self.unreverted;
        // The pause limits the retries for a process that cannot be reverted.
        let is_soon = since.is_some_and(|since| since.elapsed() < EVERY);
        let taken = match canaries.begin() {
            Ok(Some(turn)) if self.off.is_none() && !is_soon => {
                turn.take_back(Some(REVERTS), last).map(Some)
            }
            Ok(_) => Ok(None),
            Err(why) => Err(why),
        };
        let left = canaries.members();
        let Some(TakenBack { reverted, failed, left: not_begun, aside }) = taken? else {
            return left;
        };
        let is_done = failed.is_empty() && not_begun == 0;
        let failed_ones = failed.iter().map(|&(pid, _)| pid).collect();
        self.unreverted = ((!is_done).then(Instant::now), failed_ones);
        for pid in reverted {
            self.say(Level::Info, &format!("{pid}: reverted, because its canary was killed"));
        }
        for (pid, why) in failed {
            let text = format!("cannot revert {pid}, which a killed canary has left: {why}");
            self.say_once("canary", Level::Warning, text);
        }
        self.say_once("canary record", Level::Warning, aside.unwrap_or_default());
        left
    }

    fn say_trips(&mut self) {
        let off: Vec<&str> = self
            .acting()
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

    /// Reads the reports about pods. The agent decides again about the processes of each changed pod.
    fn read_pods(&mut self) {
        let Some(watch) = &mut self.pod_watch else { return };
        let Told { changed, trouble } = watch.read(&mut self.examiner.pods);
        if let Some(trouble) = trouble {
            let text = match trouble.as_str() {
                "" => String::new(),
                why => format!(
                    "cannot watch pods: {}; the agent goes on with the pods that it knows",
                    why.shown()
                ),
            };
            self.say_once("pods", Level::Warning, text);
        }
        if changed.is_empty() {
            return;
        }
        let now = Instant::now();
        let is_of = |known: &Known| {
            known.pod_uid.as_ref().is_some_and(|uid| changed.iter().any(|other| other == uid))
        };
        for known in self.known.values_mut().filter(|known| is_of(known)) {
            (known.due, known.pauses) = (Some(now), None);
        }
    }

    fn read_events(&mut self) {
        let now = Instant::now();
        self.launches.expire(now);
        let since = now.duration_since(self.feed.read_at);
        if since >= TICK || (since >= SPACING && std::mem::take(&mut self.feed.told)) {
            self.read_news(now);
        }
        let Some(least) = self.least_age() else {
            self.begun.clear();
            self.forked.clear();
            return;
        };
        for (pid, begun) in self.begun.take_older(now, least, usize::MAX) {
            let Some(identity) = self.new_program(pid) else { continue };
            let known = Known { begun: Some(begun), ..Known::new(identity, now) };
            self.known.insert(pid, known);
        }
        for (pid, begun) in self.forked.take_older(now, least) {
            let Some(identity) = self.new_program(pid) else { continue };
            if !self.begun.contains(pid) && !self.forked.was_seen(identity.program(), begun) {
                self.known.insert(pid, Known::new(identity, now));
            }
        }
    }

    fn read_news(&mut self, now: Instant) {
        let news = self.feed.events.read();
        let before = std::mem::replace(&mut self.feed.read_at, now);
        self.launches.forget(&news.ended);
        self.guard.forget_executed(&news.execs);
        if self.least_age().is_some() {
            self.forked.forget(news.ended.iter().chain(&news.execs));
            // A process may have been forked as early as that: before a look at its parent since.
            self.forked.add(news.forks, before);
            self.begun.add(news.execs, now);
        }
        if news.lost && self.looked_at_all.is_some_and(|last| last.elapsed() >= PAUSE) {
            self.looked_at_all = None;
        }
    }

    /// Returns the program that the process runs, if the process lives and the agent does not know the program.
    fn new_program(&self, pid: Pid) -> Option<Identity> {
        // Most have ended by now.
        if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            return None;
        }
        let identity = ProcDir::of(pid).ok().and_then(|process| Identity::of(&process))?;
        let is_known = self.known.get(&pid).is_some_and(|known| known.identity == identity);
        (!is_known).then_some(identity)
    }

    /// Returns the rule by which the agent acts.
    fn rule(&self, by: By) -> &Rule {
        by.rule(&self.rules, &self.launches)
    }

    /// Returns all rules by which the agent may act.
    fn acting(&self) -> impl Iterator<Item = &Rule> {
        self.rules.rules.iter().chain([&self.launches.rule])
    }

    /// Returns how old a program must be at least; `None` if the agent acts on none.
    fn least_age(&self) -> Option<Duration> {
        let of_launches = (!self.launches.is_empty()).then_some(self.launches.rule.min_age);
        self.rules.least_age().into_iter().chain(of_launches).min()
    }

    /// Scans all processes for new and for ended ones.
    fn look_at_all(&mut self) {
        self.read_rules();
        self.read_verdicts();
        let now = Instant::now();
        self.looked_at_all = Some(now);
        self.examiner.look_again();
        let (mut alive, mut executed) = (HashSet::new(), HashSet::new());
        for (pid, process) in every() {
            let Some(identity) = Identity::of(&process) else { continue };
            alive.insert(pid);
            match self.known.get(&pid) {
                Some(known) if known.identity == identity => {}
                // The process began a program, and the event's time is known.
                _ if self.begun.contains(pid) => {}
                // A process whose first thread has ended shows no program. Its crash may still be told.
                Some(known)
                    if identity.program() == 0
                        && known.identity.start_time == identity.start_time => {}
                Some(known) => {
                    // The process runs another program, but the time of its exec is not known.
                    executed.insert(pid);
                    let begun = (known.identity.start_time == identity.start_time).then_some(now);
                    self.known.insert(pid, Known { begun, ..Known::new(identity, now) });
                }
                None => {
                    self.known.insert(pid, Known::new(identity, now));
                }
            }
        }
        if alive.is_empty() {
            // /proc cannot be listed at the moment: this process at least is alive.
            return;
        }
        // perf may report no execs, or lose a report.
        self.guard.forget_executed(&executed);
        self.known.retain(|pid, _| alive.contains(pid));
        self.begun.retain(&alive);
        self.forked.begin_anew(&alive);
        self.metrics.note_look(now.elapsed().as_secs_f64());
        self.agenda.forget_old();
    }

    /// Decides about the processes that are due.
    fn look_at_due(&mut self) {
        let now = Instant::now();
        let due: Vec<Pid> = self
            .known
            .iter()
            .filter(|(_, known)| known.due.is_some_and(|due| due <= now))
            .map(|(&pid, _)| pid)
            .collect();
        if due.is_empty() {
            return;
        }
        self.read_verdicts();
        let Some(in_canary) = self.see_canary() else {
            for pid in due {
                self.known.entry(pid).and_modify(|known| known.due = Some(now + PAUSE));
            }
            return;
        };
        let wanted = self.agenda.wanted.iter().enumerate();
        let waiting: HashMap<Pid, usize> = wanted.map(|(at, one)| (one.pid, at)).collect();
        for pid in due {
            let Some(known) = self.known.get_mut(&pid) else { continue };
            let member = (pid.as_raw_nonzero().get(), known.identity.start_time);
            if in_canary.contains(&member) {
                known.due = Some(now + EVERY);
                continue;
            }
            known.due = None;
            let process = ProcDir::of(pid).ok();
            let seen = process.and_then(|it| self.examiner.process(&it).map(|facts| (it, facts)));
            let Some((process, facts)) = seen else {
                // It has ended, or it cannot be read at the moment.
                let lives = rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH);
                known.due = lives.then(|| now + EVERY);
                continue;
            };
            if facts.identity != known.identity {
                continue;
            }
            if facts.pod_uid.is_some() && self.rules.want_pods() && !self.examiner.pods.is_complete
            {
                // A rule about pods may take the process out.
                known.due = Some(now + PAUSE);
                continue;
            }
            known.pod_uid.clone_from(&facts.pod_uid);
            let age = known.begun.map_or_else(|| age(&facts), |begun| now.duration_since(begun));
            let settled = age >= times::settled();
            let by = match self.rules.rules.iter().position(|rule| rule.matches(&facts)) {
                Some(rule) => self.rules.rules[rule].action.acts().then_some(By::Rule(rule)),
                None => self.launches.has(pid, &process, &facts).then_some(By::Launch { settled }),
            };
            let Some(by) = by else {
                // The outcome of a rule that is gone is not true any more.
                known.last.take_if(|last| last.share.rule != LAUNCHED);
                self.forked.note_look(facts.identity.program(), now);
                continue;
            };
            let min_age = by.rule(&self.rules, &self.launches).min_age;
            if let Some(left) = min_age.checked_sub(age).filter(|left| !left.is_zero()) {
                known.due = Some(now + left);
                continue;
            }
            self.forked.note_look(facts.identity.program(), now);
            known.launched_by = None;
            if let By::Launch { settled } = by {
                known.launched_by = Some(facts.whose());
                // Libraries may come until the start is over.
                known.due = if settled {
                    self.launches.last_look(pid).filter(|&last| last > now)
                } else {
                    Some(now + times::settled().saturating_sub(age))
                };
            }
            let wanted = Wanted { pid, facts, by };
            match waiting.get(&pid) {
                // It waits already, with the facts of an earlier look.
                Some(&at) => self.agenda.wanted[at] = wanted,
                None => self.agenda.wanted.push_back(wanted),
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let now = Instant::now();
        let due = self.known.values().filter_map(|known| known.due).min();
        let least = self.least_age();
        let old = self.begun.first().zip(least);
        let old = old.map(|(begun, least)| begun + least);
        let next = due.into_iter().chain(old).min();
        let next = next.map_or(EVERY, |next| next.saturating_duration_since(now));
        let idle = least.is_none() && self.guard.is_empty();
        let longest = if idle && self.agenda.aside.is_none() { CANARY } else { TICK };
        let longest = if self.publish.is_some() { longest.min(tell::PUBLISH) } else { longest };
        let next = self.sockets.patience().map_or(next, |clients| next.min(clients));
        let time = next.clamp(Duration::from_millis(10), longest);
        let rest = SPACING.saturating_sub(self.feed.read_at.elapsed()).min(time);
        if !idle && !rest.is_zero() && self.waits(Vec::new(), rest) {
            return;
        }
        let events = if idle { Vec::new() } else { self.feed.events.descriptors() };
        self.feed.told |= self.waits(events, time - rest);
    }

    /// Waits for at most `time`. Returns whether a signal, input or the end of a process arrived; true also if the wait
    /// failed.
    fn waits<'b>(&'b self, mut input: Vec<BorrowedFd<'b>>, time: Duration) -> bool {
        input.extend(self.sockets.descriptors());
        input.extend(self.pod_watch.as_ref().and_then(PodWatch::descriptor));
        input.extend(self.agenda.aside.as_ref().map(|aside| aside.running.descriptor()));
        let ends: Vec<BorrowedFd<'_>> = self.guard.descriptors().collect();
        match pidfd::wait_for_any(&input, &ends, time) {
            Ok(ready) => interrupt::asked() || ready.iter().any(|one| one.input || one.hangup),
            Err(_nothing_that_comes_again_at_once) => {
                std::thread::sleep(TICK);
                true
            }
        }
    }
}
