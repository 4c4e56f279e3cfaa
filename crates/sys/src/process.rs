//! Makes processes, waits for them, and signals them.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Pid;
pub use rustix::process::Signal;
use tiexec_core::proc::stat;

use crate::error::{SysError, check};
use crate::kernel_file;
use crate::process_name::{self, Role};
use crate::procfs::ProcDir;
use crate::same_processor::Beside;
use crate::schedule;

/// The inode number of the initial PID namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
pub const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The two sides of a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The parent, with the child's id.
    Parent(Pid),
}

/// `clone(0)` — forks a child whose end sends no signal to a parent that has not exec'ed, and which `wait` without
/// `__WALL` or `__WCLONE` does not see. The child shows its `role` as its name and as its command line, so that nobody
/// confuses it with this process or with the program that this process becomes.
///
/// # Errors
/// As fork(2): EAGAIN at `RLIMIT_NPROC` or the pids cgroup's limit, ENOMEM.
///
/// EAGAIN, without a fork, if another thread of this process runs: a lock that it held would stay locked in the child.
pub fn fork_single_threaded(role: Role) -> Result<Fork, SysError> {
    if another_thread_runs() {
        return Err(SysError { call: "clone", errno: crate::Errno::AGAIN });
    }
    let fork = fork_to_call()?;
    if fork == Fork::Child {
        process_name::call_this(role);
    }
    Ok(fork)
}

/// `clone(0)` — forks as [`fork_single_threaded`] does, for a child that makes system calls and ends. The child must
/// allocate nothing and wait for no lock, which another thread of this process could have held.
///
/// # Errors
/// As fork(2).
pub fn fork_to_call() -> Result<Fork, SysError> {
    // SAFETY: no flags and no stack, so the child runs on a copy of this stack.
    let returned = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    let id = check("clone", returned)?;
    Ok(i32::try_from(id).ok().and_then(Pid::from_raw).map_or(Fork::Child, Fork::Parent))
}

/// Returns whether this process has more threads than the calling one, those included that end. Opens nothing: the directory has a link for each
/// thread (`proc_task_getattr`, `fs/proc/base.c`), and two of its own.
pub fn has_threads() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() > 3)
}

/// Returns whether another thread of this process runs, or may still hold a lock of its C library's.
///
/// The kernel wakes whoever joins a thread before it takes the thread out of the process (`mm_release` in `kernel/fork.c`,
/// `release_task` in `kernel/exit.c`). So a thread that was joined can still be there, on a busy machine for milliseconds,
/// and under a debugger until the debugger waits for it.
pub(crate) fn another_thread_runs() -> bool {
    /// Every thread that ends gets a processor in that time.
    const ENDING: Duration = Duration::from_secs(1);
    let until = Instant::now() + ENDING;
    while has_threads() {
        match other_threads() {
            Others::Run => return true,
            Others::End if Instant::now() < until => std::thread::sleep(Duration::from_micros(50)),
            Others::End => return true,
            Others::HaveEnded => return false,
        }
    }
    false
}

/// What the other threads of this process do: `Run` if one runs, else `End` if one ends.
enum Others {
    Run,
    /// The kernel ends one: it runs no code of the program, but a lock of the C library's may not be free yet, which the
    /// kernel frees (`CLONE_CHILD_CLEARTID`).
    End,
    HaveEnded,
}

fn other_threads() -> Others {
    let Ok(this) = ProcDir::this_process() else { return Others::Run };
    let Ok(threads) = this.list("task") else { return Others::Run };
    let mut others = Others::HaveEnded;
    for thread in threads {
        let Some(tid) = thread.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)) else {
            return Others::Run;
        };
        if tid == schedule::this_thread() {
            continue;
        }
        let Ok(text) = this.read_of(tid, "stat") else { continue };
        match (stat::state(&text), stat::is_ending(&text)) {
            (Ok(b'Z' | b'X'), _) => {}
            (Ok(_), Ok(true)) => others = Others::End,
            _ => return Others::Run,
        }
    }
    others
}

/// `wait4(-1, NULL, __WALL|WNOHANG, NULL)` — tests whether the call is allowed, in a process without children.
pub fn rehearse_wait() {
    // SAFETY: both pointers are null, so the call writes no memory.
    let _no_child = unsafe {
        libc::wait4(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG, std::ptr::null_mut())
    };
}

/// The event of a child or tracee that `wait4` reported (ptrace(2), wait(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Exited with this status.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
    /// syscall-stop, which `PTRACE_O_TRACESYSGOOD` distinguishes.
    SyscallStop,
    /// `PTRACE_EVENT_EXEC` stop.
    ExecEvent,
    /// Stopped by a stopping signal together with its thread group (`PTRACE_EVENT_STOP`).
    GroupStop(i32),
    /// `PTRACE_EVENT_STOP` without a stopping signal: interrupted, or continued from group-stop.
    Interrupted,
    /// Another `PTRACE_EVENT_*`.
    Event(i32),
    /// signal-delivery-stop: the thread is about to get this signal.
    Signal(i32),
}

impl Wait {
    pub(crate) fn from_status(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            return Self::Exited(libc::WEXITSTATUS(status));
        }
        if libc::WIFSIGNALED(status) {
            return Self::Killed(libc::WTERMSIG(status));
        }
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            0 if signal == libc::SIGTRAP | 0x80 => Self::SyscallStop,
            0 => Self::Signal(signal),
            libc::PTRACE_EVENT_EXEC => Self::ExecEvent,
            libc::PTRACE_EVENT_STOP => match signal {
                libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                    Self::GroupStop(signal)
                }
                _ => Self::Interrupted,
            },
            event => Self::Event(event),
        }
    }
}

/// `wait4(pid, &status, __WALL | flags)`, retried after interruptions; `None` if `flags` has `WNOHANG` and nothing has
/// happened.
fn look(pid: Pid, flags: i32) -> Result<Option<Wait>, SysError> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a live integer; the pointer for the resource usage is null.
        let returned = unsafe {
            libc::wait4(
                pid.as_raw_nonzero().get(),
                &raw mut status,
                libc::__WALL | flags,
                std::ptr::null_mut(),
            )
        };
        match check("wait4", returned.into()) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(Wait::from_status(status))),
            Err(error) if error.errno == crate::Errno::INTR => {}
            Err(error) => return Err(error),
        }
    }
}

/// How often [`wait`] polls before it sleeps: about as long as a tracee needs for a system call.
const LOOKS: u32 = 200;

/// `wait4(pid, &status, __WALL)` — waits for a child or tracee of any kind, and retries after interruptions. Polls for
/// a moment before it sleeps: a wakeup takes longer than the usual wait for a tracee.
///
/// # Errors
/// ECHILD if it is neither.
pub fn wait(pid: Pid) -> Result<Wait, SysError> {
    if let Some(stop) = look_for_a_moment(pid)? {
        return Ok(stop);
    }
    loop {
        if let Some(stop) = look(pid, 0)? {
            return Ok(stop);
        }
    }
}

fn look_for_a_moment(pid: Pid) -> Result<Option<Wait>, SysError> {
    for _ in 0..LOOKS {
        if let Some(stop) = look(pid, libc::WNOHANG)? {
            return Ok(Some(stop));
        }
        // If there is no other processor, the tracee needs this one.
        std::thread::yield_now();
    }
    Ok(None)
}

/// As [`wait`], but never sleeps for longer than half a millisecond at a time: if a tracee's id passes to another
/// thread by an exec, the kernel wakes no waiter.
///
/// # Errors
/// ECHILD if `pid` is neither child nor tracee, or no longer.
pub fn wait_polling(pid: Pid) -> Result<Wait, SysError> {
    if let Some(stop) = look_for_a_moment(pid)? {
        return Ok(stop);
    }
    loop {
        let soon = std::time::Instant::now() + std::time::Duration::from_secs(1);
        if let Some(stop) = wait_until(pid, soon)? {
            return Ok(stop);
        }
    }
}

/// As [`wait`], for a process that blocks all signals. Checks again every quarter of a second: if a tracee's id passes
/// to another thread by an exec, the kernel wakes no waiter. Returns `None` if nothing has come for `longest`.
///
/// # Errors
/// ECHILD if `pid` is neither child nor tracee, or no longer.
pub fn wait_attentively(pid: Pid, longest: Option<Duration>) -> Result<Option<Wait>, SysError> {
    if let Some(stop) = look_for_a_moment(pid)? {
        return Ok(Some(stop));
    }
    let begun = std::time::Instant::now();
    loop {
        if let Some(stop) = wait_for(pid, Duration::from_millis(250))? {
            return Ok(Some(stop));
        }
        if longest.is_some_and(|longest| begun.elapsed() >= longest) {
            return Ok(None);
        }
    }
}

/// As [`wait_attentively`], but sleeps at once; returns `None` if nothing has come for `patience`.
///
/// # Errors
/// ECHILD if `pid` is neither child nor tracee, or no longer.
pub fn wait_for(pid: Pid, patience: Duration) -> Result<Option<Wait>, SysError> {
    // The kernel does not send SIGCHLD to a process that ignores it.
    // SAFETY: the default action runs no code of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let child = signal_set(&[libc::SIGCHLD]);
    let patience = libc::timespec {
        tv_sec: patience.as_secs().cast_signed(),
        tv_nsec: patience.subsec_nanos().into(),
    };
    loop {
        if let Some(stop) = look(pid, libc::WNOHANG)? {
            return Ok(Some(stop));
        }
        // SAFETY: the set and the time are live; the pointer for the signal's details is null.
        let came = unsafe {
            libc::sigtimedwait(&raw const child, std::ptr::null_mut(), &raw const patience)
        };
        if came < 0 {
            return look(pid, libc::WNOHANG);
        }
    }
}

pub(crate) fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: an all-zero sigset_t is a valid object for sigemptyset to overwrite.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live.
    unsafe { libc::sigemptyset(&raw mut set) };
    for &signal in signals {
        // SAFETY: `set` is live and initialised.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Runs `write`, and keeps a SIGPIPE or SIGXFSZ that its writes raise from this process. Their dispositions belong to
/// the program and do not change.
pub fn without_write_signals<T>(write: impl FnOnce() -> T) -> T {
    let both = signal_set(&[libc::SIGPIPE, libc::SIGXFSZ]);
    let mut old = signal_set(&[]);
    let mut before = signal_set(&[]);
    // SAFETY: both sets are live and initialised.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const both, &raw mut old) };
    // SAFETY: `before` is live.
    unsafe { libc::sigpending(&raw mut before) };
    let result = write();
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: `before` is live and initialised.
        if unsafe { libc::sigismember(&raw const before, signal) } == 1 {
            continue;
        }
        let one = signal_set(&[signal]);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are live; the pointer for the signal's details is null.
        unsafe { libc::sigtimedwait(&raw const one, std::ptr::null_mut(), &raw const now) };
    }
    // SAFETY: `old` is live, and holds the mask from before.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
    result
}

/// Makes SIGXFSZ harmless to this process: beyond the limit on file sizes a call returns EFBIG, and the process lives
/// on. An exec restores the default (signal(7)), so a program that this process starts is not affected. If the signal
/// is ignored already, it stays ignored, for such a program too.
pub fn survive_file_size_limit() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: sigaction is plain data, and all zero bytes are its default.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `before` is live; a null pointer changes nothing.
    let known = unsafe { libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &raw mut before) } == 0;
    if !known || before.sa_sigaction != libc::SIG_DFL {
        return;
    }
    let mut action = before;
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is live, and its handler does nothing, which is safe at any moment.
    unsafe { libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut()) };
}

/// Raises this process's own limit on file sizes as far as it may: a memfd is a file.
pub fn lift_file_size_limit() {
    lift(rustix::process::Resource::Fsize);
}

/// Raises this process's own limit on descriptors as far as it may.
pub fn lift_descriptor_limit() {
    lift(rustix::process::Resource::Nofile);
}

/// Returns how many processes and threads the user may have (the soft `RLIMIT_NPROC`); `None` without a limit.
pub fn process_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nproc).current
}

fn lift(resource: rustix::process::Resource) {
    use rustix::process::{Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(resource);
    let _stays = setrlimit(resource, Rlimit { current: maximum, maximum });
}

/// Returns whether children of this process are born into its own PID namespace. They are not after
/// `unshare(CLONE_NEWPID)`: then the first child becomes the init of the new namespace.
pub fn children_share_pid_namespace() -> bool {
    let link = |name| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    link("pid") == link("pid_for_children")
}

/// `pidfd_open(pid)` — returns a descriptor that means this process for ever, and is readable once the process has
/// ended. Since Linux 5.3.
///
/// # Errors
/// ESRCH; EINVAL for a thread that leads no process.
pub fn open_pidfd(pid: Pid) -> Result<std::os::fd::OwnedFd, SysError> {
    use rustix::process::{PidfdFlags, pidfd_open};
    pidfd_open(pid, PidfdFlags::empty()).map_err(SysError::of("pidfd_open"))
}

/// `prctl(PR_GET_CHILD_SUBREAPER)` — returns whether orphans among this process's descendants become
/// its children.
pub fn takes_in_orphans() -> bool {
    let subreaper = rustix::process::child_subreaper().is_ok_and(|reaper| reaper.is_some());
    subreaper || this().is_init()
}

/// `pidfd_getfd(pidfd_open(pid), fd)` — returns a copy of another process's descriptor. Since Linux 5.6; needs the
/// right to trace the process. Since 6.9 `pid` may be any thread of it.
///
/// # Errors
/// EBADF if the process has no such descriptor; EPERM; ESRCH.
pub fn descriptor_of(pid: Pid, fd: i32) -> Result<std::os::fd::OwnedFd, SysError> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    // PIDFD_THREAD, since Linux 6.9, also takes threads that lead no process. If the first thread of a process has
    // ended, only such threads are left.
    let thread = PidfdFlags::from_bits_retain(libc::PIDFD_THREAD);
    let process = pidfd_open(pid, PidfdFlags::empty())
        .or_else(|errno| pidfd_open(pid, thread).map_err(|_no_such_flag| errno))
        .map_err(SysError::of("pidfd_open"))?;
    pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).map_err(SysError::of("pidfd_getfd"))
}

/// The direction of a call on a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// recv(2), accept(2) and their kin.
    Receive,
    /// send(2) and its kin.
    Send,
}

/// How a call on a socket waits (socket(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketWait {
    /// Until something can be transferred.
    Plain,
    /// Until then, or for a limited time (`SO_RCVTIMEO`, `SO_SNDTIMEO`); or it is not known how.
    Limited,
    /// A receiving call waits for more than a byte (`SO_RCVLOWAT`), and returns less if it is interrupted.
    ForMore,
}

/// Returns how a call in this direction on the socket `fd` waits; plainly if `fd` is not a socket.
pub fn socket_wait(fd: BorrowedFd<'_>, direction: Direction) -> SocketWait {
    use rustix::net::sockopt::{Timeout, socket_timeout};
    let which = match direction {
        Direction::Receive => Timeout::Recv,
        Direction::Send => Timeout::Send,
    };
    let waits_for_more = || crate::peer::least_received(fd).is_ok_and(|bytes| bytes > 1);
    if direction == Direction::Receive && waits_for_more() {
        return SocketWait::ForMore;
    }
    match socket_timeout(fd, which) {
        Ok(None) | Err(rustix::io::Errno::NOTSOCK) => SocketWait::Plain,
        Ok(Some(_)) | Err(_) => SocketWait::Limited,
    }
}

/// Returns whether `fd` is one of a pair of datagram sockets of unix(7) that the process `pid` made (`SO_DOMAIN`,
/// `SO_TYPE`, `SO_PEERCRED`), and is still connected to the other one: neither of a pair has an address.
pub fn is_unix_socket_of(fd: BorrowedFd<'_>, pid: Pid) -> bool {
    use rustix::net::sockopt::{socket_domain, socket_type};
    use rustix::net::{AddressFamily, SocketAddrAny, SocketType, getpeername, getsockname};
    // An address without a name has nothing but its family. rustix 1.1 reads it as an abstract one.
    let is_unnamed =
        |address: SocketAddrAny| address.addr_len() as usize == size_of::<libc::sa_family_t>();
    socket_domain(fd) == Ok(AddressFamily::UNIX)
        && socket_type(fd) == Ok(SocketType::DGRAM)
        && crate::peer::credentials(fd).is_ok_and(|(peer, _)| peer == Some(pid))
        && getsockname(fd).is_ok_and(is_unnamed)
        && getpeername(fd).ok().flatten().is_some_and(is_unnamed)
}

/// The process in whose name a message is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    /// Its PID.
    pub pid: Pid,
    /// Its effective user ID.
    pub uid: u32,
    /// Its effective group ID.
    pub gid: u32,
}

/// Sends `file` over the socket `to`, with one byte (unix(7), `SCM_RIGHTS`). The receiver sees the credentials of
/// `sender`, or else of this process (`SCM_CREDENTIALS`).
///
/// # Errors
/// As sendmsg(2). EPERM if this process may not send in the name of `sender`: it lacks CAP_SETUID or CAP_SETGID. Without
/// CAP_SYS_ADMIN the receiver sees the PID of this process.
pub fn send_descriptor(
    to: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    sender: Option<Sender>,
) -> Result<(), SysError> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred, sendmsg};
    const SPACE: usize = rustix::cmsg_space!(ScmRights(1), ScmCredentials(1));
    let files = [file];
    let byte = [std::io::IoSlice::new(b"t")];
    let send = |from: Option<UCred>| {
        let mut space = [std::mem::MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        if let Some(from) = from {
            control.push(SendAncillaryMessage::ScmCredentials(from));
        }
        sendmsg(to, &byte, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    };
    let from = sender.map(|Sender { pid, uid, gid }| UCred {
        pid,
        uid: rustix::process::Uid::from_raw(uid),
        gid: rustix::process::Gid::from_raw(gid),
    });
    let sent = match (send(from), from) {
        (Err(rustix::io::Errno::PERM), Some(from)) => send(Some(UCred { pid: this(), ..from })),
        (sent, _) => sent,
    };
    sent.map_err(SysError::of("sendmsg(SCM_RIGHTS)"))
}

/// `wait4(pid, &status, __WALL|WNOHANG)`, repeated until `deadline`; `None` if nothing came. A thread that is
/// [boosted](schedule::boost) waits on the processor of the thread that it waits for.
///
/// # Errors
/// ECHILD if `pid` is neither child nor tracee.
pub fn wait_until(pid: Pid, deadline: std::time::Instant) -> Result<Option<Wait>, SysError> {
    const FIRST: Duration = Duration::from_micros(5);
    const AT_ONCE: Duration = Duration::from_micros(40);
    const LONGEST: Duration = Duration::from_micros(500);
    let mut pause = FIRST;
    let mut beside = None;
    loop {
        if let Some(stop) = look(pid, libc::WNOHANG)? {
            return Ok(Some(stop));
        }
        if std::time::Instant::now() >= deadline {
            return Ok(None);
        }
        // The boost may end meanwhile.
        if pause >= AT_ONCE && schedule::is_boosted(None) {
            beside.get_or_insert_with(|| Beside::of(pid)).sleep();
            continue;
        }
        beside = None;
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
}

/// Returns a time in clock ticks, the unit of `/proc/PID/stat`.
pub fn ticks(time: std::time::Duration) -> u64 {
    let per_second = u128::from(rustix::param::clock_ticks_per_second());
    u64::try_from(time.as_millis() * per_second / 1000).unwrap_or(u64::MAX)
}

/// Returns the time since boot in clock ticks, the unit of a process's start in `/proc/PID/stat`.
pub fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * per_second + nanos * per_second / 1_000_000_000
}

/// `getpid()`.
pub fn this() -> Pid {
    rustix::process::getpid()
}

/// `getppid()` — `None` if the parent is in a PID namespace above.
pub fn parent() -> Option<Pid> {
    rustix::process::getppid()
}

/// `kill(pid, SIGKILL)`.
///
/// # Errors
/// ESRCH, EPERM.
pub fn kill(pid: Pid) -> Result<(), SysError> {
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        .map_err(SysError::of("kill(SIGKILL)"))
}

/// `tgkill(process, thread, signal)` — sends a signal to one thread.
///
/// # Errors
/// EPERM; ESRCH once the thread has ended.
pub fn signal_thread(process: Pid, thread: Pid, signal: i32) -> Result<(), SysError> {
    let [process, thread] = [process, thread].map(|pid| pid.as_raw_nonzero().get());
    // SAFETY: the call takes numbers only.
    let returned = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    check("tgkill", returned).map(drop)
}

/// `tgkill(getpid(), gettid(), SIGSTOP)` — stops this process until SIGCONT. The calling thread takes the signal, so it
/// does not run on.
///
/// # Errors
/// No known error.
pub fn stop_this() -> Result<(), SysError> {
    signal_thread(this(), rustix::thread::gettid(), libc::SIGSTOP)
}

/// `prctl(PR_SET_PTRACER, pid)` — lets exactly `pid` trace this process under Yama; `None` withdraws that right.
/// Without Yama there is nothing to allow, and EINVAL is not an error.
///
/// # Errors
/// Any error but EINVAL.
pub fn set_ptracer(pid: Option<Pid>) -> Result<(), SysError> {
    let raw = pid.map_or(0, |pid| libc::c_ulong::from(pid.as_raw_nonzero().get().unsigned_abs()));
    // SAFETY: PR_SET_PTRACER reads no memory.
    let returned = unsafe { libc::prctl(libc::PR_SET_PTRACER, raw, 0, 0, 0) };
    match check("prctl(PR_SET_PTRACER)", returned.into()) {
        Err(error) if error.errno != crate::Errno::INVAL => Err(error),
        _ => Ok(()),
    }
}

/// `prctl(PR_GET_THP_DISABLE)` — returns whether THP is disabled for this process. Fork and exec inherit it.
pub fn thp_disabled() -> bool {
    // SAFETY: PR_GET_THP_DISABLE reads no memory.
    let returned = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
    returned > 0
}

/// Blocks every signal that can be blocked, for good: for a process that must not be disturbed.
pub fn block_signals() {
    // SAFETY: an all-zero sigset_t is a valid object for sigfillset to overwrite.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a live sigset_t.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: `all` is a live, filled sigset_t; the pointer for the old mask is null.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
}

/// Undoes [`block_signals`]: a child inherits the mask.
pub fn unblock_signals() {
    // SAFETY: an all-zero sigset_t is a valid object for sigemptyset to overwrite.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` is a live sigset_t.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: `none` is a live, empty sigset_t; the pointer for the old mask is null.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

/// Ignores SIGINT and SIGQUIT from now on, for a process that waits for another one on the same terminal.
pub fn ignore_interrupts() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: SIG_IGN is an action, not a handler, so no code runs.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// `setsid()` — leaves the terminal and the process group, so that Ctrl-C does not reach this process.
pub fn own_session() {
    // setsid fails only for a process group leader, and a process just forked is none.
    let _new = rustix::process::setsid();
}

/// Makes this process the first that the out-of-memory killer takes, and moves it out of any directory that could be
/// unmounted. For a helper whose death harms nobody.
pub fn be_expendable() {
    let _no_proc = kernel_file::write("/proc/self/oom_score_adj", "1000");
    let _never_fails = rustix::process::chdir("/");
    lift_file_size_limit();
}

/// Has the kernel close every descriptor at the next exec except the standard streams (`CLOSE_RANGE_CLOEXEC`). Descriptors
/// that this process inherited have no such flag.
///
/// # Kernel
/// Since Linux 5.11; before, they stay open.
pub fn close_all_at_exec() {
    // SAFETY: close_range with this flag touches no memory, and closes nothing now.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// `prctl(PR_SET_PDEATHSIG, signal)` — has the kernel send `signal` to this process when its parent's thread that made it
/// ends; `None` for no signal. A change of user resets it.
///
/// # Errors
/// No known error.
pub fn end_with_parent(signal: Option<Signal>) -> Result<(), SysError> {
    rustix::process::set_parent_process_death_signal(signal)
        .map_err(SysError::of("prctl(PR_SET_PDEATHSIG)"))
}

/// Calls [`end_with_parent`] in the command's process. The program keeps this across its exec, unless the exec gives it
/// rights.
pub fn end_command_with_parent(command: &mut Command, signal: Signal) {
    let parent = this();
    let ask = move || {
        end_with_parent(Some(signal))
            .map_err(|error| std::io::Error::from_raw_os_error(error.errno.0))?;
        // The parent may have ended before the call, which then has no effect.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: the closure runs in the child between fork and exec. It makes two system calls, takes no lock and
    // allocates nothing: `from_raw_os_error` only stores the number.
    unsafe { command.pre_exec(ask) };
}

/// Closes every descriptor of this process except those in `keep`. For a process just forked that owns only those: it
/// must not use an `OwnedFd` of its parent again. Where the kernel has no `close_range` (before Linux 5.9), or a filter refuses it,
/// each descriptor that `/proc` shows is closed.
pub fn close_all_except(keep: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> =
        keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    keep.sort_unstable();
    let (mut first, mut closed) = (0, true);
    for &fd in keep.iter().chain([&u32::MAX]) {
        if fd > first {
            let last = if fd == u32::MAX { fd } else { fd - 1 };
            // SAFETY: close_range touches no memory of this process. Later use of a descriptor closed behind its
            // owner's back gives EBADF, which is a bug but not undefined behaviour.
            closed &= unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
        }
        first = fd.saturating_add(1);
    }
    if closed {
        return;
    }
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    // The list is complete, and its own descriptor closed, before the first one is closed.
    let open: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let is_kept = |fd: i32| u32::try_from(fd).is_ok_and(|fd| keep.contains(&fd));
    for fd in open.into_iter().filter(|&fd| !is_kept(fd)) {
        // SAFETY: close touches no memory of this process; for later use see above.
        unsafe { libc::close(fd) };
    }
}

/// Puts a descriptor that can neither be read nor written on each of 0, 1 and 2 that is closed. Otherwise a file opened
/// later could land there and get the output for standard error.
pub fn occupy_standard_descriptors() {
    use rustix::fs::{CWD, Mode, OFlags};
    while let Ok(fd) = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        if fd.as_raw_fd() > 2 {
            break;
        }
        // The descriptor stays open for good.
        let _standard = std::os::fd::IntoRawFd::into_raw_fd(fd);
    }
}

/// `_exit(status)` — ends this process now: no handlers, no buffers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(status) }
}

/// `pkey_alloc` — returns whether the processor and the kernel have memory protection keys (pkeys(7)).
pub fn has_protection_keys() -> bool {
    // SAFETY: a key that no memory has protects nothing.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    if key >= 0 {
        // SAFETY: the key was made above, and no memory has it.
        unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    }
    key >= 0
}
