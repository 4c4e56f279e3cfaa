//! One VMA, and how much of it lies in huge pages.

use std::fmt;

use serde::Serialize;

use crate::addr::{AddrRange, PageSize};
use crate::numa::OnNode;
use crate::proc::maps::Vma;

/// Why TiExec reads the smaps of a running process. The process can map no memory meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SmapsFor {
    /// To find the huge parts: the kernel has no `PAGEMAP_SCAN`.
    Huge,
    /// To find the protection of text by guards or memory tags (aarch64).
    Guards,
}

impl fmt::Display for SmapsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "what is huge, because this kernel has no PAGEMAP_SCAN (Linux 6.7)",
            Self::Guards => "whether text is guarded or tagged",
        })
    }
}

/// A VMA, and the kernel's facts about its pages. All sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Area {
    /// The VMA.
    pub vma: Vma,
    /// The size of its pages: larger than the base page only in the hugetlb pool; 0 if it was not read.
    pub page_size: u64,
    /// Bytes of anonymous memory that huge pages map.
    pub anon_huge: u64,
    /// Bytes of files that huge pages map: page cache, tmpfs, memfds, the hugetlb pool.
    pub file_huge: u64,
    /// The ranges of the huge pages: ascending, disjoint, within the VMA. `None` if only their total size is known.
    pub huge: Option<Vec<AddrRange>>,
    /// True if the text has a memory protection key (pkeys(7)) or memory tags (aarch64). Only smaps shows this; without
    /// smaps it is false.
    pub keyed: bool,
    /// The two-letter flags of smaps; empty if smaps was not read.
    pub flags: Vec<[u8; 2]>,
    /// The NUMA nodes of its pages, as far as they were read.
    pub nodes: Vec<OnNode>,
    /// If the VMA maps an image of an image store: the memory that the whole image takes. `None` for any other VMA, and
    /// if the memory is not known.
    pub image_bytes: Option<u64>,
}

impl Area {
    /// Makes an area of which only the line in maps is known.
    pub fn of(vma: Vma) -> Self {
        Self { vma, huge: Some(Vec::new()), ..Self::default() }
    }

    /// Adds a part of the area whose pages are all huge; parts come in ascending order.
    pub fn add_huge(&mut self, part: AddrRange, of_file: bool) {
        let Some(part) = part.intersection(self.vma.range).filter(|part| !part.is_empty()) else {
            return;
        };
        let bytes = if of_file { &mut self.file_huge } else { &mut self.anon_huge };
        *bytes = bytes.saturating_add(part.len());
        let Some(parts) = &mut self.huge else { return };
        match parts.last_mut() {
            Some(last) if last.end() == part.start() => {
                *last = AddrRange::new(last.start(), part.end()).unwrap_or(*last);
            }
            _ => parts.push(part),
        }
    }

    /// Returns how many bytes of the area are mapped by PMD entries, or lie in pages of the hugetlb pool.
    pub fn huge_bytes(&self) -> u64 {
        self.anon_huge.saturating_add(self.file_huge)
    }

    /// Returns how many bytes of `range` are huge. If only the total is known, returns the most that can be.
    pub fn huge_in(&self, range: AddrRange) -> u64 {
        let Some(shared) = self.vma.range.intersection(range) else { return 0 };
        match &self.huge {
            Some(parts) => {
                let within = |part: &AddrRange| part.intersection(shared).map_or(0, AddrRange::len);
                parts.iter().map(within).sum()
            }
            None => self.huge_bytes().min(shared.len()),
        }
    }

    /// Returns the huge parts of the area. If only the total is known, returns all whole huge pages of the area if all
    /// of them are huge, otherwise none.
    pub fn huge_parts(&self, pmd: PageSize) -> Vec<AddrRange> {
        match &self.huge {
            Some(parts) => parts.clone(),
            None => {
                let whole = self.vma.range.align_inward(pmd);
                whole.filter(|whole| whole.len() == self.huge_bytes()).into_iter().collect()
            }
        }
    }

    /// Returns whether the flag, such as `*b"lo"` for locked, is set.
    pub fn has_flag(&self, flag: [u8; 2]) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns whether the pages of the area come from the hugetlb pool.
    pub fn is_hugetlb(&self, base: PageSize) -> bool {
        self.page_size > base.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::RemoteAddr;

    const PMD: PageSize = PageSize::new(2 << 20).unwrap();

    fn range(start: u64, end: u64) -> AddrRange {
        AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap()
    }

    fn area(start: u64, end: u64) -> Area {
        Area::of(Vma { range: range(start, end), ..Vma::default() })
    }

    #[test]
    fn parts_are_joined_counted_by_kind_and_cut_to_the_area() {
        let mut area = area(0x40_0000, 0x100_0000);
        area.add_huge(range(0x20_0000, 0x60_0000), true);
        area.add_huge(range(0x60_0000, 0x80_0000), false);
        area.add_huge(range(0xa0_0000, 0xc0_0000), true);
        area.add_huge(range(0x100_0000, 0x120_0000), true);
        assert_eq!((area.file_huge, area.anon_huge), (4 << 20, 2 << 20));
        let parts = [range(0x40_0000, 0x80_0000), range(0xa0_0000, 0xc0_0000)];
        assert_eq!(area.huge_parts(PMD), parts);
        assert_eq!(area.huge_in(range(0x70_0000, 0xb0_0000)), 2 << 20);
        assert_eq!(area.huge_in(range(0, 0x40_0000)), 0);
    }

    #[test]
    fn where_only_the_sum_is_known_all_that_can_be_huge_is() {
        let mut area = Area { huge: None, file_huge: 4 << 20, ..area(0x40_0000, 0xa0_0000) };
        assert_eq!(area.huge_in(range(0x60_0000, 0xa0_0000)), 4 << 20);
        assert_eq!(area.huge_in(range(0x50_0000, 0x60_0000)), 1 << 20);
        assert_eq!(area.huge_parts(PMD), []);
        area.file_huge = 6 << 20;
        assert_eq!(area.huge_parts(PMD), [area.vma.range]);
        // No more than the whole area can be huge, whatever the kernel reports.
        area.anon_huge = u64::MAX;
        assert_eq!(area.huge_in(area.vma.range), 6 << 20);
    }
}
