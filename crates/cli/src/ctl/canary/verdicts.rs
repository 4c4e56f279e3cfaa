//! The verdicts of this machine's canaries, and the combined verdicts of several machines.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tiexec_advise::canary::{ENOUGH_HOSTS, Finding, merge};
use tiexec_agent::canary::Canaries;
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::SCHEMA;

use super::times;
use crate::ctl::{input, print};
use crate::exit;
use crate::options::CanaryCommand;
use crate::stdio::warn;

/// Most bytes of a file.
const LONGEST: u64 = 4 << 20;

/// The output of `export`.
#[derive(Serialize, Deserialize)]
struct Export {
    schema: u32,
    kind: String,
    verdicts: Vec<Finding>,
}

impl Export {
    const KIND: &str = "canary_verdicts";

    fn of(mut verdicts: Vec<Finding>) -> Self {
        // A user ID means nothing on another machine.
        verdicts.iter_mut().for_each(|finding| finding.owner = None);
        Self { schema: SCHEMA, kind: Self::KIND.to_owned(), verdicts }
    }

    fn print(&self) -> u8 {
        match serde_json::to_value(self) {
            Ok(value) => print(&(escape::json(&value) + "\n")),
            Err(error) => {
                warn(format_args!("cannot print the verdicts: {error}"));
                exit::FAILED
            }
        }
    }
}

/// Opens the directory of the verdicts, and makes it if need be.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn open(state_dir: &Path, doing: &str) -> Result<Canaries, u8> {
    Canaries::open(state_dir).map_err(|why| {
        warn(format_args!("cannot {doing}: {why}"));
        // If only the directory itself is missing, its parent does not let this user create it.
        let denied = match state_dir.metadata() {
            Ok(found) => found.is_dir(),
            Err(error) => {
                error.kind() == ErrorKind::PermissionDenied
                    || state_dir.parent().is_some_and(Path::is_dir)
            }
        };
        if denied { exit::NOT_PERMITTED } else { exit::FAILED }
    })
}

pub(super) fn run(command: &CanaryCommand, state_dir: &Path) -> u8 {
    let open = || open(state_dir, "open the verdicts");
    let done = match command {
        CanaryCommand::Export if !state_dir.exists() => Ok(Export::of(Vec::new()).print()),
        CanaryCommand::Export => open().and_then(|canaries| {
            let verdicts = canaries.look().map_err(|why| {
                warn(format_args!("cannot read the verdicts: {why}"));
                exit::FAILED
            })?;
            Ok(Export::of(verdicts.findings).print())
        }),
        CanaryCommand::Merge { files, keep, json } => {
            files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>().and_then(|all| {
                let merged = merge(&all.concat());
                // A verdict of this machine's own says more than one of too few hosts.
                let claims = merged.iter().filter(|finding| finding.hosts >= ENOUGH_HOSTS);
                let claims: Vec<Finding> = claims.cloned().collect();
                if *keep && claims.len() < merged.len() {
                    let left_out = merged.len() - claims.len();
                    warn(format_args!("not kept, because of too few hosts: {left_out}"));
                }
                if *keep && let Some(why) = open()?.keep(claims) {
                    warn(format_args!("cannot keep the verdicts: {why}"));
                    return Err(exit::FAILED);
                }
                Ok(if *json { Export::of(merged).print() } else { table(&merged) })
            })
        }
    };
    done.unwrap_or_else(|status| status)
}

fn read(path: &Path) -> Result<Vec<Finding>, u8> {
    let failed = |why: &dyn std::fmt::Display| {
        warn(format_args!(
            "cannot read {}: {why}; fix: write it with `tiexecctl canary export`",
            path.shown()
        ));
        exit::FAILED
    };
    let text = input::text_of(path, LONGEST).map_err(|why| failed(&why))?;
    let export: Export = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    if export.kind != Export::KIND {
        return Err(failed(&format_args!("it is of kind {:?}", export.kind)));
    }
    Ok(export.verdicts)
}

fn table(merged: &[Finding]) -> u8 {
    let mut text = String::new();
    for Finding { subject, verdict, ratio, pairs, hosts, exe, .. } in merged {
        let s = if *hosts == 1 { "" } else { "s" };
        text += &format!(
            "{} {}\n  {}, Linux {}, {}, edges {}\n  {}: {}, {hosts} host{s}, {pairs} pairs",
            exe.shown(),
            subject.build_id.shown(),
            subject.cpu.shown(),
            subject.kernel.shown(),
            subject.backing.shown(),
            subject.edges.shown(),
            verdict.as_str(),
            times(*ratio),
        );
        if *hosts < ENOUGH_HOSTS {
            text += &format!("; a claim takes {ENOUGH_HOSTS} hosts");
        }
        text.push('\n');
    }
    if merged.is_empty() {
        text += "no verdicts with an estimate\n";
    }
    print(&text)
}

/// Returns a name of this machine that does not reveal its machine-id(5).
pub(super) fn machine() -> String {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let system = rustix::system::uname();
    let name = format!("tiexec canary\n{}\n{}", id.trim(), system.nodename().to_string_lossy());
    blake3::hash(name.as_bytes()).to_hex()[..16].to_owned()
}
