//! Moving a position-independent program, by property: over random segments, biases and neighbours.

use std::ops::Range;

use proptest::prelude::*;
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::elf::{ElfFacts, LoadSegment};
use tiexec_core::plan::{Backing, Means, Plan, plan};
use tiexec_core::proc::maps::{FileId, Perms, Vma};
use tiexec_core::rebase::{MainImage, Rebase};
use tiexec_core::snapshot::Snapshot;

const BASE: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

fn pages() -> Pages {
    Pages { base: PageSize::new(BASE).unwrap(), pmd: PageSize::new(HUGE).unwrap() }
}

const FILE: FileId = FileId { major: 8, minor: 1, inode: 42 };

/// A program as the kernel maps it: read-only data, one or two texts, data with a bss.
#[derive(Clone, Debug)]
struct Program {
    snapshot: Snapshot,
    image: MainImage,
}

/// Segments as linkers lay them: GNU ld with equal file offsets and vaddrs, lld and mold with vaddrs
/// that run ahead of the offsets by a page or more at each segment.
fn loads() -> impl Strategy<Value = Vec<LoadSegment>> {
    let text = 1u64..20 << 20;
    (text.clone(), prop::option::of(text), 0u64..0x20_0000, 0u64..3, 0u64..0x10_0000).prop_map(
        |(text, second, rodata, ahead, bss)| {
            let (mut offset, mut vaddr) = (0, 0);
            let mut loads = Vec::new();
            let mut push = |len: u64, extra: u64, exec: bool, write: bool| {
                loads.push(LoadSegment {
                    file_offset: offset,
                    vaddr,
                    file_size: len,
                    mem_size: len + extra,
                    exec,
                    write,
                });
                offset += len;
                vaddr += len + ahead * BASE;
                if ahead == 0 {
                    // A page of its own for each segment.
                    offset = (offset + BASE - 1) & !(BASE - 1);
                    vaddr = offset;
                }
            };
            push(rodata + 0x238, 0, false, false);
            push(text, 0, true, false);
            if let Some(second) = second {
                push(second, 0, true, false);
            }
            push(0x1234, bss, false, true);
            loads
        },
    )
}

fn mapped(loads: &[LoadSegment], bias: u64) -> Vec<Vma> {
    let mut vmas: Vec<Vma> = Vec::new();
    for load in loads {
        let down = |at: u64| at & !(BASE - 1);
        let up = |at: u64| down(at + BASE - 1);
        let perms = Perms { read: true, write: load.write, exec: load.exec, shared: false };
        let start = bias + down(load.vaddr);
        let file_end = bias + up(load.vaddr + load.file_size);
        let end = bias + up(load.vaddr + load.mem_size);
        let range = |start: u64, end: u64| {
            AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap()
        };
        let before = vmas.last().map_or(0, |vma| vma.range.end().get());
        let name = b"/usr/bin/program".to_vec();
        let file_offset = down(load.file_offset) + start.max(before).saturating_sub(start);
        vmas.push(Vma {
            range: range(start.max(before), file_end),
            perms,
            file_offset,
            file: FILE,
            name: name.into(),
            ..Vma::default()
        });
        if end > file_end {
            let range = range(file_end, end);
            vmas.push(Vma { range, perms, ..Vma::default() });
        }
    }
    vmas
}

fn program() -> impl Strategy<Value = Program> {
    let bias = (0x5555_5555_5000_u64 / BASE..0x6555_5555_5000 / BASE).prop_map(|page| page * BASE);
    // Sometimes something lies below the program, at a random distance.
    (loads(), bias, prop::option::of((0u64..30_000, 1u64..5000))).prop_map(
        |(loads, bias, neighbour)| {
            let facts = ElfFacts { position_independent: true, dynamic: true, loads, relro: None };
            let entry = facts.loads.iter().find(|load| load.exec).unwrap().vaddr;
            let image = MainImage::new(&facts, entry, RemoteAddr::new(bias + entry));
            let mut vmas = mapped(&facts.loads, bias);
            if let Some((distance, len)) = neighbour {
                let end = bias - distance * BASE;
                let range = AddrRange::new(RemoteAddr::new(end - len * BASE), RemoteAddr::new(end));
                let perms = Perms { read: true, write: true, ..Perms::default() };
                vmas.insert(0, Vma { range: range.unwrap(), perms, ..Vma::default() });
            }
            let entry = RemoteAddr::new(bias + entry);
            Program { snapshot: Snapshot { pages: pages(), vmas, entry }, image }
        },
    )
}

fn of(snapshot: &Snapshot, text: &Perms) -> usize {
    snapshot.vmas.iter().filter(|vma| vma.perms == *text && vma.file == FILE).count()
}

/// The bytes of text in whole huge pages, at the program's place.
fn whole_pages(snapshot: &Snapshot) -> u64 {
    let texts = snapshot.vmas.iter().filter(|vma| vma.is_text());
    texts.filter_map(|vma| vma.range.align_inward(pages().pmd)).map(AddrRange::len).sum()
}

/// A random choice of the chunks, as ascending ranges.
fn some_of(chunks: &[Range<u64>], bits: u64) -> Vec<Range<u64>> {
    let all = chunks.iter().flat_map(|chunk| (chunk.start..chunk.end).step_by(HUGE as usize));
    all.enumerate()
        .filter(|(index, _)| bits >> (index % 64) & 1 == 1)
        .map(|(_, start)| start..start + HUGE)
        .collect()
}

fn check_spans(plan: &Plan, snapshot: &Snapshot) -> Result<(), TestCaseError> {
    let moved = plan.rebase.as_ref().map_or_else(|| snapshot.clone(), |to| to.applied(snapshot));
    for span in plan.spans() {
        let text = moved.vma_at(span.range.start()).unwrap();
        prop_assert!(text.range.covers(span.range) && text.is_text());
        prop_assert!(span.range.start().is_aligned(pages().pmd) && !span.range.is_empty());
        prop_assert_eq!(span.range.len() % HUGE, 0);
        let into = span.range.start().get() - text.range.start().get();
        prop_assert_eq!(span.file_offset, text.file_offset + into);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_move_goes_down_to_a_free_and_congruent_place(program in program(), wanted in 0u64..512) {
        let bias = wanted * BASE;
        let Some(found) = Rebase::find(&program.snapshot, &program.image, bias) else {
            prop_assert!(program.image.has_bias(bias, pages().pmd));
            return Ok(());
        };
        prop_assert_eq!(found.to.len(), found.from.len());
        prop_assert!(found.to.end() <= found.from.start(), "down, and clear of the old place");
        prop_assert!(program.snapshot.vmas.iter().all(|vma| !vma.range.overlaps(found.to)));
        let moved_bias = program.image.load_bias - (found.from.start().get() - found.to.start().get());
        prop_assert_eq!(moved_bias % HUGE, bias);
        // The kernel's entropy stays: two biases a huge page apart stay apart, unless something is
        // in the way.
        if program.snapshot.vmas[0].file == FILE {
            let gap = found.from.start().get() - found.to.end().get();
            prop_assert!(gap < HUGE, "no further down than the alignment needs: {gap:#x}");
        }
    }

    #[test]
    fn every_piece_moves_by_the_same_distance(program in program(), wanted in 0u64..512) {
        let Some(found) = Rebase::find(&program.snapshot, &program.image, wanted * BASE) else {
            return Ok(());
        };
        let after = found.applied(&program.snapshot);
        prop_assert_eq!(after.vmas.len(), program.snapshot.vmas.len());
        prop_assert!(after.vmas.windows(2).all(|pair| pair[0].range.end() <= pair[1].range.start()));
        let text = Perms { read: true, exec: true, ..Perms::default() };
        prop_assert_eq!(of(&after, &text), of(&program.snapshot, &text));
        let distance = found.from.start().get() - found.to.start().get();
        prop_assert_eq!(program.snapshot.entry.get() - after.entry.get(), distance);
        for piece in &found.pieces {
            let there = found.moved_range(piece.range).unwrap();
            prop_assert_eq!(piece.range.start().get() - there.start().get(), distance);
            prop_assert!(after.vmas.iter().any(|vma| vma.range == there && vma.file == piece.file));
        }
    }

    #[test]
    fn what_the_page_cache_holds_of_the_largest_text_is_planned_from_it(
        program in program(),
        bits in any::<u64>(),
        copies in prop::sample::subsequence(vec![Backing::Store, Backing::Image], 0..=2),
    ) {
        let Program { snapshot, image } = &program;
        let bias = image.congruent_bias(pages().pmd).unwrap();
        let chunks = image.congruent_chunks(bias, pages());
        let folios = some_of(&chunks, bits);
        let plan = plan(snapshot, &Means { image: Some(image), folios: &folios, copies: &copies, ..Means::default() });
        check_spans(&plan, snapshot)?;
        let cached: u64 = folios.iter().map(|folio| folio.end - folio.start).sum();
        let all: u64 = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        let by_cache = plan.span_bytes_by(Backing::Pagecache);
        if cached * 2 >= all || !copies.contains(&Backing::Store) {
            prop_assert_eq!(by_cache, cached, "nothing copied that need not be");
        }
        for span in plan.spans() {
            match span.backing {
                Backing::Pagecache => {
                    prop_assert_eq!(span.file_offset % HUGE, 0);
                    let end = span.file_offset + span.range.len();
                    let held = (span.file_offset..end).step_by(HUGE as usize)
                        .all(|at| folios.iter().any(|folio| folio.contains(&at)));
                    prop_assert!(held, "only what is there");
                }
                Backing::Store => {
                    let distance = plan.rebase.as_ref().map_or(0, |rebase| {
                        rebase.from.start().get() - rebase.to.start().get()
                    });
                    let wanted = image.bias_for_copies(pages());
                    prop_assert_eq!((image.load_bias - distance) % HUGE, wanted);
                }
                _ => prop_assert!(copies.contains(&span.backing)),
            }
        }
        if !copies.contains(&Backing::Store) && folios.is_empty() && plan.rebase.is_some() {
            prop_assert!(plan.span_bytes() > whole_pages(snapshot), "not moved for nothing");
        }
    }

    #[test]
    fn copies_hold_as_much_text_wherever_the_kernel_put_the_program(
        program in program(),
        copy in prop::sample::select(vec![Backing::Store, Backing::Image, Backing::Hugetlb]),
    ) {
        let Program { snapshot, image } = &program;
        let copies = [copy];
        let plan = plan(snapshot, &Means { image: Some(image), copies: &copies, ..Means::default() });
        check_spans(&plan, snapshot)?;
        let texts: Vec<&LoadSegment> = image.loads.iter().filter(|load| load.is_text()).collect();
        if let [text] = texts[..] {
            let mapped = text.mapped(pages().base).unwrap();
            prop_assert_eq!(plan.span_bytes(), mapped.len() / HUGE * HUGE);
        } else if copy != Backing::Store {
            prop_assert!(plan.span_bytes() >= whole_pages(snapshot));
        }
    }

    #[test]
    fn a_program_that_is_not_position_independent_stays(program in program(), bits in any::<u64>()) {
        let Program { snapshot, image } = program;
        let fixed = MainImage { position_independent: false, ..image };
        let chunks = fixed.congruent_chunks(fixed.congruent_bias(pages().pmd).unwrap(), pages());
        let folios = some_of(&chunks, bits);
        let means = Means { image: Some(&fixed), folios: &folios, copies: &[Backing::Image], ..Means::default() };
        let plan = plan(&snapshot, &means);
        prop_assert!(plan.rebase.is_none());
        check_spans(&plan, &snapshot)?;
    }

    #[test]
    fn something_in_the_way_inside_the_image_forbids_the_move(program in program()) {
        let Program { mut snapshot, image } = program;
        let text = snapshot.vmas.iter().position(|vma| vma.perms.exec).unwrap();
        let mut stranger = snapshot.vmas[text].clone();
        stranger.file.inode = 7;
        let end = RemoteAddr::new(stranger.range.start().get() + BASE);
        stranger.range = AddrRange::new(stranger.range.start(), end).unwrap();
        let rest = AddrRange::new(end, snapshot.vmas[text].range.end()).unwrap();
        snapshot.vmas[text].range = rest;
        snapshot.vmas.insert(text, stranger);
        for bias in [0, 5 * BASE] {
            if !image.has_bias(bias, pages().pmd) {
                prop_assert!(Rebase::find(&snapshot, &image, bias).is_none());
            }
        }
    }
}
