//! What differs between architectures: registers, instructions, the signal frame.
//!
//! Each file offers the same items; only one is compiled in.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
mod unsupported;
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::*;

use tiexec_core::addr::RemoteAddr;

/// Fills `bytes`, which begin where an instruction may, with instructions that raise SIGTRAP: `int3`, or
/// `brk #0`.
pub fn fill_with_traps(bytes: &mut [u8]) {
    const TRAP: &[u8] =
        if cfg!(target_arch = "aarch64") { &[0x00, 0x00, 0x20, 0xd4] } else { &[0xcc] };
    for (byte, trap) in bytes.iter_mut().zip(TRAP.iter().cycle()) {
        *byte = *trap;
    }
}

/// A system call: its number and arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The number, as in `<asm/unistd_64.h>`.
    pub number: i64,
    /// The arguments, raw.
    pub args: [u64; 6],
}

impl Call {
    /// Makes a call with up to six arguments.
    pub fn new<const N: usize>(number: i64, args: [u64; N]) -> Self {
        const { assert!(N <= 6, "a system call takes at most six arguments") };
        let mut all = [0; 6];
        all[..N].copy_from_slice(&args);
        Self { number, args: all }
    }
}

/// Two pieces of code that are in the program already, through which it calls and comes home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gadgets {
    /// Makes a system call, then returns to the address on top of the stack.
    pub call: RemoteAddr,
    /// Calls `rt_sigreturn`.
    pub sigreturn: RemoteAddr,
}

/// What an interruption did to the system call that a thread was in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// Nothing: it was in none, or that had come to its end.
    None,
    /// The kernel will make it again, unseen.
    Again,
    /// The kernel will make it again with the time that remains, unseen, if nothing that returns
    /// from a signal comes in between.
    WithRemainingTime,
    /// It returns EINTR.
    Shown,
}
