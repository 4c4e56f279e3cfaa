//! The command lines, as clap sees them: syntax only.

mod agent;
mod attach;
mod files;
mod measure;
mod services;
mod targets;

pub use agent::{AgentCommand, AgentFiles, Daemon, Quarantine, RulesCommand};
pub use attach::{Attach, AttachSettings, Common, Revert};
pub use files::{StoreCommand, Warm};
pub use measure::{Advise, Bench, Canary, CanaryCommand, ReportPage, Scan, Top};
pub use services::{Disable, Enable};
pub use targets::Targets;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand};
use tiexec_core::setting::Group;

use crate::setting_options::{OfLaunch, SettingOptions, heading};

/// The settings that options of `tiexec PROGRAM` say.
pub type LaunchSettings = SettingOptions<OfLaunch>;

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
        /// Measure the TLB anew, and keep its times for `advise`, `scan` and `tiexecd` until the next boot
        #[arg(long, conflicts_with = "targets")]
        measure: bool,
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
    /// List the builds of programs that crashed soon after an attach by tiexecd, or release one
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
            Self::Attach(Attach { targets, common, .. })
            | Self::Revert(Revert { targets, common, .. }) => (targets, common.quiet),
            _ => return None,
        })
    }
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
