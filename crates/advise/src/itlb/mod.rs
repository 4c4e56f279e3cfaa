//! The model of the instruction TLB: estimates from samples how often a program misses, with its text as it is now and
//! on huge pages.
//!
//! ```text
//! samples ─► Popularity (Good–Turing, Chao) ─► predict (Che) ─► Judgement
//!                         Itlb (CPUID, MIDR, tables) ─┘
//! ```
//!
//! *References.* Consecutive instructions lie in one page, and calls alternate between a few pages. Samples do not show
//! such references, and they do not miss. A reference can miss only if its page is not in use at that moment. The model
//! takes such references as independent of each other, in proportion to the time spent in each page;
//! [`per_kilo_instruction`] gives their frequency, a constant found on recorded traces of cc1, gdb and python3
//! (`tests/itlb`). On these traces, with the 128 entries that most x86 parts have, predictions from samples are within
//! 20 % of an exact simulation. Other predictions were wrong by more. They were twice too high for a program with
//! phases that use little text each (rustc as it starts). They were nine times too low for a server that cycles through
//! more text than fits (mariadbd). [`MODEL_FACTORS`] is that range. The model predicts that text that fits does fit.
//!
//! *Not modelled*: sets (LRU over all entries is assumed), other processes and the kernel on the same processor,
//! prefetching of translations, several threads on different processors (their pages count together).

mod che;
mod cpuid;
mod judge;
mod popularity;
mod processors;
mod tlb;

use tiexec_core::processor::Processor;

pub use che::{Model, Shares, predict};
pub use judge::{Evidence, Judgement, MissTime, NOT_WORTH_IT, Verdict};
pub use popularity::{Footprint, Popularity, footprint};
pub use processors::walk_event;
pub use tlb::{Itlb, Level, Source};

impl Itlb {
    /// Describes the TLB of a processor, from the processor's own data and from tables.
    pub fn of(processor: &Processor) -> Self {
        match processor {
            Processor::Cpuid(leaves) => cpuid::from_cpuid(leaves),
            Processor::Midr(midr) => midr.map_or(Self::USUAL, processors::from_midr),
        }
    }
}

/// The smallest and the largest ratio of true to predicted misses, on recorded traces of twelve programs, with 64 and
/// 128 entries. A server that cycles through more text than fits misses far more than its popularity predicts; a
/// program in phases misses less.
pub const MODEL_FACTORS: [f64; 2] = [0.5, 10.0];

/// Returns how many references per thousand instructions go to a page that is not in use at that moment, in a first
/// level with this many entries for base pages. A smaller level sees more such references, because it has evicted some
/// of the pages that a larger one still holds.
pub fn per_kilo_instruction(entries: u32) -> f64 {
    const OF_128: f64 = 1.64;
    const GROWTH: f64 = 0.7;
    OF_128 * (128.0 / f64::from(entries.clamp(16, 128))).powf(GROWTH)
}
