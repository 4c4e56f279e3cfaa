//! The differences between architectures: registers, instructions, the signal frame.
//!
//! Each file offers the same items; only one is compiled in.

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!("TiExec runs on x86-64 and aarch64");

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

use tiexec_core::addr::RemoteAddr;

/// Fills `bytes`, which begin at the position of an instruction, with instructions that raise SIGTRAP: `int3`, or
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
    /// The number, as in `<asm/unistd.h>`.
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

/// Two pieces of code that the program contains already. Through them a thread makes calls and comes home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gadgets {
    /// Makes a system call, then returns: to the address on top of the stack, or in the link register.
    pub call: RemoteAddr,
    /// Calls `rt_sigreturn`.
    pub sigreturn: RemoteAddr,
}

/// The extended registers as frames hold them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtendedState {
    /// The part that lies elsewhere on the stack, aligned to 64 bytes.
    pub apart: Vec<u8>,
    /// The part that lies in the home frame itself.
    pub within: Vec<u8>,
}

/// A register set by its number (`elf.h`), and a function that returns whether its content forbids frames.
pub type Obstacle = (i32, fn(&[u8]) -> bool);

/// The facts about a stopped thread beside its registers. They are needed if the registers do not show which system
/// call the thread was in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sight {
    /// The two instructions around its program counter.
    pub code: [u8; 2 * INSTRUCTION],
    /// The number of the call in which it slept just before.
    pub asleep_in: Option<i64>,
}

/// The effect of an interruption on the system call that a thread was in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// None: the thread was in no call, or the call had ended.
    None,
    /// The kernel will make the call again, and the thread will not notice.
    Again,
    /// The kernel will make the call again with the time that remains, and the thread will not notice, if no return
    /// from a signal comes in between.
    WithRemainingTime,
    /// The call returns EINTR.
    Shown,
    /// Not known: the call may be one that is made again with the time that remains, or the thread was only about
    /// to make it.
    Unknown,
}
