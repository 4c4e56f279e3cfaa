//! The places in its text where a process executes, for display: counts by address, and how few pages hold most of the
//! samples.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use tiexec_core::addr::RemoteAddr;

use crate::advice::{Circumstances, Placed, Way};
use crate::samples::Tally;

/// The number of cells that show a huge page.
pub const CELLS: usize = 64;
/// Most points of a curve.
const POINTS: usize = 120;

/// One huge page's worth of addresses.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its first address.
    pub start: RemoteAddr,
    /// Samples in it.
    pub samples: u64,
    /// True if some of its samples lie on huge pages now.
    pub huge_now: bool,
    /// True if some of its samples would lie on huge pages by the recommended way.
    pub huge_then: bool,
    /// Samples in each of [`CELLS`] equal parts.
    pub cells: Vec<u64>,
}

/// A file's text in one address space.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FileHeat {
    /// The path as maps shows it, lossy UTF-8.
    pub path: String,
    /// The process.
    pub pid: u32,
    /// Samples in it.
    pub samples: u64,
    /// Its huge pages with samples, in address order.
    pub rows: Vec<Row>,
}

/// A point of a curve: the share of the samples that the hottest pages hold.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// The number of hottest pages.
    pub pages: u64,
    /// The share of all samples that lies in these pages.
    pub share: f64,
}

/// The heat of all files.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Heat {
    /// Bytes of a row.
    pub huge_page_bytes: u64,
    /// The file with the most samples first.
    pub files: Vec<FileHeat>,
    /// The curve of base pages.
    pub base_pages: Vec<Point>,
    /// The curve of huge pages.
    pub huge_pages: Vec<Point>,
}

impl Heat {
    /// Makes the heat map. `way` is the way by which pages would become huge.
    pub fn new(tally: &Tally, circumstances: &Circumstances, way: &Way) -> Self {
        let pmd = circumstances.pages.pmd;
        let placed = Placed::all(tally, circumstances, way);
        let mut files: HashMap<(usize, usize), BTreeMap<RemoteAddr, Row>> = HashMap::new();
        let mut huge: HashMap<(usize, RemoteAddr), u64> = HashMap::new();
        for Placed { page, huge_now, huge_then, .. } in &placed {
            let start = page.at.align_down(pmd);
            *huge.entry((page.space, start)).or_default() += page.samples;
            let rows = files.entry((page.space, page.name)).or_default();
            let cells = vec![0; CELLS];
            let new = Row { start, samples: 0, huge_now: false, huge_then: false, cells };
            let row = rows.entry(start).or_insert(new);
            row.samples += page.samples;
            row.huge_now |= huge_now;
            row.huge_then |= huge_then;
            let into = page.at.get() - start.get();
            row.cells[(into * CELLS as u64 / pmd.bytes()) as usize] += page.samples;
        }
        let file = |((space, name), rows): ((usize, usize), BTreeMap<RemoteAddr, Row>)| FileHeat {
            path: String::from_utf8_lossy(&tally.names()[name]).into_owned(),
            pid: tally.spaces()[space].pid,
            samples: rows.values().map(|row| row.samples).sum(),
            rows: rows.into_values().collect(),
        };
        let mut files: Vec<FileHeat> = files.into_iter().map(file).collect();
        files.sort_by(|one, other| {
            other.samples.cmp(&one.samples).then_with(|| one.path.cmp(&other.path))
        });
        Self {
            huge_page_bytes: pmd.bytes(),
            files,
            base_pages: curve(placed.iter().map(|placed| placed.page.samples)),
            huge_pages: curve(huge.into_values()),
        }
    }
}

/// Accumulates the samples from the hottest page on. Returns enough points for a smooth plot on a logarithmic scale.
fn curve(counts: impl Iterator<Item = u64>) -> Vec<Point> {
    let mut counts: Vec<u64> = counts.collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let all: u64 = counts.iter().sum();
    let growth = (counts.len() as f64).powf(1.0 / POINTS as f64).max(1.0);
    let (mut sum, mut next, mut points) = (0, 1.0, Vec::new());
    for (index, count) in counts.iter().enumerate() {
        sum += count;
        let pages = index as u64 + 1;
        if pages as f64 >= next || index + 1 == counts.len() {
            points.push(Point { pages, share: sum as f64 / all as f64 });
            next = (next * growth).max(pages as f64 + 1.0);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::itlb::{Itlb, MissTime};
    use tiexec_core::addr::{AddrRange, PageSize, Pages};
    use tiexec_core::perf::samples::What;

    #[test]
    fn samples_are_where_they_were_seen() {
        let pages =
            Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
        let mut tally = Tally::new(pages.base);
        let range = AddrRange::with_len(RemoteAddr::new(0x40_0000), 4 << 20).unwrap();
        tally.add(What::Mapped { pid: 7, range, name: b"/file".to_vec() });
        for (offset, times) in [(0, 3), (0x1000, 2), (0x20_0000, 4), (0x3f_f000, 1)] {
            for _ in 0..times {
                tally.add(What::Sample { pid: 7, at: RemoteAddr::new(0x40_0000 + offset) });
            }
        }
        let circumstances = Circumstances {
            pages,
            huge: HashMap::new(),
            ways: Vec::new(),
            itlb: Itlb::USUAL,
            time: MissTime::USUAL,
        };
        let heat = Heat::new(&tally, &circumstances, &Way::default());
        assert_eq!((heat.files.len(), heat.files[0].samples), (1, 10));
        let rows = &heat.files[0].rows;
        assert_eq!((rows.len(), rows[0].samples, rows[1].samples), (2, 5, 5));
        assert_eq!((rows[0].cells[0], rows[1].cells[0], rows[1].cells[CELLS - 1]), (5, 4, 1));
        assert!(rows.iter().all(|row| row.huge_then && !row.huge_now));
        let shares = |points: &[Point]| points.iter().map(|point| point.share).collect::<Vec<_>>();
        assert_eq!(shares(&heat.base_pages), [0.4, 0.7, 0.9, 1.0]);
        assert_eq!(shares(&heat.huge_pages), [0.5, 1.0]);
    }

    #[test]
    fn a_curve_has_few_points_and_ends_with_all() {
        let points = curve((1..=5000).rev());
        assert!(points.len() <= 2 * POINTS && points.len() > 50, "{}", points.len());
        assert_eq!(points.last().map(|point| (point.pages, point.share)), Some((5000, 1.0)));
        assert!(
            points.is_sorted_by(|one, other| one.pages < other.pages && one.share <= other.share)
        );
        assert_eq!(curve(std::iter::empty()), []);
    }
}
