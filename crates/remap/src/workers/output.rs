//! Passes on the output of a tracer.
//!
//! A tracer that waits for a hostile process may be impossible to end, and its files then stay open. If one of them
//! were the pipe to a pager or to a shell's `$(...)`, the pager or the shell would wait for the end of that pipe
//! forever. A tracer therefore never has such a pipe. It writes to a pipe of this process, and nobody else waits
//! for the end of that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio;
use tiexec_sys::SysError;
use tiexec_sys::process::without_write_signals;

/// A standard stream for whose end another process may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stream {
    Output,
    Error,
}

impl Stream {
    fn here(self) -> BorrowedFd<'static> {
        match self {
            Self::Output => stdio::stdout(),
            Self::Error => stdio::stderr(),
        }
    }

    /// Returns whether the stream is a pipe or a socket.
    fn has_an_end(self) -> bool {
        let kind = rustix::fs::fstat(self.here()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        matches!(kind, Ok(FileType::Fifo | FileType::Socket))
    }
}

/// The pipes between a tracer and this process, each for one stream.
#[derive(Debug, Default)]
pub(super) struct Output(Vec<(Stream, OwnedFd, Option<OwnedFd>)>);

impl Output {
    /// Makes a pipe for each stream that has an end.
    ///
    /// # Errors
    /// EMFILE, ENFILE.
    pub(super) fn new() -> Result<Self, SysError> {
        let streams = [Stream::Output, Stream::Error].into_iter().filter(|it| it.has_an_end());
        let pipes = streams.map(|stream| {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            // The tracer's end blocks when the pipe is full; this end never blocks.
            rustix::io::ioctl_fionbio(&read, true)?;
            Ok((stream, read, Some(write)))
        });
        pipes.collect::<Result<_, Errno>>().map(Self).map_err(SysError::of("pipe"))
    }

    /// In the tracer: directs its standard streams to the pipes.
    ///
    /// # Errors
    /// As dup2(2); no case is known.
    pub(super) fn take_over(self) -> Result<(), SysError> {
        for (stream, _, write) in self.0 {
            let Some(write) = write else { continue };
            let done = match stream {
                Stream::Output => stdio::dup2_stdout(&write),
                Stream::Error => stdio::dup2_stderr(&write),
            };
            done.map_err(SysError::of("dup2"))?;
        }
        Ok(())
    }

    /// In the process that waits: closes the tracer's ends.
    pub(super) fn listen(&mut self) {
        for (_, _, write) in &mut self.0 {
            *write = None;
        }
    }

    /// Passes on the tracer's output until `answer` is readable, and all output that the tracer had written before.
    /// Returns `false` if `answer` is not readable within the time that is `left`, from which it takes the time of this wait.
    /// Time in which nobody reads the output does not count.
    ///
    /// # Errors
    /// As poll(2).
    pub(super) fn until(
        &mut self,
        answer: impl AsFd,
        left: &mut Duration,
    ) -> Result<bool, SysError> {
        loop {
            let begun = Instant::now();
            let answered = {
                let streams = self.0.iter().map(|(_, read, _)| read.as_fd());
                let all = [answer.as_fd()].into_iter().chain(streams);
                let mut fds: Vec<PollFd<'_>> =
                    all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                let time = Timespec::try_from(*left).ok();
                match poll(&mut fds, time.as_ref()) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(SysError::of("poll")(errno)),
                }
                fds.first().is_some_and(|fd| !fd.revents().is_empty())
            };
            *left = left.saturating_sub(begun.elapsed());
            self.pass_on();
            if answered || left.is_zero() {
                return Ok(answered);
            }
        }
    }

    /// Passes on the output that the tracer has written so far. Does not wait for more.
    pub(super) fn pass_on(&mut self) {
        self.0.retain(|(stream, read, _)| {
            let mut buffer = [0; 16 << 10];
            loop {
                match rustix::io::read(read, &mut buffer) {
                    Ok(0) => return false,
                    Ok(count) => write_all(stream.here(), &buffer[..count]),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return true,
                    Err(_) => return false,
                }
            }
        });
    }
}

/// Writes all bytes. The rest is lost if nobody reads it any more.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) {
    without_write_signals(|| {
        while !bytes.is_empty() {
            match rustix::io::write(to, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut ready = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
                    let _again = poll(&mut ready, None);
                }
                Err(_) => return,
            }
        }
    });
}
