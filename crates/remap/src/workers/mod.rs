//! Attaches to a process of other credentials, by processes of TiExec's own that each do one thing.
//!
//! ```text
//!   tiexecctl            keeps a deadline, and never touches the process
//!   └─ tracer            looks, plans, stops a thread, switches; opens no file that the process chose
//!      ├─ reader         takes the process's user, groups and memory cgroup; opens its files, fills images
//!      └─ fetcher        copies a descriptor out of the process, and looks whether it is the socket
//! ```
//!
//! A FUSE server may never answer a read of its file, and the reader cannot be killed while it waits; the same
//! holds for closing a copy of such a file. The tracer does neither, because its death must let a stopped thread
//! go. The reader can open only files that the process's user may open, and the memory that it fills is charged to
//! the process's memory cgroup.
//!
//! A list of processes shows them as `tiexec-tracer`, `tiexec-reader` and `tiexec-fetcher`.
//!
//! A process with this process's own credentials needs no such processes: the same code runs in one process.

mod apart;
mod aside;
mod fetcher;
mod messages;
mod output;
mod reader;
mod reads_apart;

pub use apart::{
    Said, apart, apart_as_its_user, each_apart, each_apart_noting, time_out_of, unfinished,
};
pub use aside::{Aside, Heard, Sender};
pub(crate) use fetcher::Fetcher;
use reader::Reader;
use reads_apart::lock;
pub(crate) use reads_apart::{OpenApart, ReadsApart, SameBytes, Wanted};

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tiexec_core::proc::status::Credentials;
use tiexec_core::skip::FailureKind;
use tiexec_sys::process::{self, Direction, Fork, SocketWait};
use tiexec_sys::process_name::Role;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::{PathFile, Version};
use tiexec_sys::seqpacket::{self, Packet, Packets};
use tiexec_sys::{Errno, Pid, SysError, impersonate};
use tiexec_tracee::Failure;
use tiexec_tracee::target::Target;

use crate::credentials::{self, InNamespace};

/// How long to wait for the end of a process that was killed, if nothing depends on its end.
pub const BRIEF: Duration = Duration::from_millis(100);
/// How long to wait for a worker's answer while a thread of the process is stopped.
const IN_A_STOP: Duration = Duration::from_secs(1);
/// How long a thread of the process may be stopped, or fail to reach the point to which it is sent.
const LONGEST_SESSION: Duration = Duration::from_secs(10);

/// The workers for one process after the other, while these have the same credentials and memory cgroup.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    reader: Option<ReaderOfAll>,
    fetcher: Option<Arc<Fetcher>>,
    /// True if the process is this one.
    of_this_process: bool,
}

/// The reader, and the files that it has open. Processes of one program map the same files, so each file is opened once
/// for all of them.
#[derive(Clone, Debug)]
struct ReaderOfAll {
    reader: Arc<dyn ReadsApart>,
    opened: Arc<Mutex<OpenFiles>>,
}

/// Open files, each in the state in which it was when it was opened.
type OpenFiles = Vec<(Version, Arc<OpenApart>)>;

impl Workers {
    /// Returns no workers: for processes of this process's own credentials.
    pub const fn none() -> Self {
        Self { reader: None, fetcher: None, of_this_process: false }
    }

    /// Returns no workers: for this very process. Its credentials are its own, so nobody compares them for each file.
    pub const fn of_this_process() -> Self {
        Self { reader: None, fetcher: None, of_this_process: true }
    }

    /// Returns whether the process may be trusted: it has this process's credentials.
    pub(crate) fn trust(&self, process: &ProcDir) -> bool {
        self.of_this_process || credentials::are_ours(process)
    }

    /// Returns whether the process is in the mount namespace of this one.
    pub(crate) fn share_mounts(&self, process: &ProcDir) -> bool {
        self.of_this_process || process.has_our_mounts()
    }

    /// Returns whether the workers have answered all requests.
    fn answer(&self) -> bool {
        self.reader().is_none_or(|reader| reader.answers())
            && self.fetcher.as_ref().is_none_or(|fetcher| fetcher.worker.answers())
    }

    /// Returns the limit of a session; `None` for a trusted process. An untrusted process must not make TiExec wait
    /// without end.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.fetcher.as_ref().map(|_| LONGEST_SESSION)
    }

    /// Returns the reader, if files are opened in one.
    pub(crate) fn reader(&self) -> Option<&Arc<dyn ReadsApart>> {
        self.reader.as_ref().map(|of_all| &of_all.reader)
    }

    /// Returns a file that the reader has open already, unless it has changed since.
    ///
    /// The file that the reader has open was checked as a file of a process of the same credentials. While it is open, no
    /// other file can have its identity.
    pub(crate) fn known(&self, file: &PathFile) -> Option<Arc<OpenApart>> {
        let opened = lock(&self.reader.as_ref()?.opened);
        let version = file.version().ok()?;
        opened.iter().find(|(known, _)| *known == version).map(|(_, opened)| Arc::clone(opened))
    }

    /// Opens a file, which was checked, in the reader. Returns `None` if files are not opened in one.
    ///
    /// # Errors
    /// `file_gone`: the process's user may not read it; `helper_died`.
    pub(crate) fn open(&self, file: &PathFile) -> Result<Option<Arc<OpenApart>>, Failure> {
        let Some(of_all) = &self.reader else { return Ok(None) };
        // A file that changes while it is opened is known by an older version, and is opened again.
        let version = file.version();
        let opened = Arc::new(OpenApart::open(&of_all.reader, file)?);
        if let Ok(version) = version {
            lock(&of_all.opened).push((version, Arc::clone(&opened)));
        }
        Ok(Some(opened))
    }

    /// Returns how calls on the target's socket `number` wait.
    pub(crate) fn wait_of(&self, target: &Target, number: i32, direction: Direction) -> SocketWait {
        match &self.fetcher {
            Some(fetcher) => fetcher.wait_of(target, number, direction),
            None => wait_of(target.task, number, direction),
        }
    }

    /// Returns the fetcher, if descriptors are copied in one.
    pub(crate) fn fetcher(&self) -> Option<&Fetcher> {
        self.fetcher.as_deref()
    }
}

/// Returns how calls on the socket `number` of `task`, whose process is trusted, wait.
pub(crate) fn wait_of(task: Pid, number: i32, direction: Direction) -> SocketWait {
    process::descriptor_of(task, number)
        .map_or(SocketWait::Limited, |copy| process::socket_wait(copy.as_fd(), direction))
}

/// Workers that are kept for the next process if it has the same credentials and memory cgroup. Such processes
/// share the images that the reader has made.
#[derive(Debug, Default)]
pub struct Pool {
    last: Option<(Kin, Workers)>,
}

/// The properties in which processes must agree to share an image.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kin {
    credentials: Credentials,
    user_namespace: Option<u64>,
    cgroup: Option<Vec<u8>>,
}

impl Pool {
    /// Returns the workers for a process; none if its credentials are this process's own. This process must have
    /// one thread.
    ///
    /// # Errors
    /// `fork_failed`; `memcg_headroom` if the process's memory cgroup cannot be joined.
    pub fn workers(&mut self, target: &Target) -> Result<Workers, Failure> {
        let Target { process, credentials, .. } = target;
        let kin = Kin {
            credentials: credentials.clone(),
            user_namespace: process.namespace("ns/user").ok(),
            cgroup: process.read("cgroup").ok(),
        };
        // Only processes of other credentials have workers.
        if let Some((known, workers)) = &self.last
            && *known == kin
            && workers.answer()
        {
            return Ok(workers.clone());
        }
        if credentials::are_ours(process) {
            return Ok(Workers::none());
        }
        let fetcher = Some(Arc::new(Fetcher::start()?));
        // Without these capabilities, this process has no rights to lose but its user's.
        let reader = if may_take_places() {
            let reader = Arc::new(Reader::start(process, credentials)?);
            Some(ReaderOfAll { reader, opened: Arc::default() })
        } else {
            None
        };
        let workers = Workers { reader, fetcher, of_this_process: false };
        self.last = Some((kin, workers.clone()));
        Ok(workers)
    }
}

/// CAP_SETGID and CAP_SETUID, by which a process may take the place of any other.
const TAKE_PLACES: u64 = 1 << 6 | 1 << 7;

/// Returns whether this process may take the place of any other.
fn may_take_places() -> bool {
    effective_capabilities() & TAKE_PLACES == TAKE_PLACES
}

fn effective_capabilities() -> u64 {
    let own = ProcDir::this_process().and_then(|this| this.status()).unwrap_or_default();
    own.credentials.effective()
}

/// Becomes the user of `pid`, for good, if only that user may trace it. A container's root without CAP_SYS_PTRACE
/// is such a case: it may become any user, but may trace none. This process then has only that user's rights, so it
/// can lose no more to the target than to any other process of that user. Only its memory stays closed to the user.
/// This process must have one thread.
///
/// # Errors
/// The user is not known, or this process cannot become it. This process must end then, because it may have a part
/// of each user's rights.
fn become_user_to_trace(pid: Pid) -> Result<(), SysError> {
    const SYS_PTRACE: u64 = 1 << 19;
    let capabilities = effective_capabilities();
    if capabilities & SYS_PTRACE != 0 || capabilities & TAKE_PLACES != TAKE_PLACES {
        return Ok(());
    }
    let unknown = || SysError { call: "status", errno: Errno::SRCH };
    let status = ProcDir::of(pid)?.status()?;
    impersonate::become_user(&credentials::place(&status.credentials).ok_or_else(unknown)?)
}

/// Returns for each process that is there whether it has other credentials than this one, and must be treated in a process
/// apart.
pub fn are_of_others(pids: &[Pid]) -> Vec<(Pid, bool)> {
    let ours = InNamespace::ours();
    let is_ours = |process: &ProcDir| ours.as_ref().is_some_and(|ours| ours.are_of(process));
    let is_of_others = |pid| ProcDir::of(pid).is_ok_and(|process| !is_ours(&process));
    pids.iter().map(|&pid| (pid, is_of_others(pid))).collect()
}

/// As [`are_of_others`], for one process.
pub fn pid_is_of_others(pid: Pid) -> bool {
    ProcDir::of(pid).is_ok_and(|process| is_of_others(&process))
}

/// As [`pid_is_of_others`], for the process's directory.
pub fn is_of_others(process: &ProcDir) -> bool {
    !credentials::are_ours(process)
}

/// A worker process, which takes requests over a socket. Dropping this value ends it.
#[derive(Debug)]
struct Worker {
    pid: Pid,
    packets: Packets,
    /// Its work, as errors show it.
    task: &'static str,
    /// True if it left a request unanswered. It gets no further requests then.
    lost: AtomicBool,
}

impl Worker {
    /// Starts a worker, which does `work` and exits. `work` receives the other end of the socket.
    ///
    /// # Errors
    /// `fd_limit`; `fork_failed`, as fork(2): EAGAIN if this process has more than one thread.
    fn start(role: Role, task: &'static str, work: impl FnOnce(&Packets)) -> Result<Self, Failure> {
        let failed = Failure::unstarted;
        let (packets, theirs) = seqpacket::pair().map_err(failed)?;
        match process::fork_single_threaded(role).map_err(failed)? {
            Fork::Parent(pid) => Ok(Self { pid, packets, task, lost: AtomicBool::new(false) }),
            Fork::Child => {
                let work = std::panic::AssertUnwindSafe(|| work(&theirs));
                let _ended = std::panic::catch_unwind(work);
                std::process::exit(0)
            }
        }
    }

    /// Returns whether the worker has answered all requests.
    fn answers(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// Sends the worker a request.
    fn ask(&self, request: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        if !self.answers() {
            return Err(self.silent("there was no answer before"));
        }
        match self.packets.send(request, file) {
            // The worker never sees a request that is too long, and can answer the next one.
            Err(error) if error.errno == Errno::MSGSIZE => {
                Err(Failure::of(FailureKind::HelperDied)(error))
            }
            sent => sent.map_err(self.died()),
        }
    }

    /// Waits for the worker's answer.
    fn answer(&self, patience: Duration) -> Result<Packet, Failure> {
        let answer = self.packets.receive_within(patience).map_err(self.died())?;
        answer.ok_or_else(|| self.silent("no answer in time"))
    }

    fn died(&self) -> impl FnOnce(SysError) -> Failure {
        |error| {
            self.lost.store(true, Ordering::Relaxed);
            Failure::of(FailureKind::HelperDied)(error).about(self.task)
        }
    }

    fn silent(&self, what: &str) -> Failure {
        self.lost.store(true, Ordering::Relaxed);
        Failure::new(FailureKind::HelperDied, format_args!("{}: {what}", self.task))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        end(self.pid, BRIEF);
    }
}

/// Children that had not ended in time.
static UNREAPED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Kills a child of this process and waits for its end, but at most `patience`: a child that waits for a file
/// cannot be killed. [`reap`] reaps it later.
pub fn end(child: Pid, patience: Duration) {
    let _gone = process::kill(child);
    if matches!(process::wait_until(child, Instant::now() + patience), Ok(None)) {
        reap_later(child);
    }
}

/// Leaves a child that has not ended to [`reap`].
pub fn reap_later(child: Pid) {
    lock(&UNREAPED).push(child);
}

/// Reaps the children that have ended since, and did not in time. Never waits. Returns how many have still not ended.
pub fn reap() -> usize {
    let mut unreaped = lock(&UNREAPED);
    unreaped.retain(|&child| matches!(process::wait_until(child, Instant::now()), Ok(None)));
    unreaped.len()
}
