//! The effect of an interruption on each system call.
//!
//! A stop sets the same flag in a thread as a signal does, and every wait in the kernel tests that flag. The kernel
//! makes most interrupted calls again, and the thread does not notice. Some calls return EINTR, others the part that
//! they have done. `docs/design/interrupted-calls.md` lists them all, with the kernel's functions.

use std::time::Duration;

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::address_space::Memory;
use tiexec_sys::process::{Direction, SocketWait};
use tiexec_sys::procfs::{FileType, ProcDir};
use tiexec_sys::{Pid, c};

use crate::arch;

/// The effect of an interruption on a system call in which a thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// The kernel makes the call again, and the thread does not notice.
    Restarts,
    /// The kernel makes the call again, on the futex that the thread named at first. Other threads may have moved the
    /// thread to another futex since (`FUTEX_CMP_REQUEUE`). Nothing shows this from outside.
    RestartsElsewhere,
    /// The call returns EINTR. TiExec has the kernel make it again, and the thread does not notice.
    Repeats,
    /// As [`Repeats`](Self::Repeats), but the call's timeout begins again.
    RepeatsWithTimeout,
    /// The thread notices, or TiExec does not know the call.
    Felt,
}

/// Returns how calls in this direction on a descriptor of the process, which is a socket, wait.
pub type WaitOf<'a> = &'a dyn Fn(i32, Direction) -> SocketWait;

/// Returns the effect of an interruption on a call in which a thread of `process` sleeps.
pub(crate) fn effect(
    process: &ProcDir,
    number: i64,
    args: &[u64; 6],
    wait_of: WaitOf<'_>,
) -> Effect {
    match number {
        c::SYS_futex if may_be_requeued(process, args) => Effect::RestartsElsewhere,
        // The kernel writes the time that remains, although the call goes on.
        c::SYS_nanosleep if args[1] != 0 && args[1] != args[0] => Effect::Felt,
        c::SYS_clock_nanosleep if args[1] == 0 && args[3] != 0 && args[3] != args[2] => {
            Effect::Felt
        }
        // These restart from the beginning, or with the time that remains.
        c::SYS_futex
        | c::SYS_futex_waitv
        | SYS_FUTEX_WAIT
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
        | c::SYS_mq_timedsend => Effect::Restarts,
        c::SYS_recvfrom if waits_for_all(args[3]) => Effect::Felt,
        c::SYS_recvmsg if waits_for_all(args[2]) => Effect::Felt,
        c::SYS_read
        | c::SYS_readv
        | c::SYS_recvfrom
        | c::SYS_recvmsg
        | c::SYS_accept
        | c::SYS_accept4 => match kind(process, args[0]) {
            Kind::Socket(fd) => match wait_of(fd, Direction::Receive) {
                SocketWait::Plain => Effect::Restarts,
                SocketWait::Limited if arch::CALLS_ARE_SEEN => Effect::RepeatsWithTimeout,
                SocketWait::Limited | SocketWait::ForMore => Effect::Felt,
            },
            // A read that has data returns at once.
            Kind::Stream => Effect::Restarts,
            _ => Effect::Felt,
        },
        _ => wait_for_events(number, args).unwrap_or(Effect::Felt),
    }
}

/// Returns the effect of an interruption on a call that has no effect before it returns, and that returns EINTR on any
/// interruption. `None` for every other call.
fn wait_for_events(number: i64, args: &[u64; 6]) -> Option<Effect> {
    let has_timeout = match number {
        c::SYS_epoll_wait | c::SYS_epoll_pwait => (args[3] as u32).cast_signed() >= 0,
        c::SYS_epoll_pwait2 | c::SYS_semtimedop => args[3] != 0,
        c::SYS_semop => false,
        c::SYS_rt_sigtimedwait => args[2] != 0,
        // With a higher minimum, the call may have taken events already.
        c::SYS_io_getevents if args[1] <= 1 => args[4] != 0,
        // A call that submits requests returns how many.
        c::SYS_io_uring_enter if args[1] as u32 == 0 => args[3] & IORING_ENTER_EXT_ARG != 0,
        _ => return None,
    };
    Some(if has_timeout { Effect::RepeatsWithTimeout } else { Effect::Repeats })
}

/// `futex_wait(2)`, since Linux 6.7 (`scripts/syscall.tbl`: the same number everywhere).
const SYS_FUTEX_WAIT: i64 = 455;
/// The last argument of `io_uring_enter` is a `struct io_uring_getevents_arg`, which begins with the mask's address.
pub(crate) const IORING_ENTER_EXT_ARG: u64 = 1 << 3;

/// Returns the timeout of a call that [repeats with its timeout](Effect::RepeatsWithTimeout); `None` if it cannot be read.
pub(crate) fn timeout(memory: &Memory, number: i64, args: &[u64; 6]) -> Option<Duration> {
    let at = match number {
        c::SYS_epoll_wait | c::SYS_epoll_pwait => {
            return Some(Duration::from_millis(u64::from(args[3] as u32)));
        }
        c::SYS_epoll_pwait2 | c::SYS_semtimedop => args[3],
        c::SYS_rt_sigtimedwait => args[2],
        c::SYS_io_getevents => args[4],
        // The timeout of a socket is an option of the socket.
        _ => return None,
    };
    // struct timespec. Another thread may have changed it since the kernel checked it, as `timespec64_valid` does.
    let [seconds, nanos] = memory.words(RemoteAddr::new(at)).ok()?;
    let nanos = u32::try_from(nanos).ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

/// Returns the result with which a call that [repeats with its timeout](Effect::RepeatsWithTimeout) ends after its timeout.
pub(crate) fn timed_out(number: i64) -> i64 {
    const EAGAIN: i64 = 11;
    const ETIME: i64 = 62;
    match number {
        c::SYS_epoll_wait
        | c::SYS_epoll_pwait
        | c::SYS_epoll_pwait2
        | c::SYS_io_getevents
        | c::SYS_ppoll
        | c::SYS_pselect6
        | c::SYS_select => 0,
        c::SYS_io_uring_enter => -ETIME,
        _ => -EAGAIN,
    }
}

/// What a thread notices if a call that has returned EINTR is made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repeat {
    /// Nothing.
    Unnoticed,
    /// The call's timeout begins again.
    WithTimeout,
}

/// Returns how a call that has returned EINTR may be made again; `None` if it may not, because it may have had an effect.
pub(crate) fn repeat(process: &ProcDir, number: i64, args: &[u64; 6]) -> Option<Repeat> {
    match number {
        // These return EINTR only if the remaining time cannot be stored.
        c::SYS_ppoll | c::SYS_pselect6 | c::SYS_select => Some(Repeat::WithTimeout),
        // On a socket without a timeout the kernel restarts these. The registers of aarch64 do not show which of the two
        // happened.
        c::SYS_read
        | c::SYS_readv
        | c::SYS_recvfrom
        | c::SYS_recvmsg
        | c::SYS_accept
        | c::SYS_accept4
        | c::SYS_write
        | c::SYS_writev
        | c::SYS_sendto
        | c::SYS_sendmsg => {
            let is_socket = matches!(kind(process, args[0]), Kind::Socket(_));
            (arch::CALLS_ARE_SEEN && is_socket).then_some(Repeat::WithTimeout)
        }
        // A file in memory frees again what it had allocated (`shmem_fallocate`). No other file system is known to
        // return EINTR without an effect. Modes that move a file's content are never repeated.
        c::SYS_fallocate => {
            const KEEP_SIZE: u64 = 1;
            let safe = args[1] & !KEEP_SIZE == 0 && is_in_memory(process, args[0]);
            safe.then_some(Repeat::Unnoticed)
        }
        _ => match wait_for_events(number, args)? {
            Effect::RepeatsWithTimeout => Some(Repeat::WithTimeout),
            _ => Some(Repeat::Unnoticed),
        },
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
                && thread.is_some_and(|thread| {
                    process.status_of(thread).is_ok_and(|status| status.has_mm)
                });
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

/// The kinds of files that differ in what an interruption does to a read.
enum Kind {
    /// A socket, and its number.
    Socket(i32),
    /// A pipe, a terminal, or a file that delivers events. A read of it restarts, or returns what there is.
    Stream,
    /// Another file, or one that is not known.
    Other,
}

/// Finds out the kind of a descriptor. The descriptor is not copied, because closing a copy of a file may block, and
/// its file system is asked for nothing.
fn kind(process: &ProcDir, fd: u64) -> Kind {
    let Ok(fd) = i32::try_from(fd as u32) else { return Kind::Other };
    let name = format!("fd/{fd}");
    let Ok(link) = process.link(&name) else { return Kind::Other };
    if link.starts_with(b"socket:[") {
        return Kind::Socket(fd);
    }
    // `/dev/fuse` is read by the server of a file system.
    let known = [&b"pipe:["[..], b"anon_inode:"].iter().any(|start| link.starts_with(start));
    let is_stream = || matches!(process.file_type(&name), Ok(FileType::Fifo | FileType::Terminal));
    if known || link == b"/dev/fuse" || is_stream() { Kind::Stream } else { Kind::Other }
}

/// Returns whether a descriptor is a memfd, or a file of the usual directory for files in memory.
fn is_in_memory(process: &ProcDir, fd: u64) -> bool {
    let Ok(link) = process.link(&format!("fd/{}", fd as u32)) else { return false };
    link.starts_with(b"/memfd:") || link.starts_with(b"/dev/shm/")
}

/// Returns the name of a call that may keep every thread from being stopped.
pub(crate) fn name(number: i64) -> Option<&'static str> {
    const NAMES: [(i64, &str); 40] = [
        (c::SYS_read, "read"),
        (c::SYS_readv, "readv"),
        (c::SYS_write, "write"),
        (c::SYS_writev, "writev"),
        (c::SYS_pwritev2, "pwritev2"),
        (c::SYS_sendto, "sendto"),
        (c::SYS_sendmsg, "sendmsg"),
        (c::SYS_sendmmsg, "sendmmsg"),
        (c::SYS_recvfrom, "recvfrom"),
        (c::SYS_recvmsg, "recvmsg"),
        (c::SYS_recvmmsg, "recvmmsg"),
        (c::SYS_sendfile, "sendfile"),
        (c::SYS_splice, "splice"),
        (c::SYS_tee, "tee"),
        (c::SYS_vmsplice, "vmsplice"),
        (c::SYS_copy_file_range, "copy_file_range"),
        (c::SYS_getrandom, "getrandom"),
        (c::SYS_connect, "connect"),
        (c::SYS_accept, "accept"),
        (c::SYS_accept4, "accept4"),
        (c::SYS_close, "close"),
        (c::SYS_openat, "openat"),
        (c::SYS_ioctl, "ioctl"),
        (c::SYS_fcntl, "fcntl"),
        (c::SYS_fallocate, "fallocate"),
        (c::SYS_fsync, "fsync"),
        (c::SYS_msync, "msync"),
        (c::SYS_bpf, "bpf"),
        (c::SYS_nanosleep, "nanosleep"),
        (c::SYS_clock_nanosleep, "clock_nanosleep"),
        (c::SYS_epoll_wait, "epoll_wait"),
        (c::SYS_epoll_pwait, "epoll_pwait"),
        (c::SYS_epoll_pwait2, "epoll_pwait2"),
        (c::SYS_semtimedop, "semtimedop"),
        (c::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
        (c::SYS_io_getevents, "io_getevents"),
        (c::SYS_io_pgetevents, "io_pgetevents"),
        (c::SYS_io_submit, "io_submit"),
        (c::SYS_io_uring_enter, "io_uring_enter"),
        (c::SYS_futex, "futex"),
    ];
    NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use tiexec_sys::procfs::ProcDir;

    use super::*;

    /// The timeout of an epoll_pwait2(2) of this process, by its `struct timespec`.
    fn of(timespec: [u64; 2]) -> Option<Duration> {
        let this = ProcDir::this_process().expect("/proc");
        let memory = Memory::open(&this).expect("its memory");
        let at = timespec.as_ptr().addr() as u64;
        timeout(&memory, c::SYS_epoll_pwait2, &[0, 0, 0, at, 0, 0])
    }

    #[test]
    fn a_time_that_is_none_has_no_timeout() {
        assert_eq!(of([3, 500_000_000]), Some(Duration::from_millis(3500)));
        assert_eq!(of([u64::MAX, 999_999_999]), Some(Duration::MAX));
        for nanos in [1_000_000_000, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(of([u64::MAX, nanos]), None, "{nanos}");
        }
    }
}
