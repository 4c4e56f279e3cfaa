//! System calls that wait under a signal mask of their own, and what they are made with so that they
//! end at once.
//!
//! The kernel keeps the thread's own mask aside while such a call waits. `PTRACE_GETSIGMASK` shows that
//! saved mask, and `PTRACE_SETSIGMASK` has the kernel forget that there was one (`ptrace_request` in
//! `kernel/ptrace.c`): so nobody but the call itself can put its mask in force again. A thread that
//! was stopped in one is therefore let go at the *entry* of the same call
//! ([`Session::leave`](crate::session::Session::leave)). To get to that stop it makes the call with one
//! argument that the kernel refuses before anything else happens: should this process die there, the
//! call ends at once, changes nothing, and the thread goes home. The other arguments stay as they are,
//! above all the first: aarch64 keeps that from the call's beginning for the case that it makes the call
//! again (`orig_x0`, `arch/arm64/kernel/syscall.c`).

use tiexec_sys::c;

use crate::arch::Call;

/// An address of the kernel's.
const NOWHERE: u64 = !0;

/// If `call` may wait under a mask of its own: its name, and the same call as the kernel refuses it.
pub(crate) fn refused(call: &Call) -> Option<(&'static str, Call)> {
    // With masks: where it has the mask's address; where the argument to be changed, and to what.
    // A mask has 8 bytes; any other length is EINVAL (`set_user_sigmask`, `kernel/signal.c`). Where
    // address and length lie in memory, that cannot be read: EFAULT.
    let (name, mask, changed, to) = match call.number {
        // `rt_sigsuspend` looks at the length first (`kernel/signal.c`).
        c::SYS_rt_sigsuspend => ("rt_sigsuspend", 0, 1, 0),
        c::SYS_ppoll => ("ppoll", 3, 4, 0),
        c::SYS_epoll_pwait => ("epoll_pwait", 4, 5, 0),
        c::SYS_epoll_pwait2 => ("epoll_pwait2", 4, 5, 0),
        // `get_sigset_argpack`, `fs/select.c`.
        c::SYS_pselect6 => ("pselect6", 5, 5, NOWHERE),
        // `fs/aio.c`.
        c::SYS_io_pgetevents => ("io_pgetevents", 5, 5, NOWHERE),
        // It knows no such flags (`io_uring/io_uring.c`).
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
