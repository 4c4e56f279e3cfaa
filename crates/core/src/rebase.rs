//! The place where a position-independent executable would have to lie for its text to be congruent.
//!
//! The kernel maps a file's huge page only at an address that equals the file offset modulo the size of a huge page.
//! But it loads a PIE at a random place. At the exec stop TiExec can move the PIE: it maps the segments again at a
//! better place, and changes the two entries of the auxiliary vector that point at the PIE. This module has only the
//! arithmetic.

use std::ops::Range;

use crate::addr::{AddrRange, PageSize, Pages, RemoteAddr};
use crate::config::EdgePolicy;
use crate::elf::{ElfFacts, LoadSegment};
use crate::file_ranges::Parts;
use crate::order;
use crate::proc::maps::Vma;
use crate::ragged::edge_chunks;
use crate::snapshot::Snapshot;

/// The largest huge page for which an image is moved, in bytes. Aligning to larger ones (base pages
/// of 16 or 64 KiB) would cost most of the entropy of its address.
pub const MAX_ALIGNMENT: u64 = 4 << 20;

/// The main executable as it is mapped: its segments and where they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MainImage {
    /// Its LOAD segments.
    pub loads: Vec<LoadSegment>,
    /// The run-time address minus the vaddr (modulo 2^64).
    pub load_bias: u64,
    /// True if it may lie elsewhere (ET_DYN).
    pub position_independent: bool,
}

impl MainImage {
    /// Makes the image from the file's facts; `file_entry` is `e_entry`, `entry` the run-time `AT_ENTRY`.
    pub fn new(facts: &ElfFacts, file_entry: u64, entry: RemoteAddr) -> Self {
        Self {
            loads: facts.loads.clone(),
            load_bias: entry.get().wrapping_sub(file_entry),
            position_independent: facts.position_independent,
        }
    }

    /// Returns the largest text segment, which decides where the image is placed.
    fn largest_text(&self) -> Option<&LoadSegment> {
        self.loads.iter().filter(|load| load.is_text()).max_by_key(|load| load.file_size)
    }

    /// Returns what the load bias must equal, modulo `huge`, for the largest text segment to be
    /// congruent with its file; `None` without text.
    pub fn congruent_bias(&self, huge: PageSize) -> Option<u64> {
        let text = self.largest_text()?;
        Some(text.file_offset.wrapping_sub(text.vaddr) & (huge.bytes() - 1))
    }

    /// Returns what the load bias should equal, modulo the huge page, for copies of the text: [`launch_bias`]; for an
    /// image that cannot be moved, its present load bias.
    pub fn bias_for_copies(&self, pages: Pages) -> u64 {
        if !self.position_independent {
            return self.load_bias & (pages.pmd.bytes() - 1);
        }
        let texts = self.loads.iter().filter(|load| load.is_text());
        let texts: Vec<AddrRange> = texts.filter_map(|load| load.mapped(pages.base)).collect();
        launch_bias(&texts, pages.pmd)
    }

    /// Returns whether the load bias equals `wanted` modulo `huge`.
    pub const fn has_bias(&self, wanted: u64, huge: PageSize) -> bool {
        self.load_bias.wrapping_sub(wanted) & (huge.bytes() - 1) == 0
    }

    /// Returns the file ranges, whole huge pages in ascending order, that can be PMD-mapped from the
    /// page cache once the load bias is `bias` modulo the huge page.
    pub fn congruent_chunks(&self, bias: u64, pages: Pages) -> Vec<Range<u64>> {
        let (huge, base) = (pages.pmd.bytes(), pages.base.bytes());
        let mut chunks: Vec<Range<u64>> = self
            .loads
            .iter()
            .filter(|load| load.is_text())
            .filter(|load| {
                load.file_offset.wrapping_sub(load.vaddr).wrapping_sub(bias) & (huge - 1) == 0
            })
            .filter_map(|load| {
                // The kernel maps whole base pages.
                let start = load.file_offset & !(base - 1);
                let end = load.file_offset.checked_add(load.file_size)?.checked_add(base - 1)?;
                let (start, end) =
                    (start.checked_add(huge - 1)? & !(huge - 1), end & !(base - 1) & !(huge - 1));
                (start < end).then_some(start..end)
            })
            .collect();
        order::by_key(&mut chunks, |chunk| chunk.start);
        chunks
    }

    /// Returns [`congruent_chunks`](Self::congruent_chunks) and the chunks of the wanted ragged edges, in a file of
    /// `file_len` bytes.
    pub fn chunks(
        &self,
        bias: u64,
        pages: Pages,
        edges: EdgePolicy,
        file_len: u64,
    ) -> Vec<Range<u64>> {
        let mut chunks = self.congruent_chunks(bias, pages);
        // Any place with that load bias will do; this one is far from both ends of the address space.
        if let Some(parts) = Parts::of(&self.loads, (1 << 46) + bias, pages.base) {
            chunks.extend(edge_chunks(&parts, edges, pages, file_len));
        }
        order::by_key(&mut chunks, |chunk| chunk.start);
        // Text may be mapped twice, and an edge may be the inside of another text.
        let mut apart: Vec<Range<u64>> = Vec::new();
        for chunk in chunks {
            let start = apart.last().map_or(chunk.start, |last| last.end.max(chunk.start));
            if start < chunk.end {
                apart.push(start..chunk.end);
            }
        }
        apart
    }

    /// Returns the [`chunks`](Self::chunks) where a launch places the image for the page cache; `None` if their text cannot be PMD-mapped
    /// there.
    pub fn cacheable_chunks(
        &self,
        pages: Pages,
        edges: EdgePolicy,
        file_len: u64,
    ) -> Option<Vec<Range<u64>>> {
        let bias = self.congruent_bias(pages.pmd)?;
        (self.position_independent || self.has_bias(bias, pages.pmd))
            .then(|| self.chunks(bias, pages, edges, file_len))
    }

    /// Returns the run-time addresses from the first segment to the end of the last, in whole base pages; `None` if
    /// these are invalid.
    pub fn range(&self, base: PageSize) -> Option<AddrRange> {
        let at = |vaddr: u64| RemoteAddr::new(vaddr.wrapping_add(self.load_bias));
        let first = self.loads.iter().map(|load| load.vaddr).min()?;
        let last = self.loads.iter().map(|load| load.vaddr.saturating_add(load.mem_size)).max()?;
        let range = AddrRange::new(at(first).align_down(base), at(last).align_up(base)?)?;
        (!range.is_empty()).then_some(range)
    }
}

/// Returns the load bias, modulo the huge page, at which the most text lies in whole huge pages; 0 if no other is better.
/// `texts` are vaddrs, whole base pages.
///
/// The kernel chooses any of 512 places within a huge page, and text of 5 MiB fills one whole huge page at some and two
/// at others. The best place depends on the file alone, so each launch gets the same text huge.
pub fn launch_bias(texts: &[AddrRange], huge: PageSize) -> u64 {
    let mask = huge.bytes() - 1;
    let size = u128::from(huge.bytes());
    let texts = texts.iter().copied().filter(|text| !text.is_empty());
    let joined = AddrRange::joined(texts.collect());
    let whole = |bias: u64| -> u128 {
        let at = |addr: RemoteAddr| u128::from(addr.get()) + u128::from(bias);
        let pages = |text: &AddrRange| {
            (at(text.end()) / size).saturating_sub(at(text.start()).div_ceil(size))
        };
        joined.iter().map(pages).sum()
    };
    // The sum is greatest at a bias where some text begins or ends with a huge page.
    let ends = joined.iter().flat_map(|text| [text.start(), text.end()]);
    let biases = ends.map(|end| end.get().wrapping_neg() & mask);
    let best = biases.map(|bias| (whole(bias), std::cmp::Reverse(bias))).max();
    best.filter(|&(pages, _)| pages > whole(0)).map_or(0, |(_, bias)| bias.0)
}

/// A move of the main executable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rebase {
    /// Its present range, in whole base pages.
    pub from: AddrRange,
    /// Its new range: of the same length, below `from`, and free.
    pub to: AddrRange,
    /// Its VMAs, where they are now, in address order.
    pub pieces: Vec<Vma>,
}

impl Rebase {
    /// Finds the highest free place below `image` at which its load bias is `bias` modulo the huge page. This short way
    /// down keeps all the randomness that the kernel gave the address, except the bits of the alignment.
    ///
    /// Returns `None` if the image is not position-independent, is already at such a place or shares its range with
    /// something else, or if there is no room below.
    pub fn find(snapshot: &Snapshot, image: &MainImage, bias: u64) -> Option<Self> {
        Self::find_above(snapshot, image, bias, AddrRange::start)
    }

    /// As [`find`](Self::find), but prefers a place whose first huge page is free from its beginning on: room for the
    /// text's head.
    pub fn find_with_room(snapshot: &Snapshot, image: &MainImage, bias: u64) -> Option<Self> {
        let pmd = snapshot.pages.pmd;
        Self::find_above(snapshot, image, bias, |to| to.start().align_down(pmd))
            .or_else(|| Self::find(snapshot, image, bias))
    }

    /// As [`find`](Self::find), but everything from the `floor` of a place to its end must be free.
    fn find_above(
        snapshot: &Snapshot,
        image: &MainImage,
        bias: u64,
        floor: impl Fn(AddrRange) -> RemoteAddr,
    ) -> Option<Self> {
        let pages = snapshot.pages;
        if !image.position_independent
            || pages.pmd.bytes() > MAX_ALIGNMENT
            || image.has_bias(bias, pages.pmd)
        {
            return None;
        }
        let from = image.range(pages.base)?;
        let main = snapshot.main_file()?;
        let pieces: Vec<Vma> =
            snapshot.vmas.iter().filter(|vma| vma.range.overlaps(from)).cloned().collect();
        let movable = |vma: &Vma| {
            // maps may show the bss as the heap that begins where the bss ends.
            let anonymous = !vma.is_file_backed() && (vma.name.is_empty() || vma.name == b"[heap]");
            from.covers(vma.range) && !vma.perms.shared && (vma.file == main || anonymous)
        };
        if !pieces.iter().all(movable) {
            return None;
        }

        let alignment = pages.pmd.bytes();
        let mut ceiling = from.start();
        loop {
            let lowest = ceiling.checked_sub(from.len())?;
            // How far the bias at `lowest` lies above the wanted one.
            let moved_by = lowest.get().wrapping_sub(from.start().get());
            let excess =
                image.load_bias.wrapping_add(moved_by).wrapping_sub(bias) & (alignment - 1);
            let start = lowest.checked_sub(excess)?;
            // No process may map page zero and its neighbours (vm.mmap_min_addr).
            if start.get() < alignment {
                return None;
            }
            let to = AddrRange::with_len(start, from.len())?;
            let free = AddrRange::new(floor(to), to.end())?;
            match snapshot.vmas.iter().find(|vma| vma.range.overlaps(free)) {
                None => return Some(Self { from, to, pieces }),
                Some(obstacle) => ceiling = obstacle.range.start(),
            }
        }
    }

    /// Returns the new address of the byte at `addr`; `None` if it is not in the image.
    pub fn moved(&self, addr: RemoteAddr) -> Option<RemoteAddr> {
        if !self.from.contains(addr) {
            return None;
        }
        self.to.start().checked_add(addr.get() - self.from.start().get())
    }

    /// Returns the new addresses of a piece of the image.
    pub fn moved_range(&self, range: AddrRange) -> Option<AddrRange> {
        AddrRange::with_len(self.moved(range.start())?, range.len())
    }

    /// Returns the image as it will be after the move.
    pub fn moved_image(&self, image: &MainImage) -> MainImage {
        let down = self.from.start().get().wrapping_sub(self.to.start().get());
        MainImage { load_bias: image.load_bias.wrapping_sub(down), ..image.clone() }
    }

    /// Returns the snapshot as it will be after the move.
    pub fn applied(&self, snapshot: &Snapshot) -> Snapshot {
        let mut vmas = snapshot.vmas.clone();
        for vma in &mut vmas {
            vma.range = self.moved_range(vma.range).unwrap_or(vma.range);
        }
        order::by_key(&mut vmas, |vma| vma.range.start());
        let entry = self.moved(snapshot.entry).unwrap_or(snapshot.entry);
        Snapshot { pages: snapshot.pages, vmas, entry }
    }
}
