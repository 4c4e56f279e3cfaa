//! Makes an orphan: a process that the kernel has given to another parent.

use libc::{CLONE_FILES, CLONE_VFORK, CLONE_VM, c_long};
use rustix::process::Pid;
use rustix::thread::CpuSet;

use crate::arch;
use crate::error::{Errno, SysError};
use crate::process::{another_thread_runs, wait};
use crate::process_name::{Lent, Role};
use crate::same_processor::Bound;

/// The two sides of [`orphan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Orphan {
    /// This process is the orphan.
    This {
        /// The process that forked it, and that ends at once.
        first: Option<Pid>,
    },
    /// The process that called, with the orphan's id. The kernel has given the orphan to another parent.
    Other(Pid),
}

/// The flags of the first child. As after vfork(2), it runs in the memory of its parent while the parent stands still. So
/// the kernel copies the page tables once, for the orphan, and the parent needs no message from another process, for which
/// it would wait until that process gets a processor. The flags name no signal: `wait` without `__WALL` does not see the
/// child. With descriptors of its own, the child would close a copy of each at its end, and wait as long as the server of a file takes
/// (FUSE, NFS).
const FIRST: c_long = (CLONE_VM | CLONE_VFORK | CLONE_FILES) as c_long;

/// `clone(CLONE_VM|CLONE_VFORK|CLONE_FILES)`, and `clone(0)` in the child, which ends then — makes an orphan. The orphan shows its
/// `role` as its name and as its command line; this process shows it, too, until the call returns.
///
/// No seccomp filter may kill for one of the calls: clone, getpid, `exit_group`, wait4, `sched_getaffinity`,
/// `sched_setaffinity`. Before Linux 5.16, a core dump of the first child would end this process, too, because the two share
/// memory (`zap_threads` in `fs/coredump.c`).
///
/// # Errors
/// As fork(2): EAGAIN at `RLIMIT_NPROC` or the pids cgroup's limit, ENOMEM.
///
/// EAGAIN, without a fork, if another thread of this process runs: a lock that it held would stay locked in the orphan.
pub fn orphan(role: Role) -> Result<Orphan, SysError> {
    if another_thread_runs() {
        return Err(SysError { call: "clone", errno: Errno::AGAIN });
    }
    // Ctrl-Z could stop the first child, and this process, which stands in clone(2) and cannot stop, would wait for it.
    let before = set_mask(u64::MAX);
    let forked = fork(role);
    set_mask(before);
    forked
}

/// Blocks these signals and no others. Returns those that were blocked before. The functions of C libraries leave out the
/// signals that they use themselves, and would change a mask that has these.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (set, old, len) = (&raw const mask, &raw mut before, size_of::<u64>());
    // SAFETY: both masks are live, and as long as the kernel's.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, old, len) };
    before
}

fn fork(role: Role) -> Result<Orphan, SysError> {
    let mut told = [0; 2];
    // The orphan may get no processor for a while: nobody may take it for this process or for the program meanwhile.
    let shown = Lent::begin(role);
    let mut bound = Bound::begin();
    let free = bound.as_ref().map_or_else(CpuSet::new, |bound| bound.free);
    // SAFETY: `told` is live, these are the flags, and the process has one thread.
    let answer = unsafe { arch::fork_twice(FIRST, &raw mut told, &free) };
    let [first, orphan] = told;
    if answer == 0 {
        // The first child has freed itself, and so this orphan.
        std::mem::forget(bound.take());
    }
    drop(bound);
    if answer == 0 {
        shown.keep(role);
        return Ok(Orphan::This { first: pid_of(first).ok() });
    }
    shown.end();
    // The first child has ended, or is about to.
    let _reaped = wait(pid_of(answer)?);
    pid_of(orphan).map(Orphan::Other)
}

/// Reads an answer of clone(2). 0 is what a first child leaves that was killed before it forked.
fn pid_of(answer: c_long) -> Result<Pid, SysError> {
    let answer = answer as i32;
    if let Some(pid) = Pid::from_raw(answer.max(0)) {
        return Ok(pid);
    }
    let errno = if answer == 0 { Errno::INTR } else { Errno(-answer) };
    Err(SysError { call: "clone", errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_clone() {
        assert_eq!(pid_of(7).unwrap().as_raw_nonzero().get(), 7);
        assert_eq!(pid_of(-11).unwrap_err().errno, Errno::AGAIN);
        assert_eq!(pid_of(0).unwrap_err().errno, Errno::INTR);
    }
}
