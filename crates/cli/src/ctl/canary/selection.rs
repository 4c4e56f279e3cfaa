//! The processes of a canary, selected by ID, program, unit, or a rule of the agent.

use std::cell::RefCell;

use tiexec_agent::pod_watch::PodWatch;
use tiexec_agent::pods;
use tiexec_agent::processes::{Examiner, every};
use tiexec_agent::rules::{Rule, Rules};
use tiexec_core::escape::{AsShown, in_shell};
use tiexec_core::proc::stat;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::ctl::rules::PATIENCE;
use crate::ctl::targets;
use crate::ctl::targets::select::with_kind;
use crate::exit;
use crate::options::Targets;
use crate::stdio::warn;

/// The selection.
#[derive(Debug)]
pub(super) enum Selection {
    /// Selected by the options that attach has too.
    Targets(Targets),
    /// The processes of one program that a rule matches. The rules are read at the start of the canary.
    Rule {
        /// All rules, because an earlier rule may match first.
        rules: Rules,
        /// The name of the rule.
        name: String,
        /// The program, as the kernel shows it.
        program: Vec<u8>,
        /// The facts about processes that the rules match.
        facts: Box<RefCell<Facts>>,
    },
}

/// The facts about processes that rules match, and the watch of the pods among them.
#[derive(Debug)]
pub(super) struct Facts {
    examiner: Examiner,
    /// `None` if no rule that decides here asks for pods, or if no pods can be known.
    watch: Option<PodWatch>,
    /// Why the pods are not known, if a rule asks for pods.
    unknown: Option<String>,
}

impl Selection {
    /// Selects by a rule. Without a program, takes the program of the process that used the most processor time.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already: no process matches.
    pub(super) fn by_rule(rules: Rules, rule: &Rule, program: Option<Vec<u8>>) -> Result<Self, u8> {
        let name = rule.name.clone();
        let mut facts = Facts::of(&rules);
        let all = facts.matching(&rules, &name)?;
        let busiest = || Some(all.into_iter().max_by_key(|(pid, _)| used(pid))?.1);
        match program.or_else(busiest) {
            Some(program) => Ok(Self::Rule { rules, name, program, facts: Box::new(facts.into()) }),
            None => {
                warn(format_args!(
                    "no process matches rule {name}; fix: tiexecctl rules check says which rule a process has"
                ));
                Err(exit::GONE)
            }
        }
    }

    /// Lists the processes at the start. There is at least one.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn first(&self) -> Result<Vec<Pid>, u8> {
        match self {
            Self::Targets(targets) => targets::targets(targets),
            Self::Rule { name, program, .. } => {
                let pids = self.now()?;
                if pids.is_empty() {
                    let program = program.shown();
                    warn(format_args!("no process of {program} matches rule {name} any more"));
                    return Err(exit::GONE);
                }
                Ok(pids)
            }
        }
    }

    /// Lists the present processes.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn now(&self) -> Result<Vec<Pid>, u8> {
        match self {
            Self::Targets(targets) => targets::selected(targets),
            Self::Rule { rules, name, program, facts } => {
                let mut found = facts.borrow_mut().matching(rules, name)?;
                found.retain(|(_, its)| its == program);
                Ok(found.into_iter().map(|(pid, _)| pid).collect())
            }
        }
    }

    /// Returns whether the user named the processes by their IDs.
    pub(super) fn is_by_id(&self) -> bool {
        matches!(self, Self::Targets(targets) if !targets.pids.is_empty())
    }

    /// Returns whether the processes are those of one program.
    pub(super) fn is_by_program(&self) -> bool {
        match self {
            Self::Targets(targets) => targets.exe.is_some(),
            Self::Rule { .. } => true,
        }
    }

    /// Returns the name of the unit of systemd, if the selection is a whole unit.
    pub(super) fn unit(&self) -> Option<String> {
        let Self::Targets(targets) = self else { return None };
        targets.user.as_deref().or(targets.unit.as_deref()).map(with_kind)
    }

    /// Returns the arguments of `tiexecctl` that select the same processes.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Targets(targets) => in_shell(targets.words()),
            Self::Rule { program, .. } => format!("--exe {}", program.word()),
        }
    }
}

/// Returns the processor time of a process, in clock ticks.
pub(super) fn used(pid: &Pid) -> u64 {
    let text = ProcDir::of(*pid).and_then(|process| process.read("stat")).ok();
    text.and_then(|text| stat::run_time(&text).ok()).unwrap_or(0)
}

impl Facts {
    /// Lists the pods of this node, if a rule asks for pods. The agent obeys the annotations of pods then, under each rule.
    fn of(rules: &Rules) -> Self {
        let mut facts = Self { examiner: Examiner::default(), watch: None, unknown: None };
        if !rules.rules.iter().any(Rule::is_for_pods) {
            return facts;
        }
        facts.unknown = pods::unavailable().map(str::to_owned);
        if facts.unknown.is_none() {
            let mut watch = PodWatch::default();
            facts.unknown = watch.list(&mut facts.examiner.pods, PATIENCE).err();
            facts.watch = Some(watch);
        }
        facts
    }

    /// Lists the processes that a rule decides about, each with its program.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already: the rules ask for the pod of a process, and it is not known.
    fn matching(&mut self, rules: &Rules, name: &str) -> Result<Vec<(Pid, Vec<u8>)>, u8> {
        self.examiner.look_again();
        if let Some(watch) = &mut self.watch {
            watch.refresh(&mut self.examiner.pods);
        }
        let unknown = self.unknown.as_ref().filter(|_| !self.examiner.pods.is_complete);
        let mut found = Vec::new();
        for (pid, process) in every() {
            let Some(facts) = self.examiner.process(&process) else { continue };
            let rule = rules.of(&facts);
            // The agent leaves a pod alone whose owner wants less than the rule has.
            let is_its = |rule: &Rule| rule.name == name && rule.settings_for(&facts).is_ok();
            let is_its = rule.is_some_and(is_its);
            if let Some(why) = unknown
                && facts.pod_uid.is_some()
                && (is_its
                    || rules.rules.iter().any(|rule| rule.name == name && rule.is_for_pods()))
            {
                let (pid, why) = (pid.as_raw_nonzero(), why.shown());
                warn(format_args!(
                    "cannot tell whether rule {name} decides about process {pid}, which is in a pod: \
                     cannot list the pods of this node: {why}; fix: run it in the agent's pod"
                ));
                return Err(exit::FAILED);
            }
            if is_its {
                found.push((pid, facts.shown_exe));
            }
        }
        Ok(found)
    }
}
