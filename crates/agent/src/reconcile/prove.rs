//! The agent's own canaries, one at a time. Each is a child `tiexecctl canary --rule`, for a build whose rule requires
//! a canary.
//!
//! The child writes the record of the processes that it switches, and the verdict. The agent watches those processes
//! for crashes. It ends the child when the build crashes or the agent ends. It obeys the verdict as if an operator had
//! run the canary.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Deserialize;
use tiexec_core::escape::AsShown;
use tiexec_remap::workers;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use super::children::{spawn, tiexecctl};
use super::{Agent, Level};
use crate::canary::Canaries;
use crate::fair::surplus;
use crate::guard::Held;
use crate::jvm::{Patience, Report};
use crate::measure::Measure;
use crate::pods;
use crate::processes::{Process, every};
use crate::state::{Quarantined, Whose};
use crate::treat::Made;
use crate::verdicts::AGAIN;

/// The pause before a canary that failed is repeated.
const RETRY: Duration = Duration::from_secs(3600);
/// Most builds whose canary failed.
const MOST_UNPROVEN: usize = 1024;
/// The time that a canary has to revert its processes when the agent ends it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most builds that wait for a canary, besides those of the machine's own services, of which as many may wait.
const MOST: usize = 64;
/// Most bytes of a canary's answer.
const LONGEST: u64 = 64 << 10;

/// The agent's own canaries.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    /// The builds that wait for one.
    waiting: VecDeque<Unproved>,
    /// The one that runs.
    pub(super) running: Option<Proving>,
    /// The builds whose canary has no verdict.
    failed: Vec<Unproven>,
    /// The users whose canaries have begun, each once, the last one at the end.
    served: VecDeque<Whose>,
}

impl Proofs {
    /// Adds a build to those that wait, unless too many wait. Users together have limited room, and so has the machine.
    fn wait(&mut self, one: Unproved) {
        let is_of_users = one.whose.is_some();
        self.waiting.push_back(one);
        let together = self.waiting.iter().filter(|one| one.whose.is_some() == is_of_users);
        if together.count() <= MOST {
            return;
        }
        match surplus(self.waiting.iter().map(|one| one.whose.as_ref())) {
            Some((at, _)) if is_of_users => drop(self.waiting.remove(at)),
            _ => drop(self.waiting.pop_back()),
        }
    }

    /// Takes the build whose turn it is: one of the machine, or one of the user whose last canary is the longest ago.
    fn next(&mut self) -> Option<Unproved> {
        let turn = |one: &Unproved| {
            let whose = one.whose.as_ref()?;
            let served = self.served.iter().position(|served| served == whose);
            Some(served.map_or(0, |at| at + 1))
        };
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(_, one)| turn(one))?;
        let next = self.waiting.remove(at)?;
        if let Some(whose) = &next.whose {
            self.served.retain(|served| served != whose);
            self.served.push_back(whose.clone());
            self.served.drain(..self.served.len().saturating_sub(MOST));
        }
        Some(next)
    }
}

/// A build that waits for a canary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unproved {
    /// The user whose process asked for it; `None` for the machine.
    pub(super) whose: Option<Whose>,
    pub(super) rule: String,
    pub(super) program: Vec<u8>,
    pub(super) made: Made,
}

impl Unproved {
    /// Returns whether both are about the same, whoever asked for it.
    fn is_like(&self, other: &Self) -> bool {
        (&self.rule, &self.program, &self.made) == (&other.rule, &other.program, &other.made)
    }
}

/// A canary that the agent has started.
#[derive(Debug)]
pub(super) struct Proving {
    of: Unproved,
    /// The measurement that the rule asked for when the canary began.
    measure: Option<Measure>,
    child: Child,
    /// The time when the processes of the record were last checked.
    looked: Option<Instant>,
}

/// The part of the canary's answer that goes into the log.
#[derive(Deserialize, Default)]
struct Answer {
    #[serde(default)]
    verdict: String,
    #[serde(default)]
    ended: String,
    #[serde(default)]
    kept: bool,
    #[serde(default)]
    verdict_kept: bool,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    per_cpu_second: Ratio,
}

impl Answer {
    /// Returns the pause before the canary is repeated, if it has kept no verdict. A canary that used up its time for
    /// nothing would do so again, and would switch a service for hours each time.
    fn pause(&self) -> Duration {
        if self.ended == "time" { AGAIN } else { RETRY }
    }
}

/// A build whose canary has no verdict.
#[derive(Debug)]
struct Unproven {
    of: Unproved,
    /// The measurement that the rule asked for. Another measurement may lead to a verdict.
    measure: Option<Measure>,
    /// The end of the canary.
    since: Instant,
    /// The time after it in which the agent does not repeat the canary.
    pause: Duration,
}

impl Unproven {
    fn rests(&self) -> bool {
        self.since.elapsed() < self.pause
    }
}

#[derive(Deserialize, Default)]
struct Ratio {
    estimate: Option<f64>,
}

impl Agent<'_> {
    /// Queues a build for a canary.
    pub(super) fn want_proof(&mut self, one: Unproved) {
        let measure = self.measure_of(&one);
        let is_soon =
            self.proofs.failed.iter().any(|failed| {
                failed.of.is_like(&one) && failed.measure == measure && failed.rests()
            });
        // The machine's wish also counts if a user's waits already.
        let is_known = self
            .proofs
            .waiting
            .iter()
            .any(|other| other.is_like(&one) && (other.whose.is_none() || one.whose.is_some()))
            || self.proofs.running.as_ref().is_some_and(|proving| proving.of.is_like(&one));
        if !is_soon && !is_known {
            self.proofs.waiting.retain(|other| !other.is_like(&one));
            self.proofs.wait(one);
        }
    }

    /// Watches the running canary, or starts the next one.
    pub(super) fn prove(&mut self) {
        let Some(proving) = &mut self.proofs.running else { return self.begin_canary() };
        match proving.child.try_wait() {
            Ok(None) => self.watch_canary(),
            Ok(Some(_)) | Err(_) => self.take_verdict(),
        }
    }

    /// Ends the running canary, which reverts its processes to base pages.
    pub(super) fn end_canary(&mut self) {
        let Some(proving) = &mut self.proofs.running else { return };
        proving.stop();
        let until = Instant::now() + PATIENCE;
        while matches!(proving.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.take_verdict();
    }

    /// Ends the canary of a build that has crashed. The crash of a user's process that the canary does not switch says nothing
    /// about its processes.
    pub(super) fn end_canary_of(&self, crashed: &Quarantined, pid: Pid) {
        let Some(proving) = &self.proofs.running else { return };
        let members = self.canaries.as_ref().map_or_else(|| Ok(BTreeSet::new()), Canaries::members);
        // It may be one of the processes if these are not known.
        let is_member = members.map_or(true, |members| {
            members.iter().any(|&(number, _)| number == pid.as_raw_nonzero().get())
        });
        if proving.of.made.build == crashed.build && (crashed.uid.is_none() || is_member) {
            proving.stop();
        }
    }

    /// Returns how the rule of a build measures now; `None` if it does not say so.
    fn measure_of(&self, of: &Unproved) -> Option<Measure> {
        let rule = self.rules.rules.iter().find(|rule| rule.name == of.rule);
        rule.and_then(|rule| rule.measure.clone())
    }

    fn begin_canary(&mut self) {
        if self.off.is_some()
            || !self.canary_known
            || !self.machine.has_guard
            || self.state.only_observes()
        {
            return;
        }
        // The scan would disturb its measurement.
        if self.is_scanning() {
            return;
        }
        if self.proofs.waiting.is_empty()
            || self.pressure().is_some()
            || self.copies_left(None) == 0
        {
            return;
        }
        if !self.read_state() {
            return;
        }
        let Some(of) = self.proofs.next() else { return };
        let measure = self.measure_of(&of);
        let mut crashed = self.state.quarantine.iter().filter(|one| one.uid.is_none());
        let is_crashed = crashed.any(|one| one.build == of.made.build);
        if measure.is_none() || self.state.is_off(&of.rule) || is_crashed {
            return;
        }
        self.watch_all(&of);
        let started = self.start_canary(&of);
        let (rule, program) = (of.rule.clone(), of.program.shown().to_string());
        match started {
            Ok(child) => {
                self.say(Level::Info, &format!("canary of {program} (rule {rule}): begins"));
                self.proofs.running = Some(Proving { of, measure, child, looked: None });
            }
            Err(error) => {
                let text = format!("cannot begin a canary of {program} (rule {rule}): {error}");
                self.say(Level::Warning, &text);
                self.has_no_proof(of, measure, RETRY);
            }
        }
    }

    fn start_canary(&self, of: &Unproved) -> std::io::Result<Child> {
        // The canary reverts its processes at SIGTERM, as at `stop`.
        let mut command = tiexecctl(Signal::TERM)?;
        // The canary lists the pods of this node by itself.
        for name in pods::VARIABLES {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.args(["canary", "--json", "--rule", &of.rule, "--program"]);
        command.arg(OsStr::from_bytes(&of.program)).arg("--build").arg(of.made.build.to_string());
        command
            .arg("--conf-dir")
            .arg(&self.directory)
            .arg("--state-dir")
            .arg(&self.state_directory);
        command.stdout(Stdio::piped());
        spawn(command)
    }

    /// Watches the processes of the canary for crashes, also those that the canary added since.
    fn watch_canary(&mut self) {
        let Some(proving) = &mut self.proofs.running else { return };
        if proving.looked.is_some_and(|last| last.elapsed() < super::TICK) {
            return;
        }
        proving.looked = Some(Instant::now());
        let of = proving.of.clone();
        let Some(canaries) = &self.canaries else { return };
        let mut patience = Patience::new();
        let members = match canaries.members() {
            Ok(members) => members,
            Err(why) => {
                let text = format!("cannot watch the processes of a canary: it {why}");
                return self.say_once("canary record", Level::Warning, text);
            }
        };
        for (number, begun) in members {
            let Some(pid) = Pid::from_raw(number) else { continue };
            if self.guard.renew(pid) {
                continue;
            }
            let facts = ProcDir::of(pid).ok().and_then(|it| self.examiner.process(&it));
            if let Some(facts) = facts.filter(|facts| facts.identity.start_time == begun) {
                self.watch_member(pid, &facts, &of, &mut patience);
            }
        }
    }

    /// Watches all processes that a canary may switch, before the canary starts: the first switch may already crash
    /// one.
    fn watch_all(&mut self, of: &Unproved) {
        let mut patience = Patience::new();
        for (pid, process) in every() {
            let Some(facts) = self.examiner.process(&process) else { continue };
            let is_its = self.rules.of(&facts).is_some_and(|rule| rule.name == of.rule)
                && !self.agenda.runs_another(&facts, &of.made);
            if is_its && facts.shown_exe == of.program && !self.guard.renew(pid) {
                self.watch_member(pid, &facts, of, &mut patience);
            }
        }
    }

    fn watch_member(&mut self, pid: Pid, facts: &Process, of: &Unproved, patience: &mut Patience) {
        if let Some(held) = Held::of(pid, facts.identity) {
            let whose = (!facts.counts_for_all()).then(|| facts.whose());
            let report = Report::of_apart(pid, whose.is_some(), patience);
            self.watch(held.watch(facts, whose, &of.rule, of.made.clone(), report));
        }
    }

    /// Handles the end of the canary.
    fn take_verdict(&mut self) {
        let Some(Proving { of, measure, mut child, .. }) = self.proofs.running.take() else {
            return;
        };
        let mut answer = Vec::new();
        // A canary that does not end keeps its lock and its record, so the agent leaves it and its processes alone.
        let has_ended = child.try_wait().is_ok_and(|status| status.is_some());
        if let Some(pid) = pid_of(&child).filter(|_| !has_ended) {
            workers::reap_later(pid);
        }
        if let Some(output) = child.stdout.take().filter(|_| has_ended) {
            let _cut = output.take(LONGEST).read_to_end(&mut answer);
        }
        let answer: Answer = serde_json::from_slice(&answer).unwrap_or_default();
        let pause = answer.pause();
        let Answer { verdict, ended, kept, verdict_kept, reason, per_cpu_second } = answer;
        let what = format!("canary of {} (rule {})", of.program.shown(), of.rule);
        if verdict_kept {
            let ratio = per_cpu_second.estimate.unwrap_or(1.0);
            let kept = if kept { "; its copies are kept" } else { "" };
            let text = format!("{what}: {verdict}, {ratio:.3} times the work per CPU second{kept}");
            self.say(Level::Info, &text);
        } else {
            let why =
                reason.unwrap_or(if ended.is_empty() { "it failed".to_owned() } else { ended });
            let text = format!(
                "{what}: no verdict: {}; not repeated within {} h",
                why.shown(),
                pause.as_secs() / 3600
            );
            self.say(Level::Warning, &text);
            self.has_no_proof(of, measure, pause);
        }
        self.read_verdicts();
    }

    /// Notes that the canary of a build has no verdict, and does not repeat the canary within the pause.
    fn has_no_proof(&mut self, of: Unproved, measure: Option<Measure>, pause: Duration) {
        let failed = &mut self.proofs.failed;
        failed.retain(|other| !other.of.is_like(&of) && other.rests());
        failed.push(Unproven { of, measure, since: Instant::now(), pause });
        if failed.len() > MOST_UNPROVEN {
            let at = surplus(failed.iter().map(|one| one.of.whose.as_ref()));
            failed.remove(at.map_or(0, |(at, _)| at));
        }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

impl Proving {
    fn stop(&self) {
        if let Some(pid) = pid_of(&self.child) {
            let _it_has_ended = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Build;

    fn wish(uid: Option<u32>, build: u32) -> Unproved {
        let whose = uid.map(|uid| Whose { uid, namespace: None });
        let build = Build { build_id: build.to_string(), text: String::new() };
        let made = Made { build, is_go: false };
        Unproved { whose, rule: "r".to_owned(), program: b"/x".to_vec(), made }
    }

    /// A user who starts programs without end delays neither the machine nor other users.
    #[test]
    fn each_owner_has_room_and_turns() {
        let mut proofs = Proofs::default();
        (0..200).for_each(|build| proofs.wait(wish(Some(1000), build)));
        assert_eq!(proofs.waiting.len(), MOST);
        proofs.wait(wish(Some(1001), 0));
        (0..200).for_each(|build| proofs.wait(wish(None, build)));
        assert_eq!(proofs.waiting.len(), 2 * MOST);
        let mut turns = || proofs.next().map(|one| one.whose.map(|whose| whose.uid));
        (0..MOST).for_each(|_| assert_eq!(turns(), Some(None)));
        assert_eq!([turns(), turns(), turns()].map(Option::flatten), [1000, 1001, 1000].map(Some));
    }

    /// Only a canary that failed before its time was over is repeated soon.
    #[test]
    fn a_canary_whose_time_was_too_short_rests_for_a_week() {
        let pause = |answer: &str| serde_json::from_str::<Answer>(answer).expect("JSON").pause();
        let too_few = r#"{"verdict": "undecided", "ended": "time", "verdict_kept": false, "reason": "it takes 10 pairs"}"#;
        assert_eq!(pause(too_few), Duration::from_secs(7 * 24 * 3600));
        for ended in ["failed", "gone", "guard", "signal", "switched_off", ""] {
            let answer = serde_json::json!({"ended": ended, "verdict_kept": false}).to_string();
            assert_eq!(pause(&answer), Duration::from_secs(3600), "{ended}");
        }
    }
}
