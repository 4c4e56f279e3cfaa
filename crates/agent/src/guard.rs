//! The crash guard: programs that die soon after a switch are not switched again.
//!
//! The agent holds a pidfd for each process that it attached to. The pidfd shows how the process ended, whoever its
//! parent is. If the process dies by a crash signal within [`WINDOW`] of the switch, the guard puts the program's build
//! into quarantine. A signal that another process sent, such as an operator or a watchdog, does not count.
//!
//! The guard stops watching a process that executes another program, because the new program has no copies.
//!
//! A Go program handles the signals of a crash and ends with exit status 2, as after a wrong option. So that status counts
//! only with a fault of the program's before it. A JVM may end with exit status 1, which counts only with its
//! report (`jvm`). While records of faults are missing, such an end counts as well, because it may have been a crash.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tiexec_core::escape::AsShown;
use tiexec_engine::identity::Identity;
use tiexec_sys::pidfd::end_of;
use tiexec_sys::process::{self, Wait};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::signal_watch::SignalWatch;
use tiexec_sys::{Errno, Pid, SysError};

use crate::jvm::{self, Patience, Report};
use crate::processes::Process;
use crate::state::{Build, Quarantined, UNSEEN, Whose, now};
use crate::treat::Made;

/// The time after a switch in which a crash counts.
pub const WINDOW: Duration = Duration::from_secs(300);
/// The time after the agent read that a signal was sent, in which a death by that signal counts as the effect: the
/// kernel may write a core dump first.
const EFFECT: Duration = Duration::from_secs(30);
/// The exit status of a Go program that crashed (`runtime/signal_unix.go`, `runtime/panic.go`).
const CRASH_OF_GO: i32 = 2;
/// Most names of Go programs that are remembered.
const NAMES: usize = 32;
/// The signals of a crash: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGSEGV.
const CRASHES: [i32; 5] = [4, 5, 6, 7, 11];

/// Returns the name of a signal of a crash.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        11 => "SIGSEGV",
        UNSEEN => "a signal that was not seen",
        _ => "another signal",
    }
}

/// A process that the agent may attach to. The pidfd will show how it ends.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) pid: Pid,
    pidfd: OwnedFd,
    identity: Identity,
}

impl Held {
    /// Opens the pidfd; `None` if the process is gone, or the PID belongs to another process or program.
    pub(crate) fn of(pid: Pid, identity: Identity) -> Option<Self> {
        let pidfd = process::open_pidfd(pid).ok()?;
        let held = Self { pid, pidfd, identity };
        held.runs_its_program().then_some(held)
    }

    /// The program that the process runs now; none in a process that has ended.
    fn program(&self) -> Option<Identity> {
        ProcDir::of(self.pid).ok().and_then(|process| Identity::of(&process))
    }

    /// Returns whether the process lives and has executed no other program.
    fn runs_its_program(&self) -> bool {
        self.program() == Some(self.identity)
    }

    /// Returns whether the process lives and has executed another program.
    fn runs_another(&self) -> bool {
        let before = self.identity;
        self.program().is_some_and(|now| {
            now.start_time == before.start_time && now.program() != 0 && now != before
        })
    }

    /// Watches the process from now on. A crash counts for `whose` alone, or for the whole machine.
    pub(crate) fn watch(
        self,
        process: &Process,
        whose: Option<Whose>,
        rule: &str,
        made: Made,
        report_of_jvm: Option<Report>,
    ) -> Watched {
        Watched {
            whose,
            exe: process.shown_exe.shown().to_string(),
            rule: rule.to_owned(),
            build: made.build,
            of_go: made.is_go.then(|| process.comm.clone()),
            report_of_jvm,
            held: self,
            since: Instant::now(),
        }
    }
}

/// A process that the agent attached to.
#[derive(Debug)]
pub(crate) struct Watched {
    held: Held,
    whose: Option<Whose>,
    exe: String,
    rule: String,
    build: Build,
    /// The name of a Go program.
    of_go: Option<Vec<u8>>,
    report_of_jvm: Option<Report>,
    since: Instant,
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.pidfd.as_fd()
    }
}

/// How watched processes have ended.
#[derive(Debug)]
pub(crate) struct Ends(HashMap<Pid, Result<Option<Wait>, SysError>>);

impl Ends {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A crash after a switch.
#[derive(Debug)]
pub(crate) struct Crash {
    pub(crate) pid: Pid,
    pub(crate) entry: Quarantined,
    pub(crate) after: Duration,
    /// The process that sent the signal, if it was another process.
    pub(crate) sender: Option<i32>,
}

/// A signal that another process sent to a watched one.
#[derive(Debug)]
struct Sent {
    signal: i32,
    sender: i32,
    heard: Instant,
}

/// The processes whose end the agent waits for.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    watched: Vec<Watched>,
    signals: Option<SignalWatch>,
    sent: HashMap<i32, Sent>,
    /// The records of faults, and the names of the programs that are recorded.
    faults: Option<(BTreeSet<Vec<u8>>, SignalWatch)>,
    /// The last faults of processes.
    faulted: HashMap<i32, Sent>,
    /// When records of faults were last missing.
    missing: Option<Instant>,
    /// The processes in work that may be Go programs, and their names.
    expected: HashMap<i32, Vec<u8>>,
    /// The names of Go programs.
    go: BTreeSet<Vec<u8>>,
}

impl Guard {
    /// Starts to record signals. The second value says why signals cannot be recorded.
    pub(crate) fn new() -> (Self, Option<String>) {
        let (signals, why) = match SignalWatch::open() {
            Ok(signals) => (Some(signals), None),
            Err(error) => (None, Some(error.to_string())),
        };
        (Self { signals, ..Self::default() }, why)
    }

    /// Reads which of the processes were sent a signal by another process.
    fn hear(&mut self, pids: &HashSet<i32>) {
        let (sent, heard) = (&mut self.sent, Instant::now());
        sent.retain(|pid, _| pids.contains(pid));
        let Some(signals) = &mut self.signals else { return };
        // Without a sender, a death counts as the process's own crash. So a missing record hides no crash.
        let _missing = signals.read(|one| {
            // A signal to another thread than the first has that thread's ID as its target, which is not in `pids`. A
            // death by that signal therefore counts as the process's own crash.
            if one.sender != one.target && pids.contains(&one.target) {
                sent.insert(one.target, Sent { signal: one.signal, sender: one.sender, heard });
            }
        });
    }

    /// Reads which of the processes have faulted. A Go program may go on after a fault, so only the last one counts.
    fn hear_faults(&mut self) {
        let pid = |one: &Watched| one.held.pid.as_raw_nonzero().get();
        let of_go = self.watched.iter().filter(|one| one.of_go.is_some());
        let pids: HashSet<i32> = of_go.map(pid).chain(self.expected.keys().copied()).collect();
        let (faulted, heard) = (&mut self.faulted, Instant::now());
        faulted.retain(|pid, _| pids.contains(pid));
        let Some((_, faults)) = &mut self.faults else { return };
        let is_missing = faults.read(|one| {
            if pids.contains(&one.sender) {
                faulted.insert(one.sender, Sent { signal: one.signal, sender: one.sender, heard });
            }
        });
        if is_missing {
            self.missing = Some(heard);
        }
    }

    /// Records the faults of all Go programs that are watched or in work, and of no others.
    fn choose_faults(&mut self) {
        let of_go = self.watched.iter().filter_map(|one| one.of_go.as_ref());
        let names: BTreeSet<Vec<u8>> = of_go.chain(self.expected.values()).cloned().collect();
        if self.faults.as_ref().map_or(names.is_empty(), |(now, _)| *now == names) {
            return;
        }
        // The new watch begins before the old one ends.
        let new = if names.is_empty() { None } else { SignalWatch::open_faults(&names).ok() };
        self.hear_faults();
        // The agent has said so if it can record no signals at all.
        if new.is_none() && !names.is_empty() && self.signals.is_some() {
            self.missing = Some(Instant::now());
            return;
        }
        self.faults = new.map(|watch| (names, watch));
    }

    /// Records the faults of a process from now on, because the work on it begins. Only the first process of a program
    /// may be a Go program that the guard does not know yet.
    pub(crate) fn expect_faults(&mut self, pid: Pid, name: &[u8], is_first: bool) {
        if is_first || self.go.contains(name) {
            self.expected.insert(pid.as_raw_nonzero().get(), name.to_owned());
            self.choose_faults();
        }
    }

    /// Ends [`expect_faults`](Self::expect_faults).
    pub(crate) fn expect_no_faults(&mut self, pid: Pid) {
        if self.expected.remove(&pid.as_raw_nonzero().get()).is_some() {
            self.choose_faults();
        }
    }

    /// Watches a process, unless it has executed another program since the work on it began.
    pub(crate) fn add(&mut self, new: Watched) {
        if new.held.runs_another() {
            return;
        }
        self.sent.remove(&new.held.pid.as_raw_nonzero().get());
        if let Some(name) = new.of_go.as_ref().filter(|_| self.go.len() < NAMES) {
            self.go.insert(name.clone());
        }
        self.watched.retain(|one| one.held.pid != new.held.pid);
        self.watched.push(new);
        self.choose_faults();
    }

    /// Restarts the window of a process. Returns whether the process is watched.
    pub(crate) fn renew(&mut self, pid: Pid) -> bool {
        let watched = self.watched.iter_mut().find(|one| one.held.pid == pid);
        watched.map(|one| one.since = Instant::now()).is_some()
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(AsFd::as_fd)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Forgets the processes among these that have executed another program. A new program has no copies, so its crash
    /// has another cause.
    pub(crate) fn forget_executed(&mut self, executed: &HashSet<Pid>) {
        let runs_on = |held: &Held| !executed.contains(&held.pid) || held.runs_its_program();
        self.watched.retain(|one| runs_on(&one.held));
    }

    /// Returns the ends of the watched processes that have ended.
    pub(crate) fn ends(&self) -> Ends {
        let ends = self.watched.iter().map(|one| (one.held.pid, end_of(one.as_fd())));
        Ends(ends.filter(|(_, end)| !matches!(end, Ok(None))).collect())
    }

    /// Returns the crashes among these ends. The guard stops watching a process once its window is over, unless the
    /// process is a zombie whose parent has not waited for it yet.
    pub(crate) fn crashes(&mut self, Ends(mut ends): Ends) -> Vec<Crash> {
        let mut crashes = Vec::new();
        let pid = |one: &Watched| one.held.pid.as_raw_nonzero().get();
        let pids: HashSet<i32> = self.watched.iter().map(pid).collect();
        // The records of faults before these ends are complete now. A watch that could not be opened is tried again.
        self.choose_faults();
        self.hear_faults();
        let faulted = &self.faulted;
        let is_missing = self.missing.is_some_and(|since| since.elapsed() < EFFECT);
        let mut patience = Patience::new();
        self.watched.retain(|one| {
            let after = one.since.elapsed();
            let end = ends.remove(&one.held.pid).unwrap_or(Ok(None));
            let fault = faulted.get(&pid(one)).filter(|fault| fault.heard.elapsed() < EFFECT);
            let end = match (end, fault) {
                (Ok(Some(Wait::Exited(CRASH_OF_GO))), Some(fault)) if one.of_go.is_some() => {
                    Ok(Some(Wait::Killed(fault.signal)))
                }
                (Ok(Some(Wait::Exited(CRASH_OF_GO))), None)
                    if one.of_go.is_some() && is_missing =>
                {
                    Ok(Some(Wait::Killed(UNSEEN)))
                }
                (Ok(Some(Wait::Exited(jvm::CRASH))), _)
                    if one.report_of_jvm.as_ref().is_some_and(|report| {
                        report.is_written(one.whose.is_some(), &mut patience)
                    }) =>
                {
                    Ok(Some(Wait::Killed(jvm::SIGNAL)))
                }
                (end, _) => end,
            };
            match end {
                Ok(None) => after < WINDOW || has_ended(one.held.pid),
                Ok(Some(Wait::Killed(signal))) if CRASHES.contains(&signal) || signal == UNSEEN => {
                    let entry = Quarantined {
                        build: one.build.clone(),
                        uid: one.whose.as_ref().map(|whose| whose.uid),
                        namespace: one.whose.as_ref().and_then(|whose| whose.namespace.clone()),
                        rule: one.rule.clone(),
                        signal,
                        exe: one.exe.clone(),
                        when: now(),
                    };
                    crashes.push(Crash { pid: one.held.pid, entry, after, sender: None });
                    false
                }
                Ok(Some(_)) => false,
                Err(error) => error.errno == Errno::INTR,
            }
        });
        // The kernel records a signal before the signal kills, so the records of all signals that killed are complete
        // now.
        self.hear(&pids);
        for crash in &mut crashes {
            let sent = self.sent.remove(&crash.pid.as_raw_nonzero().get());
            let sent = sent.filter(|sent| sent.signal == crash.entry.signal);
            let sent = sent.filter(|sent| sent.heard.elapsed() < EFFECT);
            crash.sender = sent.map(|sent| sent.sender);
        }
        self.choose_faults();
        crashes
    }
}

/// Returns whether the process is a zombie.
fn has_ended(pid: Pid) -> bool {
    let status = ProcDir::of(pid).and_then(|process| process.status());
    status.is_ok_and(|status| matches!(status.state, b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use support::require;

    use super::*;

    /// Returns the crashes that the guard sees when a Go program ends with status 2; `None` if the kernel does not tell the
    /// status.
    fn crashes_of_go(missing: Option<Instant>) -> Option<Vec<Crash>> {
        let mut go = tiexec_engine::programs::of_user("sh");
        go.args(["-c", "echo; read -r _; exit 2"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = go.spawn().unwrap();
        // A spawn can return before the kernel has noted the address of the stack, which the identity has.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let identity = Identity::of(&ProcDir::of(pid).unwrap()).unwrap();
        let build = Build { build_id: "b".to_owned(), text: "t".to_owned() };
        let made = Made { build, is_go: true };
        let held = Held::of(pid, identity).unwrap();
        let mut guard = Guard::default();
        guard.watched.push(held.watch(&Process::default(), None, "r", made, None));
        guard.missing = missing;
        drop(child.stdin.take());
        child.wait().unwrap();
        let ends = guard.ends();
        let is_told = ends.0.get(&pid) == Some(&Ok(Some(Wait::Exited(CRASH_OF_GO))));
        is_told.then(|| guard.crashes(ends))
    }

    /// The kernel drops records where a buffer is full, and a user can fill it.
    #[test]
    fn a_missing_record_hides_no_crash() {
        let wrong_option = crashes_of_go(None);
        require!(wrong_option.is_some(), "Linux 6.15");
        assert_eq!(wrong_option.map(|crashes| crashes.len()), Some(0));
        let crashes = crashes_of_go(Some(Instant::now())).unwrap_or_default();
        let [crash] = &crashes[..] else { panic!("no crash") };
        assert_eq!(signal_name(crash.entry.signal), "a signal that was not seen");
        let long_ago = Instant::now().checked_sub(2 * EFFECT);
        assert_eq!(crashes_of_go(long_ago).map(|crashes| crashes.len()), Some(0));
    }
}
