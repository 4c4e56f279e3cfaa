//! Advice on another process's memory (process_madvise(2)).

use std::os::fd::{AsRawFd, BorrowedFd};

use tiexec_core::addr::{AddrRange, RemoteAddr};

use crate::error::{SysError, check};
use crate::reservation::MADV_COLLAPSE;

fn remote(addr: RemoteAddr, len: usize) -> libc::iovec {
    let addr = usize::try_from(addr.get()).unwrap_or(0);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: len }
}

/// `process_madvise(pidfd, [range], MADV_COLLAPSE)` — makes the range huge pages now, whatever THP's
/// settings are; the process does not stop. The range begins and ends on a huge page. Since Linux 6.1.
///
/// # Errors
/// EPERM without CAP_SYS_NICE in the initial user namespace, or without the right to trace the process;
/// EINVAL if the range cannot be huge (`PR_SET_THP_DISABLE`, `MADV_NOHUGEPAGE`, no such mapping); ENOMEM
/// without a free huge page; EAGAIN for a passing obstacle; ESRCH.
pub fn collapse(process: BorrowedFd<'_>, range: AddrRange) -> Result<(), SysError> {
    const CALL: &str = "process_madvise(MADV_COLLAPSE)";
    let remote = remote(range.start(), usize::try_from(range.len()).unwrap_or(usize::MAX));
    // SAFETY: the kernel reads the one live iovec. It looks up the address only in the other process,
    // where a collapse changes no byte.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const remote,
            1,
            MADV_COLLAPSE,
            0,
        )
    };
    check(CALL, returned)?;
    Ok(())
}
