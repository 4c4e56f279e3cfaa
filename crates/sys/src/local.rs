//! Raw system calls of this very process, and the preparations of a thread that makes them.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::{Errno, SysError, check};
use crate::loaded;
use crate::process::{has_threads, occupy_standard_descriptors, signal_set, without_write_signals};

/// The right to make raw system calls in this process.
#[derive(Debug)]
pub struct Calls(());

impl Calls {
    /// Grants the right.
    ///
    /// # Safety
    /// Every call made with it must leave all memory that Rust code refers to readable, with the bytes it had. The
    /// switch of text does so: it maps new memory where nothing is, fills it with the text's own bytes, and moves it
    /// over that text.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// Makes the call `number` with `args`, and returns the kernel's answer; errors show `name` for the call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn make(&self, name: &'static str, number: i64, args: [u64; 6]) -> Result<u64, SysError> {
        let [a, b, c, d, e, f] = args;
        // SAFETY: the maker of `self` has promised that the calls made with it leave memory in use as it is.
        let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        Ok(check(name, answer)?.cast_unsigned())
    }
}

unsafe extern "C" {
    /// pthread_setcancelstate(3), which the crate libc lacks.
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// While this lives, pthread_cancel(3) does not end the calling thread: the C library would unwind the frames of Rust, which
/// ends the process. At the end errno is what it was, also in a program that has not begun: errno is 0 at its start (C11,
/// 7.5).
#[derive(Debug)]
#[must_use = "dropping it lets the thread be cancelled"]
pub struct Unseen {
    errno: libc::c_int,
    cancel_state: libc::c_int,
}

impl Unseen {
    /// Begins it.
    pub fn begin() -> Self {
        /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
        const DISABLE: libc::c_int = 1;
        let mut cancel_state = 0;
        // SAFETY: the function has no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address of this thread's errno is valid as long as the thread lives.
        let errno = unsafe { *errno };
        // SAFETY: the pointer leads to a live integer.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut cancel_state) };
        Self { errno, cancel_state }
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: the pointer leads to a live integer. The call cancels nothing itself if cancellation is deferred; if it is
        // asynchronous, no frame of Rust follows but this one, which has nothing to drop.
        unsafe { pthread_setcancelstate(self.cancel_state, &raw mut disabled) };
        // SAFETY: the function has no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address of this thread's errno is valid as long as the thread lives.
        unsafe { *errno = self.errno };
    }
}

/// Runs `work` with all signals to this thread blocked except those of faults, so that no handler of the program runs
/// meanwhile.
pub fn while_signals_wait<T>(work: impl FnOnce() -> T) -> T {
    /// If a fault hits a process that blocks the fault's signal, the kernel ends the process.
    const FAULTS: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    /// Restores the mask, even if `work` panics.
    struct Before(libc::sigset_t);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: the set is live and initialised; the call does not return the old mask.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
            };
        }
    }
    let mut all = signal_set(&[]);
    // SAFETY: the set is live.
    unsafe { libc::sigfillset(&raw mut all) };
    for signal in FAULTS {
        // SAFETY: the set is live and initialised.
        unsafe { libc::sigdelset(&raw mut all, signal) };
    }
    let mut before = Before(signal_set(&[]));
    // SAFETY: both sets are live and initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before.0) };
    // A signal that the work itself causes, such as that of a limit on file sizes, never reaches the program.
    without_write_signals(work)
}

/// `mmap(MAP_PRIVATE|MAP_ANONYMOUS)` and munmap(2) — tests whether this process may have so many bytes more. malloc(3)
/// would not tell it without a trace: glibc's behaves differently after a large piece was freed (`M_MMAP_THRESHOLD` in
/// mallopt(3)).
pub fn can_map(bytes: usize) -> bool {
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, writable, MapFlags::PRIVATE) };
    // SAFETY: this is the mapping just made, and no reference into it exists.
    mapped.is_ok_and(|at| unsafe { munmap(at, bytes) }.is_ok())
}

/// Returns how large the stack of a thread must be that works on this process, in bytes. A look at the process takes less
/// than a sixteenth of a MiB; a signal handler may run on the same stack. glibc also takes the thread-local variables of all
/// objects from it.
pub fn stack_size() -> usize {
    loaded::thread_local_bytes().saturating_add(1 << 20)
}

/// Runs `work` so that no other thread sees the descriptors that it opens, and no child that another thread forks gets
/// them. Unless the caller is the only thread, `work` runs in a new thread with its own table of descriptors. The
/// thread has ended when this returns. `work` must use no descriptor from outside.
///
/// # Errors
/// EAGAIN if no thread could be started; ENOSYS before Linux 5.9; the answer of a seccomp filter.
pub fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, SysError> {
    if !has_threads() {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("tiexec".to_owned()).stack_size(stack_size());
        let alone = thread.spawn_scoped(scope, || {
            own_descriptors()?;
            Ok(work())
        });
        let alone = alone.map_err(|error| SysError {
            call: "clone",
            errno: Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)),
        })?;
        alone.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// `close_range(0, ~0, CLOSE_RANGE_UNSHARE)` — gives the calling thread an empty table of descriptors, for good. The
/// process's descriptors stay open for the other threads; the calling thread must not use them any more.
///
/// # Errors
/// ENOSYS before Linux 5.9; the answer of a seccomp filter.
pub fn own_descriptors() -> Result<(), SysError> {
    // SAFETY: the descriptors that this thread no longer sees stay valid for their owners, the other threads.
    let answer =
        unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    check("close_range(CLOSE_RANGE_UNSHARE)", answer)?;
    occupy_standard_descriptors();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_threads_descriptors_are_its_own() {
        let (_reader, mut writer) = std::io::pipe().expect("a pipe");
        let path = |fd: i32| std::fs::read_link(format!("/proc/thread-self/fd/{fd}"));
        let theirs = std::thread::scope(|scope| {
            // This test has another thread, whatever the test runner does.
            let (end, ended) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || ended.recv());
            let opened = apart(|| {
                let file = std::fs::File::open("/proc/self/status").expect("a file");
                (file.as_raw_fd(), path(file.as_raw_fd()).expect("it is open"))
            });
            drop(end);
            opened.expect("from Linux 5.9 on")
        });
        assert!(path(theirs.0).ok() != Some(theirs.1), "the file is open here");
        // This thread's table has not changed.
        writer.write_all(b"x").expect("a reader is there");
    }

    #[test]
    fn signals_wait_and_come_afterwards() {
        let pending = || {
            let mut set = signal_set(&[]);
            // SAFETY: the set is live.
            unsafe { libc::sigpending(&raw mut set) };
            // SAFETY: the set is live and initialised.
            unsafe { libc::sigismember(&raw const set, libc::SIGWINCH) == 1 }
        };
        while_signals_wait(|| {
            // SAFETY: SIGWINCH is ignored by default; blocked, it waits.
            unsafe { libc::raise(libc::SIGWINCH) };
            // The kernel drops an ignored signal that nobody blocks, and keeps a blocked one.
            assert!(pending());
        });
        assert!(!pending());
    }
}
