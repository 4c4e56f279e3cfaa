//! One TiExec of a user at a time in a process.
//!
//! Anybody may flock(2) what anybody may open, such as `/proc/PID`: that would let every user keep root out. So the lock
//! is a file in a directory that only the tracer's user may enter:
//!
//! - root: `/run/tiexec/lock`;
//! - any other user: `tiexec/lock` below `XDG_RUNTIME_DIR`, or else below `/run/user/UID`.
//!
//! The file's name says which process is meant: its PID namespace, its id as it counts itself there, and when it began.
//! So tracers in different PID namespaces, which see the process by different ids, take the same lock, and a process that
//! got the id of an earlier one does not inherit that one's lock. (Tracers in different *time* namespaces see different
//! beginnings, and do not exclude each other.)
//!
//! Where there is no such directory and none can be made, the file that is locked is the process's own `auxv`. The kernel
//! opens that only for those who may read the process's memory. They are the tracer's user, root, and the process
//! itself; so a process of other credentials, which could keep the tracer out, is then worked on without a lock.
//!
//! A process is in no danger from root's lock or from the lack of one: between TiExecs that do not exclude each other,
//! ptrace decides (`already_traced`), for each thread by itself.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, openat, statat, unlinkat};
use tiexec_core::proc::stat;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::INITIAL_PID_NAMESPACE;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Errno, Pid, SysError, process};
use tiexec_tracee::Failure;

use crate::credentials;
use crate::runtime_directory;

/// In the directory: when files of processes that have ended were last removed.
const SWEPT: &str = ".swept";
/// How often such files are looked for.
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
    /// Nothing, and why.
    Nothing(String),
}

impl Lock {
    /// Takes the lock on a process. `thread` is the directory of a thread of it that lives.
    ///
    /// # Errors
    /// `busy`: another TiExec of this user is at work on the process. `target_gone`; `ptrace_denied` where the process may
    /// not be read about, nor traced.
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
            // No room, or no descriptor: for want of those the process need not go without.
            Err(error) => of_process(thread, error.to_string()),
        }
    }

    /// Returns the file that goes with the lock, open for reading and writing: what is written there stays for the next
    /// TiExec of this user that works on this process. It is removed some time after the process has ended, and at once
    /// if it is empty when the lock is dropped. `None` where the lock is no file of this user's.
    pub fn record(&self) -> Option<&File> {
        match &self.0 {
            Held::File { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Says why there is no lock, if there is none.
    pub fn missing(&self) -> Option<&str> {
        match &self.0 {
            Held::Nothing(why) => Some(why),
            _ => None,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the lock too, but not the say.
        match &self.0 {
            Held::File { directory, name, file, taken_by } if *taken_by == process::this() => {
                if fstat(file).is_ok_and(|stat| stat.st_size == 0) && is_at(directory, name, file) {
                    let _stays_for_the_sweep = unlinkat(directory, name.as_str(), AtFlags::empty());
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
        // Its own count, as the kernel says since Linux 4.1.
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

/// Opens the file of that name, made if need be, and locks it; `None` while another holds it.
fn take_in(directory: &OwnedFd, name: &str) -> Result<Option<File>, SysError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let file = openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(SysError::of("open of a lock"))?);
        if !try_lock(&file)? {
            return Ok(None);
        }
        // The last holder may have removed the file in between: then another file has the name, or none.
        if is_at(directory, name, &file) {
            return Ok(Some(file));
        }
    }
}

/// `flock(LOCK_EX|LOCK_NB)` — returns whether nobody else holds it.
fn try_lock(file: impl AsFd) -> Result<bool, SysError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(SysError { call: "flock", errno: errno.into() }),
    }
}

/// Gives the lock back, also where such a child keeps the file open.
fn unlock(file: impl AsFd) {
    let _cannot_fail = flock(file, FlockOperation::Unlock);
}

/// Returns whether the name is still this file's.
fn is_at(directory: &OwnedFd, name: &str, file: impl AsFd) -> bool {
    let there = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let here = fstat(file);
    there.is_ok_and(|there| {
        here.is_ok_and(|here| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    })
}

/// Locks a file of the process itself, where that can keep nobody else out.
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

/// Removes the files of processes that have ended, from time to time: those that a killed TiExec left, and records.
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
        // As in `take_in`, so that nobody loses a lock: nobody makes this file anew, for its process has ended.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = openat(directory, text, flags, Mode::empty()) else { continue };
        if try_lock(&file) == Ok(true) && is_at(directory, text, &file) {
            let _next_time = unlinkat(directory, text, AtFlags::empty());
        }
    }
}

/// Returns whether the directory was swept a short time ago, and notes that it is now.
fn was_swept(directory: &OwnedFd) -> bool {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let age = statat(directory, SWEPT, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|stat| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).ok()?);
        at.elapsed().ok()
    });
    if age.is_some_and(|age| age < SWEEP_EVERY) {
        return true;
    }
    let Ok(file) = openat(directory, SWEPT, flags, Mode::RUSR | Mode::WUSR) else { return true };
    let _it_is_swept_more_often = File::from(file).set_modified(SystemTime::now());
    false
}

/// Tells whether a process has certainly ended.
struct Ended {
    own_namespace: u64,
    /// All processes by their own ids and beginnings, where this process sees those of all namespaces.
    all: Option<HashSet<(u32, u64)>>,
}

impl Ended {
    /// `None` where nothing can be told: `/proc` counts by another namespace than this process.
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
