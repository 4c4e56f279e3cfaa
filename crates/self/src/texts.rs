//! A quick look at the text that this process has mapped, to decide whether a closer look pays.

use tiexec_core::addr::{AddrRange, PageSize};
use tiexec_core::config::{Edges, Settings};
use tiexec_core::proc::maps::FileId;
use tiexec_remap::attach::PrivateCopies;
use tiexec_remap::sources::Sources;
use tiexec_sys::loaded::{self, LoadedText};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{areas, thp};

use crate::treat::copies_at_start;

/// Returns the text that is mapped, and the file of each.
pub(crate) fn mapped() -> Vec<(AddrRange, FileId)> {
    let vmas = ProcDir::this_process().and_then(|this| areas::vmas(&this)).unwrap_or_default();
    vmas.iter().filter(|vma| vma.is_text()).map(|vma| (vma.range, vma.file)).collect()
}

/// Returns whether some text could become huge at the start; most programs that inherit a preloaded library have none. Makes
/// no system call but those for the size of a huge page.
pub(crate) fn could_gain(settings: &Settings) -> bool {
    let huge = settings.pool_page().or_else(|| thp::pages().map(|pages| pages.pmd));
    huge.is_none_or(|huge| loaded::texts().iter().any(|text| may_be_huge(text, settings, huge)))
}

fn may_be_huge(text: &LoadedText, settings: &Settings, huge: PageSize) -> bool {
    let LoadedText { range, file_start, of_program } = *text;
    let with_edges = settings.edges.edges != Edges::Conservative;
    let is_long_enough =
        range.align_inward(huge).is_some() || with_edges && range.len() >= huge.bytes() / 2;
    let sources = Sources::asked_for(settings.backing, settings.numa);
    let is_copied = of_program || copies_at_start(settings) == PrivateCopies::All;
    // The kernel maps a huge folio only where the address and the offset in the file are congruent.
    let is_congruent = file_start & (huge.bytes() - 1) == 0;
    is_long_enough && (sources.copy.is_some() && is_copied || sources.pagecache && is_congruent)
}

#[cfg(test)]
mod tests {
    use tiexec_core::addr::RemoteAddr;

    use super::*;

    const HUGE: u64 = 0x20_0000;

    #[test]
    fn only_text_with_a_source_may_be_huge() {
        let text = |len: u64, file_start: u64, of_program: bool| {
            let range = AddrRange::with_len(RemoteAddr::new(2 * HUGE), len).expect("it fits");
            LoadedText { range, file_start, of_program }
        };
        let odd = HUGE / 2;
        let (program, own) = (text(HUGE, odd, true), text(HUGE, HUGE, true));
        let (library, aligned) = (text(HUGE, odd, false), text(HUGE, HUGE, false));
        let (short, half) = (text(HUGE - 0x1000, 0, true), text(HUGE / 2, 0, true));
        let may = |text: &LoadedText, settings: &str| {
            let mut all = Settings::default();
            assert!(all.take_environment(settings).is_empty(), "{settings}");
            may_be_huge(text, &all, PageSize::new(HUGE).expect("a power of two"))
        };
        for (text, settings, expected) in [
            (program, "", true),
            (library, "", false),
            (aligned, "", true),
            (short, "", false),
            (short, "edges=pad", true),
            (half, "edges=aggressive", true),
            (library, "backing=image", true),
            (program, "backing=pagecache", false),
            (own, "backing=pagecache", true),
            (aligned, "numa=interleave", false),
            (program, "numa=interleave", true),
        ] {
            assert_eq!(may(&text, settings), expected, "{text:?} {settings}");
        }
    }
}
