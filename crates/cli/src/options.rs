//! The command lines, as clap sees them: syntax only.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use tiexec_core::config::{BackingChoice, Edges, Settings};
use tiexec_core::setting::Group;
use tiexec_core::value::{parse_duration, parse_positive_duration};
use tiexec_remap::store::setup::Size;

use crate::setting_options::{OfAttach, OfLaunch, SettingOptions, heading};

/// The settings that options of `tiexec PROGRAM` say.
pub type LaunchSettings = SettingOptions<OfLaunch>;
/// The settings that options of `tiexecctl attach` say.
pub type AttachSettings = SettingOptions<OfAttach>;

/// `tiexec`: becomes a program, with its text on huge pages.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "tiexec",
    version,
    about = "Run a program with its executable text on huge pages",
    long_about = "Runs PROGRAM with its executable text on huge pages, so that the instruction TLB covers \
        megabytes of code. tiexec becomes the program: same PID, terminal, signals and exit status. \
        If the text cannot be put onto huge pages, the program runs on base pages, and one line on \
        standard error says why. Normal cases, such as a small program, are silent without -v.",
    override_usage = "tiexec [OPTIONS] [--] PROGRAM [ARGS]...\n       tiexec [OPTIONS] -p PID",
    max_term_width = 80
)]
pub struct Launch {
    /// The options proper.
    #[command(flatten)]
    pub settings: LaunchSettings,

    /// Print the plan and exit; the program does not run
    #[arg(long, help_heading = heading(Group::Output))]
    pub dry_run: bool,

    /// Attach to this running process instead of starting a program, as tiexecctl attach does; a list may have
    /// commas or blanks, as pidof prints it
    #[arg(short = 'p', long = "pid", value_name = "PID", allow_negative_numbers = true, conflicts_with_all = ["program", "strict", "report", "until-exec", "deadline"])]
    pub pid: Option<String>,

    /// The program and its arguments; everything after PROGRAM is the program's
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "PROGRAM", num_args = 1..)]
    pub program: Vec<OsString>,
}

/// `tiexecctl`: looks at processes and at the machine, keeps the image store, and warms files.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "tiexecctl",
    version,
    about = "Put the text of running programs onto huge pages; inspect, estimate and measure it",
    override_usage = "tiexecctl COMMAND [OPTIONS] [ARGS]...",
    max_term_width = 80
)]
pub struct Ctl {
    /// The command.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// The commands of `tiexecctl`.
#[derive(Subcommand, Clone, Debug)]
pub enum CtlCommand {
    /// Show how much of the text of processes is on huge pages, and why the rest is not
    #[command(
        override_usage = "tiexecctl inspect [OPTIONS] PID...\n       tiexecctl inspect [OPTIONS] SERVICE | --exe FILE | --unit UNIT | --user UNIT"
    )]
    Inspect {
        /// The processes.
        #[command(flatten)]
        targets: Targets,
        /// Show each process, also where several look the same
        #[arg(long)]
        each: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check what this machine, or a process, lacks for TiExec, and say how to fix it
    #[command(mut_group("targets", |group| group.required(false)))]
    Doctor {
        /// The processes to judge.
        #[command(flatten)]
        targets: Targets,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Find which services and programs of this machine would gain: sample all of them at once, and rank them
    Scan(Scan),
    /// Estimate by samples whether huge pages would help a program, and print the command to run
    #[command(
        override_usage = "tiexecctl advise [OPTIONS] PID...\n       tiexecctl advise [OPTIONS] SERVICE | --exe FILE | --unit UNIT | --user UNIT\n       tiexecctl advise [OPTIONS] -- COMMAND [ARGS]...",
        mut_group("targets", |group| group.required(false))
    )]
    Advise(Advise),
    /// Compare a command, or a running process, with and without huge pages
    #[command(
        override_usage = "tiexecctl bench [OPTIONS] -- COMMAND [ARGS]...\n       tiexecctl bench [OPTIONS] --attach PID --metric CMD"
    )]
    Bench(Bench),
    /// Prove on live traffic whether copies of the text on huge pages help a service: alternate, measure, and
    /// keep what is better
    #[command(
        override_usage = "tiexecctl canary [OPTIONS] PID...|SERVICE --counter CMD\n       tiexecctl canary [OPTIONS] PID...|SERVICE --prometheus URL --query EXPR\n       tiexecctl canary export\n       tiexecctl canary merge FILE...",
        subcommand_negates_reqs = true,
        args_conflicts_with_subcommands = true
    )]
    Canary(Box<Canary>),
    /// Write an HTML page about processes (where they execute, and how much of that is on huge pages), or about a
    /// benchmark, a canary or a scan
    #[command(
        override_usage = "tiexecctl report [OPTIONS] PID...\n       tiexecctl report [OPTIONS] SERVICE | --exe FILE | --unit UNIT | --user UNIT\n       tiexecctl report [OPTIONS] FILE.json",
        mut_arg("pids", |pids| {
            let help = "The processes, also as lists; the name of a service; or a file with the JSON of tiexecctl bench, canary or scan";
            pids.value_name("PID|SERVICE|FILE.json").value_parser(NonEmptyStringValueParser::new()).help(help)
        })
    )]
    Report(ReportPage),
    /// Put the text of running processes onto huge pages
    #[command(
        override_usage = "tiexecctl attach [OPTIONS] PID...\n       tiexecctl attach [OPTIONS] SERVICE | --exe FILE | --unit UNIT | --user UNIT"
    )]
    Attach(Attach),
    /// Put the files' own text back in running processes
    #[command(
        override_usage = "tiexecctl revert [OPTIONS] PID...\n       tiexecctl revert [OPTIONS] SERVICE | --exe FILE | --unit UNIT | --user UNIT | --all"
    )]
    Revert(Revert),
    /// Have systemd attach to services at each start
    #[command(
        override_usage = "tiexecctl enable [OPTIONS] UNIT... [-- ATTACH OPTIONS]\n       tiexecctl enable [--user] --replace-drop-ins"
    )]
    Enable(Enable),
    /// Undo enable
    Disable(Disable),
    /// Bring the text of programs and shared libraries into huge pages of their page cache, where
    /// every process and every later exec shares them
    Warm(Warm),
    /// Show how much text of the whole machine is on huge pages, by unit and program, and what the agent does
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the processes of the machine with their text on a screen, and attach to them or revert them by a key
    Top(Top),
    /// Check the agent's rules, or warm the programs that they name
    #[command(subcommand)]
    Rules(RulesCommand),
    /// List the builds of programs that crashed soon after a switch, or release one
    Quarantine(Quarantine),
    /// Keep the agent from beginning anything and revert all programs (drain), or let it begin again (resume)
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Copy tiexec and tiexecctl into a directory, such as a volume that an init container shares
    InstallTo {
        /// The directory; it is made if it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Manage the image store: files of huge pages that hold the text of programs, once for all processes
    #[command(subcommand)]
    Store(StoreCommand),
}

impl CtlCommand {
    /// Returns the selected processes of a command that takes PIDs or the name of a service, and whether it prints errors
    /// only.
    pub fn targets(&mut self) -> Option<(&mut Targets, bool)> {
        Some(match self {
            Self::Inspect { targets, .. } | Self::Doctor { targets, .. } => (targets, false),
            Self::Advise(Advise { targets, .. }) => (targets, false),
            Self::Canary(canary) => (&mut canary.targets, false),
            Self::Report(report) if !report.is_of_file() => (&mut report.targets, false),
            Self::Attach(Attach { targets, quiet, .. })
            | Self::Revert(Revert { targets, quiet, .. }) => (targets, *quiet),
            _ => return None,
        })
    }
}

/// The commands of `tiexecctl store`.
#[derive(Subcommand, Clone, Debug)]
pub enum StoreCommand {
    /// Mount the system's image store at /run/tiexec/images, or change its size
    Setup {
        /// How large it may become: 512M, 2G, or a share of the memory such as 10% [default: 10%]
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        /// Change nothing; print a systemd mount unit that does it at every boot
        #[arg(long)]
        unit: bool,
    },
    /// Undo setup: remove all images from /run/tiexec/images, and unmount it
    Unset,
    /// Build the images of files before somebody needs them
    Add {
        /// Programs or shared libraries
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the images, who uses them, and whether their originals are still the same
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images whose originals are gone or have changed, and files that killed builders left
    Prune {
        /// Also remove every image that no process maps or has open
        #[arg(long)]
        all_unused: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the images of files; processes that map one keep it until they end
    Remove {
        /// Programs or shared libraries
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every image and compare it with what its builder wrote
    Verify {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the directory in which this user's images are built
    Path,
}

/// The processes to work on.
#[derive(Args, Clone, Debug, Default)]
#[group(required = true, multiple = false, id = "targets")]
pub struct Targets {
    /// The processes; also as lists with commas or blanks, as pidof prints them. Or the name of a service
    #[arg(value_name = "PID|SERVICE", group = "targets", allow_negative_numbers = true)]
    pub pids: Vec<String>,

    /// Every process that runs this file
    #[arg(long, value_name = "FILE", group = "targets")]
    pub exe: Option<PathBuf>,

    /// Every process of this unit of the system's systemd; a name without a kind is a service's
    #[arg(long, value_name = "UNIT", group = "targets", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Option<String>,

    /// Every process of this unit of a user's own systemd (as root: of any user's)
    #[arg(long, value_name = "UNIT", group = "targets", value_parser = NonEmptyStringValueParser::new())]
    pub user: Option<String>,
}

impl Targets {
    /// Returns whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        let Self { pids, exe, unit, user } = self;
        pids.is_empty() && exe.is_none() && unit.is_none() && user.is_none()
    }

    /// Returns the words that select the same processes, to be put into a command line.
    pub fn words(&self) -> Vec<OsString> {
        let Self { pids, exe, unit, user } = self;
        let named = |option: &str, name: OsString| vec![OsString::from(option), name];
        if let Some(exe) = exe {
            return named("--exe", exe.into());
        }
        if let Some(unit) = unit {
            return named("--unit", unit.into());
        }
        if let Some(user) = user {
            return named("--user", user.into());
        }
        pids.iter().flat_map(|pids| pids.split([',', ' ', '\t', '\n'])).map(Into::into).collect()
    }
}

/// The options of `tiexecctl advise`.
#[derive(Args, Clone, Debug)]
pub struct Advise {
    /// The processes.
    #[command(flatten)]
    pub targets: Targets,

    /// How long to sample, such as 30s [default: 5s; a command to its end]
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration)]
    pub duration: Option<Duration>,

    /// Samples in a second of each thread's time
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = tiexec_engine::sampling::FREQUENCY, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub frequency: u32,

    /// Also sample the processes that they start
    #[arg(short, long)]
    pub follow: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// A command to start and to sample
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "targets",
        conflicts_with = "targets"
    )]
    pub command: Vec<OsString>,
}

impl Advise {
    /// Returns the options for these processes, without any other.
    pub fn of(targets: Targets, duration: Option<Duration>) -> Self {
        Self {
            targets,
            duration,
            frequency: tiexec_engine::sampling::FREQUENCY,
            follow: false,
            json: false,
            output: None,
            command: Vec::new(),
        }
    }
}

/// The options of `tiexecctl scan`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Scan {
    /// How long to sample, such as 60s
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration, default_value = "20s")]
    pub duration: Duration,

    /// Samples in a second of each processor's time, at most 2000
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = tiexec_engine::sampling::FREQUENCY, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub frequency: u32,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print only this many programs, and none without an estimate
    #[arg(long, value_name = "NUM", hide = true)]
    pub most: Option<usize>,
}

/// The options of `tiexecctl bench`.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    /// Rounds; each runs both ways
    #[arg(short, long, value_name = "NUM", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,

    /// Rounds for warming up before these, which do not count
    #[arg(short, long, value_name = "NUM", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub warmup: u32,

    /// Run this by the shell before each run
    #[arg(short, long, value_name = "CMD", conflicts_with = "attach")]
    pub prepare: Option<String>,

    /// Also count runs that fail
    #[arg(short, long, conflicts_with = "attach")]
    pub ignore_failure: bool,

    /// The figure to compare: the part of the command's output that this regular expression matches (its
    /// first group, or all of it). With --attach, a command for the shell that prints a figure at its end;
    /// without --counter a slice lasts as long as this command
    #[arg(long, value_name = "REGEX|CMD")]
    pub metric: Option<String>,

    /// Alternate attach and revert in this running process, one slice of time each
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..), required_unless_present = "command", conflicts_with = "command", requires = "metric")]
    pub attach: Option<i32>,

    /// With --attach: the number that CMD prints only grows, such as a count of queries. bench runs CMD at both
    /// ends of a slice, and compares the growth in a second
    #[arg(long, requires = "attach", conflicts_with = "command")]
    pub counter: bool,

    /// With --counter: how long a slice lasts [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration, requires = "counter", conflicts_with = "command")]
    pub slice: Option<Duration>,

    /// An option for tiexec, or for tiexecctl attach, such as --option=--edges=pad; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, value_parser = parse_option)]
    pub option: Vec<String>,

    /// Write all figures to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub export_json: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The command
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The options of `tiexecctl canary`.
#[derive(Args, Clone, Debug)]
pub struct Canary {
    /// The verdicts, instead of a new one.
    #[command(subcommand)]
    pub stored: Option<CanaryCommand>,

    /// The processes: all switch together.
    #[command(flatten)]
    pub targets: Targets,

    /// Every process of one program that this rule of tiexecd matches; the rule says how to measure
    #[arg(long, value_name = "NAME", group = "targets")]
    pub rule: Option<String>,

    /// The program, if the rule matches several
    #[arg(long, value_name = "FILE", requires = "rule", hide = true)]
    pub program: Option<OsString>,

    /// A command for the shell; the last number of its output is the work done so far, such as a count of requests.
    /// Root runs the command as the user nobody
    #[arg(
        long,
        value_name = "CMD",
        required_unless_present_any = ["prometheus", "rule"],
        conflicts_with = "prometheus"
    )]
    pub counter: Option<String>,

    /// Ask the Prometheus server at this address for the work that is done, such as http://localhost:9090
    #[arg(long, value_name = "URL", requires = "query")]
    pub prometheus: Option<String>,

    /// With --prometheus: an expression with one value that only grows, such as sum(http_requests_total)
    #[arg(long, value_name = "EXPR", requires = "prometheus", conflicts_with = "counter")]
    pub query: Option<String>,

    /// End at once, and revert, when this command for the shell fails. canary runs it every second; root runs it as
    /// the user nobody
    #[arg(long, value_name = "CMD")]
    pub guard: Option<String>,

    /// With --prometheus: end at once, and revert, when this expression has a value, as an alert does
    #[arg(long, value_name = "EXPR", requires = "prometheus", conflicts_with = "counter")]
    pub guard_query: Option<String>,

    /// The ratio of work per CPU second, copies to base pages, above which copies are kept
    #[arg(long, value_name = "RATIO", default_value_t = 1.005, value_parser = parse_keep_above)]
    pub keep_above: f64,

    /// End after this time, with or without a verdict
    #[arg(long, value_name = "DURATION", default_value = "4h", value_parser = parse_positive_duration)]
    pub max: Duration,

    /// How long a slice lasts; a pair has two [default: 13s; 60s with --prometheus]
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration)]
    pub slice: Option<Duration>,

    /// Where copies come from: image or hugetlb [default: image]
    #[arg(long, value_name = "BACKING")]
    pub backing: Option<BackingChoice>,

    /// How to take the edges of the text, as for tiexecctl attach
    #[arg(long, value_name = "EDGES")]
    pub edges: Option<Edges>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// With --rule: the directory of the rules
    #[arg(long, value_name = "DIR", default_value = tiexec_agent::rules::DIRECTORY, value_parser = directory(), conflicts_with_all = ["pids", "exe", "unit", "user"])]
    pub conf_dir: PathBuf,

    /// The directory of the verdicts
    #[arg(long, value_name = "DIR", default_value = tiexec_agent::state::DIRECTORY, value_parser = directory(), global = true)]
    pub state_dir: PathBuf,
}

/// The commands of `tiexecctl canary`.
#[derive(Subcommand, Clone, Debug)]
pub enum CanaryCommand {
    /// Print this machine's verdicts, as JSON
    Export,
    /// Combine what several machines exported, by build, processor, kernel, backing and edges
    Merge {
        /// Files of tiexecctl canary export
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Also make the combined verdicts this machine's own
        #[arg(long)]
        keep: bool,
        /// As JSON, in the form of export
        #[arg(long)]
        json: bool,
    },
}

/// Refuses what would make tiexec do something else than start the command.
fn parse_option(text: &str) -> Result<String, String> {
    let name = text.split('=').next().unwrap_or(text);
    let is_short = name.starts_with('-') && !name.starts_with("--");
    let other = ["--pid", "--dry-run", "--help", "--version"];
    if !text.starts_with('-') || text == "-" || text == "--" {
        return Err(
            "it is no option: it does not begin with -; fix: --option=--edges=pad".to_owned()
        );
    }
    if other.contains(&name) || (is_short && name.contains(['p', 'h', 'V'])) {
        return Err(format!(
            "{name} would measure something else than the command; fix: leave it out"
        ));
    }
    Ok(text.to_owned())
}

/// Parses a directory. A relative path begins at the working directory.
fn directory() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

fn parse_keep_above(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (1.0..=2.0).contains(ratio));
    ratio.ok_or_else(|| format!("{text:?} is no ratio from 1 to 2, such as 1.005"))
}

/// The options of `tiexecctl report`.
#[derive(Args, Clone, Debug)]
pub struct ReportPage {
    /// The processes, or a file of bench, canary or scan.
    #[command(flatten)]
    pub targets: Targets,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The plots alone, as SVG
    #[arg(long)]
    pub svg: bool,

    /// How long to sample processes, such as 30s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_positive_duration)]
    pub duration: Option<Duration>,
}

/// Returns whether this is the path of a file, or of a pipe.
fn is_readable(path: &str) -> bool {
    Path::new(path).metadata().is_ok_and(|file| !file.is_dir())
}

impl ReportPage {
    /// Returns whether the only word names a file.
    fn is_of_file(&self) -> bool {
        matches!(&self.targets.pids[..], [word] if word.ends_with(".json") || is_readable(word))
    }
}

/// The options of `tiexecctl attach`.
#[derive(Args, Clone, Debug, Default)]
pub struct Attach {
    /// The processes.
    #[command(flatten)]
    pub targets: Targets,

    /// The options proper.
    #[command(flatten)]
    pub settings: AttachSettings,

    /// Revert after this time, such as 15m
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["follow", "settle"])]
    pub for_: Option<Duration>,

    /// Print what would become huge, and change nothing
    #[arg(long, conflicts_with_all = ["for_", "follow", "settle"])]
    pub dry_run: bool,

    /// For a unit of systemd: wait first until the main process runs its program and no shell. Takes 10s at
    /// most, and 70s in a unit of its own, writes the result to the journal, and exits 0 unless the command line is
    /// malformed
    #[arg(long, conflicts_with_all = ["dry_run", "follow", "settle", "max-huge-pages"])]
    pub wait_exec: bool,

    /// Show each process, also where several have the same outcome
    #[arg(long)]
    pub each: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print errors only
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,

    /// Only if the process began at this time (field 22 of /proc/PID/stat)
    #[arg(long, value_name = "TICKS", hide = true)]
    pub started_at: Option<u64>,

    /// TiExec itself undoes it later
    #[arg(long, hide = true)]
    pub temporary: bool,
}

impl Attach {
    /// Makes them of `tiexec -p PID`.
    pub fn from_launch(pid: String, options: &LaunchSettings, dry_run: bool) -> Self {
        let Settings { json, quiet, .. } = options.alone();
        Self {
            targets: Targets { pids: vec![pid], exe: None, unit: None, user: None },
            settings: options.at(),
            for_: None,
            dry_run,
            wait_exec: false,
            each: false,
            json,
            quiet,
            started_at: None,
            temporary: false,
        }
    }
}

/// The options of `tiexecctl top`.
#[derive(Args, Clone, Debug)]
pub struct Top {
    /// The time between two looks at the processes, such as 0.5
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = parse_delay)]
    pub delay: Duration,
}

/// Parses seconds, and parts of one, as top(1) takes them.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number from 0.1 to 3600".to_owned())
}

/// The options of `tiexecctl enable`.
#[derive(Args, Clone, Debug)]
pub struct Enable {
    /// The services: units, aliases or templates; a name without a kind is a service's
    #[arg(value_name = "UNIT", required_unless_present = "replace_drop_ins", value_parser = NonEmptyStringValueParser::new())]
    pub units: Vec<String>,

    /// Also attach to those that run; nothing is restarted
    #[arg(long)]
    pub now: bool,

    /// Until the next boot only
    #[arg(long)]
    pub runtime: bool,

    /// Units of this user's own systemd
    #[arg(long)]
    pub user: bool,

    /// Also warm the program and its libraries before each start
    #[arg(long)]
    pub warm: bool,

    /// Replace the drop-ins that earlier versions of enable wrote, with the same options. Packages do this at an
    /// upgrade
    #[arg(long, conflicts_with_all = ["units", "now", "runtime", "warm", "json", "options"])]
    pub replace_drop_ins: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Options for tiexecctl attach, such as --edges=pad
    #[arg(last = true, value_name = "ATTACH OPTIONS", allow_hyphen_values = true)]
    pub options: Vec<String>,
}

/// The options of `tiexecctl disable`.
#[derive(Args, Clone, Debug)]
pub struct Disable {
    /// The services, named as for enable
    #[arg(value_name = "UNIT", required_unless_present = "all", value_parser = NonEmptyStringValueParser::new())]
    pub units: Vec<String>,

    /// All services that are enabled
    #[arg(long, conflicts_with = "units")]
    pub all: bool,

    /// Also revert in those that run; nothing is restarted
    #[arg(long)]
    pub now: bool,

    /// Print what would be done, and change nothing
    #[arg(long, conflicts_with = "now")]
    pub dry_run: bool,

    /// Units of this user's own systemd
    #[arg(long)]
    pub user: bool,
}

/// The options of `tiexecctl revert`.
#[derive(Args, Clone, Debug, Default)]
pub struct Revert {
    /// The processes.
    #[command(flatten)]
    pub targets: Targets,

    /// Every process that has text of TiExec's
    #[arg(long, group = "targets")]
    pub all: bool,

    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Show each process, also where several have the same outcome
    #[arg(long)]
    pub each: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print errors only
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,

    /// Only if the process began at this time (field 22 of /proc/PID/stat)
    #[arg(long, value_name = "TICKS", hide = true)]
    pub started_at: Option<u64>,

    /// TiExec itself undoes it later
    #[arg(long, hide = true)]
    pub temporary: bool,

    /// Wait first, in milliseconds
    #[arg(long, value_name = "MS", hide = true)]
    pub after: Option<u64>,
}

/// The options of `tiexecctl warm`.
#[derive(Args, Clone, Debug)]
pub struct Warm {
    /// The programs and shared libraries
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Only show the state; evict nothing, and read only headers
    #[arg(long)]
    pub check: bool,

    /// Also the shared libraries that the files need, as their ld.so lists them
    #[arg(long)]
    pub deps: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print errors only
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Launch::command().debug_assert();
        Ctl::command().debug_assert();
    }

    #[test]
    fn an_option_of_bench_is_one_of_a_launch() {
        for bad in
            ["true", "", "-", "--", "-p", "-p1", "--pid=1", "--dry-run", "--help", "-h", "-V"]
        {
            assert!(parse_option(bad).is_err(), "{bad}");
        }
        for good in ["--edges=pad", "-v", "--backing=hugetlb", "--page-size=2M"] {
            assert!(parse_option(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_negative_number_is_taken_for_a_process_and_an_empty_name_for_none() {
        for command in ["inspect", "attach", "revert", "doctor", "advise", "report"] {
            let of =
                |words: &[&str]| Ctl::try_parse_from([&["tiexecctl", command], words].concat());
            assert!(of(&["-5"]).is_ok(), "{command}");
            assert!(of(&["--unit="]).is_err() && of(&["--user="]).is_err(), "{command}");
        }
        assert_eq!(Launch::try_parse_from(["tiexec", "-p", "-5"]).unwrap().pid.unwrap(), "-5");
        for empty in [&["quarantine", "--release="][..], &["report", ""], &["enable", ""]] {
            assert!(Ctl::try_parse_from([&["tiexecctl"], empty].concat()).is_err(), "{empty:?}");
        }
    }

    #[test]
    fn everything_after_the_program_is_the_programs() {
        let parse = |args: &[&str]| Launch::try_parse_from(["tiexec"].iter().chain(args));
        let echo = parse(&["--json", "echo", "-e", "--report=x", "--", "--help"]).unwrap();
        assert_eq!(echo.program, ["echo", "-e", "--report=x", "--", "--help"]);
        let settings = echo.settings.alone();
        assert!(settings.json && settings.report.is_none());
        let dashes = parse(&["--report", "--", "-odd", "--", "x"]).unwrap();
        assert_eq!(dashes.program, ["-odd", "--", "x"]);
        assert_eq!(dashes.settings.alone().report.as_deref(), Some(""));
        assert!(parse(&["--nonsense", "true"]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--deadline", "soon", "true"]).is_err());
    }
}

/// The places of the agent's files.
#[derive(Args, Clone, Debug)]
pub struct AgentFiles {
    /// The directory of the rules
    #[arg(long, value_name = "DIR", default_value = tiexec_agent::rules::DIRECTORY, value_parser = directory())]
    pub conf_dir: PathBuf,

    /// The directory of the agent's state
    #[arg(long, value_name = "DIR", default_value = tiexec_agent::state::DIRECTORY, value_parser = directory())]
    pub state_dir: PathBuf,
}

/// The commands of `tiexecctl rules`.
#[derive(Subcommand, Clone, Debug)]
pub enum RulesCommand {
    /// Check the rule files, and show the rule of each process and what tiexecd would do to it now
    Check {
        /// The processes, also as lists [default: all that a rule matches]
        #[arg(value_name = "PID")]
        pids: Vec<String>,

        /// Check the labels and annotations in this manifest of Kubernetes instead; - is the standard input
        #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with = "pids")]
        manifests: Vec<PathBuf>,

        /// Exit with 1 also if a file has an unknown key, or if a rule matches no process
        #[arg(long)]
        strict: bool,

        /// Print JSON
        #[arg(long, conflicts_with = "manifests")]
        json: bool,

        /// The places of its files.
        #[command(flatten)]
        files: AgentFiles,
    },
    /// Bring the programs of rules with the action attach or warm into huge pages of the page cache, such as after
    /// an upgrade
    Warm {
        /// The directory of the rules
        #[arg(long, value_name = "DIR", default_value = tiexec_agent::rules::DIRECTORY, value_parser = directory())]
        conf_dir: PathBuf,
    },
}

/// The commands of `tiexecctl agent`.
#[derive(Subcommand, Clone, Debug)]
pub enum AgentCommand {
    /// Keep the agent from beginning anything until `resume` or the next boot, and put the files' own text back in every
    /// running process
    Drain,
    /// Let the agent begin again
    Resume,
}

/// The options of `tiexecctl quarantine`.
#[derive(Args, Clone, Debug)]
pub struct Quarantine {
    /// Take the builds with this build ID, or this digest of their text, out of the quarantine
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub release: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The directory of the agent's state
    #[arg(long, value_name = "DIR", default_value = tiexec_agent::state::DIRECTORY, value_parser = directory())]
    pub state_dir: PathBuf,
}

/// `tiexecd`: attaches to programs by rules.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "tiexecd",
    version,
    about = "Put the text of a machine's programs onto huge pages by rules",
    override_usage = "tiexecd [OPTIONS]\n       tiexecd --once --dry-run [OPTIONS]",
    max_term_width = 80
)]
pub struct Daemon {
    /// The places of its files.
    #[command(flatten)]
    pub files: AgentFiles,

    /// Also write the metrics to this file every 15 s, for node_exporter's textfile collector (NAME.prom); removed at the end
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    pub textfile: Option<PathBuf>,

    /// Answer /metrics to everybody who reaches this address, such as 127.0.0.1:9432
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "once")]
    pub metrics_address: Option<std::net::SocketAddr>,

    /// Look at all processes once, and stop; needs --dry-run
    #[arg(long, requires = "dry_run")]
    pub once: bool,

    /// Print what would be done, and change nothing
    #[arg(long, requires = "once")]
    pub dry_run: bool,
}
