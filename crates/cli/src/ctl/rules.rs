//! `tiexecctl rules check` and `tiexecd --once --dry-run` show which rule matches which process, and what the agent
//! would do. `tiexecctl rules warm` brings the programs that rules name into huge pages of the page cache.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tiexec_agent::canary::Canaries;
use tiexec_agent::decide::{Decision, Instead, decide};
use tiexec_agent::machine::Machine;
use tiexec_agent::pod_watch;
use tiexec_agent::pods::Pods;
use tiexec_agent::processes::{Examiner, every};
use tiexec_agent::rules::{Defect, Rule, Rules};
use tiexec_agent::state::{State, Store};
use tiexec_agent::verdicts::Verdicts;
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::SCHEMA;
use tiexec_engine::switched_off::is_switched_off;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, cgroup_namespace};

use super::systemctl::is_near;
use super::targets::select;
use super::warm;
use super::{failed, has_text};
use super::{print, told};
use crate::exit;
use crate::options::{AgentFiles, RulesCommand};
use crate::stdio::warn;

/// The longest wait for the list of this node's pods from the API server of Kubernetes.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(command: &RulesCommand) -> u8 {
    let (pids, files, how) = match command {
        RulesCommand::Check { manifests, files, strict, .. } if !manifests.is_empty() => {
            let rules = Rules::read(&files.conf_dir);
            rules.defects.iter().for_each(warn);
            let status = super::manifests::check(manifests, &rules);
            return if *strict && !rules.defects.is_empty() { exit::FAILED } else { status };
        }
        RulesCommand::Check { pids, files, strict, json, .. } => {
            (pids, files, How { strict: *strict, json: *json })
        }
        RulesCommand::Warm { conf_dir } => return warm_programs(conf_dir),
    };
    if pids.is_empty() {
        return show(files, None, how);
    }
    match select::parse(pids) {
        Ok(pids) => show(files, Some(&pids), how),
        Err(error) => {
            warn(error);
            exit::USAGE
        }
    }
}

/// How to show the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct How {
    /// A rule that matches no process, and every defect of a file, is an error.
    pub(crate) strict: bool,
    /// Print one JSON object instead of lines.
    pub(crate) json: bool,
}

/// Shows the decision about each of the processes or, without processes, about each that a rule matches, and the rules
/// that match no process. Returns the exit status.
pub(crate) fn show(files: &AgentFiles, pids: Option<&[Pid]>, how: How) -> u8 {
    let rules = Rules::read(&files.conf_dir);
    rules.defects.iter().for_each(warn);
    if pids.is_none() && rules.rules.is_empty() && rules.defects.is_empty() {
        let directory = files.conf_dir.shown();
        warn(format_args!("there are no rules: {directory} has no *.toml; fix: man tiexec.conf"));
    }
    let mut status = exit::OK;
    let kept = Kept::read(files, &mut status);
    let pods = pods(&rules, &mut status);
    let knows_pods = rules.want_pods() && pods.is_some();
    let _no_right = cgroup_namespace::enter_that_of_init();
    let mut examiner = Examiner::look();
    examiner.pods = pods.unwrap_or_default();
    let mut printed = exit::OK;
    let mut statuses = Vec::new();
    let mut processes = Vec::new();
    let mut units = BTreeSet::new();
    let mut unmatched: Vec<&Rule> = rules.rules.iter().collect();
    // Another line says why no pods are known.
    unmatched.retain(|rule| knows_pods || !rule.is_for_pods());
    let mut one = |pid: Pid, process: &ProcDir, named: bool| {
        units.extend(examiner.unit(process));
        let facts = examiner.process(process)?;
        unmatched.retain(|rule| !rule.matches(&facts));
        let decision = decide(process, &facts, &rules, &kept.state, &kept.verdicts, kept.machine);
        if decision.rule.is_some() || named {
            let (pid, comm) = (pid.as_raw_nonzero(), facts.comm.shown());
            let exe = facts.shown_exe.shown();
            let fix = fix(&decision);
            if how.json {
                processes.push(serde_json::json!({
                    "pid": pid.get(),
                    "comm": comm.to_string(),
                    "exe": exe.to_string(),
                    "rule": decision.rule.map(|rule| &rule.name),
                    "action": decision.rule.map(|rule| rule.action.as_str()),
                    "instead": decision.instead.as_ref().map(Instead::as_str),
                    "fix": fix,
                }));
            } else {
                let fix = fix.map_or(String::new(), |fix| format!("; fix: {fix}"));
                let line = format!("{pid} {comm} {exe}: {}{fix}\n", in_words(&decision));
                printed = told(printed, print(&line));
            }
        }
        Some(())
    };
    match pids {
        None => every().for_each(|(pid, process)| {
            let _gone = one(pid, &process, false);
        }),
        Some(pids) => {
            for &pid in pids {
                let number = pid.as_raw_nonzero().get();
                if let Err(why) = has_text("look at", number) {
                    statuses.push(why);
                    continue;
                }
                let process = ProcDir::of(pid);
                if process.as_ref().is_ok_and(|process| one(pid, process, true).is_some()) {
                    statuses.push(exit::OK);
                    continue;
                }
                let gone = SysError { call: "exe", errno: Errno::SRCH };
                let error = process.and_then(|process| process.exe_path()).err().unwrap_or(gone);
                statuses.push(failed("look at", number, error));
            }
        }
    }
    if status == exit::OK {
        status = exit::together(&statuses);
    }
    unmatched.retain(|_| pids.is_none());
    unmatched.iter().for_each(|rule| say_unmatched(rule, &units));
    if how.json {
        printed = print(&(escape::json(&report(&rules, &processes, &unmatched)) + "\n"));
    }
    let strict = how.strict;
    let is_wrong = rules.defects.iter().any(|defect| defect.left_out || strict)
        || strict && !unmatched.is_empty();
    if is_wrong { exit::FAILED } else { told(status, printed) }
}

/// The files and facts that decide beside the rules.
struct Kept {
    state: State,
    verdicts: Verdicts,
    machine: Machine,
}

impl Kept {
    /// Reads it. Says what cannot be read, and sets the exit status then.
    fn read(files: &AgentFiles, status: &mut u8) -> Self {
        let (state, verdicts) = (state(files), verdicts(files));
        let unknown = match (&state, &verdicts) {
            (Err(why), Err(same)) if why == same => {
                vec![("what is in quarantine, and the verdicts of canaries", why)]
            }
            (state, verdicts) => {
                let quarantine = state.as_ref().err().map(|why| ("what is in quarantine", why));
                let canaries = verdicts.as_ref().err().map(|why| ("the verdicts of canaries", why));
                quarantine.into_iter().chain(canaries).collect()
            }
        };
        for (what, why) in unknown {
            warn(format_args!("cannot tell {what}: {why}"));
            *status = exit::NOT_PERMITTED;
        }
        let (state, verdicts) = (state.unwrap_or_default(), verdicts.unwrap_or_default());
        Self { state, verdicts, machine: Machine::look() }
    }
}

/// Returns the pods of this node, if a rule asks for pods. `None` if they cannot be listed; says so, and sets the exit status.
fn pods(rules: &Rules, status: &mut u8) -> Option<Pods> {
    if !rules.want_pods() {
        return Some(Pods::default());
    }
    let pods = pod_watch::list(PATIENCE);
    if let Err(why) = &pods {
        let why = why.shown();
        warn(format_args!(
            "cannot list the pods of this node: {why}; fix: run it in the agent's pod"
        ));
        *status = exit::FAILED;
    }
    pods.ok()
}

/// Returns what an operator can do about a process that the agent leaves alone.
fn fix(decision: &Decision<'_>) -> Option<String> {
    let rule = decision.rule?;
    match decision.instead.as_ref()? {
        // If the rule says how to measure, the agent runs the canary itself.
        Instead::CanaryRequired if rule.measure.is_none() => {
            Some(format!("tiexecctl canary --rule {} --counter CMD", rule.name))
        }
        Instead::HostSplits => {
            Some(format!("write canary = \"required\" or \"off\" into the rule {}", rule.name))
        }
        _ => None,
    }
}

/// Makes the object of `--json`.
fn report(rules: &Rules, processes: &[Value], unmatched: &[&Rule]) -> Value {
    let place = |rule: &Rule| {
        let (file, line) = &rule.place;
        serde_json::json!({
            "rule": rule.name,
            "file": file.shown().to_string(),
            "line": line,
            "no_such_file": rule.names_no_file(),
        })
    };
    let defect = |defect: &Defect| {
        serde_json::json!({
            "file": defect.file.shown().to_string(),
            "defect": defect.what,
            "fix": defect.fix,
            "ignored": defect.left_out,
        })
    };
    serde_json::json!({
        "schema": SCHEMA,
        "kind": "rules",
        "rules": rules.rules.len(),
        "processes": processes,
        "unmatched": unmatched.iter().map(|rule| place(rule)).collect::<Vec<_>>(),
        "defects": rules.defects.iter().map(defect).collect::<Vec<_>>(),
    })
}

/// Most near names of units that a message has.
const NAMES: usize = 3;

/// Warns that no process matches the rule. `units` are those of all processes.
fn say_unmatched(rule: &Rule, units: &BTreeSet<String>) {
    let (Rule { name, .. }, (file, line)) = (rule, &rule.place);
    let file = file.shown();
    let (seen, as_root) = match rustix::process::geteuid().is_root() {
        true => ("", ""),
        false => (" that this user may look at", "run it as root, or "),
    };
    let why = if rule.names_no_file() {
        ", and no file has the path of its exe; fix: edit exe there".to_owned()
    } else if let Some(unit) = rule.names_no_unit(units.iter()) {
        let near = units.iter().filter(|its| is_near(its, unit)).take(NAMES);
        let near: Vec<String> = near.map(|its| its.shown().to_string()).collect();
        let such = match near.is_empty() {
            true => String::new(),
            false => format!(", such as {}", near.join(" or ")),
        };
        let unit = unit.shown();
        format!(
            ", and no process is in a unit {unit}; fix: edit unit there{such}, or start the unit"
        )
    } else {
        format!("; fix: {as_root}edit exe, unit, cgroup or user there, or start the program")
    };
    warn(format_args!("rule {name} ({file}, line {line}) matches no process{seen}{why}"));
}

/// Warms the programs of rules that act; returns the exit status.
fn warm_programs(conf_dir: &Path) -> u8 {
    if is_switched_off() {
        return print("nothing is warmed: /etc/tiexec/disabled is there\n");
    }
    let rules = Rules::read(conf_dir);
    rules.defects.iter().for_each(warn);
    let mut programs: BTreeSet<PathBuf> = rules.programs().into_iter().collect();
    // A rule without a path stands for the running programs that it matches. If an upgrade has replaced a running
    // program, the new file at its path is warmed.
    let examiner = Examiner::look();
    for (_, process) in every() {
        let Some(facts) = examiner.process(&process) else { continue };
        if rules.of(&facts).is_some_and(Rule::acts_here) {
            programs.extend(facts.exe.map(|exe| OsString::from_vec(exe).into()));
        }
    }
    let status = warm::programs(&programs);
    if rules.defects.iter().any(|defect| defect.left_out) { exit::FAILED } else { status }
}

/// Reads the state. If the agent never ran on this machine, the state is empty.
fn state(files: &AgentFiles) -> Result<State, String> {
    if !files.state_dir.exists() {
        return Ok(State::default());
    }
    Store::open(&files.state_dir).and_then(|store| store.look())
}

fn verdicts(files: &AgentFiles) -> Result<Verdicts, String> {
    if !files.state_dir.exists() {
        return Ok(Verdicts::default());
    }
    Canaries::open(&files.state_dir).and_then(|canaries| canaries.look())
}

fn in_words(decision: &Decision<'_>) -> String {
    let Some(rule) = decision.rule else { return "no rule: observe".to_owned() };
    let (name, action) = (&rule.name, rule.action.as_str());
    match &decision.instead {
        None => format!("rule {name}: {action}"),
        Some(instead) => format!("rule {name}: observe instead of {action}: {}", instead.as_str()),
    }
}
