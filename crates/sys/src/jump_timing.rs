//! Times jumps on this very machine: over few and many places, in text on base pages and in text on huge pages. The times show
//! how many entries the levels of the instruction TLB have, and what a miss costs: see [`tiexec_core::tlb_sweep`].
//!
//! A processor fetches ahead along the jumps that it predicts, which hides the TLB's first level. So each jump reads its
//! target from a sequence without pattern, and nearly every prediction fails.

use std::time::{Duration, Instant};

use rustix::mm::ProtFlags;
use tiexec_core::addr::Pages;
use tiexec_core::tlb_sweep::{self, Point, Sweeps};

use crate::arch;
use crate::error::{Errno, SysError};
use crate::memory::FillMapping;
use crate::schedule;
use crate::timed_copy::{Kind, TimedCopy, without_order, without_pattern};

/// The numbers of places. The most base pages are far beyond any instruction TLB.
const PLACES: [u32; 20] = [
    8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192,
];
/// The most places of [`PLACES`].
const MOST: usize = 8192;
/// The most huge pages. All of them are one, mapped many times.
const MOST_HUGE: usize = 1024;
/// The largest huge page for which this is measured, in bytes.
const LARGEST: u64 = 32 << 20;
/// Measurements, each in other memory: the host may map some of it by huge pages, and another load on the core may last longer
/// than one measurement.
const COPIES: usize = 3;
/// After this processor time no further copy is made: where memory is fragmented, the kernel takes seconds to find huge pages for
/// one. Time in which others use the processor does not count.
const LONGEST: Duration = Duration::from_secs(3);
/// Rounds alternate between the kinds, so that another load on the core does not slow down only one of them.
const ROUNDS: usize = 12;
/// Jumps in one timing.
const JUMPS: usize = 4096;
/// The bytes of a line of the cache.
pub(crate) const LINE: usize = tlb_sweep::LINE as usize;
/// The offset of the return, in bytes: in the first line, behind the place.
const RETURN_AT: usize = 32;

/// Returns the most memory that [`measure`] takes for its time, in bytes: the copies of two rounds.
pub fn memory(pages: Pages) -> u64 {
    let text = (MOST as u64 * pages.base.bytes()).next_multiple_of(pages.pmd.bytes());
    2 * (2 * text + 2 * pages.pmd.bytes())
}

/// Measures, in up to three copies of the text. Takes 0.7 s, and [`memory`] for that time. Where one copy takes seconds, it
/// is enough.
///
/// # Errors
/// ENOSYS if a huge page is larger than 32 MiB; ENOMEM and the like.
pub fn measure(pages: Pages) -> Result<Sweeps, SysError> {
    if pages.pmd.bytes() > LARGEST {
        return Err(SysError { call: "measure", errno: Errno::NOSYS });
    }
    let begun = processor_time();
    let mut all = Vec::with_capacity(COPIES);
    // Keep the copies until the next ones exist; otherwise those would get the same memory again.
    let mut before = None;
    while all.is_empty() || all.len() < COPIES && processor_time() < begun + LONGEST {
        let texts = Texts::new(pages)?;
        all.push(texts.sweep());
        before = Some(texts);
    }
    drop(before);
    Ok(Sweeps(all))
}

/// Returns the processor time that this thread has used.
fn processor_time() -> Duration {
    schedule::cpu_time(schedule::this_thread()).unwrap_or_default()
}

/// The text of one copy, in each kind of memory.
struct Texts {
    near: Jumps,
    base: Jumps,
    huge: Jumps,
    far: Option<Jumps>,
}

impl Texts {
    fn new(pages: Pages) -> Result<Self, SysError> {
        let base = usize::try_from(pages.base.bytes()).unwrap_or(usize::MAX);
        let jumps = |apart, kind| Jumps::new(MOST, apart, pages, kind);
        Ok(Self {
            near: jumps(LINE, Kind::Base)?,
            base: jumps(base, Kind::Scattered)?,
            huge: jumps(base, Kind::Huge)?,
            // A limit on address space may forbid the thousands of mappings.
            far: Jumps::far(MOST_HUGE, pages).ok(),
        })
    }

    fn sweep(&self) -> Vec<Point> {
        let all = [Some(&self.near), Some(&self.base), Some(&self.huge), self.far.as_ref()];
        let warm_ups = PLACES.iter().map(|&places| without_pattern(places as usize));
        let warm_ups: Vec<Vec<usize>> = warm_ups.collect();
        let mut order = without_order();
        let mut best = [[f64::INFINITY; 4]; PLACES.len()];
        for _ in 0..ROUNDS {
            for (best, warm_up) in best.iter_mut().zip(&warm_ups) {
                for (best, jumps) in best.iter_mut().zip(all) {
                    let time = jumps.map_or(f64::INFINITY, |jumps| jumps.time(warm_up, &mut order));
                    *best = best.min(time);
                }
            }
        }
        let point = |(places, [near_ns, base_ns, huge_ns, far_ns]): (u32, [f64; 4])| Point {
            places,
            near_ns,
            base_ns,
            huge_ns,
            far_ns: Some(far_ns).filter(|time| time.is_finite()),
        };
        PLACES.into_iter().zip(best).map(point).collect()
    }
}

/// Text of which each place jumps to the next address of a sequence.
pub(crate) struct Jumps {
    text: TimedCopy,
    /// The address of each place.
    places: Vec<usize>,
}

impl Jumps {
    /// Makes text with one place in each piece of `apart` bytes.
    pub(crate) fn new(
        count: usize,
        apart: usize,
        pages: Pages,
        kind: Kind,
    ) -> Result<Self, SysError> {
        let places: Vec<usize> =
            (0..count).map(|piece| piece * apart + line(piece, apart)).collect();
        let len = (count * apart).next_multiple_of(pmd(pages)?);
        let text = TimedCopy::filled([len, 1], pages, kind, EXECUTABLE, |fill| {
            places.iter().try_for_each(|&place| fill.write(place, arch::JUMP_TO_NEXT))?;
            fill.write(RETURN_AT, arch::RETURN)
        })?;
        Ok(Self::at(text, places))
    }

    /// Maps one huge page `count` times. Each place is in another huge page, and in another line of the cache.
    fn far(count: usize, pages: Pages) -> Result<Self, SysError> {
        let (len, base) = (pmd(pages)?, usize::try_from(pages.base.bytes()).unwrap_or(usize::MAX));
        // A host may split the huge pages. So neighbours use other base pages of theirs, which fall into other sets of the TLB.
        let place = |piece: usize| piece % (len / base) * base + line(piece, base);
        let fill = |fill: &mut FillMapping| {
            (0..count).try_for_each(|piece| fill.write(place(piece), arch::JUMP_TO_NEXT))?;
            fill.write(RETURN_AT, arch::RETURN)
        };
        let text = TimedCopy::filled([len, count], pages, Kind::Huge, EXECUTABLE, fill)?;
        Ok(Self::at(text, (0..count).map(|piece| piece * len + place(piece)).collect()))
    }

    fn at(text: TimedCopy, mut places: Vec<usize>) -> Self {
        let start = text.start().addr().get();
        places.iter_mut().for_each(|place| *place += start);
        Self { text, places }
    }

    /// Returns the nanoseconds of one jump among the first places, in an order that no branch predictor has learnt; infinity if there are
    /// too few places. `warm_up` has the number of each of these places once.
    pub(crate) fn time(&self, warm_up: &[usize], order: &mut impl Iterator<Item = usize>) -> f64 {
        let count = warm_up.len();
        let Some(places) = self.places.get(..count) else { return f64::INFINITY };
        let end = self.text.start().addr().get() + RETURN_AT;
        let every: Vec<usize> = warm_up.iter().map(|&place| places[place]).chain([end]).collect();
        let targets = order.take(JUMPS).map(|number| places[number % count]);
        let sequence: Vec<usize> = targets.chain([end]).collect();
        // SAFETY: the text begins with a place. It reads an address from the memory that its argument points to, goes on to the
        // next address, and jumps. Nothing else of the registers, the stack and the memory changes.
        let code: extern "C" fn(*const usize) = unsafe { std::mem::transmute(self.text.start()) };
        // All addresses of the sequence are places of the text, until the last one returns.
        // The other text's lines have gone through the cache.
        code(every.as_ptr());
        let begun = Instant::now();
        code(sequence.as_ptr());
        begun.elapsed().as_secs_f64() * 1e9 / JUMPS as f64
    }
}

/// Returns the offset of the place in a piece of `apart` bytes. As many places as a piece has lines use each line once. The next ones use
/// them in another order: caches fold the address bits of the piece into the number of their set.
fn line(piece: usize, apart: usize) -> usize {
    let lines = apart / LINE;
    (piece ^ (piece / lines) ^ (piece / lines / lines)) % lines * LINE
}

const EXECUTABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::EXEC);

fn pmd(pages: Pages) -> Result<usize, SysError> {
    usize::try_from(pages.pmd.bytes())
        .map_err(|_overflow| SysError { call: "measure", errno: Errno::INVAL })
}
