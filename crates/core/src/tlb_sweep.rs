//! Reads the levels of an instruction TLB from the times of jumps.
//!
//! A sweep times jumps among more and more places. Nothing predicts a jump, and each place is as likely as the others. So of `N` pages a
//! TLB of `E` entries holds any `E`, however it replaces them, and a jump takes
//!
//! ```text
//! near(N) + a (1 − E₁/N)⁺ + (b + c log₂(N/1024)⁺) (1 − E₂/N)⁺
//! ```
//!
//! `near(N)` is the time of jumps among as many lines of the cache in few pages. A hit of the second level costs `a`, and a walk of the page
//! tables `a + b`, and more once the tables leave the first level of the cache. The entries are those with the least squares of the
//! errors. A second level must explain much that one level does not. Each copy of the text has a sweep of its own. A figure on which the
//! copies disagree is unclear.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::addr::PageSize;

/// The bytes from one place to the next in the fewest pages: a line of the cache.
pub const LINE: u64 = 64;

/// Nanoseconds for a jump among some places, the best of several rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// The number of places.
    pub places: u32,
    /// In the fewest base pages.
    pub near_ns: f64,
    /// One on each base page.
    pub base_ns: f64,
    /// At the same places, in huge pages.
    pub huge_ns: f64,
    /// One on each huge page, if there are so many.
    pub far_ns: Option<f64>,
}

/// The points of each copy of the text, by the number of places.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sweeps(pub Vec<Vec<Point>>);

/// The levels of the TLB for pages of one size, as the sweeps show them. `None`: unclear.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Levels {
    /// The entries of the first level.
    pub first: Option<u32>,
    /// The entries of both levels.
    pub second: Option<u32>,
    /// The cost of a miss that the second level answers, in nanoseconds.
    pub second_ns: Option<f64>,
    /// The cost of a miss of both levels, in nanoseconds.
    pub walk_ns: Option<f64>,
}

/// The levels of the TLB, as the sweeps show them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// For base pages.
    pub base: Levels,
    /// For huge pages.
    pub huge: Levels,
}

/// Copies agree on a number of entries if the largest is at most so many times the smallest.
const AGREE: f64 = 1.35;
/// The same for a time.
const AGREE_ON_TIME: f64 = 2.0;
/// The fewest copies that can agree.
const ENOUGH: usize = 2;
/// A step counts from this share of the time of a jump in few pages on.
const STEP: f64 = 0.05;
/// A second level counts if it makes the error smaller than this share of what it is without.
const EXPLAINS: f64 = 0.7;
/// The greatest error, in units of the expected one.
const ERROR: f64 = 1.0;
/// The fewest entries that are looked for, and the factor to the next number.
const LEAST: f64 = 8.0;
const NEXT: f64 = 1.05;
/// A second level has at least so many times the entries of the first.
const APART: f64 = 1.5;
/// The largest number of entries that is looked for, as a share of the most places.
const MOST: f64 = 0.7;
/// From this number of pages on, their tables leave the first level of the cache.
const GROWS: f64 = 1024.0;

impl Sweeps {
    /// Returns the levels. `base` is the size of a base page.
    pub fn levels(&self, base: PageSize) -> Measured {
        let levels = |costs: fn(&Point, PageSize) -> Option<Cost>| {
            let series = self.0.iter().map(|points| points.iter().filter_map(|it| costs(it, base)));
            Levels::of(series.filter_map(|costs| Fit::of(&costs.collect::<Vec<_>>())).collect())
        };
        let of_base = |point: &Point, base: PageSize| {
            let near_pages = f64::from(point.places) * LINE as f64 / base.bytes() as f64;
            Some(Cost { near_pages: near_pages.ceil(), ..Cost::new(point, point.base_ns) })
        };
        Measured {
            base: levels(of_base),
            huge: levels(|point, _| Some(Cost::new(point, point.far_ns?))),
        }
    }

    /// Returns the jumps of each copy among the fewest places of which the TLB misses three quarters if it has so many entries, or
    /// among the most places.
    pub fn beyond(&self, entries: u32) -> impl Iterator<Item = Point> {
        let enough = move |point: &&Point| point.places / 4 >= entries;
        self.0
            .iter()
            .filter_map(move |points| points.iter().find(enough).or(points.last()).copied())
    }
}

impl Levels {
    /// Nothing is clear.
    pub const UNCLEAR: Self = Self { first: None, second: None, second_ns: None, walk_ns: None };

    fn of(mut fits: Vec<Fit>) -> Self {
        fits.retain(|fit| fit.error <= ERROR && fit.second_ns >= STEP * fit.near_ns);
        let firsts = |of: fn(&Fit) -> f64| fits.iter().map(of).collect();
        let seconds = |of: fn(&Fit, &Second) -> f64| {
            let seen = fits.iter().filter_map(|fit| Some((fit, fit.second.as_ref()?)));
            let seen = seen.filter(|(fit, second)| second.more_ns >= STEP * fit.near_ns);
            seen.map(|(fit, second)| of(fit, second)).collect()
        };
        let entries = |number: f64| number.round() as u32;
        Self {
            first: agreed(AGREE, firsts(|fit| fit.first)).map(entries),
            second: agreed(AGREE, seconds(|_, second| second.entries)).map(entries),
            second_ns: agreed(AGREE_ON_TIME, firsts(|fit| fit.second_ns)),
            walk_ns: agreed(AGREE_ON_TIME, seconds(|fit, second| fit.second_ns + second.more_ns)),
        }
    }
}

impl Measured {
    /// Nothing is clear.
    pub const UNCLEAR: Self = Self { base: Levels::UNCLEAR, huge: Levels::UNCLEAR };

    /// Returns whether the levels for base pages are clear.
    pub fn is_clear(&self) -> bool {
        self.base.first.is_some() && self.base.second.is_some()
    }
}

/// Returns the middle one of the values, if they agree.
fn agreed(within: f64, mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let agree = values.len() >= ENOUGH && *values.last()? <= values.first()? * within;
    agree.then(|| values[values.len() / 2])
}

/// The cost of a jump among some places, beside that of a jump in few pages.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Cost {
    places: f64,
    ns: f64,
    near_ns: f64,
    /// The pages of the jump in few pages, if those have the same entries.
    near_pages: f64,
}

impl Cost {
    fn new(point: &Point, ns: f64) -> Self {
        let Point { places, near_ns, .. } = *point;
        Self { places: places.into(), ns: ns - near_ns, near_ns, near_pages: 1.0 }
    }

    /// Returns which share of the cost of a level appears here.
    fn share(&self, entries: f64) -> f64 {
        let missed = |pages: f64| (1.0 - entries / pages).max(0.0);
        missed(self.places) - missed(self.near_pages)
    }

    /// Returns the expected error, in nanoseconds.
    fn expected(&self) -> f64 {
        0.1 * self.ns.max(0.0) + 0.05 * self.near_ns
    }
}

/// The levels that come closest to the costs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fit {
    /// The entries of the first level.
    first: f64,
    /// The cost of a hit of the second level.
    second_ns: f64,
    second: Option<Second>,
    /// The time of a jump in the fewest pages.
    near_ns: f64,
    /// The error in units of the expected one.
    error: f64,
}

/// The second level of a [`Fit`].
#[derive(Clone, Copy, PartialEq, Debug)]
struct Second {
    entries: f64,
    /// The cost of a walk beyond that of a hit of this level.
    more_ns: f64,
}

impl Fit {
    fn of(costs: &[Cost]) -> Option<Self> {
        let (near_ns, most) = (costs.first()?.near_ns, costs.last()?.places * MOST);
        let row = |of: &dyn Fn(&Cost) -> f64| -> Vec<f64> {
            costs.iter().map(|cost| of(cost) / cost.expected()).collect()
        };
        let numbers = std::iter::successors(Some(LEAST), |entries| Some(entries * NEXT));
        let rows = |entries: f64| {
            let grown = |cost: &Cost| cost.share(entries) * (cost.places / GROWS).log2().max(0.0);
            (entries, row(&|cost| cost.share(entries)), row(&grown))
        };
        let levels: Vec<_> = numbers.take_while(|&entries| entries <= most).map(rows).collect();
        let target = row(&|cost| cost.ns);
        let nothing = vec![0.0; target.len()];
        let least = |one: Option<Self>, other: Option<Self>| match (one, other) {
            (Some(one), Some(other)) if other.error < one.error => Some(other),
            (one, other) => one.or(other),
        };
        let (mut single, mut double) = (None, None);
        for (first, one, _) in &levels {
            let fit = |second: Option<f64>, two: &[f64], grown: &[f64]| {
                let ([second_ns, more_ns], error) = solve([one, two, grown], &target)?;
                let second = second.map(|entries| Second { entries, more_ns });
                Some(Self { first: *first, second_ns, second, near_ns, error })
            };
            single = least(single, fit(None, &nothing, &nothing));
            for (second, two, grown) in levels.iter().filter(|level| level.0 >= first * APART) {
                double = least(double, fit(Some(*second), two, grown));
            }
        }
        let single = single?;
        Some(double.filter(|double| double.error < single.error * EXPLAINS).unwrap_or(single))
    }
}

/// Finds the factors with which the sum of the rows comes closest to the target. A row of zeroes has the factor 0. Returns the first two
/// factors and the error; `None` if the factor of another row is not positive. The third may be 0.
fn solve(rows: [&[f64]; 3], target: &[f64]) -> Option<([f64; 2], f64)> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let squares = rows.map(|row| dot(row, row));
    // The normal equations, by Gauss and Jordan.
    let solved = |used: [bool; 3]| {
        let mut equations = [[0.0; 4]; 3];
        for (i, equation) in equations.iter_mut().enumerate() {
            equation[i] = 1.0;
            if used[i] {
                for j in (0..3).filter(|&j| used[j]) {
                    equation[j] = dot(rows[i], rows[j]);
                }
                equation[3] = dot(rows[i], target);
            }
        }
        for i in 0..3 {
            let pivot = equations[i].map(|value| value / equations[i][i]);
            for (j, equation) in equations.iter_mut().enumerate() {
                let factor = equation[i];
                for (value, pivot) in equation.iter_mut().zip(pivot) {
                    *value = if j == i { pivot } else { *value - factor * pivot };
                }
            }
        }
        equations.map(|equation| equation[3])
    };
    let used = squares.map(|square| square > 0.0);
    let [one, two, grown] = solved(used);
    let factors = if grown < 0.0 { solved([used[0], used[1], false]) } else { [one, two, grown] };
    let is_positive = (0..2).all(|at| factors[at] > 0.0 || !used[at] && factors[at] == 0.0);
    let errors = target.iter().enumerate().map(|(at, target)| {
        let sum: f64 = rows.iter().zip(factors).map(|(row, factor)| row[at] * factor).sum();
        (sum - target).powi(2)
    });
    let error = (errors.sum::<f64>() / target.len() as f64).sqrt();
    (used[0] && is_positive && error.is_finite()).then_some(([factors[0], factors[1]], error))
}

impl fmt::Display for Sweeps {
    /// Writes a line for each point, and an empty line between two copies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, points) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            for Point { places, near_ns, base_ns, huge_ns, far_ns } in points {
                write!(f, "{places} {near_ns:.2} {base_ns:.2} {huge_ns:.2} ")?;
                match far_ns {
                    Some(far_ns) => writeln!(f, "{far_ns:.2}")?,
                    None => writeln!(f, "-")?,
                }
            }
        }
        Ok(())
    }
}

/// The text is not that of sweeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the times of jumps")]
pub struct NotSweeps;

impl FromStr for Sweeps {
    type Err = NotSweeps;

    fn from_str(text: &str) -> Result<Self, NotSweeps> {
        let time =
            |word: &str| word.parse().ok().filter(|time: &f64| time.is_finite() && *time > 0.0);
        let point = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [places, near, base, huge, far] = *words else { return None };
            let far_ns = if far == "-" { None } else { Some(time(far)?) };
            let (near_ns, base_ns, huge_ns) = (time(near)?, time(base)?, time(huge)?);
            let places = places.parse().ok().filter(|&places| places > 0)?;
            Some(Point { places, near_ns, base_ns, huge_ns, far_ns })
        };
        let points = |text: &str| {
            let points: Option<Vec<Point>> = text.lines().map(point).collect();
            points.filter(|points| !points.is_empty())
        };
        let sweeps: Option<Vec<_>> = text.split("\n\n").map(points).collect();
        sweeps.map(Self).ok_or(NotSweeps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: PageSize = PageSize::new(4096).unwrap();
    const PLACES: [u32; 20] = [
        8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
        6144, 8192,
    ];

    /// A made-up processor.
    #[derive(Clone, Copy)]
    struct Planted {
        /// The entries of both levels for base pages.
        base: [f64; 2],
        /// The same for huge pages.
        huge: [f64; 2],
        /// The cost of a hit of the second level and of a walk, in nanoseconds.
        costs: [f64; 2],
        /// The added cost of a walk for each doubling of the pages beyond 1024.
        growth: f64,
    }

    /// Zen 3, Skylake, Golden Cove, Neoverse N1, Zen 5.
    const DESIGNS: [Planted; 5] = [
        Planted { base: [64.0, 512.0], huge: [64.0, 512.0], costs: [2.5, 20.0], growth: 9.0 },
        Planted { base: [128.0, 1536.0], huge: [8.0, 1536.0], costs: [2.5, 14.0], growth: 0.0 },
        Planted { base: [256.0, 2048.0], huge: [32.0, 2048.0], costs: [2.5, 12.0], growth: 2.0 },
        Planted { base: [48.0, 1280.0], huge: [48.0, 1280.0], costs: [2.0, 14.0], growth: 3.0 },
        Planted { base: [64.0, 2048.0], huge: [64.0, 2048.0], costs: [2.0, 25.0], growth: 0.0 },
    ];

    impl Planted {
        /// Makes sweeps. Each time is longer by a random share of at most `noise`.
        fn sweeps(self, copies: usize, noise: f64, seed: u64) -> Sweeps {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut time = |ns: f64| ns * (1.0 + noise * random.f64());
            let cost = |pages: f64, [first, second]: [f64; 2]| {
                let missed = |entries: f64| (1.0 - entries / pages).max(0.0);
                let [hit, walk] = self.costs;
                let walk = walk + self.growth * (pages / 1024.0).log2().max(0.0);
                hit * missed(first) + (walk - hit) * missed(second)
            };
            let mut point = |places: u32| {
                let pages = f64::from(places);
                // From 512 lines on, they leave the first level of the cache.
                let near = 5.5 + 3.0 * (1.0 - 512.0 / pages).max(0.0);
                Point {
                    places,
                    near_ns: time(near + cost((pages / 64.0).ceil(), self.base)),
                    base_ns: time(near + cost(pages, self.base)),
                    huge_ns: time(near + cost((pages / 512.0).ceil(), self.huge)),
                    far_ns: (places <= 1024).then(|| time(near + cost(pages, self.huge))),
                }
            };
            Sweeps((0..copies).map(|_| PLACES.map(&mut point).to_vec()).collect())
        }
    }

    /// Returns whether the number is unclear, or about the planted one.
    fn is_about(found: Option<u32>, entries: f64) -> bool {
        found.is_none_or(|found| (0.75..1.33).contains(&(f64::from(found) / entries)))
    }

    #[test]
    fn planted_levels_are_found_or_unclear() {
        for (planted, seed) in DESIGNS.into_iter().flat_map(|it| (0..10).map(move |n| (it, n))) {
            for noise in [0.03, 0.1, 0.4] {
                let found = planted.sweeps(3, noise, seed).levels(BASE);
                let Measured { base, huge } = found;
                let all = [base.first, base.second, huge.first, huge.second];
                let planted = [planted.base, planted.huge].concat();
                let right = all.into_iter().zip(planted).all(|(it, entries)| is_about(it, entries));
                assert!(right, "{seed} {noise}: {found:?}");
                let is_clear = found.is_clear() && huge.first.is_some();
                assert!(noise > 0.05 || is_clear, "{seed} {noise}: {found:?}");
            }
        }
    }

    #[test]
    fn times_are_found() {
        for planted in DESIGNS {
            let Levels { second_ns, walk_ns, .. } = planted.sweeps(3, 0.03, 1).levels(BASE).base;
            for (found, ns) in [second_ns, walk_ns].into_iter().zip(planted.costs) {
                let found = found.expect("a clear time");
                assert!((0.7..1.4).contains(&(found / ns)), "{found} {ns}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let flat = Planted { costs: [0.0, 0.0], growth: 0.0, ..DESIGNS[0] };
        let one_level = Planted { costs: [9.0, 9.0], growth: 0.0, ..DESIGNS[0] };
        for seed in 0..20 {
            assert_eq!(flat.sweeps(3, 0.03, seed).levels(BASE), Measured::UNCLEAR, "{seed}");
            let Measured { base, huge } = one_level.sweeps(3, 0.03, seed).levels(BASE);
            assert_eq!([base.second, huge.second], [None; 2], "{seed}: {base:?} {huge:?}");
            assert!(is_about(base.first, 64.0) && is_about(huge.first, 64.0), "{base:?} {huge:?}");
            // One copy agrees with nothing.
            assert_eq!(DESIGNS[0].sweeps(1, 0.0, seed).levels(BASE), Measured::UNCLEAR);
        }
        assert_eq!(Sweeps::default().levels(BASE), Measured::UNCLEAR);
    }

    /// Measured on a guest beside other work. The processor has 64 and 512 entries, of which another thread of the core may use a part.
    #[test]
    fn recorded_levels_are_found_or_unclear() {
        let read = |text: &str| text.parse::<Sweeps>().unwrap().levels(BASE);
        for text in [
            include_str!("../testdata/tlb_sweep/load_8"),
            include_str!("../testdata/tlb_sweep/load_17"),
        ] {
            let found = read(text);
            let Measured { base, huge } = found;
            assert!(found.is_clear(), "{found:?}");
            assert!(is_about(base.first, 64.0) && is_about(base.second, 256.0), "{found:?}");
            assert!(is_about(huge.first, 64.0) && is_about(huge.second, 256.0), "{found:?}");
            let [second_ns, walk_ns] = [base.second_ns, base.walk_ns].map(|it| it.expect("a time"));
            assert!((2.0..4.0).contains(&second_ns), "{found:?}");
            assert!((10.0..20.0).contains(&walk_ns), "{found:?}");
        }
        let two = read(include_str!("../testdata/tlb_sweep/two_copies"));
        assert!(!two.is_clear() && is_about(two.huge.first, 64.0), "{two:?}");
        assert_eq!(read(include_str!("../testdata/tlb_sweep/one_copy")), Measured::UNCLEAR);
    }

    /// Measured on a guest on an Intel Xeon (Emerald Rapids). The processor has 256 entries for base pages, and 2,048 for both sizes. The
    /// host splits huge pages, so the 32 entries for huge pages are not used.
    #[test]
    fn recorded_levels_of_a_xeon_are_found() {
        for text in [
            include_str!("../testdata/tlb_sweep/xeon_quiet"),
            include_str!("../testdata/tlb_sweep/xeon_beside_a_guest"),
        ] {
            let Measured { base, huge } = text.parse::<Sweeps>().unwrap().levels(BASE);
            assert!(base.first.is_some() && base.second.is_some(), "{base:?}");
            assert!(is_about(base.first, 256.0) && is_about(base.second, 2048.0), "{base:?}");
            assert!(is_about(huge.first, 256.0) && huge.second.is_none(), "{huge:?}");
            let [second_ns, walk_ns] = [base.second_ns, base.walk_ns].map(|it| it.expect("a time"));
            assert!((6.0..9.0).contains(&second_ns), "{base:?}");
            assert!((30.0..50.0).contains(&walk_ns), "{base:?}");
        }
    }

    #[test]
    fn a_text_is_read_back() {
        let sweeps = DESIGNS[0].sweeps(3, 0.03, 1);
        let text = sweeps.to_string();
        let read: Sweeps = text.parse().unwrap();
        assert_eq!((read.to_string(), read.0.len()), (text, 3));
        assert_eq!(read.beyond(512).map(|point| point.places).collect::<Vec<_>>(), [2048; 3]);
        assert_eq!(read.beyond(9000).map(|point| point.places).collect::<Vec<_>>(), [8192; 3]);
        for text in [
            "",
            "\n",
            "8 1 1 1\n",
            "8 1 1 1 x\n",
            "8 1 1 0 1\n",
            "8 -1 1 1 1\n",
            "8 inf 1 1 1\n",
            "0 1 1 1 1\n",
            "8 NaN 1 1 1\n",
            "8 1 1 1 -\n\n",
            "8 1 1 1 -\n\n\n8 1 1 1 -\n",
        ] {
            assert_eq!(text.parse::<Sweeps>(), Err(NotSweeps), "{text:?}");
        }
        assert!("8 1 1 1 -\n".parse::<Sweeps>().is_ok());
    }
}
