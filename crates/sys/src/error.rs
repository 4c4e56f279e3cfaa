//! A system call that failed: the call, and its error number.

use std::fmt;

use thiserror::Error;

/// A kernel error number; unknown ones are representable.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Permission denied by capability or security module.
    pub const PERM: Self = Self(libc::EPERM);
    /// `EEXIST`.
    pub const EXIST: Self = Self(libc::EEXIST);
    /// No such process.
    pub const SRCH: Self = Self(libc::ESRCH);
    /// No such file.
    pub const NOENT: Self = Self(libc::ENOENT);
    /// Out of memory, address space or limit.
    pub const NOMEM: Self = Self(libc::ENOMEM);
    /// Try again.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// Invalid argument.
    pub const INVAL: Self = Self(libc::EINVAL);
    /// Interrupted.
    pub const INTR: Self = Self(libc::EINTR);
    /// Permission denied by mode bits.
    pub const ACCES: Self = Self(libc::EACCES);
    /// Not an executable format.
    pub const NOEXEC: Self = Self(libc::ENOEXEC);
    /// Not implemented (or hidden by a filter).
    pub const NOSYS: Self = Self(libc::ENOSYS);
    /// No such child.
    pub const CHILD: Self = Self(libc::ECHILD);
    /// Input or output failed; for another process's memory: nothing is mapped there.
    pub const IO: Self = Self(libc::EIO);
    /// Bad address; also a page beyond the end of a file.
    pub const FAULT: Self = Self(libc::EFAULT);
    /// A number that is not a descriptor of this process.
    pub const BADF: Self = Self(libc::EBADF);
    /// The file, the file system or the kernel has no such operation.
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// Not an ioctl of this file.
    pub const NOTTY: Self = Self(libc::ENOTTY);
    /// No such device (processor).
    pub const NODEV: Self = Self(libc::ENODEV);
    /// In use.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// Larger than it may be.
    pub const FBIG: Self = Self(libc::EFBIG);
    /// Longer than a packet may be.
    pub const MSGSIZE: Self = Self(libc::EMSGSIZE);
    /// No descriptor left in the process.
    pub const MFILE: Self = Self(libc::EMFILE);

    /// Returns the error of the call that has just failed on this thread.
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Returns the symbol, such as `EPERM`, if this project knows the number.
    pub const fn symbol(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::ESRCH => "ESRCH",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::ENXIO => "ENXIO",
            libc::E2BIG => "E2BIG",
            libc::ENOEXEC => "ENOEXEC",
            libc::EBADF => "EBADF",
            libc::ECHILD => "ECHILD",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::ENOTDIR => "ENOTDIR",
            libc::EISDIR => "EISDIR",
            libc::EINVAL => "EINVAL",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::ETXTBSY => "ETXTBSY",
            libc::EFBIG => "EFBIG",
            libc::ENOSPC => "ENOSPC",
            libc::EROFS => "EROFS",
            libc::EPIPE => "EPIPE",
            libc::ENAMETOOLONG => "ENAMETOOLONG",
            libc::ENOSYS => "ENOSYS",
            libc::ELOOP => "ELOOP",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ETIMEDOUT => "ETIMEDOUT",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    /// Words and symbol: `operation not permitted (EPERM)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = std::io::Error::from_raw_os_error(self.0).to_string();
        let words = words.split(" (os error").next().unwrap_or_default().to_lowercase();
        match self.symbol() {
            Some(symbol) => write!(f, "{words} ({symbol})"),
            None => write!(f, "{words} (error {})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<std::io::Error> for Errno {
    /// An error that did not come from the kernel is EIO.
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

/// Puts each kernel error that the standard library has written into `text` into the words of [`Errno`]:
/// `No space left on device (os error 28)` becomes `no space left on device (ENOSPC)`.
pub fn with_symbols(text: &str) -> String {
    let mut done = text.to_owned();
    for part in text.split("(os error ").skip(1) {
        let number = part.split_once(')').and_then(|(number, _)| number.parse().ok());
        if let Some(number) = number {
            let words = std::io::Error::from_raw_os_error(number).to_string();
            done = done.replace(&words, &Errno(number).to_string());
        }
    }
    done
}

/// A system call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{call}: {errno}")]
pub struct SysError {
    /// The call, with the argument that distinguishes it: `ptrace(PTRACE_SEIZE)`.
    pub call: &'static str,
    /// The kernel's answer.
    #[source]
    pub errno: Errno,
}

impl SysError {
    /// Makes the error of the call that has just failed on this thread.
    pub(crate) fn last(call: &'static str) -> Self {
        Self { call, errno: Errno::last() }
    }

    /// Makes the error of the named call from its `errno`.
    pub fn of<E: Into<Errno>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |errno| Self { call, errno: errno.into() }
    }
}

/// Turns the C convention (−1 and `errno`) into a result.
pub(crate) fn check(call: &'static str, returned: libc::c_long) -> Result<libc::c_long, SysError> {
    if returned == -1 { Err(SysError::last(call)) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_standard_library_get_their_symbols() {
        let two = [libc::ENOSPC, libc::ENOENT].map(std::io::Error::from_raw_os_error);
        let text = format!("cannot write a: {}; b: {}; c (os error x)", two[0], two[1]);
        assert_eq!(
            with_symbols(&text),
            "cannot write a: no space left on device (ENOSPC); b: no such file or directory (ENOENT); c (os error x)"
        );
        assert_eq!(with_symbols("plain"), "plain");
    }

    #[test]
    fn errors_say_call_words_and_symbol() {
        let error = SysError { call: "ptrace(PTRACE_SEIZE)", errno: Errno::PERM };
        assert_eq!(error.to_string(), "ptrace(PTRACE_SEIZE): operation not permitted (EPERM)");
        assert_eq!(Errno(9999).to_string(), "unknown error 9999 (error 9999)");
    }
}
