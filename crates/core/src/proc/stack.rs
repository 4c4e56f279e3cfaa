//! `/proc/TID/stack`: where in the kernel a thread is (proc_pid_stack(5)).

/// The functions on the way back to the program, in which a preempted thread waits for a processor. The kernel has then
/// finished the thread's system call, or the thread was in none (`kernel/entry/common.c`; `do_notify_resume` of
/// `arch/arm64/kernel/signal.c`, before 6.19; `fpsimd_restore_current_state` of `arch/arm64/kernel/fpsimd.c`, which only
/// these two call, and in which a thread with long vectors is preempted often).
const ON_THE_WAY_BACK: [&[u8]; 5] = [
    b"irqentry_exit_to_user_mode",
    b"exit_to_user_mode",
    b"syscall_exit_to_user_mode",
    b"do_notify_resume",
    b"fpsimd_restore_current_state",
];

/// Returns whether the kernel has preempted the thread on its way back to the program, so that a signal can no longer
/// interrupt a system call. False for a thread that runs, because the kernel then shows no stack.
pub fn leaves_the_kernel(text: &[u8]) -> bool {
    // The kernel leaves out the functions of its scheduler, so the first line is the one that called it.
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let function = line.strip_prefix(b"[<0>] ").unwrap_or_default();
    ON_THE_WAY_BACK.iter().any(|known| function.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_innermost_function_counts() {
        let preempted = b"[<0>] irqentry_exit_to_user_mode+0x147/0x190\n[<0>] asm_sysvec_apic_timer_interrupt+0x1a/0x20\n";
        let done = b"[<0>] exit_to_user_mode_loop+0x5c/0x120\n[<0>] do_syscall_64+0x1e8/0x280\n";
        let vectors = b"[<0>] fpsimd_restore_current_state+0x40/0x90\n[<0>] exit_to_user_mode_loop+0x5c/0x120\n";
        let inside = b"[<0>] read_zero+0x60/0xc0\n[<0>] do_syscall_64+0x71/0x280\n[<0>] exit_to_user_mode_loop+0x0/0x1\n";
        assert!(leaves_the_kernel(preempted));
        assert!(leaves_the_kernel(done));
        assert!(leaves_the_kernel(vectors));
        for other in [&inside[..], b"", b"\n", b"[<0>]", b"irqentry_exit_to_user_mode+0x1/0x2"] {
            assert!(!leaves_the_kernel(other), "{:?}", String::from_utf8_lossy(other));
        }
    }
}
