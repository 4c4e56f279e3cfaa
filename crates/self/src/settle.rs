//! `TIEXEC=settle=30s` of a preloaded library: text that the program maps later becomes huge, too.
//!
//! A thread looks, at growing intervals, until that time is over. It is the only thing of this library that stays, and only if
//! it was asked for. It ends by itself; a child that the program forks has none.

use std::time::{Duration, Instant};

use tiexec_core::addr::AddrRange;
use tiexec_core::config::Settings;
use tiexec_core::proc::maps::FileId;
use tiexec_sys::local::{own_descriptors, while_signals_wait};
use tiexec_sys::procfs::ProcDir;

use crate::{texts, treat};

/// The first interval between two looks, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// Starts the thread, if it was asked for.
pub(crate) fn begin(settings: &Settings) {
    let until = Instant::now() + settings.settle();
    if settings.settle().is_zero() {
        return;
    }
    let settings = settings.clone();
    // The program may map more before the thread has begun.
    let seen = texts::mapped();
    // The thread inherits the mask: signals are for the program's own threads.
    let _text_mapped_later_stays = while_signals_wait(|| {
        std::thread::Builder::new()
            .name("tiexec".to_owned())
            .spawn(move || look(&settings, seen, until))
    });
}

fn look(settings: &Settings, mut seen: Vec<(AddrRange, FileId)>, until: Instant) {
    // Its descriptors are nobody else's business, such as that of a child that another thread forks.
    if own_descriptors().is_err() {
        return;
    }
    let filters = filters();
    let mut pause = FIRST;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST);
        // A sandbox that has closed meanwhile may end the program for a call of this thread.
        if self::filters() != filters {
            return;
        }
        let now = texts::mapped();
        if now != seen {
            let _nothing_is_lost = treat::at_start(settings);
            seen = now;
            pause = FIRST;
        }
    }
}

/// The seccomp filters of this thread, by their number.
fn filters() -> (u32, Option<u32>) {
    let thread = ProcDir::of(rustix::thread::gettid()).and_then(|thread| thread.status());
    thread.map_or((0, None), |status| (status.seccomp, status.seccomp_filters))
}
