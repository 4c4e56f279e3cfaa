//! Requests to end this process, for work that must be undone first.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The last signal that came; 0 for none.
static ASKED: AtomicI32 = AtomicI32::new(0);
/// The process group that receives the signal too; 0 for none.
static GROUP: AtomicI32 = AtomicI32::new(0);
/// How often a sleep checks whether it is over.
const LOOK: Duration = Duration::from_millis(50);
/// The signals that tell a process to end.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

extern "C" fn note(signal: i32) {
    if signal == libc::SIGHUP {
        // If two signals are pending, the handler of SIGHUP, the lower number, ends last. It must not hide the
        // other signal.
        let _an_end_stays = ASKED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
    } else {
        ASKED.store(signal, Ordering::SeqCst);
    }
    // These are two system calls: a signal handler may make them, and they leave errno alone.
    hand_on(signal);
}

/// Sends the signal to the group, if there is one. A group that the terminal has stopped, because it asked something
/// there, goes on and receives it.
fn hand_on(signal: i32) {
    let group = Pid::from_raw(GROUP.load(Ordering::SeqCst));
    if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
        let _it_has_ended = kill_process_group(group, signal);
        let _it_has_ended = kill_process_group(group, Signal::CONT);
    }
}

/// From now on SIGINT, SIGTERM, SIGHUP and SIGQUIT do not end this process; the handler notes them. A child gets
/// them as usual, because an exec resets the handlers. What the caller ignores stays ignored, except SIGTERM: SIGHUP
/// under nohup(1), SIGINT and SIGQUIT in the background of a script, where Ctrl-C is not meant for this process
/// (POSIX.1-2024, Shell Command Language, 2.12).
pub fn catch() {
    answer(&SIGNALS, note as extern "C" fn(i32) as libc::sighandler_t);
}

/// As [`catch`], but only SIGINT and SIGQUIT: for a process that waits for a child which the terminal signals too.
pub fn catch_interrupts() {
    answer(&[libc::SIGINT, libc::SIGQUIT], note as extern "C" fn(i32) as libc::sighandler_t);
}

/// Ends [`catch`]: from now on these signals end this process again, except one that has come already, and those that
/// the caller ignores.
pub fn release() {
    answer(&SIGNALS, libc::SIG_DFL);
}

/// Answers the signals by [`note`] or by the default action.
fn answer(signals: &[i32], handler: libc::sighandler_t) {
    for &signal in signals {
        // SAFETY: `note` does atomic accesses and two system calls, and lives for ever.
        let before = unsafe { libc::signal(signal, handler) };
        if signal != libc::SIGTERM && before == libc::SIG_IGN {
            // SAFETY: no handler runs.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// Returns whether one of these signals has come.
pub fn asked() -> bool {
    signal().is_some()
}

/// SIGHUP.
pub const HANGUP: i32 = libc::SIGHUP;

/// Returns the last of these signals, and forgets it.
pub fn take() -> Option<i32> {
    Some(ASKED.swap(0, Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// Returns the last of these signals.
pub fn signal() -> Option<i32> {
    Some(ASKED.load(Ordering::SeqCst)).filter(|&signal| signal != 0)
}

/// Waits until a child that leads its own process group ends. Sends that group each signal that comes meanwhile, or
/// has come. Does not reap the child.
pub fn wait_handing_on(leader: Pid) {
    GROUP.store(leader.as_raw_nonzero().get(), Ordering::SeqCst);
    signal().into_iter().for_each(hand_on);
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(leader), ended).is_err_and(|errno| errno == rustix::io::Errno::INTR) {}
    // The child is not reaped yet, so no other process can have its number before this line.
    GROUP.store(0, Ordering::SeqCst);
}

/// Sleeps until one of these signals has come, at most for `time`.
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
