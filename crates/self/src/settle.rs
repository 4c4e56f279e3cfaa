//! `TIEXEC=settle=30s` of a preloaded library: text that the program maps later becomes huge, too.
//!
//! A thread searches for new text, at growing intervals, until that time is over. Only this thread of the library stays
//! in the program, and only if the user asked for it. The thread ends by itself; a child that the program forks does
//! not have it.

use std::time::Instant;

use tiexec_core::addr::AddrRange;
use tiexec_core::config::Settings;
use tiexec_core::proc::maps::FileId;
use tiexec_engine::times;
use tiexec_sys::local::{own_descriptors, stack_size, while_signals_wait};
use tiexec_sys::procfs::ProcDir;

use crate::{texts, treat};

/// Starts the thread, if the user asked for it.
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
            .stack_size(stack_size())
            .spawn(move || look(&settings, seen, until))
    });
}

fn look(settings: &Settings, mut seen: Vec<(AddrRange, FileId)>, until: Instant) {
    // No other thread, and no child that another thread forks, may get the descriptors of this thread.
    if own_descriptors().is_err() {
        return;
    }
    let filters = filters();
    let mut pauses = times::LIBRARY.begin();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(pauses.take().min(left));
        // If the program has entered a sandbox meanwhile, a call of this thread may end the program.
        if self::filters() != filters {
            return;
        }
        if treat::has_memory().is_err() {
            continue;
        }
        let now = texts::mapped();
        if now != seen {
            let _nothing_is_lost = treat::at_start(settings, false);
            seen = now;
            pauses.restart();
        }
    }
}

/// The seccomp mode of this thread, and the number of its filters.
fn filters() -> (u32, Option<u32>) {
    let thread = ProcDir::of(rustix::thread::gettid()).and_then(|thread| thread.status());
    thread.map_or((0, None), |status| (status.seccomp, status.seccomp_filters))
}
