//! Trying our exact calls under the seccomp filters in force, in a process that may die of it.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::error::{SysError, check};

/// Makes every system call that the program will be asked to make, with the same flags, on
/// throw-away memory of this process. Meant for the helper, which runs under the very filters of
/// the program: a filter that kills takes the helper, one that errs gives the error.
///
/// # Errors
/// The first call that is refused.
pub fn remote_calls() -> Result<(), SysError> {
    let len = rustix::param::page_size();
    let fd = memfd_create("tiexec:rehearsal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(SysError::of("memfd_create"))?;
    let file = File::from(fd);
    rustix::fs::ftruncate(&file, len as u64).map_err(SysError::of("ftruncate"))?;
    let text = ProtFlags::READ | ProtFlags::EXEC;
    let map = || {
        // SAFETY: a new private mapping at an address of the kernel's choice disturbs nothing.
        unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, text, MapFlags::PRIVATE, file.as_fd(), 0)
        }
        .map_err(SysError::of("mmap(PROT_READ|PROT_EXEC)"))
    };
    let (staged, text) = (map()?, map()?);
    // SAFETY: populating our own fresh mapping changes nothing that anybody refers to.
    unsafe { rustix::mm::madvise(staged, len, Advice::LinuxPopulateRead) }
        .map_err(SysError::of("madvise(MADV_POPULATE_READ)"))?;
    // SAFETY: both ranges are our own fresh mappings, and nobody refers to either.
    let moved = unsafe { rustix::mm::mremap_fixed(staged, len, len, MremapFlags::MAYMOVE, text) }
        .map_err(SysError::of("mremap(MREMAP_FIXED)"))?;
    // SAFETY: the one mapping left, our own.
    unsafe { rustix::mm::munmap(moved, len) }.map_err(SysError::of("munmap"))?;
    move_of_the_program();
    signal_return();
    Ok(())
}

/// The calls that move a position-independent program. One that is refused only keeps it where it
/// is; but one that kills must kill here.
fn move_of_the_program() {
    let _refused = mm_map_size();
    let byte = [0u8; 1];
    let mut copy = [0u8; 1];
    let from = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let to = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: 1 };
    let this = crate::process::this().as_raw_nonzero().get();
    // SAFETY: the kernel reads one live byte and writes the other, which nobody else refers to.
    let _refused =
        unsafe { libc::process_vm_writev(this, &raw const from, 1, &raw const to, 1, 0) };
    let flags = MapFlags::PRIVATE;
    for protection in [ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE] {
        let len = rustix::param::page_size();
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
        if let Ok(at) = mapped {
            // SAFETY: the mapping just made, which nobody refers to.
            let _ours = unsafe { rustix::mm::munmap(at, len) };
        }
    }
}

/// `PR_SET_MM_MAP_SIZE` (prctl(2)): asks for the size of `struct prctl_mm_map`, changes nothing.
const PR_SET_MM_MAP_SIZE: libc::c_ulong = 15;

/// `prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE)` — asks for the size of `struct prctl_mm_map`, in bytes: whether
/// a program can tell the kernel where its parts lie (`PR_SET_MM_MAP`).
///
/// # Errors
/// EINVAL or EPERM without `CONFIG_CHECKPOINT_RESTORE`; what a seccomp filter answers.
pub fn mm_map_size() -> Result<u32, SysError> {
    let mut size = 0u32;
    // SAFETY: PR_SET_MM_MAP_SIZE writes one u32 to the live integer it is given.
    let answer = unsafe { libc::prctl(libc::PR_SET_MM, PR_SET_MM_MAP_SIZE, &raw mut size, 0, 0) };
    check("prctl(PR_SET_MM_MAP_SIZE)", answer.into())?;
    Ok(size)
}

/// Delivers a signal to this thread and returns from it by `rt_sigreturn`, as the frame will.
fn signal_return() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, so it is async-signal-safe.
    unsafe { libc::signal(libc::SIGURG, handler as libc::sighandler_t) };
    let set = crate::process::signal_set(&[libc::SIGURG]);
    // SAFETY: `set` is live; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
    // SAFETY: raise has no preconditions; the handler above runs.
    unsafe { libc::raise(libc::SIGURG) };
    // SAFETY: as above, back to blocked.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}
