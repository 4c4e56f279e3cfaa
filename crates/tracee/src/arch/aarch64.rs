//! aarch64: `svc #0; ret`, and the frame that `rt_sigreturn` reads
//! (`arch/arm64/kernel/signal.c`, `arch/arm64/include/uapi/asm/sigcontext.h`).
//!
//! A frame as it lies in memory, addresses rising; it is entered with `sp` at its beginning:
//!
//! ```text
//! +0    siginfo: not read
//! +128  struct ucontext
//!         +0   uc_flags, uc_link
//!         +16  uc_stack (ss_flags invalid on purpose: the alternate stack stays as it is)
//!         +40  uc_sigmask, room
//!         +176 struct sigcontext: fault address, x0 to x30, sp, pc, pstate
//!         +464 records, each a mark and a length: floating point (the kernel wants one in every
//!              frame), SVE; what is too much for the 4096 bytes there follows the mark `EXTRA`
//! ```
//!
//! A frame is entered by a return from the call gadget to the stub, so `x30` is the stub and `sp` the next frame.
//! The stub is the vDSO's.
//!
//! # What is not carried
//!
//! - Streaming mode: the hardware ends it at any `svc`, so threads in this mode are refused.
//! - A guarded control stack: it would see a return without a call, so threads that have one are refused.
//!
//! ZA, ZT0, FPMR and the permission overlay survive `svc`, and a signal return that has no record of them.

use memchr::memmem;
use tiexec_core::addr::RemoteAddr;
use tiexec_core::proc::status::Status;
use tiexec_sys::ptrace::{self, Extended, Registers};
use tiexec_sys::{Errno, Pid, SysError, c};

use super::{Call, ExtendedState, Gadgets, Interruption, Obstacle, Sight};

/// `AUDIT_ARCH_AARCH64` (`<linux/audit.h>`): the architecture that seccomp filters see for the calls.
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

const SIGINFO: u64 = 128;
const UCONTEXT: u64 = 176;
/// Offset of the records in a frame.
const RECORDS: u64 = SIGINFO + UCONTEXT + 288;
const FPSIMD_LEN: u64 = 528;
const TERMINATOR_LEN: u64 = 16;

/// Bytes of a frame that makes a call.
pub const FRAME_LEN: u64 = RECORDS + FPSIMD_LEN + TERMINATOR_LEN;

/// The offset in a frame of the first argument of its call.
pub const FIRST_ARGUMENT: u64 = SIGINFO + UCONTEXT + 8;

/// How long an instruction is, in bytes.
pub const INSTRUCTION: usize = 4;
/// Room for records in a frame, in bytes. Further records lie outside it.
const ROOM: usize = 4096;

const SVC: [u8; INSTRUCTION] = 0xd400_0001_u32.to_le_bytes();
const RET: [u8; INSTRUCTION] = 0xd65f_03c0_u32.to_le_bytes();
/// `mov x8, #139`.
const LOAD_SIGRETURN: [u8; INSTRUCTION] = 0xd280_1168_u32.to_le_bytes();

const FPSIMD_MAGIC: u32 = 0x4650_8001;
const SVE_MAGIC: u32 = 0x5356_4501;
const EXTRA_MAGIC: u32 = 0x4558_5401;

/// An `ss_flags` that sigaltstack(2) refuses; the kernel then leaves the alternate stack alone.
const INVALID_SS_FLAGS: u64 = 0xbad;

/// The set of the SVE registers (`elf.h`).
const NT_ARM_SVE: i32 = 0x405;
/// `struct user_sve_header`, in bytes. It holds the set's length, the vector length and flags.
const SVE_HEADER: usize = 16;
const SVE_FLAG_IN_USE: u16 = 1;
const VECTORS: usize = 32;
const PREDICATES: usize = 16;

/// True if the registers of a stopped thread show which system call was interrupted, and how. Here they do not:
/// `do_signal` has wound the call back and forgotten its number. It also hides the call's result, and so whether a
/// handler that runs now must make the call return EINTR.
pub const CALLS_ARE_SEEN: bool = false;

/// True if calls may be made in batches. Nobody has tried that on this architecture.
pub const HAS_BATCHES: bool = false;

/// True if the vDSO has the code that returns from a signal.
pub const VDSO_RETURNS_FROM_SIGNALS: bool = true;

/// True if a system call loses extended registers. Here it loses the part of SVE beyond the floating-point
/// registers (`Documentation/arch/arm64/sve.rst`, "System call behaviour").
pub const LOST_OVER_CALLS: bool = true;

/// True if the kernel may have mapped a program's text with properties that only later lines of smaps show. Here
/// that is `PROT_BTI`, for a program without interpreter (`arch_elf_adjust_prot`, `arch/arm64/kernel/process.c`).
pub const GUARDS_TEXT: bool = true;

/// Returns whether text can be guarded against indirect branches: `HWCAP2_BTI` of
/// [`AT_HWCAP2`](tiexec_core::proc::auxv::AT_HWCAP2).
pub const fn has_guards(hwcap2: u64) -> bool {
    hwcap2 >> 17 & 1 == 1
}

/// Returns whether memory can have tags: `HWCAP2_MTE`.
pub const fn has_tags(hwcap2: u64) -> bool {
    hwcap2 >> 18 & 1 == 1
}

/// The register sets whose use forbids frames, each with its check.
pub const OBSTACLES: &[Obstacle] = &[
    // NT_ARM_SSVE: registers are in use, so the thread is in streaming mode.
    (0x40b, |set| flags(set).is_some_and(|flags| flags & SVE_FLAG_IN_USE != 0)),
    // NT_ARM_POE: the frames have no record of it, and kernels from 6.18 on set it at random then (mended by "arm64: signal:
    // Preserve POR_EL0 if poe_context is missing").
    (0x40f, |_| true),
];

/// Returns whether the thread has a shadow stack, which this architecture calls a guarded control stack. That stack
/// would see a return without a call.
///
/// # Errors
/// ESRCH if it is gone or not stopped.
pub fn has_shadow_stack(tid: Pid, _now: Option<&Status>) -> Result<bool, SysError> {
    // NT_ARM_GCS: struct user_gcs, features_enabled.
    let set = ptrace::register_set(tid, 0x410)?;
    Ok(set.is_some_and(|set| set.first().is_some_and(|features| features & 1 != 0)))
}

/// Returns whether these registers belong to code of another kind than 64-bit programs'. Here they never do,
/// because a thread runs in one mode from its exec to its end.
pub fn are_of_another_abi(_registers: &Registers) -> bool {
    false
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn flags(set: &[u8]) -> Option<u16> {
    word16(set, 12)
}

/// Finds an instruction sequence in `code`, at the positions of instructions.
fn find(code: &[u8], sequence: &[u8]) -> Option<usize> {
    memmem::find_iter(code, sequence).find(|at| at % INSTRUCTION == 0)
}

/// Finds `svc #0; ret` in `code`.
pub fn find_call(code: &[u8]) -> Option<usize> {
    find(code, &[SVC, RET].concat())
}

/// Finds `mov x8, #139; svc #0` in `code`: the vDSO's signal return.
pub fn find_sigreturn(code: &[u8]) -> Option<usize> {
    find(code, &[LOAD_SIGRETURN, SVC].concat())
}

/// Returns the stack pointer.
pub fn stack_pointer(registers: &Registers) -> RemoteAddr {
    RemoteAddr::new(registers.sp)
}

/// Returns the program counter.
pub fn program_counter(registers: &Registers) -> RemoteAddr {
    RemoteAddr::new(registers.pc)
}

/// Changes the program counter.
pub fn set_program_counter(registers: &mut Registers, to: RemoteAddr) {
    registers.pc = to.get();
}

/// Returns the thread pointer: `NT_ARM_TLS`.
///
/// # Errors
/// ESRCH if the thread is gone or not stopped; EINVAL without such a set.
pub fn thread_pointer(tid: Pid, _registers: &Registers) -> Result<RemoteAddr, SysError> {
    let set = ptrace::register_set(tid, 0x401)?;
    let word = set.as_deref().and_then(|set| set.first_chunk());
    let absent = SysError { call: "ptrace(PTRACE_GETREGSET, NT_ARM_TLS)", errno: Errno::INVAL };
    Ok(RemoteAddr::new(u64::from_le_bytes(*word.ok_or(absent)?)))
}

/// How far below the thread pointer, at most, a C library's control block has a word that holds its own address, in
/// bytes: musl's `self`, or glibc's empty list of robust mutexes.
pub const CONTROL_BLOCK_BELOW: u64 = 4096;

/// Returns the registers of a program at its exec stop, given those that the kernel shows in its syscall-exit-stop.
/// There the kernel shows the kind of stop in `x7` (`report_syscall` in `arch/arm64/kernel/ptrace.c`).
pub fn at_exec_stop(seen: &Registers) -> Registers {
    let mut registers = *seen;
    registers.regs[7] = 0;
    registers
}

/// Returns what an interruption did to the system call that the registers are in.
///
/// If the kernel makes a call again, it has wound the call back before the thread stops where a signal would be
/// taken (`do_signal` in `arch/arm64/kernel/signal.c`). The program counter is then at the `svc`, and the first
/// argument and the number are in their registers.
pub fn interruption(registers: &Registers, sight: Option<&Sight>) -> Interruption {
    let Some(sight) = sight else { return Interruption::Unknown };
    let (before, after) = sight.code.split_at(INSTRUCTION);
    let slept = sight.asleep_in.is_some();
    if after == SVC {
        let with_time = answer(registers) == ERESTART_RESTARTBLOCK;
        if sight.asleep_in == Some(number(registers)) {
            return if with_time { Interruption::WithRemainingTime } else { Interruption::Again };
        }
        // The thread is about to make a call, so it needs only to continue.
        return if with_time { Interruption::Unknown } else { Interruption::None };
    }
    let shown = slept && before == SVC && registers.regs[0].cast_signed() == -EINTR;
    if shown { Interruption::Shown } else { Interruption::None }
}

const EINTR: i64 = 4;
const ERESTARTSYS: i64 = 512;
const ERESTARTNOHAND: i64 = 514;
const ERESTART_RESTARTBLOCK: i64 = 516;

fn number(registers: &Registers) -> i64 {
    registers.regs[8].cast_signed()
}

/// Returns the error that a wound-back call had returned (`include/linux/errno.h`), derived from its number and
/// arguments.
fn answer(registers: &Registers) -> i64 {
    const TIMER_ABSTIME: u64 = 1;
    const FUTEX_WAIT: u64 = 0;
    const FUTEX_WAIT_BITSET: u64 = 9;
    // FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME.
    const FUTEX_FLAGS: u64 = 128 | 256;
    let args = call_arguments(registers);
    match number(registers) {
        c::SYS_nanosleep | c::SYS_restart_syscall => ERESTART_RESTARTBLOCK,
        c::SYS_clock_nanosleep if args[1] & TIMER_ABSTIME == 0 => ERESTART_RESTARTBLOCK,
        c::SYS_futex
            if matches!(args[1] & !FUTEX_FLAGS, FUTEX_WAIT | FUTEX_WAIT_BITSET) && args[3] != 0 =>
        {
            ERESTART_RESTARTBLOCK
        }
        c::SYS_clock_nanosleep
        | c::SYS_ppoll
        | c::SYS_pselect6
        | c::SYS_rt_sigsuspend
        | c::SYS_msgrcv
        | c::SYS_msgsnd
        // These had returned EINTR, and only TiExec winds them back.
        | c::SYS_epoll_pwait
        | c::SYS_epoll_pwait2
        | c::SYS_semop
        | c::SYS_semtimedop
        | c::SYS_rt_sigtimedwait
        | c::SYS_io_getevents
        | c::SYS_fallocate
        | c::SYS_io_uring_enter => ERESTARTNOHAND,
        _ => ERESTARTSYS,
    }
}

/// Winds back an interrupted call that has returned EINTR, so that the kernel makes it again unless a handler runs.
/// The result had overwritten the first argument.
pub fn mark_restartable(registers: &mut Registers, first_argument: u64) {
    registers.regs[0] = first_argument;
    registers.pc = registers.pc.wrapping_sub(INSTRUCTION as u64);
}

/// Returns the registers that make an interrupted call again from its beginning. They are wound back already.
pub fn call_again(registers: &Registers) -> Registers {
    *registers
}

/// Returns the registers to set at a syscall-entry-stop of an interrupted call, wound back, so that the kernel then
/// makes the call as the program had made it.
pub fn at_entry(registers: &Registers) -> Registers {
    let mut registers = *registers;
    registers.pc = registers.pc.wrapping_add(INSTRUCTION as u64);
    registers
}

/// Returns the registers with which a signal handler's return would leave a thread after this interruption. They
/// hold no call that the kernel would restart.
pub fn after_a_signal(registers: &Registers, interruption: Interruption) -> Registers {
    match interruption {
        Interruption::WithRemainingTime => call_ended(registers),
        _ => *registers,
    }
}

/// Returns the registers with which an interrupted call, wound back, returns EINTR.
pub fn call_ended(registers: &Registers) -> Registers {
    let mut registers = *registers;
    registers.regs[0] = (-EINTR).cast_unsigned();
    registers.pc = registers.pc.wrapping_add(INSTRUCTION as u64);
    registers
}

/// Returns the registers with which the kernel continues the interrupted call by itself; `None` if there is no such
/// call.
///
/// The caller sets them at the syscall-exit-stop of another call that has the same first argument, before the stop
/// where a signal would be taken. `do_signal` then winds the call back by these registers. If a handler runs, it
/// treats the call as if it had just been interrupted.
pub fn before_the_last_stop(
    registers: &Registers,
    interruption: Interruption,
) -> Option<Registers> {
    if !matches!(interruption, Interruption::Again | Interruption::WithRemainingTime) {
        return None;
    }
    let mut set = call_ended(registers);
    set.regs[0] = (-answer(registers)).cast_unsigned();
    Some(set)
}

/// Returns the end of the instruction that makes the calls. Seccomp filters see this as the place of the call.
pub fn after_call(gadgets: Gadgets) -> RemoteAddr {
    RemoteAddr::new(gadgets.call.get().wrapping_add(INSTRUCTION as u64))
}

/// Returns the arguments of the system call that the registers are in.
pub fn call_arguments(registers: &Registers) -> [u64; 6] {
    std::array::from_fn(|index| registers.regs[index])
}

/// Returns the number of the system call that the registers are in; `None` if they are in none. The kernel forgets
/// the number, but the register keeps it.
pub fn call_number(registers: &Registers, interruption: Interruption) -> Option<i64> {
    use Interruption::{Again, Shown, WithRemainingTime};
    matches!(interruption, Again | WithRemainingTime | Shown).then(|| number(registers))
}

/// The instruction that makes a system call.
pub const CALL_INSTRUCTION: &[u8] = &SVC;

/// Returns `None`: the kernel forgets the number of a call that has returned.
pub fn returned(_registers: &Registers, _before: &[u8]) -> Option<(i64, u64)> {
    None
}

/// Returns the registers with another result of the system call.
pub fn with_result(registers: &Registers, result: u64) -> Registers {
    let mut registers = *registers;
    registers.regs[0] = result;
    registers
}

/// Returns the address below which the frame's bytes must lie. The ABI has no data below the stack pointer
/// (AAPCS64, 6.4.5).
pub fn below_red_zone(registers: &Registers) -> Option<RemoteAddr> {
    Some(stack_pointer(registers))
}

/// Returns the extended registers as a frame holds them. Returns `None` for a set that no frame can hold.
pub fn extended_state(extended: &Extended) -> Option<ExtendedState> {
    let set = &extended.bytes[..];
    let (floats, sve) = if extended.set != NT_ARM_SVE {
        (Floats::from_set(set)?, None)
    } else if flags(set)? & SVE_FLAG_IN_USE == 0 {
        (Floats::from_set(set.get(SVE_HEADER..)?)?, None)
    } else {
        let vl = usize::from(word16(set, 8)?);
        let registers = VECTORS * vl + PREDICATES * vl / 8 + vl / 8;
        let body = set.get(SVE_HEADER..SVE_HEADER + registers)?;
        // fpsr and fpcr follow, aligned to 16 bytes.
        let control = set.get(SVE_HEADER + registers.next_multiple_of(16)..)?.get(..8)?;
        let mut floats = Floats { vectors: Vec::new(), control: control.to_vec() };
        for vector in body.chunks_exact(vl).take(VECTORS) {
            // The kernel takes these bytes from this record, and the rest of each vector from the other.
            floats.vectors.extend(vector.get(..16)?);
        }
        (floats, Some((vl, body)))
    };
    let mut records = floats.record();
    if let Some((vl, body)) = sve {
        records.extend(sve_record(vl, body)?);
    }
    Some(ExtendedState { apart: Vec::new(), within: records })
}

/// The content of a floating-point record.
struct Floats {
    vectors: Vec<u8>,
    /// fpsr, fpcr.
    control: Vec<u8>,
}

impl Floats {
    /// Takes the vectors and then the two control registers from `struct user_fpsimd_state`.
    fn from_set(set: &[u8]) -> Option<Self> {
        let vectors = set.get(..VECTORS * 16)?.to_vec();
        let control = set.get(VECTORS * 16..VECTORS * 16 + 8)?.to_vec();
        Some(Self { vectors, control })
    }

    /// `struct fpsimd_context`.
    fn record(&self) -> Vec<u8> {
        let mut record = head(FPSIMD_MAGIC, FPSIMD_LEN as u32);
        record.extend(&self.control);
        record.extend(&self.vectors);
        record
    }
}

/// `struct sve_context` with its registers.
fn sve_record(vl: usize, body: &[u8]) -> Option<Vec<u8>> {
    let len = (16 + body.len()).next_multiple_of(16);
    let mut record = head(SVE_MAGIC, u32::try_from(len).ok()?);
    record.extend(u16::try_from(vl).ok()?.to_le_bytes());
    record.resize(16, 0);
    record.extend(body);
    record.resize(len, 0);
    Some(record)
}

fn head(magic: u32, len: u32) -> Vec<u8> {
    [magic.to_le_bytes(), len.to_le_bytes()].concat()
}

/// Returns the registers that make `call` and then follow the chain whose first frame is at `chain`.
pub fn aim_at_call(
    home: &Registers,
    gadgets: Gadgets,
    call: &Call,
    chain: RemoteAddr,
) -> Registers {
    let mut registers = *home;
    registers.pc = gadgets.call.get();
    registers.sp = chain.get();
    registers.regs[30] = gadgets.sigreturn.get();
    registers.regs[8] = call.number.cast_unsigned();
    registers.regs[..6].copy_from_slice(&call.args);
    registers.pstate &= !OF_AN_INSTRUCTION;
    registers
}

/// Bits of pstate that belong to the current instruction: single step, and the kind of branch that led there (BTI).
const OF_AN_INSTRUCTION: u64 = 1 << 21 | 3 << 10;

/// Returns the registers that follow the chain whose first frame is at `chain`, without a call.
pub fn aim_at_chain(home: &Registers, gadgets: Gadgets, chain: RemoteAddr) -> Registers {
    let mut registers = *home;
    registers.pc = gadgets.sigreturn.get();
    registers.sp = chain.get();
    // A value that the kernel does not take for a call to be restarted.
    registers.regs[0] = 0;
    registers.pstate &= !OF_AN_INSTRUCTION;
    registers
}

/// Builds a frame that makes `call` and goes on to the frame at `next`, with `mask` blocked. Only the home frame
/// restores the extended registers.
pub fn call_frame(
    home: &Registers,
    gadgets: Gadgets,
    call: &Call,
    next: RemoteAddr,
    _apart: RemoteAddr,
    mask: u64,
) -> Vec<u8> {
    without_floats(&aim_at_call(home, gadgets, call, next), mask)
}

/// Builds a frame that goes on to the frame at `next` without a call, with `mask` blocked.
pub fn chain_frame(
    home: &Registers,
    gadgets: Gadgets,
    next: RemoteAddr,
    _apart: RemoteAddr,
    mask: u64,
) -> Vec<u8> {
    without_floats(&aim_at_chain(home, gadgets, next), mask)
}

fn without_floats(registers: &Registers, mask: u64) -> Vec<u8> {
    let zeroes = Floats { vectors: vec![0; VECTORS * 16], control: vec![0; 8] };
    frame(registers, &zeroes.record(), mask, RemoteAddr::new(0))
}

/// Returns the length of the frame that [`home_frame`] builds, in bytes.
pub fn home_frame_len(extended: &ExtendedState) -> u64 {
    // Count as if all records lay outside the room.
    RECORDS + extended.within.len() as u64 + 3 * TERMINATOR_LEN + 32
}

/// Builds the frame that restores everything: `home`, the extended state, and the blocked signals
/// `mask`. It will lie at `at`.
pub fn home_frame(
    home: &Registers,
    _gadgets: Gadgets,
    extended: &ExtendedState,
    _apart: RemoteAddr,
    at: RemoteAddr,
    mask: u64,
) -> Vec<u8> {
    frame(home, &extended.within, mask, at)
}

fn frame(r: &Registers, records: &[u8], mask: u64, at: RemoteAddr) -> Vec<u8> {
    let mut bytes = vec![0; SIGINFO as usize];
    let words = [0, 0, 0, INVALID_SS_FLAGS, 0, mask];
    bytes.extend(words.iter().flat_map(|word: &u64| word.to_le_bytes()));
    bytes.resize((SIGINFO + UCONTEXT) as usize, 0);
    let fault_address = [0];
    let rest = [r.sp, r.pc, r.pstate];
    let words = fault_address.iter().chain(&r.regs).chain(&rest);
    bytes.extend(words.flat_map(|word| word.to_le_bytes()));
    bytes.resize(RECORDS as usize, 0);
    if records.len() + TERMINATOR_LEN as usize <= ROOM {
        bytes.extend(records);
    } else {
        // The floating-point record lies here. The other records follow the terminator.
        let (floats, outside) = records.split_at(FPSIMD_LEN as usize);
        bytes.extend(floats);
        let extra = head(EXTRA_MAGIC, 32);
        let data = at.get() + bytes.len() as u64 + 32 + TERMINATOR_LEN;
        let len = outside.len() as u64 + TERMINATOR_LEN;
        bytes.extend(extra);
        bytes.extend(data.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend([0; TERMINATOR_LEN as usize]);
        bytes.extend(outside);
    }
    bytes.extend([0; TERMINATOR_LEN as usize]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gadgets_are_found_where_instructions_lie() {
        let nop = 0xd503_201f_u32.to_le_bytes();
        let code = [nop, LOAD_SIGRETURN, SVC, nop, SVC, RET].concat();
        assert_eq!(find_sigreturn(&code), Some(4));
        assert_eq!(find_call(&code), Some(16));
        let astray = [&[0, 0][..], &code].concat();
        assert_eq!(find_call(&astray), None);
    }

    fn sve_set(vl: usize) -> Extended {
        let registers = VECTORS * vl + PREDICATES * vl / 8 + vl / 8;
        let mut bytes = vec![0; SVE_HEADER];
        bytes[8..10].copy_from_slice(&(vl as u16).to_le_bytes());
        bytes[12] = 1;
        bytes.resize(SVE_HEADER + registers, 7);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes.extend([9; 16]);
        Extended { set: NT_ARM_SVE, bytes }
    }

    #[test]
    fn records_follow_each_other_to_the_terminator() {
        for vl in [16, 32, 64, 128, 256] {
            let records = extended_state(&sve_set(vl)).unwrap();
            let at = RemoteAddr::new(0x7000_0000);
            let home = Registers { regs: [0; 31], sp: 0, pc: 0, pstate: 0 };
            let gadgets = Gadgets { call: at, sigreturn: at };
            let bytes = home_frame(&home, gadgets, &records, at, at, 0);
            assert!(bytes.len() as u64 <= home_frame_len(&records));
            let mut at_record = RECORDS as usize;
            let mut seen = Vec::new();
            loop {
                let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
                let (magic, len) = (word(at_record), word(at_record + 4) as usize);
                match magic {
                    0 if seen.last() == Some(&EXTRA_MAGIC) => at_record += 16,
                    0 => break,
                    _ => at_record += len,
                }
                assert_eq!(at_record % 16, 0);
                if magic != 0 {
                    seen.push(magic);
                }
            }
            assert_eq!(seen.contains(&EXTRA_MAGIC), vl > 64, "{vl}");
            assert!(seen.contains(&SVE_MAGIC) && seen.contains(&FPSIMD_MAGIC));
            assert_eq!(at_record + 16, bytes.len());
        }
    }

    fn at_call(number: i64, args: [u64; 6]) -> Registers {
        let mut registers = Registers { regs: [0; 31], sp: 0, pc: 0x1000, pstate: 0 };
        registers.regs[..6].copy_from_slice(&args);
        registers.regs[8] = number.cast_unsigned();
        registers
    }

    #[test]
    fn an_interrupted_call_is_told_by_what_the_thread_slept_in() {
        let nop = 0xd503_201f_u32.to_le_bytes();
        let sight = |code: [[u8; 4]; 2], asleep_in| {
            Some(Sight { code: *code.concat().first_chunk().unwrap(), asleep_in })
        };
        let told =
            |registers: &Registers, sight: Option<Sight>| interruption(registers, sight.as_ref());
        let read = at_call(63, [3, 0, 0, 0, 0, 0]);
        let sleep = at_call(c::SYS_nanosleep, [0; 6]);
        let cases = [
            (&read, [nop, SVC], Some(63), Interruption::Again),
            (&read, [nop, SVC], Some(64), Interruption::None),
            (&read, [nop, SVC], None, Interruption::None),
            (&sleep, [nop, SVC], Some(c::SYS_nanosleep), Interruption::WithRemainingTime),
            (&sleep, [nop, SVC], None, Interruption::Unknown),
            (&sleep, [SVC, nop], Some(c::SYS_nanosleep), Interruption::None),
        ];
        for (registers, code, asleep_in, expected) in cases {
            assert_eq!(told(registers, sight(code, asleep_in)), expected);
        }
        let interrupted = call_ended(&read);
        assert_eq!(told(&interrupted, sight([SVC, nop], Some(63))), Interruption::Shown);
        assert_eq!(told(&interrupted, None), Interruption::Unknown);
    }

    #[test]
    fn the_kernel_finds_the_answer_that_the_call_had() {
        let answer = |registers, interruption| {
            let set = before_the_last_stop(registers, interruption)?;
            assert_eq!(set.pc, registers.pc + 4);
            Some(set.regs[0].cast_signed())
        };
        let forever = at_call(c::SYS_futex, [0x1000, 128, 0, 0, 0, 0]);
        let timed = at_call(c::SYS_futex, [0x1000, 137, 0, 0x2000, 0, 0]);
        assert_eq!(answer(&forever, Interruption::Again), Some(-512));
        assert_eq!(answer(&timed, Interruption::WithRemainingTime), Some(-516));
        assert_eq!(answer(&forever, Interruption::None), None);
        let absolute = at_call(c::SYS_clock_nanosleep, [1, 1, 0, 0, 0, 0]);
        assert_eq!(answer(&absolute, Interruption::Again), Some(-514));
    }

    #[test]
    fn a_set_cut_short_is_refused() {
        let mut set = sve_set(32);
        set.bytes.truncate(600);
        assert_eq!(extended_state(&set), None);
    }
}
