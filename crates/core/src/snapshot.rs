//! What was seen of a process before anything is decided.

use crate::addr::{Pages, RemoteAddr};
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
