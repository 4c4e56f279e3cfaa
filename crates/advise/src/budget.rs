//! Chooses the huge pages of a process's text within a [`Budget`].
//!
//! Some processors have as few as eight first-level entries for huge pages, and more hot huge pages than entries can be
//! slower than base pages. Therefore the pages with the most samples are taken first. The user gives their number, or
//! the model of the instruction TLB chooses it.

use std::collections::{HashMap, HashSet};

use tiexec_core::addr::{AddrRange, Pages, RemoteAddr};
use tiexec_core::budget::{Budget, Choice, ENOUGH_SAMPLES, HotPage, Misses};

use crate::itlb::{Itlb, MissTime, Model, NOT_WORTH_IT, Popularity};

/// The facts about a process by which its huge pages are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Heat<'a> {
    /// The page sizes.
    pub pages: Pages,
    /// Base pages with samples, and the number of samples of each.
    pub samples: &'a [(RemoteAddr, u64)],
    /// The ranges that are PMD-mapped already.
    pub huge: &'a [AddrRange],
    /// The addresses of the huge pages that could be taken. The order is used between pages with the same number of
    /// samples.
    pub candidates: &'a [RemoteAddr],
    /// The processor's instruction TLB.
    pub itlb: &'a Itlb,
    /// The cost of a miss.
    pub time: MissTime,
}

/// Chooses huge pages within the budget.
pub fn choose(budget: Budget, heat: &Heat<'_>) -> Choice {
    let ranked = rank(heat);
    let samples: u64 = heat.samples.iter().map(|(_, samples)| samples).sum();
    let expected = |count: usize| expect(heat, &ranked[..count]);
    let already: u64 = heat.huge.iter().map(|range| range.len() / heat.pages.pmd.bytes()).sum();
    let beside = |most: u64| usize::try_from(most.saturating_sub(already)).unwrap_or(usize::MAX);
    let taken = match budget {
        Budget::Pages(most) => {
            // A page without samples gains nothing. If no page has samples, all pages stay eligible.
            let hot = ranked.iter().filter(|page| samples == 0 || page.samples > 0).count();
            hot.min(beside(most))
        }
        Budget::Auto | Budget::AutoUpTo(_) if samples < ENOUGH_SAMPLES => 0,
        Budget::AutoUpTo(most) => fewest_that_pay(&ranked, expected).min(beside(most)),
        Budget::Auto => fewest_that_pay(&ranked, expected),
    };
    let (now, then) = (expected(0), expected(taken));
    let on_huge = |at: RemoteAddr| heat.huge.iter().any(|range| range.contains(at));
    let chosen: u64 = ranked[..taken].iter().map(|page| page.samples).sum();
    let before = heat.samples.iter().filter(|&&(at, _)| on_huge(at));
    let huge = chosen + before.map(|(_, samples)| samples).sum::<u64>();
    Choice {
        budget: budget.to_string(),
        pages: ranked[..taken].to_vec(),
        already,
        candidates: heat.candidates.len(),
        samples,
        share: if samples == 0 { 0.0 } else { huge as f64 / samples as f64 },
        misses_now: now.misses,
        misses_then: then.misses,
        saving: now.lost - then.lost,
    }
}

/// Orders the candidates by heat. Candidates with equal heat keep their order.
fn rank(heat: &Heat<'_>) -> Vec<HotPage> {
    let mut samples: HashMap<RemoteAddr, u64> = HashMap::new();
    for &(at, count) in heat.samples {
        *samples.entry(at.align_down(heat.pages.pmd)).or_default() += count;
    }
    let hot =
        |&start: &RemoteAddr| HotPage { start, samples: samples.get(&start).copied().unwrap_or(0) };
    let mut ranked: Vec<HotPage> = heat.candidates.iter().map(hot).collect();
    ranked.sort_by_key(|page| std::cmp::Reverse(page.samples));
    ranked
}

/// The expectation of the model.
#[derive(Clone, Copy)]
struct Expected {
    misses: Misses,
    /// The share of the time that is lost to misses.
    lost: f64,
}

fn expect(heat: &Heat<'_>, taken: &[HotPage]) -> Expected {
    let taken: HashSet<RemoteAddr> = taken.iter().map(|page| page.start).collect();
    let (mut base, mut huge) = (Vec::new(), HashMap::new());
    for &(at, samples) in heat.samples {
        let start = at.align_down(heat.pages.pmd);
        if taken.contains(&start) || heat.huge.iter().any(|range| range.contains(at)) {
            *huge.entry(start).or_insert(0) += samples;
        } else {
            base.push(samples);
        }
    }
    let popularity = Popularity::of_samples(base, huge.into_values());
    let shares = Model::new(&popularity, heat.itlb).shares(&popularity);
    let misses = shares.per_kilo_instruction(heat.itlb);
    Expected { misses, lost: heat.time.share_lost(&misses) }
}

/// Returns the smallest number of hottest pages that gains nearly as much as is possible; 0 if the possible gain is
/// negligible.
fn fewest_that_pay(ranked: &[HotPage], expected: impl Fn(usize) -> Expected) -> usize {
    const NEARLY: f64 = 0.98;
    let hot = ranked.iter().filter(|page| page.samples > 0).count();
    let now = expected(0).lost;
    // Single steps cover the number of entries of any processor. Larger counts grow by a sixteenth.
    let steps = std::iter::successors(Some(1), |&count| Some(count + 1.max(count / 16)));
    let counts = steps.take_while(|&count| count < hot).chain((hot > 0).then_some(hot));
    let gains: Vec<(usize, f64)> =
        counts.map(|count| (count, now - expected(count).lost)).collect();
    let most = gains.iter().map(|gain| gain.1).fold(0.0, f64::max);
    if most < NOT_WORTH_IT {
        return 0;
    }
    gains.iter().find(|gain| gain.1 >= most * NEARLY).map_or(0, |gain| gain.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::itlb::Level;
    use tiexec_core::addr::PageSize;

    const PAGES: Pages =
        Pages { base: PageSize::new(4096).unwrap(), pmd: PageSize::new(2 << 20).unwrap() };
    const HUGE: u64 = 2 << 20;

    fn page(number: u64) -> RemoteAddr {
        RemoteAddr::new(number * HUGE)
    }

    /// Makes samples from entries of a huge page, a number of its base pages, and the samples of each.
    fn samples(of: &[(u64, u64, u64)]) -> Vec<(RemoteAddr, u64)> {
        let each = |&(number, pages, samples): &(u64, u64, u64)| {
            (0..pages).map(move |base| (RemoteAddr::new(number * HUGE + base * 4096), samples))
        };
        of.iter().flat_map(each).collect()
    }

    fn chosen(budget: Budget, samples: &[(RemoteAddr, u64)], count: u64, itlb: &Itlb) -> Choice {
        let candidates: Vec<RemoteAddr> = (1..=count).map(page).collect();
        let heat = Heat {
            pages: PAGES,
            samples,
            huge: &[],
            candidates: &candidates,
            itlb,
            time: MissTime::USUAL,
        };
        choose(budget, &heat)
    }

    fn numbers(choice: &Choice) -> Vec<u64> {
        choice.pages.iter().map(|page| page.start.get() / HUGE).collect()
    }

    #[test]
    fn the_hottest_first_and_no_more_than_the_budget() {
        let samples = samples(&[(1, 10, 1), (2, 10, 50), (3, 1, 200), (5, 10, 7)]);
        let of = |budget| numbers(&chosen(budget, &samples, 6, &Itlb::USUAL));
        assert_eq!(of(Budget::Pages(0)), [0; 0]);
        assert_eq!(of(Budget::Pages(2)), [2, 3]);
        // The pages 4 and 6 have no samples.
        assert_eq!(of(Budget::Pages(100)), [2, 3, 5, 1]);
        let choice = chosen(Budget::Pages(2), &samples, 6, &Itlb::USUAL);
        assert_eq!((choice.samples, choice.candidates), (780, 6));
        assert!((choice.share - 700.0 / 780.0).abs() < 1e-9);
    }

    #[test]
    fn the_first_where_nothing_is_known() {
        assert_eq!(numbers(&chosen(Budget::Pages(2), &[], 6, &Itlb::USUAL)), [1, 2]);
        assert_eq!(numbers(&chosen(Budget::Auto, &[], 6, &Itlb::USUAL)), [0; 0]);
    }

    #[test]
    fn auto_takes_what_pays() {
        // 2000 evenly used base pages lie on four huge pages. The base pages do not fit into the TLB, and each huge
        // page helps.
        let wide = samples(&[(1, 500, 5), (2, 500, 5), (3, 500, 5), (4, 500, 5)]);
        let choice = chosen(Budget::Auto, &wide, 8, &Itlb::USUAL);
        assert_eq!(numbers(&choice), [1, 2, 3, 4]);
        assert!(choice.saving > 0.01 && choice.misses_then.first < choice.misses_now.first);
        // Text whose base pages fit into the TLB gains nothing.
        let narrow = samples(&[(1, 10, 500)]);
        assert_eq!(numbers(&chosen(Budget::Auto, &narrow, 8, &Itlb::USUAL)), [0; 0]);
        // Few samples do not justify huge pages.
        let few = samples(&[(1, 50, 1), (2, 50, 1)]);
        assert_eq!(numbers(&chosen(Budget::Auto, &few, 8, &Itlb::USUAL)), [0; 0]);
        assert_eq!(numbers(&chosen(Budget::AutoUpTo(8), &few, 8, &Itlb::USUAL)), [0; 0]);
    }

    #[test]
    fn auto_stops_where_more_huge_pages_would_miss_more() {
        // Few entries for huge pages and no second level: forty huge pages, each with one hot base page,
        // fit 128 base entries and not eight huge ones.
        let first = Level::Split { base: 128, huge: 8 };
        let itlb = Itlb { first, second: None, ..Itlb::USUAL };
        let mut of = vec![(1, 200, 20), (2, 200, 20)];
        of.extend((3..43).map(|number| (number, 1, 100)));
        let choice = chosen(Budget::Auto, &samples(&of), 50, &itlb);
        let taken = numbers(&choice);
        assert!(taken.starts_with(&[1, 2]) && taken.len() <= 8, "{taken:?}");
        let all = chosen(Budget::Pages(50), &samples(&of), 50, &itlb);
        assert!(choice.saving > all.saving, "{choice:?} {all:?}");
    }

    #[test]
    fn what_is_said_of_a_choice() {
        let (none, few) = (samples(&[]), samples(&[(1, 10, 1)]));
        let of = |budget, samples: &[_]| chosen(budget, samples, 6, &Itlb::USUAL).to_string();
        assert_eq!(
            of(Budget::Pages(2), &none),
            "2 of 6 huge pages, the first: it was not seen executing"
        );
        assert_eq!(of(Budget::Auto, &none), "0 of 6 huge pages: it was not seen executing");
        assert_eq!(of(Budget::Auto, &few), "0 of 6 huge pages: 10 samples are too few to tell");
        assert!(of(Budget::Pages(2), &few).contains(", 100 % of 10 samples; misses"));
    }
}
