//! `attach --wait-exec`: an attach after a service has started, in a unit of its own (`tiexec@.service`) or in the
//! service's `ExecStartPost=`.
//!
//! In `ExecStartPost=` the attach must not make the start fail, or delay it for longer than [`IN_THE_START`], because
//! systemd ends a unit whose start takes too long. Nothing waits for a unit of its own, but it must end, too. The attach
//! therefore runs in a child process, which has the rest of the time. The result goes to the journal.

use std::time::{Duration, Instant};

use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_engine::journal;
use tiexec_engine::locked_target::start_time;
use tiexec_engine::wait_exec::{self, Search, Waited};
use tiexec_remap::{systemd_units, workers};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process};

use crate::ctl::targets::selected;
use crate::ctl::{inspect, systemctl};
use crate::exit;
use crate::options::Targets;

/// The limits in `ExecStartPost=`.
const IN_THE_START: Limits = Limits { wait: Duration::from_secs(7), all: Duration::from_secs(10) };
/// The limits in a unit of its own.
const BESIDE: Limits = Limits { wait: Duration::from_secs(60), all: Duration::from_secs(70) };

/// The limits of one call.
struct Limits {
    /// For the wait. The attach needs the rest of the time.
    wait: Duration,
    /// For the wait and the attach together.
    all: Duration,
}

/// Waits for the program, and then calls `attach` with the processes. Returns the exit status.
pub(super) fn run(targets: &Targets, attach: impl FnOnce(&[Pid]) -> u8) -> u8 {
    let begun = Instant::now();
    let beside = Beside::find(targets);
    if beside.as_ref().is_some_and(Beside::is_done) {
        return exit::OK;
    }
    let limits = if beside.is_some() { BESIDE } else { IN_THE_START };
    let mut malformed = false;
    let find = || {
        let pids = selected(targets).unwrap_or_else(|_| {
            malformed = true;
            Vec::new()
        });
        if malformed { Search::Ended } else { main_of(&pids, targets) }
    };
    let waited = wait_exec::wait(find, begun + limits.wait);
    if malformed {
        return exit::USAGE;
    }
    let after = format!("after {:.1} s", begun.elapsed().as_secs_f64());
    let (pid, note) = match waited {
        Waited::Nobody => (process::this(), format!("no process {after}")),
        // systemd may start the unit while the service waits for its next start.
        Waited::Ended if beside.is_some() => return exit::OK,
        Waited::Ended => (process::this(), format!("the main process had ended {after}")),
        Waited::Running(pid) | Waited::StillShell(pid) => {
            let name = name_of(pid);
            let left = (begun + limits.all).saturating_duration_since(Instant::now());
            // The selection happens in this process, because it excludes the selecting process, and the child would
            // select its parent.
            let pids = selected(targets).unwrap_or_default();
            let done = workers::apart(left, || {
                attach(&pids);
                huge_text(pid)
            });
            let done = done.unwrap_or_else(|failure| format!("the attach was given up: {failure}"));
            let still = match waited {
                Waited::StillShell(_) => ", which has executed no other program",
                _ => "",
            };
            let pid_number = pid.as_raw_nonzero();
            (pid, format!("process {pid_number} {name}{still} {after}: {done}"))
        }
    };
    let words: Vec<String> =
        targets.words().iter().map(|word| word.as_encoded_bytes().shown().to_string()).collect();
    journal::note("start", &format!("attach --wait-exec {}: {note}", words.join(" ")), pid);
    exit::OK
}

/// This process, if it is the main process of a unit of its own beside the service.
struct Beside {
    /// True for units of the user's own manager.
    user: bool,
    /// The unit of this process.
    own: String,
    /// The service.
    service: String,
}

impl Beside {
    fn find(targets: &Targets) -> Option<Self> {
        if pid_in("SYSTEMD_EXEC_PID") != Some(process::this()) {
            return None;
        }
        let user = targets.user.is_some();
        let service = systemd_units::with_kind(targets.user.as_ref().or(targets.unit.as_ref())?);
        let units = systemd_units::of(&ProcDir::this_process().ok()?)?;
        let own = if user { units.user?.name } else { units.system };
        (own != service).then_some(Self { user, own, service })
    }

    /// Returns whether the unit has run since the service started. systemd starts the unit again with each unit that
    /// wants the service, also if the service runs already. Whoever has reverted the service since then must find it
    /// reverted.
    fn is_done(&self) -> bool {
        // Both are in microseconds of the same clock, or 0.
        let time = |unit: &str, name: &str| {
            let found = systemctl::properties(self.user, unit, name).ok()?;
            found.first()?.1.parse::<u64>().ok()
        };
        let started = time(&self.service, "ActiveEnterTimestampMonotonic");
        let ended = time(&self.own, "InactiveEnterTimestampMonotonic");
        started.zip(ended).is_some_and(|(started, ended)| started > 0 && ended > started)
    }
}

/// Searches for the main process among the selected ones.
fn main_of(pids: &[Pid], targets: &Targets) -> Search {
    // systemd sets SYSTEMD_EXEC_PID for a command of a unit, and MAINPID if the main process is known
    // (systemd.exec(5)).
    let main = pid_in("MAINPID");
    let is_command_of_unit = pid_in("SYSTEMD_EXEC_PID") == Some(process::this());
    if let Some(main) = main.filter(|_| is_command_of_unit && targets.pids.is_empty()) {
        return match ProcDir::of(main) {
            Ok(_) if pids.contains(&main) => Search::Found(main),
            Ok(_) => Search::NotYet,
            Err(_) => Search::Ended,
        };
    }
    match oldest(pids) {
        Some(pid) => Search::Found(pid),
        // systemd forks the main process before it runs an `ExecStartPost=` command or starts a unit behind the service,
        // so the main process has ended.
        None if is_command_of_unit || !targets.pids.is_empty() => Search::Ended,
        None => Search::NotYet,
    }
}

fn pid_in(variable: &str) -> Option<Pid> {
    Pid::from_raw(std::env::var(variable).ok()?.parse().ok()?)
}

/// Returns the oldest process.
fn oldest(pids: &[Pid]) -> Option<Pid> {
    let begun = |pid: &Pid| ProcDir::of(*pid).ok().and_then(|process| start_time(&process));
    let all = pids.iter().filter_map(|pid| Some((begun(pid)?, *pid)));
    all.min_by_key(|&(begun, pid)| (begun, pid.as_raw_nonzero())).map(|(_, pid)| pid)
}

fn name_of(pid: Pid) -> String {
    let comm = ProcDir::of(pid).and_then(|process| process.read("comm")).unwrap_or_default();
    comm.trim_ascii_end().shown().to_string()
}

/// Describes how much text of the process is huge.
fn huge_text(pid: Pid) -> String {
    inspect::report(pid.as_raw_nonzero().get()).map_or_else(
        |_| "it could not be looked at".to_owned(),
        |report| format!("huge {} of {} MiB text", mib(report.huge_bytes), mib(report.text_bytes)),
    )
}
