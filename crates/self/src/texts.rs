//! A quick look at the text that this process has mapped, to decide whether a closer look pays.

use tiexec_core::addr::AddrRange;
use tiexec_core::config::{Edges, Settings};
use tiexec_core::proc::maps::FileId;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{areas, thp};

/// Returns the text that is mapped, and the file of each.
pub(crate) fn mapped() -> Vec<(AddrRange, FileId)> {
    let vmas = ProcDir::this_process().and_then(|this| areas::vmas(&this)).unwrap_or_default();
    vmas.iter().filter(|vma| vma.is_text()).map(|vma| (vma.range, vma.file)).collect()
}

/// Returns whether some text could fill a huge page; most programs that inherit a preloaded library have none.
pub(crate) fn could_gain(settings: &Settings) -> bool {
    let Some(huge) = settings.pool_page().or_else(|| thp::pages().map(|pages| pages.pmd)) else {
        return true;
    };
    let with_edges = settings.edges.edges != Edges::Conservative;
    mapped().iter().any(|(range, _)| {
        range.align_inward(huge).is_some() || with_edges && range.len() >= huge.bytes() / 2
    })
}
