//! Chooses the thread of a running process to stop.
//!
//! A stop interrupts the system call in which a thread sleeps. The kernel restarts most calls, and the thread does
//! not notice. A few calls return EINTR, which a program that uses no signals may not expect (signal(7),
//! "Interruption of system calls"). TiExec therefore chooses the thread by the call that it is in. If no thread is
//! in a suitable call, TiExec waits for a better moment.

use tiexec_core::order;
use tiexec_core::proc::status::{self, Status};
use tiexec_core::proc::syscall::{self, Doing};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError, c};

/// How a thread takes a stop, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Takes {
    /// Asleep in a call that the kernel restarts. The thread loses nothing.
    Asleep,
    /// Running. The thread loses the time of the stop.
    Running,
    /// Asleep in a call such as `epoll_wait` without a timeout. It would return EINTR, but can be made again.
    AsleepToRewind,
    /// Asleep on a futex, from which other threads may have moved it to another one (`FUTEX_CMP_REQUEUE`). If the
    /// call is made again, it waits on the first futex. Nothing shows this from outside.
    AsleepOnFutex,
    /// Asleep in a call such as `epoll_wait` with a timeout, which will return EINTR. Only for a thread that
    /// [expects that](expects_eintr).
    AsleepForEintr,
    /// Would notice that a call did only a part of its work, or cannot be stopped. Never chosen.
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

/// Returns whether the thread has ended, reaped or not. Such a thread can no longer be seized: the kernel returns
/// EPERM.
pub fn has_ended(process: &ProcDir, tid: Pid) -> bool {
    status_of(process, tid).is_none_or(|status| matches!(status.state, b'Z' | b'X' | b'x'))
}

/// Returns whether the thread is frozen by cgroup v2. (With v1 it is in state D.) A frozen thread can be seized and
/// stopped, but makes no system call before it is thawed (`do_freezer_trap` in `kernel/signal.c`, which compilers
/// inline into its caller). Returns false if the kernel does not show where the thread sleeps.
fn is_frozen(process: &ProcDir, tid: Pid) -> bool {
    let file = format!("task/{}/wchan", tid.as_raw_nonzero());
    process.read_as(&file, "wchan").is_ok_and(|place| {
        let place: &[u8] = &place;
        place == b"do_freezer_trap" || place == b"get_signal"
    })
}

/// Tries to read which call `tid` is in, which takes the right to trace it (`proc_pid_syscall` in
/// `fs/proc/base.c`).
///
/// # Errors
/// EPERM without that right; ESRCH, ENOENT if the thread has ended.
pub fn may_look(process: &ProcDir, tid: Pid) -> Result<(), SysError> {
    let file = format!("task/{}/syscall", tid.as_raw_nonzero());
    process.read_as(&file, "syscall").map(drop)
}

/// Returns whether calls on a descriptor of the process, which is a socket, can time out; true if that is not
/// known.
pub type HasTimeout<'a> = &'a dyn Fn(i32) -> bool;

/// Returns how `tid` would take a stop now. `has_timeout` is called for a socket from which the thread receives.
pub fn takes(process: &ProcDir, tid: Pid, has_timeout: HasTimeout<'_>) -> Takes {
    let file = format!("task/{}/syscall", tid.as_raw_nonzero());
    let Ok(text) = process.read_as(&file, "syscall") else { return Takes::Badly };
    if is_frozen(process, tid) {
        return Takes::Badly;
    }
    match syscall::parse(&text) {
        Ok(Doing::Running) => Takes::Running,
        Ok(Doing::Call { number, args }) => asleep(process, number, &args, has_timeout),
        // The thread is in a page fault, or stopped by a signal.
        Ok(Doing::Blocked) => Takes::Running,
        Err(_) => Takes::Badly,
    }
}

/// Reads the thread's status; `None` once it has ended.
pub fn alive(process: &ProcDir, tid: Pid) -> Option<Status> {
    // A leader that has ended stays a zombie while other threads run.
    status_of(process, tid).filter(|status| status.has_mm)
}

/// Returns the first thread of `pid` that has not ended. If the first thread of a process has ended, `/proc/PID`
/// shows nothing of the process.
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
        // The kernel restarts these from the beginning, or with the time that remains.
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
        // On a socket with a timeout these return EINTR; otherwise the kernel restarts them. A call that has
        // transferred a part returns that part, so writes, and calls that wait for the whole buffer, take a stop
        // badly.
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
        // sigtimedwait(2) is not listed, because the signals for which it waits count as unblocked meanwhile.
        c::SYS_epoll_wait | c::SYS_epoll_pwait | c::SYS_epoll_pwait2 | c::SYS_semtimedop => {
            Takes::AsleepForEintr
        }
        _ => Takes::Badly,
    }
}

/// Returns whether a thread must be ready for EINTR in any case, because a signal for which it has a handler may
/// come at any time. Signals that a thread raises by its own faults do not count.
pub fn expects_eintr(status: &Status) -> bool {
    let own = [c::SIGSEGV, c::SIGBUS, c::SIGFPE, c::SIGILL, c::SIGTRAP, c::SIGSYS, c::SIGABRT];
    let faults = own.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    status.caught & !status.blocked & !faults != 0
}

/// Returns whether the call waits without end, has no effect before it returns, and returns EINTR on any
/// interruption. Such a call can be made again, and nothing is lost.
pub(crate) fn waits_forever(number: i64, args: &[u64; 6]) -> bool {
    const IORING_ENTER_EXT_ARG: u64 = 1 << 3;
    match number {
        c::SYS_epoll_wait | c::SYS_epoll_pwait => (args[3] as u32).cast_signed() < 0,
        c::SYS_epoll_pwait2 | c::SYS_semtimedop => args[3] == 0,
        c::SYS_semop => true,
        c::SYS_rt_sigtimedwait => args[2] == 0,
        // A call that submits requests returns how many.
        c::SYS_io_uring_enter => args[1] as u32 == 0 && args[3] & IORING_ENTER_EXT_ARG == 0,
        _ => false,
    }
}

/// Returns whether the program may have moved a thread in this futex call to another futex. It cannot have in one
/// case: the thread waits for a change of the ID of a living thread, in memory that processes may share. That is
/// how pthread_join(3) waits for that thread's end, of which the kernel itself informs the waiter.
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
        // Once the waiter has been moved to a mutex that inherits priorities, an interruption makes this call
        // return EAGAIN.
        FUTEX_WAIT_REQUEUE_PI => true,
        // The kernel never moves a waiter of another operation (`futex_requeue`, `kernel/futex/requeue.c`).
        _ => false,
    }
}

/// Returns whether the flags of a receiving call request a whole buffer.
fn waits_for_all(flags: u64) -> bool {
    flags as u32 & c::MSG_WAITALL.unsigned_abs() != 0
}

/// Returns whether the descriptor is a socket on which calls can time out; true if that is not known. The
/// descriptor's link shows whether it is a socket. Any other file is not copied, because closing a copy of a file
/// may block.
fn has_a_timeout(process: &ProcDir, fd: u64, has_timeout: HasTimeout<'_>) -> bool {
    let Ok(fd) = i32::try_from(fd as u32) else { return true };
    match process.link(&format!("fd/{fd}")) {
        Ok(link) if !link.starts_with(b"socket:[") => false,
        Ok(_) => has_timeout(fd),
        Err(_) => true,
    }
}
