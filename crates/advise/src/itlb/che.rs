//! Hits and misses of two levels of LRU, from popularity alone.
//!
//! Che's approximation (Che, Tung, Wang: "Hierarchical Web caching systems: modeling, design and
//! experimental results", IEEE JSAC 20(7), 2002; why it is so good: Fricker, Robert, Roberts: "A
//! versatile and accurate approximation for LRU cache performance", ITC 24, 2012): a page stays in a
//! cache of `C` entries for one time `T` after each use, the same for all pages, and `T` is such that
//! `C` pages are in it on average. With references to a page at rate λ that do not depend on the past:
//!
//! ```text
//! Σ (1 − e^(−λT)) = C          a reference misses with e^(−λT)
//! ```
//!
//! The second level sees the misses of the first. After one, the next comes no sooner than `T₁`; the
//! time beyond is taken as exponential, with the mean that it has: `e^(λT₁)/λ − T₁`.

use serde::Serialize;
use tiexec_core::budget::Misses;

use super::per_kilo_instruction;
use super::popularity::{Class, Popularity};
use super::tlb::{Itlb, Level};

/// The shares of references by the place that has their translation; they add up to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Shares {
    /// In the first level.
    pub first: f64,
    /// In the second.
    pub second: f64,
    /// Nowhere: the page tables are walked.
    pub walk: f64,
}

impl Shares {
    /// Returns the share that misses the first level.
    pub fn misses(&self) -> f64 {
        self.second + self.walk
    }

    /// Returns what it means in a thousand instructions of a program on this TLB.
    pub fn per_kilo_instruction(&self, itlb: &Itlb) -> Misses {
        let first = self.misses() * per_kilo_instruction(itlb.first.entries().0);
        let walks = self.walk * per_kilo_instruction(u32::MAX);
        Misses { first, walks: walks.min(first) }
    }
}

/// A TLB in the steady state into which references of some popularity bring it.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    first: Stay,
    second: Option<Stay>,
}

impl Model {
    /// Finds that state.
    pub fn new(popularity: &Popularity, itlb: &Itlb) -> Self {
        let classes = &popularity.classes;
        let first = stay(classes, itlb.first, |class, time| -(-class.rate * time).exp_m1());
        let second = itlb.second_for_text().map(|level| {
            let seen: Vec<Filtered> =
                classes.iter().map(|class| Filtered::behind(class, first.of(class))).collect();
            stay(&seen, level, Filtered::occupancy)
        });
        Self { first, second }
    }

    /// Returns what becomes of the references to some of the pages, as shares of those references.
    /// Without any there is nothing to miss.
    pub fn shares(&self, part: &Popularity) -> Shares {
        let (mut all, mut misses, mut walks) = (0.0, 0.0, 0.0);
        for class in &part.classes {
            let seen = Filtered::behind(class, self.first.of(class));
            let missed = class.pages * seen.rate;
            all += class.pages * class.rate;
            misses += missed;
            walks += self.second.map_or(missed, |stay| missed * seen.misses_again(stay.of(class)));
        }
        if all > 0.0 { Shares::of(misses / all, walks / all) } else { Shares::of(0.0, 0.0) }
    }
}

/// Predicts what becomes of all references of this popularity.
pub fn predict(popularity: &Popularity, itlb: &Itlb) -> Shares {
    Model::new(popularity, itlb).shares(popularity)
}

impl Shares {
    fn of(misses: f64, walks: f64) -> Self {
        let misses = misses.clamp(0.0, 1.0);
        let walk = walks.clamp(0.0, misses);
        Self { first: 1.0 - misses, second: misses - walk, walk }
    }
}

/// For how long pages stay in a level after a use, in references.
#[derive(Clone, Copy, Debug)]
struct Stay {
    base: f64,
    huge: f64,
}

impl Stay {
    fn of(self, class: &Class) -> f64 {
        if class.huge { self.huge } else { self.base }
    }
}

/// Something that has pages of one kind.
trait Pages {
    fn class(&self) -> &Class;
}

impl Pages for Class {
    fn class(&self) -> &Class {
        self
    }
}

/// Finds how long pages stay; `occupancy` is the probability that a page is there if it stays for a time.
fn stay<P: Pages>(pages: &[P], level: Level, occupancy: impl Fn(&P, f64) -> f64) -> Stay {
    let of = |entries: u32, which: &dyn Fn(&Class) -> bool| {
        let pages: Vec<&P> = pages.iter().filter(|pages| which(pages.class())).collect();
        let count: f64 = pages.iter().map(|pages| pages.class().pages).sum();
        if count <= f64::from(entries) {
            return f64::INFINITY;
        }
        let held = |time: f64| -> f64 {
            pages.iter().map(|pages| pages.class().pages * occupancy(pages, time)).sum()
        };
        solve(held, f64::from(entries))
    };
    match level {
        Level::Split { base, huge } => {
            Stay { base: of(base, &|class| !class.huge), huge: of(huge, &|class| class.huge) }
        }
        Level::Shared(entries) => {
            let both = of(entries, &|_| true);
            Stay { base: both, huge: both }
        }
    }
}

/// Finds the time at which `held`, which grows from 0, reaches `entries`; infinity if it never does.
fn solve(held: impl Fn(f64) -> f64, entries: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while held(high) < entries {
        low = high;
        high *= 2.0;
        if high > 1e300 {
            return f64::INFINITY;
        }
    }
    // Below the resolution of the doubling it does not matter any more.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if held(middle) < entries {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// A class of pages as the second level sees them: only when they have missed the first.
#[derive(Clone, Copy, Debug)]
struct Filtered {
    class: Class,
    /// For how long a page stays in the first level.
    stay: f64,
    /// Misses of the first level by one page, per reference.
    rate: f64,
    /// The rate of such misses: one over the mean time between two of them beyond `stay`.
    beyond: f64,
}

impl Pages for Filtered {
    fn class(&self) -> &Class {
        &self.class
    }
}

impl Filtered {
    fn behind(class: &Class, stay: f64) -> Self {
        let rate = class.rate * (-class.rate * stay).exp();
        // Below that the reciprocal is infinite: the page never leaves the first level.
        let rate = if rate < f64::MIN_POSITIVE { 0.0 } else { rate };
        let beyond = if rate > 0.0 { (1.0 / rate - stay).recip() } else { 0.0 };
        Self { class: *class, stay, rate, beyond }
    }

    /// The probability that the page is in a second level in which it stays for `time`.
    fn occupancy(&self, time: f64) -> f64 {
        if self.rate <= 0.0 {
            return 0.0;
        }
        let more = (time - self.stay).max(0.0);
        let beyond = -(-self.beyond * more).exp_m1() / self.beyond;
        (self.rate * (time.min(self.stay) + beyond)).min(1.0)
    }

    /// The probability that what has missed the first level is not in the second either.
    fn misses_again(&self, time: f64) -> f64 {
        if self.rate <= 0.0 { 0.0 } else { (-self.beyond * (time - self.stay).max(0.0)).exp() }
    }
}
