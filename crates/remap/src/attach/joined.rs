//! Joins the pieces of a revert with the file's own pages beside them.
//!
//! The kernel joins mappings of one open file only (`can_vma_merge_after` in `mm/vma.c` compares `vm_file`), and a revert
//! opens the file anew. Text that was divided by a copy would stay divided, and some tools look for the segment that
//! begins where a mapping begins. A revert therefore also maps anew what the copies had left of their segment, if that is
//! short: the rests of a text that was copied as a whole.

use std::ops::Range;

use tiexec_core::addr::AddrRange;
use tiexec_core::area::Area;
use tiexec_core::file_ranges::Part;
use tiexec_core::order;
use tiexec_core::proc::maps::{FileId, Vma};

use crate::protection;

/// A range of TiExec's text, and the part of the file that belongs there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub part: Part,
    /// The protection that the file's mapping gets.
    pub protection: i32,
    /// The segment of the file around the part.
    pub segment: Part,
}

impl Piece {
    /// Returns how many bytes of text it has.
    pub(super) fn text_bytes(&self) -> u64 {
        if self.part.text { self.part.range.len() } else { 0 }
    }
}

/// Pieces that become one mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The part of the file that is mapped: the pieces, and the file's own pages between and beside them.
    pub part: Part,
    /// The mappings beside and between the pieces.
    pub beside: Vec<Vma>,
    /// Which of the pieces.
    pub pieces: Range<usize>,
}

/// `pieces` are those of the file.
impl Run {
    /// Returns the range from its first piece to its last. The pages beside it come back when the program needs them.
    pub(super) fn populated(&self, pieces: &[Piece]) -> AddrRange {
        let of_run = &pieces[self.pieces.clone()];
        of_run.iter().map(|piece| piece.part.range).reduce(AddrRange::hull).unwrap_or_default()
    }

    /// Returns whether it has nothing besides its pieces, and one piece.
    pub(super) fn is_one_piece(&self, pieces: &[Piece]) -> bool {
        matches!(&pieces[self.pieces.clone()], [piece] if piece.part == self.part)
    }

    /// Returns a run for each of its pieces alone.
    pub(super) fn apart(&self, pieces: &[Piece]) -> impl Iterator<Item = Self> {
        let alone = |index: usize| Self {
            part: pieces[index].part,
            beside: Vec::new(),
            pieces: index..index + 1,
        };
        self.pieces.clone().map(alone)
    }
}

/// Sorts the pieces of a file, text first, and finds the runs that they make with `own`, the process's other areas in
/// address order. `may_join` tells of one of these whether it may be mapped anew.
pub(super) fn runs(
    pieces: &mut [Piece],
    id: FileId,
    own: &[&Area],
    may_join: impl Fn(&Vma) -> bool,
) -> Vec<Run> {
    // Widened page cache loses its text first.
    order::by_key(pieces, |piece| (!piece.part.text, piece.part.range.start()));
    let mut runs: Vec<Run> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let (mut part, mut beside) = (piece.part, Vec::new());
        let continues = |area: &Area| {
            let vma = &area.vma;
            let of_segment = piece
                .segment
                .within(vma.range)
                .is_some_and(|part| part.range == vma.range && part.file_offset == vma.file_offset);
            of_segment
                && vma.file == id
                && !vma.perms.shared
                && !area.keyed
                && protection::of(vma) == piece.protection
                && may_join(vma)
        };
        let start = own.partition_point(|area| area.vma.range.end() <= part.range.start());
        let (below, above) = own.split_at(start);
        // The run below has taken what lies between.
        let taken = runs.last().map(|run| run.part.range.end());
        for area in below.iter().rev() {
            let end = area.vma.range.end();
            if end != part.range.start() || taken >= Some(end) || !continues(area) {
                break;
            }
            part = piece.widened(part, area.vma.range);
            beside.push(area.vma.clone());
        }
        for area in above {
            if area.vma.range.start() != part.range.end() || !continues(area) {
                break;
            }
            part = piece.widened(part, area.vma.range);
            beside.push(area.vma.clone());
        }
        match runs.last_mut() {
            Some(last)
                if part.range.start() <= last.part.range.end()
                    && pieces[last.pieces.start].is_like(piece) =>
            {
                last.part = piece.widened(last.part, part.range);
                last.beside.append(&mut beside);
                last.pieces.end = index + 1;
            }
            _ => runs.push(Run { part, beside, pieces: index..index + 1 }),
        }
    }
    runs
}

impl Piece {
    fn is_like(&self, other: &Self) -> bool {
        (self.segment, self.protection) == (other.segment, other.protection)
    }

    /// Returns `part`, a part of this piece's segment, with another range of the segment that touches it.
    fn widened(&self, part: Part, range: AddrRange) -> Part {
        self.segment.within(part.range.hull(range)).unwrap_or(part)
    }
}

#[cfg(test)]
mod tests {
    use tiexec_core::addr::RemoteAddr;
    use tiexec_core::proc::maps;

    use super::*;
    use crate::protection::TEXT;

    fn range(start: u64, end: u64) -> AddrRange {
        AddrRange::new(RemoteAddr::new(start), RemoteAddr::new(end)).unwrap()
    }

    fn text(start: u64, end: u64) -> Part {
        Part { range: range(start, end), file_offset: start - 0x40_0000, text: true }
    }

    /// The runs that copies at `copies` make in a segment of text at 0x401000 to 0xa03000.
    fn runs_of(copies: &[(u64, u64)], own: &str, written: u64) -> Vec<(u64, u64, usize)> {
        let vmas = maps::parse(own.as_bytes()).unwrap();
        let areas: Vec<Area> = vmas.into_iter().map(Area::of).collect();
        let id = areas[0].vma.file;
        let segment = text(0x40_1000, 0xa0_3000);
        let piece = |&(start, end): &(u64, u64)| Piece {
            part: text(start, end),
            protection: TEXT,
            segment,
        };
        let mut pieces: Vec<Piece> = copies.iter().map(piece).collect();
        let may_join = |vma: &Vma| !vma.range.contains(RemoteAddr::new(written));
        let found = runs(&mut pieces, id, &areas.iter().collect::<Vec<_>>(), may_join);
        let run = |run: &Run| {
            let range = run.part.range;
            assert_eq!(run.part, segment.within(range).unwrap());
            (range.start().get(), range.end().get(), run.pieces.len())
        };
        found.iter().map(run).collect()
    }

    const HEAD: &str =
        "400000-401000 r--p 00000000 fe:00 7 /bin\n401000-600000 r-xp 00001000 fe:00 7 /bin\n";
    const TAIL: &str =
        "a00000-a03000 r-xp 00600000 fe:00 7 /bin\na03000-a04000 r--p 00603000 fe:00 7 /bin\n";

    #[test]
    fn the_rests_of_a_segment_join_its_copies() {
        let whole = runs_of(&[(0x60_0000, 0xa0_0000)], &format!("{HEAD}{TAIL}"), 0);
        assert_eq!(whole, [(0x40_1000, 0xa0_3000, 1)]);
        let between = "800000-900000 r-xp 00400000 fe:00 7 /bin\n";
        let copies = [(0x90_0000, 0xa0_0000), (0x60_0000, 0x80_0000)];
        let two = runs_of(&copies, &format!("{HEAD}{between}{TAIL}"), 0);
        assert_eq!(two, [(0x40_1000, 0xa0_3000, 2)]);
    }

    #[test]
    fn what_was_written_to_or_is_mapped_otherwise_stays() {
        let copy = [(0x60_0000, 0xa0_0000)];
        let written = runs_of(&copy, &format!("{HEAD}{TAIL}"), 0xa0_1000);
        assert_eq!(written, [(0x40_1000, 0xa0_0000, 1)]);
        for head in [
            "401000-600000 rwxp 00001000 fe:00 7 /bin\n",
            "401000-600000 r-xs 00001000 fe:00 7 /bin\n",
            "401000-600000 r-xp 00002000 fe:00 7 /bin\n",
            "401000-600000 r-xp 00001000 fe:00 8 /bin\n",
            "401000-5ff000 r-xp 00001000 fe:00 7 /bin\n",
        ] {
            let first = "300000-301000 r--p 00000000 fe:00 7 /bin\n";
            let found = runs_of(&copy, &format!("{first}{head}{TAIL}"), 0);
            assert_eq!(found, [(0x60_0000, 0xa0_3000, 1)], "{head}");
        }
    }
}
