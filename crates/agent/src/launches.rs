//! Programs that `tiexec` has started and handed over, for the time of their start.
//!
//! A launch asks over a socket that every user may connect to ([`hand_over`](tiexec_engine::follow::hand_over)). What a
//! user could make of it is bounded:
//!
//! - The kernel says which process asks, so nobody hands over the process of another user.
//! - The agent treats a user's process only as long as it has the user IDs of the launch and is dumpable. A program that
//!   gains rights by its exec is left alone, as a companion would have to leave it alone. A program that root starts may
//!   become another user's.
//! - Each user has room for [`MOST_OF_A_USER`] processes, each for a minute at most.
//! - The work on such a process is beside all other work, and takes the user's own share of the agent's time and of
//!   `max-copies`. A crash counts for the user alone. All this holds for root's launches, too.

use std::collections::HashMap;
use std::time::Instant;

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use rustix::process::test_kill_process;
use tiexec_core::config::Settings;
use tiexec_engine::identity::Identity;
use tiexec_engine::times;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;

use crate::processes::Process;
use crate::rules::Rule;

/// Most processes of one user.
const MOST_OF_A_USER: usize = 256;
/// Most processes of all users.
const MOST: usize = 4096;

/// A program that was handed over.
#[derive(Debug)]
struct Launch {
    /// The program that asked: `tiexec`, which has not executed the user's program yet.
    launcher: Identity,
    /// The user of the process that asked.
    uid: u32,
    until: Instant,
}

/// The programs that are in their start, and the rule by which the agent treats them.
#[derive(Debug)]
pub(crate) struct Launches {
    launches: HashMap<Pid, Launch>,
    /// The rule for all of them.
    pub(crate) rule: Rule,
}

impl Launches {
    pub(crate) fn new() -> Self {
        Self {
            launches: HashMap::new(),
            rule: Rule::of_launches(times::BEGINNING, Settings::default()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// Takes a process. Returns whether there was room for it.
    pub(crate) fn add(&mut self, pid: Pid, launcher: Identity, uid: u32, now: Instant) -> bool {
        self.expire(now);
        let of_the_user = self.launches.values().filter(|launch| launch.uid == uid).count();
        let has_room = of_the_user < MOST_OF_A_USER && self.launches.len() < MOST;
        if has_room {
            let until = now + times::longest_start();
            self.launches.insert(pid, Launch { launcher, uid, until });
        }
        has_room
    }

    /// Forgets processes of which a thread has ended, unless they live: an exec by another thread ends the first one.
    pub(crate) fn forget<'a>(&mut self, pids: impl IntoIterator<Item = &'a Pid>) {
        for &pid in pids {
            if self.launches.contains_key(&pid) && test_kill_process(pid) == Err(Errno::SRCH) {
                self.launches.remove(&pid);
            }
        }
    }

    /// Returns when the agent looks at the process for the last time, shortly before its start is over in any case.
    pub(crate) fn last_look(&self, pid: Pid) -> Option<Instant> {
        self.launches.get(&pid)?.until.checked_sub(times::BEGINNING)
    }

    /// Forgets processes whose start is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.launches.retain(|_, launch| now < launch.until);
    }

    /// Returns whether the process is in its start, and has no rights that the launch did not have. Root's launch has all.
    /// The start begins with the exec: an attach to the launching process would keep its helper from tracing it.
    pub(crate) fn has(&self, pid: Pid, process: &ProcDir, facts: &Process) -> bool {
        let Some(launch) = self.launches.get(&pid) else { return false };
        let has_only = |user| {
            // The kernel gives the files in /proc/PID of a process that is not dumpable to root (`task_dump_owner` in
            // fs/proc/base.c), and not the directory.
            let owner = statat(process, "status", AtFlags::empty()).map(|file| file.st_uid);
            owner == Ok(user) && facts.uids.iter().all(|&uid| uid == user)
        };
        let (launcher, now) = (launch.launcher, facts.identity);
        let has_execed = now.program() == 0 || now != launcher;
        let is_same = now.start_time == launcher.start_time;
        is_same && has_execed && (launch.uid == 0 || has_only(launch.uid))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    fn pid(raw: usize) -> Pid {
        // No process has such an ID: it is beyond the largest `kernel.pid_max`.
        i32::try_from(raw + (1 << 23)).ok().and_then(Pid::from_raw).expect("a number")
    }

    /// A process that has asked, and has not exec'ed the user's program yet, is left alone.
    #[test]
    fn a_start_begins_with_the_exec() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read -r _; exec sleep 60"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        // A spawn can return before the kernel has noted the address of the stack.
        child.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("its line");
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process ID");
        let process = ProcDir::of(pid).expect("/proc");
        let identity = || Identity::of(&process).expect("it lives");
        let (launcher, mut launches) = (identity(), Launches::new());
        assert!(launches.add(pid, launcher, 0, Instant::now()));
        let has =
            |identity| launches.has(pid, &process, &Process { identity, ..Process::default() });
        assert!(!has(launcher));
        drop(child.stdin.take());
        while identity() == launcher {
            std::thread::yield_now();
        }
        assert!(has(identity()));
        child.kill().expect("it lives");
        let _status = child.wait().expect("a child");
    }

    #[test]
    fn no_user_takes_the_room_of_others() {
        let now = Instant::now();
        let mut launches = Launches::new();
        let launcher = Identity::default();
        let taken = (1..10_000).filter(|&raw| launches.add(pid(raw), launcher, 1000, now)).count();
        assert_eq!(taken, MOST_OF_A_USER);
        assert!(launches.add(pid(20_000), launcher, 1001, now));
        // Those that have ended make room, and so does time.
        launches.forget(&[pid(1)]);
        assert!(launches.add(pid(20_001), launcher, 1000, now));
        assert!(!launches.add(pid(20_002), launcher, 1000, now));
        assert!(launches.add(pid(20_002), launcher, 1000, now + times::longest_start()));
        for user in 0..20 {
            let first = 30_000 + 300 * usize::try_from(user).expect("small");
            for raw in first..first + 300 {
                let _full = launches.add(pid(raw), launcher, user, now);
            }
        }
        assert!(launches.launches.len() <= MOST);
        launches.expire(now + 2 * times::longest_start());
        assert!(launches.is_empty());
    }
}
