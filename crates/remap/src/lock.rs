//! Lets one TiExec of a user at a time work on a process.
//!
//! Any user may flock(2) any file that the user may open, such as `/proc/PID`, and could so keep root out. The lock
//! is therefore a file in a directory that only the tracer's user may enter:
//!
//! - root: `/run/tiexec/lock`;
//! - any other user: `tiexec/lock` below `XDG_RUNTIME_DIR`, or else below `/run/user/UID`.
//!
//! The file's name identifies the process by its PID namespace, its own PID there, and its start time. Tracers in
//! different PID namespaces, which see the process by different PIDs, so take the same lock. A process that reuses
//! the PID of an earlier one does not inherit its lock. (Tracers in different *time* namespaces see different start
//! times, and do not exclude each other.)
//!
//! If no such directory exists and none can be made, TiExec locks the process's own `auxv`. The kernel opens that
//! file only for those who may read the process's memory: the tracer's user, root, and the process itself. A
//! process of other credentials could then keep the tracer out, so TiExec works on such a process without a lock.
//!
//! Neither root's lock nor a missing lock endangers a process. Between TiExecs that do not exclude each other,
//! ptrace decides for each thread (`already_traced`).

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, openat, statat};
use tiexec_core::proc::stat;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::INITIAL_PID_NAMESPACE;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, process};
use tiexec_tracee::Failure;

use crate::credentials;
use crate::files;
use crate::record::Record;
use crate::runtime_directory;

/// The file in the directory whose time says when files of ended processes were last removed.
const SWEPT: &str = ".swept";
/// The interval at which such files are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// The right to work on a process, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets the next TiExec in"]
pub struct Lock(Held);

#[derive(Debug)]
enum Held {
    /// A file in a directory of this user's.
    File { directory: OwnedFd, name: String, file: File, taken_by: Pid },
    /// A file of the process's own.
    OfProcess { file: File, taken_by: Pid },
    /// No lock, and the reason.
    Nothing(String),
}

impl Lock {
    /// Takes the lock on a process. `thread` is the directory of a living thread of the process.
    ///
    /// # Errors
    /// `busy`: another TiExec of this user is at work on the process. `target_gone`. `ptrace_denied`: this process
    /// may neither read about the process nor trace it.
    pub fn take(thread: &ProcDir) -> Result<Self, Failure> {
        let name = Name::of(thread).map_err(Failure::unreadable)?.to_string();
        let directory = match runtime_directory::open("lock") {
            Ok(directory) => directory,
            Err(why) => return of_process(thread, why),
        };
        match take_in(&directory, &name) {
            Ok(Some(file)) => {
                sweep(&directory);
                let taken_by = process::this();
                Ok(Self(Held::File { directory, name, file, taken_by }))
            }
            Ok(None) => Err(busy()),
            // The file system is full, or no descriptor is free. TiExec still works on the process, with another
            // lock or with none.
            Err(error) => of_process(thread, error.to_string()),
        }
    }

    /// Returns the record in the file of the lock. It stays for the next TiExec of this user that works on this
    /// process. A file without one is removed when the lock is dropped, any other some time after the process has
    /// ended. `None` if the lock is not a file of this user's.
    pub fn record(&self) -> Option<Record<'_>> {
        match &self.0 {
            Held::File { file, .. } => Some(Record::in_file(file)),
            _ => None,
        }
    }

    /// Returns why there is no lock; `None` if there is one.
    pub fn missing(&self) -> Option<&str> {
        match &self.0 {
            Held::Nothing(why) => Some(why),
            _ => None,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the lock too, but must not release it.
        match &self.0 {
            Held::File { directory, name, file, taken_by } if *taken_by == process::this() => {
                if Record::in_file(file).is_empty() && is_at(directory, name, file) {
                    let _stays_for_the_sweep = files::remove(directory, name);
                }
                unlock(file);
            }
            Held::OfProcess { file, taken_by } if *taken_by == process::this() => unlock(file),
            _ => {}
        }
    }
}

/// The identity of a process, for tracers in any PID namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    namespace: u64,
    pid: u32,
    start_time: u64,
}

impl Name {
    fn of(thread: &ProcDir) -> Result<Self, SysError> {
        let status = thread.status()?;
        let gone = || SysError { call: "status", errno: Errno::SRCH };
        let leader = status.tgid.ok_or_else(gone)?;
        // The PID in the process's own namespace, which the kernel shows since Linux 4.1.
        let pid = status.ns_tgid.unwrap_or(leader);
        let text = thread.read_as(&format!("task/{leader}/stat"), "stat")?;
        // A leader that exec replaced hands its start time on (`de_thread` in `fs/exec.c`).
        let start_time = stat::start_time(&text).map_err(|_not_so_in_any_kernel| gone())?;
        Ok(Self { namespace: thread.namespace("ns/pid")?, pid, start_time })
    }

    fn parse(name: &str) -> Option<Self> {
        let mut words = name.split('-');
        let namespace = words.next()?.parse().ok()?;
        let pid = words.next()?.parse().ok()?;
        let start_time = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self { namespace, pid, start_time })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.namespace, self.pid, self.start_time)
    }
}

fn busy() -> Failure {
    Failure::new(FailureKind::Busy, "another tiexec is at work on it")
}

/// Opens the file of that name, creating it if needed, and locks it. Returns `None` while another process holds it.
fn take_in(directory: &OwnedFd, name: &str) -> Result<Option<File>, SysError> {
    loop {
        let file =
            files::open_or_create(directory, name).map_err(SysError::of("open of a lock"))?;
        if !try_lock(&file)? {
            return Ok(None);
        }
        // The last holder may have removed the file in between. Another file may have the name then, or none.
        if is_at(directory, name, &file) {
            return Ok(Some(file));
        }
    }
}

/// `flock(LOCK_EX|LOCK_NB)` — returns whether the lock was free.
fn try_lock(file: impl AsFd) -> Result<bool, SysError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(SysError { call: "flock", errno: errno.into() }),
    }
}

/// Releases the lock, even if a forked child keeps the file open.
fn unlock(file: impl AsFd) {
    let _cannot_fail = flock(file, FlockOperation::Unlock);
}

/// Returns whether the file still has this name.
fn is_at(directory: &OwnedFd, name: &str, file: impl AsFd) -> bool {
    let there = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let here = fstat(file);
    there.is_ok_and(|there| {
        here.is_ok_and(|here| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    })
}

/// Locks a file of the process itself, if that process cannot keep others out by it.
fn of_process(thread: &ProcDir, why: String) -> Result<Lock, Failure> {
    if !credentials::are_ours(thread) {
        return Ok(Lock(Held::Nothing(why)));
    }
    let file = thread.open_file("auxv", false).map_err(Failure::unreadable)?;
    match try_lock(&file) {
        Ok(true) => Ok(Lock(Held::OfProcess { file, taken_by: process::this() })),
        Ok(false) => Err(busy()),
        Err(error) => Ok(Lock(Held::Nothing(error.to_string()))),
    }
}

/// From time to time removes the files of processes that have ended: records, and files that a killed TiExec left.
fn sweep(directory: &OwnedFd) {
    if was_swept(directory) {
        return;
    }
    let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return };
    let Some(ended) = Ended::begin() else { return };
    for entry in entries.flatten() {
        let Ok(text) = entry.file_name().to_str() else { continue };
        let Some(name) = Name::parse(text) else { continue };
        if !ended.knows(name) {
            continue;
        }
        // Lock the file first, as `take_in` does, so that no holder loses its lock. Nobody creates this file again,
        // because its process has ended.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = openat(directory, text, flags, Mode::empty()) else { continue };
        if try_lock(&file) == Ok(true) && is_at(directory, text, &file) {
            let _next_time = files::remove(directory, text);
        }
    }
}

/// Returns whether the directory was swept a short time ago. If not, records that it is swept now.
fn was_swept(directory: &OwnedFd) -> bool {
    let age = statat(directory, SWEPT, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|stat| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).ok()?);
        at.elapsed().ok()
    });
    if age.is_some_and(|age| age < SWEEP_EVERY) {
        return true;
    }
    let Ok(file) = files::open_or_create(directory, SWEPT) else { return true };
    let _it_is_swept_more_often = file.set_modified(SystemTime::now());
    false
}

/// Knows which processes have certainly ended.
struct Ended {
    own_namespace: u64,
    /// All processes by their own PIDs and start times; `None` unless this process sees those of all namespaces.
    all: Option<HashSet<(u32, u64)>>,
}

impl Ended {
    /// Returns `None` if `/proc` belongs to another PID namespace than this process, so that nothing is certain.
    fn begin() -> Option<Self> {
        let this = ProcDir::this_process().ok()?;
        let status = this.status().ok()?;
        if status.tgid != status.ns_tgid {
            return None;
        }
        let own_namespace = this.namespace("ns/pid").ok()?;
        let all = (own_namespace == INITIAL_PID_NAMESPACE).then(|| {
            let identity = |process: ProcDir| {
                let status = process.status().ok()?;
                let start_time = stat::start_time(&process.read("stat").ok()?).ok()?;
                Some((status.ns_tgid.or(status.tgid)?, start_time))
            };
            ProcDir::every().filter_map(|(_, process)| identity(process)).collect()
        });
        Some(Self { own_namespace, all })
    }

    /// Returns whether that process has certainly ended.
    fn knows(&self, name: Name) -> bool {
        if name.namespace != self.own_namespace {
            return self
                .all
                .as_ref()
                .is_some_and(|all| !all.contains(&(name.pid, name.start_time)));
        }
        let Some(pid) = i32::try_from(name.pid).ok().and_then(Pid::from_raw) else { return true };
        let begun = ProcDir::of(pid).and_then(|process| process.read("stat"));
        match begun {
            Ok(text) => stat::start_time(&text).is_ok_and(|begun| begun != name.start_time),
            Err(error) => matches!(error.errno, Errno::NOENT | Errno::SRCH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = Name { namespace: INITIAL_PID_NAMESPACE, pid: 42, start_time: 7 };
        assert_eq!(name.to_string(), "4026531836-42-7");
        assert_eq!(Name::parse(&name.to_string()), Some(name));
        for odd in ["", ".swept", "1-2", "1-2-3-4", "1--2-3", "x-2-3", "1-2-"] {
            assert_eq!(Name::parse(odd), None, "{odd}");
        }
    }
}
