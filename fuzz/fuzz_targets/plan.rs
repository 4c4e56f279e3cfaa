//! Any snapshot, sensible or not.
//!
//! The input: one byte for the page sizes, eight for the entry point, then 26 for each VMA: start
//! and length in base pages, file offset in base pages, permissions, file.
#![no_main]

use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::plan::{Backing, Means, Plan, plan};
use tiexec_core::proc::maps::{FileId, Perms, Vma};
use tiexec_core::snapshot::Snapshot;

fn vma(record: &[u8; 26], base: u64) -> Option<Vma> {
    let word = |at: usize| {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes")).wrapping_mul(base)
    };
    let bit = |bit: u8| record[24] & 1 << bit != 0;
    let inode = u64::from(record[25]);
    Some(Vma {
        range: AddrRange::with_len(RemoteAddr::new(word(0)), word(8))?,
        perms: Perms { read: bit(0), write: bit(1), exec: bit(2), shared: bit(3) },
        file_offset: word(16),
        file: FileId { inode, ..FileId::default() },
        name: if inode == 0 { Vec::new() } else { format!("/bin/{inode}").into_bytes() }.into(),
        ..Vma::default()
    })
}

/// Plans with only one copying backing.
fn plan_by(snapshot: &Snapshot, backing: Backing) -> Plan {
    plan(snapshot, &Means { copies: &[backing], ..Means::default() })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&kind, input)) = input.split_first() else { return };
    let Some((entry, records)) = input.split_first_chunk::<8>() else { return };
    let size = |bytes| PageSize::new(bytes).expect("a power of two");
    let pages = if kind & 1 == 0 {
        Pages { base: size(4 << 10), pmd: size(2 << 20) }
    } else {
        Pages { base: size(64 << 10), pmd: size(512 << 20) }
    };
    let records = records.chunks_exact(26).map(|record| record.try_into().expect("26 bytes"));
    let vmas: Vec<Vma> = records.filter_map(|record| vma(record, pages.base.bytes())).collect();
    let sensible = vmas.windows(2).all(|pair| pair[0].range.end() <= pair[1].range.start());
    let entry = RemoteAddr::new(u64::from_le_bytes(*entry));
    let snapshot = Snapshot { pages, vmas, entry };

    let plan = plan_by(&snapshot, Backing::Image);
    for text in &plan.texts {
        let vma = &text.vma;
        let mut planned = 0;
        for span in &text.spans {
            assert!(vma.range.covers(span.range) && !span.range.is_empty());
            assert!(span.range.start().is_aligned(pages.pmd));
            assert!(span.range.end().is_aligned(pages.pmd));
            let distance = span.range.start().get() - vma.range.start().get();
            assert_eq!(Some(span.file_offset), vma.file_offset.checked_add(distance));
            for other in snapshot.vmas.iter().filter(|_| sensible) {
                let off_limits = other.perms.write || other.perms.shared;
                assert!(!(off_limits && other.range.overlaps(span.range)));
            }
            planned += span.range.len();
        }
        let rest: u64 = text.rest.iter().map(|&(_, bytes)| bytes).sum();
        assert_eq!(planned + rest, vma.range.len());
    }
    if sensible {
        let spans: Vec<_> = plan.spans().map(|span| span.range).collect();
        assert!(spans.windows(2).all(|pair| pair[0].end() <= pair[1].start()));
        // Overlapping VMAs may add up to more than the address space, so only a sensible snapshot has totals.
        assert!(!plan.to_string().is_empty());
        assert!(!plan.to_json(None, None).contains('\n'));
    }
    for len in [pages.base.bytes(), pages.pmd.bytes(), 1 << 40] {
        let Some(area) = snapshot.free_area(len) else { continue };
        assert_eq!(area.len(), len);
        assert!(area.start().is_aligned(pages.pmd));
        if sensible {
            assert!(snapshot.vmas.iter().all(|vma| !vma.range.overlaps(area)));
        }
    }
});
