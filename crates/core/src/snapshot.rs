//! The state of a process before TiExec decides anything.

use crate::addr::{AddrRange, Pages, RemoteAddr};
use crate::proc::maps::{FileId, Vma};

/// A process's address space at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The machine's page sizes.
    pub pages: Pages,
    /// All VMAs, in address order.
    pub vmas: Vec<Vma>,
    /// The entry point of the main executable (`AT_ENTRY`).
    pub entry: RemoteAddr,
}

impl Snapshot {
    /// Returns the VMA that holds `addr`.
    pub fn vma_at(&self, addr: RemoteAddr) -> Option<&Vma> {
        let index = self.vmas.partition_point(|vma| vma.range.end() <= addr);
        self.vmas.get(index).filter(|vma| vma.range.contains(addr))
    }

    /// Returns the file of the main executable: the one that holds the entry point.
    pub fn main_file(&self) -> Option<FileId> {
        self.vma_at(self.entry).filter(|vma| vma.is_file_backed()).map(|vma| vma.file)
    }
}

impl Snapshot {
    /// Returns a free range of `len` bytes that begins on a huge page, in the middle of the widest
    /// gap between two VMAs, where neither the heap nor the stack will grow meanwhile. Returns
    /// `None` if no gap is wide enough. `len` must not be 0.
    pub fn free_area(&self, len: u64) -> Option<AddrRange> {
        let gaps = self.vmas.windows(2).filter_map(|pair| {
            // Skip the gap below the kernel's own area, which is at the top of the address space.
            let above = pair[1].range.start();
            (above.get() < 1 << 63).then(|| AddrRange::new(pair[0].range.end(), above)).flatten()
        });
        // A gap counts only from its first huge page on.
        let aligned =
            gaps.filter_map(|gap| AddrRange::new(gap.start().align_up(self.pages.pmd)?, gap.end()));
        let widest = aligned.max_by_key(|gap| gap.len())?;
        // Leave as much room below as above, rounded down to the beginning of a huge page, which is
        // never below the gap's own first one.
        let spare = widest.len().checked_sub(len)?;
        let start = widest.start().checked_add(spare / 2)?.align_down(self.pages.pmd);
        AddrRange::with_len(start, len)
    }
}
