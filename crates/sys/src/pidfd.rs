//! How processes that are not children of this one ended, by a pidfd, since Linux 6.15.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::error::{Errno, SysError, check};
use crate::process::{self, Fork, Wait};
use crate::process_name::Role;

/// The first version of `struct pidfd_info` (`PIDFD_INFO_SIZE_VER0`), which later kernels take, too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    /// A spare field before Linux 6.15.
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: u32 = 0xc040_ff0b;
/// The bit of `mask` by which the caller requests `exit_code`, and the kernel reports it.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `ioctl(pidfd, PIDFD_GET_INFO)` — returns how the process ended; `None` as long as its parent has not waited for it.
/// From that wait on, poll(2) reports POLLHUP for the pidfd.
///
/// # Errors
/// ESRCH, ENOTTY, EINVAL, EOPNOTSUPP on a kernel that does not report it.
///
/// # Kernel
/// 6.13 has the call, 6.15 the exit code (`pidfd_info` in `fs/pidfs.c`).
pub fn end_of(pidfd: BorrowedFd<'_>) -> Result<Option<Wait>, SysError> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel reads and writes the live structure, whose size is part of the request's number.
    let returned =
        unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as libc::Ioctl, &raw mut info) };
    check("ioctl(PIDFD_GET_INFO)", returned.into())?;
    Ok((info.mask & PIDFD_INFO_EXIT != 0).then(|| Wait::from_status(info.exit_code)))
}

/// Returns whether this kernel reports by a pidfd how a process ended. As a test, a child of this process ends. This
/// process must have one thread.
///
/// # Errors
/// The child cannot be made.
pub fn tells_ends() -> Result<bool, SysError> {
    match process::fork_single_threaded(Role::Probe)? {
        Fork::Child => process::exit_now(3),
        Fork::Parent(child) => {
            let pidfd = process::open_pidfd(child);
            process::wait(child)?;
            Ok(pidfd.and_then(|fd| end_of(fd.as_fd())) == Ok(Some(Wait::Exited(3))))
        }
    }
}

/// The events that poll(2) reports for a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Something to read; for a pidfd, the process has ended.
    pub input: bool,
    /// The other end is closed; for a pidfd, the process was waited for.
    pub hangup: bool,
}

/// Waits for `input` from any of the first descriptors, or for the hangup of any of the others, at most for `time`,
/// with no signal blocked. Returns the state of each descriptor, in their order.
///
/// # Errors
/// As ppoll(2), except EINTR: after a handler the wait ends, and no descriptor is ready.
pub fn wait_for_any(
    input: &[BorrowedFd<'_>],
    hangup: &[BorrowedFd<'_>],
    time: std::time::Duration,
) -> Result<Vec<Ready>, SysError> {
    let wanted = input.iter().map(|fd| (fd, libc::POLLIN));
    let all = wanted.chain(hangup.iter().map(|fd| (fd, 0)));
    let mut fds: Vec<libc::pollfd> =
        all.map(|(fd, events)| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }).collect();
    match crate::perf_event::poll_unblocked(&mut fds, Some(time)) {
        Err(error) if error.errno != Errno::INTR => Err(error),
        _ => Ok(fds
            .iter()
            .map(|fd| Ready {
                input: fd.revents & libc::POLLIN != 0,
                hangup: fd.revents & libc::POLLHUP != 0,
            })
            .collect()),
    }
}
