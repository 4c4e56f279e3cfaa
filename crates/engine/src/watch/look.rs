//! One look at a process.

use serde::{Deserialize, Serialize};
use tiexec_core::proc::stat;
use tiexec_core::skip::Reason;
use tiexec_remap::attach::AttachOrder;
use tiexec_remap::images::Images;
use tiexec_remap::policy::Policy;
use tiexec_remap::workers;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process};

use super::{Copies, may_pass};
use crate::identity::Identity;
use crate::locked_target::{LONGEST, LockedTarget, Treated, look_for_text_of_ours};
use crate::times;

/// The callback that hears what was done to a process.
pub type Tell<'a> = &'a mut dyn FnMut(&LockedTarget, &Treated);

/// The outcome of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The process could not be seen, or is not meant.
    Unseen,
    /// No text could become huge, or it was huge already.
    Nothing,
    /// All that could be huge is in copies now.
    Copied,
    /// Some text is huge by other means, or stays as it is.
    Text,
    /// There is text that could be huge, and the obstacle may be gone a moment later.
    MayPass,
    /// Somebody has reverted the program.
    Reverted,
}

impl Outcome {
    pub(crate) const fn of_failure(reason: Reason) -> Self {
        if may_pass(reason) { Self::MayPass } else { Self::Text }
    }
}

/// Looks at a process if it `is_meant`: does `treat`, unless somebody has reverted the program that has had copies.
/// `treat` is told whether the program has copies, and says whether it has them afterwards. If the process has other
/// credentials, a child process does all this, as the process's user: what `treat` keeps in memory is lost then.
pub(crate) fn look(
    pid: Pid,
    copies: &mut Copies,
    is_meant: impl FnOnce(&ProcDir) -> bool,
    treat: impl FnOnce(&ProcDir, &mut bool) -> Outcome,
) -> Outcome {
    let had_copies = copies.were_seen(pid);
    let unseen = (Outcome::Unseen, had_copies);
    let one = || {
        let Some(process) = ProcDir::of(pid).ok().filter(is_meant) else {
            return unseen;
        };
        if is_launching(&process) {
            return unseen;
        }
        let has = look_for_text_of_ours(&process);
        if had_copies && has == Some(false) {
            return (Outcome::Reverted, false);
        }
        let mut has_copies = has.unwrap_or(had_copies);
        let outcome = treat(&process, &mut has_copies);
        (outcome, has_copies)
    };
    let (outcome, has_copies) = if workers::pid_is_of_others(pid) {
        workers::apart_as_its_user(pid, LONGEST, one).unwrap_or(unseen)
    } else {
        one()
    };
    copies.note(pid, has_copies);
    outcome
}

/// Returns whether the process is the launching one, from which this companion was forked, and has not exec'ed the user's
/// program yet. It may work for long before the exec, and an attach to it would keep the launch's helper from tracing it.
fn is_launching(process: &ProcDir) -> bool {
    let program = |process: &ProcDir| {
        let identity = Identity::of(process)?;
        Some((process.exe_path().ok()?, identity.program()))
    };
    let this = ProcDir::this_process().ok();
    program(process)
        .is_some_and(|program_of_it| this.as_ref().and_then(program) == Some(program_of_it))
}

/// Treats a process once. `change` changes the order, `tell` hears of it if anything in the process changed.
///
/// # Errors
/// The work could not begin; the process is as it was.
pub(crate) fn treat(
    pid: Pid,
    policy: Policy,
    images: &mut Images,
    change: impl FnOnce(&mut AttachOrder<'_>),
    tell: Tell<'_>,
    has_copies: &mut bool,
) -> Result<Treated, Reason> {
    let locked = LockedTarget::open(pid).map_err(|failure| failure.reason)?;
    let mut order = locked.order(policy);
    change(&mut order);
    let treated = locked.treat_once(&order, images).map_err(|failure| failure.reason)?;
    // The lock keeps other TiExec processes from a revert here.
    *has_copies = locked.has_text_of_ours().unwrap_or(*has_copies);
    if treated.changed_it() {
        tell(&locked, &treated);
    }
    Ok(treated)
}

/// Returns whether the process has run long enough to be worth a look.
pub(crate) fn has_worked(pid: Pid) -> bool {
    let text = ProcDir::of(pid).and_then(|process| process.read("stat"));
    let time = text.ok().and_then(|text| stat::run_time(&text).ok());
    time.is_none_or(|time| time >= process::ticks(times::WORK))
}
