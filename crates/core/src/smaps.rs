//! `/proc/PID/smaps`: what each VMA really is made of (`fs/proc/task_mmu.c` `show_smap`).

use crate::area::Area;
use crate::proc::maps::parse_vma;
use crate::proc::{ParseError, lines, number};

/// Parses the whole of `/proc/PID/smaps`. Skips unknown fields.
///
/// # Errors
/// A VMA line that is malformed or out of order (see [`crate::proc::maps::parse`]), a field before the
/// first VMA, or a size that is not a number.
pub fn parse(text: &[u8]) -> Result<Vec<Area>, ParseError> {
    let mut entries: Vec<Area> = Vec::new();
    for (line_number, line) in lines(text) {
        let bad = |what| ParseError::new("smaps", line_number, what, line);
        // A field's name ends in ':'; a VMA's first word is an address range, and never does.
        let word_end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        let Some(field) = line[..word_end].strip_suffix(b":") else {
            let mut vma = parse_vma(line, line_number)?;
            if let Some(Area { vma: last, .. }) = entries.last() {
                if vma.range.start() < last.range.end() {
                    return Err(bad("address order"));
                }
                vma.share_name(last);
            }
            // The kernel reports how much is huge, but not which part.
            entries.push(Area { vma, ..Area::default() });
            continue;
        };
        let entry = entries.last_mut().ok_or_else(|| bad("a VMA before its fields"))?;
        if field == b"VmFlags" {
            let flags = line[word_end..].split(|&byte| byte == b' ');
            entry.flags = flags.filter_map(|flag| flag.try_into().ok()).collect();
            entry.vma.guarded = entry.has_flag(*b"bt");
            entry.keyed |= entry.has_flag(*b"mt");
            continue;
        }
        if field == b"ProtectionKey" {
            let key = number(line[word_end..].trim_ascii(), 10);
            entry.keyed |= key.ok_or_else(|| bad("a protection key"))? != 0;
            continue;
        }
        let slot: &mut u64 = match field {
            b"AnonHugePages" => &mut entry.anon_huge,
            b"ShmemPmdMapped" | b"FilePmdMapped" | b"Shared_Hugetlb" | b"Private_Hugetlb" => {
                &mut entry.file_huge
            }
            b"KernelPageSize" => &mut entry.page_size,
            _ => continue,
        };
        let kib = line[word_end..].trim_ascii();
        let kib = kib.strip_suffix(b"kB").unwrap_or(kib).trim_ascii();
        let bytes = number(kib, 10)
            .and_then(|kib| kib.checked_mul(1024))
            .ok_or_else(|| bad("a size in kB"))?;
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
AnonHugePages:      2048 kB
ShmemPmdMapped:    24576 kB
FilePmdMapped:         0 kB
FutureField:          12 pages
Shared_Hugetlb:     2048 kB
Private_Hugetlb:    4096 kB
THPeligible:           0
ProtectionKey:         3
VmFlags: rd ex mr mw me lo bt
02400000-025fe000 r-xp 02000000 fe:00 3293                               /usr/bin/node
Rss:                 128 kB
";

    #[test]
    fn sums_what_is_huge_and_ignores_what_is_new() {
        let entries = parse(TWO).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].file_huge, entries[0].anon_huge), (30 << 20, 2 << 20));
        assert_eq!(entries[0].huge_bytes(), 32 << 20);
        assert_eq!((entries[0].page_size, entries[0].keyed), (4096, true));
        assert!(entries[0].has_flag(*b"lo"));
        assert!(entries[0].vma.guarded && !entries[1].vma.guarded);
        assert_eq!((entries[1].huge_bytes(), entries[1].keyed), (0, false));
    }

    #[test]
    fn a_field_without_a_vma_is_refused() {
        assert_eq!(parse(b"Rss: 4 kB\n").unwrap_err().what, "a VMA before its fields");
        let overflow = b"1000-2000 r-xp 0 0:0 0\nAnonHugePages: 99999999999999999999 kB\n";
        assert_eq!(parse(overflow).unwrap_err().what, "a size in kB");
    }
}
