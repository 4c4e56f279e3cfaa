//! Estimates from samples how the references of a program spread over its pages.
//!
//! Few samples see few of the pages. The number of pages that were seen once gives two estimates about the unseen
//! pages: the share of references that go to unseen pages by Good and Turing (Good, "The population frequencies of
//! species and the estimation of population parameters", Biometrika 40, 1953), and their number by Chao ("Nonparametric
//! estimation of the number of classes in a population", Scand. J. Stat. 11, 1984). The share of the unseen pages is
//! subtracted from the seen pages, the same part of one sample from each (absolute discounting: Ney, Essen, Kneser, "On
//! structuring probabilistic dependences in stochastic language modelling", Computer Speech and Language 8, 1994): a
//! page that was seen often is known well.

use std::collections::BTreeMap;

use serde::Serialize;

/// Pages that are referenced equally often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Class {
    /// The share of all references that goes to each; above 0.
    pub(super) rate: f64,
    /// The number of pages, which an estimate can make fractional.
    pub(super) pages: f64,
    /// True if they are huge.
    pub(super) huge: bool,
}

/// The pages of one size that some samples stand for.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Estimate {
    /// The share of all references that one sample stands for.
    sample: f64,
    /// The discount on the samples of each page that was seen; below 1.
    discount: f64,
    /// The number of unseen pages for each page that one sample has seen.
    unseen: f64,
    /// The share of all references that goes to each unseen page.
    unseen_rate: f64,
}

impl Estimate {
    fn new(tally: &BTreeMap<u64, u64>, all: f64) -> Self {
        let seen = samples(tally);
        if seen == 0.0 {
            return Self::default();
        }
        let pages = |times| tally.get(&times).copied().unwrap_or(0) as f64;
        let (once, twice) = (pages(1), pages(2));
        // This form of Chao's estimator is valid even if no page was seen twice.
        let unseen = once * (once - 1.0) / (2.0 * (twice + 1.0));
        if unseen <= 0.0 {
            return Self { sample: 1.0 / all, ..Self::default() };
        }
        // If every sample lies in another page, the samples show only that there are many pages. The limit avoids a
        // share of 1.
        let share = (once / seen).min(0.99);
        let unseen_rate = share * seen / all / unseen;
        let distinct: f64 = tally.values().map(|&pages| pages as f64).sum();
        let discount = share * seen / distinct;
        Self { sample: 1.0 / all, discount, unseen: unseen / once, unseen_rate }
    }

    fn classes(self, tally: &BTreeMap<u64, u64>, huge: bool) -> Vec<Class> {
        let class = |(&times, &pages): (&u64, &u64)| Class {
            rate: (times as f64 - self.discount) * self.sample,
            pages: pages as f64,
            huge,
        };
        let mut classes: Vec<Class> = tally.iter().map(class).collect();
        let unseen = tally.get(&1).copied().unwrap_or(0) as f64 * self.unseen;
        if unseen > 0.0 {
            classes.push(Class { rate: self.unseen_rate, pages: unseen, huge });
        }
        classes
    }
}

/// How often each page is referenced, as shares of all references.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Popularity {
    base: Estimate,
    huge: Estimate,
    pub(super) classes: Vec<Class>,
}

impl Popularity {
    /// Estimates the popularity from the number of samples in each base page and in each huge page.
    pub fn of_samples(
        base: impl IntoIterator<Item = u64>,
        huge: impl IntoIterator<Item = u64>,
    ) -> Self {
        Self::of(&tally(base), &tally(huge), Estimate::new)
    }

    /// Makes the popularity from exact counts of references for each base page and each huge page.
    pub fn of_counts(
        base: impl IntoIterator<Item = u64>,
        huge: impl IntoIterator<Item = u64>,
    ) -> Self {
        let exact = |_: &_, all: f64| Estimate { sample: 1.0 / all, ..Estimate::default() };
        Self::of(&tally(base), &tally(huge), exact)
    }

    fn of(
        base: &BTreeMap<u64, u64>,
        huge: &BTreeMap<u64, u64>,
        estimate: impl Fn(&BTreeMap<u64, u64>, f64) -> Estimate,
    ) -> Self {
        let all = samples(base) + samples(huge);
        let (of_base, of_huge) = (estimate(base, all), estimate(huge, all));
        let classes = [of_base.classes(base, false), of_huge.classes(huge, true)].concat();
        Self { base: of_base, huge: of_huge, classes }
    }

    /// Returns the part of the popularity that belongs to some of the pages, given as the number of samples in each of
    /// these base pages and huge pages.
    pub fn part(
        &self,
        base: impl IntoIterator<Item = u64>,
        huge: impl IntoIterator<Item = u64>,
    ) -> Self {
        let base = self.base.classes(&tally(base), false);
        let huge = self.huge.classes(&tally(huge), true);
        Self { classes: [base, huge].concat(), ..*self }
    }

    /// Returns the number of pages, including the unseen ones.
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

/// Computes the footprint from the number of samples in each page.
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
