//! Finds out whether any process has a file open or mapped, by trying for a lease on it.
//!
//! The kernel gives a write lease only on a file that no other process has open, and a mapping holds
//! its file open (`fs/locks.c`, `check_conflicting_open`). So the test covers the processes of every
//! PID namespace, even those whose maps root may not read.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::error::{Errno, SysError, check};

/// `F_SETSIG` (fcntl(2)), which libc lacks.
const F_SETSIG: i32 = 10;

/// The processes that a lease keeps out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Against {
    /// A write lease (`F_WRLCK`) keeps out all processes.
    Openers,
    /// A read lease (`F_RDLCK`) keeps out processes that would write.
    Writers,
}

/// A lease. While it lives, the processes that it keeps out do not open the file. Their open waits, or
/// fails with EWOULDBLOCK if it must not wait.
#[derive(Debug)]
#[must_use = "dropping it lets the openers in"]
pub struct Lease<'a>(&'a File);

impl<'a> Lease<'a> {
    /// `fcntl(fd, F_SETLEASE, …)` — takes the lease on a file opened for reading; `None` if a process
    /// that it would keep out has the file open (or, against all openers, mapped).
    ///
    /// # Errors
    /// EINVAL if the file system has no leases; EACCES if this process neither owns the file nor has
    /// CAP_LEASE.
    pub fn try_take(file: &'a File, against: Against) -> Result<Option<Self>, SysError> {
        const CALL: &str = "fcntl(F_SETLEASE)";
        // The kernel signals the owner of the lease when an opener waits for it. SIGURG is ignored by default, and SIGIO
        // kills. Further below the lease loses its owner.
        // SAFETY: fcntl with a live descriptor and numbers touches no memory.
        let signal = unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) };
        check(CALL, signal.into())?;
        let kind = match against {
            Against::Openers => libc::F_WRLCK,
            Against::Writers => libc::F_RDLCK,
        };
        // SAFETY: as above.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
        match check(CALL, taken.into()) {
            Ok(_) => {
                // The caller may become a program that has SIGURG blocked and would find it pending (`f_setown`, fs/fcntl.c).
                // SAFETY: as above.
                let _no_signal = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETOWN, 0) };
                Ok(Some(Self(file)))
            }
            Err(error) if error.errno == Errno::AGAIN => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `try_take`.
        let _gone = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn nobody_is_signalled_when_an_opener_waits() {
        let mut made = tempfile::NamedTempFile::new().expect("a file");
        made.write_all(b"text").expect("room on the disk");
        let path = made.into_temp_path();
        let file = File::open(&path).expect("it is there");
        let Ok(Some(lease)) = Lease::try_take(&file, Against::Openers) else {
            return println!("SKIP nobody_is_signalled_when_an_opener_waits: no leases here");
        };
        // SAFETY: fcntl with a live descriptor and numbers touches no memory.
        let owner = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETOWN) };
        assert_eq!(owner, 0);
        drop(lease);
    }
}
