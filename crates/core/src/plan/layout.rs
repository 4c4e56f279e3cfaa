//! Chooses the place where the main executable should lie.

use super::edges::potential;
use super::{Backing, Means, pieces};
use crate::config::{EdgePolicy, Edges};
use crate::file_ranges::Parts;
use crate::rebase::{MainImage, Rebase};
use crate::snapshot::Snapshot;

/// Decides where the main executable should lie: returns the move, if one is due and possible, and
/// the load bias that results, modulo the huge page, if it is known.
///
/// The executable is placed for the first of these that applies:
///
/// - the page cache, if it holds at least half of the text;
/// - the image store, if there is one;
/// - the part that the page cache holds, if there is one;
/// - as much of the text as can be huge, if copies may be made.
pub(super) fn layout(snapshot: &Snapshot, means: &Means<'_>) -> (Option<Rebase>, Option<u64>) {
    let Some(image) = means.image.filter(|_| !means.leave_main) else { return (None, None) };
    let pages = snapshot.pages;
    let here = image.load_bias & (pages.pmd.bytes() - 1);
    let reach = |bias: u64| {
        if image.has_bias(bias, pages.pmd) {
            return Some((None, Some(here)));
        }
        let found = match means.edges.edges {
            Edges::Conservative => Rebase::find(snapshot, image, bias),
            _ => Rebase::find_with_room(snapshot, image, bias),
        };
        found.map(|rebase| (Some(rebase), Some(bias)))
    };
    let for_cache = image.congruent_bias(pages.pmd).map(|bias| {
        let chunks = image.chunks(bias, pages, means.edges, u64::MAX);
        let all: u64 = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        let cached: u64 = chunks
            .iter()
            .flat_map(|chunk| pieces(chunk.clone(), means.folios))
            .filter(|(_, cached)| *cached)
            .map(|(piece, _)| piece.end - piece.start)
            .sum();
        (bias, cached, all)
    });
    let store = means.copies.contains(&Backing::Store);
    let cache_first = match for_cache {
        Some((_, cached, all)) => cached > 0 && (!store || cached >= all - cached),
        None => false,
    };
    let by_cache = || for_cache.and_then(|(bias, cached, _)| (cached > 0).then(|| reach(bias))?);
    let by_store = || if store { reach(image.bias_for_copies(pages)) } else { None };
    let found =
        if cache_first { by_cache().or_else(by_store) } else { by_store().or_else(by_cache) };
    let by_copies = || {
        let copied = !means.copies.is_empty();
        best_for_copies(image, means.edges, snapshot).filter(|_| copied).and_then(reach)
    };
    found.or_else(by_copies).unwrap_or((None, Some(here)))
}

/// Returns the load bias, modulo the huge page, at which most of the text can be huge, if that is more than where the
/// image is. If edges are wanted, then at that bias the tail of the text shares no huge page with the data behind it,
/// or its head none with the data before it.
fn best_for_copies(image: &MainImage, policy: EdgePolicy, snapshot: &Snapshot) -> Option<u64> {
    let (huge, base) = (snapshot.pages.pmd, snapshot.pages.base);
    if !image.position_independent {
        return None;
    }
    let reached = |bias: u64| {
        // This place is far from both ends of the address space.
        let parts = Parts::of(&image.loads, (1 << 46) + bias, base)?;
        Some(potential(&parts, policy, huge))
    };
    let here = reached(image.load_bias & (huge.bytes() - 1))?;
    let ends = image.loads.iter().filter(|load| !load.is_text()).flat_map(|load| {
        let end = load.vaddr.saturating_add(load.mem_size).saturating_add(base.bytes() - 1);
        [load.vaddr, end].map(|vaddr| vaddr & !(base.bytes() - 1))
    });
    let biases = ends.map(|vaddr| vaddr.wrapping_neg() & (huge.bytes() - 1));
    let biases = biases.chain([image.bias_for_copies(snapshot.pages)]);
    let best = biases.filter_map(|bias| Some((reached(bias)?, bias))).max()?;
    (best.0 > here).then_some(best.1)
}
