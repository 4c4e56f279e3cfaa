//! The files of canaries, which survive a canary's death: the record of the processes that it works on, and all
//! verdicts.
//!
//! A canary holds a lock as long as it lives. It writes its processes into the record before it changes the first of
//! them. If there is a record and nobody holds the lock, the canary was killed: the next canary, or the agent, reverts
//! the processes of the record.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tiexec_advise::canary::Finding;
use tiexec_core::proc::stat;
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::locked_target::{
    LONGEST, Lasts, LockedTarget, look_for_text_of_ours, start_time,
};
use tiexec_remap::Failure;
use tiexec_remap::workers::{self, Pool};
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::kept::{Directory, Locked, Stamp};
use crate::verdicts::{VERSION, Verdicts};

const RECORD: &str = "canary.json";
const VERDICTS: &str = "verdicts.json";
const LOCK: &str = ".canary.lock";

/// A process: its ID, and its start time in clock ticks since boot.
pub type Member = (i32, u64);

/// The processes of a canary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// The boot ID of the time when the record was written.
    boot: String,
    members: BTreeSet<Member>,
    /// `None` if an earlier version wrote the record.
    #[serde(default)]
    runner: Option<Runner>,
}

impl Default for Record {
    fn default() -> Self {
        Self { version: VERSION, boot: String::new(), members: BTreeSet::new(), runner: None }
    }
}

impl Record {
    /// Returns the canary that wrote the record, if it lives.
    fn live_runner(self) -> Option<Runner> {
        let is_of_this_boot = self.boot == boot();
        self.runner.filter(|runner| is_of_this_boot && runner.lives().unwrap_or(false))
    }
}

/// A canary that runs, for messages to others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Runner {
    /// The process ID of `tiexecctl canary`.
    pub pid: i32,
    /// The start time of that process, in clock ticks since boot. The record of an earlier version has zero, which no
    /// process has.
    #[serde(default)]
    pub begun: u64,
    /// The processes that the canary alternates, in words.
    pub subject: String,
    /// When it began, in seconds since 1970.
    pub since: u64,
    /// When it ends, in seconds since 1970, except for its last switch, which has no limit.
    pub until: u64,
}

impl Runner {
    /// Returns whether the process lives; `None` if it is gone.
    fn lives(&self) -> Option<bool> {
        let text = ProcDir::of(Pid::from_raw(self.pid)?).ok()?.read("stat").ok()?;
        // A killed process that nobody has waited for keeps its number and its start time.
        let is_dead = matches!(stat::state(&text).ok()?, b'Z' | b'X');
        Some(!is_dead && stat::start_time(&text).ok()? == self.begun)
    }
}

/// The directory of the record and of the verdicts.
#[derive(Debug)]
pub struct Canaries(Directory);

impl Canaries {
    /// Opens the directory, and makes it if need be.
    ///
    /// # Errors
    /// Somebody else could have put it there, or it cannot be made.
    pub fn open(path: &Path) -> Result<Self, String> {
        Directory::open(path).map(Self)
    }

    /// Opens the directory if it is there; `None` if this user may not use it, either.
    pub fn open_existing(path: &Path) -> Option<Self> {
        path.is_dir().then(|| Self::open(path).ok()).flatten()
    }

    /// Returns the verdicts, and the reason why their file was set aside.
    ///
    /// # Errors
    /// The file could not be read at the moment. It stays as it is.
    pub fn verdicts(&self) -> Result<(Verdicts, Option<String>), String> {
        self.0.load(VERDICTS, VERSION)
    }

    /// Reads the verdicts, and changes nothing.
    ///
    /// # Errors
    /// The file cannot be read, or its owner or mode is not safe.
    pub fn look(&self) -> Result<Verdicts, String> {
        self.0.read(VERDICTS, VERSION)
    }

    /// Returns a stamp of the file of verdicts, which changes whenever the file is written.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.0.stamp(VERDICTS)
    }

    /// Keeps findings. Returns why they could not be written.
    pub fn keep(&self, new: Vec<Finding>) -> Option<String> {
        let add = |all: &mut Verdicts| new.into_iter().for_each(|finding| all.add(finding));
        self.0.update(VERDICTS, VERSION, add).map_or_else(Some, |(_, unwritten)| unwritten)
    }

    /// Begins a canary; `None` if there is one already.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn begin(&self) -> Result<Option<Turn<'_>>, String> {
        match self.0.lock(LOCK, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => Ok(Some(Turn {
                directory: &self.0,
                _lock: lock,
                runner: None,
                noted: Cell::new(false),
            })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(self.0.failed("lock", LOCK, errno)),
        }
    }

    /// Returns whether there is a record, of a live canary or of a killed one.
    pub(crate) fn has_record(&self) -> bool {
        self.0.stamp(RECORD).is_some()
    }

    /// Returns the processes of the record.
    ///
    /// # Errors
    /// The record cannot be read, so the processes are not known.
    pub(crate) fn members(&self) -> Result<BTreeSet<Member>, String> {
        let record = self.0.read::<Record>(RECORD, VERSION);
        record.map(|record| record.members).map_err(|why| format!("cannot read {RECORD}: {why}"))
    }

    /// Returns the canary that the record names, if it lives. Somebody else may hold the lock meanwhile, who has not
    /// written a record yet: the next canary, or the agent, while it reverts what a killed one left.
    pub fn runner(&self) -> Option<Runner> {
        self.0.read::<Record>(RECORD, VERSION).ok()?.live_runner()
    }

    /// Returns the running canary that works on a process; `None` if there is none.
    pub fn runner_on(&self, member: Member) -> Option<Runner> {
        let record = self.0.read::<Record>(RECORD, VERSION).ok()?;
        record.members.contains(&member).then(|| record.live_runner()).flatten()
    }
}

/// The right to be the one canary.
#[derive(Debug)]
pub struct Turn<'a> {
    directory: &'a Directory,
    _lock: Locked,
    /// Set by [`announce`](Self::announce).
    runner: Option<Runner>,
    /// True while the record has processes.
    noted: Cell<bool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A record without processes says only which canary runs.
        if self.runner.is_some() && !self.noted.get() {
            self.directory.remove(RECORD);
        }
    }
}

/// The outcome for the processes that a killed canary had left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakenBack {
    /// The reverted processes.
    pub reverted: Vec<i32>,
    /// The processes that could not be reverted, and why. They stay in the record.
    pub failed: Vec<(i32, String)>,
    /// The number of processes for which no time was left. They stay in the record, too.
    pub left: usize,
    /// Why the record was set aside.
    pub aside: Option<String>,
}

impl Turn<'_> {
    /// Writes down which canary runs, for others that want to begin one.
    ///
    /// # Errors
    /// The record could not be written. The caller must not change any process then.
    pub fn announce(&mut self, runner: Runner) -> Result<(), String> {
        self.runner = Some(runner);
        self.note(&BTreeSet::new())
    }

    /// Replaces the record. The caller changes a process only after it is in the record.
    ///
    /// # Errors
    /// The record could not be written. The caller must not change the processes then.
    pub fn note(&self, members: &BTreeSet<Member>) -> Result<(), String> {
        self.noted.set(self.noted.get() || !members.is_empty());
        let (members, runner) = (members.clone(), self.runner.clone());
        let record = Record { version: VERSION, boot: boot(), members, runner };
        self.directory.write(RECORD, &record)
    }

    /// Removes the record. No process has copies any more.
    pub fn clear(&self) {
        self.noted.set(false);
        self.directory.remove(RECORD);
    }

    /// Reverts the processes of a killed canary, and their descendants; those of `last` come last. After `limit` it begins
    /// with no other process. The calling process must have one thread.
    ///
    /// # Errors
    /// The record could not be read at the moment, so the processes are not known. It stays as it is.
    pub fn take_back(&self, limit: Option<Duration>, last: &[i32]) -> Result<TakenBack, String> {
        let begun = Instant::now();
        let (record, aside) = self.directory.load::<Record>(RECORD, VERSION)?;
        let mut taken = TakenBack { aside, ..TakenBack::default() };
        // No process survives a boot.
        let left = if record.boot == boot() { record.members } else { BTreeSet::new() };
        let lives = |&(pid, begun): &Member| {
            let pid = Pid::from_raw(pid)?;
            (start_time(&ProcDir::of(pid).ok()?)? == begun).then_some(pid)
        };
        let alive: Vec<Pid> = left.iter().filter_map(lives).collect();
        let mut stay = BTreeSet::new();
        let mut pids: Vec<Pid> = Tree::of(&alive).walk(true).into_iter().collect();
        pids.sort_by_key(|pid| last.contains(&pid.as_raw_nonzero().get()));
        for pid in pids {
            let Ok(process) = ProcDir::of(pid) else { continue };
            let number = pid.as_raw_nonzero().get();
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                taken.left += 1;
                stay.extend(start_time(&process).map(|begun| (number, begun)));
                continue;
            }
            if look_for_text_of_ours(&process) == Some(false) {
                continue;
            }
            match take_back(pid) {
                Ok(()) => taken.reverted.push(number),
                Err(why) => {
                    taken.failed.push((number, why));
                    stay.extend(start_time(&process).map(|begun| (number, begun)));
                }
            }
        }
        if stay.is_empty() {
            self.clear();
        } else if stay != left {
            let _stays_as_it_was = self.note(&stay);
        }
        Ok(taken)
    }
}

/// Reverts one process, in a child process.
fn take_back(pid: Pid) -> Result<(), String> {
    let one = |pid, pool: &mut Pool| {
        let mut locked = LockedTarget::open_in_turn(pid, pool)?;
        locked.lasts = Lasts::UntilUndone;
        let reverted = locked.revert_once(false)?;
        reverted.failure.map_or(Ok(()), Err)
    };
    let gave_up = |_, failure: &Failure| Err(failure.clone());
    let mut done = workers::each_apart(&[pid], LONGEST, one, gave_up);
    done.pop().unwrap_or(Ok(())).map_err(|failure| failure.to_string())
}

/// Returns the boot ID of the running system.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each process may take the agent a minute, and a user decides how many there are.
    #[test]
    fn processes_for_which_no_time_is_left_stay_in_the_record() {
        let directory = tempfile::tempdir().unwrap();
        let canaries = Canaries::open(&directory.path().join("state")).unwrap();
        let turn = canaries.begin().unwrap().unwrap();
        let mut child = tiexec_engine::programs::of_user("sleep").arg("60").spawn().unwrap();
        let number = child.id().cast_signed();
        let pid = Pid::from_raw(number).unwrap();
        let member = (number, start_time(&ProcDir::of(pid).unwrap()).unwrap());
        turn.note(&BTreeSet::from([member])).unwrap();
        let taken = turn.take_back(Some(Duration::ZERO), &[]).unwrap();
        assert_eq!((taken.left, taken.failed, taken.reverted), (1, vec![], vec![]));
        assert_eq!(canaries.members(), Ok(BTreeSet::from([member])));
        // The process has no copies, so there is nothing to revert.
        assert_eq!(turn.take_back(None, &[number]), Ok(TakenBack::default()));
        assert!(!canaries.has_record());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A record that cannot be read is not an empty one.
    #[test]
    fn an_unreadable_record_is_not_empty() {
        let directory = tempfile::tempdir().unwrap();
        let canaries = Canaries::open(&directory.path().join("state")).unwrap();
        assert_eq!(canaries.members(), Ok(BTreeSet::new()));
        std::fs::create_dir(directory.path().join("state").join(RECORD)).unwrap();
        assert!(canaries.members().is_err());
    }
}
