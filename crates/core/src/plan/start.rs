//! A plan for a program's start, made from its file alone: what a launch would give to a program that already runs.

use std::ops::Range;

use super::{Backing, Means, Plan, plan};
use crate::addr::{AddrRange, Pages, RemoteAddr};
use crate::config::EdgePolicy;
use crate::order;
use crate::proc::maps::{FileId, Perms, Vma};
use crate::rebase::MainImage;
use crate::snapshot::Snapshot;

/// Where a stack lies, far above every program.
const STACK: (u64, u64) = (0x7fff_0000_0000, 0x21000);

/// Plans what a launch would do to the text of a program that begins at `entry`. The launch may move the program
/// from where `image` is, and copy text that does not lie in `folios`, the huge folios of the page cache.
pub fn plan_start(
    image: &MainImage,
    entry: RemoteAddr,
    folios: &[Range<u64>],
    edges: EdgePolicy,
    pages: Pages,
) -> Plan {
    let snapshot = Snapshot { pages, vmas: vmas(image, pages), entry };
    let end = snapshot.vmas.iter().rev().nth(1).map(|last| last.range.end().get());
    let means = Means {
        leave_main: false,
        image: Some(image),
        folios,
        copies: &[Backing::Image],
        edges,
        start_brk: end,
    };
    plan(&snapshot, &means)
}

/// Returns the mappings of the program as the kernel makes them at an exec, and a stack.
fn vmas(image: &MainImage, pages: Pages) -> Vec<Vma> {
    let file = FileId { inode: 1, ..FileId::default() };
    let mut vmas: Vec<Vma> = Vec::new();
    let mut loads: Vec<_> = image.loads.iter().collect();
    order::by_key(&mut loads, |load| load.vaddr);
    for load in loads {
        let moved = |at: RemoteAddr| RemoteAddr::new(at.get().wrapping_add(image.load_bias));
        let mapped = load.mapped(pages.base);
        let mapped =
            mapped.and_then(|range| AddrRange::new(moved(range.start()), moved(range.end())));
        let Some(range) = mapped.filter(|range| !range.is_empty()) else { continue };
        // A later segment is mapped over the end of an earlier one in the same base page.
        if let Some(last) = vmas.last_mut() {
            let end = last.range.end().min(range.start());
            last.range = AddrRange::new(last.range.start(), end).unwrap_or_default();
        }
        let perms = Perms { read: true, write: load.write, exec: load.exec, ..Perms::default() };
        let file_offset = load.file_offset & !(pages.base.bytes() - 1);
        vmas.push(Vma { range, perms, file_offset, file, name: b"/"[..].into(), guarded: false });
    }
    vmas.retain(|vma| !vma.range.is_empty());
    let (at, len) = STACK;
    vmas.extend(AddrRange::with_len(RemoteAddr::new(at), len).map(|range| Vma {
        range,
        perms: Perms { read: true, write: true, ..Perms::default() },
        file_offset: 0,
        file: FileId::default(),
        name: b"[stack]"[..].into(),
        guarded: false,
    }));
    vmas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PageSize;
    use crate::config::Edges;
    use crate::elf::LoadSegment;

    const PAGES: Pages =
        Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };

    /// A PIE with 5 MiB of text, of which two whole huge pages fit at most.
    fn image(load_bias: u64, position_independent: bool) -> MainImage {
        let load = |vaddr: u64, len: u64, exec, write| LoadSegment {
            file_offset: vaddr,
            vaddr,
            file_size: len,
            mem_size: len,
            exec,
            write,
        };
        let loads = vec![
            load(0, 0x10_0000, false, false),
            load(0x10_0000, 5 << 20, true, false),
            load(0x70_0000, 0x1000, false, true),
        ];
        MainImage { loads, load_bias, position_independent }
    }

    fn huge(bias: u64, moves: bool, edges: Edges) -> u64 {
        let (image, entry) = (image(bias, moves), RemoteAddr::new(bias + 0x10_0000));
        let edges = EdgePolicy { edges, ..EdgePolicy::default() };
        plan_start(&image, entry, &[], edges, PAGES).huge_bytes()
    }

    #[test]
    fn a_program_that_can_be_moved_gets_the_same_wherever_it_is() {
        for bias in [0x5555_5540_0000, 0x5555_5545_5000, 0x5555_555f_f000] {
            assert_eq!(huge(bias, true, Edges::Conservative), 4 << 20, "{bias:x}");
            assert_eq!(huge(bias, true, Edges::Pad), 5 << 20, "{bias:x}");
        }
        // Two huge pages fit from 1 MiB to 6 MiB, and one from 0.5 MiB to 5.5 MiB.
        assert_eq!(huge(0x40_0000, false, Edges::Conservative), 4 << 20);
        assert_eq!(huge(0x58_0000, false, Edges::Conservative), 2 << 20);
    }
}
