//! Every program that TiExec starts.
//!
//! A program that TiExec starts for its own purposes ([`command`]) gets no more than it needs: a few variables of the
//! environment, and no descriptor but its standard streams. The user's own programs ([`of_user`]) get what the user gave.
//! `clippy.toml` and `xtask/tests/architecture.rs` keep all other code from starting programs in another way.

#![expect(clippy::disallowed_methods, reason = "this module is the one that starts programs")]

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{
    Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, kill_process_group,
    set_child_subreaper, waitid, waitpid,
};
use tiexec_core::proc::stat;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process};

/// The variables that a program gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Environment {
    /// None, for a program that reads a file which may be hostile.
    Empty,
    /// The path of programs, the language and the time zone.
    Least,
    /// Also what leads to the user's own systemd and files.
    OfUser,
    /// Also the settings of TiExec, for its own programs.
    OfTiexec,
    /// All of this process's, for a command that the user named.
    All,
}

const LEAST: [&str; 5] = ["PATH", "LANG", "LC_ALL", "LC_MESSAGES", "TZ"];
const OF_USER: [&str; 6] =
    ["HOME", "USER", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS", "TERM"];
/// The last two exist only for tests.
const OF_TIEXEC: [&str; 3] = ["TIEXEC", "TIEXEC_FAULT", "TIEXEC_TEST_CLOCK"];

/// Most rounds in which left processes are ended.
const ROUNDS: u32 = 1000;

/// Returns a command for TiExec's own purposes, with these variables. It inherits the standard streams and no other
/// descriptor.
pub fn command(program: impl AsRef<OsStr>, environment: Environment) -> Command {
    // Descriptors of TiExec close at an exec anyway. Those that TiExec inherited would stay open.
    process::close_all_at_exec();
    let mut command = Command::new(program);
    let groups: &[&[&str]] = match environment {
        Environment::Empty => &[],
        Environment::Least => &[&LEAST],
        Environment::OfUser => &[&LEAST, &OF_USER],
        Environment::OfTiexec => &[&LEAST, &OF_USER, &OF_TIEXEC],
        Environment::All => return command,
    };
    command.env_clear();
    for &name in groups.iter().copied().flatten() {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Returns a command for a program that the user named, and that runs with the user's rights. It inherits all variables
/// and all descriptors that the user gave.
pub fn of_user(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// Starts a command in `/` and in a process group of its own, so that Ctrl-C does not reach it. The kernel kills it when this
/// process ends.
///
/// # Errors
/// The program cannot be started.
pub fn start_contained(mut command: Command) -> io::Result<(Child, Leftovers)> {
    command.current_dir("/").process_group(0);
    process::end_command_with_parent(&mut command, Signal::KILL);
    let leftovers = Leftovers::adopt();
    Ok((command.spawn()?, leftovers))
}

/// Returns whether a child has ended, without reaping it.
pub fn has_ended(child: &Child) -> bool {
    let Some(pid) = pid_of(child) else { return true };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None) | Err(Errno::INTR))
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// The processes that one command leaves, also those that left its process group. They are found because this process
/// adopts them.
#[must_use = "end() ends them"]
#[derive(Debug)]
pub struct Leftovers {
    /// The children that this process had before.
    before: HashSet<Pid>,
}

impl Leftovers {
    /// Adopts the descendants of the command that starts next.
    fn adopt() -> Self {
        let _they_stay = set_child_subreaper(Some(process::this()));
        Self { before: children().collect() }
    }

    /// Ends the command's process group, and all other descendants of the command. Does not reap the command itself, which must
    /// not be reaped before: the kernel could have reused its PID.
    pub fn end(self, command: &Child) {
        let Some(command) = pid_of(command) else { return };
        let _ended = kill_process_group(command, Signal::KILL);
        // A process that forks faster than it is killed must not hold TiExec up.
        for _ in 0..ROUNDS {
            let is_left = |pid: &Pid| *pid != command && !self.before.contains(pid);
            let left: Vec<Pid> = children().filter(is_left).collect();
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _ended = kill_process(pid, Signal::KILL);
                let _reaped = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        let _nothing_is_left = set_child_subreaper(None);
    }
}

/// Returns the children of this process, ended ones too.
fn children() -> impl Iterator<Item = Pid> {
    let this = process::this().as_raw_nonzero().get().unsigned_abs();
    let parent = |process: &ProcDir| stat::parent(&process.read("stat").ok()?).ok();
    let all = ProcDir::every();
    all.filter(move |(_, one)| parent(one) == Some(u64::from(this))).map(|(pid, _)| pid)
}
