//! The companion: the process beside a launched program that works on what comes after the program's start.
//!
//! The companion is an orphan, in a session of its own: no `wait` of the program sees it, and the kernel does not
//! report its end to the program. (The helper of the start is a child, which the program reaps on its way home. After
//! the start, the program would notice every way home.) If the kernel would reparent orphans to
//! the program, because the program is PID 1 or a subreaper, then the companion is a child of the program with exit
//! signal 0, and ends after the program.
//!
//! A subreaper above the program gets the orphan as a child that it does not know. `/proc` shows no subreaper, so the
//! orphan looks at who its new parent is. Unless the user asked for the companion, it then ends at once
//! ([`UnderSubreaper`]).
//!
//! The companion holds no descriptor, directory or terminal of the program, and ends with the processes that it
//! follows.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tiexec_core::proc::cgroup::is_users_manager;
use tiexec_core::proc::stat;
use tiexec_sys::orphan::{self, Orphan};
use tiexec_sys::perf_watch::{Heirs, Watch, wait_for_end};
use tiexec_sys::process::{self, Fork, INITIAL_PID_NAMESPACE};
use tiexec_sys::process_name::Role;
use tiexec_sys::procfs::{self, ProcDir};
use tiexec_sys::{Pid, SysError, c};

/// How long a companion may take to begin. perf_event_open(2) waits for an RCU grace period: some milliseconds where
/// processors are free, and seconds in a guest that gets no processor time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A companion that is at work.
#[derive(Debug)]
pub struct Companion {
    /// The companion's id; `None` if the companion could not report it, or has ended because of a subreaper.
    pub pid: Option<Pid>,
    /// The subreaper that the kernel gave the companion to.
    pub subreaper: Option<Pid>,
    /// Why the kernel gives no records; `None` if it gives them.
    pub no_watch: Option<String>,
}

/// How often an orphan looks for its new parent before it sleeps between looks.
const LOOKS_AT_PARENT: u32 = 50;

/// How often, and how long apart, the check reads the status of process 1 until process 1 sleeps.
const LOOKS_AT_INIT: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Returns whether a companion of this process would leave no zombie behind for ever. Process 1 or a subreaper must
/// reap an orphan. In a container, process 1 may be a program that does not know this duty. A process 1 that sleeps
/// with SIGCHLD blocked knows it; for one that ignores SIGCHLD, the kernel reaps.
///
/// A program also blocks all signals while it starts another one (python's `subprocess`, glibc's `posix_spawn`), but at
/// that moment the program is runnable, or in vfork(2) and thus in state `D`.
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

/// Whether a companion stays if the kernel gives it to a subreaper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnderSubreaper {
    /// The user has asked for the companion: it stays.
    Stays,
    /// The companion ends before the program runs. The subreaper gets an orphan that has ended already.
    Ends,
}

/// A companion that has been started. The caller must call [`finish`](Self::finish) before the exec; otherwise the
/// program could have a child that it does not know.
#[derive(Debug)]
#[must_use = "a child of this process is to be reaped"]
pub struct Begun {
    started: Started,
    channel: PipeReader,
    under_subreaper: UnderSubreaper,
    /// True if the companion reports whether it has a watch.
    has_watch: bool,
}

/// How a companion was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Started {
    /// As an orphan, with this ID.
    Orphan(Pid),
    /// By this child, which rehearses a call, forks the companion and ends. The channel has the companion's ID.
    By(Pid),
    /// As this child of a process that takes in orphans. It rehearses the call, too.
    Child(Pid),
}

/// Starts a companion, which does `work` beside this process and the program that this process execs. If `heirs` is
/// given, the companion tries to open a watch on them. The companion keeps only the descriptors in `keep` open.
///
/// A seccomp filter may kill a process that waits for a child, so under a filter the child tries that call first. Until the
/// child has reported that it survived, this process makes only calls that a scout of the launch makes too.
///
/// # Errors
/// Why the program has no companion; this process is unchanged.
pub fn begin(
    heirs: Option<Heirs>,
    under_subreaper: UnderSubreaper,
    keep: &[BorrowedFd<'_>],
    work: impl FnOnce(Pid, Option<Watch>),
) -> Result<Begun, String> {
    if !process::children_share_pid_namespace() {
        return Err("children of this process go to a new PID namespace".to_owned());
    }
    let (ours, theirs) = std::io::pipe().map_err(|error| error.to_string())?;
    let (this, as_child) = (process::this(), process::takes_in_orphans());
    let failed = |error: SysError| error.to_string();
    let companion = |first: Option<Pid>, channel: PipeWriter| {
        Life { program: this, first, under_subreaper, heirs, keep }.live(channel, work);
    };
    let started = if as_child || ProcDir::this_may_have_filters() {
        match process::fork_single_threaded(Role::Follower).map_err(failed)? {
            Fork::Parent(child) if as_child => Started::Child(child),
            Fork::Parent(child) => Started::By(child),
            Fork::Child => {
                drop(ours);
                in_child(|| {
                    if let Some(first) = rehearsed(&theirs, as_child) {
                        companion(first, theirs);
                    }
                })
            }
        }
    } else {
        match orphan::orphan(Role::Follower).map_err(failed)? {
            Orphan::Other(pid) => Started::Orphan(pid),
            Orphan::This { first } => {
                drop(ours);
                in_child(|| companion(first, theirs))
            }
        }
    };
    Ok(Begun { started, channel: ours, under_subreaper, has_watch: heirs.is_some() })
}

/// Ends this process after `life`.
fn in_child(life: impl FnOnce()) -> ! {
    let ended = catch_unwind(AssertUnwindSafe(life));
    process::exit_now(i32::from(ended.is_err()))
}

/// Rehearses a wait, forks an orphan, unless the child itself is the companion, and tells the companion's ID. Returns, in
/// the companion, the parent that it has lost.
fn rehearsed(mut channel: &PipeWriter, as_child: bool) -> Option<Option<Pid>> {
    process::rehearse_wait();
    channel.write_all(&[MAY_WAIT]).ok()?;
    let mut tell = |id: Pid| {
        let _it_has_given_up = channel.write_all(&id.as_raw_nonzero().get().to_ne_bytes());
    };
    let this = process::this();
    if as_child {
        tell(this);
        return Some(None);
    }
    match process::fork_single_threaded(Role::Follower) {
        Ok(Fork::Child) => Some(Some(this)),
        Ok(Fork::Parent(companion)) => {
            tell(companion);
            None
        }
        Err(_) => None,
    }
}

/// The first byte from the child: no filter kills a process that waits for a child.
const MAY_WAIT: u8 = 1;

/// Waits, in an orphan of the process `first`, until the kernel has given this process another parent. Returns that
/// parent, if it is a [subreaper](is_subreaper).
///
/// The kernel gives no sign for this without a signal. `first` is about to end, so this polls for a moment.
fn subreaper_after(first: Pid) -> Option<Pid> {
    let mut looks = 0;
    let parent = loop {
        let parent = process::parent();
        if parent != Some(first) {
            break parent;
        }
        looks += 1;
        if looks < LOOKS_AT_PARENT { yield_now() } else { sleep(BETWEEN_LOOKS / 10) }
    };
    parent.filter(|&parent| is_subreaper(parent))
}

/// Returns whether the parent of an orphan is a subreaper, and not process 1 of the PID namespace (`find_new_reaper` in
/// `kernel/exit.c`; a subreaper of another namespace gets no orphan of this one). A user's own systemd reaps for all
/// programs of a session, as process 1 does, and does not count as a subreaper.
fn is_subreaper(parent: Pid) -> bool {
    let is_manager = || {
        let cgroup = ProcDir::of(parent).and_then(|parent| parent.read("cgroup"));
        cgroup.is_ok_and(|cgroup| is_users_manager(&cgroup))
    };
    !parent.is_init() && !is_manager()
}

/// Returns the parent of an orphan, if it is a subreaper, and if `/proc` shows these processes.
fn subreaper_of(orphan: Pid) -> Option<Pid> {
    if procfs::is_of_another_namespace() {
        return None;
    }
    let stat = ProcDir::of(orphan).and_then(|orphan| orphan.read("stat")).ok()?;
    let parent = Pid::from_raw(i32::try_from(stat::parent(&stat).ok()?).ok()?)?;
    is_subreaper(parent).then_some(parent)
}

impl Begun {
    /// Waits until the companion has its watch; without a watch, only until the companion is an orphan.
    ///
    /// # Errors
    /// Why the program has no companion; this process is unchanged.
    pub fn finish(mut self) -> Result<Companion, String> {
        if !matches!(self.started, Started::Orphan(_)) {
            let mut first = [0];
            if self.channel.read_exact(&mut first).is_err() && ProcDir::this_may_have_filters() {
                // A filter that has killed the child for its wait would kill this process, too.
                return Err("a seccomp filter kills on a call that is needed".to_owned());
            }
        }
        let said = self.listen();
        if let (Started::Child(child), Err(_)) = (self.started, &said) {
            // A child that reports nothing is useless.
            let _already_gone = process::kill(child);
            let _reaped = process::wait(child);
        }
        said
    }

    /// Reads the companion's report: its id, and why it has no watch.
    fn listen(&mut self) -> Result<Companion, String> {
        let pid = match self.started {
            Started::Orphan(pid) => pid,
            Started::Child(_) => self.hear_id()?,
            Started::By(child) => {
                let pid = self.hear_id();
                let _reaped = process::wait(child);
                pid?
            }
        };
        let subreaper = match self.started {
            Started::Child(_) => None,
            Started::Orphan(_) | Started::By(_) => subreaper_of(pid),
        };
        let (mut pid, mut why) = (Some(pid), Vec::new());
        let ends = subreaper.is_some() && self.under_subreaper == UnderSubreaper::Ends;
        if ends {
            self.see_end(pid.take());
        } else if self.has_watch {
            self.hear_of_watch(&mut why)?;
        }
        let no_watch = (!why.is_empty()).then(|| String::from_utf8_lossy(&why).into_owned());
        Ok(Companion { pid, subreaper, no_watch })
    }

    /// Reads the companion's ID, which a child tells that has rehearsed a wait.
    fn hear_id(&mut self) -> Result<Pid, String> {
        let mut id = [0; 4];
        let said = self.channel.read_exact(&mut id).ok();
        said.and_then(|()| Pid::from_raw(i32::from_ne_bytes(id)))
            .ok_or_else(|| "it ended before it began".to_owned())
    }

    /// Waits until a companion that a subreaper got has ended. If the subreaper reaps it at once, its ID may have been
    /// reused, so the wait is short.
    fn see_end(&mut self, pid: Option<Pid>) {
        // Under a filter, the launch makes no call that it need not make.
        if ProcDir::this_may_have_filters() {
            let _end = self.channel.read_to_end(&mut Vec::new());
            return;
        }
        let _end = self.hear_of_watch(&mut Vec::new());
        // The kernel closes its descriptors a moment before it has ended.
        if let Some(pid) = pid
            && let Ok(pidfd) = process::open_pidfd(pid)
        {
            let _ended = wait_for_end(Some(pidfd.as_fd()), Some(PATIENCE / 50));
        }
    }

    /// Reads until the companion has its watch, or has reported why it has none.
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

/// The parameters of a companion.
struct Life<'a> {
    program: Pid,
    /// The parent that the companion has lost; `None` if it is a child of the program.
    first: Option<Pid>,
    under_subreaper: UnderSubreaper,
    heirs: Option<Heirs>,
    keep: &'a [BorrowedFd<'a>],
}

impl Life<'_> {
    fn live(self, mut channel: PipeWriter, work: impl FnOnce(Pid, Option<Watch>)) {
        let Self { program, first, under_subreaper, heirs, keep } = self;
        if under_subreaper == UnderSubreaper::Ends && first.and_then(subreaper_after).is_some() {
            return;
        }
        process::block_signals();
        process::own_session();
        let mut kept = keep.to_vec();
        kept.push(channel.as_fd());
        process::close_all_except(&kept);
        process::occupy_standard_descriptors();
        process::be_expendable();
        // Each image that the companion keeps is a descriptor.
        process::lift_descriptor_limit();
        let pidfd = first.is_none().then(|| process::open_pidfd(program));
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
            // The kernel would report the companion's end to the program, which knows of no such child.
            let interrupted = |error: &SysError| error.errno == tiexec_sys::Errno::INTR;
            while wait_for_end(Some(pidfd.as_fd()), None).is_err_and(|error| interrupted(&error)) {}
        }
    }
}
