//! Whether what a plan rests on is still so, asked while a thread of the process stands.
//!
//! The session itself makes sure that the stopped thread has the address space that was looked at
//! ([`Session::lay`](tiexec_tracee::session::Session::lay)). Within it, the mappings that are to be changed must
//! be those that were planned for: other threads go on, and may have mapped something else since.

use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::status::Status;
use tiexec_core::skip::FailureKind;
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, c};
use tiexec_tracee::threads;

use super::AttachOrder;
use tiexec_tracee::Failure;

/// Makes sure that each of `vmas` is mapped as it was.
///
/// # Errors
/// `changed`.
pub(super) fn unchanged(space: &AddressSpace, vmas: &[&Vma]) -> Result<(), Failure> {
    let changed = space.first_changed(vmas).map_err(Failure::unreadable)?;
    changed.map_or(Ok(()), |vma| Err(Failure::mapped_otherwise(vma)))
}

/// What has become of a process since it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It runs what it ran, as far as looking tells.
    Same,
    /// It executed another program, or is about to.
    Changed,
    /// It has ended, or is about to.
    Gone,
}

/// Tells why something came to nothing: where the process has ended or executed another program, that is why, and what was noticed of
/// it first (a file without text, memory that is gone, a thread that does not come) only follows from it.
pub(super) fn cause(order: &AttachOrder<'_>, failure: Failure) -> Failure {
    match fate(order) {
        Fate::Changed => changed(),
        Fate::Gone => gone(),
        // What is gone although the process is there was another program.
        Fate::Same if failure.reason == FailureKind::TargetGone => changed(),
        Fate::Same => failure,
    }
}

/// Makes sure that the process runs what it ran.
///
/// # Errors
/// `changed`, `target_gone`.
pub(super) fn still_there(order: &AttachOrder<'_>) -> Result<(), Failure> {
    match fate(order) {
        Fate::Same => Ok(()),
        Fate::Changed => Err(changed()),
        Fate::Gone => Err(gone()),
    }
}

/// Tells why a process could not even be looked at: that it has ended, or executes another program, comes before what follows from it.
pub fn cause_at_first_look(pid: Pid, failure: Failure) -> Failure {
    match alive(pid) {
        None if failure.reason != FailureKind::TargetGone => gone(),
        Some(_) if failure.reason == FailureKind::TargetGone => changed(),
        _ => failure,
    }
}

fn changed() -> Failure {
    Failure::new(FailureKind::Changed, "it executed another program meanwhile")
}

fn gone() -> Failure {
    Failure::new(FailureKind::TargetGone, "it ended meanwhile")
}

fn fate(order: &AttachOrder<'_>) -> Fate {
    let Some(threads) = alive(order.pid) else { return Fate::Gone };
    let same = |status: &Status| status.credentials.same_rights(order.credentials);
    // A program that is about to be executed by one thread has all others killed first.
    let dying = threads.iter().any(is_dying);
    let is_it = !dying && order.space.is_still_of(order.process) && threads.iter().any(same);
    if is_it { Fate::Same } else { Fate::Changed }
}

/// The threads of a process; `None` if none of them goes on.
fn alive(pid: Pid) -> Option<Vec<Status>> {
    let process = ProcDir::of(pid).ok()?;
    let tids = threads::list(&process, pid);
    let threads: Vec<Status> =
        tids.into_iter().filter_map(|tid| threads::alive(&process, tid)).collect();
    threads.iter().any(|status| !is_dying(status)).then_some(threads)
}

fn is_dying(status: &Status) -> bool {
    status.pending >> (c::SIGKILL - 1) & 1 == 1
}
