//! The selection of processes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

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
