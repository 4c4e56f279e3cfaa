//! The calls that an attach or a revert of this very process makes, for a thread under seccomp filters. A trial of
//! all of them shows whether a filter would end the process in the middle.

use tiexec_core::seccomp::Value::{Any, Is, Small};
use tiexec_sys::c;
use tiexec_tracee::remote;
use tiexec_tracee::syscall_manifest::ManifestEntry;

use super::prepared::REFAULT_CALLS;
use super::{ThpOn, probe};
use crate::switch;

/// Returns all of these calls. A filter may refuse those that look at the process and stage; the call itself then
/// reports the error.
pub fn calls_here() -> [&'static [ManifestEntry]; 8] {
    [
        &switch::CALLS,
        &switch::GUARDED_CALLS,
        &switch::WIDENED_CALLS,
        &switch::DATA_CALLS,
        &REFAULT_CALLS,
        &probe::LOCK_CALLS,
        &ThpOn::CALLS,
        &BESIDE,
    ]
}

/// A call on a descriptor, or on a path below one. In the trial the descriptor is not open.
const fn of_descriptor(name: &'static str, number: i64) -> ManifestEntry {
    ManifestEntry::needed(name, number, [Small, Any, Any, Any, Any, Any])
}

/// Another call, which does nothing without arguments.
const fn plain(name: &'static str, number: i64) -> ManifestEntry {
    ManifestEntry::needed(name, number, [Any; 6])
}

/// The calls of looking, staging, reporting and ending, and those of the allocator and of the start of a thread.
const BESIDE: [ManifestEntry; 43] = [
    remote::CLOSE,
    ManifestEntry::needed(
        "close_range(CLOSE_RANGE_UNSHARE)",
        c::SYS_close_range,
        [Small, Small, Is(c::CLOSE_RANGE_UNSHARE as u64)],
    ),
    of_descriptor("read", c::SYS_read),
    of_descriptor("pread64", c::SYS_pread64),
    of_descriptor("pwrite64", c::SYS_pwrite64),
    of_descriptor("write", c::SYS_write),
    ManifestEntry::needed("ppoll", c::SYS_ppoll, [Any, Is(1)]),
    of_descriptor("ioctl", c::SYS_ioctl),
    of_descriptor("fcntl", c::SYS_fcntl),
    of_descriptor("ftruncate", c::SYS_ftruncate),
    of_descriptor("lseek", c::SYS_lseek),
    of_descriptor("fstat", c::SYS_fstat),
    of_descriptor("getdents64", c::SYS_getdents64),
    of_descriptor("flock", c::SYS_flock),
    of_descriptor("fadvise64", c::SYS_fadvise64),
    of_descriptor("fstatfs", c::SYS_fstatfs),
    of_descriptor("process_madvise", c::SYS_process_madvise),
    of_descriptor("openat", c::SYS_openat),
    of_descriptor("newfstatat", c::SYS_newfstatat),
    of_descriptor("statx", c::SYS_statx),
    of_descriptor("readlinkat", c::SYS_readlinkat),
    of_descriptor("unlinkat", c::SYS_unlinkat),
    of_descriptor("mkdirat", c::SYS_mkdirat),
    plain("memfd_create", c::SYS_memfd_create),
    plain("brk", c::SYS_brk),
    plain("mprotect", c::SYS_mprotect),
    plain("mincore", c::SYS_mincore),
    plain("getrandom", c::SYS_getrandom),
    plain("geteuid", c::SYS_geteuid),
    plain("getpid", c::SYS_getpid),
    plain("gettid", c::SYS_gettid),
    plain("pkey_alloc", c::SYS_pkey_alloc),
    plain("pkey_free", c::SYS_pkey_free),
    plain("pidfd_open", c::SYS_pidfd_open),
    plain("move_pages", c::SYS_move_pages),
    plain("sysinfo", c::SYS_sysinfo),
    plain("futex", c::SYS_futex),
    plain("sched_yield", c::SYS_sched_yield),
    plain("clock_nanosleep", c::SYS_clock_nanosleep),
    plain("rt_sigprocmask", c::SYS_rt_sigprocmask),
    plain("clone3", c::SYS_clone3),
    plain("set_robust_list", c::SYS_set_robust_list),
    plain("rseq", c::SYS_rseq),
];
