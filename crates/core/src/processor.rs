//! The facts that a processor reports about itself, unprocessed.

/// The four registers that CPUID returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// The leaves that describe the instruction TLB; zeros for leaves that the processor does not have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuidLeaves {
    /// Leaf 0: the vendor.
    pub vendor: Registers,
    /// Leaf 1: family, model, and whether a hypervisor is there.
    pub version: Registers,
    /// Leaf 2.
    pub descriptors: Registers,
    /// The subleaves of leaf 0x18.
    pub translation: Vec<Registers>,
    /// Leaf 0x8000_0005.
    pub amd_first: Registers,
    /// Leaf 0x8000_0006.
    pub amd_second: Registers,
}

impl CpuidLeaves {
    /// Returns the display family and model (SDM, CPUID leaf 1).
    pub fn family_and_model(&self) -> (u32, u32) {
        let signature = self.version.eax;
        let family = signature >> 8 & 0xf;
        let model = signature >> 4 & 0xf;
        let whole = if family == 0xf { family + (signature >> 20 & 0xff) } else { family };
        let extended = matches!(family, 0x6 | 0xf);
        (whole, if extended { model | (signature >> 12 & 0xf0) } else { model })
    }

    /// Returns the vendor (SDM, CPUID leaf 0).
    pub fn vendor(&self) -> [u8; 12] {
        let Registers { ebx, ecx, edx, .. } = self.vendor;
        let mut name = [0; 12];
        for (part, register) in name.chunks_mut(4).zip([ebx, edx, ecx]) {
            part.copy_from_slice(&register.to_le_bytes());
        }
        name
    }

    /// Returns whether the processor is that of a virtual machine.
    pub fn is_guest(&self) -> bool {
        self.version.ecx >> 31 == 1
    }
}

/// The facts that a processor reports about its instruction TLB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Processor {
    /// An x86 processor.
    Cpuid(CpuidLeaves),
    /// An aarch64 processor: its main ID register, if the kernel shows it.
    Midr(Option<u64>),
}
