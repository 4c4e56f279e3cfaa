//! Waits until a service runs its own program: before that, systemd's child and shells execute.
//!
//! The wait reads `/proc/PID/stat`, `comm` and `exe` only. The kernel answers all three whatever the process does, so
//! the deadline holds.

use std::time::Instant;

use tiexec_core::proc::stat;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, process};

use crate::times;

/// Programs that execute another one for a service, by their file names.
const SHELLS: [&str; 14] = [
    "sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "rbash", "tcsh",
    "yash", "zsh",
];
/// systemd itself, between fork and exec.
const SYSTEMD: [&str; 2] = ["systemd", "systemd-executor"];

/// The result of the wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// This main process runs its program.
    Running(Pid),
    /// The time is over, and this main process is still a shell, or systemd's child.
    StillShell(Pid),
    /// The time is over, and no process was found.
    Nobody,
    /// The main process has ended.
    Ended,
}

/// The result of a search for the main process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// The main process.
    Found(Pid),
    /// The main process may still come.
    NotYet,
    /// The main process has ended.
    Ended,
}

/// Waits until the main process runs its program, at most until `deadline`. `find` searches for the process.
pub fn wait(mut find: impl FnMut() -> Search, deadline: Instant) -> Waited {
    loop {
        match find() {
            Search::Found(pid) => return wait_for(pid, deadline),
            Search::Ended => return Waited::Ended,
            Search::NotYet => {}
        }
        if Instant::now() >= deadline {
            return Waited::Nobody;
        }
        std::thread::sleep(times::SEARCH);
    }
}

fn wait_for(pid: Pid, deadline: Instant) -> Waited {
    let Ok(process) = ProcDir::of(pid) else { return Waited::Ended };
    let mut program = MainProgram::default();
    loop {
        let Some(look) = Moment::at(&process) else { return Waited::Ended };
        let is_shell = look.executes_another();
        let now = Instant::now();
        if program.is_up(look, is_shell, now) {
            return Waited::Running(pid);
        }
        if now >= deadline {
            return if is_shell { Waited::StillShell(pid) } else { Waited::Running(pid) };
        }
        std::thread::sleep(times::MAIN_PROCESS);
    }
}

/// Returns whether the executable at this path executes the program of a service: a shell, or systemd itself.
pub fn executes_another(exe: &[u8]) -> bool {
    let name = exe.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    SHELLS.iter().chain(&SYSTEMD).any(|known| known.as_bytes() == name)
}

/// The main process at one moment.
#[derive(Debug)]
struct Moment {
    comm: Vec<u8>,
    exe: Vec<u8>,
    is_asleep: bool,
    /// How long it ran so far, in clock ticks.
    run_time: u64,
}

impl Moment {
    /// Returns `None` if the process has ended.
    fn at(process: &ProcDir) -> Option<Self> {
        let stat = process.read("stat").ok()?;
        let state = stat::state(&stat).ok().filter(|state| !b"ZX".contains(state))?;
        Some(Self {
            comm: process.read("comm").unwrap_or_default(),
            exe: process.exe_path().unwrap_or_default(),
            is_asleep: state == b'S',
            run_time: stat::run_time(&stat).ok()?,
        })
    }

    /// Returns whether this is a shell, or systemd's child, whose name is in parentheses until it execs.
    fn executes_another(&self) -> bool {
        executes_another(&self.exe)
            || self.comm.starts_with(b"(") && self.comm.trim_ascii_end().ends_with(b")")
    }
}

/// The program that the main process runs.
#[derive(Debug, Default)]
struct MainProgram {
    exe: Vec<u8>,
    since: Option<Instant>,
    asleep_since: Option<Instant>,
    /// How long the process ran before it executed the program, in clock ticks.
    run_time_before: u64,
}

impl MainProgram {
    /// Takes in a look; returns whether the program's `ld.so` is done.
    fn is_up(&mut self, look: Moment, is_shell: bool, now: Instant) -> bool {
        if look.exe != self.exe {
            (self.exe, self.since, self.asleep_since) = (look.exe, Some(now), None);
        }
        if is_shell {
            self.run_time_before = look.run_time;
            return false;
        }
        self.asleep_since = look.is_asleep.then(|| self.asleep_since.unwrap_or(now));
        let lasts = |since: Option<Instant>, time| since.is_some_and(|since| now >= since + time);
        lasts(self.asleep_since, times::ASLEEP)
            || lasts(self.since, times::BEGINNING)
            || look.run_time >= self.run_time_before + process::ticks(times::WORK)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn look(exe: &str, is_asleep: bool, run_time: u64) -> Moment {
        Moment { comm: b"x\n".to_vec(), exe: exe.into(), is_asleep, run_time }
    }

    #[test]
    fn shells_and_systemd_execute_another() {
        for exe in ["/usr/bin/dash", "/bin/busybox", "/usr/lib/systemd/systemd-executor"] {
            assert!(look(exe, false, 0).executes_another(), "{exe}");
        }
        assert!(!look("/usr/sbin/mariadbd", false, 0).executes_another());
        let child = Moment { comm: b"(mariadbd)\n".to_vec(), ..look("", false, 0) };
        assert!(child.executes_another());
    }

    #[test]
    fn a_program_is_up_when_it_sleeps_has_worked_or_is_old() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let work = process::ticks(times::WORK);
        let mut program = MainProgram::default();
        assert!(!program.is_up(look("/bin/sh", true, 9 * work), true, at(0)));
        assert!(!program.is_up(look("/bin/sh", true, 9 * work), true, at(5000)));
        // The shell's sleep and work are not the program's.
        assert!(!program.is_up(look("/bin/x", true, 9 * work), false, at(5020)));
        assert!(!program.is_up(look("/bin/x", false, 9 * work), false, at(5140)));
        assert!(!program.is_up(look("/bin/x", true, 9 * work), false, at(5160)));
        assert!(program.is_up(look("/bin/x", true, 9 * work), false, at(5260)));
        assert!(program.is_up(look("/bin/x", false, 10 * work), false, at(5280)));
        assert!(program.is_up(look("/bin/x", false, 9 * work), false, at(6020)));
    }
}
