//! Commands that change units of systemd.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

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
