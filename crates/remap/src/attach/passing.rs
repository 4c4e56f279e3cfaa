//! How the process that is switched gets a file open. TiExec hands the file over to a stopped process; this very
//! process has it open already.

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use tiexec_core::addr::RemoteAddr;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::Sender;
use tiexec_tracee::Failure;
use tiexec_tracee::executor::{Executor, Local};
use tiexec_tracee::session::Session;

use super::AttachOrder;
use super::file_passing::{Passage, Received, send};
use crate::target_file::TargetFile;

/// A file that the process is to map.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handed<'a> {
    /// An image.
    Image(&'a File),
    /// A file that the process maps already.
    Original(&'a TargetFile),
}

impl Handed<'_> {
    fn send_over(self, socket: BorrowedFd<'_>, sender: Option<Sender>) -> Result<(), Failure> {
        match self {
            Self::Image(file) => send(socket, file, sender),
            // A file that is open here is a trusted process's. The reader sends those of other processes, and has their
            // user's rights.
            Self::Original(file) => file.send_over(socket),
        }
    }
}

/// A way to open files in the process.
pub(super) trait Passing {
    /// Makes the calls of the process.
    type Executor: Executor;

    /// Opens a file in the process. If that takes no wait of its own, the thread that makes the calls also reads
    /// the byte at `read`.
    ///
    /// # Errors
    /// `fd_limit`, `switch_failed`; nothing is left in the process.
    fn pass(
        &self,
        executor: &mut Self::Executor,
        file: Handed<'_>,
        read: Option<RemoteAddr>,
    ) -> Result<Received, Failure>;

    /// Releases the file that was passed last, because the process does not need it any more.
    ///
    /// # Errors
    /// The process is gone.
    fn let_go(&self, executor: &mut Self::Executor) -> Result<(), Failure>;
}

/// A stopped process: files come over a pair of sockets, made when the first file is passed.
pub(super) struct OverSockets<'a> {
    order: &'a AttachOrder<'a>,
    passage: OnceCell<Passage>,
}

impl<'a> OverSockets<'a> {
    /// Creates a value without sockets.
    pub(super) const fn new(order: &'a AttachOrder<'a>) -> Self {
        Self { order, passage: OnceCell::new() }
    }
}

impl Passing for OverSockets<'_> {
    type Executor = Session;

    fn pass(
        &self,
        session: &mut Session,
        file: Handed<'_>,
        read: Option<RemoteAddr>,
    ) -> Result<Received, Failure> {
        let passage = match self.passage.get() {
            Some(passage) => passage,
            None => {
                let opened = Passage::open(session, self.order)?;
                self.passage.get_or_init(|| opened)
            }
        };
        passage.hand_over(session, |socket, sender| file.send_over(socket, sender), read)
    }

    fn let_go(&self, session: &mut Session) -> Result<(), Failure> {
        Ok(session.release_soon()?)
    }
}

/// This very process: its files stay open until the images and texts are dropped.
pub(super) struct OpenHere;

impl Passing for OpenHere {
    type Executor = Local;

    fn pass(
        &self,
        _local: &mut Local,
        file: Handed<'_>,
        _read: Option<RemoteAddr>,
    ) -> Result<Received, Failure> {
        let file = match file {
            Handed::Image(file) | Handed::Original(TargetFile::Here(file)) => file,
            Handed::Original(TargetFile::Apart(..)) => {
                let what = "the file is open in another process";
                return Err(Failure::new(FailureKind::SwitchFailed, what));
            }
        };
        Ok(Received { fd: u64::from(file.as_raw_fd().unsigned_abs()), has_read: false })
    }

    fn let_go(&self, _local: &mut Local) -> Result<(), Failure> {
        Ok(())
    }
}
