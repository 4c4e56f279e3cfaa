//! The rules, from the administrator's files: the programs that the agent attaches to.
//!
//! The agent reads the files `*.toml` of a directory in the order of their names. The first rule that matches a process
//! decides. The agent leaves a process alone if no rule matches it. A rule never matches a command line, because the
//! process can change its own command line.
//!
//! If a file has a mistake, the agent reports the file and ignores all of it; the other files stay in force. If a key
//! is unknown, the agent reports the key and keeps the rest of its rule in force, because the file may be for a newer
//! version.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tiexec_core::config::{BackingChoice, Settings};
use tiexec_core::escape::AsShown;
use tiexec_core::pattern::{Pattern, Slashes};
use tiexec_core::setting::{At, Setting};
use tiexec_core::value::{parse_bytes, parse_duration};
use tiexec_remap::systemd_units::with_kind;
use tiexec_remap::trusted_directory::{self, Trust};
use tiexec_sys::Errno;
use toml::{Spanned, Table, Value};

use crate::matching_files::matching_files;
use crate::measure::Measure;
use crate::nodes::NodeShare;
use crate::pods::{self, PREFIX, Pod};
use crate::processes::Process;
use crate::verdicts::by_copies;

/// The directory of the rules.
pub const DIRECTORY: &str = "/etc/tiexec/conf.d";
/// The default of `min-age`.
pub const MIN_AGE: Duration = Duration::from_secs(10);
/// The keys of a rule, besides [settings](At::Rule). The agent ignores all others, with a warning.
pub const KEYS: [&str; 17] = [
    "name",
    "exe",
    "unit",
    "cgroup",
    "user",
    "pod",
    "min-text",
    "min-age",
    "action",
    "nodes",
    "canary",
    "canary-slice",
    "canary-counter",
    "canary-prometheus",
    "canary-query",
    "canary-guard",
    "canary-guard-query",
];
/// Reads the value of a key of the table `[agent]`.
type ReadLimit = fn(&mut Limits, &Value) -> Result<(), String>;

/// The keys of the table `[agent]`, each with what reads its value.
const AGENT_KEYS: [(&str, ReadLimit); 2] = [
    ("max-copies", |limits, value| {
        let Value::String(text) = value else {
            return Err(format!("{} is not a size in quotes such as \"1GiB\"", value_shown(value)));
        };
        limits.max_copies = parse_bytes(text).map_err(|error| error.to_string())?;
        Ok(())
    }),
    ("max-memory-pressure", |limits, value| {
        let percent = match value {
            Value::Integer(percent) => Some(*percent as f64),
            Value::Float(percent) => Some(*percent),
            _ => None,
        };
        let Some(percent) = percent.filter(|percent| (0.0..=100.0).contains(percent)) else {
            return Err(format!("{} is not a percentage from 0 to 100", value_shown(value)));
        };
        limits.max_memory_pressure = percent;
        Ok(())
    }),
];

/// The names of the keys of the table `[agent]`.
pub fn agent_keys() -> impl Iterator<Item = &'static str> {
    AGENT_KEYS.iter().map(|(key, _)| *key)
}

/// Most bytes of one file.
const LONGEST: u64 = 1 << 20;

/// The action of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The agent leaves the process alone, whatever later rules say. For a rule on trial, which may get another action.
    Observe,
    /// The agent brings the program's file into huge pages of the page cache, for later starts.
    Warm,
    /// The agent attaches to the process.
    Attach,
    /// As `Observe`, for processes that the agent must never touch.
    Never,
}

impl Action {
    const ALL: [Self; 4] = [Self::Observe, Self::Warm, Self::Attach, Self::Never];

    /// Returns its name in a rule.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Warm => "warm",
            Self::Attach => "attach",
            Self::Never => "never",
        }
    }

    /// Returns whether the action changes a process or the page cache.
    pub const fn acts(self) -> bool {
        matches!(self, Self::Warm | Self::Attach)
    }
}

/// One rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Its name, which reports and the quarantine use.
    pub name: String,
    /// Its file, and the line of that file in which it begins.
    pub place: (PathBuf, usize),
    /// The path of the program.
    exe: Option<Pattern>,
    /// The unit of the system's manager.
    unit: Option<Pattern>,
    /// The path of the cgroup.
    cgroup: Option<Pattern>,
    /// The real user id.
    user: Option<u32>,
    /// The labels or annotations of the process's pod.
    pod: BTreeMap<String, String>,
    /// Least bytes of text.
    pub min_text: u64,
    /// How old the program must be.
    pub min_age: Duration,
    /// See [`Action`].
    pub action: Action,
    /// The nodes on which it acts.
    pub nodes: NodeShare,
    /// True if the rule attaches only to builds that a canary on this machine has found to be better.
    pub needs_canary: bool,
    /// True if the rule has a key that decides whether it needs a canary. A rule without such a key attaches to nothing
    /// where the host splits huge pages.
    pub says_canary: bool,
    /// The measurement of the agent's own canary; `None` if the agent starts no canary for this rule.
    pub measure: Option<Measure>,
    /// The options of the attach.
    pub settings: Settings,
}

/// The name of the rule by which the agent treats programs that `tiexec` hands over. No rule of a file has such a name.
pub const LAUNCHED: &str = "(launched)";

impl Rule {
    /// Returns the rule for programs that `tiexec` hands over. It is in no file, and [`matches`](Self::matches) is not
    /// asked.
    pub(crate) fn of_launches(min_age: Duration, settings: Settings) -> Self {
        Self {
            name: LAUNCHED.to_owned(),
            place: (PathBuf::new(), 0),
            exe: None,
            unit: None,
            cgroup: None,
            user: None,
            pod: BTreeMap::new(),
            min_text: 0,
            min_age,
            action: Action::Attach,
            nodes: NodeShare::default(),
            needs_canary: false,
            // The user has asked for huge text, also where the host splits huge pages.
            says_canary: true,
            measure: None,
            settings,
        }
    }

    /// Returns whether the rule attaches only where a canary has found that huge pages help.
    pub fn waits_for_canary(&self) -> bool {
        self.action == Action::Attach && self.needs_canary
    }

    /// Returns whether the rule acts on this node.
    pub fn acts_here(&self) -> bool {
        self.action.acts() && self.nodes.has_this_node(&self.name)
    }

    /// Returns the options for a process: the rule's options, reduced as the pod's annotations ask.
    ///
    /// # Errors
    /// The annotation of the pod that cannot be applied to the rule, and why.
    pub fn settings_for(&self, process: &Process) -> Result<Settings, String> {
        let Some(pod) = &process.pod else { return Ok(self.settings.clone()) };
        let settings = pod.settings(&self.settings)?;
        if self.needs_canary && settings != self.settings {
            return Err("a rule with a canary leaves a pod no options".to_owned());
        }
        Ok(settings)
    }

    /// Returns whether the rule matches pods, and would match this pod.
    pub fn asks_for(&self, pod: &Pod) -> bool {
        !self.pod.is_empty() && self.fits(Some(pod))
    }

    fn fits(&self, pod: Option<&Pod>) -> bool {
        self.pod.iter().all(|(key, value)| pod.and_then(|pod| pod.keys.get(key)) == Some(value))
    }

    /// Returns whether the rule matches this process.
    pub fn matches(&self, process: &Process) -> bool {
        let fits = |pattern: &Option<Pattern>, value: Option<&[u8]>| {
            pattern.as_ref().is_none_or(|pattern| {
                let text = value.and_then(|value| std::str::from_utf8(value).ok());
                text.is_some_and(|text| pattern.matches(text))
            })
        };
        // A pod controls its own paths, and can deceive only about itself. A rule for pods therefore accepts the path
        // that the process shows.
        let exe = match &process.pod {
            Some(_) if !self.pod.is_empty() => Some(process.shown_exe.as_slice()),
            _ => process.exe.as_deref(),
        };
        self.fits(process.pod.as_ref())
            && fits(&self.exe, exe)
            && fits(&self.unit, process.unit.as_deref().map(str::as_bytes))
            && fits(&self.cgroup, process.cgroup.as_deref())
            && self.user.is_none_or(|user| process.uids.first() == Some(&user))
    }

    /// Returns whether the rule has a path that no file has.
    pub fn names_no_file(&self) -> bool {
        self.exe.as_ref().is_some_and(|pattern| matching_files(pattern).is_empty())
    }

    /// Returns the unit of the rule, if none of these units has its name.
    pub fn names_no_unit<'a>(&self, mut units: impl Iterator<Item = &'a String>) -> Option<&str> {
        let unit = self.unit.as_ref()?;
        (!units.any(|its| unit.matches(its))).then(|| unit.as_str())
    }

    /// Returns whether only processes of pods match.
    pub fn is_for_pods(&self) -> bool {
        !self.pod.is_empty()
    }

    /// Returns whether the rule matches every process that runs this file.
    fn takes_all_of(&self, program: &Path) -> bool {
        let by_path =
            |pattern: &Pattern| program.to_str().is_some_and(|program| pattern.matches(program));
        self.exe.as_ref().is_none_or(by_path)
            && self.unit.is_none()
            && self.cgroup.is_none()
            && self.user.is_none()
            && self.pod.is_empty()
    }
}

/// Limits of all attaches together: the table `[agent]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Most bytes of private copies of text, over all processes.
    pub max_copies: u64,
    /// The percentage of `some avg10` in `/proc/pressure/memory` above which the agent attaches to nothing.
    pub max_memory_pressure: f64,
}

impl Default for Limits {
    fn default() -> Self {
        let info = rustix::system::sysinfo();
        let memory = info.totalram.saturating_mul(info.mem_unit.into());
        Self { max_copies: memory / 10, max_memory_pressure: 10.0 }
    }
}

/// A mistake in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The file, or the directory.
    pub file: PathBuf,
    /// The mistake.
    pub what: String,
    /// The command or edit that mends it.
    pub fix: Option<String>,
    /// True if the agent ignores the whole file.
    pub left_out: bool,
    /// True if the kernel could not read it at the moment, so that its rules are not known.
    pub passing: bool,
}

impl Defect {
    /// The defect of a directory.
    fn of_directory(path: &Path, what: String, fix: Option<String>) -> Self {
        Self { file: path.to_owned(), what, fix, left_out: true, passing: false }
    }

    /// The failure to open a directory, or to list it.
    fn unread(path: &Path, errno: Option<Errno>, what: String, fix: String) -> Self {
        let passing = errno.is_some_and(may_pass);
        let fix = if passing { PASSING.to_owned() } else { fix };
        Self { passing, ..Self::of_directory(path, what, Some(fix)) }
    }
}

/// The fix where the kernel lacks memory or descriptors, or the disk fails.
const PASSING: &str = "free memory or descriptors, or look for errors of the disk in dmesg";

/// Returns whether a later read may succeed, although nobody changes the file.
fn may_pass(errno: Errno) -> bool {
    use rustix::io::Errno as E;
    let passing = [E::MFILE, E::NFILE, E::NOMEM, E::IO, E::INTR, E::AGAIN, E::STALE, E::TIMEDOUT];
    passing.into_iter().any(|one| Errno::from(one) == errno)
}

/// The defect of a file. An edit mends it, unless `fix` says otherwise.
#[derive(Debug)]
struct Mistake {
    what: String,
    fix: Option<String>,
    passing: bool,
}

impl From<String> for Mistake {
    fn from(what: String) -> Self {
        Self { what, fix: None, passing: false }
    }
}

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (file, what) = (self.file.shown(), &self.what);
        match (&self.fix, self.left_out) {
            (Some(fix), true) => write!(f, "cannot read {file}: {what}; fix: {fix}"),
            (None, true) => {
                write!(f, "cannot use {file}: {what}; fix: edit it, then tiexecctl rules check")?;
                match self.file.parent().filter(|directory| *directory != Path::new(DIRECTORY)) {
                    Some(other) if other.is_absolute() => {
                        write!(f, " --conf-dir {}", other.shown())
                    }
                    _ => Ok(()),
                }
            }
            (_, false) => write!(f, "{file} ignored in part: {what}"),
        }
    }
}

/// All rules in force.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rules {
    /// The rules, in the order in which the agent tries them.
    pub rules: Vec<Rule>,
    /// See [`Limits`].
    pub limits: Limits,
    /// The mistakes.
    pub defects: Vec<Defect>,
}

impl Rules {
    /// Reads all files of the directory. A missing directory is a defect, except [`DIRECTORY`].
    pub fn read(directory: &Path) -> Self {
        let mut all = Self::default();
        let user = rustix::process::geteuid().as_raw();
        let rule = trusted_directory::Rule { user, trust: Trust::Own { sticky: true }, make: &[] };
        let opened = match trusted_directory::open(directory, &rule) {
            Ok(Some((opened, _))) => opened,
            Ok(None) if directory == Path::new(DIRECTORY) => return all,
            Ok(None) => {
                let what = "no such directory".to_owned();
                let fix = format!("mkdir -p {}", directory.word());
                all.defects.push(Defect::of_directory(directory, what, Some(fix)));
                return all;
            }
            Err(distrust) => {
                let (what, fix) = (distrust.to_string(), distrust.fix());
                all.defects.push(Defect::unread(directory, distrust.source, what, fix));
                return all;
            }
        };
        let names = match names(&opened) {
            Ok(names) => names,
            Err(errno) => {
                let fix = "run it as root".to_owned();
                all.defects.push(Defect::unread(directory, Some(errno), errno.to_string(), fix));
                return all;
            }
        };
        for name in names {
            let path = directory.join(OsStr::from_bytes(&name));
            let before = all.clone();
            let taken = text(&opened, &name, user, &path)
                .and_then(|text| all.take(&path, &text).map_err(Mistake::from));
            if let Err(Mistake { what, fix, passing }) = taken {
                all = before;
                all.defects.push(Defect { file: path, what, fix, left_out: true, passing });
            }
        }
        if let Some(rule) = all.rules.iter().find(|rule| !rule.pod.is_empty())
            && let Some(why) = pods::unavailable()
        {
            let what = format!("rule {} matches nothing, as no pods are known: {why}", rule.name);
            let defect = Defect::of_directory(directory, what, None);
            all.defects.push(Defect { left_out: false, ..defect });
        }
        all
    }

    /// Returns why not all rules are known at the moment, if the kernel could not read a file of them.
    pub fn unknown(&self) -> Option<&Defect> {
        self.defects.iter().find(|defect| defect.passing)
    }

    /// Returns why the directory itself cannot be read, if it cannot.
    pub fn unread(&self, directory: &Path) -> Option<&Defect> {
        self.defects.iter().find(|defect| defect.left_out && defect.file == directory)
    }

    /// Returns whether a rule matches pods and the agent can learn about pods.
    pub fn want_pods(&self) -> bool {
        pods::unavailable().is_none() && self.rules.iter().any(|rule| !rule.pod.is_empty())
    }

    /// Returns the rule that decides about a process.
    pub fn of(&self, process: &Process) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.matches(process))
    }

    /// Lists the files that match `exe` of a rule that acts. A file is not listed if an earlier rule matches every
    /// process that runs it.
    pub fn programs(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let Some(pattern) = rule.exe.as_ref().filter(|_| rule.acts_here()) else { continue };
            found.extend(matching_files(pattern).into_iter().filter(|path| {
                let before = self.rules.get(..index).unwrap_or_default();
                !before.iter().any(|earlier| !earlier.action.acts() && earlier.takes_all_of(path))
            }));
        }
        found
    }

    /// Returns the smallest `min-age` of the rules that act; `None` if no rule acts.
    pub fn least_age(&self) -> Option<Duration> {
        self.rules.iter().filter(|rule| rule.action.acts()).map(|rule| rule.min_age).min()
    }

    /// Adds the rules of a file.
    fn take(&mut self, path: &Path, text: &str) -> Result<(), String> {
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's own text shows the line with a marker below it, and takes several lines.
            let line = line_at(text, error.span().map_or(0, |span| span.start));
            format!("line {line} is no TOML: {}", error.message().shown())
        })?;
        let mut unknown = Vec::new();
        let places = toml::from_str::<Places>(text).unwrap_or_default().rule;
        let mut lines = places.iter().map(|place| line_at(text, place.span().start));
        if let Some(agent) = table.remove("agent") {
            let Value::Table(agent) = agent else {
                return Err("[agent] is not a table".to_owned());
            };
            self.take_limits(agent, &mut unknown)?;
        }
        match table.remove("rule") {
            None => {}
            Some(Value::Array(rules)) => {
                for (index, rule) in rules.into_iter().enumerate() {
                    let number = index + 1;
                    let Value::Table(rule) = rule else {
                        return Err(format!("rule {number} is not a table"));
                    };
                    let name = rule.get("name").and_then(Value::as_str).map(|name| {
                        let start: String = name.chars().take(64).collect();
                        format!(" ({})", start.shown())
                    });
                    let name = name.unwrap_or_default();
                    let place = (path.to_owned(), lines.next().unwrap_or(1));
                    let rule = rule_of(rule, place, &mut unknown)
                        .map_err(|what| format!("rule {number}{name}: {what}"))?;
                    if self.rules.iter().any(|other| other.name == rule.name) {
                        return Err(format!(
                            "rule {number}{name}: there is a rule {:?} already",
                            rule.name
                        ));
                    }
                    self.rules.push(rule);
                }
            }
            Some(_) => return Err("rules begin with [[rule]]".to_owned()),
        }
        unknown.extend(table.into_iter().map(|(key, _)| key));
        if !unknown.is_empty() {
            let unknown: Vec<String> = unknown.iter().map(|key| key.shown().to_string()).collect();
            let what = format!("no such key: {}", unknown.join(", "));
            let defect = Defect::of_directory(path, what, None);
            self.defects.push(Defect { left_out: false, ..defect });
        }
        Ok(())
    }

    fn take_limits(&mut self, mut agent: Table, unknown: &mut Vec<String>) -> Result<(), String> {
        for (key, read) in AGENT_KEYS {
            if let Some(value) = agent.remove(key) {
                read(&mut self.limits, &value).map_err(|what| format!("[agent]: {key}: {what}"))?;
            }
        }
        unknown.extend(agent.into_iter().map(|(key, _)| format!("agent.{key}")));
        Ok(())
    }
}

/// The places of the rules in a file.
#[derive(Deserialize, Default)]
struct Places {
    #[serde(default)]
    rule: Vec<Spanned<Table>>,
}

/// Returns the number of the line that has this byte.
fn line_at(text: &str, start: usize) -> usize {
    text.bytes().take(start).filter(|&byte| byte == b'\n').count() + 1
}

/// Removes the keys that are unknown, and returns them.
fn set_aside(table: &mut Table, is_known: impl Fn(&str) -> bool) -> Vec<String> {
    let unknown: Vec<String> = table.keys().filter(|key| !is_known(key)).cloned().collect();
    table.retain(|key, _| is_known(key));
    unknown
}

fn rule_of(
    mut table: Table,
    place: (PathBuf, usize),
    unknown: &mut Vec<String>,
) -> Result<Rule, String> {
    let is_known = |key: &str| KEYS.contains(&key) || Setting::is_at(At::Rule, key);
    unknown.extend(set_aside(&mut table, is_known));
    let name = name_of(&mut table)?;
    let exe = pattern_of(&mut table, "exe")?;
    let unit = pattern_of(&mut table, "unit")?;
    let cgroup = pattern_of(&mut table, "cgroup")?;
    let user = user_of(table.remove("user"))?;
    let pod = pod_of(table.remove("pod"))?;
    let min_text = value_of(&mut table, "min-text", parse_bytes)?.unwrap_or(0);
    let min_age = value_of(&mut table, "min-age", parse_duration)?.unwrap_or(MIN_AGE);
    let action = action_of(&mut table)?;
    let nodes = text_of(&mut table, "nodes")?;
    let nodes = nodes.map_or(Ok(NodeShare::default()), |text| text.parse())?;
    let canary = text_of(&mut table, "canary")?;
    let needs_canary = match canary.as_deref() {
        None | Some("off") => false,
        Some("required") => true,
        Some(other) => return Err(format!("canary {other:?} is not off or required")),
    };
    let measure = Measure::take(|key| text_of(&mut table, key))?;
    if measure.is_some() && !(needs_canary && action == Action::Attach) {
        return Err("canary-* keys need action = \"attach\" and canary = \"required\"".to_owned());
    }
    let is_open = exe.is_none() && unit.is_none() && cgroup.is_none() && user.is_none();
    if action.acts() && is_open && pod.is_empty() {
        return Err(format!(
            "it would {} every process: it has no exe, unit, cgroup, user or pod",
            action.as_str()
        ));
    }
    Ok(Rule {
        name,
        place,
        exe,
        unit,
        cgroup,
        user,
        pod,
        min_text,
        min_age,
        action,
        nodes,
        needs_canary,
        says_canary: canary.is_some(),
        measure,
        settings: settings_of(table, needs_canary)?,
    })
}

fn name_of(table: &mut Table) -> Result<String, String> {
    let name = text_of(table, "name")?.ok_or("it has no name")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        return Err("a name is up to 64 of the characters A-Z a-z 0-9 . _ -".to_owned());
    }
    Ok(name)
}

fn pattern_of(table: &mut Table, key: &str) -> Result<Option<Pattern>, String> {
    let Some(text) = text_of(table, key)? else { return Ok(None) };
    let text = if key == "unit" { with_kind(&text) } else { text };
    let read = Pattern::new(&text, Slashes::Apart);
    read.map(Some).map_err(|error| format!("{key} {text:?} is not a pattern: {error}"))
}

fn user_of(value: Option<Value>) -> Result<Option<u32>, String> {
    match value {
        None => Ok(None),
        Some(Value::Integer(id)) => {
            u32::try_from(id).map(Some).map_err(|_range| format!("{id} is not a user ID"))
        }
        Some(Value::String(name)) => {
            user_id(&name).map(Some).ok_or_else(|| format!("there is no user {name:?}"))
        }
        Some(_) => Err("user is a name or a number".to_owned()),
    }
}

fn action_of(table: &mut Table) -> Result<Action, String> {
    let Some(text) = text_of(table, "action")? else { return Ok(Action::Observe) };
    let action = Action::ALL.into_iter().find(|action| action.as_str() == text);
    action.ok_or_else(|| format!("action {text:?} is not observe, warm, attach or never"))
}

/// Reads the options of the attach: all keys that are left.
fn settings_of(table: Table, needs_canary: bool) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for (key, value) in table {
        if needs_canary && !matches!(key.as_str(), "backing" | "edges") {
            return Err(format!("a rule with a canary has no {key}: no canary is about that"));
        }
        let value = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Boolean(yes) => (if yes { "yes" } else { "no" }).to_owned(),
            _ => return Err(format!("{key} is a text, a number, true or false")),
        };
        settings.take_setting(&key, &value).map_err(|malformed| malformed.to_string())?;
    }
    if !needs_canary {
        return Ok(settings);
    }
    if settings.backing == BackingChoice::Pagecache {
        let what = "a canary cannot be of backing pagecache, which cannot be taken back";
        return Err(what.to_owned());
    }
    Ok(by_copies(settings))
}

/// Reads the labels or annotations that a pod must have. Only keys with the agent's prefix are allowed, because the
/// agent keeps no others.
fn pod_of(value: Option<Value>) -> Result<BTreeMap<String, String>, String> {
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let wrong = || format!("pod is a table such as {{ \"{PREFIX}enable\" = \"true\" }}");
    let Value::Table(table) = value else { return Err(wrong()) };
    if table.is_empty() {
        return Err(wrong());
    }
    let keys = table.into_iter().map(|(key, value)| match value {
        Value::String(_) if !key.starts_with(PREFIX) => {
            Err(format!("pod: {key:?} does not begin with {PREFIX}"))
        }
        Value::String(text) => Ok((key, text)),
        _ => Err(wrong()),
    });
    keys.collect()
}

/// Writes a value as it stands in a file, or its type.
fn value_shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(yes) => yes.to_string(),
        other => format!("a value of type {}", other.type_str()),
    }
}

fn text_of(table: &mut Table, key: &str) -> Result<Option<String>, String> {
    match table.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key} is a text in quotes")),
    }
}

fn value_of<T, E: std::fmt::Display>(
    table: &mut Table,
    key: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, String> {
    let text = text_of(table, key)?;
    text.map(|text| parse(&text).map_err(|error| format!("{key}: {error}"))).transpose()
}

/// Looks a user up in `/etc/passwd`: the static program has no other source.
fn user_id(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Lists the files, in the order of their names.
fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.ends_with(b".toml") && !name.starts_with(b".") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a file, if only root and this user can write to it.
fn text(directory: &OwnedFd, name: &[u8], user: u32, path: &Path) -> Result<String, Mistake> {
    // Without `NONBLOCK`, opening a FIFO would block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let because = |what: String, fix: &str| Mistake {
        what,
        fix: Some(fix.replace("FILE", &path.word().to_string())),
        passing: false,
    };
    let failed = |errno: rustix::io::Errno| match errno {
        rustix::io::Errno::LOOP => {
            because("it is a symbolic link".to_owned(), "put the file itself there")
        }
        errno if may_pass(errno.into()) => {
            Mistake { passing: true, ..because(Errno::from(errno).to_string(), PASSING) }
        }
        errno => because(Errno::from(errno).to_string(), "chmod a+r FILE"),
    };
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(because("it is not a regular file".to_owned(), "leave .toml out of its name"));
    }
    if stat.st_uid != 0 && stat.st_uid != user {
        let what = format!("it belongs to user {}", stat.st_uid);
        return Err(because(what, "chown root FILE"));
    }
    if stat.st_mode & 0o022 != 0 {
        let what = format!("it is writable by others (mode {:04o})", stat.st_mode & 0o7777);
        return Err(because(what, "chmod go-w FILE"));
    }
    let mut text = String::new();
    let read = File::from(file).take(LONGEST + 1).read_to_string(&mut text);
    read.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(errno) => failed(errno),
        // It is not UTF-8.
        None => error.to_string().into(),
    })?;
    if text.len() as u64 > LONGEST {
        return Err("it is longer than 1 MiB".to_owned().into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Rules, String> {
        let mut rules = Rules::default();
        rules.take(Path::new("a.toml"), text).map(|()| rules)
    }

    fn process(exe: &str, unit: Option<&str>) -> Process {
        Process {
            exe: Some(exe.as_bytes().to_vec()),
            unit: unit.map(str::to_owned),
            cgroup: Some(b"/system.slice/a.service".to_vec()),
            uids: vec![7; 4],
            ..Process::default()
        }
    }

    #[test]
    fn the_fix_checks_the_directory_of_the_file() {
        let fix_of = |file: &str| {
            let file = Path::new(file);
            let defect = Defect::of_directory(file, "x".to_owned(), None);
            let told = defect.to_string();
            told.rsplit_once("then ").map(|(_, fix)| fix.to_owned())
        };
        let usual = "tiexecctl rules check";
        assert_eq!(fix_of("/etc/tiexec/conf.d/a.toml").as_deref(), Some(usual));
        let other = fix_of("/srv/rules/a.toml");
        assert_eq!(other.as_deref(), Some("tiexecctl rules check --conf-dir /srv/rules"));
    }

    #[test]
    fn a_line_that_is_no_toml_is_named_on_one_line() {
        let why = of("# ours\n[[rule]\n").unwrap_err();
        assert!(why.starts_with("line 2 is no TOML: unclosed"), "{why}");
    }

    #[test]
    fn a_canary_is_about_copies_and_edges_only() {
        let rule = |more: &str| {
            of(&format!(
                "[[rule]]\nname = \"a\"\nexe = \"/a\"\naction = \"attach\"\ncanary = \"required\"\n{more}"
            ))
        };
        let rules = rule("edges = \"pad\"").unwrap();
        assert!(rules.rules[0].needs_canary && rules.defects.is_empty());
        assert_eq!(rules.rules[0].settings.backing, BackingChoice::Image);
        for odd in ["backing = \"pagecache\"", "max-huge-pages = 4", "numa = \"local\""] {
            assert!(rule(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_rule_as_the_manual_has_it() {
        let rules = of("[agent]\nmax-copies = \"1GiB\"\nmax-memory-pressure = 5\n\
            [[rule]]\nname = \"postgres\"\nexe = \"/usr/lib/postgresql/*/bin/postgres\"\nmin-text = \"4MiB\"\n\
            min-age = \"3s\"\naction = \"attach\"\nbacking = \"image\"\nmax-huge-pages = 40\npheasant = \"required\"\n")
        .unwrap();
        let [rule] = &rules.rules[..] else { panic!("{rules:?}") };
        assert_eq!((rule.min_text, rule.min_age), (4 << 20, Duration::from_secs(3)));
        assert_eq!((rule.action, rule.settings.backing), (Action::Attach, BackingChoice::Image));
        assert!(rule.settings.max_huge_pages.is_some());
        assert_eq!(rules.limits, Limits { max_copies: 1 << 30, max_memory_pressure: 5.0 });
        let [defect] = &rules.defects[..] else { panic!("{rules:?}") };
        assert!(!defect.left_out && defect.what.contains("pheasant"), "{defect}");
        assert!(rule.matches(&process("/usr/lib/postgresql/16/bin/postgres", None)));
        assert!(!rule.matches(&process("/usr/lib/postgresql/16/x/bin/postgres", None)));
        assert!(!rule.matches(&Process { exe: None, ..process("", None) }));
    }

    #[test]
    fn all_that_a_rule_names_must_fit() {
        let text = "[[rule]]\nname=\"a\"\naction=\"attach\"\nunit=\"pg@*\"\nuser=7\ncgroup=\"/system.slice/**\"";
        let rules = of(text).unwrap();
        assert!(rules.of(&process("/x", Some("pg@a.service"))).is_some());
        assert!(rules.of(&process("/x", Some("pg@a.scope"))).is_none());
        assert!(rules.of(&process("/x", None)).is_none());
        let other = Process { uids: vec![8, 7, 7, 7], ..process("/x", Some("pg@a.service")) };
        assert!(rules.of(&other).is_none(), "the real user id decides");
    }

    #[test]
    fn a_pod_is_matched_by_all_its_keys() {
        let text = "[[rule]]\nname=\"a\"\naction=\"attach\"\nexe=\"/usr/sbin/*\"\n\
            pod = { \"tiexec.io/enable\" = \"true\", \"tiexec.io/tier\" = \"db\" }";
        let rules = of(text).unwrap();
        let process = |exe: &str, keys: &[(&str, &str)]| {
            let keys =
                keys.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            let pod = crate::pods::Pod { keys, ..Default::default() };
            let (pod, shown_exe) = (Some(pod), exe.as_bytes().to_vec());
            Process { exe: None, shown_exe, pod, ..process("", None) }
        };
        let both = [("tiexec.io/enable", "true"), ("tiexec.io/tier", "db")];
        assert!(rules.of(&process("/usr/sbin/mariadbd", &both)).is_some());
        assert!(rules.of(&process("/bin/sh", &both)).is_none());
        assert!(rules.of(&process("/usr/sbin/mariadbd", &both[..1])).is_none());
        let no_pod = Process { pod: None, ..process("/usr/sbin/mariadbd", &both) };
        assert!(rules.of(&no_pod).is_none());
        // A rule that does not match pods does not accept a path that a pod shows.
        let by_path = of("[[rule]]\nname=\"a\"\naction=\"attach\"\nexe=\"/usr/sbin/*\"").unwrap();
        assert!(by_path.of(&process("/usr/sbin/mariadbd", &both)).is_none());
    }

    #[test]
    fn a_mistake_is_named() {
        for (text, says) in [
            ("[[rule]", "TOML"),
            ("rule = 1", "[[rule]]"),
            ("[[rule]]\nexe = \"/a\"", "rule 1: it has no name"),
            ("[[rule]]\nname = \"a b\"", "a name is"),
            ("[[rule]]\nname = \"a\"\nexe = \"[\"", "is not a pattern"),
            ("[[rule]]\nname = \"a\"\naction = \"atach\"\nexe=\"/a\"", "\"atach\" is not"),
            ("[[rule]]\nname = \"a\"\naction = \"attach\"", "every process"),
            (
                "[[rule]]\nname = \"a\"\nmin-age = \"soon\"",
                "rule 1 (a): min-age: \"soon\" is not a duration",
            ),
            (
                "[[rule]]\nname = \"a\"\nmin-text = \"x\"",
                "rule 1 (a): min-text: \"x\" is not a size",
            ),
            ("[[rule]]\nname = \"a\"\ncanary-slice = \"x\"", "rule 1 (a): canary-slice: \"x\""),
            ("[agent]\nmax-copies = \"x\"", "[agent]: max-copies: \"x\" is not a size"),
            (
                "[agent]\nmax-memory-pressure = 200",
                "max-memory-pressure: 200 is not a percentage from",
            ),
            ("[[rule]]\nname = \"a\"\nnodes = \"half\"", "share of the nodes"),
            ("[[rule]]\nname = \"a\"\nbacking = \"x\"", "backing=x"),
            ("[[rule]]\nname = \"a\"\n[[rule]]\nname = \"a\"", "rule 2 (a): there is a rule"),
            ("[[rule]]\nname = \"a\"\nuser = \"nobody-of-that-name\"", "no user"),
            ("[agent]\nmax-copies = 3", "max-copies: 3 is not a size"),
            ("[[rule]]\nname = \"a\"\naction = \"attach\"\npod = {}", "pod is a table"),
            ("[[rule]]\nname = \"a\"\npod = { \"tiexec.io/enable\" = true }", "pod is a table"),
            ("[[rule]]\nname = \"a\"\npod = { app = \"db\" }", "\"app\" does not begin with"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
