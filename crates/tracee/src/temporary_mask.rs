//! System calls that wait under a signal mask of their own, and arguments with which the kernel refuses them at
//! once.
//!
//! While such a call waits, the kernel keeps the thread's own mask aside. `PTRACE_GETSIGMASK` shows that saved
//! mask, and `PTRACE_SETSIGMASK` makes the kernel forget that there was one (`ptrace_request` in
//! `kernel/ptrace.c`). Afterwards only the call itself can put its mask in force again. A thread that was stopped
//! in such a call is therefore let go at the *entry* of the same call
//! ([`Session::leave`](crate::session::Session::leave)).
//!
//! To reach that stop, the thread makes the call with one argument that the kernel refuses before it does anything
//! else. If this process dies there, the call ends at once and changes nothing, and the thread goes home. The other
//! arguments stay unchanged. The first one must: aarch64 keeps it from the beginning of the call for the case that
//! it makes the call again (`orig_x0`, `arch/arm64/kernel/syscall.c`).

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::address_space::Memory;
use tiexec_sys::c;

use crate::arch::Call;
use crate::interrupted::IORING_ENTER_EXT_ARG;

/// An address in the kernel's part of the address space.
const NOWHERE: u64 = !0;

/// If `call` may wait under a mask of its own, returns its name and the same call in a form that the kernel
/// refuses.
pub(crate) fn refused(call: &Call) -> Option<(&'static str, Call)> {
    // For each call: which argument has the address of the mask; which argument to change; its new value. A mask
    // has 8 bytes, and any other length gives EINVAL (`set_user_sigmask`, `kernel/signal.c`). If address and length
    // lie in memory, the argument becomes an unreadable address, which gives EFAULT.
    let (name, mask, changed, to) = match call.number {
        // `rt_sigsuspend` checks the length first (`kernel/signal.c`).
        c::SYS_rt_sigsuspend => ("rt_sigsuspend", 0, 1, 0),
        c::SYS_ppoll => ("ppoll", 3, 4, 0),
        c::SYS_epoll_pwait => ("epoll_pwait", 4, 5, 0),
        c::SYS_epoll_pwait2 => ("epoll_pwait2", 4, 5, 0),
        // `get_sigset_argpack`, `fs/select.c`.
        c::SYS_pselect6 => ("pselect6", 5, 5, NOWHERE),
        // `fs/aio.c`.
        c::SYS_io_pgetevents => ("io_pgetevents", 5, 5, NOWHERE),
        // The kernel knows no such flags (`io_uring/io_uring.c`).
        c::SYS_io_uring_enter => ("io_uring_enter", 4, 3, NOWHERE),
        _ => return None,
    };
    if call.args[mask] == 0 {
        return None;
    }
    let mut refused = *call;
    refused.args[changed] = to;
    Some((name, refused))
}

/// Returns the signal mask under which `call` waits; `None` if it has none of its own, or if it cannot be read.
pub(crate) fn mask(call: &Call, memory: &Memory) -> Option<u64> {
    let (at, is_described) = match call.number {
        c::SYS_rt_sigsuspend => (0, false),
        c::SYS_ppoll => (3, false),
        c::SYS_epoll_pwait | c::SYS_epoll_pwait2 => (4, false),
        // The argument points at the mask's address and length.
        c::SYS_pselect6 | c::SYS_io_pgetevents => (5, true),
        c::SYS_io_uring_enter => (4, call.args[3] & IORING_ENTER_EXT_ARG != 0),
        _ => return None,
    };
    // The kernel leaves these two out of every mask that it takes.
    const NEVER: u64 = 1 << (c::SIGKILL - 1) | 1 << (c::SIGSTOP - 1);
    let word = |at: u64| memory.words(RemoteAddr::new(at)).ok().map(|[word]| word & !NEVER);
    match call.args[at] {
        at if is_described => word(word(at)?),
        at => word(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7000;

    #[test]
    fn one_argument_is_changed_and_never_the_first() {
        for number in [
            c::SYS_rt_sigsuspend,
            c::SYS_ppoll,
            c::SYS_epoll_pwait,
            c::SYS_epoll_pwait2,
            c::SYS_pselect6,
            c::SYS_io_pgetevents,
            c::SYS_io_uring_enter,
        ] {
            let call = Call::new(number, [AT, 8, AT, AT, AT, AT]);
            let (name, other) = refused(&call).unwrap();
            let changed = call.args.iter().zip(other.args).filter(|(a, b)| **a != *b).count();
            assert_eq!((changed, other.number, other.args[0]), (1, number, AT), "{name}");
        }
    }

    #[test]
    fn without_a_mask_there_is_none() {
        for number in [c::SYS_ppoll, c::SYS_pselect6, c::SYS_epoll_pwait, c::SYS_futex] {
            assert_eq!(refused(&Call::new(number, [AT, 8, 0, 0, 0, 0])), None, "{number}");
        }
    }
}
