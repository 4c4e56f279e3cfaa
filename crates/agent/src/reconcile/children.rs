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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tiexec_remap::workers;
    use tiexec_sys::Pid;
    use tiexec_sys::procfs::ProcDir;

    use super::*;

    /// A canary that takes longer than the agent waits ends at some time.
    #[test]
    fn a_child_that_ends_late_is_reaped() {
        let mut sleep = programs::of_user("sleep");
        let mut child = sleep.arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        workers::reap_later(pid);
        assert_eq!(workers::reap(), 1);
        child.kill().unwrap();
        while workers::reap() > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(child.wait().is_err() && ProcDir::of(pid).is_err(), "it was reaped");
    }
}
