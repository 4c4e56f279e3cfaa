//! `tiexecctl canary`: switches a service between base pages and copies on huge pages, under its own traffic, until it
//! is known which is better.

mod builds;
mod cpu;
mod live;
mod selection;
mod source;
mod verdicts;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use tiexec_advise::canary::{Account, AtPair, Finding, History};
use tiexec_advise::compare::duration;
use tiexec_advise::next::Next;
use tiexec_advise::sequential::{CONFIDENCE, Interval, Sequence, Verdict};
use tiexec_agent::canary::{Canaries, Turn};
use tiexec_agent::decide::build_of;
use tiexec_agent::off::{self, Off};
use tiexec_agent::rules::Rules;
use tiexec_agent::state::{Build, now};
use tiexec_agent::verdicts::{FEWEST_PAIRS, by_copies, subject};
use tiexec_core::config::{BackingChoice, Settings};
use tiexec_core::escape::{self, AsShown};
use tiexec_core::proc::cgroup::Units;
use tiexec_core::report::SCHEMA;
use tiexec_core::value::parse_duration;
use tiexec_engine::settings::{CONFIG_FILE, MachineSettings};
use tiexec_sys::interrupt;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::clock;

use self::cpu::Used;
use self::live::Live;
use self::selection::Selection;
use self::source::{Counter, Guard, Refusal, Server};
use super::alternate::Arm;
use super::progress::Progress;
use super::running_canary::in_words;
use super::{attach, command_line_apart, origin, print};
use crate::exit;
use crate::options::{Canary, LaunchSettings};
use crate::settings;
use crate::stdio::warn;

/// The length of a slice. The time after a switch that does not count is a slice divided by `WASHOUTS`.
const SLICE: Duration = Duration::from_secs(13);
const WASHOUTS: u32 = 6;
/// The same for Prometheus, which usually scrapes a service every 15 s.
const SLICE_OF_PROMETHEUS: Duration = Duration::from_secs(60);
const WASHOUTS_OF_PROMETHEUS: u32 = 3;
/// The longest switch of all processes. Services of many processes take the longest.
const LONGEST_SWITCH: Duration = Duration::from_secs(30);
/// The canary ends after this number of pairs in a row that cannot be measured.
const MOST_UNMEASURED: usize = 3;

/// Runs `canary`; returns the exit status.
pub(super) fn run(options: &Canary) -> u8 {
    if let Some(command) = &options.stored {
        return verdicts::run(command, &options.state_dir);
    }
    prove(options).unwrap_or_else(|status| status)
}

/// Why a canary ended.
enum End {
    /// The verdict is known.
    Known,
    /// `--max` is over.
    Time,
    /// A signal asked for it.
    Signal(i32),
    /// The guard objected.
    Guard(String),
    /// The administrator switched everything off, or the agent is drained.
    Off(Off),
    /// The service has ended, or was restarted.
    Gone,
    /// Something failed, with this exit status. The message is on stderr already.
    Failed(u8),
}

impl End {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Time => "time",
            Self::Signal(_) => "signal",
            Self::Guard(_) => "guard",
            Self::Off(_) => "switched_off",
            Self::Gone => "gone",
            Self::Failed(_) => "failed",
        }
    }
}

/// The reason why there is no figure.
enum Unmeasured {
    /// The canary ended.
    End(End),
    /// The pair cannot be measured, for this reason.
    Why(String),
}

impl From<End> for Unmeasured {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// The pairs so far.
struct Pairs {
    /// The ratios of work per processor time, which decide.
    per_cpu: Sequence,
    /// The ratios of work per wall-clock time.
    per_second: Sequence,
    /// Pairs that could not be measured.
    left_out: usize,
    /// Why the last of these pairs could not be measured.
    why: Option<String>,
    /// The ratios of work per processor time after each pair.
    history: History,
}

impl Pairs {
    /// Writes the present ratio into the history.
    fn keep(&mut self) {
        let (pairs, ratio) = (self.per_cpu.pairs(), self.per_cpu.interval());
        self.history.push(AtPair { pairs, ratio });
    }
}

fn prove(options: &Canary) -> Result<u8, u8> {
    let begun = Instant::now();
    let (selection, settings, options) = match &options.rule {
        None => (Selection::Targets(options.targets.clone()), settings(options)?, options.clone()),
        Some(name) => of_rule(name, options)?,
    };
    let options = &options;
    must_be_on()?;
    if let Some(off) = off::now() {
        let fix = match off {
            Off::Disabled => "rm /etc/tiexec/disabled",
            Off::Drained => "tiexecctl agent resume",
        };
        warn(format_args!("cannot begin a canary: {} is there; fix: {fix}", off.file()));
        return Err(exit::FAILED);
    }
    let (counter, guards) = sources(options).map_err(|why| {
        warn(why);
        exit::USAGE
    })?;
    must_have_time(options, &counter)?;
    let canaries = verdicts::open(&options.state_dir, "begin a canary")?;
    let turn = begin(&canaries)?;
    take_back(&turn)?;
    // The verdict of this canary must find room at its end.
    match canaries.verdicts() {
        Ok((_, aside)) => aside.iter().for_each(warn),
        Err(why) => {
            warn(format_args!("cannot begin a canary: it {why}"));
            return Err(exit::FAILED);
        }
    }
    let mut live = Live::find(selection, &settings, turn, options.build.clone())?;
    live.announce(options.max)?;
    live.must_be_possible()?;
    let asked = Instant::now();
    counter.read().map_err(|refusal| {
        let command = options.counter.as_deref().unwrap_or_default();
        match refusal.is_no_command {
            true => not_run("--counter", command, &refusal.why),
            false => warn(format_args!("cannot read {}: {}", shown(options), refusal.why)),
        }
        exit::FAILED
    })?;
    let answered_in = asked.elapsed();
    for guard in &guards {
        if let Some(Refusal { why, is_no_command }) = guard.objects() {
            if is_no_command {
                not_run("--guard", options.guard.as_deref().unwrap_or_default(), &why);
                return Err(exit::FAILED);
            }
            warn(format_args!("the guard objects before anything was changed: {why}"));
            return Err(exit::GUARD);
        }
    }
    let build = live.build()?;
    interrupt::catch();
    let mut run = Run::new(options, &settings, live, counter, guards, build);
    (run.begun, run.longest_look) = (begun, answered_in);
    run.must_have_time()?;
    Ok(run.finish(&canaries))
}

/// Refuses if TIEXEC or the configuration file says off, as an attach does.
fn must_be_on() -> Result<(), u8> {
    let MachineSettings { settings, unread, .. } = MachineSettings::read();
    if !settings.is_off() || off::now() == Some(Off::Disabled) {
        return Ok(());
    }
    match unread {
        Some(why) => warn(format_args!("cannot begin a canary: {why}")),
        None => warn(format_args!(
            "cannot begin a canary: TIEXEC or {CONFIG_FILE} says off; fix: leave out off there"
        )),
    }
    Err(exit::FAILED)
}

/// Reports that the shell cannot run a command.
fn not_run(option: &str, command: &str, why: &str) {
    let user = source::other_user().map_or(String::new(), |user| format!(" as {user}"));
    let command = command.shown();
    warn(format_args!(
        "cannot run {option} '{command}' in /{user}: {why}; fix: name it by its whole path"
    ));
}

/// Returns the length of a slice, and the time after a switch that does not count.
fn slice_and_washout(options: &Canary, counter: &Counter) -> (Duration, Duration) {
    let (usual, washouts) = match counter {
        Counter::Command(_) => (SLICE, WASHOUTS),
        Counter::Query(..) => (SLICE_OF_PROMETHEUS, WASHOUTS_OF_PROMETHEUS),
    };
    let slice = options.slice.unwrap_or(usual);
    (slice, slice / washouts)
}

/// Refuses a `--max` that is too short for the slices of one pair, because the canary would switch the processes for
/// nothing. How long the counter takes is seen later ([`Run::must_have_time`]).
fn must_have_time(options: &Canary, counter: &Counter) -> Result<(), u8> {
    let (slice, washout) = slice_and_washout(options, counter);
    // The first slice does not count; see `Run::measure`.
    let least = 3 * (slice + washout);
    if options.max >= least {
        return Ok(());
    }
    let (max, pair) = (options.max, 2 * slice);
    let least = Duration::from_millis(u64::try_from(least.as_millis()).unwrap_or(u64::MAX))
        + Duration::from_millis(1);
    let than = if max < pair {
        format!("a pair of slices ({pair:?})")
    } else {
        format!("a pair of slices, and the time before each of them ({least:?})")
    };
    let max_fix =
        enough(slice + washout).map_or(String::new(), |enough| format!("--max={enough}, or "));
    warn(format_args!("--max {max:?} is shorter than {than}; fix: use {max_fix}a shorter --slice"));
    Err(exit::USAGE)
}

/// Returns a value of `--max` that is long enough for a verdict, in whole minutes or seconds. `slice` includes the time
/// before each slice. `None` if the option accepts no value that is so long.
fn enough(slice: Duration) -> Option<String> {
    // The switches take time, too: add a tenth.
    let seconds = slice.mul_f64((1 + 2 * FEWEST_PAIRS) as f64 * 1.1).as_secs() + 1;
    let text =
        if seconds <= 120 { format!("{seconds}s") } else { format!("{}m", seconds.div_ceil(60)) };
    parse_duration(&text).is_ok().then_some(text)
}

/// Takes the lock of the only canary.
fn begin(canaries: &Canaries) -> Result<Turn<'_>, u8> {
    match canaries.begin() {
        Ok(Some(turn)) => Ok(turn),
        Ok(None) => {
            let what = match canaries.runner() {
                Some(runner) => in_words(&runner),
                None => {
                    "another canary, or the agent, holds the lock; fix: wait for its end".to_owned()
                }
            };
            warn(format_args!("cannot begin a canary: {what}"));
            Err(exit::FAILED)
        }
        Err(why) => {
            warn(format_args!("cannot begin a canary: {why}"));
            Err(exit::FAILED)
        }
    }
}

/// Reverts the processes of a killed canary.
fn take_back(turn: &Turn<'_>) -> Result<(), u8> {
    let taken = turn.take_back(None, &[]).map_err(|why| {
        warn(format_args!("cannot begin a canary: it {why}"));
        exit::FAILED
    })?;
    if let Some(why) = taken.aside {
        warn(why);
    }
    for pid in &taken.reverted {
        warn(format_args!("reverted process {pid}, which a killed canary had left on huge pages"));
    }
    for (pid, why) in &taken.failed {
        warn(format_args!(
            "cannot revert process {pid}, which a killed canary has left: {why}; fix: tiexecctl revert {pid}"
        ));
    }
    if taken.failed.is_empty() { Ok(()) } else { Err(exit::FAILED) }
}

/// Returns the settings of the attach. A verdict is about a backing and edges, so all other settings are ignored, from
/// every source.
fn settings(options: &Canary) -> Result<Settings, u8> {
    let backing = options.backing.unwrap_or(BackingChoice::Image);
    if !matches!(backing, BackingChoice::Image | BackingChoice::Hugetlb) {
        let why = match backing {
            BackingChoice::Pagecache => "its huge pages cannot be taken back",
            BackingChoice::Off => "it makes no huge page",
            _ => "it may take huge pages of the page cache, which cannot be taken back",
        };
        warn(format_args!("cannot alternate --backing {backing}: {why}; fix: --backing image"));
        return Err(exit::USAGE);
    }
    let edges = options.edges.map(|edges| ("edges", Some(edges.to_string())));
    let said = [("backing", Some(backing.to_string())), ("quiet", None)];
    let all = LaunchSettings::default().and(said).and(edges);
    let Settings { backing, edges, .. } = settings::settings(&all).map_err(|what| {
        warn(what);
        exit::USAGE
    })?;
    Ok(Settings { backing, edges, quiet: true, ..Settings::default() })
}

/// Returns the processes of a rule, the settings of its attach, and the options. The rule supplies each option that the
/// user did not give.
fn of_rule(name: &str, options: &Canary) -> Result<(Selection, Settings, Canary), u8> {
    let rules = Rules::read(&options.conf_dir);
    rules.defects.iter().for_each(warn);
    // The file that cannot be read may take processes out.
    if rules.unknown().is_some() {
        warn("cannot begin a canary: not all rules are known; fix: do what the line above names");
        return Err(exit::FAILED);
    }
    let Some(rule) = rules.rules.iter().find(|rule| rule.name == name).cloned() else {
        // The line of the defect has told the user that the directory cannot be read.
        if rules.unread(&options.conf_dir).is_some() {
            return Err(exit::USAGE);
        }
        let directory = options.conf_dir.shown();
        let (where_, fix) = match rules.defects.iter().any(|defect| defect.left_out) {
            true => ("the files that can be used of ", "edit the other files".to_owned()),
            false => ("", format!("tiexecctl rules check --conf-dir {}", options.conf_dir.word())),
        };
        let name = name.shown();
        warn(format_args!(
            "cannot begin a canary: there is no rule '{name}' in {where_}{directory}; fix: {fix}"
        ));
        return Err(exit::USAGE);
    };
    if !rule.waits_for_canary() {
        warn(format_args!(
            "rule {name} asks for no canary; fix: write action = \"attach\" and canary = \"required\" into it, or select \
             the processes by --exe or --unit"
        ));
        return Err(exit::USAGE);
    }
    if options.backing.is_some() || options.edges.is_some() {
        warn("--rule takes backing and edges from the rule; fix: leave --backing and --edges out");
        return Err(exit::USAGE);
    }
    let mut options = options.clone();
    let measure = rule.measure.clone().unwrap_or_default();
    if options.counter.is_none() && options.prometheus.is_none() {
        options.counter = measure.counter;
        options.prometheus = measure.prometheus;
        options.query = measure.query;
    }
    if options.counter.is_none() && options.prometheus.is_none() {
        warn(format_args!(
            "rule {name} does not say what to count; fix: --counter CMD, or canary-counter in the rule"
        ));
        return Err(exit::USAGE);
    }
    options.guard = options.guard.or(measure.guard);
    if options.prometheus.is_some() {
        options.guard_query = options.guard_query.or(measure.guard_query);
    }
    options.slice = options.slice.or(measure.slice);
    let program = options.program.clone().map(OsString::into_vec);
    let settings = Settings { quiet: true, ..rule.settings.clone() };
    Ok((Selection::by_rule(rules, &rule, program)?, settings, options))
}

fn sources(options: &Canary) -> Result<(Counter, Vec<Guard>), String> {
    let server = options.prometheus.as_deref().map(Server::at).transpose()?;
    let mut guards: Vec<Guard> = options.guard.iter().cloned().map(Guard::Command).collect();
    let counter = match (server, &options.query, &options.counter) {
        (Some(server), Some(query), _) => {
            let guard = options.guard_query.clone();
            guards.extend(guard.map(|query| Guard::Query(server.clone(), query)));
            Counter::Query(server, query.clone())
        }
        (_, _, counter) => Counter::Command(counter.clone().unwrap_or_default()),
    };
    Ok((counter, guards))
}

/// Returns the counter as the user named it.
fn shown(options: &Canary) -> String {
    match (&options.query, &options.counter) {
        (Some(query), _) => format!("--query {}", query.shown()),
        (None, counter) => {
            format!("--counter {}", counter.as_deref().unwrap_or_default().shown())
        }
    }
}

/// A running canary.
struct Run<'a> {
    options: &'a Canary,
    settings: &'a Settings,
    live: Live<'a>,
    counter: Counter,
    guards: Vec<Guard>,
    build: Build,
    slice: Duration,
    washout: Duration,
    /// `--max` counts from this moment.
    begun: Instant,
    /// The longest time that the counter has taken to answer.
    longest_look: Duration,
    /// The longest time that a pair has taken, with its switches and waits.
    longest_pair: Duration,
    /// When the first pair should be measured.
    first_pair: Option<Instant>,
    pairs: Pairs,
    /// The unit and the command line of the main process.
    unit: Option<Units>,
    command: Vec<String>,
    /// True if there were copies, and no process is left on them.
    given_back: bool,
    progress: Progress,
}

/// The figures of one slice.
#[derive(Clone, Copy)]
struct Figures {
    per_cpu: f64,
    per_second: f64,
}

impl<'a> Run<'a> {
    fn new(
        options: &'a Canary,
        settings: &'a Settings,
        live: Live<'a>,
        counter: Counter,
        guards: Vec<Guard>,
        build: Build,
    ) -> Self {
        let (slice, washout) = slice_and_washout(options, &counter);
        let sequence = || Sequence::new(options.keep_above);
        let (per_cpu, per_second) = (sequence(), sequence());
        // At the end the process may be gone.
        let unit = live.unit();
        let process = ProcDir::of(live.main());
        let command = process.and_then(|process| command_line_apart(&process)).unwrap_or_default();
        Self {
            options,
            settings,
            live,
            counter,
            guards,
            build,
            slice,
            washout,
            begun: Instant::now(),
            longest_look: Duration::ZERO,
            longest_pair: Duration::ZERO,
            first_pair: None,
            pairs: Pairs {
                per_cpu,
                per_second,
                left_out: 0,
                why: None,
                history: History::default(),
            },
            unit,
            command,
            given_back: false,
            progress: Progress::default(),
        }
    }

    fn finish(mut self, canaries: &Canaries) -> u8 {
        self.live.note("alternates between copies and base pages from now on");
        let end = self.measure().err().unwrap_or(End::Known);
        let verdict = self.pairs.per_cpu.last_verdict();
        let mut is_kept = false;
        let mut status = match &end {
            End::Known | End::Time if verdict == Verdict::Better => {
                let kept = self.live.keep().ok().filter(|_| interrupt::signal().is_none());
                is_kept = kept.is_some();
                kept.unwrap_or(exit::PARTIAL)
            }
            End::Known | End::Time => exit::NOT_BETTER,
            End::Signal(signal) => exit::of_signal(*signal),
            End::Guard(_) => exit::GUARD,
            End::Off(_) => exit::FAILED,
            End::Gone => exit::GONE,
            End::Failed(status) => *status,
        };
        // A second Ctrl-C must not end the revert.
        tiexec_sys::process::ignore_interrupts();
        let text = if is_kept {
            self.live.turn.clear();
            "no longer alternates, and keeps the copies"
        } else {
            match self.live.go_back() {
                Ok(()) => {
                    self.given_back = self.live.switches() > 0;
                    "no longer alternates, and is on base pages"
                }
                Err(left) => {
                    warn(left);
                    status = exit::PARTIAL;
                    "no longer alternates, and is not all on base pages"
                }
            }
        };
        let (verdict_words, pairs) = (verdict.as_str(), self.pairs.per_cpu.pairs());
        self.live.note(&format!("{text}: {verdict_words} after {pairs} pairs"));
        drop(std::mem::take(&mut self.progress));
        // A canary that ended early leaves no verdict.
        let found = matches!(end, End::Known | End::Time).then(|| self.finding(verdict));
        let is_known = matches!(found, Some(Ok(_)));
        let unkept = match found {
            None => None,
            Some(Err(why)) => Some(why),
            Some(Ok(finding)) => canaries.keep(vec![finding]).inspect(|_| {
                status = status.max(exit::PARTIAL);
            }),
        };
        let told = if self.options.json {
            let is_kept = [is_kept, is_known && unkept.is_none()];
            print(&(escape::json(&self.account(&end, verdict, is_kept, unkept)) + "\n"))
        } else {
            let mut words = self.words(&end, verdict, is_kept);
            if let Some(why) = unkept {
                words += &format!("  the verdict is not kept: {}\n", why.shown());
            }
            print(&words)
        };
        status.max(told)
    }

    /// Refuses a `--max` that has no time left for the first pair, now that the counter has answered once. How long a
    /// switch takes is not known yet.
    fn must_have_time(&self) -> Result<(), u8> {
        // The slice before the first pair does not count; see `measure`.
        let needed = self.slice + self.washout + self.pair_takes();
        let left = self.left();
        if needed <= left {
            return Ok(());
        }
        let (needed, left) = (needed.as_secs_f64(), left.as_secs_f64());
        warn(format_args!(
            "cannot begin a canary: the first pair takes {needed:.1} s, and {left:.1} s of --max are left; fix: use {}",
            self.more_time()
        ));
        Err(exit::USAGE)
    }

    /// Returns the options with which the time is enough for a verdict.
    fn more_time(&self) -> String {
        match enough(self.pair_takes() / 2) {
            Some(enough) => format!("--max={enough}, or a shorter --slice"),
            None => "a shorter --slice".to_owned(),
        }
    }

    /// Returns the time that is left for all but the last switch, which puts the file's own text back.
    fn left(&self) -> Duration {
        let left = self.options.max.saturating_sub(self.begun.elapsed());
        left.saturating_sub(self.live.switch_takes())
    }

    /// Returns how long a pair may take.
    fn pair_takes(&self) -> Duration {
        let waits = 2 * self.live.switch_takes() + 4 * self.longest_look;
        (2 * (self.slice + self.washout) + waits).max(self.longest_pair)
    }

    /// Switches all processes, within a limit.
    fn switch(&mut self, arm: Arm) -> Result<(), End> {
        let (left, longest) = (self.left(), clock::limit(LONGEST_SWITCH));
        self.progress.now(|| format!("switches all processes to {}", text_of(arm)));
        if self.live.switch(arm, Some(Instant::now() + left.min(longest)))? {
            return Ok(());
        }
        if left < longest {
            return Err(End::Time);
        }
        warn(format_args!(
            "cannot alternate {}: a switch to {} took more than {longest:?}; \
             fix: name fewer processes, by their PIDs",
            self.live.exe().shown(),
            text_of(arm)
        ));
        Err(End::Failed(exit::FAILED))
    }

    fn measure(&mut self) -> Result<(), End> {
        // The first slice of copies does not count. It lets the kernel find memory for the copies, and proves that the
        // program has text to copy.
        self.switch(Arm::Tiexec)?;
        self.live.must_be_on_copies()?;
        let wait = self.washout + self.slice;
        self.first_pair = Instant::now().checked_add(wait + self.pair_takes());
        self.sleep(wait)?;
        let mut unmeasured = 0;
        let mut next_line = 6;
        loop {
            // A pair that cannot end in time is not begun.
            if self.pair_takes() > self.left() {
                return Err(End::Time);
            }
            let began = Instant::now();
            let pair = self.pair();
            self.longest_pair = self.longest_pair.max(began.elapsed());
            match pair {
                Err(Unmeasured::End(end)) => return Err(end),
                Ok([plain, copies]) => {
                    unmeasured = 0;
                    self.pairs.per_cpu.push((copies.per_cpu / plain.per_cpu).ln());
                    self.pairs.per_second.push((copies.per_second / plain.per_second).ln());
                    self.pairs.keep();
                }
                Err(Unmeasured::Why(why)) => {
                    self.live.must_live()?;
                    unmeasured += 1;
                    self.pairs.left_out += 1;
                    if unmeasured == MOST_UNMEASURED {
                        let counter = shown(self.options);
                        warn(format_args!("cannot measure by {counter}: {why}"));
                        return Err(End::Failed(exit::FAILED));
                    }
                    self.pairs.why = Some(why);
                }
            }
            if self.pairs.per_cpu.verdict().is_some() {
                return Ok(());
            }
            let line = self.line();
            if self.pairs.per_cpu.pairs() >= next_line && !self.options.json {
                next_line *= 2;
                self.progress.unless_shown(&line);
            }
        }
    }

    /// Measures both arms, in an order that a coin decides. The first result is that of base pages.
    fn pair(&mut self) -> Result<[Figures; 2], Unmeasured> {
        if coin() {
            return Ok([self.slice(Arm::Plain)?, self.slice(Arm::Tiexec)?]);
        }
        let copies = self.slice(Arm::Tiexec)?;
        Ok([self.slice(Arm::Plain)?, copies])
    }

    fn slice(&mut self, arm: Arm) -> Result<Figures, Unmeasured> {
        if self.live.arm() != arm {
            self.switch(arm)?;
            self.sleep(self.washout)?;
        }
        let before = self.look(None)?;
        self.sleep(self.slice)?;
        let after = self.look(Some(&before.used))?;
        self.live.must_be_as_switched()?;
        let work = after.count - before.count;
        let used = after.used.since(&before.used).map_err(Unmeasured::Why)?.as_secs_f64();
        let lasted = (after.at - before.at).as_secs_f64();
        let why = if work < 0.0 {
            format!("it fell from {} to {}", before.count, after.count)
        } else if work == 0.0 {
            "it did not grow: no work was done".to_owned()
        } else if used <= 0.0 {
            "the processes used no processor time".to_owned()
        } else {
            return Ok(Figures { per_cpu: work / used, per_second: work / lasted });
        };
        Err(Unmeasured::Why(why))
    }

    fn look(&mut self, before: Option<&Used>) -> Result<Reading, Unmeasured> {
        let asked = Instant::now();
        let count = self.counter.read();
        self.longest_look = self.longest_look.max(asked.elapsed());
        let count = count.map_err(|refusal| {
            interrupt::signal()
                .map_or(Unmeasured::Why(refusal.why), |signal| Unmeasured::End(End::Signal(signal)))
        })?;
        let unread = || Unmeasured::Why("the processor time cannot be read".to_owned());
        let used = self.live.used(before)?.ok_or_else(unread)?;
        Ok(Reading { count, used, at: Instant::now() })
    }

    /// Sleeps, and checks the guards and the service meanwhile. If `--max` leaves too little time, does not sleep.
    fn sleep(&mut self, time: Duration) -> Result<(), End> {
        if time > self.left() {
            return Err(End::Time);
        }
        let end = Instant::now() + time;
        loop {
            if let Some(signal) = interrupt::signal() {
                return Err(End::Signal(signal));
            }
            if let Some(off) = off::now() {
                return Err(End::Off(off));
            }
            for guard in &self.guards {
                if let Some(Refusal { why, .. }) = guard.objects() {
                    let signal = interrupt::signal();
                    return Err(signal.map_or(End::Guard(why), End::Signal));
                }
            }
            self.live.must_live()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let line = self.line();
            self.progress.at(|| line);
            interrupt::sleep(left.min(Duration::from_secs(1)));
        }
    }

    /// Returns the progress line: the present estimate, and the time until the verdict.
    fn line(&self) -> String {
        let pairs = self.pairs.per_cpu.pairs();
        if pairs == 0 {
            let left = self.first_pair.map_or(Duration::ZERO, |end| end - Instant::now());
            let (arm, left) = (text_of(self.live.arm()), duration(left.as_secs_f64()));
            return format!("measures the first pair: on {arm} now, {left} left");
        }
        let per_pair = self.begun.elapsed().as_secs_f64() / pairs.max(1) as f64;
        let time = |more: usize| duration(more as f64 * per_pair);
        let left = match self.pairs.per_cpu.forecast() {
            None => String::new(),
            Some(forecast) => {
                let verdict = forecast.verdict.map_or_else(
                    || "no end in sight".to_owned(),
                    |more| format!("about {more} more pairs ({})", time(more)),
                );
                let two = forecast.two_percent.map_or(String::new(), |more| {
                    format!("; 2 % would be seen after {more} more ({})", time(more))
                });
                format!("; {verdict}{two}")
            }
        };
        let per_cpu = times(self.pairs.per_cpu.interval());
        let wall = self.pairs.per_second.interval().estimate;
        let wall = wall.map_or(String::new(), |ratio| format!(", {ratio:.3} per second"));
        format!("{pairs} pairs: {per_cpu} per CPU second{wall}{left}")
    }

    /// Returns the finding to keep.
    ///
    /// # Errors
    /// The reason to keep none: there were too few pairs, or the processes do not run the build any more.
    fn finding(&self, verdict: Verdict) -> Result<Finding, String> {
        if self.pairs.per_cpu.pairs() < FEWEST_PAIRS {
            return Err(format!("it takes {FEWEST_PAIRS} pairs; fix: use {}", self.more_time()));
        }
        let build = ProcDir::of(self.live.main()).map_err(|error| error.to_string());
        let build = build.and_then(|process| build_of(&process));
        let (_, build) = build.map_err(|why| format!("cannot tell the build: {why}"))?;
        if build != self.build {
            return Err("the program was replaced meanwhile; fix: run the canary again".to_owned());
        }
        Ok(Finding {
            subject: subject(&self.build, self.settings),
            verdict,
            keep_above: self.options.keep_above,
            ratio: self.pairs.per_cpu.interval(),
            standard_error: self.pairs.per_cpu.standard_error(),
            pairs: self.pairs.per_cpu.pairs(),
            hosts: 1,
            exe: self.live.exe().shown().to_string(),
            machine: verdicts::machine(),
            owner: self.live.owner(),
            when: now(),
        })
    }

    fn words(&self, end: &End, verdict: Verdict, is_kept: bool) -> String {
        let Pairs { per_cpu, per_second, left_out, why, .. } = &self.pairs;
        let mut text = format!("{}: {}", self.live.exe().shown(), verdict.as_str());
        text += &match end {
            End::Known => String::new(),
            End::Time => " (the time of --max is over)".to_owned(),
            End::Signal(_) => " (it was ended)".to_owned(),
            End::Guard(why) => format!(" (the guard objected: {})", why.shown()),
            End::Off(off) => format!(" (ended, because {} is there)", off.file()),
            End::Gone => " (the service has ended, or was restarted)".to_owned(),
            End::Failed(_) => " (it failed)".to_owned(),
        };
        let (switching, longest) = (self.live.switching(), self.live.longest_switch());
        text += &format!(
            "\n  work per CPU second: {}, by the time of the {}\n  work per second:     {}\n  {} pairs",
            times(per_cpu.interval()),
            self.live.cpu().as_str(),
            times(per_second.interval()),
            per_cpu.pairs()
        );
        text += &format!(
            " of slices of {:.1} s in {}",
            self.slice.as_secs_f64(),
            duration(self.begun.elapsed().as_secs_f64())
        );
        if let (true, Some(why)) = (*left_out > 0, why) {
            text += &format!("; {left_out} left out, the last because {}", why.shown());
        }
        text += &format!(
            "\n  {} switches in {:.1} s, the longest in {:.1} s\n",
            self.live.switches(),
            switching.as_secs_f64(),
            longest.as_secs_f64()
        );
        if is_kept {
            text +=
                &format!("  the copies are kept; undo: tiexecctl revert {}\n", self.live.words());
        }
        text
    }

    /// Returns the account of this canary. `unkept` is why the verdict is not kept, if something prevented that.
    fn account(
        &self,
        end: &End,
        verdict: Verdict,
        is_kept: [bool; 2],
        unkept: Option<String>,
    ) -> Account {
        let Pairs { per_cpu, per_second, left_out, why, history } = &self.pairs;
        let reason = match end {
            End::Guard(why) => Some(why),
            _ => why.as_ref(),
        };
        let forecast = per_cpu.forecast();
        let [kept, verdict_kept] = is_kept;
        Account {
            schema: SCHEMA,
            kind: Account::KIND.to_owned(),
            exe: self.live.exe().shown().to_string(),
            verdict,
            ended: end.as_str().to_owned(),
            reason: unkept.or_else(|| reason.cloned()),
            kept,
            verdict_kept,
            keep_above: self.options.keep_above,
            confidence: CONFIDENCE,
            per_cpu_second: per_cpu.interval(),
            per_second: per_second.interval(),
            cpu_time: self.live.cpu().as_str().to_owned(),
            pairs: per_cpu.pairs(),
            pairs_left_out: *left_out,
            more_pairs: forecast.and_then(|forecast| forecast.verdict),
            more_pairs_for_2_percent: forecast.and_then(|forecast| forecast.two_percent),
            slice_s: self.slice.as_secs_f64(),
            lasted_s: self.begun.elapsed().as_secs_f64(),
            switches: self.live.switches(),
            switching_s: self.live.switching().as_secs_f64(),
            longest_switch_s: self.live.longest_switch().as_secs_f64(),
            subject: subject(&self.build, self.settings),
            copied_bytes: self.live.copied(),
            given_back: self.given_back,
            history: history.points().to_vec(),
            origin: origin(),
            unit: self.unit.as_ref().map(ToString::to_string),
            command: self.command.clone(),
            next: Some(self.next(end, verdict, kept)),
        }
    }

    /// Returns the next step.
    fn next(&self, end: &End, verdict: Verdict, is_kept: bool) -> Next {
        let own = rustix::process::geteuid().as_raw();
        let mut options = self.settings.edges.options();
        let backing = by_copies(self.settings.clone()).backing;
        if backing != BackingChoice::Image {
            options += &format!(" --backing={backing}");
        }
        // Processes that were selected in another way may be only a part of their unit.
        let unit = self.unit.as_ref().filter(|_| self.live.is_of_unit());
        let unit = unit.and_then(|units| units.service_for(own)).map(|(name, is_own)| {
            format!("{}{}", if is_own { "--user " } else { "" }, name.word())
        });
        let more = self.pairs.per_cpu.forecast().and_then(|forecast| forecast.verdict);
        Subject { processes: self.live.words(), unit, options }.next(end, verdict, is_kept, more)
    }
}

/// The subject of the next step, as words of commands.
struct Subject {
    /// The selection of the processes.
    processes: String,
    /// The service, if the selection is a whole service.
    unit: Option<String>,
    /// The options for the edges and the backing, unless they are the defaults; a blank is before each of them.
    options: String,
}

impl Subject {
    /// Returns the next step. `more` is how many more pairs a verdict may take, if known.
    fn next(&self, end: &End, verdict: Verdict, is_kept: bool, more: Option<usize>) -> Next {
        let Self { processes, unit, options } = self;
        match (end, verdict) {
            _ if is_kept => match unit {
                Some(unit) => {
                    let apart = if options.is_empty() { "" } else { " --" };
                    Next::command(
                        "a restart of the service begins on base pages; for copies after each start:",
                        format!("tiexecctl enable {unit}{apart}{options}"),
                    )
                }
                None => Next::command(
                    "nothing; the copies are kept. To undo that:",
                    format!("tiexecctl revert {processes}"),
                ),
            },
            (End::Known | End::Time, Verdict::Worse | Verdict::NoWorse) => match unit {
                Some(unit) => Next::command(
                    "leave it on base pages, also after a restart. If the service is enabled:",
                    format!("tiexecctl disable {unit}"),
                ),
                None => Next::words("nothing; leave it on base pages."),
            },
            (End::Known | End::Time, Verdict::Better) => Next::command(
                "the copies are better, but are not kept. To make them again:",
                format!("tiexecctl attach{options} {processes}"),
            ),
            (End::Known | End::Time, Verdict::Undecided) => {
                let more = more.map_or(String::new(), |more| {
                    format!(": a verdict may take {more} more pairs (--max)")
                });
                Next::words(format!("run the canary again, for longer{more}."))
            }
            _ => Next::words("run the canary again; this one ended early."),
        }
    }
}

/// The counter and the processor time at one moment.
struct Reading {
    count: f64,
    used: Used,
    at: Instant,
}

/// Returns the arm in words.
const fn text_of(arm: Arm) -> &'static str {
    match arm {
        Arm::Plain => "base pages",
        Arm::Tiexec => "copies",
    }
}

/// Tosses an unpredictable coin.
fn coin() -> bool {
    let mut byte = [0u8];
    let drawn = rustix::rand::getrandom(&mut byte, rustix::rand::GetRandomFlags::empty());
    // If there are no random numbers, the last digit of the clock replaces them, because it does not depend on the
    // service either.
    match drawn {
        Ok(1) => byte[0] & 1 == 1,
        _ => Instant::now().elapsed().as_nanos() & 1 == 1,
    }
}

fn times(Interval { estimate, low, high }: Interval) -> String {
    let Some(estimate) = estimate else { return "not known".to_owned() };
    let end = |end: Option<f64>| end.map_or_else(|| "?".to_owned(), |end| format!("{end:.3}"));
    format!("{estimate:.3} times ({}–{})", end(low), end(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_makes_the_copies_that_were_measured() {
        let next = |end: &End, is_kept, unit: Option<&str>, options: &str| {
            let (processes, options) = ("--exe /x".to_owned(), options.to_owned());
            let subject = Subject { processes, unit: unit.map(str::to_owned), options };
            subject.next(end, Verdict::Better, is_kept, None).command.unwrap_or_default()
        };
        let edges = " --edges=pad --backing=hugetlb";
        for (is_kept, unit, options, command) in [
            (true, Some("x.service"), "", "tiexecctl enable x.service".to_owned()),
            (
                true,
                Some("--user x.service"),
                edges,
                format!("tiexecctl enable --user x.service --{edges}"),
            ),
            (true, None, edges, "tiexecctl revert --exe /x".to_owned()),
            (false, Some("x.service"), edges, format!("tiexecctl attach{edges} --exe /x")),
            (false, None, "", "tiexecctl attach --exe /x".to_owned()),
        ] {
            for end in [End::Known, End::Time] {
                assert_eq!(next(&end, is_kept, unit, options), command);
            }
        }
        assert_eq!(next(&End::Gone, false, None, ""), "");
    }
}
