//! The start and the end of this program: the argument pointers of `main`, and an exec with them.
//!
//! A launcher must hand on exactly what it was given. Rust's runtime would ignore SIGPIPE, open
//! `/dev/null` on closed standard descriptors and install an alternate signal stack, and the
//! program would inherit or miss all of that. So the binary has a C `main` and passes the pointers
//! here.
//!
//! The other binaries have Rust's `main`. Rust's runtime opens `/dev/null` on a closed standard output, where the
//! output would be lost without an error. These binaries therefore note before the runtime starts whether standard
//! output is closed.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::{c_char, c_int};

use crate::error::{Errno, SysError};

/// The argument vector of this process, as `main` got it.
#[derive(Clone, Copy, Debug)]
pub struct Argv {
    pointers: *const *const c_char,
    count: usize,
}

impl Argv {
    /// Wraps the arguments of `main`.
    ///
    /// # Safety
    /// `argv` must point at `argc` pointers to strings that end in a zero byte, followed by a null
    /// pointer. All of it must stay valid while the process lives. The arguments of `main` fulfil
    /// this.
    pub unsafe fn from_main(argc: c_int, argv: *const *const c_char) -> Self {
        Self { pointers: argv, count: usize::try_from(argc).unwrap_or(0) }
    }

    /// Returns how many arguments there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns a copy of argument `index`, because a child overwrites the arguments
    /// ([`crate::process_name`]).
    pub fn get(&self, index: usize) -> Option<OsString> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index` is below the count, and the constructor's caller vouched for that many
        // pointers.
        let argument = unsafe { self.pointers.add(index) };
        // SAFETY: as above: the pointer is inside the vector.
        let argument = unsafe { *argument };
        // SAFETY: the constructor's caller vouched for strings that end in zero, and no code writes
        // to them while the copy is made.
        let argument = unsafe { CStr::from_ptr(argument) };
        Some(OsStr::from_bytes(argument.to_bytes()).to_owned())
    }

    /// Returns copies of all arguments from `first` on.
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
        // SAFETY: `first` is below the count, so the pointer there is that of a string.
        let program = unsafe { *tail };
        // SAFETY: a string, and a vector of strings that ends in null, as the constructor's caller
        // vouched; both outlive the call.
        unsafe { libc::execvp(program, tail) };
        SysError::last(CALL)
    }
}

/// Makes the C library call [`note_closed_output`] before Rust's runtime opens
/// `/dev/null` on a closed standard output. Use it once, in the root of a binary.
#[macro_export]
macro_rules! note_closed_output_before_main {
    () => {
        #[allow(unsafe_code, reason = "only the C library calls anything before the runtime")]
        #[used]
        // SAFETY: the C library calls each function in this section once, with arguments that a function without
        // parameters ignores. The C library itself is initialised by then.
        #[unsafe(link_section = ".init_array")]
        static BEFORE_MAIN: extern "C" fn() = $crate::startup::note_closed_output;
    };
}

static OUTPUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Notes whether standard output is closed. Call it before this process opens a file, because the file could get the
/// number of standard output.
pub extern "C" fn note_closed_output() {
    let closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
    OUTPUT_IS_CLOSED.store(closed, Relaxed);
}

/// Returns whether standard output was closed when [`note_closed_output`] ran.
pub fn output_is_closed() -> bool {
    OUTPUT_IS_CLOSED.load(Relaxed)
}

/// `getauxval(AT_SECURE)` — returns whether this process runs with more privilege than its user.
/// Then it must not trust the environment.
pub fn is_secure() -> bool {
    // SAFETY: getauxval only reads the auxiliary vector of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
