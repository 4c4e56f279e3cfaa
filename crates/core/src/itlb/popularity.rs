//! How the references of a program spread over its pages, from samples.
//!
//! Few samples see few of the pages. What they did not see is estimated from what they saw once: the
//! share of references that go to unseen pages by Good and Turing (Good, "The population frequencies
//! of species and the estimation of population parameters", Biometrika 40, 1953), their number by Chao
//! ("Nonparametric estimation of the number of classes in a population", Scand. J. Stat. 11, 1984).

use std::collections::BTreeMap;

use serde::Serialize;

/// Pages that are referenced equally often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Class {
    /// The share of all references that goes to each; above 0.
    pub(super) rate: f64,
    /// How many pages; an estimate may be broken.
    pub(super) pages: f64,
    /// Whether they are huge.
    pub(super) huge: bool,
}

/// How often each page is referenced, as shares of all references.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Popularity {
    pub(super) classes: Vec<Class>,
}

impl Popularity {
    /// Estimates it from how many samples fell into each base page, and into each huge page.
    pub fn of_samples(
        base: impl IntoIterator<Item = u64>,
        huge: impl IntoIterator<Item = u64>,
    ) -> Self {
        let sizes = [(tally(base), false), (tally(huge), true)];
        let all: f64 = sizes.iter().map(|(tally, _)| samples(tally)).sum();
        let mut classes = Vec::new();
        for (tally, huge) in sizes {
            let seen = samples(&tally);
            if seen == 0.0 {
                continue;
            }
            let pages = |times| tally.get(&times).copied().unwrap_or(0) as f64;
            let (once, twice) = (pages(1), pages(2));
            // Chao's form that holds where no page was seen twice.
            let unseen = once * (once - 1.0) / (2.0 * (twice + 1.0));
            let unseen_share = if unseen > 0.0 { once / seen } else { 0.0 };
            // All samples differ: nothing is known but that there are many pages.
            let unseen_share = unseen_share.min(0.99);
            let kept = (1.0 - unseen_share) / all;
            classes.extend(tally.iter().map(|(&times, &pages)| Class {
                rate: times as f64 * kept,
                pages: pages as f64,
                huge,
            }));
            if unseen > 0.0 {
                let rate = unseen_share * seen / all / unseen;
                classes.push(Class { rate, pages: unseen, huge });
            }
        }
        Self { classes }
    }

    /// Takes exact counts of references for each base page, and for each huge page.
    pub fn of_counts(
        base: impl IntoIterator<Item = u64>,
        huge: impl IntoIterator<Item = u64>,
    ) -> Self {
        let sizes = [(tally(base), false), (tally(huge), true)];
        let all: f64 = sizes.iter().map(|(tally, _)| samples(tally)).sum();
        let class = |(times, pages): (u64, u64), huge| Class {
            rate: times as f64 / all,
            pages: pages as f64,
            huge,
        };
        let classes = sizes.into_iter().flat_map(|(tally, huge)| {
            tally.into_iter().map(move |entry| class(entry, huge)).collect::<Vec<_>>()
        });
        Self { classes: classes.collect() }
    }

    /// Returns how many pages there are, those included that no sample has seen.
    pub fn pages(&self) -> f64 {
        self.classes.iter().map(|class| class.pages).sum()
    }
}

/// Counts the pages by how often each was seen.
fn tally(counts: impl IntoIterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut tally = BTreeMap::new();
    for count in counts.into_iter().filter(|&count| count > 0) {
        *tally.entry(count).or_default() += 1;
    }
    tally
}

fn samples(tally: &BTreeMap<u64, u64>) -> f64 {
    tally.iter().map(|(&times, &pages)| times as f64 * pages as f64).sum()
}

/// How many pages hold a share of the samples, the most popular ones first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Footprint {
    /// Pages that hold half of the samples.
    pub p50: u64,
    /// Pages that hold nine tenths.
    pub p90: u64,
    /// Pages that hold 99 %.
    pub p99: u64,
    /// Pages with a sample.
    pub all: u64,
}

/// Counts the pages, from how many samples fell into each.
pub fn footprint(counts: impl IntoIterator<Item = u64>) -> Footprint {
    let mut counts: Vec<u64> = counts.into_iter().filter(|&count| count > 0).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let all: u128 = counts.iter().map(|&count| u128::from(count)).sum();
    let holding = |percent: u128| {
        let mut held: u128 = 0;
        let few = counts.iter().take_while(|&&count| {
            let more = held * 100 < all * percent;
            held += u128::from(count);
            more
        });
        few.count() as u64
    };
    Footprint { p50: holding(50), p90: holding(90), p99: holding(99), all: counts.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footprint_is_the_fewest_pages_that_hold_the_share() {
        assert_eq!(footprint([]), Footprint::default());
        assert_eq!(footprint([7]), Footprint { p50: 1, p90: 1, p99: 1, all: 1 });
        let even = footprint([1; 100]);
        assert_eq!(even, Footprint { p50: 50, p90: 90, p99: 99, all: 100 });
        let skewed = footprint([90, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(skewed, Footprint { p50: 1, p90: 1, p99: 10, all: 11 });
    }

    #[test]
    fn unseen_pages_are_reckoned_with() {
        // Two samples on each page: all pages have been seen.
        assert_eq!(Popularity::of_samples([2; 50], []).pages(), 50.0);
        // Some seen once: there are more.
        let some = Popularity::of_samples([1; 20].into_iter().chain([2; 10]), []);
        assert!(some.pages() > 40.0 && some.pages() < 60.0, "{}", some.pages());
    }
}
