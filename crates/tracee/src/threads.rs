//! Chooses the thread of a running process to stop.
//!
//! A stop interrupts the system call in which a thread sleeps or runs. The kernel restarts most calls, and the thread does
//! not notice. Others return EINTR, or a part of what they were to do (`interrupted.rs`). TiExec therefore chooses
//! the thread by the call that it is in, and a running thread only at a moment at which it is in no call. If no thread
//! is suitable, TiExec waits for a better moment.

use std::time::Duration;

use tiexec_core::order;
use tiexec_core::proc::stack::leaves_the_kernel;
use tiexec_core::proc::stat;
use tiexec_core::proc::status::Status;
use tiexec_core::proc::syscall::{self, Doing};
use tiexec_sys::address_space::Memory;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, SysError};

pub use crate::interrupted::WaitOf;
use crate::interrupted::{self, Effect};

/// How a thread takes a stop, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Takes {
    /// Stopped by a signal, which has interrupted the thread's call already.
    GroupStopped,
    /// Asleep in a call that the kernel restarts. The thread loses nothing.
    Asleep,
    /// Asleep in a call such as `epoll_wait` without a timeout. It would return EINTR, but can be made again.
    AsleepToRepeat,
    /// Running. The thread loses the time of the stop, if it is [not in a system call](is_in_user_mode).
    Running,
    /// Asleep on a futex, from which other threads may have moved it to another one (`FUTEX_CMP_REQUEUE`). If the
    /// call is made again, it waits on the first futex. Nothing shows this from outside.
    AsleepOnFutex,
    /// Asleep in a call such as `epoll_wait` with a timeout. The call can be made again, and its timeout begins again.
    AsleepWithTimeout,
    /// Running, and the kernel does not show whether it is in a system call.
    RunningUnseen,
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
    process.status_of(tid).map_or(true, |status| matches!(status.state, b'Z' | b'X' | b'x'))
}

/// Returns whether a stop of the thread would not be unnoticed, whatever the call that it shows:
///
/// - It is frozen by cgroup v2. (With v1 it is in state D.) A frozen thread can be seized and stopped, but makes no system
///   call before it is thawed (`do_freezer_trap` in `kernel/signal.c`, which compilers inline into its caller).
/// - It waits for a supervisor's answer to a call (`SECCOMP_RET_USER_NOTIF`). The supervisor would be asked twice.
///
/// Returns false if the kernel does not show where the thread sleeps.
fn is_held(process: &ProcDir, tid: Pid) -> bool {
    process.read_of(tid, "wchan").is_ok_and(|place| {
        let place: &[u8] = &place;
        place == b"do_freezer_trap"
            || place == b"get_signal"
            || place.starts_with(b"seccomp")
            || place.starts_with(b"__seccomp")
    })
}

/// Tries to read which call `tid` is in, which takes the right to trace it (`proc_pid_syscall` in
/// `fs/proc/base.c`).
///
/// # Errors
/// EPERM without that right; ESRCH, ENOENT if the thread has ended.
pub fn may_look(process: &ProcDir, tid: Pid) -> Result<(), SysError> {
    process.read_of(tid, "syscall").map(drop)
}

/// Returns how `tid` would take a stop now. `wait_of` is called for a socket from which the thread receives.
pub fn takes(process: &ProcDir, tid: Pid, wait_of: WaitOf<'_>) -> Takes {
    let Some(doing) = doing(process, tid) else { return Takes::Badly };
    match doing {
        _ if is_held(process, tid) => Takes::Badly,
        // `-1` stands for a page fault. A thread that a signal has stopped shows the call that the signal interrupted.
        Doing::Blocked => Takes::Asleep,
        Doing::Running if stack(process, tid).is_none() => Takes::RunningUnseen,
        Doing::Running => Takes::Running,
        Doing::Call { number, args } => {
            let Ok(number) = i64::try_from(number) else { return Takes::Badly };
            match interrupted::effect(process, number, &args, wait_of) {
                Effect::Restarts => Takes::Asleep,
                Effect::Repeats => Takes::AsleepToRepeat,
                Effect::RestartsElsewhere => Takes::AsleepOnFutex,
                Effect::RepeatsWithTimeout => Takes::AsleepWithTimeout,
                Effect::Felt => Takes::Badly,
            }
        }
    }
}

/// Returns the number of the system call in which `tid` sleeps.
pub fn call_of(process: &ProcDir, tid: Pid) -> Option<i64> {
    match doing(process, tid)? {
        Doing::Call { number, .. } => i64::try_from(number).ok(),
        Doing::Running | Doing::Blocked => None,
    }
}

/// Returns the timeout of the system call in which `tid` sleeps, if the call can be made again with its timeout.
pub fn timeout_of(process: &ProcDir, memory: &Memory, tid: Pid) -> Option<Duration> {
    let Doing::Call { number, args } = doing(process, tid)? else { return None };
    interrupted::timeout(memory, i64::try_from(number).ok()?, &args)
}

/// Returns the name of a system call, as far as this program knows it.
pub fn name_of_call(number: i64) -> String {
    interrupted::name(number).map_or_else(|| format!("system call {number}"), str::to_owned)
}

fn doing(process: &ProcDir, tid: Pid) -> Option<Doing> {
    syscall::parse(&process.read_of(tid, "syscall").ok()?).ok()
}

/// Returns whether a running thread waits for a processor outside of a system call, or at the end of one. A stop then
/// interrupts nothing, unless the thread gets a processor first. So the caller must hold the thread's processor: while
/// the thread runs, the kernel does not show where.
pub fn is_in_user_mode(process: &ProcDir, tid: Pid) -> bool {
    stack(process, tid).is_some_and(|text| leaves_the_kernel(&text))
}

/// Reads where in the kernel `tid` is. `None` if the kernel does not show it: that takes CAP_SYS_ADMIN in the initial user
/// namespace, and CONFIG_STACKTRACE (`proc_pid_stack`, `fs/proc/base.c`).
fn stack(process: &ProcDir, tid: Pid) -> Option<Vec<u8>> {
    process.read_of(tid, "stack").ok()
}

/// Reads the thread's status; `None` once it has ended.
pub fn alive(process: &ProcDir, tid: Pid) -> Option<Status> {
    // A leader that has ended stays a zombie while other threads run.
    process.status_of(tid).ok().filter(|status| status.has_mm)
}

/// Returns when the thread began, in clock ticks after the machine; `None` once it has ended. A later thread of the same
/// ID began at another time.
pub fn start_time(process: &ProcDir, tid: Pid) -> Option<u64> {
    stat::start_time(&process.read_of(tid, "stat").ok()?).ok()
}

/// Returns the first thread of `pid` that has not ended. If the first thread of a process has ended, `/proc/PID`
/// shows nothing of the process.
pub fn first_alive(process: &ProcDir, pid: Pid) -> Option<Pid> {
    let is_alive = |&tid: &Pid| alive(process, tid).is_some();
    if is_alive(&pid) { Some(pid) } else { list(process, pid).into_iter().find(is_alive) }
}
