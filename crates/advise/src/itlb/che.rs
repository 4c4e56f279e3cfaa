//! Hits and misses of two levels of LRU, from popularity alone.
//!
//! Che's approximation (Che, Tung, Wang: "Hierarchical Web caching systems: modeling, design and experimental results",
//! IEEE JSAC 20(7), 2002; its accuracy is explained by Fricker, Robert, Roberts: "A versatile and accurate
//! approximation for LRU cache performance", ITC 24, 2012): a page stays in a cache of `C` entries for one time `T`
//! after each use, the same for all pages, and `T` is such that `C` pages are in it on average. With references to a
//! page at rate λ that do not depend on the past:
//!
//! ```text
//! Σ (1 − e^(−λT)) = C          a reference misses with e^(−λT)
//! ```
//!
//! The second level sees the misses of the first. After a miss of a page, its next miss comes no sooner than `T₁`. The
//! model takes the time beyond `T₁` as exponential with its true mean, `e^(λT₁)/λ − T₁`.

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
    /// In neither level: the processor walks the page tables.
    pub walk: f64,
}

impl Shares {
    /// Returns the share that misses the first level.
    pub fn misses(&self) -> f64 {
        self.second + self.walk
    }

    /// Returns the misses per thousand instructions of a program on this TLB.
    pub fn per_kilo_instruction(&self, itlb: &Itlb) -> Misses {
        let first = self.misses() * per_kilo_instruction(itlb.first.entries().0);
        let walks = self.walk * per_kilo_instruction(u32::MAX);
        Misses { first, walks: walks.min(first) }
    }
}

/// The steady state of a TLB under references of some popularity.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    first: Stay,
    second: Option<Stay>,
}

impl Model {
    /// Computes the steady state.
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

    /// Returns where the references to some of the pages hit, as shares of those references. Without references,
    /// nothing misses.
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

/// Predicts where all references of this popularity hit.
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

/// The time for which pages stay in a level after a use, in references.
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

/// Computes how long pages stay. `occupancy` returns the probability that a page is in the level, from the time for
/// which it stays.
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
    // Sixty halvings reach the precision of a double; more change nothing.
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

/// A class of pages from the view of the second level, which sees only the misses of the first.
#[derive(Clone, Copy, Debug)]
struct Filtered {
    class: Class,
    /// The time for which a page stays in the first level.
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
        // The reciprocal of a smaller rate is infinite: the page never leaves the first level.
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

    /// The probability that a reference which missed the first level misses the second too.
    fn misses_again(&self, time: f64) -> f64 {
        if self.rate <= 0.0 { 0.0 } else { (-self.beyond * (time - self.stay).max(0.0)).exp() }
    }
}
