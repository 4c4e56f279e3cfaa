//! Maps the addresses of a mapped file to its bytes, by its program headers and the place where it is
//! mapped.
//!
//! ```text
//!             rodata    text            rodata            data
//!   (nothing) |=========|===============|=======|(nothing)|#########|
//!             parts: whole base pages, the file's own bytes closed: never to be covered
//! ```
//!
//! A huge page at the edge of the text also holds other parts, or addresses at which nothing is. This module finds them
//! for a plan, for an image, and for a revert.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::addr::{AddrRange, PageSize, RemoteAddr};
use crate::elf::LoadSegment;
use crate::order;
use crate::proc::maps::{FileId, Vma};

/// Base pages that hold bytes of the file, unwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Its addresses; whole base pages.
    pub range: AddrRange,
    /// Position in the file of the first byte; a multiple of the base page.
    pub file_offset: u64,
    /// True if it is text; else it is read-only data.
    pub text: bool,
}

impl Part {
    /// Returns the part of this one that lies in `range`; `None` if no byte does.
    pub fn within(&self, range: AddrRange) -> Option<Self> {
        let shared = self.range.intersection(range)?;
        let into = shared.start().get() - self.range.start().get();
        Some(Self { range: shared, file_offset: self.file_offset.checked_add(into)?, ..*self })
    }

    /// Returns this part as far from `to` as it is from `from`; `None` if it has no room there.
    pub fn moved(self, from: RemoteAddr, to: RemoteAddr) -> Option<Self> {
        let into = self.range.start().get().checked_sub(from.get())?;
        let range = AddrRange::with_len(to.checked_add(into)?, self.range.len())?;
        Some(Self { range, ..self })
    }

    /// Returns where in the file the byte at `addr` would be, if the file were mapped in one piece as
    /// this part is; wrapping.
    pub fn offset_at(&self, addr: RemoteAddr) -> u64 {
        self.file_offset.wrapping_add(addr.get().wrapping_sub(self.range.start().get()))
    }

    fn meets(&self, vma: &Vma) -> bool {
        self.range.overlaps(vma.range)
    }

    /// Returns whether the VMA maps, where it meets this part, the same bytes of the file.
    fn agrees(&self, vma: &Vma) -> bool {
        vma.file_offset.wrapping_sub(vma.range.start().get())
            == self.file_offset.wrapping_sub(self.range.start().get())
    }
}

/// The parts of one file where it is mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// Ascending, disjoint, not empty.
    parts: Vec<Part>,
    /// Segments that are written to, or are odd; ascending.
    closed: Vec<Part>,
    load_bias: u64,
    /// True if no two segments share a base page.
    sound: bool,
    /// True if all of the file's text was seen at its place, and no mapping contradicts it.
    complete: bool,
}

impl Parts {
    /// Takes the parts from a list, ascending and disjoint. The segments are not known then.
    pub fn listed(parts: Vec<Part>) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Lays the segments out at a load bias, as the kernel and ld.so do: in whole base pages. `None`
    /// for segments that cannot be mapped.
    pub fn of(loads: &[LoadSegment], load_bias: u64, base: PageSize) -> Option<Self> {
        let mut all = Self { load_bias, complete: true, ..Self::default() };
        for load in loads.iter().filter(|load| load.mem_size > 0) {
            if load.vaddr.wrapping_sub(load.file_offset) & (base.bytes() - 1) != 0 {
                return None;
            }
            let start = RemoteAddr::new(load.vaddr.wrapping_add(load_bias));
            let end = start.checked_add(load.mem_size)?.align_up(base)?;
            let range = AddrRange::new(start.align_down(base), end)?;
            let file_offset = load.file_offset & !(base.bytes() - 1);
            let closed = load.write || load.mem_size != load.file_size;
            let part = Part { range, file_offset, text: load.exec && !closed };
            if closed { &mut all.closed } else { &mut all.parts }.push(part);
        }
        order::by_key(&mut all.parts, |part| part.range.start());
        order::by_key(&mut all.closed, |part| part.range.start());
        let mut ranges: Vec<AddrRange> = all.segments().map(|part| part.range).collect();
        order::by_key(&mut ranges, |range| range.start());
        all.sound = ranges.windows(2).all(|pair| pair[0].end() <= pair[1].start());
        Some(all)
    }

    /// Finds where a file with these segments is or could be mapped, from its VMAs among `vmas`. A place is
    /// [certain](Self::is_certain) if two conditions hold: every page of text is there, as a mapping of the file or of
    /// a VMA that `stands_in` for it; and no other mapping of the file contradicts. Certain places come first.
    pub fn find(
        loads: &[LoadSegment],
        base: PageSize,
        vmas: &[Vma],
        file: FileId,
        stands_in: impl Fn(&Vma) -> bool,
    ) -> Vec<Self> {
        let mut found: Vec<(Self, &Vma)> = Vec::new();
        let mut tried: BTreeSet<u64> = BTreeSet::new();
        for vma in vmas.iter().filter(|vma| vma.file == file && !stands_in(vma)) {
            for load in loads {
                let first = load.file_offset & !(base.bytes() - 1);
                let end = load.file_offset.saturating_add(load.file_size);
                if vma.file_offset < first || end <= vma.file_offset {
                    continue;
                }
                let vaddr =
                    (load.vaddr & !(base.bytes() - 1)).wrapping_add(vma.file_offset - first);
                let load_bias = vma.range.start().get().wrapping_sub(vaddr);
                if !tried.insert(load_bias) {
                    continue;
                }
                let Some(mut parts) = Self::of(loads, load_bias, base) else { continue };
                let is_text = |vma: &Vma, part: &Part| {
                    stands_in(vma) || vma.file == file && vma.perms.exec && part.agrees(vma)
                };
                let is_there = |part: &Part| {
                    covered(vmas, part.range, |vma| vma.is_text() && is_text(vma, part))
                };
                let mut of_file = in_range(vmas, parts.extent())
                    .filter(|vma| vma.file == file && !stands_in(vma));
                parts.complete = parts.texts().next().is_some()
                    && parts.texts().all(is_there)
                    && of_file.all(|vma| parts.agrees(vma) || parts.is_between(vma));
                found.push((parts, vma));
            }
        }
        // If two segments share a page of the file, each mapping that begins with this page gives a second place. Such
        // a place is wrong if a certain place accounts for the mapping.
        let certain: Vec<Self> = found
            .iter()
            .map(|(parts, _)| parts)
            .filter(|parts| parts.is_certain())
            .cloned()
            .collect();
        let is_told = |vma: &Vma| certain.iter().any(|parts| parts.agrees(vma));
        found.retain(|(parts, vma)| parts.is_certain() || !is_told(vma));
        let mut found: Vec<Self> = found.into_iter().map(|(parts, _)| parts).collect();
        order::by_key(&mut found, |parts| (!parts.is_certain(), parts.load_bias));
        found
    }

    /// Returns whether the VMA maps bytes of a segment at the segment's own addresses.
    fn agrees(&self, vma: &Vma) -> bool {
        self.segments().any(|part| part.meets(vma) && part.agrees(vma))
    }

    /// Returns whether a mapping of the file still shows this place; `vmas` are in address order.
    pub fn is_shown_by(&self, vmas: &[Vma], file: FileId) -> bool {
        in_range(vmas, self.extent()).any(|vma| vma.file == file && self.agrees(vma))
    }

    /// Returns whether the VMA, of this file, lies between segments and says nothing for or against this place: a rest
    /// of ld.so's first mapping there, or a rest of a widened mapping.
    fn is_between(&self, vma: &Vma) -> bool {
        !self.segments().any(|part| part.meets(vma))
            && (vma.perms.is_none() || self.continues_text(vma))
    }

    /// Returns whether the VMA, of this file, is executable and maps the bytes beside text in the file, as if the text
    /// continued there.
    pub fn continues_text(&self, vma: &Vma) -> bool {
        vma.perms.exec
            && !vma.perms.write
            && !vma.perms.shared
            && self.texts().any(|part| part.agrees(vma))
    }

    fn segments(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().chain(&self.closed)
    }

    /// Returns the addresses from the first segment to the end of the last.
    fn extent(&self) -> AddrRange {
        let start = self.segments().map(|part| part.range.start()).min();
        let end = self.segments().map(|part| part.range.end()).max();
        let extent = start.zip(end).and_then(|(start, end)| AddrRange::new(start, end));
        extent.unwrap_or_default()
    }

    /// Returns whether these parts are certain: no two segments share a base page, and all of the text was seen at its
    /// place.
    pub const fn is_certain(&self) -> bool {
        self.sound && self.complete
    }

    /// Returns the whole part that `part` was taken from, with the parts that continue it in memory and in the file.
    pub fn around(&self, part: &Part) -> Part {
        let mut around = *part;
        let is_whole = |whole: &&Part| whole.within(part.range).as_ref() == Some(part);
        let Some(whole) = self.parts.iter().position(|whole| is_whole(&whole)) else {
            return around;
        };
        let like = |other: &Part| {
            let offset = other.offset_at(part.range.start());
            other.text == part.text && offset == part.file_offset
        };
        let (below, above) = self.parts.split_at(whole);
        for other in below.iter().rev().chain(above) {
            let touches = other.range.end() == around.range.start()
                || other.range.start() == around.range.end();
            if like(other) && (touches || other.range.overlaps(around.range)) {
                around.range = around.range.hull(other.range);
                around.file_offset = other.offset_at(around.range.start());
            }
        }
        around
    }

    /// Returns whether any segment has addresses in `range`.
    pub fn is_at(&self, range: AddrRange) -> bool {
        self.is_closed(range) || self.within(range).next().is_some()
    }

    /// Returns the text parts, ascending.
    pub fn texts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.text)
    }

    /// Returns the parts of the file that lie in `range`, ascending. Where no part is, `range` holds nothing of the
    /// file.
    pub fn within(&self, range: AddrRange) -> impl Iterator<Item = Part> {
        self.parts.iter().filter_map(move |part| part.within(range))
    }

    /// Returns whether a part maps some of these bytes of the file.
    pub fn has_of_file(&self, bytes: Range<u64>) -> bool {
        self.parts.iter().any(|part| {
            let end = part.file_offset.saturating_add(part.range.len());
            part.file_offset < bytes.end && bytes.start < end
        })
    }

    /// Returns the addresses in `range` that no part covers, ascending.
    pub fn gaps(&self, range: AddrRange) -> Vec<AddrRange> {
        let mut gaps = Vec::new();
        let mut at = range.start();
        for part in self.within(range) {
            gaps.extend(AddrRange::new(at, part.range.start()).filter(|gap| !gap.is_empty()));
            at = part.range.end();
        }
        gaps.extend(AddrRange::new(at, range.end()).filter(|gap| !gap.is_empty()));
        gaps
    }

    /// Returns what a revert maps back in the place of a copy of `range`, ascending; `None` if this place does not tell: no part
    /// or a closed one is there, or the place is in doubt. In doubt, the bytes can identify text, but nothing else.
    pub fn content_of_copy(&self, range: AddrRange) -> Option<Vec<Part>> {
        let content: Vec<Part> = self.within(range).collect();
        let only_text = matches!(&content[..], [part] if part.text && part.range == range);
        (!content.is_empty() && !self.is_closed(range) && (self.is_certain() || only_text))
            .then_some(content)
    }

    /// Returns whether a segment that may be written to, or is odd, has addresses in `range`.
    pub fn is_closed(&self, range: AddrRange) -> bool {
        self.closed.iter().any(|closed| closed.range.overlaps(range))
    }

    /// Returns the bytes of text in `range`. Bytes that two segments claim count twice, so the sum may be larger than
    /// any address.
    pub fn text_bytes(&self, range: AddrRange) -> u64 {
        let texts = self.within(range).filter(|part| part.text);
        texts.map(|part| part.range.len()).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of all text.
    pub fn all_text_bytes(&self) -> u64 {
        self.texts().map(|part| part.range.len()).fold(0, u64::saturating_add)
    }

    /// Returns the difference between an address and its vaddr, modulo 2^64.
    pub const fn load_bias(&self) -> u64 {
        self.load_bias
    }

    /// Returns whether all of the VMA is mapped as these parts say: the file's bytes at their places, text executable
    /// and read-only data not, neither writable nor shared.
    pub fn describe(&self, vma: &Vma, range: AddrRange) -> bool {
        let Some(range) = vma.range.intersection(range) else { return false };
        let perms = vma.perms;
        perms.read
            && !perms.write
            && !perms.shared
            && self.gaps(range).is_empty()
            && self.within(range).all(|part| part.text == perms.exec && part.agrees(vma))
    }
}

/// Returns whether VMAs that are `right` cover the whole of `range`; `vmas` are in address order.
pub fn covered(vmas: &[Vma], range: AddrRange, right: impl Fn(&Vma) -> bool) -> bool {
    let mut at = range.start();
    for vma in in_range(vmas, range) {
        if vma.range.start() > at || !right(vma) {
            return false;
        }
        at = at.max(vma.range.end());
    }
    at >= range.end()
}

/// Returns the VMAs that overlap `range`; `vmas` are in address order. (A process may have 65530.)
pub fn in_range(vmas: &[Vma], range: AddrRange) -> impl Iterator<Item = &Vma> + Clone {
    let first = vmas.partition_point(|vma| vma.range.end() <= range.start());
    let from = vmas[first..].iter().take_while(move |vma| vma.range.start() < range.end());
    from.filter(move |vma| vma.range.overlaps(range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    const BASE: PageSize = PageSize::new(4 << 10).unwrap();
    const BIAS: u64 = 0x5555_0000_0000;

    fn load(file_offset: u64, vaddr: u64, file_size: u64, exec: bool, write: bool) -> LoadSegment {
        LoadSegment { file_offset, vaddr, file_size, mem_size: file_size, exec, write }
    }

    /// As lld links: the last page of one segment and the first of the next are one page of the file.
    fn lld() -> [LoadSegment; 3] {
        [
            load(0, 0, 0x1_1bbc, false, false),
            load(0x1_1bc0, 0x1_2bc0, 0x7_7230, true, false),
            load(0x8_8df0, 0x8_adf0, 0x58f0, false, true),
        ]
    }

    fn range(start: u64, end: u64) -> AddrRange {
        AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap()
    }

    #[test]
    fn parts_are_whole_base_pages_where_the_kernel_maps_them() {
        let parts = Parts::of(&lld(), BIAS, BASE).unwrap();
        let all: Vec<Part> = parts.within(range(BIAS, BIAS + 0x100_0000)).collect();
        let rodata = Part { range: range(BIAS, BIAS + 0x1_2000), file_offset: 0, text: false };
        let text = Part {
            range: range(BIAS + 0x1_2000, BIAS + 0x8_a000),
            file_offset: 0x1_1000,
            text: true,
        };
        assert_eq!(all, [rodata, text]);
        assert!(parts.is_closed(range(BIAS + 0x8_a000, BIAS + 0x8_b000)));
        assert!(!parts.is_closed(range(BIAS, BIAS + 0x8_a000)));
        assert_eq!(parts.text_bytes(range(BIAS, BIAS + 0x1_3000)), 0x1000);
        let inside = text.within(range(BIAS + 0x1_3000, BIAS + 0x1_4000)).unwrap();
        assert_eq!(inside.file_offset, 0x1_2000);
    }

    #[test]
    fn what_no_part_covers_is_a_gap() {
        let loads = [load(0, 0x1000, 0x1000, true, false), load(0x1000, 0x4000, 1, false, false)];
        let parts = Parts::of(&loads, 0, BASE).unwrap();
        let gaps = parts.gaps(range(0, 0x8000));
        assert_eq!(gaps, [range(0, 0x1000), range(0x2000, 0x4000), range(0x5000, 0x8000)]);
        assert_eq!(parts.gaps(range(0x1000, 0x2000)), []);
    }

    #[test]
    fn segments_that_share_a_page_leave_doubt_and_what_cannot_be_mapped_has_no_parts() {
        let sharing = [load(0, 0, 0x1800, true, false), load(0x1800, 0x1800, 0x10, false, true)];
        assert!(!Parts::of(&sharing, 0, BASE).unwrap().is_certain());
        assert_eq!(Parts::of(&[load(1, 0, 0x1000, true, false)], 0, BASE), None);
        assert_eq!(Parts::of(&[load(0, u64::MAX - 0xfff, 0x1000, true, false)], 0, BASE), None);
    }

    #[test]
    fn a_read_only_segment_that_ends_in_zeroes_is_closed() {
        let mut odd = load(0, 0, 0x1000, false, false);
        odd.mem_size = 0x3000;
        let parts = Parts::of(&[odd], 0, BASE).unwrap();
        assert!(parts.is_closed(range(0x2000, 0x3000)));
    }

    #[test]
    fn a_file_is_found_where_its_text_is_and_nowhere_else() {
        let maps = "555500000000-555500012000 r--p 00000000 fe:00 7 /lib\n\
                    555500012000-55550008a000 r-xp 00011000 fe:00 7 /lib\n\
                    55550008a000-555500090000 rw-p 00088000 fe:00 7 /lib\n";
        let vmas = maps::parse(maps.as_bytes()).unwrap();
        let file = vmas[0].file;
        let find = |vmas: &[Vma], stands_in: fn(&Vma) -> bool| {
            let mut found = Parts::find(&lld(), BASE, vmas, file, stands_in);
            // The page that two segments share could be at the place of either.
            found.retain(Parts::is_certain);
            found
        };
        let found = find(&vmas, |_| false);
        assert_eq!(found.iter().map(Parts::load_bias).collect::<Vec<_>>(), [BIAS]);
        assert!(found[0].describe(&vmas[0], vmas[0].range));
        assert!(found[0].describe(&vmas[1], vmas[1].range));
        assert!(!found[0].describe(&vmas[2], vmas[2].range));
        // Without all of its text the file is not there.
        assert_eq!(find(&vmas[..1], |_| false), []);
        // Another file lies in the place of the text, and stands in for it.
        let mut switched = vmas.clone();
        switched[1].file.inode = 9;
        assert_eq!(find(&switched, |_| false), []);
        assert_eq!(find(&switched, |vma| vma.file.inode == 9).len(), 1);
        // If the file that stands in covers more, the other mappings decide.
        let more = "555500000000-555500012000 r--p 00000000 fe:00 7 /lib\n\
                    555500012000-55550008a000 r-xp 00000000 fe:00 9 /ours\n\
                    55550008a000-555500090000 r--p 00088000 fe:00 7 /lib\n\
                    555500090000-5555000a0000 r-xp 00000000 fe:00 9 /ours\n";
        let more = maps::parse(more.as_bytes()).unwrap();
        let found = find(&more, |vma| vma.file.inode == 9);
        assert_eq!(found.iter().map(Parts::load_bias).collect::<Vec<_>>(), [BIAS]);
    }

    #[test]
    fn what_ld_so_reserves_between_segments_is_no_doubt() {
        let loads = [load(0, 0, 0x4000, true, false), load(0x8000, 0x8000, 0x2000, true, false)];
        let maps = |between: &str| {
            let maps = format!(
                "555500000000-555500004000 r-xp 00000000 fe:00 7 /lib\n\
                 555500004000-555500008000 {between} fe:00 7 /lib\n\
                 555500008000-55550000a000 r-xp 00008000 fe:00 7 /lib\n"
            );
            let vmas = maps::parse(maps.as_bytes()).unwrap();
            let mut found = Parts::find(&loads, BASE, &vmas, vmas[0].file, |_| false);
            found.retain(Parts::is_certain);
            found.len()
        };
        assert_eq!(maps("---p 00004000"), 1);
        assert_eq!(maps("r--p 00004000"), 0);
    }

    #[test]
    fn a_mapping_with_other_permissions_is_not_as_described() {
        let parts = Parts::of(&lld(), BIAS, BASE).unwrap();
        for (perms, offset, right) in [
            ("r--p", 0, true),
            ("r-xp", 0, false),
            ("rw-p", 0, false),
            ("r--s", 0, false),
            ("---p", 0, false),
            ("r--p", 0x1000, false),
        ] {
            let line = format!("555500000000-555500012000 {perms} {offset:08x} fe:00 7 /lib\n");
            let vmas = maps::parse(line.as_bytes()).unwrap();
            assert_eq!(parts.describe(&vmas[0], vmas[0].range), right, "{line}");
        }
    }
}
