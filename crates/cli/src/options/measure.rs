//! Commands that estimate, watch and measure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use tiexec_agent::state::Build;
use tiexec_core::config::{BackingChoice, Edges};
use tiexec_core::value::parse_positive_duration;

use super::Targets;
use super::agent::directory;

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

    /// Also sample the processes that these processes, or the command, start
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
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = tiexec_engine::sampling::OF_ALL, value_parser = clap::value_parser!(u32).range(1..=2000))]
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

/// Refuses what would make tiexec do something else than start the command.
fn parse_option(text: &str) -> Result<String, String> {
    let name = text.split('=').next().unwrap_or(text);
    let is_short = name.starts_with('-') && !name.starts_with("--");
    let other = ["--pid", "--dry-run", "--help", "--version"];
    if !text.starts_with('-') || text == "-" || text == "--" {
        return Err("it does not begin with -, so it is not an option; fix: --option=--edges=pad"
            .to_owned());
    }
    if other.contains(&name) || (is_short && name.contains(['p', 'h', 'V'])) {
        return Err(format!(
            "{name} would measure something else than the command; fix: leave it out"
        ));
    }
    Ok(text.to_owned())
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

    /// The build of that program, if processes of several builds have its path
    #[arg(long, value_name = "ID", requires = "program", hide = true)]
    pub build: Option<Build>,

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

fn parse_keep_above(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (1.0..=2.0).contains(ratio));
    ratio.ok_or_else(|| format!("{text:?} is not a ratio from 1 to 2, such as 1.005"))
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
    pub(super) fn is_of_file(&self) -> bool {
        matches!(&self.targets.pids[..], [word] if word.ends_with(".json") || is_readable(word))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
