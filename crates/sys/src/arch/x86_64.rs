//! x86-64.

#![allow(non_upper_case_globals, reason = "named as the C headers name them")]

pub use libc::{SYS_epoll_wait, SYS_pause, SYS_poll, SYS_select};
use rustix::thread::CpuSet;

/// `io_pgetevents` (`arch/x86/entry/syscalls/syscall_64.tbl`).
pub const SYS_io_pgetevents: libc::c_long = 333;

/// The sets of extended registers, by the type of their core-dump note (`elf.h`). TiExec reads the
/// first one that the kernel has: `NT_X86_XSTATE`.
pub(crate) const EXTENDED_SETS: &[i32] = &[0x202];

/// A return from a function.
pub(crate) const RETURN: &[u8] = &[0xc3];

/// Code that jumps to the address which its first argument points to, and moves the argument behind it.
pub(crate) const JUMP_TO_NEXT: &[u8] = &[
    0x48, 0x8b, 0x07, // mov rax, [rdi]
    0x48, 0x83, 0xc7, 0x08, // add rdi, 8
    0xff, 0xe0, // jmp rax
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
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, {getpid}",
            "syscall",
            "mov [r9], rax",
            "xor edi, edi",
            "mov esi, {len}",
            "mov rdx, r8",
            "mov eax, {set_affinity}",
            "syscall",
            "xor edi, edi",
            "xor esi, esi",
            "xor edx, edx",
            "xor r8d, r8d",
            "mov eax, {clone}",
            "syscall",
            "test rax, rax",
            "jz 2f",
            "mov [r9 + 8], rax",
            "xor edi, edi",
            "mov eax, {exit_group}",
            "syscall",
            "ud2",
            "2:",
            getpid = const libc::SYS_getpid,
            clone = const libc::SYS_clone,
            exit_group = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone => answer,
            len = const size_of::<CpuSet>(),
            set_affinity = const libc::SYS_sched_setaffinity,
            inlateout("rdi") flags => _,
            inlateout("rsi") 0_u64 => _,
            inlateout("rdx") 0_u64 => _,
            in("r10") 0_u64,
            // The last argument of clone(2), the thread pointer, is ignored without CLONE_SETTLS.
            inlateout("r8") std::ptr::from_ref(free) => _,
            in("r9") told,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// The places of the parts of an XSAVE area (Intel SDM volume 1, 13.4; CPUID leaf 0xd).
pub mod xsave {
    /// The legacy area and the header: every XSAVE area has at least these bytes.
    pub const MINIMUM: usize = 512 + 64;

    /// Returns the length in bytes of an area in standard format that holds the components
    /// `features` (bits of XCR0).
    pub fn area_len(features: u64) -> usize {
        // Bits 0 and 1 (x87, SSE) live in the legacy area, bit 63 is not a component.
        (2..63)
            .filter(|&component| features >> component & 1 == 1)
            .map(|component| {
                let leaf = std::arch::x86_64::__cpuid_count(0xd, component);
                // Bit 0 of ecx: a supervisor component, which has no place in a user's area.
                if leaf.ecx & 1 == 1 { 0 } else { leaf.eax as usize + leaf.ebx as usize }
            })
            .fold(MINIMUM, usize::max)
    }
}

/// The instruction TLB of the processor that runs this thread, as the processor describes it.
pub mod processor {
    use std::arch::x86_64::{__cpuid_count, CpuidResult};

    use tiexec_core::processor::{CpuidLeaves, Processor, Registers};

    /// Reads the description.
    pub fn read() -> Processor {
        const EXTENDED: u32 = 0x8000_0000;
        let at = |leaf: u32, subleaf: u32| {
            let CpuidResult { eax, ebx, ecx, edx } = __cpuid_count(leaf, subleaf);
            Registers { eax, ebx, ecx, edx }
        };
        let (most, most_extended) = (at(0, 0).eax, at(EXTENDED, 0).eax);
        // For a leaf that a processor does not have, it returns the data of another leaf.
        let leaf = |number: u32| {
            let last = if number >= EXTENDED { most_extended } else { most };
            if number <= last { at(number, 0) } else { Registers::default() }
        };
        // The first subleaf gives the number of the last one; no processor has more than a few.
        let last = leaf(0x18).eax.min(31);
        let translation = if most >= 0x18 {
            (0..=last).map(|subleaf| at(0x18, subleaf)).collect()
        } else {
            Vec::new()
        };
        Processor::Cpuid(CpuidLeaves {
            vendor: leaf(0),
            version: leaf(1),
            descriptors: leaf(2),
            translation,
            amd_first: leaf(EXTENDED + 5),
            amd_second: leaf(EXTENDED + 6),
        })
    }
}
