//! The way in and the way out: `main`'s own argument pointers, and exec with them.
//!
//! A launcher must hand on exactly what it was given. Rust's runtime would ignore SIGPIPE, open
//! `/dev/null` on closed standard descriptors and install an alternate signal stack, all of which
//! the program would inherit or miss: so the binary has a C `main` and passes the pointers here.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use libc::{c_char, c_int};

use crate::error::{Errno, SysError};

/// The argument vector of this process, as `main` got it.
#[derive(Clone, Copy, Debug)]
pub struct Argv {
    pointers: *const *const c_char,
    count: usize,
}

impl Argv {
    /// Wraps what `main` got.
    ///
    /// # Safety
    /// `argv` must point at `argc` pointers to strings that end in a zero byte, followed by a null
    /// pointer; all of it must stay as it is while the process lives. The arguments of `main` are.
    pub unsafe fn from_main(argc: c_int, argv: *const *const c_char) -> Self {
        Self { pointers: argv, count: usize::try_from(argc).unwrap_or(0) }
    }

    /// Returns how many arguments there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns argument `index`, copied: a child overwrites it ([`crate::process_name`]).
    pub fn get(&self, index: usize) -> Option<OsString> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index` is below the count, and the constructor's caller vouched for that many
        // pointers.
        let argument = unsafe { self.pointers.add(index) };
        // SAFETY: as above: the pointer is inside the vector.
        let argument = unsafe { *argument };
        // SAFETY: the constructor's caller vouched for strings that end in zero, and nobody
        // writes to them while the copy is made.
        let argument = unsafe { CStr::from_ptr(argument) };
        Some(OsStr::from_bytes(argument.to_bytes()).to_owned())
    }

    /// Returns all arguments from `first` on, copied.
    pub fn collect_from(&self, first: usize) -> Vec<OsString> {
        (first..self.count).filter_map(|index| self.get(index)).collect()
    }

    /// `execvp(argv[first], &argv[first])` — replaces this process, with the same argument bytes
    /// and the same environment. Returns only on failure.
    ///
    /// # Errors
    /// The error of execvp(3); ENOENT if there is no argument `first`.
    pub fn exec_from(&self, first: usize) -> SysError {
        const CALL: &str = "execvp";
        if first >= self.count {
            return SysError { call: CALL, errno: Errno::NOENT };
        }
        // SAFETY: `first` is below the count, so the result points at a part of the vector.
        let tail = unsafe { self.pointers.add(first) };
        // SAFETY: `first` is below the count, so the pointer there is one of a string.
        let program = unsafe { *tail };
        // SAFETY: a string, and a vector of strings that ends in null, as the constructor's caller
        // vouched; both outlive the call.
        unsafe { libc::execvp(program, tail) };
        SysError::last(CALL)
    }
}

/// `getauxval(AT_SECURE)` — returns whether this process runs with more privilege than its user,
/// so that the environment must not be believed.
pub fn is_secure() -> bool {
    // SAFETY: getauxval only reads the auxiliary vector of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
