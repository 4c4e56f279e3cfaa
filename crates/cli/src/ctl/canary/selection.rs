//! The processes of a canary, selected by ID, program, unit, or a rule of the agent.

use tiexec_agent::processes::{Examiner, every};
use tiexec_agent::rules::{Rule, Rules};
use tiexec_core::escape::{AsShown, in_shell};
use tiexec_core::proc::stat;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::ctl::targets;
use crate::exit;
use crate::options::Targets;
use crate::stdio::warn;

/// The selection.
#[derive(Clone, Debug)]
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
    },
}

impl Selection {
    /// Selects by a rule. Without a program, takes the program of the process that used the most processor time.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already: no process matches.
    pub(super) fn by_rule(rules: Rules, rule: &Rule, program: Option<Vec<u8>>) -> Result<Self, u8> {
        let name = rule.name.clone();
        let busiest = || Some(matching(&rules, &name).max_by_key(|(pid, _)| used(pid))?.1);
        match program.or_else(busiest) {
            Some(program) => Ok(Self::Rule { rules, name, program }),
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
            Self::Rule { rules, name, program } => {
                let found = matching(rules, name).filter(|(_, its)| its == program);
                Ok(found.map(|(pid, _)| pid).collect())
            }
        }
    }

    /// Returns whether the user named the processes by their IDs.
    pub(super) fn is_by_id(&self) -> bool {
        matches!(self, Self::Targets(targets) if !targets.pids.is_empty())
    }

    /// Returns whether the selection is a whole unit of systemd.
    pub(super) fn is_unit(&self) -> bool {
        matches!(self, Self::Targets(targets) if targets.unit.is_some() || targets.user.is_some())
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

/// Lists the processes that a rule decides about, each with its program.
fn matching(rules: &Rules, name: &str) -> impl Iterator<Item = (Pid, Vec<u8>)> {
    let examiner = Examiner::look();
    every().filter_map(move |(pid, process)| {
        let facts = examiner.process(&process)?;
        let rule = rules.of(&facts)?;
        (rule.name == name).then_some((pid, facts.shown_exe))
    })
}
