//! Text that mprotect(2) has cut in pieces: a huge page lies in one mapping, so text that spans two
//! mappings has none.

use super::TextPlan;
use crate::addr::{AddrRange, PageSize};
use crate::proc::maps::Vma;
use crate::skip::{Reason, SkipReason};

/// Notes in each text how much of its edges would be whole huge pages if the text and the pieces beside
/// it were one mapping. `texts` are in address order.
pub(super) fn tell(texts: &mut [TextPlan], huge: PageSize) {
    for pieces in texts.chunk_by_mut(|text, next| continues(&text.vma, &next.vma)) {
        tell_of(pieces, huge);
    }
}

/// Returns whether `next` continues `vma`, in memory and in the file.
fn continues(vma: &Vma, next: &Vma) -> bool {
    vma.range.end() == next.range.start()
        && vma.file == next.file
        && vma.file_offset.checked_add(vma.range.len()) == Some(next.file_offset)
}

/// Notes in `pieces`, which continue each other, how much of their edges would be whole huge pages if
/// they were one mapping.
fn tell_of(pieces: &mut [TextPlan], huge: PageSize) {
    let ends = pieces.first().zip(pieces.last());
    let whole = ends
        .and_then(|(first, last)| AddrRange::new(first.vma.range.start(), last.vma.range.end()))
        .and_then(|all| all.align_inward(huge));
    let Some(whole) = whole else { return };
    for piece in pieces {
        let own = piece.vma.range.align_inward(huge).map_or(0, AddrRange::len);
        let here = piece.vma.range;
        let start = here.start().max(whole.start());
        let end = here.end().min(whole.end());
        let cut = AddrRange::new(start, end).map_or(0, AddrRange::len).saturating_sub(own);
        let edges = |(reason, _): &&mut (Reason, u64)| {
            matches!(reason, Reason::Skipped(SkipReason::Edges | SkipReason::TooSmall))
        };
        let Some((_, bytes)) = piece.rest.iter_mut().find(edges) else { continue };
        let cut = cut.min(*bytes);
        *bytes -= cut;
        piece.rest.push((SkipReason::CutInPieces.into(), cut));
        piece.rest.retain(|&(_, bytes)| bytes > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Backing, RunningText, plan_running};
    use super::*;
    use crate::addr::Pages;
    use crate::config::EdgePolicy;
    use crate::plan::edges::{Around, Reserved};
    use crate::proc::maps;

    fn rests(maps: &str) -> Vec<Vec<(Reason, u64)>> {
        let text = |vma| RunningText {
            vma,
            folios: Vec::new(),
            copy: Some(Backing::Image),
            uncopied: None,
            kept: Vec::new(),
            leave: None,
            parts: None,
        };
        let texts: Vec<RunningText> =
            maps::parse(maps.as_bytes()).unwrap().into_iter().map(text).collect();
        let [base, pmd] = [4 << 10, 2 << 20].map(|size| PageSize::new(size).unwrap());
        let (pages, policy) = (Pages { base, pmd }, EdgePolicy::default());
        let reserved = Reserved::everything();
        let around = Around { pages, policy, vmas: &[], reserved: &reserved };
        let plan = plan_running(&around, &texts);
        plan.texts.into_iter().map(|text| text.rest).collect()
    }

    #[test]
    fn what_would_be_huge_in_one_piece_is_told_from_edges() {
        let rests = rests(
            "00400000-00500000 r-xp 00000000 fe:00 1 /m\n\
             00500000-00501000 --xp 00100000 fe:00 1 /m\n\
             00501000-00810000 r-xp 00101000 fe:00 1 /m\n",
        );
        use SkipReason::{CutInPieces, Edges};
        assert_eq!(rests[0], [(CutInPieces.into(), 0x10_0000)]);
        assert_eq!(rests[1], [(CutInPieces.into(), 0x1000)]);
        assert_eq!(rests[2], [(Edges.into(), 0x1_0000), (CutInPieces.into(), 0xf_f000)]);
    }

    #[test]
    fn pieces_of_other_files_or_places_are_none() {
        for beside in ["00100000 fe:00 2 /other", "00200000 fe:00 1 /m"] {
            let maps = format!(
                "00400000-00500000 r-xp 00000000 fe:00 1 /m\n00500000-00600000 r-xp {beside}\n"
            );
            assert_eq!(
                rests(&maps),
                vec![vec![(SkipReason::TooSmall.into(), 1 << 20)]; 2],
                "{beside}"
            );
        }
    }
}
