//! Commands that change running processes.

use std::time::Duration;

use clap::Args;
use tiexec_core::config::Settings;
use tiexec_core::value::parse_duration;
use tiexec_engine::locked_target::Lasts;

use super::{LaunchSettings, Targets};
use crate::setting_options::{OfAttach, SettingOptions};

/// The settings that options of `tiexecctl attach` say.
pub type AttachSettings = SettingOptions<OfAttach>;

/// The options that `tiexecctl attach` and `tiexecctl revert` have in common.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
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

    /// How long it is meant to last, if this program itself gives the order
    #[arg(skip)]
    pub lasts: Lasts,
}

impl Common {
    /// Returns how long the work is meant to last.
    pub fn lasts(&self) -> Lasts {
        if self.temporary { Lasts::UntilUndone } else { self.lasts }
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

    /// The options that both commands have.
    #[command(flatten)]
    pub common: Common,
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
            common: Common { json, quiet, ..Common::default() },
        }
    }
}

/// The options of `tiexecctl revert`.
#[derive(Args, Clone, Debug, Default)]
pub struct Revert {
    /// The processes.
    #[command(flatten)]
    pub targets: Targets,

    /// Every process in which TiExec has changed text and not changed it back
    #[arg(long, group = "targets")]
    pub all: bool,

    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// The options that both commands have.
    #[command(flatten)]
    pub common: Common,

    /// Also revert what the process has forked, if it began at that time
    #[arg(long, requires = "started_at", hide = true)]
    pub forked: bool,

    /// Wait first, in milliseconds
    #[arg(long, value_name = "MS", hide = true)]
    pub after: Option<u64>,
}
