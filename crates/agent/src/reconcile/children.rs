//! The `tiexecctl` processes that the agent starts.

use std::io;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use tiexec_engine::programs::{self, Environment};
use tiexec_sys::process;

/// Prepares the `tiexecctl` beside this program. The kernel sends it the signal when the agent ends.
pub(super) fn tiexecctl(at_end: Signal) -> io::Result<Command> {
    let own = std::fs::read_link("/proc/self/exe")?.with_file_name("tiexecctl");
    let mut command = programs::command(own, Environment::OfTiexec);
    process::end_command_with_parent(&mut command, at_end);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Starts the command with no signal blocked: a child inherits the agent's signal mask.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    process::unblock_signals();
    let started = command.spawn();
    process::block_signals();
    started
}
