//! Chooses the thread of a running process to stop.
//!
//! A stop interrupts the system call that a thread sleeps in. Most calls are restarted by the kernel
//! and nobody notices; a few return EINTR, which a program that uses no signals may not expect
//! (signal(7), "Interruption of system calls"). So the
//! thread is chosen by what it is doing, and where all are doing the wrong thing, the right moment is
//! waited for.

use tiexec_core::order;
use tiexec_core::proc::status::{self, Status};
use tiexec_core::proc::syscall::{self, Doing};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError, c};

/// How a thread would take a stop; the best comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Takes {
    /// Asleep in a call that the kernel restarts: it loses nothing.
    Asleep,
    /// Running: it loses the time of the stop.
    Running,
    /// Asleep in a call such as `epoll_wait` without a timeout: it would return EINTR, but can be made
    /// again.
    AsleepToRewind,
    /// Asleep on a futex, and others of the program may have moved it to another one
    /// (`FUTEX_CMP_REQUEUE`): made again, the call waits on the first one. Nothing tells from outside.
    AsleepOnFutex,
    /// Asleep in a call such as `epoll_wait` with a timeout, which will return EINTR: only for a thread
    /// that [expects that](expects_eintr).
    AsleepForEintr,
    /// Would see that a call has done a part of its work, or cannot be stopped: not to be chosen.
    Badly,
}

/// Lists the threads of `pid`, the leader first.
pub fn list(process: &ProcDir, pid: Pid) -> Vec<Pid> {
    let raw = pid.as_raw_nonzero().get();
    let mut tids: Vec<i32> = process
        .list("task")
        .unwrap_or_default()
        .into_iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    order::by_key(&mut tids, |&tid| (tid != raw, tid));
    tids.into_iter().filter_map(Pid::from_raw).collect()
}

/// Returns whether the thread has ended, reaped or not: it can no longer be seized, which the kernel answers
/// with EPERM.
pub fn has_ended(process: &ProcDir, tid: Pid) -> bool {
    status_of(process, tid).is_none_or(|status| matches!(status.state, b'Z' | b'X' | b'x'))
}

/// Returns whether the thread is frozen by a cgroup (v2; by v1 it is in state D): it can be seized and comes to
/// a stop, but makes no system call before it is thawed (`do_freezer_trap` in `kernel/signal.c`, which
/// compilers put into its caller). False if the kernel does not tell where the thread sleeps.
fn is_frozen(process: &ProcDir, tid: Pid) -> bool {
    let file = format!("task/{}/wchan", tid.as_raw_nonzero());
    process.read_as(&file, "wchan").is_ok_and(|place| {
        let place: &[u8] = &place;
        place == b"do_freezer_trap" || place == b"get_signal"
    })
}

/// Tries to look at what `tid` is doing, which takes the right to trace it (`proc_pid_syscall` in
/// `fs/proc/base.c`).
///
/// # Errors
/// EPERM without that right; ESRCH, ENOENT where it has ended.
pub fn may_look(process: &ProcDir, tid: Pid) -> Result<(), SysError> {
    let file = format!("task/{}/syscall", tid.as_raw_nonzero());
    process.read_as(&file, "syscall").map(drop)
}

/// Says of a descriptor of the process, which is a socket, whether calls on it give up after a time; so if that cannot be
/// told.
pub type HasTimeout<'a> = &'a dyn Fn(i32) -> bool;

/// Says how `tid` would take a stop now. A socket that it receives from is looked at by `has_timeout`.
pub fn takes(process: &ProcDir, tid: Pid, has_timeout: HasTimeout<'_>) -> Takes {
    let file = format!("task/{}/syscall", tid.as_raw_nonzero());
    let Ok(text) = process.read_as(&file, "syscall") else { return Takes::Badly };
    if is_frozen(process, tid) {
        return Takes::Badly;
    }
    match syscall::parse(&text) {
        Ok(Doing::Running) => Takes::Running,
        Ok(Doing::Call { number, args }) => asleep(process, number, &args, has_timeout),
        // In a page fault, or stopped by a signal.
        Ok(Doing::Blocked) => Takes::Running,
        Err(_) => Takes::Badly,
    }
}

/// Reads the thread's status; `None` once it has ended.
pub fn alive(process: &ProcDir, tid: Pid) -> Option<Status> {
    // A leader that has ended stays as a zombie while others run.
    status_of(process, tid).filter(|status| status.has_mm)
}

/// Returns the first thread of `pid` that has not ended. `/proc/PID` shows nothing of a process whose first thread has.
pub fn first_alive(process: &ProcDir, pid: Pid) -> Option<Pid> {
    list(process, pid).into_iter().find(|&tid| alive(process, tid).is_some())
}

fn status_of(process: &ProcDir, tid: Pid) -> Option<Status> {
    let file = format!("task/{}/status", tid.as_raw_nonzero());
    Some(status::parse(&process.read_as(&file, "status").ok()?))
}

fn asleep(process: &ProcDir, number: u64, args: &[u64; 6], has_timeout: HasTimeout<'_>) -> Takes {
    let Ok(number) = i64::try_from(number) else { return Takes::Badly };
    match number {
        c::SYS_futex if may_be_requeued(process, args) => Takes::AsleepOnFutex,
        // Restarted from the beginning, or with the time that remains.
        c::SYS_futex
        | c::SYS_poll
        | c::SYS_ppoll
        | c::SYS_select
        | c::SYS_pselect6
        | c::SYS_nanosleep
        | c::SYS_clock_nanosleep
        | c::SYS_wait4
        | c::SYS_waitid
        | c::SYS_pause
        | c::SYS_rt_sigsuspend
        | c::SYS_restart_syscall
        | c::SYS_flock
        | c::SYS_msgrcv
        | c::SYS_msgsnd
        | c::SYS_mq_timedreceive
        | c::SYS_mq_timedsend => Takes::Asleep,
        // On a socket with a timeout these show EINTR; otherwise they are restarted. A call that has got on already
        // returns what it has. So writes, and calls that wait for all, take it badly.
        c::SYS_recvfrom if waits_for_all(args[3]) => Takes::Badly,
        c::SYS_recvmsg if waits_for_all(args[2]) => Takes::Badly,
        c::SYS_read
        | c::SYS_readv
        | c::SYS_recvfrom
        | c::SYS_recvmsg
        | c::SYS_accept
        | c::SYS_accept4
            if !has_a_timeout(process, args[0], has_timeout) =>
        {
            Takes::Asleep
        }
        _ if waits_forever(number, args) => Takes::AsleepToRewind,
        // sigtimedwait(2) is not listed: the signals it waits for count as unblocked meanwhile.
        c::SYS_epoll_wait | c::SYS_epoll_pwait | c::SYS_epoll_pwait2 | c::SYS_semtimedop => {
            Takes::AsleepForEintr
        }
        _ => Takes::Badly,
    }
}

/// Returns whether a thread must be ready for EINTR in any case: a signal may come at any time for which it has
/// a handler. Those do not count that a thread raises by a fault of its own.
pub fn expects_eintr(status: &Status) -> bool {
    let own = [c::SIGSEGV, c::SIGBUS, c::SIGFPE, c::SIGILL, c::SIGTRAP, c::SIGSYS, c::SIGABRT];
    let faults = own.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    status.caught & !status.blocked & !faults != 0
}

/// Returns whether the call waits without end, has no effect before it returns, and answers EINTR to any
/// interruption: then it can be made again, and nothing is lost.
pub(crate) fn waits_forever(number: i64, args: &[u64; 6]) -> bool {
    const IORING_ENTER_EXT_ARG: u64 = 1 << 3;
    match number {
        c::SYS_epoll_wait | c::SYS_epoll_pwait => (args[3] as u32).cast_signed() < 0,
        c::SYS_epoll_pwait2 | c::SYS_semtimedop => args[3] == 0,
        c::SYS_semop => true,
        c::SYS_rt_sigtimedwait => args[2] == 0,
        // One that submits something answers how much.
        c::SYS_io_uring_enter => args[1] as u32 == 0 && args[3] & IORING_ENTER_EXT_ARG == 0,
        _ => false,
    }
}

/// Returns whether the program may have moved a thread that waits so on a futex to another futex. It cannot have if the
/// value that the thread waits to change is the id of a thread that lives, in memory that processes may share: so
/// pthread_join(3) waits for that thread's end, and the kernel itself tells of the end.
fn may_be_requeued(process: &ProcDir, args: &[u64; 6]) -> bool {
    const FUTEX_WAIT: u32 = 0;
    const FUTEX_WAIT_BITSET: u32 = 9;
    const FUTEX_WAIT_REQUEUE_PI: u32 = 11;
    const FUTEX_PRIVATE_FLAG: u32 = 128;
    const FUTEX_CLOCK_REALTIME: u32 = 256;
    let operation = args[1] as u32;
    match operation & !(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME) {
        FUTEX_WAIT | FUTEX_WAIT_BITSET => {
            let thread = i32::try_from(args[2] as u32).ok().and_then(Pid::from_raw);
            let is_join = operation & FUTEX_PRIVATE_FLAG == 0
                && thread.is_some_and(|thread| alive(process, thread).is_some());
            !is_join
        }
        // For the same on the way to a mutex that inherits priorities, it answers EAGAIN.
        FUTEX_WAIT_REQUEUE_PI => true,
        // The kernel never moves a waiter of another operation (`futex_requeue`, `kernel/futex/requeue.c`).
        _ => false,
    }
}

/// Returns whether the flags of a receiving call are for a whole buffer.
fn waits_for_all(flags: u64) -> bool {
    flags as u32 & c::MSG_WAITALL.unsigned_abs() != 0
}

/// Returns whether the descriptor is a socket on which calls give up after a time; so if that cannot be told. The link
/// of what is no socket says so: no copy is made of it, for whoever closes a copy of a file may have to wait.
fn has_a_timeout(process: &ProcDir, fd: u64, has_timeout: HasTimeout<'_>) -> bool {
    let Ok(fd) = i32::try_from(fd as u32) else { return true };
    match process.link(&format!("fd/{fd}")) {
        Ok(link) if !link.starts_with(b"socket:[") => false,
        Ok(_) => has_timeout(fd),
        Err(_) => true,
    }
}
