//! Another process's memory, by process_vm_readv(2) and process_vm_writev(2).
//!
//! Not by `/proc/PID/mem`: that writes through read-only and guard pages alike.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;
use tiexec_core::addr::{AddrRange, RemoteAddr};

use crate::error::{Errno, SysError, check};
use crate::reserve::MADV_COLLAPSE;

fn remote(addr: RemoteAddr, len: usize) -> libc::iovec {
    let addr = usize::try_from(addr.get()).unwrap_or(0);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: len }
}

/// `process_vm_readv` — fills all of `buffer` from `addr` of the process.
///
/// # Errors
/// EFAULT also if only a part could be read; EPERM; ESRCH.
pub fn read(pid: Pid, addr: RemoteAddr, buffer: &mut [u8]) -> Result<(), SysError> {
    const CALL: &str = "process_vm_readv";
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = remote(addr, buffer.len());
    // SAFETY: `local` is the live, exclusive buffer; the remote address is only ever looked up in
    // the other process.
    let count = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    whole(CALL, count, buffer.len())
}

/// Reads the string at `addr` of the process, up to its zero byte or `PATH_MAX` bytes.
///
/// # Errors
/// As [`read`].
pub fn read_string(pid: Pid, addr: RemoteAddr) -> Result<Vec<u8>, SysError> {
    // Never across the end of a page: the next one may not be there.
    let page = rustix::param::page_size() as u64;
    let mut string = Vec::new();
    let mut at = addr;
    while string.len() < libc::PATH_MAX as usize {
        let mut part = vec![0; (page - at.get() % page) as usize];
        read(pid, at, &mut part)?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            string.extend(&part[..end]);
            break;
        }
        at = at
            .checked_add(part.len() as u64)
            .ok_or(SysError { call: "process_vm_readv", errno: Errno(libc::EFAULT) })?;
        string.extend(part);
    }
    Ok(string)
}

/// `process_vm_writev` — writes all of `bytes` to `addr` of the process, with its page protections.
///
/// # Errors
/// EFAULT also if only a part could be written; EPERM; ESRCH.
pub fn write(pid: Pid, addr: RemoteAddr, bytes: &[u8]) -> Result<(), SysError> {
    const CALL: &str = "process_vm_writev";
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = remote(addr, bytes.len());
    // SAFETY: the kernel only reads `local`, which is the live slice; the remote address is only
    // ever looked up in the other process.
    let count = unsafe {
        libc::process_vm_writev(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    whole(CALL, count, bytes.len())
}

/// `process_madvise(pidfd, [range], MADV_COLLAPSE)` — makes the range, which begins and ends on a huge
/// page, huge pages now, whatever THP's settings; the process does not stop. Since Linux 6.1.
///
/// # Errors
/// EPERM without CAP_SYS_NICE in the initial user namespace, or leave to trace it; EINVAL where it
/// cannot be huge (`PR_SET_THP_DISABLE`, `MADV_NOHUGEPAGE`, no such mapping); ENOMEM without a free huge
/// page; EAGAIN for a passing obstacle; ESRCH.
pub fn collapse(process: BorrowedFd<'_>, range: AddrRange) -> Result<(), SysError> {
    const CALL: &str = "process_madvise(MADV_COLLAPSE)";
    let remote = remote(range.start(), usize::try_from(range.len()).unwrap_or(usize::MAX));
    // SAFETY: the kernel reads the one live iovec; the address is only ever looked up in the other
    // process, where collapsing changes no byte.
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

fn whole(call: &'static str, count: isize, wanted: usize) -> Result<(), SysError> {
    let count = check(call, count as libc::c_long)?;
    if usize::try_from(count).is_ok_and(|count| count == wanted) {
        Ok(())
    } else {
        Err(SysError { call, errno: Errno(libc::EFAULT) })
    }
}
