//! The agent, and the commands about it.

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

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

/// Parses a directory. A relative path begins at the working directory.
pub(super) fn directory() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}
