//! What `bench --attach` and `canary` have in common: a process that alternates between its own text and copies.

use std::path::Path;

use tiexec_agent::state;
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::journal;
use tiexec_engine::locked_target::look_for_text_of_ours;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use super::running_canary;
use crate::exit;
use crate::stdio::warn;

/// The two ways that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arm {
    /// The file's text, on base pages.
    Plain,
    /// The text on huge pages. Of a running process these are copies.
    Tiexec,
}

/// Writes into the journal that `command` does something to a process for a longer time, because the journal has no line for
/// each slice.
pub(super) fn note(command: &str, subject: &str, pid: Pid, what: &str) {
    let uid = rustix::process::getuid().as_raw();
    journal::note(command, &format!("{command} by uid {uid}: {subject} {what}"), pid);
}

/// Returns which of these processes and their descendants are on copies. Processes that are forked in a slice inherit them.
pub(super) fn on_copies(pids: &[Pid]) -> Vec<Pid> {
    let mut all = Tree::of(pids).walk(true);
    all.retain(|&pid| {
        ProcDir::of(pid).is_ok_and(|process| look_for_text_of_ours(&process) == Some(true))
    });
    all
}

/// Checks that no canary works on the process, and that the process has no text of TiExec's. `doing` is the verb of the
/// message.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn must_be_plain(doing: &str, pid: Pid, process: &ProcDir) -> Result<(), u8> {
    let number = pid.as_raw_nonzero();
    // Its verdicts may be in another directory than those of this command.
    if let Some(running) = running_canary::on(pid, Path::new(state::DIRECTORY)) {
        warn(format_args!("cannot {doing} process {number}: {running}"));
        return Err(exit::FAILED);
    }
    if look_for_text_of_ours(process) == Some(true) {
        warn(format_args!(
            "cannot {doing} process {number}: it has text on huge pages by tiexec already; \
             fix: tiexecctl revert {number}"
        ));
        return Err(exit::FAILED);
    }
    Ok(())
}

/// Checks at the end of a slice that nobody else has switched the process. `has` says whether the process has copies;
/// `None` if it has ended or cannot be examined. With `None`, the slice counts.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn must_be_as_switched(pid: Pid, has: Option<bool>, wanted: bool) -> Result<(), u8> {
    if has.is_none_or(|has| has == wanted) {
        return Ok(());
    }
    warn(format_args!(
        "process {} was attached to or reverted by somebody else meanwhile, so its last slice does not count",
        pid.as_raw_nonzero()
    ));
    Err(exit::FAILED)
}
