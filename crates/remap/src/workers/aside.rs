//! Work on processes of other credentials for which nobody waits.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tiexec_sys::SysError;
use tiexec_tracee::Failure;

use super::apart::Tracer;
use super::messages::{self, NoMessage};
use super::{BRIEF, end};

/// Work on processes of other credentials, in a process of its own, which sends messages of type `T`. This process polls
/// it, and never waits for it. Dropping this value ends it.
#[derive(Debug)]
pub struct Aside<T> {
    tracer: Tracer,
    /// True once the tracer was ended. Its number may be another process's then.
    is_stopped: bool,
    of: PhantomData<T>,
}

/// The sending end of [`Aside`].
#[derive(Debug)]
pub struct Sender<'a, T> {
    to: &'a UnixStream,
    of: PhantomData<T>,
}

impl<T: Serialize> Sender<'_, T> {
    /// Sends a message. Returns whether anybody receives it.
    pub fn send(&self, message: &T) -> bool {
        messages::send(self.to, message).is_ok()
    }
}

/// The news of [`Aside`] at one moment.
#[derive(Debug)]
pub enum Heard<T> {
    /// A message.
    Message(T),
    /// Nothing yet.
    Nothing,
    /// Nothing more.
    End,
}

impl<T: Serialize + DeserializeOwned> Aside<T> {
    /// Starts `work`. Its standard streams are /dev/null, because this process may have a terminal to which only this
    /// process may write. This process must have one thread.
    ///
    /// # Errors
    /// `fork_failed`.
    pub fn start(work: impl FnOnce(Sender<'_, T>)) -> Result<Self, Failure> {
        let nowhere = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        let nowhere =
            nowhere.map_err(SysError::of("open(/dev/null)")).map_err(Failure::unstarted)?;
        let tracer = Tracer::fork(|to| {
            // The panic hook of this process could restore the terminal.
            std::panic::set_hook(Box::new(|_| {}));
            let away = || -> std::io::Result<()> {
                rustix::stdio::dup2_stdin(&nowhere)?;
                rustix::stdio::dup2_stdout(&nowhere)?;
                rustix::stdio::dup2_stderr(&nowhere)?;
                Ok(())
            };
            if away().is_ok() {
                let sender = Sender { to, of: PhantomData };
                let _it_ends = catch_unwind(AssertUnwindSafe(|| work(sender)));
            }
        })?;
        Ok(Self { tracer, is_stopped: false, of: PhantomData })
    }

    /// Returns the next message, if there is one. Never blocks.
    pub fn hear(&mut self) -> Heard<T> {
        match self.tracer.messages.next() {
            Ok(message) => Heard::Message(message),
            Err(NoMessage::NotYet) => Heard::Nothing,
            Err(NoMessage::Ended | NoMessage::Failed(_)) => Heard::End,
        }
    }
}

impl<T> Aside<T> {
    /// Ends the work, and waits for its end for at most `patience`: a process that waits for a file cannot be killed. The
    /// messages that it had sent can still be [heard](Self::hear).
    pub fn stop(&mut self, patience: Duration) {
        if !std::mem::replace(&mut self.is_stopped, true) {
            end(self.tracer.pid, patience);
        }
    }
}

impl<T> AsFd for Aside<T> {
    /// Readable when there may be a message, and when there is nothing more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tracer.messages.as_fd()
    }
}

impl<T> Drop for Aside<T> {
    fn drop(&mut self) {
        self.stop(BRIEF);
    }
}
