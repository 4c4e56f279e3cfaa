//! x86-64: `syscall; ret`, and the frame that `rt_sigreturn` reads
//! (`arch/x86/kernel/signal_64.c`, `arch/x86/include/uapi/asm/sigcontext.h`).
//!
//! A frame as it lies in memory, addresses rising:
//!
//! ```text
//! +0    return address: the rt_sigreturn stub        <- rsp when the call gadget returns
//! +8    struct ucontext                              <- rsp when the stub calls rt_sigreturn
//!         +0   uc_flags, uc_link
//!         +16  uc_stack (ss_flags invalid on purpose: the alternate stack stays as it is)
//!         +40  struct sigcontext: 23 words of registers, the address of the extended state,
//!              8 words reserved
//!         +296 uc_sigmask
//! ```

use memchr::memmem;
use tiexec_core::addr::RemoteAddr;
use tiexec_core::proc::status::Status;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::ptrace::{Extended, Registers};
use tiexec_sys::{Pid, SysError, xsave};

use super::{Call, ExtendedState, Gadgets, Interruption, Obstacle, Sight};

/// `AUDIT_ARCH_X86_64` (`<linux/audit.h>`): the architecture that seccomp filters see for the calls.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// Bytes of one frame, its return address included.
pub const FRAME_LEN: u64 = 8 + 304;

/// The offset in a frame of the first argument of its call.
pub const FIRST_ARGUMENT: u64 = 14 * 8;

/// Bytes below the stack pointer that leaf functions may use (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;

/// `uc_flags`: an extended state follows; `ss` is saved; `ss` must be restored unchanged.
const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// An `ss_flags` that sigaltstack(2) refuses; the kernel then leaves the alternate stack alone.
const INVALID_SS_FLAGS: u64 = 0xbad;

const EFLAGS_TRAP: u64 = 1 << 8;
/// The direction flag. The ABI requires it clear at every call; the home frame restores its value.
const EFLAGS_DIRECTION: u64 = 1 << 10;

/// Marks of an extended state in a frame (`struct _fpx_sw_bytes`).
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const SW_BYTES: usize = 464;
/// AMX tiles. They are not in a task's signal frame before the task has requested them.
const AMX_COMPONENTS: u64 = 1 << 17 | 1 << 18;

/// True if the registers of a stopped thread show which system call was interrupted, and how.
pub const CALLS_ARE_SEEN: bool = true;

/// True if calls may be made in batches.
pub const HAS_BATCHES: bool = true;

/// True if the vDSO has the code that returns from a signal.
pub const VDSO_RETURNS_FROM_SIGNALS: bool = false;

/// True if a system call loses extended registers. None does here.
pub const LOST_OVER_CALLS: bool = false;

/// True if the kernel may have mapped a program's text with properties that only later lines of smaps show. Here it
/// never does.
pub const GUARDS_TEXT: bool = false;

/// Returns whether text can be guarded against indirect branches. It cannot, in user mode.
pub const fn has_guards(_hwcap2: u64) -> bool {
    false
}

/// Returns whether memory can have tags. It cannot.
pub const fn has_tags(_hwcap2: u64) -> bool {
    false
}

/// The register sets whose use forbids frames, each with its check. There are none here; see [`extended_state`].
pub const OBSTACLES: &[Obstacle] = &[];

/// Returns whether the thread has a shadow stack. Such a stack would see a return without a call, and a signal
/// return without a signal (`arch/x86/kernel/shstk.c`).
///
/// Every kernel that has shadow stacks shows this in `/proc/TID/status`. TiExec does not read `NT_X86_SHSTK`: if
/// the thread has no shadow stack, Linux 6.6 to 6.12 warn about the read (`ssp_get` in
/// `arch/x86/kernel/fpu/regset.c`), and a machine may be configured to panic on a warning. `now` is the thread's
/// status, if it was read since the thread stopped.
///
/// # Errors
/// The thread is gone.
pub fn has_shadow_stack(tid: Pid, now: Option<&Status>) -> Result<bool, SysError> {
    match now {
        Some(now) => Ok(now.shadow_stack),
        None => Ok(ProcDir::of(tid)?.status()?.shadow_stack),
    }
}

/// Returns whether these registers belong to code, or to a system call, of another kind than 64-bit programs'.
pub fn are_of_another_abi(registers: &Registers) -> bool {
    /// `__USER_CS` (`arch/x86/include/asm/segment.h`).
    const USER_CS: u64 = 0x33;
    /// `__X32_SYSCALL_BIT` (`arch/x86/include/uapi/asm/unistd.h`).
    const X32: i64 = 0x4000_0000;
    let call = registers.orig_rax.cast_signed();
    registers.cs != USER_CS || call >= 0 && call & X32 != 0
}

/// Finds `syscall; ret` in `code`.
pub fn find_call(code: &[u8]) -> Option<usize> {
    memmem::find(code, b"\x0f\x05\xc3")
}

/// Finds `mov $15, %rax; syscall` in `code`: every C library's signal return, and Go's.
pub fn find_sigreturn(code: &[u8]) -> Option<usize> {
    memmem::find(code, b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05")
        .or_else(|| memmem::find(code, b"\xb8\x0f\x00\x00\x00\x0f\x05"))
}

/// Returns the stack pointer.
pub fn stack_pointer(registers: &Registers) -> RemoteAddr {
    RemoteAddr::new(registers.rsp)
}

/// Returns the program counter.
pub fn program_counter(registers: &Registers) -> RemoteAddr {
    RemoteAddr::new(registers.rip)
}

/// Changes the program counter.
pub fn set_program_counter(registers: &mut Registers, to: RemoteAddr) {
    registers.rip = to.get();
}

/// Returns the thread pointer.
///
/// # Errors
/// Never on this architecture.
pub fn thread_pointer(_tid: Pid, registers: &Registers) -> Result<RemoteAddr, SysError> {
    Ok(RemoteAddr::new(registers.fs_base))
}

/// How far below the thread pointer, at most, a C library's control block has a word that holds its own address.
/// Here the block begins with such a word.
pub const CONTROL_BLOCK_BELOW: u64 = 0;

/// Returns the registers of a program at its exec stop, given those that the kernel shows in its syscall-exit-stop.
pub fn at_exec_stop(seen: &Registers) -> Registers {
    *seen
}

/// How much code is read on either side of the program counter if the registers do not show the call, in bytes.
pub const INSTRUCTION: usize = 4;

/// Length of the instruction that makes a system call.
const CALL_LEN: u64 = 2;

/// Returns the end of the instruction that makes the calls. Seccomp filters see this as the place of the call.
pub fn after_call(gadgets: Gadgets) -> RemoteAddr {
    RemoteAddr::new(gadgets.call.get().wrapping_add(CALL_LEN))
}

/// Returns what an interruption did to the system call that the registers are in
/// (`arch_do_signal_or_restart`, `arch/x86/kernel/signal.c`; the codes: `include/linux/errno.h`).
pub fn interruption(registers: &Registers, _sight: Option<&Sight>) -> Interruption {
    if registers.orig_rax.cast_signed() < 0 {
        return Interruption::None;
    }
    match registers.rax.cast_signed() {
        -514..=-512 => Interruption::Again,
        -516 => Interruption::WithRemainingTime,
        -4 => Interruption::Shown,
        _ => Interruption::None,
    }
}

/// Changes an interrupted call so that the kernel makes it again unless a handler runs (`ERESTARTNOHAND`). The
/// thread must then be let go from a stop in which the kernel checks for signals.
pub fn mark_restartable(registers: &mut Registers, _first_argument: u64) {
    const ERESTARTNOHAND: i64 = 514;
    registers.rax = (-ERESTARTNOHAND).cast_unsigned();
}

/// Returns the registers that make an interrupted call again, from its beginning.
pub fn call_again(registers: &Registers) -> Registers {
    let mut registers = *registers;
    registers.rax = registers.orig_rax;
    registers.rip = registers.rip.wrapping_sub(CALL_LEN);
    registers.orig_rax = u64::MAX;
    registers
}

/// Returns the registers to set at a syscall-entry-stop of an interrupted call, so that the kernel then makes the
/// call as the program had made it.
pub fn at_entry(registers: &Registers) -> Registers {
    // The kernel puts -ENOSYS into rax on the way in.
    const ENOSYS: i64 = 38;
    Registers { rax: (-ENOSYS).cast_unsigned(), ..*registers }
}

/// Returns the registers with which a signal handler's return would leave a thread after this interruption. They
/// hold no call that the kernel would restart.
pub fn after_a_signal(registers: &Registers, interruption: Interruption) -> Registers {
    match interruption {
        Interruption::Again => call_again(registers),
        Interruption::WithRemainingTime => call_ended(registers),
        Interruption::None | Interruption::Shown | Interruption::Unknown => {
            Registers { orig_rax: u64::MAX, ..*registers }
        }
    }
}

/// Returns the registers with which an interrupted call returns EINTR.
pub fn call_ended(registers: &Registers) -> Registers {
    const EINTR: i64 = 4;
    Registers { rax: (-EINTR).cast_unsigned(), orig_rax: u64::MAX, ..*registers }
}

/// Returns the registers with which the kernel continues the interrupted call by itself. They would be set at a
/// syscall-exit-stop, before the stop where a signal would be taken. x86-64 needs none, because there the kernel
/// uses the registers that are set at the later stop.
pub fn before_the_last_stop(
    _registers: &Registers,
    _interruption: Interruption,
) -> Option<Registers> {
    None
}

/// Returns the arguments of the system call that the registers are in.
pub fn call_arguments(r: &Registers) -> [u64; 6] {
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
}

/// Returns the number of the system call that the registers are in; `None` if they are in none.
pub fn call_number(registers: &Registers, _interruption: Interruption) -> Option<i64> {
    let number = registers.orig_rax.cast_signed();
    (number >= 0).then_some(number)
}

/// The instruction that makes a system call.
pub const CALL_INSTRUCTION: &[u8] = b"\x0f\x05";

/// Returns the number and the result of the system call from which the thread has just returned, if that succeeded.
/// `before` are the bytes before its program counter. (At the first instruction of a signal handler, the number is that of
/// the call that the signal interrupted, and the result is 0.)
pub fn returned(registers: &Registers, before: &[u8]) -> Option<(i64, u64)> {
    let (number, result) = (registers.orig_rax.cast_signed(), registers.rax);
    (number >= 0 && result.cast_signed() > 0 && before == CALL_INSTRUCTION)
        .then_some((number, result))
}

/// Returns the registers with another result of the system call.
pub fn with_result(registers: &Registers, result: u64) -> Registers {
    Registers { rax: result, ..*registers }
}

/// Returns the address below which the frame's bytes must lie.
pub fn below_red_zone(registers: &Registers) -> Option<RemoteAddr> {
    stack_pointer(registers).checked_sub(RED_ZONE)
}

/// Returns the extended registers as a frame holds them. The kernel restores all of them only if the size in the
/// frame is at most the task's own; with a larger size it silently restores only the first 512 bytes. AMX is
/// therefore left out. Returns `None` if AMX state is in use.
pub fn extended_state(extended: &Extended) -> Option<ExtendedState> {
    let xstate = &extended.bytes[..];
    let word = |at: usize| Some(u64::from_le_bytes(xstate.get(at..at + 8)?.try_into().ok()?));
    // The software bytes hold XCR0. The header begins with XSTATE_BV.
    let features = word(SW_BYTES)? & !AMX_COMPONENTS;
    if word(512)? & AMX_COMPONENTS != 0 {
        return None;
    }
    let len = xsave::area_len(features);
    let mut area = xstate.get(..len)?.to_vec();
    let len = u32::try_from(len).ok()?;
    let software = &mut area[SW_BYTES..SW_BYTES + 48];
    software.fill(0);
    software[..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(len + 4).to_le_bytes());
    software[8..16].copy_from_slice(&features.to_le_bytes());
    software[16..20].copy_from_slice(&len.to_le_bytes());
    area.extend(FP_XSTATE_MAGIC2.to_le_bytes());
    Some(ExtendedState { apart: area, within: Vec::new() })
}

/// Returns the registers that make `call` and then follow the chain whose first frame is at `chain`.
pub fn aim_at_call(
    home: &Registers,
    gadgets: Gadgets,
    call: &Call,
    chain: RemoteAddr,
) -> Registers {
    let mut registers = *home;
    registers.rip = gadgets.call.get();
    registers.rsp = chain.get();
    registers.rax = call.number.cast_unsigned();
    // The thread does not return from a system call, so the kernel has none to restart.
    registers.orig_rax = u64::MAX;
    registers.eflags &= !(EFLAGS_TRAP | EFLAGS_DIRECTION);
    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] =
        call.args;
    registers
}

/// Returns the registers that follow the chain whose first frame is at `chain`, without a call.
pub fn aim_at_chain(home: &Registers, gadgets: Gadgets, chain: RemoteAddr) -> Registers {
    let mut registers = *home;
    registers.rip = gadgets.sigreturn.get();
    // As if the call gadget had just returned through the first word of the frame.
    registers.rsp = chain.get().wrapping_add(8);
    registers.orig_rax = u64::MAX;
    registers.eflags &= !(EFLAGS_TRAP | EFLAGS_DIRECTION);
    registers
}

/// Builds a frame that makes `call` and goes on to the frame at `next`, with `mask` blocked and with the extended
/// state that lies at `apart`. Without an extended state the kernel resets it, and also the rights of the
/// protection keys (PKRU). If the stack has a key, the next frame could not be read then (`fpu__clear_user_states`,
/// `arch/x86/kernel/fpu/core.c`).
pub fn call_frame(
    home: &Registers,
    gadgets: Gadgets,
    call: &Call,
    next: RemoteAddr,
    apart: RemoteAddr,
    mask: u64,
) -> Vec<u8> {
    let registers = aim_at_call(home, gadgets, call, next);
    frame(&registers, gadgets, apart, mask)
}

/// Builds a frame that goes on to the frame at `next` without a call, with `mask` blocked; see [`call_frame`].
pub fn chain_frame(
    home: &Registers,
    gadgets: Gadgets,
    next: RemoteAddr,
    apart: RemoteAddr,
    mask: u64,
) -> Vec<u8> {
    frame(&aim_at_chain(home, gadgets, next), gadgets, apart, mask)
}

/// Returns the length of the frame that [`home_frame`] builds, in bytes.
pub fn home_frame_len(_extended: &ExtendedState) -> u64 {
    FRAME_LEN
}

/// Builds the frame that restores everything: `home`, the extended state, whose part `apart` lies at that address,
/// and the blocked signals `mask`. The frame will lie at `_at`.
pub fn home_frame(
    home: &Registers,
    gadgets: Gadgets,
    _extended: &ExtendedState,
    apart: RemoteAddr,
    _at: RemoteAddr,
    mask: u64,
) -> Vec<u8> {
    frame(home, gadgets, apart, mask)
}

fn frame(r: &Registers, gadgets: Gadgets, xstate: RemoteAddr, mask: u64) -> Vec<u8> {
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let words = [
        gadgets.sigreturn.get(),
        UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS,
        0,
        0,
        INVALID_SS_FLAGS,
        0,
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        segments,
        0,
        0,
        0,
        0,
        xstate.get(),
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        mask,
    ];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gadgets_are_found_in_libc_bytes() {
        let code = b"\x90\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05\x0f\x1f\x00\x0f\x05\xc3";
        assert_eq!(find_sigreturn(code), Some(1));
        assert_eq!(find_call(code), Some(13));
        assert_eq!(find_call(b"\x0f\x05"), None);
    }

    #[test]
    fn an_extended_state_with_tiles_in_use_is_refused() {
        let set = |bytes: &[u8]| Extended { set: 0x202, bytes: bytes.to_vec() };
        let mut xstate = vec![0; 8192];
        xstate[SW_BYTES] = 7;
        let laid = extended_state(&set(&xstate)).unwrap().apart;
        assert_eq!(&laid[laid.len() - 4..], &FP_XSTATE_MAGIC2.to_le_bytes());
        assert_eq!(&laid[SW_BYTES..SW_BYTES + 4], &FP_XSTATE_MAGIC1.to_le_bytes());
        xstate[512 + 2] = 4;
        assert_eq!(extended_state(&set(&xstate)), None);
        assert_eq!(extended_state(&set(&xstate[..300])), None);
    }
}
