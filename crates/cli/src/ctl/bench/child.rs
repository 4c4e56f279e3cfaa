//! The commands that a benchmark runs. Each has its own process group, which ends when a signal ends the benchmark.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use rustix::fs::{MemfdFlags, memfd_create};
use tiexec_sys::usage::Usage;
use tiexec_sys::{Pid, SysError, interrupt, usage};

/// Starts the command. The caller waits for it with [`end`].
pub(super) fn start(command: &mut Command) -> io::Result<Pid> {
    let child = command.process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("it has no process id"))
}

/// Waits for the end of the command.
pub(super) fn end(pid: Pid) -> Result<(ExitStatus, Usage), SysError> {
    interrupt::wait_handing_on(pid);
    usage::wait(pid)
}

/// Runs the command to its end.
pub(super) fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let ended = end(start(command)?);
    let (status, _) = ended.map_err(|error| io::Error::from_raw_os_error(error.errno.0))?;
    Ok(status)
}

/// Makes a file in memory for output, because a pipe would have to be read while the command runs.
pub(super) fn memory(name: &str) -> Result<File, rustix::io::Errno> {
    memfd_create(name, MemfdFlags::CLOEXEC).map(|fd: OwnedFd| File::from(fd))
}

/// Reads everything that was written to the file.
pub(super) fn text_of(mut file: File) -> String {
    let mut bytes = Vec::new();
    let _what_there_is = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
