//! `tiexecctl agent drain`, `tiexecctl agent resume`.

use std::time::{Duration, Instant};

use tiexec_agent::off;
use tiexec_engine::locked_target::Lasts;

use super::attach;
use super::status::agent::Agent;
use crate::exit;
use crate::options::{AgentCommand, Common, Revert};
use crate::stdio::{and_as_root, warn};

/// The longest wait until the agent obeys the drain, because its work on one program may take 30 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command; returns the exit status.
pub(super) fn run(command: &AgentCommand) -> u8 {
    match command {
        AgentCommand::Drain => drain(),
        AgentCommand::Resume => resume(),
    }
}

fn drain() -> u8 {
    if let Err(error) = off::drain() {
        return refused("create", &error);
    }
    // From now on, also if the rest fails or is interrupted.
    warn("tiexecd begins nothing until `tiexecctl agent resume`, or the next boot");
    if let Err(why) = wait_for_agent() {
        warn(format_args!(
            "nothing is reverted yet: cannot tell whether the agent has stopped its work: {why}"
        ));
        return exit::FAILED;
    }
    attach::run_revert(&Revert {
        all: true,
        common: Common { lasts: Lasts::UntilUndone, ..Common::default() },
        ..Revert::default()
    })
}

/// Says why the mark of a drain cannot be made or removed. Returns the exit status.
fn refused(doing: &str, error: &std::io::Error) -> u8 {
    let why = error.to_string();
    warn(format_args!("cannot {doing} {}: {why}{}", off::DRAINED, and_as_root(&why)));
    exit::of_io(error)
}

/// Waits until a running agent has finished its present work.
fn wait_for_agent() -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        if !Agent::listens() {
            return Ok(());
        }
        match Agent::ask() {
            Ok(agent) if agent.drained || agent.disabled => return Ok(()),
            Err(why) if Instant::now() >= until => return Err(why),
            Ok(_) if Instant::now() >= until => {
                return Err(
                    "the agent still works on a program; fix: run `tiexecctl agent drain` again"
                        .to_owned(),
                );
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn resume() -> u8 {
    match off::resume() {
        Ok(true) => exit::OK,
        Ok(false) => {
            warn("nothing to resume: the agent is not drained");
            exit::OK
        }
        Err(error) => refused("remove", &error),
    }
}
