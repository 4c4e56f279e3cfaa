//! Being asked to end: for work that must be taken back first.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The signal that came last; 0 for none.
static ASKED: AtomicI32 = AtomicI32::new(0);
/// The process group that it is handed on to; 0 for none.
static GROUP: AtomicI32 = AtomicI32::new(0);
/// How often a sleep looks whether it is over.
const LOOK: Duration = Duration::from_millis(50);
/// The signals that tell a process to end.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

extern "C" fn note(signal: i32) {
    if signal == libc::SIGHUP {
        // If two signals are pending, the handler of SIGHUP, the lower number, ends last. It must not hide the end.
        let _an_end_stays = ASKED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
    } else {
        ASKED.store(signal, Ordering::SeqCst);
    }
    // A system call by itself: nothing that a signal handler may not do, and errno stays as it is.
    hand_on(signal);
}

/// Sends the group the signal, if there is one.
fn hand_on(signal: i32) {
    let group = Pid::from_raw(GROUP.load(Ordering::SeqCst));
    if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
        let _it_has_ended = kill_process_group(group, signal);
    }
}

/// Makes SIGINT, SIGTERM, SIGHUP and SIGQUIT not end this process from now on; they are noted. A child gets
/// them as ever, because an exec undoes it. Under nohup(1) SIGHUP stays ignored.
pub fn catch() {
    for signal in SIGNALS {
        let handler = note as extern "C" fn(i32) as libc::sighandler_t;
        // SAFETY: the handler does atomic accesses and one system call, and lives for ever.
        let before = unsafe { libc::signal(signal, handler) };
        if signal == libc::SIGHUP && before == libc::SIG_IGN {
            // SAFETY: no handler is run.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// Returns whether one of them has come.
pub fn asked() -> bool {
    signal().is_some()
}

/// SIGHUP.
pub const HANGUP: i32 = libc::SIGHUP;

/// Returns which of them has come last, and forgets it.
pub fn take() -> Option<i32> {
    Some(ASKED.swap(0, Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// Returns which of them has come last.
pub fn signal() -> Option<i32> {
    Some(ASKED.load(Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// Waits until a child ends that leads a process group of its own, and hands that group whatever signal
/// comes meanwhile, or has come. The child is left to be waited for.
pub fn wait_handing_on(leader: Pid) {
    GROUP.store(leader.as_raw_nonzero().get(), Ordering::SeqCst);
    signal().into_iter().for_each(hand_on);
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(leader), ended).is_err_and(|errno| errno == rustix::io::Errno::INTR) {}
    // The child is not reaped yet: until here no other process can have the number.
    GROUP.store(0, Ordering::SeqCst);
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
