//! `/proc/PID/smaps`: what each VMA really is made of (`fs/proc/task_mmu.c` `show_smap`).

use super::maps::{Vma, parse_vma};
use super::{ParseError, lines, number};
use crate::numa::OnNode;

/// One VMA with the sizes smaps adds, all in bytes. Fields that a kernel does not print are 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SmapsEntry {
    /// The VMA.
    pub vma: Vma,
    /// Resident bytes (hugetlb pages are not counted here).
    pub rss: u64,
    /// Resident bytes, each page divided by how many processes map it.
    pub pss: u64,
    /// Bytes of anonymous memory, file pages copied on write among them.
    pub anonymous: u64,
    /// Bytes PMD-mapped from anonymous THP.
    pub anon_huge: u64,
    /// Bytes PMD-mapped from tmpfs, memfd and shared memory.
    pub shmem_pmd_mapped: u64,
    /// Bytes PMD-mapped from other files' page cache.
    pub file_pmd_mapped: u64,
    /// Bytes in hugetlb pages, shared and private.
    pub hugetlb: u64,
    /// The page size of the mapping: larger than the base page only for hugetlb.
    pub kernel_page_size: u64,
    /// Bytes locked in memory.
    pub locked: u64,
    /// The memory protection key (pkeys(7)); 0 is everybody's.
    pub protection_key: u64,
    /// The two-letter flags, as printed.
    pub vm_flags: Vec<[u8; 2]>,
    /// On which NUMA nodes its pages lie, which smaps does not say: see [`numa::tell`](crate::numa::tell).
    pub nodes: Vec<OnNode>,
}

impl SmapsEntry {
    /// Returns how many bytes of the VMA one TLB entry of PMD size (or a hugetlb page) serves.
    pub fn pmd_mapped(&self) -> u64 {
        // `hugetlb` stays 0 for a mapping whose pages are not faulted in yet: not huge yet.
        [self.shmem_pmd_mapped, self.file_pmd_mapped, self.hugetlb]
            .into_iter()
            .fold(self.anon_huge, u64::saturating_add)
    }

    /// Returns whether the flag, such as `*b"lo"` for locked, is set.
    pub fn has_flag(&self, flag: [u8; 2]) -> bool {
        self.vm_flags.contains(&flag)
    }
}

/// Parses the whole of `/proc/PID/smaps`. Fields it does not know are passed over.
///
/// # Errors
/// A VMA line that is not one or is out of order (see [`super::maps::parse`]), a field before the
/// first VMA, or a size that is not a number.
pub fn parse(text: &[u8]) -> Result<Vec<SmapsEntry>, ParseError> {
    let mut entries: Vec<SmapsEntry> = Vec::new();
    for (line_number, line) in lines(text) {
        let bad = |what| ParseError::new("smaps", line_number, what, line);
        // A field's name ends in ':'; a VMA's first word is an address range, and never does.
        let word_end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        let Some(field) = line[..word_end].strip_suffix(b":") else {
            let vma = parse_vma(line, line_number)?;
            if entries.last().is_some_and(|last| vma.range.start() < last.vma.range.end()) {
                return Err(bad("address order"));
            }
            entries.push(SmapsEntry { vma, ..Default::default() });
            continue;
        };
        let entry = entries.last_mut().ok_or_else(|| bad("a VMA before its fields"))?;
        if field == b"VmFlags" {
            entry.vm_flags = line[word_end..]
                .split(|&byte| byte == b' ')
                .filter_map(|flag| flag.try_into().ok())
                .collect();
            entry.vma.guarded = entry.has_flag(*b"bt");
            continue;
        }
        if field == b"ProtectionKey" {
            let key = number(line[word_end..].trim_ascii(), 10);
            entry.protection_key = key.ok_or_else(|| bad("a protection key"))?;
            continue;
        }
        let slot: &mut u64 = match field {
            b"Rss" => &mut entry.rss,
            b"Pss" => &mut entry.pss,
            b"Anonymous" => &mut entry.anonymous,
            b"AnonHugePages" => &mut entry.anon_huge,
            b"ShmemPmdMapped" => &mut entry.shmem_pmd_mapped,
            b"FilePmdMapped" => &mut entry.file_pmd_mapped,
            b"Shared_Hugetlb" | b"Private_Hugetlb" => &mut entry.hugetlb,
            b"KernelPageSize" => &mut entry.kernel_page_size,
            b"Locked" => &mut entry.locked,
            _ => continue,
        };
        let kib = line[word_end..].trim_ascii();
        let kib = kib.strip_suffix(b"kB").unwrap_or(kib).trim_ascii();
        let bytes = number(kib, 10)
            .and_then(|kib| kib.checked_mul(1024))
            .ok_or_else(|| bad("a size in kB"))?;
        // Shared_Hugetlb and Private_Hugetlb add up; every other field stands once.
        *slot = slot.saturating_add(bytes);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"00c00000-02400000 r-xp 00000000 00:01 1030                               /memfd:tiexec:node (deleted)
Size:              24576 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:               24576 kB
Pss:               24576 kB
ShmemPmdMapped:    24576 kB
FilePmdMapped:         0 kB
FutureField:          12 pages
Shared_Hugetlb:     2048 kB
Private_Hugetlb:    4096 kB
THPeligible:           0
VmFlags: rd ex mr mw me lo bt
02400000-025fe000 r-xp 02000000 fe:00 3293                               /usr/bin/node
Rss:                 128 kB
";

    #[test]
    fn sums_what_is_huge_and_ignores_what_is_new() {
        let entries = parse(TWO).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].shmem_pmd_mapped, 24 << 20);
        assert_eq!(entries[0].hugetlb, 6 << 20);
        assert_eq!(entries[0].pmd_mapped(), 30 << 20);
        assert!(entries[0].has_flag(*b"lo"));
        assert!(entries[0].vma.guarded && !entries[1].vma.guarded);
        assert_eq!(entries[1].rss, 128 << 10);
        assert_eq!(entries[1].pmd_mapped(), 0);
    }

    #[test]
    fn a_field_without_a_vma_is_refused() {
        assert_eq!(parse(b"Rss: 4 kB\n").unwrap_err().what, "a VMA before its fields");
        let overflow = b"1000-2000 r-xp 0 0:0 0\nRss: 99999999999999999999 kB\n";
        assert_eq!(parse(overflow).unwrap_err().what, "a size in kB");
    }
}
