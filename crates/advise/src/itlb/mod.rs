//! The model of the instruction TLB: from where a program was seen to execute, to how often it misses,
//! as its text is now and on huge pages.
//!
//! ```text
//! samples ─► Popularity (Good–Turing, Chao) ─► predict (Che) ─► Judgement
//!                         Itlb (CPUID, MIDR, tables) ─┘
//! ```
//!
//! *References.* Consecutive instructions lie in one page, and calls go back and forth between a few:
//! neither can be seen by sampling, and neither misses. A reference can miss only if its page is not in
//! use anyway. The model takes such references as independent of each other, in proportion to the time
//! spent in each page; [`per_kilo_instruction`] tells how often they come about, a constant found on
//! recorded traces of cc1, gdb and python3 (`tests/itlb`). On those, with the 128 entries that most
//! x86 parts have, predictions from samples are within 20 % of an exact simulation. On others they have
//! been twice as high, where a program goes through phases that use little text each (rustc as it
//! starts), and nine times too low, where a server goes round through more text than fits (mariadbd).
//! [`MODEL_FACTORS`] tells that range. The model predicts that text that fits does fit.
//!
//! *What is not modelled*: sets (LRU over all entries is assumed), other processes and the kernel on
//! the same processor, prefetching of translations, several threads on different processors (their
//! pages count together).

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
    /// Makes the description of what a processor says, and of what is known of its kind.
    pub fn of(processor: &Processor) -> Self {
        match processor {
            Processor::Cpuid(leaves) => cpuid::from_cpuid(leaves),
            Processor::Midr(midr) => midr.map_or(Self::USUAL, processors::from_midr),
        }
    }
}

/// The least and the most by which true misses were found to differ from predicted ones, as factors: on recorded traces of twelve
/// programs, with 64 and 128 entries. A server that goes round and round through more text than fits misses far more
/// than its popularity tells; a program in phases misses less.
pub const MODEL_FACTORS: [f64; 2] = [0.5, 10.0];

/// References to a page that is not in use anyway, in a thousand instructions, as a first level of this
/// many entries for base pages sees them. A smaller one sees more: of what a large one has in use, it
/// has thrown a part out.
pub fn per_kilo_instruction(entries: u32) -> f64 {
    const OF_128: f64 = 1.64;
    const GROWTH: f64 = 0.7;
    OF_128 * (128.0 / f64::from(entries.clamp(16, 128))).powf(GROWTH)
}
