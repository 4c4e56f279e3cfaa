//! The process that lives beside a launched program for what comes after its start.
//!
//! It is an orphan, in a session of its own: no `wait` of the program's sees it, and its end tells the
//! program nothing. (The helper of the start is a child, and reaped by the program on its way home; but
//! after the start there is no way home any more that the program would not notice.) If orphans would
//! be reparented to the program, because it is PID 1 or a subreaper, then the companion is the
//! program's child with exit signal 0, and ends after it.
//!
//! It holds no descriptor, directory or terminal of the program's, and ends with the processes that it
//! follows.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tiexec_sys::perf_watch::{Heirs, Watch, wait_for_end};
use tiexec_sys::process::{self, Fork, INITIAL_PID_NAMESPACE};
use tiexec_sys::process_name::Role;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError, c};

/// How long it may take to begin: perf_event_open(2) waits for an RCU grace period, which takes some
/// milliseconds where processors are to be had, and seconds in a guest that does not get any.
const PATIENCE: Duration = Duration::from_secs(5);

/// A companion that is at work.
#[derive(Debug)]
pub struct Companion {
    /// Its id; `None` if it could not say.
    pub pid: Option<Pid>,
    /// Why the kernel gives no records, if so.
    pub no_watch: Option<String>,
}

/// How often, and how long apart, process 1 is looked at until it sleeps.
const LOOKS_AT_INIT: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Returns whether a companion of this process would leave no zombie behind for ever. The end of an orphan is for process 1
/// to reap, or for a subreaper. In a container, process 1 may be a program that knows of no such duty; one that sleeps with
/// SIGCHLD blocked, or ignores it, knows it or has the kernel reap.
///
/// A program also blocks all signals for the moment in which it starts another (python's `subprocess`, glibc's
/// `posix_spawn`), but then it is runnable, or in vfork(2) and so in state `D`.
pub fn would_be_reaped() -> bool {
    const SIGCHLD: u64 = 1 << (c::SIGCHLD - 1);
    let namespace = ProcDir::this_process().and_then(|this| this.namespace("ns/pid"));
    if process::takes_in_orphans() || namespace.is_ok_and(|own| own == INITIAL_PID_NAMESPACE) {
        return true;
    }
    for _ in 0..LOOKS_AT_INIT {
        let Ok(init) = ProcDir::of(Pid::INIT).and_then(|init| init.status()) else { return false };
        if init.ignored & SIGCHLD != 0 {
            return true;
        }
        if init.state == b'S' || init.blocked & SIGCHLD == 0 {
            return init.blocked & SIGCHLD != 0;
        }
        sleep(BETWEEN_LOOKS);
    }
    false
}

/// A companion that was begun. [`finish`](Self::finish) must be called before the exec: else the program would have a
/// child that it does not know.
#[derive(Debug)]
#[must_use = "a child of this process is to be reaped"]
pub struct Begun {
    child: Pid,
    channel: PipeReader,
    /// True if the child is the companion, and not between it and this process.
    as_child: bool,
    /// True if it says more than its id.
    has_watch: bool,
}

/// Has `work` done beside this process and what it execs, with a watch on its `heirs` if one is wanted and there can be
/// one. Only the descriptors in `keep` stay open there.
///
/// A seccomp filter may kill whoever waits for a child: the child tries that first, and until it has said that it
/// outlived it, this process makes no calls but those that a scout of the launch wants as well.
///
/// # Errors
/// Why there is no companion; this process is as it was.
pub fn begin(
    heirs: Option<Heirs>,
    keep: &[BorrowedFd<'_>],
    work: impl FnOnce(Pid, Option<Watch>),
) -> Result<Begun, String> {
    if !process::children_share_pid_namespace() {
        return Err("children of this process go to a new PID namespace".to_owned());
    }
    let (ours, mut theirs) = std::io::pipe().map_err(|error| error.to_string())?;
    let this = process::this();
    let as_child = process::takes_in_orphans();
    let failed = |error: SysError| error.to_string();
    match process::fork_single_threaded(Role::Follower).map_err(failed)? {
        Fork::Child => {
            drop(ours);
            let life = || {
                process::rehearse_wait();
                if theirs.write_all(&[MAY_WAIT]).is_err() {
                    return;
                }
                if as_child {
                    tell_id(&mut theirs, process::this());
                } else {
                    match process::fork_single_threaded(Role::Follower) {
                        Ok(Fork::Child) => {}
                        Ok(Fork::Parent(companion)) => return tell_id(&mut theirs, companion),
                        Err(_) => return,
                    }
                }
                live(this, theirs, heirs, keep, as_child, work);
            };
            let ended = catch_unwind(AssertUnwindSafe(life));
            process::exit_now(i32::from(ended.is_err()));
        }
        Fork::Parent(child) => {
            Ok(Begun { child, channel: ours, as_child, has_watch: heirs.is_some() })
        }
    }
}

/// The first byte that a child says: no filter kills whoever waits for it.
const MAY_WAIT: u8 = 1;

fn tell_id(channel: &mut PipeWriter, id: Pid) {
    let _it_has_given_up = channel.write_all(&id.as_raw_nonzero().get().to_ne_bytes());
}

impl Begun {
    /// Waits until the companion has its watch, if it is to have one, and for no longer than it takes to be an orphan if
    /// not.
    ///
    /// # Errors
    /// Why there is no companion; this process is as it was.
    pub fn finish(mut self) -> Result<Companion, String> {
        let mut first = [0];
        if self.channel.read_exact(&mut first).is_err() && ProcDir::this_has_filters() {
            return Err("a seccomp filter kills on a call that is needed".to_owned());
        }
        let said = self.listen();
        if !self.as_child || said.is_err() {
            // Between this process and an orphan stood one that has ended; of a child that says
            // nothing there is no use.
            if self.as_child {
                let _already_gone = process::kill(self.child);
            }
            let _reaped = process::wait(self.child);
        }
        said
    }

    /// Hears what the companion says of itself: its id, and why it has no watch.
    fn listen(&mut self) -> Result<Companion, String> {
        let mut id = [0; 4];
        self.channel.read_exact(&mut id).map_err(|_ended| "it ended before it began".to_owned())?;
        let mut why = Vec::new();
        if self.has_watch {
            self.hear_of_watch(&mut why)?;
        }
        let no_watch = (!why.is_empty()).then(|| String::from_utf8_lossy(&why).into_owned());
        Ok(Companion { pid: Pid::from_raw(i32::from_ne_bytes(id)), no_watch })
    }

    /// Reads until the companion has its watch, or has said why not.
    fn hear_of_watch(&mut self, why: &mut Vec<u8>) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|error| error.to_string())?;
            match poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err("it took too long to begin".to_owned()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            let mut piece = [0; 256];
            match self.channel.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(len) => why.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn live(
    program: Pid,
    mut channel: PipeWriter,
    heirs: Option<Heirs>,
    keep: &[BorrowedFd<'_>],
    as_child: bool,
    work: impl FnOnce(Pid, Option<Watch>),
) {
    process::block_signals();
    process::own_session();
    let mut kept = keep.to_vec();
    kept.push(channel.as_fd());
    process::close_all_except(&kept);
    process::occupy_standard_descriptors();
    process::be_expendable();
    // Each image that is kept is one.
    process::lift_descriptor_limit();
    let pidfd = as_child.then(|| process::open_pidfd(program));
    let watch = heirs.map(|heirs| Watch::open(&[program], heirs)).transpose();
    if let Err(why) = &watch
        && channel.write_all(why.to_string().as_bytes()).is_err()
    {
        return;
    }
    let watch = watch.unwrap_or_default();
    drop(channel);
    work(program, watch);
    if let Some(Ok(pidfd)) = pidfd {
        // Its end would be reported to the program, which knows of no such child.
        let interrupted = |error: &SysError| error.errno == tiexec_sys::Errno::INTR;
        while wait_for_end(Some(pidfd.as_fd()), None).is_err_and(|error| interrupted(&error)) {}
    }
}
