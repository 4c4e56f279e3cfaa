//! Another command of `tiexecctl`, run as a child, so that the screen keeps refreshing.

use std::io::{ErrorKind, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use tiexec_engine::programs::{self, Environment};

/// Most bytes of the command's output that are kept.
const MOST: usize = 256 << 10;

/// A running command.
#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    output: PipeReader,
    said: Vec<u8>,
}

/// The end of a command.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its output on both streams.
    pub(super) text: String,
    pub(super) status: Option<i32>,
}

impl Job {
    /// Starts `tiexecctl` with these arguments. The command continues if this process ends, as it would from a shell.
    ///
    /// # Errors
    /// The errors of pipe(2), fork(2) and execve(2).
    pub(super) fn start(arguments: &[String]) -> std::io::Result<Self> {
        let (output, theirs) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&output, true)?;
        // This is the executable of this process, even if an upgrade has replaced the file.
        let mut command = programs::command("/proc/self/exe", Environment::OfTiexec);
        command.arg0("tiexecctl").args(arguments).stdin(Stdio::null());
        command.stdout(theirs.try_clone()?).stderr(theirs);
        // A hangup of the terminal, or a signal to its foreground group, must not end an attach.
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, output, said: Vec::new() })
    }

    /// Returns the pipe with the command's output.
    pub(super) fn output(&self) -> &PipeReader {
        &self.output
    }

    /// Reads the available output. Returns the end of the command once it has ended.
    pub(super) fn take(&mut self) -> Option<Ended> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.output.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let room = MOST.saturating_sub(self.said.len());
                    self.said.extend(&buffer[..count.min(room)]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let status = self.child.wait().ok().and_then(|status| status.code());
        Some(Ended { text: String::from_utf8_lossy(&self.said).into_owned(), status })
    }

    /// Kills the command. This is only for commands that change nothing.
    pub(super) fn end(mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
