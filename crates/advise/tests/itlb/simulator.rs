//! An exact simulation of TLBs, to test the model: LRU over all entries of each level.

use tiexec_advise::itlb::{Itlb, Level};

/// One LRU.
struct Lru {
    entries: usize,
    /// The most recent first.
    pages: Vec<(u64, bool)>,
}

impl Lru {
    fn new(entries: u32) -> Self {
        Self { entries: entries as usize, pages: Vec::new() }
    }

    /// References a page. Returns whether the page was there.
    fn reference(&mut self, page: (u64, bool)) -> bool {
        let at = self.pages.iter().position(|&held| held == page);
        if let Some(at) = at {
            self.pages[..=at].rotate_right(1);
        } else {
            self.pages.insert(0, page);
            self.pages.truncate(self.entries);
        }
        at.is_some()
    }
}

/// A level: entries for both page sizes together, or separate entries for each size.
struct Simulated(Lru, Option<Lru>);

impl Simulated {
    fn new(level: Level) -> Self {
        match level {
            Level::Shared(entries) => Self(Lru::new(entries), None),
            Level::Split { base, huge } => Self(Lru::new(base), Some(Lru::new(huge))),
        }
    }

    fn reference(&mut self, page: (u64, bool)) -> bool {
        match &mut self.1 {
            Some(of_huge) if page.1 => of_huge.reference(page),
            _ => self.0.reference(page),
        }
    }
}

/// Returns the misses of the first level, and of both, for these references.
pub(crate) fn misses(itlb: &Itlb, references: impl Iterator<Item = (u64, bool)>) -> (u64, u64) {
    let mut first = Simulated::new(itlb.first);
    let mut second = itlb.second_for_text().map(Simulated::new);
    let (mut missed, mut walks) = (0, 0);
    for page in references {
        if !first.reference(page) {
            missed += 1;
            if !second.as_mut().is_some_and(|second| second.reference(page)) {
                walks += 1;
            }
        }
    }
    (missed, walks)
}
