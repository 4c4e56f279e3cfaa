//! The commands that a benchmark runs. Each has its own process group, which ends when a signal ends the benchmark.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::process::{PidfdFlags, pidfd_open};
use tiexec_sys::usage::Usage;
use tiexec_sys::{Pid, SysError, interrupt, usage};

/// Bytes of a long output that stay in memory: the first ones, and the last ones.
const HEAD: u64 = 64 << 10;
const TAIL: u64 = 1 << 20;
/// The pause between two looks at how long the outputs are.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts the command. The caller waits for it with [`end`].
pub(super) fn start(command: &mut Command) -> io::Result<Pid> {
    let child = command.process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("it has no process id"))
}

/// Waits for the end of the command, and keeps its outputs small meanwhile.
pub(super) fn end(pid: Pid, outputs: &mut [Output]) -> Result<(ExitStatus, Usage), SysError> {
    // Without one, nobody looks at the outputs.
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        while !interrupt::asked()
            && poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PAUSE)) == Ok(0)
        {
            outputs.iter_mut().for_each(Output::shrink);
        }
    }
    interrupt::wait_handing_on(pid);
    usage::wait(pid)
}

/// Runs the command to its end.
pub(super) fn run(command: &mut Command, outputs: &mut [Output]) -> io::Result<ExitStatus> {
    let ended = end(start(command)?, outputs);
    let (status, _) = ended.map_err(|error| io::Error::from_raw_os_error(error.errno.0))?;
    Ok(status)
}

/// The output of a command: a file in memory, because a pipe would have to be read while the command runs. Of a long output
/// only the beginning and the end stay in memory.
pub(super) struct Output {
    file: File,
    /// Where the bytes begin that are in memory after those of the beginning.
    kept_from: u64,
}

impl Output {
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
        Ok(Self { file, kept_from: HEAD })
    }

    /// Returns the file for the command.
    pub(super) fn of_command(&self) -> io::Result<Stdio> {
        self.file.try_clone().map(Stdio::from)
    }

    fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |of| of.len())
    }

    /// Gives the memory back that lies between the beginning and the end.
    fn shrink(&mut self) {
        let to = self.len().saturating_sub(TAIL);
        // Less is not worth the system call, in which the command cannot write.
        if to.saturating_sub(self.kept_from) > TAIL {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _stays_in_memory = fallocate(&self.file, hole, self.kept_from, to - self.kept_from);
            self.kept_from = to;
        }
    }

    fn read(&self, at: u64, length: u64) -> String {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_or_else(|_| String::new(), |()| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the beginning of what the command has printed.
    pub(super) fn beginning(&self) -> String {
        self.read(0, self.len().min(HEAD))
    }

    /// Returns what the command has printed; of a long output the last whole lines.
    pub(super) fn text(&self) -> String {
        let length = self.len();
        let text = self.read(length - length.min(TAIL), length.min(TAIL));
        match text.split_once('\n') {
            Some((_, whole)) if length > TAIL => whole.to_owned(),
            _ => text,
        }
    }
}
