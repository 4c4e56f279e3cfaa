//! Measures the gain of huge text on this very machine: jumps through generated code on base pages, and on huge pages.
//!
//! Jumps are a little faster on huge pages even if the hypervisor splits these, because walks of the page tables are
//! shorter: see [`split_pages`](crate::split_pages).

use std::time::{Duration, Instant};

use rustix::mm::ProtFlags;
use tiexec_core::addr::Pages;

use crate::arch;
use crate::error::{Errno, SysError};
use crate::timed_copy::{TimedCopy, without_pattern, zeroes};

/// Nanoseconds for a jump to another page, the best of several rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct JumpTimes {
    /// In text on base pages.
    pub base_ns: f64,
    /// In text on huge pages.
    pub huge_ns: f64,
}

/// The most measurements, each in other memory.
const COPIES: usize = 5;
/// The fewest measurements, which are enough if they agree.
const ENOUGH: usize = 3;
/// Measurements agree if the gains of a jump differ by at most this share of the greatest.
const DIFFER: f64 = 0.2;
/// After this time no further copy is made: where memory is fragmented, the kernel takes seconds to find huge pages for
/// one.
const LONGEST: Duration = Duration::from_secs(3);
/// The memory that [`measure`] uses while it runs, in bytes.
pub const MEMORY: u64 = 5 * LEN as u64;

/// The amount of text that the jumps go through, in bytes. On base pages it is far beyond any instruction TLB, on huge
/// pages well within the second level.
const LEN: usize = 32 << 20;
/// Rounds alternate between the two kinds, so that another load on the core does not slow down only one of them.
const ROUNDS: usize = 6;
/// Runs in a round.
const RUNS: usize = 4;

/// Measures both, three to five times: the memory may lie on huge pages of the host or not, and another load on the core
/// may last longer than one measurement. Takes 0.2 to 0.5 s, and 160 MiB for that time. Where each measurement takes
/// seconds, one is enough.
///
/// # Errors
/// ENOSYS if one huge page is more than all the text; ENOMEM and the like.
pub fn measure(pages: Pages) -> Result<Vec<JumpTimes>, SysError> {
    if pages.pmd.bytes() > LEN as u64 {
        return Err(SysError { call: "measure", errno: Errno::NOSYS });
    }
    let base = usize::try_from(pages.base.bytes())
        .map_err(|_overflow| SysError { call: "measure", errno: Errno::INVAL })?;
    let (code, count) = chain(base)?;
    // The other code has gone through the caches, so a first run does not count.
    let time = |text: &Text| {
        text.run();
        let times = (0..RUNS).map(|_| {
            let start = Instant::now();
            text.run();
            start.elapsed().as_secs_f64() * 1e9 / count as f64
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let begun = Instant::now();
    let mut all = Vec::with_capacity(COPIES);
    // Keep the copies until the next ones exist; otherwise those would get the same memory again.
    let mut before = None;
    while all.is_empty() || all.len() < COPIES && !agree(&all) && begun.elapsed() < LONGEST {
        let mut best = JumpTimes { base_ns: f64::INFINITY, huge_ns: f64::INFINITY };
        let both = (Text::of(&code, pages, false)?, Text::of(&code, pages, true)?);
        for _ in 0..ROUNDS {
            best.base_ns = best.base_ns.min(time(&both.0));
            best.huge_ns = best.huge_ns.min(time(&both.1));
        }
        all.push(best);
        before = Some(both);
    }
    drop(before);
    Ok(all)
}

/// Returns whether there are enough measurements, and they agree.
fn agree(all: &[JumpTimes]) -> bool {
    let gains = || all.iter().map(|times| times.base_ns - times.huge_ns);
    let least = gains().fold(f64::INFINITY, f64::min);
    let most = gains().fold(0.0, f64::max);
    all.len() >= ENOUGH && most - least <= most * DIFFER
}

/// Generates one jump on every page, each to another page in an order without pattern. The last one returns. The first
/// is at byte 0.
///
/// # Errors
/// ENOMEM under a limit on address space.
fn chain(page: usize) -> Result<(Vec<u8>, usize), SysError> {
    let count = LEN / page;
    let order = without_pattern(count);
    // Use another cache line on each page; otherwise all lines would fall into one set.
    let place = |page_index: usize| {
        page_index * page + if page_index == 0 { 0 } else { page_index % 61 * 64 }
    };
    let mut code = zeroes(LEN)?;
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    for pair in order.windows(2) {
        let (from, to) = (place(pair[0]), place(pair[1]));
        put(from, &arch::jump((to as i64 - from as i64) as i32));
    }
    if let Some(&last) = order.last() {
        put(place(last), arch::RETURN);
    }
    Ok((code, count))
}

/// Generated code, mapped read and execute.
struct Text(TimedCopy);

impl Text {
    /// Makes a copy of the code, on base pages or on huge pages.
    fn of(code: &[u8], pages: Pages, huge: bool) -> Result<Self, SysError> {
        Ok(Self(TimedCopy::of(code, pages, huge, ProtFlags::READ | ProtFlags::EXEC)?))
    }

    fn run(&self) {
        // SAFETY: the copy begins with the chain: jumps that stay inside the mapping and end in a return. The chain
        // touches no register, no stack and no memory.
        let code: extern "C" fn() = unsafe { std::mem::transmute(self.0.start()) };
        code();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_measurements_that_agree_are_enough() {
        let gains = |gains: &[f64]| -> Vec<JumpTimes> {
            gains.iter().map(|gain| JumpTimes { base_ns: 5.0 + gain, huge_ns: 5.0 }).collect()
        };
        assert!(!agree(&gains(&[])) && !agree(&gains(&[10.0, 10.0])));
        assert!(agree(&gains(&[10.0, 8.5, 9.0])) && !agree(&gains(&[10.0, 7.0, 9.0])));
        // If huge pages gain nothing, the differences are noise.
        assert!(agree(&gains(&[0.0, 0.0, 0.0])) && !agree(&gains(&[0.1, -0.1, 0.0])));
    }

    #[test]
    fn the_chain_visits_every_page_once_and_returns() {
        let page = 4096;
        let (code, count) = chain(page).expect("memory");
        let (mut at, mut visited) = (0usize, std::collections::HashSet::new());
        loop {
            assert!(visited.insert(at / page), "page {} twice", at / page);
            if code[at..].starts_with(arch::RETURN) {
                break;
            }
            let distance = arch::jump_distance(&code[at..]).expect("a jump");
            at = (at as i64 + i64::from(distance)) as usize;
        }
        assert_eq!(visited.len(), count);
    }
}
