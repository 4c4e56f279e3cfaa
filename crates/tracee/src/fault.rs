//! Kills this process, or fails calls, for the tests: `TIEXEC_FAULT=die-after-setregs:N`, `die-after-stop:N`,
//! `die-after-write:N`, `die-after-setmask:N`, `fail-call:N`, `stand-after-stop:N`, which stops this process
//! there until SIGCONT, `continue-before-seize:N`, which lets the tracee go on after a stopping signal, or
//! `work-before-arming:N`, which takes processor time.
//!
//! Only in builds with the feature `fault-injection`; in others these functions are empty.

#[cfg(feature = "fault-injection")]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tiexec_sys::Pid;

use crate::arch::Call;

/// A point at which a test may kill this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// Right after a register set was installed in the tracee.
    SetRegisters,
    /// Right after a stop of the tracee was seen.
    Stop,
    /// Right after the tracee's memory was written.
    Write,
    /// Right after the tracee's signal mask was set.
    SetMask,
}

#[cfg(feature = "fault-injection")]
pub(crate) fn at(point: Point) {
    let (index, name) = match point {
        Point::SetRegisters => (0, "die-after-setregs"),
        Point::Stop => (1, "die-after-stop"),
        Point::Write => (2, "die-after-write"),
        Point::SetMask => (3, "die-after-setmask"),
    };
    if point == Point::Stop && is_due(5, "stand-after-stop") {
        let _never_fails = tiexec_sys::process::stop_this();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    if is_due(index, name) {
        let _never_fails = tiexec_sys::process::kill(tiexec_sys::process::this());
    }
}

/// Sends SIGCONT to the thread that is about to be seized.
#[cfg(feature = "fault-injection")]
pub(crate) fn before_seize(tid: Pid) {
    if is_due(6, "continue-before-seize") {
        let _gone = tiexec_sys::process::signal_thread(tid, tid, tiexec_sys::c::SIGCONT);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Works for longer than a watcher waits before its first look at a program.
#[cfg(feature = "fault-injection")]
pub(crate) fn before_arming() {
    if is_due(7, "work-before-arming") {
        let end = std::time::Instant::now() + std::time::Duration::from_millis(1500);
        while std::time::Instant::now() < end {}
    }
}

/// Returns whether the next remote call must fail, as if the kernel refused it, and not be made.
#[cfg(feature = "fault-injection")]
pub(crate) fn fails_call() -> bool {
    FAIL_NEXT.swap(false, Ordering::Relaxed) || is_due(4, "fail-call")
}

/// True if the next call must fail too.
#[cfg(feature = "fault-injection")]
static FAIL_NEXT: AtomicBool = AtomicBool::new(false);

/// Returns the call to make in a batch instead of `call`. If `call` must fail, the returned call has a number that does
/// not exist. TiExec later makes `call` by itself to learn the reason. Then `call` must fail again.
#[cfg(feature = "fault-injection")]
pub(crate) fn in_batch(call: Call) -> Call {
    const NONE: i64 = -1;
    if !is_due(4, "fail-call") {
        return call;
    }
    FAIL_NEXT.store(true, Ordering::Relaxed);
    Call { number: NONE, ..call }
}

#[cfg(feature = "fault-injection")]
fn is_due(index: usize, name: &str) -> bool {
    static SEEN: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
    let seen = SEEN[index].fetch_add(1, Ordering::Relaxed) + 1;
    let Ok(wish) = std::env::var("TIEXEC_FAULT") else { return false };
    wish.split_once(':').is_some_and(|(at, n)| at == name && n.parse() == Ok(seen))
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn fails_call() -> bool {
    false
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn in_batch(call: Call) -> Call {
    call
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn before_seize(_tid: Pid) {}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn before_arming() {}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn at(_point: Point) {}
