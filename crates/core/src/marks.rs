//! Marks by which TiExec recognises its own mappings.
//!
//! Between staging and switch a running process has a mapping that is not its own: staged text. If TiExec dies then, the
//! thread that it had stopped removes the mapping on its way home. But that thread may be killed too, while another
//! process continues in the same address space. So each such mapping has a mark in its line of maps: it lies at an
//! address that is a hash of what it maps.
//!
//! Earlier versions also *claimed* the gaps that the edge of a text would cover in a running process. A claim maps nothing
//! that exists, at a file offset that is a hash of its address. This version makes no claim, and removes old ones.
//!
//! The hash covers the address of `AT_RANDOM`, which distinguishes one program's address space from another's and stays
//! the same until the next exec.
//!
//! ```text
//!        program          far from every mapping              libraries, mmap(2)    stack
//!   |····|======|···········[staged]··························|====================|====|
//!                  reach          reach        the kernel places new mappings ◄──
//! ```
//!
//! A staged mapping lies far from all others. Linux places a new mapping as high as it fits below the ones at the top
//! (`generic_get_unmapped_area_topdown` in `mm/mmap.c`; bottom-up from a base of its own in the legacy layout): 60,000
//! of them stayed within 9 TiB. So no other thread gets that place between two looks, and a way home may unmap the
//! place without knowing whether it is mapped.
//!
//! If an address space has no far place, for instance under ThreadSanitizer, TiExec takes one in its widest gap.
//!
//! A mapping of the program could have such a mark only by chance. The program must map a part of a file's segment
//! without write permission, at an address of its own choice where nothing else is near. The probability is then 2^-20,
//! or 2^-12 where no place is far.

use crate::addr::{AddrRange, Pages, RemoteAddr};
use crate::proc::maps::{FileId, Vma};

/// How many far places there are for one staged mapping: TiExec takes the first that is free.
const PLACES: usize = 32;
/// A place is far if nothing is mapped within this part of the address space on either side: 4 TiB of 128.
const REACH: u32 = 5;
/// A mapping staged at a far place stays apart from all others by this part of the address space: 64 GiB of 128 TiB.
const APART: u32 = 11;
/// A mapping staged in a gap stays apart from all others by this many bytes.
const ROOM: u64 = 1 << 30;
/// In a gap, one huge page of this many is a place: 8 GiB with huge pages of 2 MiB.
const PERIOD: u64 = 1 << 12;
/// The fewest and the most bits of an address that a program of 64 bits can have.
const BITS: std::ops::RangeInclusive<u32> = 36..=56;
/// The file page at which old claims begin: beyond the end of every file.
const CLAIMS: u64 = 1 << 40;

/// A mapping that is to be staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The file, as maps will show it.
    pub file: FileId,
    /// The offset of its first byte in the file.
    pub offset: u64,
    /// Its length in bytes; not 0.
    pub len: u64,
}

impl Mapping {
    fn of(vma: &Vma) -> Self {
        Self { file: vma.file, offset: vma.file_offset, len: vma.range.len() }
    }
}

/// The place of a staged mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its addresses; they begin on a huge page.
    pub range: AddrRange,
    /// True if no other thread can map something there meanwhile.
    pub far: bool,
}

/// The marks of one address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    at_random: RemoteAddr,
    pages: Pages,
}

impl Marks {
    /// Returns the marks of the address space whose auxiliary vector has this `AT_RANDOM`. Returns `None` if
    /// `at_random` is not an address on a stack at the top of an address space.
    pub fn of(at_random: u64, pages: Pages) -> Option<Self> {
        let marks = Self { at_random: RemoteAddr::new(at_random), pages };
        BITS.contains(&marks.bits()).then_some(marks)
    }

    /// Returns how many bits the addresses have: the stack lies at the top, whatever the processor could address.
    const fn bits(&self) -> u32 {
        u64::BITS - self.at_random.get().leading_zeros()
    }

    /// Returns the first place for a mapping that is far from all of `vmas`, which are in address order; otherwise a
    /// place in the middle of the widest gap. `None` if that gap is too narrow.
    pub fn place(&self, vmas: &[Vma], mapping: Mapping) -> Option<Place> {
        let mapped: Vec<AddrRange> = vmas.iter().map(|vma| vma.range).collect();
        match self.far_place(&mapped, mapping) {
            Some(range) => Some(Place { range, far: true }),
            None => self.near_place(&mapped, mapping).map(|range| Place { range, far: false }),
        }
    }

    fn far_place(&self, mapped: &[AddrRange], mapping: Mapping) -> Option<AddrRange> {
        let reach = 1u64 << (self.bits() - REACH);
        self.far_places(mapping).find(|&range| is_alone(mapped, range, reach))
    }

    fn near_place(&self, mapped: &[AddrRange], mapping: Mapping) -> Option<AddrRange> {
        let gaps = mapped.windows(2).filter_map(|pair| {
            // Skip the gap below the kernel's own area, which is at the top of the address space.
            let above = pair[1].start();
            (above.get() < 1 << 63).then(|| AddrRange::new(pair[0].end(), above)).flatten()
        });
        let widest = gaps.max_by_key(|gap| gap.len())?;
        let huge = self.pages.pmd.bytes();
        let middle = widest.start().get().checked_add(widest.len() / 2)? / huge;
        let to_place = self.phase(mapping).wrapping_sub(middle) & (PERIOD - 1);
        let above = middle.checked_add(to_place)?;
        [Some(above), above.checked_sub(PERIOD)].into_iter().flatten().find_map(|page| {
            let start = RemoteAddr::new(page.checked_mul(huge)?);
            let range = AddrRange::with_len(start, mapping.len)?;
            widened(range, ROOM).is_some_and(|room| widest.covers(room)).then_some(range)
        })
    }

    /// Returns which huge page of each [`PERIOD`] is a place for a mapping in a gap.
    fn phase(&self, mapping: Mapping) -> u64 {
        let Mapping { file, offset, len } = mapping;
        let mut word = [0; 8];
        self.hash(b"staged near", file, [offset, len]).fill(&mut word);
        u64::from_le_bytes(word) & (PERIOD - 1)
    }

    /// Returns a [far](Place::far) place with the addresses on either side where nothing is mapped.
    pub fn reach(&self, place: AddrRange) -> Option<AddrRange> {
        widened(place, 1u64 << (self.bits() - REACH))
    }

    /// Returns the addresses that are tried, in this order, for a mapping far from all others.
    fn far_places(&self, mapping: Mapping) -> impl Iterator<Item = AddrRange> {
        let Mapping { file, offset, len } = mapping;
        let mut bytes = [[0; 8]; PLACES];
        self.hash(b"staged", file, [offset, len]).fill(bytes.as_flattened_mut());
        let below_top = (1 << self.bits()) - 1;
        let huge = self.pages.pmd;
        bytes.into_iter().filter_map(move |word| {
            let at = RemoteAddr::new(u64::from_le_bytes(word) & below_top).align_down(huge);
            AddrRange::with_len(at, len)
        })
    }

    /// Returns the file offset at which an earlier version mapped a file to claim these addresses.
    pub fn claim_offset(&self, file: FileId, claimed: AddrRange) -> u64 {
        let mut word = [0; 8];
        self.hash(b"claim", file, [claimed.start().get(), claimed.len()]).fill(&mut word);
        (CLAIMS | u64::from_le_bytes(word) & (CLAIMS - 1)) << self.pages.base.bits()
    }

    /// Returns which of `vmas` have the mark of staged mappings or of old claims. `vmas` are the whole address space in
    /// address order.
    pub fn left<'a>(&self, vmas: &'a [Vma]) -> Vec<&'a Vma> {
        let could_be = |vma: &&Vma| self.is_claim(vma) || self.is_at_a_place(vma);
        let (mut marked, others): (Vec<&Vma>, Vec<&Vma>) = vmas.iter().partition(could_be);
        let others: Vec<AddrRange> = others.iter().map(|vma| vma.range).collect();
        let apart = 1u64 << (self.bits() - APART);
        marked.retain(|vma| {
            let mapping = Mapping::of(vma);
            self.is_claim(vma)
                || self.far_places(mapping).any(|place| place == vma.range)
                    && is_alone(&others, vma.range, apart)
                // TiExec stages nothing in a gap if a place is far.
                || is_alone(&others, vma.range, ROOM) && self.far_place(&others, mapping).is_none()
        });
        marked
    }

    fn is_claim(&self, vma: &Vma) -> bool {
        vma.is_file_backed()
            && vma.perms.is_none()
            && !vma.perms.shared
            && vma.file_offset == self.claim_offset(vma.file, vma.range)
    }

    /// Returns whether a mapping is at one of the places for such mappings.
    fn is_at_a_place(&self, vma: &Vma) -> bool {
        let Vma { range, perms, .. } = *vma;
        if !vma.is_file_backed() || !perms.read || perms.write || perms.shared {
            return false;
        }
        let (mapping, huge) = (Mapping::of(vma), self.pages.pmd);
        range.start().is_aligned(huge)
            && ((range.start().get() / huge.bytes()) & (PERIOD - 1) == self.phase(mapping)
                || self.far_places(mapping).any(|place| place == range))
    }

    fn hash(&self, what: &[u8], file: FileId, numbers: [u64; 2]) -> blake3::OutputReader {
        let mut hash = blake3::Hasher::new();
        hash.update(b"tiexec mark 1 ").update(what);
        let words = [self.at_random.get(), file.major.into(), file.minor.into(), file.inode];
        for word in words.into_iter().chain(numbers) {
            hash.update(&word.to_le_bytes());
        }
        hash.finalize_xof()
    }
}

/// Returns whether nothing of `mapped`, in address order, lies in `range` or within `margin` bytes on either side, and
/// something lies above: the stack, at least, is at the top.
fn is_alone(mapped: &[AddrRange], range: AddrRange, margin: u64) -> bool {
    let Some(around) = widened(range, margin) else { return false };
    let next = mapped.partition_point(|mapped| mapped.end() <= around.start());
    // Ignore the kernel's own area.
    let users = around.end()..RemoteAddr::new(1 << 63);
    mapped.get(next).is_some_and(|next| users.contains(&next.start()))
}

/// Returns a range and `margin` bytes on either side.
fn widened(range: AddrRange, margin: u64) -> Option<AddrRange> {
    AddrRange::new(range.start().checked_sub(margin)?, range.end().checked_add(margin)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PageSize;
    use crate::proc::maps;

    const PAGES: Pages =
        Pages { base: PageSize::new(4 << 10).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
    const AT_RANDOM: u64 = 0x7ffd_1234_5679;
    const FILE: FileId = FileId { major: 0xfe, minor: 1, inode: 4711 };
    const MAPPING: Mapping = Mapping { file: FILE, offset: 0x20_0000, len: 0x60_0000 };
    const PIE: &str = "555555554000-555555600000 r-xp 00000000 fe:01 1 /m\n\
                       555555700000-555555800000 rw-p 00000000 00:00 0 [heap]\n\
                       7f1234000000-7f1235000000 r-xp 00000000 fe:01 2 /lib\n\
                       7ffd12340000-7ffd12361000 rw-p 00000000 00:00 0 [stack]\n\
                       ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    fn marks() -> Marks {
        Marks::of(AT_RANDOM, PAGES).unwrap()
    }

    fn line(range: AddrRange, perms: &str, offset: u64, file: FileId) -> Vma {
        let FileId { major, minor, inode } = file;
        let line = format!("{range} {perms} {offset:08x} {major:x}:{minor:x} {inode} /m\n");
        maps::parse(line.as_bytes()).unwrap().remove(0)
    }

    /// Returns whether `left` finds the VMA among those of the program.
    fn is_left(marks: &Marks, vma: &Vma) -> bool {
        let mut vmas = maps::parse(PIE.as_bytes()).unwrap();
        vmas.push(vma.clone());
        vmas.sort_by_key(|vma| vma.range.start());
        let left = marks.left(&vmas);
        assert!(left.iter().all(|left| left.range == vma.range), "{left:?}");
        !left.is_empty()
    }

    #[test]
    fn what_is_staged_lies_far_from_everything_and_is_known_again() {
        let vmas = maps::parse(PIE.as_bytes()).unwrap();
        for offset in (0..256).map(|n| n << 12) {
            let mapping = Mapping { offset, ..MAPPING };
            let Place { range, far } = marks().place(&vmas, mapping).unwrap();
            assert!(far && range.start().is_aligned(PAGES.pmd) && range.len() == mapping.len);
            let around = marks().reach(range).unwrap();
            assert_eq!(around.len(), range.len() + (8 << 40));
            assert!(vmas.iter().all(|vma| !vma.range.overlaps(around)), "{range}");
            assert!(range.end().get() < 0x7ff0_0000_0000);
            for perms in ["r-xp", "r--p"] {
                assert!(is_left(&marks(), &line(range, perms, offset, FILE)));
            }
        }
    }

    #[test]
    fn what_differs_in_anything_has_no_mark() {
        let vmas = maps::parse(PIE.as_bytes()).unwrap();
        let range = marks().place(&vmas, MAPPING).unwrap().range;
        let Mapping { offset, .. } = MAPPING;
        let staged = line(range, "r-xp", offset, FILE);
        assert!(is_left(&marks(), &staged));
        let moved =
            |by: u64| AddrRange::with_len(range.start().checked_add(by).unwrap(), range.len());
        let shorter = AddrRange::with_len(range.start(), range.len() - 4096).unwrap();
        for other in [
            line(moved(2 << 20).unwrap(), "r-xp", offset, FILE),
            line(shorter, "r-xp", offset, FILE),
            line(range, "rw-p", offset, FILE),
            line(range, "r-xs", offset, FILE),
            line(range, "---p", offset, FILE),
            line(range, "r-xp", offset + 4096, FILE),
            line(range, "r-xp", offset, FileId { inode: 4712, ..FILE }),
            line(range, "r-xp", offset, FileId { minor: 2, ..FILE }),
            line(range, "r-xp", 0, FileId::default()),
        ] {
            assert!(!is_left(&marks(), &other), "{other:?}");
        }
        assert!(!is_left(&Marks::of(AT_RANDOM + 16, PAGES).unwrap(), &staged), "another program's");
        // With another mapping beside it, it may be the program's own.
        let beside = line(moved(1 << 30).unwrap(), "rw-p", 0, FileId::default());
        assert_eq!(marks().left(&[staged.clone(), beside]), Vec::<&Vma>::new());
        // Two mappings that TiExec staged may lie side by side.
        let mut vmas = maps::parse(PIE.as_bytes()).unwrap();
        vmas.insert(2, staged);
        vmas.sort_by_key(|vma| vma.range.start());
        assert_eq!(marks().left(&vmas).len(), 1);
    }

    #[test]
    fn a_claim_is_known_by_its_offset_beyond_every_file() {
        let gap = AddrRange::with_len(RemoteAddr::new(0xc1_0000), 0x1f_0000).unwrap();
        let offset = marks().claim_offset(FILE, gap);
        assert!((1 << 52..1 << 62).contains(&offset) && offset.is_multiple_of(4096), "{offset:#x}");
        assert!(is_left(&marks(), &line(gap, "---p", offset, FILE)));
        assert!(!is_left(&marks(), &line(gap, "r-xp", offset, FILE)));
        assert!(!is_left(&marks(), &line(gap, "---p", 0x10_0000, FILE)), "as ld.so reserves");
        let part = AddrRange::with_len(gap.start(), 4096).unwrap();
        assert!(!is_left(&marks(), &line(part, "---p", offset, FILE)));
        // 64 KiB pages leave room too.
        let pages = Pages {
            base: PageSize::new(64 << 10).unwrap(),
            pmd: PageSize::new(512 << 20).unwrap(),
        };
        assert!(Marks::of(AT_RANDOM, pages).unwrap().claim_offset(FILE, gap) < 1 << 62);
    }

    #[test]
    fn where_no_place_is_far_one_in_the_widest_gap_is_known_again() {
        // As under a sanitizer: no gap is as wide as two reaches.
        let crowded = "000000400000-200000000000 ---p 00000000 00:00 0 \n\
                       240000000000-7ff000000000 ---p 00000000 00:00 0 \n\
                       7ffd12340000-7ffd12361000 rw-p 00000000 00:00 0 [stack]\n\
                       ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        let crowded = maps::parse(crowded.as_bytes()).unwrap();
        let gap = 0x2000_0000_0000..0x2400_0000_0000;
        for offset in (0..256).map(|n| n << 12) {
            let place = marks().place(&crowded, Mapping { offset, ..MAPPING }).unwrap();
            assert!(!place.far && place.range.start().is_aligned(PAGES.pmd));
            let (start, end) = (place.range.start().get(), place.range.end().get());
            assert!(start >= gap.start + ROOM && end <= gap.end - ROOM, "{place:?}");
            let with = |at: AddrRange| {
                let mut vmas = crowded.clone();
                vmas.push(line(at, "r-xp", offset, FILE));
                vmas.sort_by_key(|vma| vma.range.start());
                marks().left(&vmas).into_iter().map(|vma| vma.range).collect::<Vec<_>>()
            };
            assert_eq!(with(place.range), [place.range]);
            let beside = place.range.start().checked_add(2 << 20).unwrap();
            assert_eq!(with(AddrRange::with_len(beside, place.range.len()).unwrap()), []);
            // If places are far, TiExec stages nothing in a gap.
            assert!(!is_left(&marks(), &line(place.range, "r-xp", offset, FILE)), "{place:?}");
        }
        let full = "000000010000-7ffd12361000 ---p 00000000 00:00 0 [stack]\n";
        let full = maps::parse(full.as_bytes()).unwrap();
        assert_eq!(marks().place(&full, MAPPING), None);
        assert_eq!(marks().place(&[], MAPPING), None);
        let narrow = "000000010000-200000000000 ---p 00000000 00:00 0 \n\
                      200080000000-7ffd12361000 rw-p 00000000 00:00 0 [stack]\n";
        let narrow = maps::parse(narrow.as_bytes()).unwrap();
        assert_eq!(marks().place(&narrow, MAPPING), None);
    }

    #[test]
    fn small_address_spaces_have_places_too() {
        // aarch64 with 39 bits: a PIE at two thirds, libraries at the top.
        let small = "5555555000-5555600000 r-xp 00000000 fe:01 1 /m\n\
                     7f80000000-7f81000000 r-xp 00000000 fe:01 2 /lib\n\
                     7fdead0000-7fdeaf1000 rw-p 00000000 00:00 0 [stack]\n";
        let small = maps::parse(small.as_bytes()).unwrap();
        let marks = Marks::of(0x7f_deae_0000, PAGES).unwrap();
        for offset in (0..64).map(|n| n << 12) {
            let place = marks.place(&small, Mapping { offset, ..MAPPING }).unwrap();
            assert!(place.far && place.range.end().get() < 1 << 39, "{place:?}");
        }
        for odd in [0, 0x7fff_0000, 0xffff_8000_0000_0000, u64::MAX] {
            assert_eq!(Marks::of(odd, PAGES), None, "{odd:#x}");
        }
    }
}
