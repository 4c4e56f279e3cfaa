//! The commands that a benchmark runs. Each has its own process group, which ends when a signal ends the benchmark.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use tiexec_sys::usage::Usage;
use tiexec_sys::{Pid, SysError, interrupt, usage};

/// Bytes of a long output that stay in memory: the first ones, and the last ones.
const HEAD: u64 = 64 << 10;
const TAIL: u64 = 1 << 20;
/// The pause between two looks at how long the outputs are.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts the command. The caller waits for it with [`end`].
pub(super) fn start(command: &mut Command) -> io::Result<Pid> {
    let child = command.process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("it has no process id"))
}

/// Waits for the end of the command, and keeps its outputs small meanwhile. Also returns when it ended.
pub(super) fn end(
    pid: Pid,
    outputs: &[&Output],
) -> (Result<(ExitStatus, Usage), SysError>, Instant) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shrinking = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(PAUSE);
                outputs.iter().for_each(|output| output.shrink());
            }
        });
        interrupt::wait_handing_on(pid);
        let ended = (usage::wait(pid), Instant::now());
        over.store(true, Ordering::Relaxed);
        shrinking.thread().unpark();
        ended
    })
}

/// Runs the command to its end.
pub(super) fn run(command: &mut Command, outputs: &[&Output]) -> io::Result<ExitStatus> {
    let (ended, _) = end(start(command)?, outputs);
    let (status, _) = ended.map_err(|error| io::Error::from_raw_os_error(error.errno.0))?;
    Ok(status)
}

/// The output of a command: a file in memory, because a pipe would have to be read while the command runs. Of a long output
/// only the beginning and the end stay in memory.
pub(super) struct Output(File);

impl Output {
    pub(super) fn new(name: &str) -> io::Result<Self> {
        Ok(Self(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?)))
    }

    /// Returns the file for the command.
    pub(super) fn of_command(&self) -> io::Result<Stdio> {
        self.0.try_clone().map(Stdio::from)
    }

    /// Gives the memory back that lies between the beginning and the end. The command notices nothing, because it only
    /// writes.
    fn shrink(&self) {
        let length = self.0.metadata().map_or(0, |of| of.len());
        let between = length.saturating_sub(HEAD + TAIL);
        // Less is not worth the system call.
        if between > TAIL {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _stays_in_memory = fallocate(&self.0, hole, HEAD, between);
        }
    }

    /// Returns what the command has printed, of a long output only the beginning and the end.
    pub(super) fn text(&self) -> String {
        let length = self.0.metadata().map_or(0, |of| of.len());
        let read = |at: u64, length: u64| {
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            let read = self.0.read_exact_at(&mut bytes, at);
            read.map_or_else(|_| String::new(), |()| String::from_utf8_lossy(&bytes).into_owned())
        };
        if length <= HEAD + TAIL {
            return read(0, length);
        }
        read(0, HEAD) + "\n" + &read(length - TAIL, TAIL)
    }
}
