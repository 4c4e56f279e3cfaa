//! Dying and failing on purpose, for the tests: `TIEXEC_FAULT=die-after-setregs:N`, `die-after-stop:N`,
//! `die-after-write:N`, or `fail-call:N`.
//!
//! Only in builds with the feature `fault-injection`; in others these functions are empty.

/// A place where the tests may want this process dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// Right after a register set was installed in the tracee.
    SetRegisters,
    /// Right after a stop of the tracee was seen.
    Stop,
    /// Right after the tracee's memory was written.
    Write,
}

#[cfg(feature = "fault-injection")]
pub(crate) fn at(point: Point) {
    let (index, name) = match point {
        Point::SetRegisters => (0, "die-after-setregs"),
        Point::Stop => (1, "die-after-stop"),
        Point::Write => (2, "die-after-write"),
    };
    if is_due(index, name) {
        let _never_fails = tiexec_sys::process::kill(tiexec_sys::process::this());
    }
}

/// Whether the remote call about to be made is to be one that the kernel refuses, and not made.
#[cfg(feature = "fault-injection")]
pub(crate) fn fails_call() -> bool {
    is_due(3, "fail-call")
}

#[cfg(feature = "fault-injection")]
fn is_due(index: usize, name: &str) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static SEEN: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
    let seen = SEEN[index].fetch_add(1, Ordering::Relaxed) + 1;
    let Ok(wish) = std::env::var("TIEXEC_FAULT") else { return false };
    wish.split_once(':').is_some_and(|(at, n)| at == name && n.parse() == Ok(seen))
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn fails_call() -> bool {
    false
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn at(_point: Point) {}
