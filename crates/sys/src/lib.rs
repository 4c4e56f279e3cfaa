//! Typed Linux calls and live `/proc` readers: thin, one system call a function, no policy.
//!
//! `rustix` serves wherever it has the call. What it lacks (ptrace, `process_vm_*`, a fork without
//! SIGCHLD, exec with the very argument pointers of `main`) is here, in the same shape.
//!
//! # Safety
//!
//! This is the crate where `unsafe` lives. Each block argues for the callee's conditions with facts
//! of its own function; nothing unsafe is exported except constructors that say what must hold.

pub mod cpu;
pub mod entry;
mod error;
pub mod jumps;
pub mod lease;
pub mod memory;
pub mod pagecache;
pub mod process;
pub mod procfs;
pub mod ptrace;
pub mod rehearse;
mod reserve;
pub mod thp;
pub mod vm;

pub use error::{Errno, SysError};
pub use rustix::process::Pid;

/// Signal numbers and wait flags, as the C headers spell them.
pub mod c {
    pub use libc::{
        __WALL, AT_FDCWD, MADV_POPULATE_READ, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_NORESERVE,
        MAP_PRIVATE, MFD_CLOEXEC, MREMAP_FIXED, MREMAP_MAYMOVE, O_CLOEXEC, O_NOFOLLOW, O_RDONLY,
        PR_SET_MM, PR_SET_MM_MAP, PROT_EXEC, PROT_READ, PROT_WRITE, SIGCHLD, SIGSYS, SYS_close,
        SYS_execve, SYS_execveat, SYS_exit_group, SYS_madvise, SYS_memfd_create, SYS_mmap,
        SYS_mremap, SYS_munmap, SYS_openat, SYS_prctl, SYS_process_vm_writev, SYS_wait4,
    };

    /// `MFD_ALLOW_SEALING` (memfd_create(2)).
    pub const MFD_ALLOW_SEALING: u32 = libc::MFD_ALLOW_SEALING;
    /// `MFD_HUGETLB` (memfd_create(2)).
    pub const MFD_HUGETLB: u32 = libc::MFD_HUGETLB;
    /// `MFD_NOEXEC_SEAL`, since Linux 6.3: the file's mode never gets an x bit. Mapping it r-x
    /// stays allowed, also with `vm.memfd_noexec=2`.
    pub const MFD_NOEXEC_SEAL: u32 = 8;
}
