//! Checks whether a stopped thread still has the address space that was examined.
//!
//! A process ID survives execve(2), and so does a thread ID, and the new program may have privileges that the old
//! one had not. The examined address space may even stay in use after the exec, by a process that shared it
//! (`CLONE_VM`). TiExec therefore checks both sides: it writes a random word through the memory that it opened at
//! first, and reads the word from the stopped thread itself.

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::address_space::Memory;
use tiexec_sys::{Errno, Pid, SysError, ptrace, random};

use crate::error::TraceError;

/// Makes sure that `memory` is that of the stopped thread `tid`. `at` is an address at which a word may be written:
/// below the stack pointer, in memory that nobody uses.
///
/// # Errors
/// [`TraceError::Changed`] if `memory` is another one; the thread is unchanged. Other errors as for reading memory.
pub(super) fn check(tid: Pid, memory: &Memory, at: RemoteAddr) -> Result<(), TraceError> {
    let changed = |error: SysError| match error.errno {
        Errno::FAULT | Errno::IO => TraceError::Changed,
        _ => error.into(),
    };
    let mut before = [0; 8];
    memory.read(at, &mut before).map_err(changed)?;
    // A word that differs already proves another address space, so nothing is written.
    if ptrace::peek(tid, at).map_err(changed)? != u64::from_ne_bytes(before) {
        return Err(TraceError::Changed);
    }
    let word = random::word()?;
    memory.write(at, &word.to_ne_bytes()).map_err(changed)?;
    if ptrace::peek(tid, at).map_err(changed)? == word { Ok(()) } else { Err(TraceError::Changed) }
}
