//! ptrace(2), one request a function.
//!
//! This module uses only requests that leave a tracee unharmed when its tracer dies at any instant. A
//! tracer's death resumes its tracees. The effect on each kind of stop was read in `kernel/signal.c`
//! (`ptrace_stop`) and `kernel/ptrace.c` (`__ptrace_unlink`):
//!
//! - syscall-stop: no effect, if `PTRACE_O_TRACESYSGOOD` is set. Its signal number, SIGTRAP|0x80, is not a
//!   valid signal, so the kernel's attempt to deliver it fails. Without the option the tracee would die of
//!   SIGTRAP.
//! - `PTRACE_EVENT_*` stops: no effect; their code is not a signal.
//! - signal-delivery-stop: the kernel delivers the signal, as without a tracer.
//! - single-step: the trap flag stays set and the tracee dies of SIGTRAP. So there is no
//!   `PTRACE_SINGLESTEP` here.

use libc::{c_int, c_long, c_void};
use rustix::process::Pid;
use tiexec_core::addr::RemoteAddr;
use tiexec_core::seccomp::Instruction;

use crate::arch;
use crate::error::{SysError, check};

/// The general registers, in the kernel's `user_regs_struct` layout.
pub type Registers = libc::user_regs_struct;

/// How to trace a tracee.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// `PTRACE_O_EXITKILL`: SIGKILL to the tracee if this process dies first.
    pub exit_kill: bool,
}

impl Options {
    fn flags(self) -> i32 {
        let always = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        if self.exit_kill { always | libc::PTRACE_O_EXITKILL } else { always }
    }
}

fn request(
    call: &'static str,
    // The C libraries differ in the type.
    request: impl Into<c_long>,
    pid: Pid,
    addr: *mut c_void,
    data: *mut c_void,
) -> Result<c_long, SysError> {
    let (request, pid) = (request.into(), pid.as_raw_nonzero().get());
    // SAFETY: each caller in this file passes the pointers that its request needs: live buffers of the
    // length named, or integers that the kernel does not dereference.
    let returned = unsafe { libc::syscall(libc::SYS_ptrace, request, pid, addr, data) };
    check(call, returned)
}

fn number(value: i32) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(value).unwrap_or(0))
}

/// Returns Yama's `kernel.yama.ptrace_scope` (`Documentation/admin-guide/LSM/Yama.rst`), which decides
/// which processes one may trace. `None` without Yama.
pub fn yama_scope() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// `PTRACE_SEIZE` — becomes the tracer of `pid` without stopping it, with
/// `PTRACE_O_TRACESYSGOOD` and `PTRACE_O_TRACEEXEC`.
///
/// # Errors
/// EPERM: the process has another tracer, a security module (Yama) forbids it, the user is another one, or
/// the process is not dumpable. ESRCH.
pub fn seize(pid: Pid, options: Options) -> Result<(), SysError> {
    request(
        "ptrace(PTRACE_SEIZE)",
        libc::PTRACE_SEIZE,
        pid,
        std::ptr::null_mut(),
        number(options.flags()),
    )?;
    Ok(())
}

/// `PTRACE_SETOPTIONS` — as at [`seize`].
///
/// # Errors
/// ESRCH if the tracee is not stopped or gone.
pub fn set_options(pid: Pid, options: Options) -> Result<(), SysError> {
    let call = "ptrace(PTRACE_SETOPTIONS)";
    request(call, libc::PTRACE_SETOPTIONS, pid, std::ptr::null_mut(), number(options.flags()))?;
    Ok(())
}

/// How to resume a stopped tracee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// `PTRACE_CONT`: until its next signal, event or group-stop.
    Run,
    /// `PTRACE_SYSCALL`: also until the next entry to or exit from a system call.
    ToSyscall,
    /// `PTRACE_LISTEN`: stay in group-stop and wait for SIGCONT.
    Listen,
    /// `PTRACE_DETACH`: for good.
    Detach,
}

/// Resumes the stopped tracee, and delivers `signal` if it is in signal-delivery-stop (0: none).
///
/// # Errors
/// ESRCH if it is gone.
pub fn resume(pid: Pid, how: Resume, signal: i32) -> Result<(), SysError> {
    let (call, code) = match how {
        Resume::Run => ("ptrace(PTRACE_CONT)", libc::PTRACE_CONT),
        Resume::ToSyscall => ("ptrace(PTRACE_SYSCALL)", libc::PTRACE_SYSCALL),
        Resume::Listen => ("ptrace(PTRACE_LISTEN)", libc::PTRACE_LISTEN),
        Resume::Detach => ("ptrace(PTRACE_DETACH)", libc::PTRACE_DETACH),
    };
    request(call, code, pid, std::ptr::null_mut(), number(signal))?;
    Ok(())
}

/// `PTRACE_INTERRUPT` — makes a seized tracee stop (`PTRACE_EVENT_STOP`) before it next runs its own code.
/// If it sleeps in a system call, the kernel interrupts the call; signal(7) lists the calls that show this
/// to the program.
///
/// # Errors
/// ESRCH if it is gone.
pub fn interrupt(pid: Pid) -> Result<(), SysError> {
    let call = "ptrace(PTRACE_INTERRUPT)";
    request(call, libc::PTRACE_INTERRUPT, pid, std::ptr::null_mut(), std::ptr::null_mut())?;
    Ok(())
}

/// The area that a thread has registered by rseq(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// Address of its `struct rseq`; 0 for none.
    pub area: u64,
}

const PTRACE_GET_RSEQ_CONFIGURATION: c_int = 0x420f;

/// `PTRACE_GET_RSEQ_CONFIGURATION`, since Linux 5.13; `None` if a thread may have registered an area and
/// the kernel cannot report it.
///
/// # Errors
/// ESRCH.
pub fn rseq(pid: Pid) -> Result<Option<Rseq>, SysError> {
    // struct ptrace_rseq_configuration: pointer, then size, signature, flags and padding.
    let call = "ptrace(PTRACE_GET_RSEQ_CONFIGURATION)";
    let known = configuration::<3>(call, PTRACE_GET_RSEQ_CONFIGURATION, pid)?;
    let area = known.map(|words| words[0]).or((!has_rseq()).then_some(0));
    Ok(area.map(|area| Rseq { area }))
}

/// Reads a configuration of a thread, a structure of `N` words; `None` if the kernel cannot report it.
fn configuration<const N: usize>(
    call: &'static str,
    kind: c_int,
    pid: Pid,
) -> Result<Option<[u64; N]>, SysError> {
    let mut words = [0u64; N];
    let size = std::ptr::without_provenance_mut(size_of_val(&words));
    match request(call, kind, pid, size, (&raw mut words).cast()) {
        Ok(_) => Ok(Some(words)),
        Err(error) if matches!(error.errno.0, libc::EINVAL | libc::EIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether the kernel has rseq(2), since Linux 4.18 with `CONFIG_RSEQ`.
fn has_rseq() -> bool {
    // SAFETY: the kernel refuses a null area of length 0 before it registers or reads anything.
    let answer = unsafe { libc::syscall(libc::SYS_rseq, 0, 0, 0, 0) };
    !(answer == -1 && crate::Errno::last().0 == libc::ENOSYS)
}

const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: c_int = 0x4211;

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG`, since Linux 6.4 — returns whether syscall user dispatch is
/// enabled for the thread (prctl(2), `PR_SET_SYSCALL_USER_DISPATCH`): its system calls then become SIGSYS.
/// False if the kernel cannot report it.
///
/// # Errors
/// ESRCH.
pub fn syscalls_are_dispatched(pid: Pid) -> Result<bool, SysError> {
    // struct ptrace_sud_config: mode, selector, offset, length.
    let call = "ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG)";
    let known = configuration::<4>(call, PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, pid)?;
    Ok(known.is_some_and(|words| words[0] != 0))
}

const PTRACE_SECCOMP_GET_FILTER: c_int = 0x420c;

/// `PTRACE_SECCOMP_GET_FILTER`, since Linux 4.4 with `CONFIG_CHECKPOINT_RESTORE` — returns the seccomp
/// filters of a stopped thread, the first installed one first. Each thread has its own filters
/// (seccomp(2)).
///
/// # Errors
/// EACCES without `CAP_SYS_ADMIN` in the initial user namespace, or if this process has filters of its own;
/// EINVAL if the thread has none, or the kernel cannot report them; EMEDIUMTYPE for a filter that is not
/// classic BPF; ESRCH.
pub fn seccomp_filters(pid: Pid) -> Result<Vec<Vec<Instruction>>, SysError> {
    let call = "ptrace(PTRACE_SECCOMP_GET_FILTER)";
    let mut filters = Vec::new();
    loop {
        let index = std::ptr::without_provenance_mut(filters.len());
        let get = |to| request(call, PTRACE_SECCOMP_GET_FILTER, pid, index, to);
        let len = match get(std::ptr::null_mut()) {
            Ok(len) => usize::try_from(len).unwrap_or(0),
            Err(error) if error.errno == crate::Errno::NOENT => return Ok(filters),
            Err(error) => return Err(error),
        };
        // The kernel fills as many instructions as it has just reported: a filter never changes.
        let mut filter = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; len];
        get(filter.as_mut_ptr().cast())?;
        let instruction = |raw: &libc::sock_filter| Instruction {
            code: raw.code,
            jump_true: raw.jt,
            jump_false: raw.jf,
            constant: raw.k,
        };
        filters.push(filter.iter().map(instruction).collect());
    }
}

/// `PTRACE_PEEKDATA` — reads the word at `addr` in the address space that the stopped tracee has now.
///
/// # Errors
/// EIO, EFAULT if nothing is mapped there; ESRCH if it is gone or not stopped.
pub fn peek(tid: Pid, addr: RemoteAddr) -> Result<u64, SysError> {
    let mut word: u64 = 0;
    // This is the system call itself; the C library's function cannot distinguish the word from an error.
    // SAFETY: the kernel writes one word to the live variable. It looks up the address only in the tracee.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            libc::PTRACE_PEEKDATA,
            tid.as_raw_nonzero().get(),
            addr.get(),
            &raw mut word,
        )
    };
    check("ptrace(PTRACE_PEEKDATA)", returned)?;
    Ok(word)
}

/// `PTRACE_POKEDATA` — writes a word at `addr`. A private page without write permission is copied first.
///
/// # Errors
/// EIO, EFAULT if nothing is mapped there, or a shared page that may not be written; ESRCH if it is gone or not
/// stopped.
pub fn poke(tid: Pid, addr: RemoteAddr, word: u64) -> Result<(), SysError> {
    let pointer = |value: u64| std::ptr::without_provenance_mut(value as usize);
    let call = "ptrace(PTRACE_POKEDATA)";
    request(call, libc::PTRACE_POKEDATA, tid, pointer(addr.get()), pointer(word))?;
    Ok(())
}

/// The general registers, by the type of their core-dump note (`elf.h`).
const NT_PRSTATUS: i32 = 1;

fn get_regset(pid: Pid, set: i32, buffer: &mut [u8]) -> Result<usize, SysError> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let call = "ptrace(PTRACE_GETREGSET)";
    request(call, libc::PTRACE_GETREGSET, pid, number(set), (&raw mut iov).cast())?;
    Ok(iov.iov_len)
}

/// `PTRACE_GETREGSET(NT_PRSTATUS)` — reads the general registers. `None` for a thread that runs in another
/// code segment than 64-bit programs do: the kernel then gives the registers of a 32-bit thread
/// (`task_user_regset_view` in `arch/x86/kernel/ptrace.c`).
///
/// # Errors
/// ESRCH if it is gone or not stopped.
pub fn registers(pid: Pid) -> Result<Option<Registers>, SysError> {
    // SAFETY: an all-zero user_regs_struct is valid: it is a list of integers.
    let mut regs: Registers = unsafe { std::mem::zeroed() };
    let mut iov = libc::iovec { iov_base: (&raw mut regs).cast(), iov_len: size_of::<Registers>() };
    let call = "ptrace(PTRACE_GETREGSET)";
    request(call, libc::PTRACE_GETREGSET, pid, number(NT_PRSTATUS), (&raw mut iov).cast())?;
    Ok((iov.iov_len == size_of::<Registers>()).then_some(regs))
}

/// `PTRACE_SETREGSET(NT_PRSTATUS)` — writes the general registers.
///
/// # Errors
/// ESRCH if it is gone or not stopped; EIO for a register set the kernel refuses.
pub fn set_registers(pid: Pid, regs: &Registers) -> Result<(), SysError> {
    let mut iov = libc::iovec {
        // The kernel only reads it, whatever the type of iov_base says.
        iov_base: std::ptr::from_ref(regs).cast_mut().cast(),
        iov_len: size_of::<Registers>(),
    };
    let call = "ptrace(PTRACE_SETREGSET)";
    request(call, libc::PTRACE_SETREGSET, pid, number(NT_PRSTATUS), (&raw mut iov).cast())?;
    Ok(())
}

/// Extended registers: floating point, vectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extended {
    /// The number of the register set (`NT_X86_XSTATE`, `NT_ARM_SVE`, …).
    pub set: i32,
    /// The set, in the kernel's layout.
    pub bytes: Vec<u8>,
}

/// `PTRACE_GETREGSET` — reads the largest set of extended registers that this machine has.
///
/// # Errors
/// ENODEV or EINVAL without any such set (XSAVE on x86-64); ESRCH.
pub fn extended_registers(pid: Pid) -> Result<Extended, SysError> {
    let mut last = None;
    for &set in arch::EXTENDED_SETS {
        // AMX tiles alone are 8 KiB, SVE vectors of 2048 bits 9 KiB; the kernel returns how much it filled.
        let mut bytes = vec![0; 16 << 10];
        match get_regset(pid, set, &mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(Extended { set, bytes });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(SysError { call: "ptrace(PTRACE_GETREGSET)", errno: crate::Errno::INVAL }))
}

/// `PTRACE_SETREGSET` — writes the extended registers back as they were read.
///
/// # Errors
/// ESRCH if it is gone or not stopped; EINVAL for a register set the kernel refuses.
pub fn set_extended_registers(pid: Pid, extended: &Extended) -> Result<(), SysError> {
    let mut iov = libc::iovec {
        // The kernel only reads it, whatever the type of iov_base says.
        iov_base: extended.bytes.as_ptr().cast_mut().cast(),
        iov_len: extended.bytes.len(),
    };
    let call = "ptrace(PTRACE_SETREGSET)";
    request(call, libc::PTRACE_SETREGSET, pid, number(extended.set), (&raw mut iov).cast())?;
    Ok(())
}

/// `PTRACE_GETREGSET` — reads one set of registers by its number; `None` if this machine does not have it.
///
/// # Errors
/// ESRCH if it is gone or not stopped.
pub fn register_set(pid: Pid, set: i32) -> Result<Option<Vec<u8>>, SysError> {
    let mut bytes = vec![0; 16 << 10];
    match get_regset(pid, set, &mut bytes) {
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        Err(error) if error.errno == crate::Errno::SRCH => Err(error),
        Err(_no_such_set) => Ok(None),
    }
}

/// `PTRACE_GETSIGMASK` — reads the blocked signals, one bit per signal.
///
/// # Errors
/// ESRCH.
pub fn signal_mask(pid: Pid) -> Result<u64, SysError> {
    let mut mask = 0u64;
    let call = "ptrace(PTRACE_GETSIGMASK)";
    let size = std::ptr::without_provenance_mut(size_of::<u64>());
    request(call, libc::PTRACE_GETSIGMASK, pid, size, (&raw mut mask).cast())?;
    Ok(mask)
}

/// `PTRACE_SETSIGMASK` — sets the blocked signals. The tracee keeps this mask when its tracer dies. So use
/// it only while a register set is installed that restores the old mask.
///
/// # Errors
/// ESRCH.
pub fn set_signal_mask(pid: Pid, mask: u64) -> Result<(), SysError> {
    let mut mask = mask;
    let call = "ptrace(PTRACE_SETSIGMASK)";
    let size = std::ptr::without_provenance_mut(size_of::<u64>());
    request(call, libc::PTRACE_SETSIGMASK, pid, size, (&raw mut mask).cast())?;
    Ok(())
}

/// The side of a system call on which a syscall-stop is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyscallStop {
    /// Before the call: its number and arguments.
    Entry {
        /// As in `<asm/unistd_64.h>`.
        number: u64,
        /// The raw register values.
        args: [u64; 6],
        /// The address behind the instruction that makes the call.
        next: u64,
    },
    /// After the call: its return value (−errno for an error).
    Exit(i64),
    /// The tracee is in no syscall-stop.
    None,
}

/// `PTRACE_GET_SYSCALL_INFO`, `PTRACE_SYSCALL_INFO_ENTRY`, `PTRACE_SYSCALL_INFO_EXIT` (`include/uapi/linux/ptrace.h`).
const GET_SYSCALL_INFO: c_int = 0x420e;
const ENTRY: u8 = 1;
const EXIT: u8 = 2;

/// `struct ptrace_syscall_info` (`include/uapi/linux/ptrace.h`), as far as this file reads it.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    /// At the entry: the number of the call. At the exit: its answer.
    number_or_answer: u64,
    args: [u64; 6],
}

fn syscall_info(pid: Pid) -> Result<SyscallInfo, SysError> {
    let mut info = SyscallInfo::default();
    let call = "ptrace(PTRACE_GET_SYSCALL_INFO)";
    // The kernel writes no more than this size.
    let size = std::ptr::without_provenance_mut(size_of_val(&info));
    request(call, GET_SYSCALL_INFO, pid, size, (&raw mut info).cast())?;
    Ok(info)
}

/// `PTRACE_GET_SYSCALL_INFO`, since Linux 5.3, in any stop — returns the architecture (`AUDIT_ARCH_…`,
/// `<linux/audit.h>`) of the system call that the thread is in: a 64-bit program can make those of 32-bit
/// programs too (`int $0x80`).
///
/// # Errors
/// ESRCH; EIO before 5.3.
pub fn syscall_architecture(pid: Pid) -> Result<u32, SysError> {
    Ok(syscall_info(pid)?.arch)
}

/// `PTRACE_GET_SYSCALL_INFO`, since Linux 5.3.
///
/// # Errors
/// ESRCH; EIO before 5.3.
pub fn syscall_stop(pid: Pid) -> Result<SyscallStop, SysError> {
    let info = syscall_info(pid)?;
    Ok(match info.op {
        ENTRY => SyscallStop::Entry {
            number: info.number_or_answer,
            args: info.args,
            next: info.instruction_pointer,
        },
        EXIT => SyscallStop::Exit(info.number_or_answer.cast_signed()),
        _ => SyscallStop::None,
    })
}
