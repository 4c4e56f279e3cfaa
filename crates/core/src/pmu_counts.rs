//! Counts of the processor's own counters.

use serde::Serialize;

/// The counts while a program ran; each is `None` without a PMU.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Counted {
    /// Cycles in user mode.
    pub cycles: Option<u64>,
    /// Instructions in user mode.
    pub instructions: Option<u64>,
    /// Instruction fetches that missed every TLB level (perf's `iTLB-load-misses`).
    pub itlb_misses: Option<u64>,
    /// Cycles in which the processor walked the page tables for instructions.
    pub walk_cycles: Option<u64>,
}

impl Counted {
    /// Returns the share of cycles that goes to walks.
    pub fn walk_share(&self) -> Option<f64> {
        let cycles = self.cycles.filter(|&cycles| cycles > 0)?;
        Some(self.walk_cycles? as f64 / cycles as f64)
    }

    /// Returns the counts since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |all: Option<u64>, before: Option<u64>| Some(all?.saturating_sub(before?));
        Self {
            cycles: less(self.cycles, before.cycles),
            instructions: less(self.instructions, before.instructions),
            itlb_misses: less(self.itlb_misses, before.itlb_misses),
            walk_cycles: less(self.walk_cycles, before.walk_cycles),
        }
    }
}
