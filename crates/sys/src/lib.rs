//! Typed Linux calls and live `/proc` readers. Each function is thin: one system call, no policy.
//!
//! This crate uses `rustix` for the calls that it has. The calls that it lacks (ptrace, `process_vm_*`, a
//! fork without SIGCHLD, SIGCONT, exec with the very argument pointers of `main`) are here, in the same shape.
//!
//! # Safety
//!
//! This is the crate where `unsafe` lives. Each block proves the callee's conditions with facts of its
//! own function. The crate exports nothing unsafe except constructors that say what must hold.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod address_space;
mod arch;
pub mod areas;
pub mod cgroup_namespace;
pub mod compaction;
pub mod counters;
mod error;
pub mod holes;
pub mod hugetlb;
pub mod impersonate;
pub mod interrupt;
pub mod jump_timing;
pub mod kernel_file;
pub mod lease;
pub mod loaded;
pub mod local;
pub mod memory;
pub mod numa_nodes;
pub mod orphan;
pub mod pagecache;
pub mod pagemap_scan;
pub mod peer;
mod perf_event;
pub mod perf_sampler;
pub mod perf_watch;
pub mod pidfd;
pub mod process;
pub mod process_advice;
pub mod process_name;
mod processors;
pub mod procfs;
pub mod procmap_query;
pub mod ptrace;
pub mod random;
pub mod reopen;
mod reservation;
pub mod same_processor;
pub mod schedule;
pub mod seccomp_trial;
pub mod seqpacket;
pub mod signal_watch;
pub mod split_pages;
pub mod startup;
pub mod thp;
mod timed_copy;
pub mod usage;

pub use arch::processor;
#[cfg(target_arch = "x86_64")]
pub use arch::xsave;
pub use error::{Errno, SysError, with_symbols};
pub use rustix::process::Pid;

/// Signal numbers and wait flags, as the C headers spell them.
pub mod c {
    pub use libc::{
        __WALL, AF_UNIX, AT_FDCWD, CLOSE_RANGE_UNSHARE, MADV_DONTNEED, MADV_HUGEPAGE,
        MADV_POPULATE_READ, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE,
        MAP_PRIVATE, MFD_CLOEXEC, MREMAP_FIXED, MREMAP_MAYMOVE, MS_INVALIDATE, MSG_CMSG_CLOEXEC,
        MSG_CONFIRM, MSG_DONTROUTE, MSG_DONTWAIT, MSG_EOR, MSG_MORE, MSG_NOSIGNAL, MSG_WAITALL,
        O_CLOEXEC, O_NOFOLLOW, O_RDONLY, PR_SET_MM, PR_SET_MM_MAP, PR_SET_THP_DISABLE, PROT_EXEC,
        PROT_NONE, PROT_READ, PROT_WRITE, SCHED_OTHER, SIGABRT, SIGBUS, SIGCHLD, SIGCONT, SIGFPE,
        SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGURG, SIGWINCH, SOCK_CLOEXEC,
        SOCK_DGRAM, SYS_accept, SYS_accept4, SYS_bpf, SYS_brk, SYS_clock_nanosleep, SYS_clone3,
        SYS_close, SYS_close_range, SYS_connect, SYS_copy_file_range, SYS_epoll_pwait,
        SYS_epoll_pwait2, SYS_execve, SYS_execveat, SYS_exit_group, SYS_fadvise64, SYS_fallocate,
        SYS_fcntl, SYS_flock, SYS_fstat, SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_futex,
        SYS_futex_waitv, SYS_getdents64, SYS_geteuid, SYS_getpid, SYS_getrandom, SYS_gettid,
        SYS_io_getevents, SYS_io_submit, SYS_io_uring_enter, SYS_ioctl, SYS_lseek, SYS_madvise,
        SYS_memfd_create, SYS_mincore, SYS_mkdirat, SYS_mlock, SYS_mmap, SYS_move_pages,
        SYS_mprotect, SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mremap, SYS_msgrcv, SYS_msgsnd,
        SYS_msync, SYS_munmap, SYS_nanosleep, SYS_newfstatat, SYS_openat, SYS_pidfd_open,
        SYS_pkey_alloc, SYS_pkey_free, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_prlimit64,
        SYS_process_madvise, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pselect6,
        SYS_pwrite64, SYS_pwritev2, SYS_read, SYS_readlinkat, SYS_readv, SYS_recvfrom,
        SYS_recvmmsg, SYS_recvmsg, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction,
        SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
        SYS_sched_setscheduler, SYS_sched_yield, SYS_semop, SYS_semtimedop, SYS_sendfile,
        SYS_sendmmsg, SYS_sendmsg, SYS_sendto, SYS_set_robust_list, SYS_socketpair, SYS_splice,
        SYS_statx, SYS_sysinfo, SYS_tee, SYS_unlinkat, SYS_vmsplice, SYS_wait4, SYS_waitid,
        SYS_write, SYS_writev,
    };

    pub use crate::arch::{SYS_epoll_wait, SYS_io_pgetevents, SYS_pause, SYS_poll, SYS_select};

    /// `MADV_COLLAPSE` (madvise(2)), since Linux 6.1.
    pub const MADV_COLLAPSE: i32 = crate::reservation::MADV_COLLAPSE;
    /// `PROT_BTI` (`arch/arm64/include/uapi/asm/mman.h`), on aarch64 only: an indirect branch into such a
    /// page must meet an instruction made for that.
    pub const PROT_BTI: i32 = 0x10;
    /// `MFD_ALLOW_SEALING` (memfd_create(2)).
    pub const MFD_ALLOW_SEALING: u32 = libc::MFD_ALLOW_SEALING;
    /// `MFD_HUGETLB` (memfd_create(2)).
    pub const MFD_HUGETLB: u32 = libc::MFD_HUGETLB;
    /// `MFD_HUGE_SHIFT` (memfd_create(2)): the lowest bit of the binary logarithm of the page size.
    pub const MFD_HUGE_SHIFT: u32 = 26;
    /// `MFD_NOEXEC_SEAL`, since Linux 6.3: the file's mode never gets an x bit. Mapping it r-x
    /// stays allowed, also with `vm.memfd_noexec=2`.
    pub const MFD_NOEXEC_SEAL: u32 = 8;
}
