//! Architectures without remote system calls yet: nothing is found, so programs run plainly.

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::ptrace::Registers;

use super::{Call, Gadgets};

/// Whether remote system calls are possible at all.
pub const SUPPORTED: bool = false;

/// Bytes of one frame, its return address included.
pub const FRAME_LEN: u64 = 0;

/// Finds the call gadget in `code`.
pub fn find_call(_code: &[u8]) -> Option<usize> {
    None
}

/// Finds the sigreturn gadget in `code`.
pub fn find_sigreturn(_code: &[u8]) -> Option<usize> {
    None
}

/// Returns the stack pointer.
pub fn stack_pointer(_registers: &Registers) -> RemoteAddr {
    RemoteAddr::new(0)
}

/// Lays out extended registers for a frame.
pub fn extended_state(_xstate: &[u8]) -> Option<Vec<u8>> {
    None
}

/// Returns the highest address that the frame's bytes may reach up to.
pub fn below_red_zone(_registers: &Registers) -> Option<RemoteAddr> {
    None
}

/// Returns the registers that make `call`.
pub fn aim_at_call(home: &Registers, _: Gadgets, _: &Call, _: RemoteAddr) -> Registers {
    *home
}

/// Returns the registers that follow the chain.
pub fn aim_at_chain(home: &Registers, _: Gadgets, _: RemoteAddr) -> Registers {
    *home
}

/// Builds a frame that makes `call`.
pub fn call_frame(_: &Registers, _: Gadgets, _: &Call, _: RemoteAddr, _: u64) -> Vec<u8> {
    Vec::new()
}

/// Builds the frame that restores everything.
pub fn home_frame(_: &Registers, _: Gadgets, _: RemoteAddr, _: u64) -> Vec<u8> {
    Vec::new()
}
