//! Reads a PMU's counts of instruction fetches by perf_event_open(2), for `advise`. Most virtual machines
//! have no PMU that may be used; then every count is absent.

use std::fs::File;
use std::io::Read;

use rustix::process::Pid;
use tiexec_core::pmu_counts::Counted;

use crate::perf_event::{
    Attributes, EXCLUDE_HV, EXCLUDE_KERNEL, Heirs, PERF_COUNT_HW_CPU_CYCLES, PERF_TYPE_HARDWARE,
    open_inherited,
};

const PERF_COUNT_HW_INSTRUCTIONS: u64 = 1;
const PERF_TYPE_HW_CACHE: u32 = 3;
/// `PERF_COUNT_HW_CACHE_ITLB | OP_READ << 8 | RESULT_MISS << 16`: perf's `iTLB-load-misses`.
const ITLB_READ_MISS: u64 = 4 | 1 << 16;
const PERF_TYPE_RAW: u32 = 4;

/// Counts for some threads and the tasks that they start.
#[derive(Debug)]
pub struct Counters {
    cycles: Vec<File>,
    instructions: Vec<File>,
    itlb_misses: Vec<File>,
    walk_cycles: Vec<File>,
}

impl Counters {
    /// Starts to count whatever can be counted. `walks` is the raw event for cycles in which the
    /// processor walks the page tables for instructions (`walk_event` of the model of the TLB).
    pub fn open(tids: &[Pid], heirs: Heirs, walks: Option<u64>) -> Self {
        let count = |kind, config| {
            let flags = EXCLUDE_KERNEL | EXCLUDE_HV;
            let attributes = Attributes { kind, config, flags, ..Attributes::default() };
            let open =
                |&tid: &Pid| open_inherited(tid, -1, heirs, &attributes).ok().map(File::from);
            let events: Option<Vec<File>> = tids.iter().map(open).collect();
            events.unwrap_or_default()
        };
        Self {
            cycles: count(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES),
            instructions: count(PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS),
            itlb_misses: count(PERF_TYPE_HW_CACHE, ITLB_READ_MISS),
            walk_cycles: walks.map_or_else(Vec::new, |event| count(PERF_TYPE_RAW, event)),
        }
    }

    /// Returns the counts so far.
    pub fn read(&self) -> Counted {
        let sum = |events: &[File]| {
            let read = |mut event: &File| {
                let mut count = [0; 8];
                event.read_exact(&mut count).ok().map(|()| u64::from_ne_bytes(count))
            };
            if events.is_empty() { None } else { events.iter().map(read).sum() }
        };
        Counted {
            cycles: sum(&self.cycles),
            instructions: sum(&self.instructions),
            itlb_misses: sum(&self.itlb_misses),
            walk_cycles: sum(&self.walk_cycles),
        }
    }
}
