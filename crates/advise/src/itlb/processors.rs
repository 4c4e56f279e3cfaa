//! Instruction TLBs by processor design, for facts that the processor does not report.
//!
//! Sources: Intel 64 and IA-32 Architectures Optimization Reference Manual (248966), the chapters on each
//! microarchitecture, and Intel's Architecture Day of 2021 for Golden Cove; AMD's Software Optimization Guides (55723
//! for family 17h, 56665 for 19h, 58455 for 1Ah), "instruction fetch"; the Technical Reference Manuals of Arm's cores,
//! "TLB organization". If the threads of a core share entries, the table gives the total.

use tiexec_core::tlb_sweep::Measured;

use super::tlb::{Itlb, Level, Source};

/// The known facts of one processor design.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    first: Level,
    second: Option<Level>,
    second_holds_data: bool,
}

impl Part {
    pub(super) fn itlb(self) -> Itlb {
        Itlb {
            name: Some(self.name),
            source: Source::Table,
            measured: Measured::UNCLEAR,
            hidden: None,
            otherwise: None,
            first: self.first,
            second: self.second,
            second_holds_data: self.second_holds_data,
        }
    }
}

const fn core(name: &'static str, base: u32, huge: u32, second: Level) -> Part {
    let first = Level::Split { base, huge };
    Part { name, first, second: Some(second), second_holds_data: true }
}

const fn zen(name: &'static str, second: u32) -> Part {
    let second = Some(Level::Shared(second));
    Part { name, first: Level::Shared(64), second, second_holds_data: false }
}

const fn arm(name: &'static str, first: Level, second: u32) -> Part {
    Part { name, first, second: Some(Level::Shared(second)), second_holds_data: true }
}

/// Looks a processor of Intel's up by display family and model.
pub(super) fn intel(family: u32, model: u32) -> Option<Part> {
    if family != 6 {
        return None;
    }
    let base_only = Level::Split { base: 512, huge: 0 };
    Some(match model {
        0x1a | 0x1e | 0x1f | 0x2e => core("Nehalem", 128, 7, base_only),
        0x25 | 0x2c | 0x2f => core("Westmere", 128, 7, base_only),
        0x2a | 0x2d => core("Sandy Bridge", 128, 8, base_only),
        0x3a | 0x3e => core("Ivy Bridge", 128, 8, base_only),
        0x3c | 0x3f | 0x45 | 0x46 => core("Haswell", 128, 8, Level::Shared(1024)),
        0x3d | 0x47 | 0x4f | 0x56 => core("Broadwell", 128, 8, Level::Shared(1536)),
        0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6 => core("Skylake", 128, 8, Level::Shared(1536)),
        0x55 => core("Skylake or Cascade Lake server", 128, 8, Level::Shared(1536)),
        0x6a | 0x6c | 0x7d | 0x7e => core("Ice Lake", 128, 16, Level::Shared(2048)),
        0x8c | 0x8d => core("Tiger Lake", 128, 16, Level::Shared(2048)),
        0x8f | 0xcf => core("Sapphire Rapids or Emerald Rapids", 256, 32, Level::Shared(2048)),
        0x97 | 0x9a | 0xb7 | 0xba | 0xbf => {
            core("Alder Lake or Raptor Lake", 256, 32, Level::Shared(2048))
        }
        _ => return None,
    })
}

/// Returns the raw perf event that counts the cycles in which an Intel processor walks the page tables
/// for instructions, for a TLB whose part is known: `ITLB_MISSES.WALK_ACTIVE` or, where it counts walks in
/// flight, the same with a counter mask of 1 (`tools/perf/pmu-events/arch/x86` of the kernel's sources).
pub fn walk_event(itlb: &Itlb) -> Option<u64> {
    const MASK_1: u64 = 1 << 24;
    Some(match itlb.name? {
        "Haswell" | "Broadwell" => 0x1085,
        name if name.contains("Rapids") || name.contains("Raptor") => MASK_1 | 0x1011,
        name if name.contains("lake") || name.contains("Lake") => MASK_1 | 0x1085,
        _ => return None,
    })
}

/// Looks a processor of AMD's up by display family.
pub(super) fn amd(family: u32) -> Option<Part> {
    Some(match family {
        0x17 | 0x18 => zen("Zen or Zen 2", 512),
        0x19 => zen("Zen 3 or Zen 4", 512),
        0x1a => zen("Zen 5", 2048),
        _ => return None,
    })
}

/// Looks an arm64 processor up by its `MIDR_EL1` (Arm ARM, D24.2.122): implementer in bits 24 to 31,
/// part in bits 4 to 15.
pub(super) fn from_midr(midr: u64) -> Itlb {
    const ARM: u64 = 0x41;
    let (implementer, number) = (midr >> 24 & 0xff, midr >> 4 & 0xfff);
    let shared = Level::Shared;
    let part = match (implementer, number) {
        (ARM, 0xd03) => arm("Cortex-A53", shared(10), 512),
        (ARM, 0xd05) => arm("Cortex-A55", shared(15), 1024),
        (ARM, 0xd07) => arm("Cortex-A57", shared(48), 1024),
        (ARM, 0xd08) => arm("Cortex-A72", shared(48), 1024),
        (ARM, 0xd0b) => arm("Cortex-A76", shared(48), 1280),
        (ARM, 0xd0c) => arm("Neoverse N1", shared(48), 1280),
        (ARM, 0xd40) => arm("Neoverse V1", shared(48), 2048),
        (ARM, 0xd49) => arm("Neoverse N2", shared(48), 1280),
        (ARM, 0xd4f) => arm("Neoverse V2", shared(48), 2048),
        _ => {
            let hidden = Some("no table has this MIDR_EL1, and arm64 does not tell its TLBs");
            return Itlb { hidden, first: shared(48), ..Itlb::USUAL };
        }
    };
    part.itlb()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_by_midr() {
        assert_eq!(from_midr(0x413f_d0c1).name, Some("Neoverse N1"));
        assert_eq!(from_midr(0x413f_d0c1).first, Level::Shared(48));
        let unknown = from_midr(0x610f_0220);
        assert_eq!((unknown.source, unknown.hidden.is_some()), (Source::Assumed, true));
    }

    #[test]
    fn walks_are_counted_where_the_event_is_known() {
        let event = |model| walk_event(&intel(6, model).unwrap().itlb());
        assert_eq!(event(0x6a), Some(0x0100_1085));
        assert_eq!(event(0x55), Some(0x0100_1085));
        assert_eq!(event(0x8f), Some(0x0100_1011));
        assert_eq!(event(0x97), Some(0x0100_1011));
        assert_eq!(event(0x3f), Some(0x1085));
        assert_eq!(walk_event(&Itlb::USUAL), None);
    }

    #[test]
    fn models_that_are_not_known_are_not_guessed() {
        assert_eq!(
            intel(6, 0x8f).map(|part| part.first),
            Some(Level::Split { base: 256, huge: 32 })
        );
        assert_eq!(intel(6, 0xff), None);
        assert_eq!(intel(15, 0x55), None);
        assert_eq!(amd(0x15), None);
    }
}
