//! Tries our exact calls under the seccomp filters in force, in a process that may die of them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::error::{Errno, SysError, check};
use crate::process::{self, Fork};

/// Makes every system call that TiExec will make the program make, with the same flags, on throw-away memory of this
/// process. The helper calls this, because it runs under the same filters as the program: a filter that kills ends the
/// helper, and a filter that refuses returns its error here.
///
/// # Errors
/// The error of the first call that a filter refuses.
pub fn remote_calls() -> Result<(), SysError> {
    let len = rustix::param::page_size();
    let fd = memfd_create("tiexec-rehearsal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
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
    // SAFETY: populating our own fresh mapping changes nothing that a reference could see.
    unsafe { rustix::mm::madvise(staged, len, Advice::LinuxPopulateRead) }
        .map_err(SysError::of("madvise(MADV_POPULATE_READ)"))?;
    // SAFETY: both ranges are our own fresh mappings, and no reference into either exists.
    let moved = unsafe { rustix::mm::mremap_fixed(staged, len, len, MremapFlags::MAYMOVE, text) }
        .map_err(SysError::of("mremap(MREMAP_FIXED)"))?;
    // SAFETY: this is the one mapping left, our own.
    unsafe { rustix::mm::munmap(moved, len) }.map_err(SysError::of("munmap"))?;
    move_of_the_program();
    signal_return();
    Ok(())
}

/// `prctl(PR_GET_SECCOMP)` — returns whether seccomp filters are in force for the calling thread, or may be. Opens
/// nothing.
pub fn is_filtered() -> bool {
    // SAFETY: PR_GET_SECCOMP reads no memory.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) != 0 }
}

/// Makes each of `calls`, a number and its arguments, in a child of its own, which `fork` makes. Returns the error of
/// each call, `None` for success. Returns `None` altogether if the child did not survive the calls, or did not end
/// within `patience`. The calls must do nothing: the kernel must find nothing to do or a bad argument, and never memory
/// of this process.
///
/// # Errors
/// As fork(2) and pipe2(2).
pub fn answers(
    calls: &[(i64, [u64; 6])],
    patience: Duration,
    fork: impl FnOnce() -> Result<Fork, SysError>,
) -> Result<Option<Vec<Option<Errno>>>, SysError> {
    let (from_child, mut to_parent) = std::io::pipe().map_err(|error| SysError {
        call: "pipe2",
        errno: Errno(error.raw_os_error().unwrap_or(libc::EMFILE)),
    })?;
    let child = match fork()? {
        Fork::Child => {
            // Otherwise a handler of the program for refused calls would run here; now SIGSYS ends the child.
            // SAFETY: no handler is installed.
            unsafe { libc::signal(libc::SIGSYS, libc::SIG_DFL) };
            // A filter that kills would leave a core dump in the name of the program.
            // SAFETY: PR_SET_DUMPABLE reads no memory.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
            for &(number, [a, b, c, d, e, f]) in calls {
                // SAFETY: by the contract above the call does nothing to memory. A forked child makes it, which then
                // only writes four bytes and exits.
                let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
                let errno = check("a call on trial", answer).map_or_else(|e| e.errno.0, |_| 0);
                if to_parent.write_all(&errno.to_ne_bytes()).is_err() {
                    break;
                }
            }
            process::exit_now(0);
        }
        Fork::Parent(child) => child,
    };
    drop(to_parent);
    // The other end may be open in a child that another thread has forked meanwhile.
    let _or_it_waits = rustix::fs::fcntl_setfl(&from_child, rustix::fs::OFlags::NONBLOCK);
    let ended = process::wait_until(child, Instant::now() + patience)?;
    if ended.is_none() {
        let _already_gone = process::kill(child);
        process::wait(child)?;
        return Ok(None);
    }
    let mut said = Vec::new();
    let mut from_child = from_child;
    // The child has ended, so this read ends; the pipe can hold more than all answers.
    let _as_far_as_it_came = from_child.read_to_end(&mut said);
    let errnos = said.chunks_exact(4).map(|errno| {
        let errno = i32::from_ne_bytes(errno.try_into().unwrap_or_default());
        (errno != 0).then_some(Errno(errno))
    });
    let errnos: Vec<_> = errnos.collect();
    Ok((errnos.len() == calls.len()).then_some(errnos))
}

/// The calls that move a position-independent program. If a filter refuses one of them, the program only stays where it
/// is; but if a filter kills for one, it must kill here.
fn move_of_the_program() {
    let _refused = mm_map_size();
    let byte = [0u8; 1];
    let mut copy = [0u8; 1];
    let from = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let to = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: 1 };
    let this = crate::process::this().as_raw_nonzero().get();
    // SAFETY: the kernel reads one live byte and writes the other; no other reference to either exists.
    let _refused =
        unsafe { libc::process_vm_writev(this, &raw const from, 1, &raw const to, 1, 0) };
    let flags = MapFlags::PRIVATE;
    for protection in [ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE] {
        let len = rustix::param::page_size();
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
        if let Ok(at) = mapped {
            // SAFETY: this is the mapping just made, and no reference into it exists.
            let _ours = unsafe { rustix::mm::munmap(at, len) };
        }
    }
}

/// `PR_SET_MM_MAP_SIZE` (prctl(2)): returns the size of `struct prctl_mm_map`, and changes nothing.
const PR_SET_MM_MAP_SIZE: libc::c_ulong = 15;

/// `prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE)` — returns the size of `struct prctl_mm_map`, in bytes. If it succeeds, a
/// program can tell the kernel where its parts lie (`PR_SET_MM_MAP`).
///
/// # Errors
/// EINVAL or EPERM without `CONFIG_CHECKPOINT_RESTORE`; the answer of a seccomp filter.
pub fn mm_map_size() -> Result<u32, SysError> {
    let mut size = 0u32;
    // SAFETY: PR_SET_MM_MAP_SIZE writes one u32 to the live integer it is given.
    let answer = unsafe { libc::prctl(libc::PR_SET_MM, PR_SET_MM_MAP_SIZE, &raw mut size, 0, 0) };
    check("prctl(PR_SET_MM_MAP_SIZE)", answer.into())?;
    Ok(size)
}

/// Delivers a signal to this thread and returns from it by `rt_sigreturn`, as the signal frames will.
fn signal_return() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, so it is async-signal-safe.
    unsafe { libc::signal(libc::SIGURG, handler as libc::sighandler_t) };
    let set = crate::process::signal_set(&[libc::SIGURG]);
    // SAFETY: `set` is live; the pointer for the old mask is null.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
    // SAFETY: raise has no preconditions; the handler above runs.
    unsafe { libc::raise(libc::SIGURG) };
    // SAFETY: as above; the signal is blocked again.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}
