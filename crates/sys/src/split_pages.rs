//! Measures whether a huge page of this machine is one entry of the TLB.
//!
//! A hypervisor may map the memory of its guest by base pages. The processor then splits each huge page of the guest:
//! the TLB holds one entry for each of its base pages in use. No setting inside the guest shows this. Only a timing
//! does: loads from more base pages than the first level of the data TLB has entries for. Source: "AMD64 Architecture
//! Programmer's Manual", volume 2, the section on nested paging.

use std::time::Instant;

use rustix::mm::ProtFlags;
use tiexec_core::addr::Pages;

use crate::error::{Errno, SysError};
use crate::process;
use crate::timed_copy::{TimedCopy, without_pattern};

/// Nanoseconds for a load that waits for the load before it, the best of several rounds. All the loaded lines fit the
/// first level of the data cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadTimes {
    /// From few base pages.
    pub near_ns: f64,
    /// From many base pages.
    pub base_ns: f64,
    /// From as many places in huge pages.
    pub huge_ns: f64,
}

/// The number of measurements, each in other memory: the host may map some of it by huge pages.
pub const COPIES: usize = 5;

/// The number of pages that are loaded from: more than the first level of any data TLB has entries (Zen 4: 72, Golden
/// Cove: 96), and no more than the first level of the data cache has lines (32 KiB: 512).
const PLACES: usize = 320;
/// Base pages from one place to the next: neighbours can share an entry (AMD joins up to four, Arm's contiguous bit sixteen).
const APART: usize = 4;
/// The number of places for which any first level has entries.
const NEAR: usize = 8;
/// The most memory that one copy takes, in bytes.
const MOST: usize = 32 << 20;
/// Loads in one timing.
const LOADS: usize = PLACES * 32;
/// Rounds alternate between the kinds, so that another load on the core does not slow down only one of them.
const ROUNDS: usize = 8;
/// Many pages count as slower than few from this share of a load's time on.
const SLOWER: f64 = 0.5;
const LINE: usize = 64;

impl LoadTimes {
    /// Returns whether huge pages are as slow as base pages; `None` if base pages are not slow enough to decide.
    pub fn is_split(&self) -> Option<bool> {
        let cost = self.base_ns - self.near_ns;
        (cost > self.near_ns * SLOWER).then(|| self.huge_ns - self.near_ns > cost / 2.0)
    }
}

/// Returns the answer of most of the times; `None` if they do not decide.
pub fn are_split(times: &[LoadTimes]) -> Option<bool> {
    let count = |answer| times.iter().filter(|times| times.is_split() == Some(answer)).count();
    [true, false].into_iter().find(|&answer| count(answer) * 2 > times.len())
}

/// Measures, and returns whether huge pages are split here; `None` if that cannot be decided.
pub fn are_split_here(pages: Pages) -> Option<bool> {
    measure(pages).ok().and_then(|times| are_split(&times))
}

/// Returns the most memory that a measurement takes for its time, in bytes: two patterns, and the copies of two rounds.
pub fn memory(pages: Pages) -> u64 {
    let one = (PLACES * APART) as u64 * pages.base.bytes();
    8 * one.next_multiple_of(pages.pmd.bytes())
}

/// Measures the load times. Takes about 10 ms, and [`memory`] for that time.
///
/// # Errors
/// EPERM if huge pages are forbidden to this process (`PR_SET_THP_DISABLE`); ENOSYS if a huge page is larger than 32
/// MiB; ENOMEM and the like.
pub fn measure(pages: Pages) -> Result<[LoadTimes; COPIES], SysError> {
    let wrong = |errno| SysError { call: "measure", errno };
    if process::thp_disabled() {
        return Err(SysError { call: "prctl(PR_GET_THP_DISABLE)", errno: Errno::PERM });
    }
    let overflow = |_| wrong(Errno::INVAL);
    let base = usize::try_from(pages.base.bytes()).map_err(overflow)?;
    let pmd = usize::try_from(pages.pmd.bytes()).map_err(overflow)?;
    let len = (PLACES * APART * base).next_multiple_of(pmd);
    if len > MOST {
        return Err(wrong(Errno::NOSYS));
    }
    let (near, far) = (chain(len, base, NEAR)?, chain(len, base, PLACES)?);
    let copy = |bytes, huge| Chain::of(bytes, pages, huge);
    let unknown = f64::INFINITY;
    let mut all = [LoadTimes { near_ns: unknown, base_ns: unknown, huge_ns: unknown }; COPIES];
    // Keep the copies until the next ones exist; otherwise those would get the same memory again.
    let mut before = None;
    for best in &mut all {
        let copies = (copy(&near, false)?, copy(&far, false)?, copy(&far, true)?);
        for _ in 0..ROUNDS {
            best.near_ns = best.near_ns.min(copies.0.time());
            best.base_ns = best.base_ns.min(copies.1.time());
            best.huge_ns = best.huge_ns.min(copies.2.time());
        }
        before = Some(copies);
    }
    drop(before);
    Ok(all)
}

/// Returns `len` bytes with a chain of `count` words in them, each on its own page and in another set of the cache than
/// its neighbours. Each word holds the offset of the next word, in bytes; the last word holds that of the first.
///
/// # Errors
/// ENOMEM under a limit on address space.
fn chain(len: usize, base: usize, count: usize) -> Result<Vec<u8>, SysError> {
    let lines = base / LINE;
    let places: Vec<usize> = without_pattern(count)
        .into_iter()
        .map(|index| index * APART * base + index % lines * LINE)
        .collect();
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_none| SysError { call: "malloc", errno: Errno::NOMEM })?;
    bytes.resize(len, 0);
    for (index, &place) in places.iter().enumerate() {
        let next = places[(index + 1) % count];
        bytes[place..place + 8].copy_from_slice(&(next as u64).to_ne_bytes());
    }
    Ok(bytes)
}

/// A chain of loads, mapped for reading.
struct Chain(TimedCopy);

impl Chain {
    fn of(bytes: &[u8], pages: Pages, huge: bool) -> Result<Self, SysError> {
        Ok(Self(TimedCopy::of(bytes, pages, huge, ProtFlags::READ)?))
    }

    /// Returns the nanoseconds of one load.
    fn time(&self) -> f64 {
        let start = self.0.start().as_ptr();
        let mut at = 0;
        let mut run = || {
            for _ in 0..LOADS {
                // SAFETY: each word of the chain is the offset of an aligned word of the copy, and the first word is at
                // 0; nothing writes to the copy.
                at = unsafe { start.wrapping_add(at).cast::<u64>().read_volatile() } as usize;
            }
        };
        // The other chain's lines have gone through the cache, so a first run does not count.
        run();
        let begun = Instant::now();
        run();
        begun.elapsed().as_secs_f64() * 1e9 / LOADS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_each_place_once_and_comes_back() {
        let (len, base) = (8 << 20, 4096);
        for count in [NEAR, PLACES] {
            let bytes = chain(len, base, count).expect("memory");
            let (mut at, mut pages) = (0, std::collections::HashSet::new());
            while pages.insert(at / base) {
                let word = bytes[at..at + 8].try_into().expect("eight bytes");
                at = usize::try_from(u64::from_ne_bytes(word)).expect("an offset");
            }
            assert_eq!((at, pages.len()), (0, count));
        }
    }

    #[test]
    fn what_is_as_slow_as_base_pages_is_split() {
        let times = |near_ns, base_ns, huge_ns| LoadTimes { near_ns, base_ns, huge_ns };
        // Measured in a guest whose host maps it by base pages (AMD EPYC of family 25).
        let split = times(1.1, 3.4, 3.2);
        let whole = times(1.1, 3.4, 1.2);
        let no_answer = times(1.1, 1.2, 1.1);
        assert_eq!(split.is_split(), Some(true));
        assert_eq!(whole.is_split(), Some(false));
        assert_eq!(no_answer.is_split(), None);
        assert_eq!(are_split(&[split, split, whole]), Some(true));
        assert_eq!(are_split(&[split, whole, whole]), Some(false));
        assert_eq!(are_split(&[split, whole, no_answer]), None);
    }
}
