//! Another command of `tiexecctl`, run as a child, so that the screen goes on meanwhile.

use std::io::{ErrorKind, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Most bytes of its output that are kept.
const MOST: usize = 256 << 10;

/// A command that runs.
#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    output: PipeReader,
    said: Vec<u8>,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// All that it said on both streams.
    pub(super) text: String,
    pub(super) status: Option<i32>,
}

impl Job {
    /// Starts `tiexecctl` with these arguments. It goes on if this process ends, as it would from a shell.
    ///
    /// # Errors
    /// As pipe(2), fork(2) and execve(2).
    pub(super) fn start(arguments: &[String]) -> std::io::Result<Self> {
        let (output, theirs) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&output, true)?;
        // The file of this process, also if a newer one has taken its name.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tiexecctl").args(arguments).stdin(Stdio::null());
        command.stdout(theirs.try_clone()?).stderr(theirs);
        // The end of the terminal, and a signal to its foreground, are not the end of an attach.
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, output, said: Vec::new() })
    }

    /// Returns the pipe that has its output.
    pub(super) fn output(&self) -> &PipeReader {
        &self.output
    }

    /// Takes what it has said; returns how it ended, once it has.
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

    /// Ends it: for a look, which changes nothing.
    pub(super) fn end(mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
