//! Reads the instruction TLB of an x86 processor from its CPUID leaves.
//!
//! - Intel, leaf 0x18 ("Deterministic Address Translation Parameters") and, older, leaf 2 (descriptors, one byte each):
//!   Intel SDM volume 2A, CPUID. Leaf 4 describes only caches.
//! - AMD, leaves 0x8000_0005 and 0x8000_0006: AMD APM volume 3, appendix E. Leaf 0x8000_0019 describes 1 GiB pages,
//!   which never hold text.
//!
//! A hypervisor may show anything. KVM leaves leaf 0x18 empty and passes the host's leaf 2 through, which may only say
//! "see leaf 0x18" (descriptor 0xfe). In that case a table by family and model is used.

use tiexec_core::processor::{CpuidLeaves, Registers};
use tiexec_core::tlb_sweep::Measured;

use super::processors;
use super::tlb::{Itlb, Level, Source};

/// Describes the TLB, from the CPUID leaves and from a table of known processors.
pub(super) fn from_cpuid(leaves: &CpuidLeaves) -> Itlb {
    let (family, model) = leaves.family_and_model();
    let (levels, known, silent) = match &leaves.vendor() {
        b"GenuineIntel" => {
            let said = translation(&leaves.translation).or_else(|| descriptors(leaves.descriptors));
            let silent = "neither CPUID leaf 0x18 nor leaf 2 describes the instruction TLB";
            (said, processors::intel(family, model), silent)
        }
        b"AuthenticAMD" | b"HygonGenuine" => {
            let silent = "CPUID leaves 0x80000005 and 0x80000006 are empty";
            (amd(leaves, family), processors::amd(family), silent)
        }
        _ => (None, None, "the vendor's way of telling is not known"),
    };
    let hidden = levels
        .is_none()
        .then_some(silent)
        .map(|silent| if leaves.is_guest() { HIDDEN_BY_HYPERVISOR } else { silent });
    match (levels, known) {
        (Some(levels), known) => Itlb {
            name: known.map(|part| part.name),
            source: Source::Cpuid,
            measured: Measured::UNCLEAR,
            hidden,
            otherwise: known.and_then(|part| part.itlb().second).filter(|table| {
                levels.second.is_some_and(|said| differ_much(said.entries().0, table.entries().0))
            }),
            first: levels.first,
            second: levels.second,
            second_holds_data: levels.second_holds_data,
        },
        (None, Some(part)) => Itlb { hidden, ..part.itlb() },
        (None, None) => Itlb { hidden, ..Itlb::USUAL },
    }
}

/// Returns whether one of the numbers is more than twice the other.
const fn differ_much(one: u32, other: u32) -> bool {
    one > other.saturating_mul(2) || other > one.saturating_mul(2)
}

const HIDDEN_BY_HYPERVISOR: &str =
    "the hypervisor hides the CPUID leaves that describe the instruction TLB";

struct Levels {
    first: Level,
    second: Option<Level>,
    second_holds_data: bool,
}

/// Reads leaf 0x18.
fn translation(subleaves: &[Registers]) -> Option<Levels> {
    const INSTRUCTION: u32 = 2;
    const UNIFIED: u32 = 3;
    struct Structure {
        kind: u32,
        level: u32,
        base: bool,
        huge: bool,
        entries: u32,
    }
    let structures: Vec<Structure> = subleaves
        .iter()
        .map(|&Registers { ebx, ecx, edx, .. }| Structure {
            kind: edx & 0x1f,
            level: edx >> 5 & 7,
            base: ebx & 1 != 0,
            huge: ebx & 2 != 0,
            entries: (ebx >> 16).saturating_mul(ecx),
        })
        .filter(|structure| matches!(structure.kind, INSTRUCTION | UNIFIED))
        .collect();
    let level = |number: u32| {
        let of = |which: fn(&Structure) -> bool| -> u32 {
            let of = structures.iter().filter(|one| one.level == number && which(one));
            of.map(|one| one.entries).fold(0, u32::saturating_add)
        };
        let (base, huge) = (of(|one| one.base), of(|one| one.huge));
        let shared = of(|one| one.base && one.huge) > 0;
        let level = if shared { Level::Shared(base) } else { Level::Split { base, huge } };
        (base > 0).then_some(level)
    };
    let holds_data = |one: &Structure| one.level == 2 && one.kind == UNIFIED;
    let second_holds_data = structures.iter().any(holds_data);
    level(1).map(|first| Levels { first, second: level(2), second_holds_data })
}

/// Reads leaf 2.
fn descriptors(leaf: Registers) -> Option<Levels> {
    let Registers { eax, ebx, ecx, edx } = leaf;
    // The lowest byte is a count. A register whose highest bit is set is not valid.
    let valid = [eax & !0xff, ebx, ecx, edx].into_iter().filter(|register| register >> 31 == 0);
    let (mut base, mut huge, mut second) = (0, 0, None);
    for descriptor in valid.flat_map(u32::to_le_bytes) {
        match descriptor {
            0x01 | 0x4f => base = 32,
            0x61 => base = 48,
            0xb2 | 0xb5 => base = 64,
            0xb0 | 0xb6 => base = 128,
            0x0b => huge = 4,
            0x55 => huge = 7,
            0x76 | 0xb1 => huge = 8,
            0x50 => (base, huge) = (64, 64),
            0x51 => (base, huge) = (128, 128),
            0x52 => (base, huge) = (256, 256),
            0xc1 => second = Some(Level::Shared(1024)),
            0xc3 => second = Some(Level::Shared(1536)),
            0xca => second = Some(Level::Split { base: 512, huge: 0 }),
            _ => {}
        }
    }
    let first = Level::Split { base, huge };
    (base > 0).then_some(Levels { first, second, second_holds_data: true })
}

/// The family of Zen 5, from which on leaf 0x8000_0006 counts in multiples of 32. Bit 14 of EAX in leaf 0x8000_0021 says so
/// too, but hypervisors mask it (Linux commit 228200f, "Fix Zen5 TLB sizes reporting").
const COUNTS_BY_32: u32 = 0x1a;

/// Reads AMD's leaves. Since Zen, one array holds all page sizes, and both fields give its whole size.
fn amd(leaves: &CpuidLeaves, family: u32) -> Option<Levels> {
    let level = |huge: u32, base: u32| {
        let one_array = family >= 0x17 && base == huge;
        if one_array { Level::Shared(base) } else { Level::Split { base, huge } }
    };
    let first = leaves.amd_first;
    let (base, huge) = (first.ebx & 0xff, first.eax & 0xff);
    // The number has 12 bits. The four bits above give the associativity, which is 0 if the level does not exist.
    let unit = if family >= COUNTS_BY_32 { 32 } else { 1 };
    let entries =
        |register: u32| if register >> 12 & 0xf == 0 { 0 } else { (register & 0xfff) * unit };
    let second = leaves.amd_second;
    let (base2, huge2) = (entries(second.ebx), entries(second.eax));
    (base > 0).then(|| Levels {
        first: level(huge, base),
        second: (base2 > 0).then(|| level(huge2, base2)),
        second_holds_data: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intel(signature: u32) -> CpuidLeaves {
        let text = |text: &[u8; 4]| u32::from_le_bytes(*text);
        CpuidLeaves {
            vendor: Registers {
                eax: 0x1b,
                ebx: text(b"Genu"),
                edx: text(b"ineI"),
                ecx: text(b"ntel"),
            },
            version: Registers { eax: signature, ..Registers::default() },
            ..CpuidLeaves::default()
        }
    }

    #[test]
    fn a_guest_on_ice_lake_says_nothing_and_the_table_knows() {
        // These are the leaves that KVM showed.
        let mut leaves = intel(0x606a6);
        leaves.version.ecx = 0xfffa_3203;
        leaves.descriptors = Registers { eax: 0x00fe_ff01, ebx: 0xf0, ecx: 0, edx: 0 };
        leaves.translation = vec![Registers::default()];
        assert_eq!(leaves.family_and_model(), (6, 106));
        let itlb = from_cpuid(&leaves);
        assert_eq!(itlb.source, Source::Table);
        assert_eq!(itlb.hidden, Some(HIDDEN_BY_HYPERVISOR));
        assert_eq!(itlb.first, Level::Split { base: 128, huge: 16 });
        assert_eq!(itlb.second, Some(Level::Shared(2048)));
        assert_eq!(itlb.second_for_text(), Some(Level::Shared(1024)));
    }

    #[test]
    fn descriptors_of_skylake() {
        let mut leaves = intel(0x50654);
        let bytes = |bytes: [u8; 4]| u32::from_le_bytes(bytes);
        leaves.descriptors = Registers {
            eax: bytes([0x01, 0x63, 0x03, 0x76]) & 0x7fff_ffff,
            ebx: bytes([0xb5, 0xf0, 0xc3, 0]),
            ecx: 0,
            edx: 0x8000_0000 | 0x52,
        };
        let itlb = from_cpuid(&leaves);
        assert_eq!((itlb.source, itlb.hidden), (Source::Cpuid, None));
        assert_eq!(itlb.first, Level::Split { base: 64, huge: 8 });
        assert_eq!(itlb.second, Some(Level::Shared(1536)));
    }

    #[test]
    fn leaf_18_is_summed_up_over_its_structures() {
        let structure = |ebx: u32, ecx, kind: u32, level: u32| Registers {
            eax: 0,
            ebx,
            ecx,
            edx: kind | level << 5,
        };
        let mut leaves = intel(0x806f8);
        leaves.translation = vec![
            structure(8 << 16 | 1, 32, 2, 1),
            structure(8 << 16 | 6, 4, 2, 1),
            structure(16 << 16 | 1, 4, 4, 1),
            structure(8 << 16 | 7, 128, 3, 2),
            structure(8 << 16 | 9, 128, 3, 2),
        ];
        let itlb = from_cpuid(&leaves);
        assert_eq!(itlb.source, Source::Cpuid);
        assert_eq!(itlb.first, Level::Split { base: 256, huge: 32 });
        assert_eq!(itlb.second, Some(Level::Shared(2048)));
        assert!(itlb.second_holds_data);
    }

    fn amd(signature: u32) -> CpuidLeaves {
        let text = |text: &[u8; 4]| u32::from_le_bytes(*text);
        CpuidLeaves {
            vendor: Registers {
                eax: 0x10,
                ebx: text(b"Auth"),
                edx: text(b"enti"),
                ecx: text(b"cAMD"),
            },
            version: Registers { eax: signature, ..Registers::default() },
            amd_first: Registers { eax: 0xff40_ff40, ebx: 0xff40_ff40, ..Registers::default() },
            amd_second: Registers { eax: 0x5800_2200, ebx: 0x6800_4200, ..Registers::default() },
            ..CpuidLeaves::default()
        }
    }

    #[test]
    fn zen_has_one_array_of_each_level() {
        // Family 19h, model 1: Milan.
        let leaves = amd(0x00a0_0f11);
        assert_eq!(leaves.family_and_model().0, 0x19);
        let itlb = from_cpuid(&leaves);
        assert_eq!(itlb.first, Level::Shared(64));
        assert_eq!(itlb.second_for_text(), Some(Level::Shared(512)));
        let silent = CpuidLeaves {
            amd_first: Registers::default(),
            amd_second: Registers::default(),
            ..leaves
        };
        assert_eq!(from_cpuid(&silent).source, Source::Table);
    }

    #[test]
    fn zen_5_counts_its_second_level_by_32() {
        // Family 1Ah, model 2: Turin.
        let mut leaves = amd(0x00b0_0f21);
        leaves.amd_second = Registers { eax: 0x4040, ebx: 0x4040, ..Registers::default() };
        let itlb = from_cpuid(&leaves);
        assert_eq!((itlb.name, itlb.source), (Some("Zen 5"), Source::Cpuid));
        assert_eq!((itlb.second, itlb.otherwise), (Some(Level::Shared(2048)), None));
    }

    #[test]
    fn a_table_that_knows_a_quite_different_size_is_named() {
        let mut leaves = amd(0x00a0_0f11);
        leaves.amd_second = Registers { eax: 0x4040, ebx: 0x4040, ..Registers::default() };
        let itlb = from_cpuid(&leaves);
        assert_eq!(
            (itlb.second, itlb.otherwise),
            (Some(Level::Shared(64)), Some(Level::Shared(512)))
        );
        // Twice as many are another model of the same design.
        leaves.amd_second = Registers { eax: 0x4400, ebx: 0x4400, ..Registers::default() };
        assert_eq!(from_cpuid(&leaves).otherwise, None);
    }

    #[test]
    fn whatever_the_registers_hold() {
        for word in [0, 1, 0x8000_0000, 0x5555_5555, u32::MAX] {
            let registers = Registers { eax: word, ebx: word, ecx: word, edx: word };
            let mut leaves = intel(word);
            (leaves.descriptors, leaves.amd_first) = (registers, registers);
            leaves.translation = vec![registers; 20];
            let _itlb = from_cpuid(&leaves);
            leaves.vendor = registers;
            assert_eq!(from_cpuid(&leaves).source, Source::Assumed);
        }
    }
}
