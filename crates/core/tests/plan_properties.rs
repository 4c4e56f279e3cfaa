//! The invariants of every plan, free area, maps line and coverage, whatever the snapshot.

use proptest::prelude::*;
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::area::Area;
use tiexec_core::coverage::{FileCoverage, Note, coverage};
use tiexec_core::plan::{Backing, Means, Plan, TextPlan, plan};
use tiexec_core::proc::maps::{self, FileId, Perms, Vma};
use tiexec_core::skip::Reason;
use tiexec_core::snapshot::Snapshot;

/// The pages of x86-64, and of an aarch64 kernel with 64 KiB pages.
fn pages() -> impl Strategy<Value = Pages> {
    let of = |base, pmd| Pages {
        base: PageSize::new(base).expect("a power of two"),
        pmd: PageSize::new(pmd).expect("a power of two"),
    };
    prop_oneof![Just(of(4 << 10, 2 << 20)), Just(of(64 << 10, 512 << 20))]
}

fn perms() -> impl Strategy<Value = Perms> {
    // Text, as often as everything else together.
    prop_oneof![
        Just(Perms { read: true, write: false, exec: true, shared: false }),
        any::<[bool; 4]>().prop_map(|[read, write, exec, shared]| Perms {
            read,
            write,
            exec,
            shared
        }),
    ]
}

/// Few files, so that neighbours often belong to the same file. Inode 0 stands for no file.
fn file() -> impl Strategy<Value = FileId> {
    (0..2u32, 0..4u64).prop_map(|(minor, inode)| FileId { major: 0xfe, minor, inode })
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"/usr/bin/node".to_vec()),
        Just(b"/usr/bin/node (deleted)".to_vec()),
        Just(b"/memfd:tiexec:node (deleted)".to_vec()),
        Just(b"[stack]".to_vec()),
        Just(Vec::new()),
    ]
}

/// A number of bytes: some base pages, or some huge pages more or less a base page.
fn bytes(pages: Pages) -> impl Strategy<Value = u64> {
    let (base, pmd) = (pages.base.bytes(), pages.pmd.bytes());
    prop_oneof![
        (0..40u64).prop_map(move |count| count * base),
        (0..5u64).prop_map(move |count| count * pmd),
        (1..5u64).prop_map(move |count| count * pmd - base),
        (0..5u64).prop_map(move |count| count * pmd + base),
    ]
}

/// VMAs as a kernel prints them: in address order, apart, not empty, whole base pages.
fn ordered_vmas(pages: Pages) -> impl Strategy<Value = Vec<Vma>> {
    let offset = prop_oneof![bytes(pages), any::<u64>()];
    let one = (bytes(pages), bytes(pages), perms(), offset, file(), name());
    let base = pages.base.bytes();
    (any::<bool>(), prop::collection::vec(one, 0..12)).prop_map(move |(vsyscall, pieces)| {
        let mut at = 0x40_0000u64.next_multiple_of(base);
        let mut vmas: Vec<Vma> = Vec::new();
        for (gap, len, perms, offset, file, name) in pieces {
            let start = at + gap;
            at = start + len.max(base);
            let range = range(start, at);
            vmas.push(Vma {
                range,
                perms,
                file_offset: offset & !(base - 1),
                file,
                name: name.into(),
                guarded: false,
            });
        }
        if vsyscall {
            let top = 0xffff_ffff_ff60_0000;
            let range = range(top, top + base);
            let perms = Perms { exec: true, ..Perms::default() };
            let name = b"[vsyscall]".to_vec();
            vmas.push(Vma { range, perms, name: name.into(), ..Vma::default() });
        }
        vmas
    })
}

/// VMAs that no kernel prints: in any order, over each other, empty, odd ends, up to the last byte.
fn odd_vmas() -> impl Strategy<Value = Vec<Vma>> {
    let end = prop_oneof![
        any::<u64>(),
        0..32u64 << 20,
        u64::MAX - (8 << 20)..=u64::MAX,
        Just(u64::MAX),
        (0..16u64).prop_map(|count| count << 20),
    ];
    let one = (end.clone(), end, perms(), any::<u64>(), file(), name());
    let vma = one.prop_map(|(a, b, perms, file_offset, file, name)| Vma {
        range: range(a.min(b), a.max(b)),
        perms,
        file_offset,
        file,
        name: name.into(),
        guarded: false,
    });
    prop::collection::vec(vma, 0..10)
}

fn range(start: u64, end: u64) -> AddrRange {
    AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).expect("start before end")
}

/// An entry point in one of the VMAs, mostly; else anywhere.
fn entry(vmas: &[Vma]) -> BoxedStrategy<RemoteAddr> {
    if vmas.is_empty() {
        return any::<u64>().prop_map(RemoteAddr::new).boxed();
    }
    let ranges: Vec<AddrRange> = vmas.iter().map(|vma| vma.range).collect();
    prop_oneof![
        9 => prop::sample::select(ranges).prop_map(|range| {
            RemoteAddr::new(range.start().get() + range.len() / 2)
        }),
        1 => any::<u64>().prop_map(RemoteAddr::new),
    ]
    .boxed()
}

fn snapshot_of(
    pages: Pages,
    vmas: impl Strategy<Value = Vec<Vma>>,
) -> impl Strategy<Value = Snapshot> {
    vmas.prop_flat_map(move |vmas| {
        entry(&vmas).prop_map(move |entry| Snapshot { pages, vmas: vmas.clone(), entry })
    })
}

fn ordered_snapshot() -> impl Strategy<Value = Snapshot> {
    pages().prop_flat_map(|pages| snapshot_of(pages, ordered_vmas(pages)))
}

fn odd_snapshot() -> impl Strategy<Value = Snapshot> {
    pages().prop_flat_map(|pages| snapshot_of(pages, odd_vmas()))
}

/// Plans with one copying backing and nothing else.
fn plan_by(snapshot: &Snapshot, backing: Backing) -> Plan {
    plan(snapshot, &Means { copies: &[backing], ..Means::default() })
}

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![Just(Backing::Image), Just(Backing::Hugetlb), Just(Backing::Pagecache)]
}

/// Checks the invariants of each text's plan, even for an invalid snapshot.
fn check_text(text: &TextPlan, snapshot: &Snapshot) -> Result<(), TestCaseError> {
    let vma = &text.vma;
    prop_assert!(snapshot.vmas.contains(vma), "a text VMA is one of the snapshot's");
    prop_assert!(vma.is_text() && !vma.range.is_empty());
    let mut planned = 0u64;
    for span in &text.spans {
        prop_assert!(vma.range.covers(span.range), "{:?} outside {:?}", span.range, vma.range);
        prop_assert!(!span.range.is_empty());
        prop_assert!(span.range.start().is_aligned(snapshot.pages.pmd));
        prop_assert!(span.range.end().is_aligned(snapshot.pages.pmd));
        let distance = span.range.start().get() - vma.range.start().get();
        prop_assert_eq!(Some(span.file_offset), vma.file_offset.checked_add(distance));
        prop_assert!(!vma.perms.write && !vma.perms.shared);
        prop_assert_eq!(Some(vma.file), snapshot.main_file());
        planned += span.range.len();
    }
    let rest: u64 = text.rest.iter().map(|&(_, bytes)| bytes).sum();
    prop_assert_eq!(planned + rest, vma.range.len(), "spans and rest are the whole text");
    prop_assert!(text.rest.iter().all(|&(_, bytes)| bytes > 0));
    Ok(())
}

fn check_no_overlap(plan: &Plan) -> Result<(), TestCaseError> {
    let spans: Vec<AddrRange> = plan.spans().map(|span| span.range).collect();
    for pair in spans.windows(2) {
        prop_assert!(pair[0].end() <= pair[1].start(), "{:?} and {:?}", pair[0], pair[1]);
    }
    Ok(())
}

/// A line of maps with the kernel's own columns (`show_map_vma`).
fn maps_line(vma: &Vma) -> Vec<u8> {
    let FileId { major, minor, inode } = vma.file;
    let mut line = format!(
        "{} {} {:08x} {major:02x}:{minor:02x} {inode} ",
        vma.range, vma.perms, vma.file_offset
    );
    if !vma.name.is_empty() {
        while line.len() < 73 {
            line.push(' ');
        }
    }
    let mut line = line.into_bytes();
    line.extend_from_slice(&vma.name);
    line
}

/// A name as the kernel would print it: newlines escaped, never a blank first.
fn printable_name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        name(),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|tail| {
            let mut name = b"/".to_vec();
            for byte in tail {
                if byte == b'\n' {
                    name.extend_from_slice(b"\\012");
                } else {
                    name.push(byte);
                }
            }
            name
        }),
    ]
}

fn any_vma() -> impl Strategy<Value = Vma> {
    let id = any::<(u32, u32, u64)>();
    (any::<(u64, u64)>(), perms(), any::<u64>(), id, printable_name()).prop_map(
        |((a, b), perms, file_offset, (major, minor, inode), name)| Vma {
            range: range(a.min(b), a.max(b)),
            perms,
            file_offset,
            file: FileId { major, minor, inode },
            name: name.into(),
            guarded: false,
        },
    )
}

/// Possible facts about a VMA's pages, some of them wrong; never as many bytes as an address space has.
fn entries(vmas: Vec<Vma>) -> impl Strategy<Value = Vec<Area>> {
    let count = vmas.len();
    let size = || prop_oneof![3 => Just(0u64), 1 => 0..4u64 << 30];
    let part = (0..8u64, 1..4u64, any::<bool>());
    let parts = prop::option::of(prop::collection::vec(part, 0..3));
    let facts = (size(), size(), parts, prop_oneof![Just(4u64 << 10), Just(2 << 20)]);
    prop::collection::vec(facts, count).prop_map(move |facts| {
        let entry = |(vma, (anon_huge, file_huge, parts, page_size)): (&Vma, _)| {
            let Some(parts): Option<Vec<(u64, u64, bool)>> = parts else {
                return Area {
                    vma: vma.clone(),
                    anon_huge,
                    file_huge,
                    page_size,
                    ..Area::default()
                };
            };
            let mut area = Area { page_size, ..Area::of(vma.clone()) };
            let mut at = vma.range.start();
            for (skipped, pages, of_file) in parts {
                let start = at.checked_add(skipped << 21);
                let part = start.and_then(|start| AddrRange::with_len(start, pages << 21));
                let Some(part) = part else { break };
                area.add_huge(part, of_file);
                at = part.end();
            }
            area
        };
        vmas.iter().zip(facts).map(entry).collect()
    })
}

fn notes(vmas: &[Vma]) -> BoxedStrategy<Vec<Note>> {
    let ranges: Vec<AddrRange> = vmas.iter().map(|vma| vma.range).collect();
    if ranges.is_empty() {
        return Just(Vec::new()).boxed();
    }
    let reason = prop::sample::select(Reason::all().collect::<Vec<_>>());
    let note =
        (prop::sample::select(ranges), reason).prop_map(|(range, reason)| Note { range, reason });
    prop::collection::vec(note, 0..3).boxed()
}

fn check_coverage(files: &[FileCoverage]) -> Result<(), TestCaseError> {
    for file in files {
        prop_assert!(file.huge_bytes <= file.text_bytes, "{file:?}");
        let rest: u64 = file.rest.iter().map(|rest| rest.bytes).sum();
        prop_assert_eq!(rest + file.huge_bytes, file.text_bytes, "{:?}", file);
        prop_assert_eq!(file.huge_bytes > 0, !file.by_backing.is_empty(), "{:?}", file);
        let mut reasons: Vec<Reason> = file.rest.iter().map(|rest| rest.reason).collect();
        reasons.dedup();
        prop_assert_eq!(reasons.len(), file.rest.len(), "a reason stands once: {:?}", file);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_stays_inside_the_main_text_and_adds_up(
        snapshot in ordered_snapshot(),
        backing in backing(),
    ) {
        let plan = plan_by(&snapshot, backing);
        prop_assert!(plan.spans().all(|span| span.backing == backing));
        prop_assert_eq!(plan.huge, snapshot.pages.pmd);
        for text in &plan.texts {
            check_text(text, &snapshot)?;
        }
        check_no_overlap(&plan)?;
        let texts = snapshot.vmas.iter().filter(|vma| vma.is_text()).count();
        prop_assert_eq!(plan.texts.len(), texts, "every text VMA is answered for");
        let rest: u64 = plan.texts.iter().flat_map(|text| &text.rest).map(|rest| rest.1).sum();
        prop_assert_eq!(plan.huge_bytes() + rest, plan.text_bytes());
    }

    #[test]
    fn no_span_touches_a_writable_shared_or_foreign_vma(snapshot in ordered_snapshot()) {
        let plan = plan_by(&snapshot, Backing::Image);
        let main = snapshot.main_file();
        for span in plan.spans() {
            for vma in &snapshot.vmas {
                let Perms { read, write, shared, .. } = vma.perms;
                let off_limits = !read || write || shared || Some(vma.file) != main;
                prop_assert!(!(off_limits && vma.range.overlaps(span.range)), "{span:?} {vma:?}");
            }
        }
    }

    #[test]
    fn every_whole_huge_page_of_private_main_text_is_planned(snapshot in ordered_snapshot()) {
        let plan = plan_by(&snapshot, Backing::Image);
        let main = snapshot.main_file();
        for text in &plan.texts {
            let Vma { range, perms, file, file_offset, .. } = text.vma;
            let ours = main == Some(file) && perms.read && !perms.write && !perms.shared;
            // A plan leaves a text alone if it runs past the largest file offset.
            let sound = file_offset.checked_add(range.len()).is_some();
            let whole = range.align_inward(snapshot.pages.pmd).map_or(0, AddrRange::len);
            let planned: u64 = text.spans.iter().map(|span| span.range.len()).sum();
            if ours && sound {
                prop_assert_eq!(planned, whole);
            } else if !ours {
                prop_assert_eq!(planned, 0);
            }
        }
    }

    #[test]
    fn a_plan_of_a_senseless_snapshot_keeps_to_each_text(snapshot in odd_snapshot()) {
        for text in &plan_by(&snapshot, Backing::Image).texts {
            check_text(text, &snapshot)?;
        }
    }

    #[test]
    fn a_free_area_is_aligned_and_free(
        (snapshot, len) in pages().prop_flat_map(|pages| {
            (snapshot_of(pages, ordered_vmas(pages)), bytes(pages).prop_filter("not 0", |&len| len > 0))
        })
    ) {
        if let Some(area) = snapshot.free_area(len) {
            prop_assert_eq!(area.len(), len);
            prop_assert!(area.start().is_aligned(snapshot.pages.pmd));
            for vma in &snapshot.vmas {
                prop_assert!(!area.overlaps(vma.range), "{area:?} lies over {vma:?}");
            }
        }
    }

    #[test]
    fn a_free_area_is_found_where_a_gap_has_two_huge_pages_to_spare(
        (snapshot, len) in pages().prop_flat_map(|pages| {
            (snapshot_of(pages, ordered_vmas(pages)), bytes(pages).prop_filter("not 0", |&len| len > 0))
        })
    ) {
        let user = |vma: &&Vma| vma.range.start().get() < 1 << 63;
        let vmas: Vec<&Vma> = snapshot.vmas.iter().filter(user).collect();
        let gap = |pair: &[&Vma]| pair[1].range.start().get() - pair[0].range.end().get();
        let widest = vmas.windows(2).map(gap).max().unwrap_or(0);
        let found = snapshot.free_area(len).is_some();
        if widest >= len + 2 * snapshot.pages.pmd.bytes() {
            prop_assert!(found, "the widest gap has {widest:#x} bytes, {len:#x} asked for");
        }
        if widest < len {
            prop_assert!(!found);
        }
    }

    #[test]
    fn a_free_area_of_a_senseless_snapshot_does_not_panic(
        snapshot in odd_snapshot(),
        len in 1..u64::MAX,
    ) {
        if let Some(area) = snapshot.free_area(len) {
            prop_assert_eq!(area.len(), len);
            prop_assert!(area.start().is_aligned(snapshot.pages.pmd));
        }
    }

    #[test]
    fn a_vma_survives_being_printed_and_parsed(vma in any_vma()) {
        prop_assert_eq!(&maps::parse_vma(&maps_line(&vma), 1).expect("a line of maps"), &vma);
    }

    #[test]
    fn a_file_of_maps_lines_survives_too(vmas in pages().prop_flat_map(ordered_vmas)) {
        let lines: Vec<Vec<u8>> = vmas.iter().map(maps_line).collect();
        let mut text = lines.join(&b'\n');
        text.push(b'\n');
        prop_assert_eq!(maps::parse(&text).expect("lines of maps"), vmas);
    }

    #[test]
    fn coverage_accounts_for_every_byte_of_text(
        (entries, pages, notes) in pages().prop_flat_map(|pages| {
            (ordered_vmas(pages), Just(pages)).prop_flat_map(|(vmas, pages)| {
                let notes = notes(&vmas);
                (entries(vmas), Just(pages), notes)
            })
        })
    ) {
        let files = coverage(&entries, pages, &notes, &[]);
        check_coverage(&files)?;
        let text: u64 = entries.iter().filter(|e| e.vma.is_text()).map(|e| e.vma.range.len()).sum();
        prop_assert_eq!(files.iter().map(|file| file.text_bytes).sum::<u64>(), text);
        prop_assert!(files.windows(2).all(|pair| pair[0].text_bytes >= pair[1].text_bytes));
    }
}
