//! Options of sockets: the process and the user at the other end of a unix(7) socket, and how a receiving call waits.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Pid;
use crate::error::{SysError, check};

/// `SO_PEERPIDFD` (`include/uapi/asm-generic/socket.h`), the same on x86-64 and aarch64.
const SO_PEERPIDFD: i32 = 77;

/// `getsockopt(SOL_SOCKET, SO_PEERPIDFD)` — opens a pidfd of the process that connected the other end of the socket. The
/// pidfd never means another process, although the process's ID may be reused.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.5. ENODATA, EINVAL or ESRCH if the process has ended (`sk_getsockopt` in
/// `net/core/sock.c`). EMFILE.
pub fn pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    // SAFETY: every value of the bytes is an integer.
    let fd = unsafe { option(socket, "getsockopt(SO_PEERPIDFD)", SO_PEERPIDFD, -1_i32) }?;
    // SAFETY: the call succeeded, so `fd` is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `getsockopt(SOL_SOCKET, SO_PEERCRED)` — returns the process and the user that connected the other end of the socket, or
/// that listened. The process is `None` if it is in no PID namespace of this
/// process.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn credentials(socket: BorrowedFd<'_>) -> Result<(Option<Pid>, u32), SysError> {
    let none = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: every value of the bytes is three integers.
    let peer = unsafe { option(socket, "getsockopt(SO_PEERCRED)", libc::SO_PEERCRED, none) }?;
    Ok((Pid::from_raw(peer.pid), peer.uid))
}

/// `getsockopt(SOL_SOCKET, SO_RCVLOWAT)` — returns for how many bytes a receiving call on a stream waits (socket(7)).
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn least_received(socket: BorrowedFd<'_>) -> Result<i32, SysError> {
    // SAFETY: every value of the bytes is an integer.
    unsafe { option(socket, "getsockopt(SO_RCVLOWAT)", libc::SO_RCVLOWAT, 0_i32) }
}

/// `getsockopt(SOL_SOCKET, …)` — returns the value of an option; what the kernel does not write stays as in `value`.
///
/// # Safety
/// Every value of the bytes of a `T` must be a `T`.
unsafe fn option<T>(
    socket: BorrowedFd<'_>,
    call: &'static str,
    name: i32,
    mut value: T,
) -> Result<T, SysError> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the live value, which stays valid as the caller says, and the length to the
    // live integer.
    let returned = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    check(call, returned.into())?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::process;

    #[test]
    fn the_pidfd_is_of_the_other_end() {
        let (ours, _theirs) = UnixStream::pair().expect("two ends");
        let pidfd = match pidfd(ours.as_fd()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                println!("SKIP the_pidfd_is_of_the_other_end: {error}");
                return;
            }
        };
        let info = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
        let info = std::fs::read_to_string(info).expect("the descriptor's facts");
        let pid = process::this().as_raw_nonzero();
        assert!(info.lines().any(|line| line == format!("Pid:\t{pid}")), "{info}");
    }
}
