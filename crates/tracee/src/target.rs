//! A process that TiExec works on, as it was when it was opened.
//!
//! Its identity is its address space, not its PID. A PID, a pidfd and a start time survive execve(2); an address
//! space does not ([`tiexec_sys::address_space`]). A target is therefore opened once, and everything after that
//! uses what was opened then.

use tiexec_core::escape::AsShown;
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::status::{Credentials, Status};
use tiexec_core::skip::{FailureKind, SkipReason};
use tiexec_sys::address_space::AddressSpace;
use tiexec_sys::procfs::{self, ProcDir};
use tiexec_sys::{Pid, c};

use crate::absence::Absence;
use crate::failure::Failure;
use crate::threads;

/// A process, opened once.
#[derive(Debug)]
pub struct Target {
    /// Its PID.
    pub pid: Pid,
    /// A thread of the process that has its address space: the first thread, unless that has ended.
    pub task: Pid,
    /// The directory of `task` under `/proc`.
    pub process: ProcDir,
    /// The address space of `task`, which TiExec examines and switches.
    pub space: AddressSpace,
    /// The credentials of `task`.
    pub credentials: Credentials,
    /// Its name, escaped for output.
    pub comm: String,
}

/// The fate of a process since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It runs the same program, as far as `/proc` shows.
    Same,
    /// It executed another program, or is about to.
    Changed,
    /// It has ended, or is about to.
    Gone,
}

impl Target {
    /// Opens a process, once `lock` has locked it. Opening waits for a kernel lock of the process's memory, which a
    /// hostile process may hold for ever. The lock must come first, so that a later tracer learns from it that this
    /// one is still at work.
    ///
    /// # Errors
    /// `target_gone`; `not_selected` for a kernel thread; `ptrace_denied`; `fd_limit`; the errors of `lock`.
    pub fn open<L>(
        pid: Pid,
        lock: impl FnOnce(&ProcDir) -> Result<L, Failure>,
    ) -> Result<(Self, L), Failure> {
        let named = ProcDir::of(pid)
            .map_err(|error| absent(pid).unwrap_or_else(|| Failure::unreadable(error)))?;
        let leader = named.status().map_err(Failure::unreadable)?;
        let comm = leader.name.shown().to_string();
        let alive = if leader.has_mm { Some(pid) } else { threads::first_alive(&named, pid) };
        let task = alive.ok_or_else(|| {
            let unread = || named.list("task").err().map(Failure::unreadable);
            absent(pid).or_else(unread).unwrap_or_else(gone)
        })?;
        let process =
            if task == pid { named } else { ProcDir::of(task).map_err(Failure::unreadable)? };
        let lock = lock(&process)?;
        let space = AddressSpace::open(&process).map_err(Failure::untraceable)?;
        let credentials = threads::alive(&process, task).ok_or_else(gone)?.credentials;
        Ok((Self { pid, task, process, space, credentials, comm }, lock))
    }

    /// Lists its threads, the leader first.
    pub fn threads(&self) -> Vec<Pid> {
        threads::list(&self.process, self.pid)
    }

    /// Returns whether a thread with this status has the rights that the target had.
    pub fn same_rights(&self, status: &Status) -> bool {
        status.credentials.same_rights(&self.credentials)
    }

    /// Makes sure that each of `vmas` is still mapped as before: other threads go on, and may have mapped something
    /// else since. (The session makes sure that the stopped thread has this address space.)
    ///
    /// # Errors
    /// `changed`.
    pub fn unchanged(&self, vmas: &[&Vma]) -> Result<(), Failure> {
        let changed = self.space.first_changed(vmas).map_err(Failure::unreadable)?;
        changed.map_or(Ok(()), |vma| Err(Failure::mapped_otherwise(vma)))
    }

    /// Makes sure that the process still runs the same program.
    ///
    /// # Errors
    /// `changed`, `target_gone`.
    pub fn still_there(&self) -> Result<(), Failure> {
        match self.fate() {
            Fate::Same => Ok(()),
            Fate::Changed => Err(changed()),
            Fate::Gone => Err(gone()),
        }
    }

    /// Returns the cause of `failure`. If the process has ended or executed another program, that is the cause.
    /// Anything else only follows from it: a file without text, memory that is gone, a thread that does not stop.
    pub fn cause(&self, failure: Failure) -> Failure {
        match self.fate() {
            Fate::Changed => changed(),
            Fate::Gone => gone(),
            // The process exists, so the program that is gone was an earlier one.
            Fate::Same if failure.reason == FailureKind::TargetGone => changed(),
            Fate::Same => failure.of_process(self.pid),
        }
    }

    /// Returns the cause of `failure`, for a process that could not even be opened. If the process has ended or
    /// executes another program, that is the cause.
    pub fn cause_at_first_look(pid: Pid, failure: Failure) -> Failure {
        // These failures say nothing about the process, and a conclusion from them would be wrong.
        if failure.reason == FailureKind::FdLimit || procfs::is_of_another_namespace() {
            return failure.of_process(pid);
        }
        if let Some(absent) = absent(pid) {
            return absent;
        }
        match alive(pid) {
            None if failure.reason != FailureKind::TargetGone => gone(),
            Some(_) if failure.reason == FailureKind::TargetGone => changed(),
            _ => failure.of_process(pid),
        }
    }

    fn fate(&self) -> Fate {
        let Some(threads) = alive(self.pid) else { return Fate::Gone };
        // Before one thread executes another program, the kernel kills all other threads.
        let dying = threads.iter().any(is_dying);
        let is_it = !dying
            && self.space.is_still_of(&self.process)
            && threads.iter().any(|status| self.same_rights(status));
        if is_it { Fate::Same } else { Fate::Changed }
    }
}

fn changed() -> Failure {
    Failure::new(FailureKind::Changed, "it executed another program meanwhile")
}

fn gone() -> Failure {
    Failure::new(FailureKind::TargetGone, "it ended meanwhile")
}

/// Returns why a process has no text; `None` if it has some.
fn absent(pid: Pid) -> Option<Failure> {
    let absence = Absence::of(pid)?;
    Some(match absence {
        Absence::KernelThread => Failure::new(SkipReason::NotSelected, absence),
        Absence::NoProcess | Absence::Zombie | Absence::Ending => {
            Failure::new(FailureKind::TargetGone, absence)
        }
    })
}

/// Returns the threads of a process; `None` if all of them have ended or are being killed.
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
