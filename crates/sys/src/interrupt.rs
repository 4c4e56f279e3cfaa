//! Being asked to end: for work that must be taken back first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ASKED: AtomicBool = AtomicBool::new(false);
/// How often a sleep looks whether it is over.
const LOOK: Duration = Duration::from_millis(50);

extern "C" fn note(_signal: i32) {
    ASKED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP do not end this process, but are noted. A child gets them as
/// ever: an exec undoes it. Under nohup(1) SIGHUP stays ignored.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note as extern "C" fn(i32) as libc::sighandler_t;
        // SAFETY: the handler does one atomic store, which is safe in a signal handler, and lives for ever.
        let before = unsafe { libc::signal(signal, handler) };
        if signal == libc::SIGHUP && before == libc::SIG_IGN {
            // SAFETY: no handler is run.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// Returns whether one of them has come.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Sleeps, at most until one of them has come.
pub fn sleep(time: Duration) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || asked() {
            return;
        }
        std::thread::sleep(left.min(LOOK));
    }
}
