//! aarch64.

#![allow(non_upper_case_globals, reason = "named as the C headers name them")]

use rustix::thread::CpuSet;

// The generic list of system calls has only newer forms of these calls (`asm-generic/unistd.h`). No call has
// these numbers.
/// `epoll_wait(2)`: does not exist here.
pub const SYS_epoll_wait: libc::c_long = -1;
/// `pause(2)`: does not exist here.
pub const SYS_pause: libc::c_long = -2;
/// `poll(2)`: does not exist here.
pub const SYS_poll: libc::c_long = -3;
/// `select(2)`: does not exist here.
pub const SYS_select: libc::c_long = -4;
/// `io_pgetevents` (`include/uapi/asm-generic/unistd.h`).
pub const SYS_io_pgetevents: libc::c_long = 292;

/// The sets of extended registers, by the type of their core-dump note (`elf.h`). TiExec reads the first one
/// that the kernel has: `NT_ARM_SVE`, which also holds the other set where no more is in use, then
/// `NT_PRFPREG`.
pub(crate) const EXTENDED_SETS: &[i32] = &[0x405, 2];

/// A return from a function.
pub(crate) const RETURN: &[u8] = &0xd65f_03c0_u32.to_le_bytes();

/// Code that jumps to the address which its first argument points to, and moves the argument behind it.
pub(crate) const JUMP_TO_NEXT: &[u8] = &[
    0x01, 0x84, 0x40, 0xf8, // ldr x1, [x0], #8
    0x20, 0x00, 0x1f, 0xd6, // br x1
];

/// Calls clone(2) with these flags for a child that shares this process's memory, and once more without flags in that
/// child, which then ends. The first child writes its id and the answer to its clone(2) to `told`. Before it forks, it takes
/// the affinity `free`. Returns 0 in the second child, and the answer to the first clone(2) in this process.
///
/// # Safety
/// The process has one thread, the flags hold `CLONE_VM` and `CLONE_VFORK`, and `told` may be written to.
pub(crate) unsafe fn fork_twice(
    flags: libc::c_long,
    told: *mut [libc::c_long; 2],
    free: &CpuSet,
) -> libc::c_long {
    let answer;
    // SAFETY: the first child shares this stack and uses none of it: it runs no code but this, in registers, and writes only
    // to `told`. This process stands still until the child has ended. The second child has a copy of all memory.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x8, #{getpid}",
            "svc #0",
            "str x0, [x9]",
            "mov x0, #0",
            "mov x1, #{len}",
            "mov x2, x10",
            "mov x8, #{set_affinity}",
            "svc #0",
            "mov x0, #0",
            "mov x1, #0",
            "mov x2, #0",
            "mov x8, #{clone}",
            "svc #0",
            "cbz x0, 2f",
            "str x0, [x9, #8]",
            "mov x0, #0",
            "mov x8, #{exit_group}",
            "svc #0",
            "brk #0",
            "2:",
            getpid = const libc::SYS_getpid,
            clone = const libc::SYS_clone,
            exit_group = const libc::SYS_exit_group,
            inlateout("x8") libc::SYS_clone => _,
            len = const size_of::<CpuSet>(),
            set_affinity = const libc::SYS_sched_setaffinity,
            inlateout("x0") flags => answer,
            inlateout("x1") 0_u64 => _,
            inlateout("x2") 0_u64 => _,
            in("x3") 0_u64,
            in("x4") 0_u64,
            in("x9") told,
            in("x10") std::ptr::from_ref(free),
        );
    }
    answer
}

/// The instruction TLB of the processor that runs this thread, as the processor describes it.
pub mod processor {
    use tiexec_core::processor::Processor;

    /// Reads the description.
    pub fn read() -> Processor {
        // The kernel shows the register of each processor (Documentation/arch/arm64/cpu-feature-registers.rst).
        let path = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
        let text = std::fs::read_to_string(path).ok();
        let midr = text
            .and_then(|text| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
        Processor::Midr(midr)
    }
}
