//! What the processor says of its own register file.

/// Where the parts of an XSAVE area lie (Intel SDM volume 1, 13.4; CPUID leaf 0xd).
#[cfg(target_arch = "x86_64")]
pub mod xsave {
    /// The legacy area and the header: every XSAVE area has at least these bytes.
    pub const MINIMUM: usize = 512 + 64;

    /// Returns how long an area in standard format is that holds the components `features` (bits of
    /// XCR0), in bytes.
    pub fn area_len(features: u64) -> usize {
        // Bits 0 and 1 (x87, SSE) live in the legacy area, bit 63 is not a component.
        (2..63)
            .filter(|&component| features >> component & 1 == 1)
            .map(|component| {
                let leaf = std::arch::x86_64::__cpuid_count(0xd, component);
                // Bit 0 of ecx: a supervisor component, which has no place in a user's area.
                if leaf.ecx & 1 == 1 { 0 } else { leaf.eax as usize + leaf.ebx as usize }
            })
            .fold(MINIMUM, usize::max)
    }
}
