//! How threads are scheduled (sched(7)).

use std::time::Duration;

use rustix::process::Pid;

use crate::error::{Errno, SysError, check};

/// `SCHED_FIFO`, not inherited by children.
const BOOSTED: i32 = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;

/// The state of a thread after its boost has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unboosted {
    /// The thread is scheduled as before.
    Wholly,
    /// The thread is scheduled normally, but its children would lose a negative nice value: without CAP_SYS_NICE,
    /// `SCHED_RESET_ON_FORK` cannot be cleared (`user_check_sched_setscheduler` in `kernel/sched/syscalls.c`).
    FlagStays,
}

/// Returns whether a thread is scheduled by `SCHED_OTHER`; `None` means the calling thread.
pub fn is_normal(tid: Option<Pid>) -> bool {
    policy(tid) == libc::SCHED_OTHER
}

/// Returns whether a thread is scheduled as [`boost`] leaves it; `None` means the calling thread.
pub fn is_boosted(tid: Option<Pid>) -> bool {
    policy(tid) == BOOSTED
}

fn policy(tid: Option<Pid>) -> i32 {
    // SAFETY: sched_getscheduler reads no memory.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, Pid::as_raw(tid)) as i32 }
}

/// `sched_setscheduler(tid, SCHED_FIFO|SCHED_RESET_ON_FORK, priority)` — schedules a thread before all normal ones, but
/// no thread that it starts; `None` means the calling thread. The nice value stays.
///
/// # Errors
/// EPERM without CAP_SYS_NICE or room in the thread's `RLIMIT_RTPRIO`, or in a CPU cgroup (v1) without real-time budget; ESRCH.
pub fn boost(tid: Option<Pid>, priority: i32) -> Result<(), SysError> {
    set(tid, BOOSTED, priority)
}

/// `sched_setscheduler(tid, SCHED_OTHER, 0)` — ends a boost; `None` means the calling thread.
///
/// This takes two steps, the flag last. The kernel clears the flag before it changes the policy
/// (`__sched_setscheduler`). A fork of the thread in between, which takes no lock, would inherit the boost.
///
/// # Errors
/// ESRCH; EPERM for another user's thread.
pub fn unboost(tid: Option<Pid>) -> Result<Unboosted, SysError> {
    set(tid, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0)?;
    match set(tid, libc::SCHED_OTHER, 0) {
        Ok(()) => Ok(Unboosted::Wholly),
        Err(error) if error.errno == Errno::PERM => Ok(Unboosted::FlagStays),
        Err(error) => Err(error),
    }
}

fn set(tid: Option<Pid>, policy: i32, sched_priority: i32) -> Result<(), SysError> {
    // `struct sched_param` of the kernel. musl has no such function, because its meaning differs from that of POSIX.
    let (tid, parameters) = (Pid::as_raw(tid), [sched_priority]);
    // SAFETY: the kernel reads the live structure.
    let returned =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, parameters.as_ptr()) };
    check("sched_setscheduler", returned)?;
    Ok(())
}

/// Returns for how long a thread of the process may run without a pause under a boost before the kernel sends SIGXCPU
/// or SIGKILL (`RLIMIT_RTTIME`). `None` means the calling process. Returns zero if the limit is not known.
pub fn longest_boost(pid: Option<Pid>) -> Duration {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call sets no new limit, and writes the old one to a live structure.
    let returned = unsafe {
        libc::prlimit(Pid::as_raw(pid), libc::RLIMIT_RTTIME, std::ptr::null(), &raw mut limit)
    };
    match returned {
        0 if limit.rlim_cur == libc::RLIM_INFINITY => Duration::MAX,
        0 => Duration::from_micros(limit.rlim_cur),
        _ => Duration::ZERO,
    }
}

/// Returns how much processor time a thread of this process has used, by `clock_gettime` of its processor time clock
/// (clock_getcpuclockid(3)); `None` once the thread has ended.
pub fn cpu_time(tid: Pid) -> Option<Duration> {
    /// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` (`include/linux/posix-timers_types.h`).
    const OF_A_THREAD: libc::clockid_t = 4 | 2;
    let clock = (!tid.as_raw_nonzero().get() << 3) | OF_A_THREAD;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a live structure.
    let returned = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (returned == 0).then(|| Duration::new(seconds, nanos))
}

/// Returns the id of this thread.
pub fn this_thread() -> Pid {
    rustix::thread::gettid()
}
