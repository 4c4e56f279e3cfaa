//! Makes a process from any bytes. Its facts are each well-formed, but contradict each other: maps, the auxiliary
//! vector, the ELF headers, the pagemap and the page cache. Checks what must hold of every plan for that process.
//! Shared with the fuzz target.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::pod::bytes_of;
use object::{U16, U32, U64};
use tiexec_core::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use tiexec_core::area::Area;
use tiexec_core::config::{EdgePolicy, Edges};
use tiexec_core::coverage::{Note, coverage, is_ours};
use tiexec_core::elf::{ElfFacts, ElfHeader, native_machine};
use tiexec_core::file_ranges::{Parts, covered};
use tiexec_core::marks::{Mapping, Marks};
use tiexec_core::notes;
use tiexec_core::plan::edges::{Around, Reserved};
use tiexec_core::plan::{Backing, Means, Plan, RunningText, plan, plan_running};
use tiexec_core::proc::maps::{self, FileId, Vma};
use tiexec_core::proc::{auxv, pagemap};
use tiexec_core::ragged::edge_chunks;
use tiexec_core::rebase::{MainImage, Rebase};
use tiexec_core::skip::SkipReason;
use tiexec_core::snapshot::Snapshot;

/// The most mappings.
const MAPPINGS: u64 = 16;
/// The most segments of a file.
const SEGMENTS: usize = 6;
/// The number of files that are mapped.
const FILES: u64 = 3;
/// The end of user addresses.
const TOP: u64 = 1 << 47;

/// Bytes that decide; zeros after their end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, end: u64) -> u64 {
        u64::from(self.byte()) % end
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number of bytes: small, near a limit, or any.
    fn number(&mut self, pages: Pages) -> u64 {
        let (base, pmd) = (pages.base.bytes(), pages.pmd.bytes());
        let near = |middle: u64, away: u64| middle.wrapping_add(away).wrapping_sub(4 * base);
        match self.below(12) {
            0..4 => self.below(64) * base,
            4 | 5 => self.below(8) * pmd,
            6 => near(self.below(8) * pmd, self.below(9) * base),
            7 => near(TOP, self.below(9) * base),
            8 => near(1 << 63, self.below(9) * base),
            9 => near(0, self.below(9) * base),
            10 => u64::MAX - self.below(3),
            _ => self.word(),
        }
    }
}

impl Choices<'_> {
    /// A length as a linker makes it.
    fn length(&mut self, pages: Pages) -> u64 {
        let (base, pmd) = (pages.base.bytes(), pages.pmd.bytes());
        match self.below(4) {
            0 => (1 + self.below(32)) * base,
            1 => (1 + self.below(4)) * pmd,
            _ => (1 + self.below(4)) * pmd + self.below(64) * base - base,
        }
    }
}

/// A file, with its headers' facts and its true facts.
struct File {
    id: FileId,
    len: u64,
    header: ElfHeader,
    facts: ElfFacts,
    folios: Vec<Range<u64>>,
}

fn file(choices: &mut Choices<'_>, inode: u64, pages: Pages) -> Option<File> {
    let count = choices.below(SEGMENTS as u64 + 1) as usize;
    let (mut vaddr, mut file_offset) = (0_u64, 0_u64);
    let mut table = Vec::new();
    for index in 0..count {
        // Most segments follow each other, as a linker lays them out.
        let lies = choices.below(8) == 0;
        let size = if lies { choices.number(pages) } else { choices.length(pages) };
        if lies {
            vaddr = choices.number(pages);
            file_offset = choices.number(pages);
        }
        let mem_size = if choices.below(12) == 0 { choices.number(pages) } else { size };
        let flags = [elf::PF_R | elf::PF_X, elf::PF_R, elf::PF_R | elf::PF_W];
        let kinds = [elf::PT_LOAD, elf::PT_LOAD, elf::PT_NOTE, elf::PT_GNU_RELRO, elf::PT_INTERP];
        let kind = kinds[if lies { choices.below(5) as usize } else { 0 }];
        let flags = if index == 0 { flags[0] } else { flags[choices.below(3) as usize] };
        let header = ProgramHeader64::<LittleEndian> {
            p_type: U32::new(LittleEndian, kind),
            p_flags: U32::new(LittleEndian, flags),
            p_offset: U64::new(LittleEndian, file_offset),
            p_vaddr: U64::new(LittleEndian, vaddr),
            p_paddr: U64::new(LittleEndian, vaddr),
            p_filesz: U64::new(LittleEndian, size),
            p_memsz: U64::new(LittleEndian, mem_size),
            p_align: U64::new(LittleEndian, choices.number(pages)),
        };
        table.extend_from_slice(bytes_of(&header));
        vaddr = vaddr.wrapping_add(mem_size);
        file_offset = file_offset.wrapping_add(size);
    }
    let header = FileHeader64::<LittleEndian> {
        e_ident: elf::Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: elf::ELFDATA2LSB,
            version: elf::EV_CURRENT,
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(
            LittleEndian,
            if choices.below(4) == 0 { elf::ET_EXEC } else { elf::ET_DYN },
        ),
        e_machine: U16::new(LittleEndian, native_machine()),
        e_version: U32::new(LittleEndian, 1),
        e_entry: U64::new(LittleEndian, choices.below(255)),
        e_phoff: U64::new(LittleEndian, choices.number(pages)),
        e_shoff: U64::new(LittleEndian, 0),
        e_flags: U32::new(LittleEndian, elf::FileFlags(0)),
        e_ehsize: U16::new(LittleEndian, 64),
        e_phentsize: U16::new(LittleEndian, 56),
        e_phnum: U16::new(LittleEndian, count as u16),
        e_shentsize: U16::new(LittleEndian, 0),
        e_shnum: U16::new(LittleEndian, 0),
        e_shstrndx: U16::new(LittleEndian, elf::SymbolSection(0)),
    };
    let header = ElfHeader::parse(bytes_of(&header)).ok()?;
    let facts = ElfFacts::parse(&header, &table).ok()?;
    for part in notes::parts(&header, &table) {
        assert!(part.len <= 64 << 10, "a note of any length");
    }
    let mut folios: Vec<Range<u64>> = Vec::new();
    for _ in 0..choices.below(4) {
        let after = folios.last().map_or(0, |last| last.end);
        let huge = pages.pmd.bytes();
        let start = after + choices.below(4) * huge;
        folios.push(start..start + (1 + choices.below(3)) * huge);
    }
    let id = FileId { major: 8, minor: 1, inode };
    Some(File { id, len: choices.number(pages), header, facts, folios })
}

/// The text of maps: in address order, apart, in whole base pages.
struct Maps {
    text: String,
    at: u64,
    base: u64,
}

impl Maps {
    /// Adds a mapping, if a kernel could have it.
    fn add(&mut self, start: u64, len: u64, perms: &str, offset: u64, of: &str) {
        let Some(end) =
            start.checked_add(len).and_then(|end| end.checked_next_multiple_of(self.base))
        else {
            return;
        };
        let (start, offset) = (start & !(self.base - 1), offset & !(self.base - 1));
        if self.at <= start && start < end && end <= TOP {
            self.text += &format!("{start:x}-{end:x} {perms} {offset:08x} 08:01 {of}\n");
            self.at = end;
        }
    }

    /// Adds the mappings of a file's segments, most of them as its headers say.
    fn load(&mut self, choices: &mut Choices<'_>, file: &File, pages: Pages) {
        let step = if choices.below(2) == 0 { pages.pmd.bytes() } else { self.base };
        let lowest = file.facts.loads.iter().map(|load| load.vaddr & !(self.base - 1)).min();
        let Some(at) = self.at.checked_next_multiple_of(step) else { return };
        let bias = at.wrapping_add(choices.below(3) * step).wrapping_sub(lowest.unwrap_or(0));
        for load in &file.facts.loads {
            let perms = match (load.exec, load.write) {
                (true, false) => "r-xp",
                (false, false) => "r--p",
                _ => "rw-p",
            };
            let into = load.vaddr & (self.base - 1);
            let mut start = load.vaddr.wrapping_sub(into).wrapping_add(bias);
            let (mut len, mut offset) = (load.mem_size.saturating_add(into), load.file_offset);
            let (mut perms, mut of) = (perms, format!("{0} /bin/{0}", file.id.inode));
            match choices.below(32) {
                0 => start = start.wrapping_add(choices.number(pages)),
                1 => len = choices.number(pages),
                2 => offset = choices.number(pages),
                3 => perms = ["rwxp", "r-xs", "---p", "r-xp"][choices.below(4) as usize],
                4 => of = "7 /memfd:tiexec:node (deleted)".to_owned(),
                5 => of = format!("{} /store/node.tiexec", file.id.inode),
                6 => {
                    // Another mapping of the same bytes first.
                    self.add(start, self.base, perms, offset, &of);
                }
                _ => {}
            }
            self.add(start, len, perms, offset, &of);
        }
    }

    /// Adds anything.
    fn anything(&mut self, choices: &mut Choices<'_>, pages: Pages) {
        let gap = if choices.below(2) == 0 { 0 } else { choices.number(pages) };
        let inode = 1 + choices.below(FILES);
        let of = match choices.below(8) {
            0 => "0 [stack]".to_owned(),
            1 => "0 [heap]".to_owned(),
            2 => "99 /memfd:tiexec:node (deleted)".to_owned(),
            3 => format!("{inode} /store/node.tiexec"),
            4 | 5 => "0".to_owned(),
            _ => format!("{inode} /bin/{inode}"),
        };
        let perms = ["r-xp", "r--p", "rw-p", "---p", "rwxs"][choices.below(5) as usize];
        let len = if choices.below(2) == 0 { self.base } else { choices.number(pages) };
        self.add(self.at.saturating_add(gap), len, perms, choices.number(pages), &of);
    }
}

fn maps_text(choices: &mut Choices<'_>, files: &[File], pages: Pages) -> Vec<u8> {
    let mut maps = Maps { text: String::new(), at: 1 << 24, base: pages.base.bytes() };
    for _ in 0..choices.below(MAPPINGS) {
        match files.get(choices.below(2 * FILES) as usize) {
            Some(file) => maps.load(choices, file, pages),
            None => maps.anything(choices, pages),
        }
    }
    // A stack at the top, which shows how many bits addresses have.
    if choices.below(4) != 0 {
        let stack = TOP - 64 * maps.base;
        maps.add(stack, 32 * maps.base, "rw-p", 0, "0 [stack]");
    }
    maps.text.into_bytes()
}

fn auxv_bytes(choices: &mut Choices<'_>, files: &[File], vmas: &[Vma], pages: Pages) -> Vec<u8> {
    let texts: Vec<&Vma> = vmas.iter().filter(|vma| vma.is_text()).collect();
    let entry = files.first().map_or(0, |file| file.header.entry);
    let mut bytes = Vec::new();
    for key in [auxv::AT_ENTRY, auxv::AT_PHDR, auxv::AT_BASE, auxv::AT_RANDOM] {
        let value = match (key, choices.below(4)) {
            (_, 0) => choices.number(pages),
            (auxv::AT_RANDOM, _) => TOP - 1 - choices.below(255),
            _ => texts.first().map_or(0, |vma| vma.range.start().get() + entry),
        };
        bytes.extend(key.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.truncate(bytes.len() - choices.below(20) as usize);
    bytes
}

fn page_sizes(choices: &mut Choices<'_>) -> Pages {
    let of = |base: u64, pmd: u64| Pages {
        base: PageSize::new(base).expect("a power of two"),
        pmd: PageSize::new(pmd).expect("a power of two"),
    };
    if choices.below(4) == 0 { of(64 << 10, 512 << 20) } else { of(4 << 10, 2 << 20) }
}

/// Counts what a world had that could go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Had {
    /// Spans of whole huge pages in running text.
    pub(crate) spans: usize,
    /// Spans at edges.
    pub(crate) edges: usize,
    /// Places that were certain.
    pub(crate) certain: usize,
    /// Places that were not.
    pub(crate) doubtful: usize,
    /// Launches that move the program.
    pub(crate) moved: usize,
}

/// Checks all that is planned for the world that `input` makes.
pub(crate) fn check(input: &[u8]) -> Had {
    let choices = &mut Choices(input);
    let pages = page_sizes(choices);
    let files: Vec<File> = (1..=FILES).filter_map(|inode| file(choices, inode, pages)).collect();
    let text = maps_text(choices, &files, pages);
    let vmas = maps::parse(&text).expect("as a kernel prints it");
    let auxv = auxv_bytes(choices, &files, &vmas, pages);
    let at = |key| auxv::get(&auxv, key).unwrap_or(0);
    let policy = EdgePolicy {
        edges: [Edges::Pad, Edges::Aggressive, Edges::Conservative][choices.below(3) as usize],
        ..EdgePolicy::default()
    };
    let start_brk = match choices.below(4) {
        0 => None,
        1 => Some(choices.number(pages)),
        _ => Some(TOP / 2),
    };
    let reserved = Reserved::everything();
    let around = Around { pages, policy, vmas: &vmas, reserved: &reserved };

    let world = World { pages, files: &files, vmas: &vmas };
    let texts: Vec<RunningText> =
        vmas.iter().filter(|vma| vma.is_text()).map(|vma| world.text(choices, vma)).collect();
    let running = plan_running(&around, &texts);
    let mut had = Had {
        edges: running.spans().filter(|span| span.edge).count(),
        spans: running.spans().filter(|span| !span.edge).count(),
        ..Had::default()
    };
    for parts in files.iter().flat_map(|file| world.places(file)) {
        *if parts.is_certain() { &mut had.certain } else { &mut had.doubtful } += 1;
    }
    world.check_spans(&running);
    check_edges(&running, &vmas);
    assert_eq!(running.texts.len(), texts.len());

    let snapshot =
        Snapshot { pages, vmas: vmas.clone(), entry: RemoteAddr::new(at(auxv::AT_ENTRY)) };
    if let Some(file) = files.first() {
        let image = MainImage::new(&file.facts, file.header.entry, snapshot.entry);
        let copies = [Backing::Store, Backing::Image];
        let copies = &copies[choices.below(3) as usize..];
        let (image_of, folios) = (Some(&image), &file.folios[..]);
        let means =
            Means { leave_main: false, image: image_of, folios, copies, edges: policy, start_brk };
        let launch = plan(&snapshot, &means);
        match &launch.rebase {
            None => world.check_spans(&launch),
            Some(rebase) => {
                had.moved += 1;
                check_rebase(&snapshot, rebase);
            }
        }
    }
    for len in [pages.base.bytes(), pages.pmd.bytes(), choices.number(pages).max(1)] {
        if let Some(area) = snapshot.free_area(len) {
            assert!(vmas.iter().all(|vma| !vma.range.overlaps(area)), "{area:?} is not free");
        }
    }
    world.check_marks(choices, at(auxv::AT_RANDOM));
    world.check_pagemap(choices);
    world.check_coverage(choices);
    had
}

/// An edge of a running process has no gap.
fn check_edges(plan: &Plan, vmas: &[Vma]) {
    for span in plan.spans().filter(|span| span.edge) {
        assert!(covered(vmas, span.range, |_| true), "{span:?} covers a gap");
    }
}

fn check_rebase(snapshot: &Snapshot, rebase: &Rebase) {
    let moved = rebase.applied(snapshot);
    assert_eq!(moved.vmas.len(), snapshot.vmas.len());
    for pair in moved.vmas.windows(2) {
        assert!(pair[0].range.end() <= pair[1].range.start(), "{pair:?} over each other");
    }
}

struct World<'a> {
    pages: Pages,
    files: &'a [File],
    vmas: &'a [Vma],
}

impl World<'_> {
    fn file(&self, id: FileId) -> Option<&File> {
        self.files.iter().find(|file| file.id == id)
    }

    fn places(&self, file: &File) -> Vec<Parts> {
        let places = Parts::find(&file.facts.loads, self.pages.base, self.vmas, file.id, is_ours);
        assert!(places.len() <= self.vmas.len() * file.facts.loads.len());
        assert!(places.is_sorted_by_key(|parts| !parts.is_certain()));
        places
    }

    /// Returns a text with the facts that an attach would know.
    fn text(&self, choices: &mut Choices<'_>, vma: &Vma) -> RunningText {
        let file = self.file(vma.file);
        let places = file.map(|file| self.places(file)).unwrap_or_default();
        let is_there = |parts: &&Parts| parts.is_certain() && parts.describe(vma, vma.range);
        let parts = places.iter().find(is_there).cloned();
        for parts in &places {
            self.check_parts(parts, vma.range);
        }
        if let (Some(file), Some(parts)) = (file, &parts) {
            for edges in [Edges::Pad, Edges::Aggressive] {
                let policy = EdgePolicy { edges, ..EdgePolicy::default() };
                for chunk in edge_chunks(parts, policy, self.pages, file.len) {
                    assert!(chunk.end <= file.len && chunk.start < chunk.end);
                    assert_eq!(chunk.start % self.pages.pmd.bytes(), 0);
                }
            }
        }
        let mut kept = Vec::new();
        if let Some(whole) = vma.range.align_outward(self.pages.pmd) {
            let mut page = AddrRange::with_len(whole.start(), self.pages.pmd.bytes());
            for _ in 0..choices.below(3) {
                let Some(here) = page.filter(|page| whole.covers(*page)) else { break };
                if choices.below(2) == 0 {
                    kept.push((here, SkipReason::ModifiedText));
                }
                page = AddrRange::with_len(here.end(), self.pages.pmd.bytes());
            }
        }
        RunningText {
            vma: vma.clone(),
            folios: file.map(|file| file.folios.clone()).unwrap_or_default(),
            copy: [None, Some(Backing::Image), Some(Backing::Hugetlb)][choices.below(3) as usize],
            uncopied: None,
            kept,
            leave: (choices.below(8) == 0).then_some(SkipReason::NotSelected.into()),
            parts,
        }
    }

    /// Checks the parts that a revert would map in the place of TiExec's text.
    fn check_parts(&self, parts: &Parts, range: AddrRange) {
        let within: u64 =
            parts.within(range).map(|part| part.range.len()).fold(0, u64::saturating_add);
        let gaps = parts.gaps(range);
        assert!(gaps.iter().all(|gap| range.covers(*gap) && !gap.is_empty()));
        let _whatever = (parts.all_text_bytes(), parts.text_bytes(range), parts.is_at(range));
        if parts.is_certain() {
            let gaps: u64 = gaps.iter().map(|gap| gap.len()).sum();
            let closed = parts.is_closed(range);
            assert!(gaps + within == range.len(), "{within} and {gaps} of {range:?}, {closed}");
            assert!(parts.text_bytes(range) <= range.len());
        }
    }

    fn check_spans(&self, plan: &Plan) {
        let huge = self.pages.pmd;
        let mut all: Vec<AddrRange> = plan.spans().map(|span| span.range).collect();
        all.sort_by_key(|range| range.start());
        assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "over each other");
        for text in &plan.texts {
            assert!(text.spans.len() <= 4 * self.vmas.len() + 16, "more than the input says");
            for span in &text.spans {
                let range = span.range;
                assert!(!range.is_empty(), "{span:?}");
                assert!(range.start().is_aligned(huge) && range.end().is_aligned(huge), "{span:?}");
                // All mappings there are of the text's own file, and not writable.
                for vma in self.vmas.iter().filter(|vma| vma.range.overlaps(range)) {
                    assert_eq!(vma.file, text.vma.file, "{span:?} covers {vma:?}");
                    assert!(!vma.perms.write && !vma.perms.shared, "{span:?} covers {vma:?}");
                    assert!(vma.perms.exec || span.edge, "{span:?} covers {vma:?}");
                }
                if span.edge {
                    assert_eq!(range.len(), huge.bytes());
                    assert!(range.overlaps(text.vma.range), "{span:?}");
                } else {
                    assert!(text.vma.range.covers(range), "{span:?} beyond its text");
                    let into = range.start().get() - text.vma.range.start().get();
                    assert_eq!(Some(span.file_offset), text.vma.file_offset.checked_add(into));
                }
                if span.backing == Backing::Pagecache {
                    assert_eq!(span.file_offset % huge.bytes(), 0, "{span:?}");
                }
            }
        }
        assert!(plan.huge_bytes() <= plan.span_bytes());
        assert!(!plan.to_string().is_empty());
        assert!(!plan.to_json(None, None).contains('\n'));
    }

    fn check_marks(&self, choices: &mut Choices<'_>, at_random: u64) {
        let Some(marks) = Marks::of(at_random, self.pages) else { return };
        let left = marks.left(self.vmas);
        assert!(left.iter().all(|vma| vma.is_file_backed() && !vma.perms.write));
        let Some(vma) = self.vmas.first() else { return };
        let mapping = Mapping {
            file: vma.file,
            offset: choices.number(self.pages),
            len: choices.number(self.pages).max(1),
        };
        let Some(place) = marks.place(self.vmas, mapping) else { return };
        assert_eq!(place.range.len(), mapping.len);
        assert!(place.range.start().is_aligned(self.pages.pmd));
        assert!(self.vmas.iter().all(|vma| !vma.range.overlaps(place.range)), "{place:?}");
        if place.far {
            let reach = marks.reach(place.range).expect("a far place has one");
            assert!(self.vmas.iter().all(|vma| !vma.range.overlaps(reach)), "{place:?}");
        }
        let _anything = marks.claim_offset(vma.file, vma.range);
    }

    fn check_pagemap(&self, choices: &mut Choices<'_>) {
        let words: Vec<u64> = (0..choices.below(64)).map(|_| choices.word()).collect();
        for vma in self.vmas {
            let Some(whole) = vma.range.align_inward(self.pages.pmd) else { continue };
            let (pmd, base) = (self.pages.pmd, self.pages.base);
            let modified = pagemap::modified_pages(whole, &words, pmd, base);
            let populated = pagemap::populated_huge_pages(whole, &words, self.pages);
            for page in modified.iter().chain(&populated) {
                assert_eq!(page.len(), pmd.bytes());
            }
            assert!(modified.len() <= words.len() && populated.len() <= words.len());
        }
    }

    fn check_coverage(&self, choices: &mut Choices<'_>) {
        let mut originals = Vec::new();
        let areas: Vec<Area> = self
            .vmas
            .iter()
            .map(|vma| {
                let mut area = Area::of(vma.clone());
                if let Some(whole) = vma.range.align_inward(self.pages.pmd) {
                    let part = AddrRange::with_len(whole.start(), self.pages.pmd.bytes());
                    area.add_huge(part.unwrap_or_default(), choices.below(2) == 0);
                }
                area
            })
            .collect();
        for file in self.files {
            for parts in self.places(file).iter().filter(|parts| parts.is_certain()) {
                let of_file = self.vmas.iter().find(|vma| vma.file == file.id);
                originals.extend(parts.texts().filter_map(|part| {
                    let (range, file_offset) = (part.range, part.file_offset);
                    Some(Vma { range, file_offset, ..of_file?.clone() })
                }));
            }
        }
        originals.sort_by_key(|vma| vma.range.start());
        let note = self
            .vmas
            .first()
            .map(|vma| Note { range: vma.range, reason: SkipReason::ModifiedText.into() });
        let covered = coverage(&areas, self.pages, note.as_slice(), &originals);
        assert!(covered.len() <= 2 * (self.vmas.len() + originals.len()));
    }
}
