//! Measures whether a huge page of this machine is one entry of the TLB.
//!
//! A hypervisor may map the memory of its guest by base pages. The processor then splits each huge page of the guest:
//! the TLB holds one entry for each of its base pages in use. No setting inside the guest shows this. Only a timing
//! does: loads from more base pages than the first level of the data TLB has entries for. Source: "AMD64 Architecture
//! Programmer's Manual", volume 2, the section on nested paging.
//!
//! A hypervisor may also split only the huge pages that its guest executes. KVM does so against the iTLB multihit, an
//! erratum of many Intel processors (`nx_huge_pages`). Loads do not show that, but jumps do. Source: the kernel's
//! Documentation/admin-guide/hw-vuln/multihit.rst.
//!
//! All three kinds of text run one sequence of jumps over as many lines, so that only the pages differ.

use std::time::Instant;

use rustix::mm::ProtFlags;
use tiexec_core::addr::Pages;

use crate::error::{Errno, SysError};
use crate::jump_timing::{Jumps, LINE};
use crate::process;
use crate::timed_copy::{Kind, TimedCopy, without_order, without_pattern, zeroes};

/// Nanoseconds for a step to another place, the best of several rounds. A step is a load that waits for the load before
/// it, or a jump that the processor cannot predict.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepTimes {
    /// In few base pages.
    pub near_ns: f64,
    /// In many base pages.
    pub base_ns: f64,
    /// At as many places in huge pages.
    pub huge_ns: f64,
}

/// The times that show how the host maps huge pages. Each one of a list was measured in other memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Timings {
    /// Loads, from more places than the first level of the data TLB has entries.
    pub loads: Vec<StepTimes>,
    /// Jumps, to more places than the first level of the instruction TLB has entries.
    pub jumps: Vec<StepTimes>,
}

/// The way in which the host maps huge pages of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostPages {
    /// The host leaves them whole.
    Whole,
    /// Jumps look as on a host that splits those with code, and loads as on one that splits none, or unclear.
    CodeSplit,
    /// The host splits them all.
    Split,
    /// The measurements do not decide, or contradict each other.
    Unclear,
}

/// The number of measurements, each in other memory: the host may map some of it by huge pages.
const COPIES: usize = 5;

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
/// Loads from many pages count as slower than those from few from this share of their time on.
const SLOWER_LOADS: f64 = 0.5;
/// As [`SLOWER_LOADS`], for jumps: the failed prediction takes most of their time.
const SLOWER_JUMPS: f64 = 0.2;
/// Huge pages are whole if they cost less than the first share of what base pages cost, and split from the second share
/// on. On a split host (AMD Zen 3) loads had shares of 0.97 to 1.03, and jumps 0.72 to 0.96, as split huge pages have shorter walks.
const SHARES: [f64; 2] = [0.3, 0.5];

impl StepTimes {
    /// Returns whether huge pages are nearly as slow as base pages; `None` if base pages are not slower by the share `slower`
    /// than few pages, or if huge pages lie in the middle.
    fn is_split(&self, slower: f64) -> Option<bool> {
        let cost = self.base_ns - self.near_ns;
        let share = (self.huge_ns - self.near_ns) / cost;
        let is_clear = cost > self.near_ns * slower && !(SHARES[0]..SHARES[1]).contains(&share);
        is_clear.then_some(share >= SHARES[1])
    }
}

impl Timings {
    /// Returns what they prove about the host.
    pub fn verdict(&self) -> HostPages {
        let loads = are_split(&self.loads, SLOWER_LOADS);
        match (loads, are_split(&self.jumps, SLOWER_JUMPS)) {
            (Some(true), Some(true) | None) => HostPages::Split,
            (Some(false) | None, Some(true)) => HostPages::CodeSplit,
            (Some(false), Some(false) | None) | (None, Some(false)) => HostPages::Whole,
            (Some(true), Some(false)) | (None, None) => HostPages::Unclear,
        }
    }
}

impl HostPages {
    /// Returns whether the host splits huge pages; `None` if that is unclear. [`CodeSplit`](Self::CodeSplit) is unclear,
    /// too: nobody has timed the jumps on a host that splits only code, or none.
    pub fn are_split(self) -> Option<bool> {
        match self {
            Self::Whole => Some(false),
            Self::Split => Some(true),
            Self::CodeSplit | Self::Unclear => None,
        }
    }
}

/// Returns the answer of most of the times; `None` if they do not decide.
fn are_split(times: &[StepTimes], slower: f64) -> Option<bool> {
    let count =
        |answer| times.iter().filter(|times| times.is_split(slower) == Some(answer)).count();
    [true, false].into_iter().find(|&answer| count(answer) * 2 > times.len())
}

/// Returns the most memory that a measurement takes for its time, in bytes: two patterns, and the copies of two rounds.
pub fn memory(pages: Pages) -> u64 {
    let one = (PLACES * APART) as u64 * pages.base.bytes();
    8 * one.next_multiple_of(pages.pmd.bytes())
}

/// Measures. Takes about 20 ms, and [`memory`] for that time.
///
/// # Errors
/// EPERM if huge pages are forbidden to this process (`PR_SET_THP_DISABLE`); ENOSYS if a huge page is larger than 32
/// MiB; ENOMEM and the like.
pub fn measure(pages: Pages) -> Result<Timings, SysError> {
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
    let copy = |bytes, kind| Chain::of(bytes, pages, kind);
    let loads = times(
        || Ok([copy(&near, Kind::Base)?, copy(&far, Kind::Base)?, copy(&far, Kind::Huge)?]),
        Chain::time,
    )?;
    drop((near, far));
    let (warm_up, mut order) = (without_pattern(PLACES), without_order());
    let jumps = |apart, kind| Jumps::new(PLACES, apart, pages, kind);
    let far = APART * base;
    let jumps = times(
        || Ok([jumps(LINE, Kind::Base)?, jumps(far, Kind::Base)?, jumps(far, Kind::Huge)?]),
        |jumps: &Jumps| jumps.time(&warm_up, &mut order),
    )?;
    Ok(Timings { loads, jumps })
}

/// Times the copies in few base pages, in many base pages and in huge pages, several times.
fn times<C>(
    make: impl Fn() -> Result<[C; 3], SysError>,
    mut time: impl FnMut(&C) -> f64,
) -> Result<Vec<StepTimes>, SysError> {
    let mut all = Vec::with_capacity(COPIES);
    // Keep the copies until the next ones exist; otherwise those would get the same memory again.
    let mut before = None;
    for _ in 0..COPIES {
        let copies = make()?;
        let mut best = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for (best, copy) in best.iter_mut().zip(&copies) {
                *best = best.min(time(copy));
            }
        }
        let [near_ns, base_ns, huge_ns] = best;
        all.push(StepTimes { near_ns, base_ns, huge_ns });
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
    let mut bytes = zeroes(len)?;
    for (index, &place) in places.iter().enumerate() {
        let next = places[(index + 1) % count];
        bytes[place..place + 8].copy_from_slice(&(next as u64).to_ne_bytes());
    }
    Ok(bytes)
}

/// A chain of loads, mapped for reading.
struct Chain(TimedCopy);

impl Chain {
    fn of(bytes: &[u8], pages: Pages, kind: Kind) -> Result<Self, SysError> {
        Ok(Self(TimedCopy::of(bytes, pages, kind, ProtFlags::READ)?))
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
        let times = |near_ns, base_ns, huge_ns| StepTimes { near_ns, base_ns, huge_ns };
        // Measured in a guest whose host maps it by base pages (AMD EPYC of family 25).
        let split = times(1.1, 3.4, 3.2);
        let whole = times(1.1, 3.4, 1.2);
        let no_answer = times(1.1, 1.2, 1.1);
        let are_split = |times: &[StepTimes]| are_split(times, SLOWER_LOADS);
        assert_eq!(split.is_split(SLOWER_LOADS), Some(true));
        assert_eq!(whole.is_split(SLOWER_LOADS), Some(false));
        assert_eq!(no_answer.is_split(SLOWER_LOADS), None);
        assert_eq!(are_split(&[split, split, whole]), Some(true));
        assert_eq!(are_split(&[split, whole, whole]), Some(false));
        assert_eq!(are_split(&[split, whole, no_answer]), None);
        assert_eq!(are_split(&[]), None);
        assert_eq!(times(1.0, 3.0, 1.8).is_split(SLOWER_LOADS), None);
    }

    #[test]
    fn jumps_decide_about_code() {
        let times = |near_ns, base_ns, huge_ns| StepTimes { near_ns, base_ns, huge_ns };
        // The first of both was measured in that guest, the second is planted.
        let [split, whole] = [times(1.1, 3.4, 3.2), times(1.1, 3.4, 1.2)];
        let [split_code, whole_code] = [times(5.8, 11.6, 10.7), times(5.8, 11.6, 5.9)];
        let unclear = times(1.0, 1.1, 1.0);
        for (loads, jumps, verdict) in [
            (split, Some(split_code), HostPages::Split),
            (split, Some(unclear), HostPages::Split),
            (split, None, HostPages::Split),
            (split, Some(whole_code), HostPages::Unclear),
            // KVM's mitigation of the iTLB multihit.
            (whole, Some(split_code), HostPages::CodeSplit),
            (unclear, Some(split_code), HostPages::CodeSplit),
            (whole, Some(whole_code), HostPages::Whole),
            (unclear, Some(whole_code), HostPages::Whole),
            (whole, Some(unclear), HostPages::Whole),
            (whole, None, HostPages::Whole),
            (unclear, None, HostPages::Unclear),
        ] {
            let jumps = jumps.into_iter().collect();
            let timings = Timings { loads: vec![loads; COPIES], jumps };
            assert_eq!(timings.verdict(), verdict, "{timings:?}");
            // Nobody acts on what only the jumps say.
            assert_eq!(verdict.are_split() == Some(true), verdict == HostPages::Split);
        }
    }

    /// Only the form of the answer is known: its figures depend on the machine.
    #[test]
    fn each_kind_is_measured() {
        let Some(pages) = crate::thp::pages() else { return eprintln!("SKIP: no huge pages") };
        match measure(pages) {
            Ok(Timings { loads, jumps }) => {
                assert_eq!((loads.len(), jumps.len()), (COPIES, COPIES));
                for StepTimes { near_ns, base_ns, huge_ns } in loads.into_iter().chain(jumps) {
                    for ns in [near_ns, base_ns, huge_ns] {
                        assert!(ns.is_finite() && ns > 0.0, "{ns}");
                    }
                }
            }
            // The machine or its settings may have no huge pages for this process.
            Err(error) => eprintln!("SKIP: {error}"),
        }
    }
}
