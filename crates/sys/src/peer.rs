//! The process and the user at the other end of a unix(7) socket.

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
    let (mut fd, mut len) = (-1, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to the live integer, and the length to the other one.
    let returned = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    check("getsockopt(SO_PEERPIDFD)", returned.into())?;
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
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the live structure, and the length to the integer.
    let returned = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    check("getsockopt(SO_PEERCRED)", returned.into())?;
    Ok((Pid::from_raw(peer.pid), peer.uid))
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
