//! A sequence of pairs of slices: an interval of the ratio that is valid each time it is read, and the claim that the
//! interval allows.
//!
//! Each pair measures a service both ways, in an order that a fair coin decides. If TiExec multiplied the figure by `r`
//! in every slice, then `log(ratio) - log(r)` is as likely to be above zero as below, by the same amount: the coin
//! alone decides its sign. Drift, a daily rhythm, bursts and noise of any tail change the amount, never the coin.
//!
//! A bet on the sign has no expected gain, even if the player knows the amount. The stake is multiplied by `1 +
//! tanh(λ·amount)` or `1 - tanh(λ·amount)`. By Ville's inequality the stake exceeds 200 at *any* time with a
//! probability of at most 1/200. The interval contains all ratios against which no stake, on either side, has exceeded
//! 200 (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024; Howard and others,
//! "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021). The method needs no variance, and no
//! number of pairs that is fixed beforehand.
//!
//! The unit of an amount is the spread of the earlier pairs. An amount is limited to three units, so that one wild pair
//! decides nothing. The stake is divided among several λ, because the best one depends on the true ratio.
//!
//! If the *effect* changes slowly, neighbouring pairs agree although the coin is fair. Pairs are then combined into
//! blocks whose length covers the correlation of the earlier pairs. A block counts as one amount.

use serde::{Deserialize, Serialize};

/// The confidence of the interval, over all the times that it is read.
pub const CONFIDENCE: f64 = 0.99;
/// The share by which a figure may be worse for [`Verdict::NoWorse`].
pub const TOLERANCE: f64 = 0.005;
/// With fewer pairs there is no forecast.
pub const ENOUGH_TO_FORECAST: usize = 6;
/// The limit of one amount, in spreads.
const CLIP: f64 = 3.0;
/// The λ of each part of the stake.
const LAMBDAS: [f64; 6] = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6];
/// With fewer earlier pairs an amount has no unit, and only its sign counts.
const ENOUGH_FOR_SPREAD: usize = 4;
/// With fewer pairs no correlation is computed.
const ENOUGH_FOR_LAGS: usize = 12;
/// The greatest lag whose correlation counts.
const MOST_LAGS: usize = 8;

/// The claim that the pairs allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The figure is better, by more than the requested ratio.
    Better,
    /// The figure is worse.
    Worse,
    /// The figure is not worse by [`TOLERANCE`], and was not found to be better by the requested ratio.
    NoWorse,
    /// No claim is possible.
    Undecided,
}

impl Verdict {
    /// Returns the verdict in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoWorse => "no worse than 0.5 %",
            Self::Undecided => "undecided",
        }
    }
}

/// The ratio of TiExec's figure to the plain one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate; `None` without pairs.
    pub estimate: Option<f64>,
    /// The lower end; `None` if there is none yet.
    pub low: Option<f64>,
    /// The upper end; `None` if there is none yet.
    pub high: Option<f64>,
}

/// The estimated number of further pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forecast {
    /// Pairs until there is a verdict, if the present estimate is right; `None` if the estimate lies on a limit.
    pub verdict: Option<usize>,
    /// Pairs until the verdict is "better", if the figure is better by 2 %; `None` if 2 % would not be enough.
    pub two_percent: Option<usize>,
}

/// One amount, of a single pair or of combined pairs.
#[derive(Clone, Copy, Debug)]
struct Block {
    mean: f64,
    /// The unit, from the earlier pairs; 0 if there were too few.
    unit: f64,
}

impl Block {
    /// Returns the block's amount above `log`.
    fn above(&self, log: f64) -> f64 {
        let amount = self.mean - log;
        if self.unit > 0.0 {
            (amount / self.unit).clamp(-CLIP, CLIP)
        } else if amount == 0.0 {
            0.0
        } else {
            amount.signum()
        }
    }
}

/// A stake on one side: the logarithms of its parts.
#[derive(Clone, Copy, Debug, Default)]
struct Stake([f64; LAMBDAS.len()]);

impl Stake {
    fn bet(&mut self, amount: f64) {
        for (part, lambda) in self.0.iter_mut().zip(LAMBDAS) {
            *part += (lambda * amount).tanh().ln_1p();
        }
    }

    /// Returns whether the stake exceeds the limit that chance allows on this side.
    fn is_won(&self) -> bool {
        let most = self.0.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = self.0.iter().map(|part| (part - most).exp()).sum();
        most + sum.ln() >= threshold()
    }
}

/// Returns the logarithm of the greatest sum of a stake's parts that chance allows, on one of two sides.
fn threshold() -> f64 {
    (2.0 * LAMBDAS.len() as f64 / (1.0 - CONFIDENCE)).ln()
}

/// The pairs so far.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The logarithm of the ratio above which the verdict is "better".
    keep: f64,
    logs: Vec<f64>,
    sorted: Vec<f64>,
    blocks: Vec<Block>,
    /// The number of pairs in complete blocks. The remaining pairs wait until the next block is full.
    held: usize,
    /// The number of pairs of the next block, and its unit. Both were chosen before its first pair.
    next: (usize, f64),
    /// The stakes that the ratio is above `keep`, below 1, above `-TOLERANCE`, and below `keep`.
    stakes: [Stake; 4],
    /// True for each stake that was won at any time.
    won: [bool; 4],
}

impl Sequence {
    /// Makes an empty sequence. A ratio above `keep_above` is better.
    pub fn new(keep_above: f64) -> Self {
        Self {
            keep: keep_above.ln(),
            logs: Vec::new(),
            sorted: Vec::new(),
            blocks: Vec::new(),
            held: 0,
            next: (1, 0.0),
            stakes: [Stake::default(); 4],
            won: [false; 4],
        }
    }

    /// Returns the number of pairs.
    pub fn pairs(&self) -> usize {
        self.logs.len()
    }

    /// Adds a pair, by the logarithm of its ratio. A logarithm that is not finite does not count.
    pub fn push(&mut self, log: f64) {
        if !log.is_finite() {
            return;
        }
        self.logs.push(log);
        let place = self.sorted.partition_point(|&other| other < log);
        self.sorted.insert(place, log);
        let (length, unit) = self.next;
        let waiting = &self.logs[self.held..];
        if waiting.len() < length {
            return;
        }
        let block = Block { mean: waiting.iter().sum::<f64>() / length as f64, unit };
        self.held += length;
        self.blocks.push(block);
        let amounts = [
            block.above(self.keep),
            -block.above(0.0),
            block.above(tolerated()),
            -block.above(self.keep),
        ];
        for ((stake, amount), won) in self.stakes.iter_mut().zip(amounts).zip(&mut self.won) {
            stake.bet(amount);
            *won |= stake.is_won();
        }
        self.next = self.choose_block();
    }

    /// Returns the verdict once it is final, so that more pairs would not change it.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.won {
            [true, ..] => Some(Verdict::Better),
            [_, true, ..] => Some(Verdict::Worse),
            [.., true, true] => Some(Verdict::NoWorse),
            _ => None,
        }
    }

    /// Returns the verdict if there are no more pairs.
    pub fn last_verdict(&self) -> Verdict {
        let [.., no_worse, _] = self.won;
        self.verdict().unwrap_or(if no_worse { Verdict::NoWorse } else { Verdict::Undecided })
    }

    /// Returns the present ratio and its interval.
    pub fn interval(&self) -> Interval {
        let low = self.end(1.0);
        let high = self.end(-1.0).map(|end| -end);
        let within =
            |log: f64| log.max(low.unwrap_or(f64::MIN)).min(high.unwrap_or(f64::MAX)).exp();
        Interval {
            estimate: (!self.logs.is_empty()).then(|| within(self.centre())),
            low: low.map(f64::exp),
            high: high.map(f64::exp),
        }
    }

    /// Returns the standard error of the logarithm of the estimate, for a single reading; `None` with too few pairs.
    pub fn standard_error(&self) -> Option<f64> {
        let error = self.spread() * (self.inflation() / self.logs.len() as f64).sqrt();
        (self.logs.len() >= ENOUGH_TO_FORECAST && error > 0.0).then_some(error)
    }

    /// Estimates how many more pairs are needed; `None` with too few pairs.
    pub fn forecast(&self) -> Option<Forecast> {
        if self.logs.len() < ENOUGH_TO_FORECAST {
            return None;
        }
        let centre = self.centre();
        let unit = self.spread() * self.inflation().sqrt();
        let more = |gap: f64| {
            // A stake grows by half the square of the amount, and can at most double. The part with the best λ is only
            // one of several parts.
            let amount = gap / unit.max(f64::MIN_POSITIVE);
            let growth = std::f64::consts::LN_2 * -(-amount * amount / LN_4).exp_m1();
            let all = MARGIN * threshold() / growth;
            (gap > 0.0 && all.is_finite() && all < 1e6)
                .then(|| (all.ceil() as usize).saturating_sub(self.logs.len()).max(1))
        };
        let between = more((centre - tolerated()).min(self.keep - centre));
        Some(Forecast {
            verdict: [more(centre - self.keep), more(-centre), between].into_iter().flatten().min(),
            two_percent: more(TWO_PERCENT.ln_1p() - self.keep),
        })
    }

    /// Finds the lowest logarithm of a ratio for which the stake that the true ratio is above it is not won. With −1
    /// for `above`, finds the highest for the stake below it, and returns it with the opposite sign.
    fn end(&self, above: f64) -> Option<f64> {
        let (first, last) = (*self.sorted.first()?, *self.sorted.last()?);
        let is_won = |log: f64| {
            let mut stake = Stake::default();
            self.blocks.iter().for_each(|block| stake.bet(above * block.above(above * log)));
            stake.is_won()
        };
        // Beyond all pairs, every bet pays its maximum.
        let (mut won, mut not) = if above > 0.0 { (first, last) } else { (-last, -first) };
        let beyond = CLIP * self.blocks.iter().map(|block| block.unit).fold(0.0, f64::max);
        won -= beyond + 1e-9;
        if !is_won(won) {
            return None;
        }
        not += 1e-9;
        for _ in 0..60 {
            let middle = f64::midpoint(won, not);
            *(if is_won(middle) { &mut won } else { &mut not }) = middle;
        }
        Some(won)
    }

    /// Returns the mean of the middle three fifths.
    fn centre(&self) -> f64 {
        let off = self.sorted.len() / 5;
        let inner = &self.sorted[off..self.sorted.len() - off];
        inner.iter().sum::<f64>() / inner.len().max(1) as f64
    }

    /// Returns a standard deviation from the distance of the quartiles, which tails do not affect.
    fn spread(&self) -> f64 {
        let at = |share: f64| {
            let place = share * self.sorted.len().saturating_sub(1) as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let value = |index: usize| self.sorted.get(index).or(self.sorted.last()).copied();
            let (low, high) = (value(low).unwrap_or(0.0), value(low + 1).unwrap_or(0.0));
            low + part * (high - low)
        };
        // The spread of few pairs is underestimated.
        let few = 1.0 + 1.0 / self.sorted.len().max(1) as f64;
        few * (at(0.75) - at(0.25)) / 1.349
    }

    /// Chooses the number of pairs of the next block, and its unit.
    fn choose_block(&self) -> (usize, f64) {
        if self.logs.len() < ENOUGH_FOR_SPREAD {
            return (1, 0.0);
        }
        let lags = self.correlations();
        let length = 1 + 2 * lags.len();
        (length, self.spread() * (inflation(&lags) / length as f64).sqrt())
    }

    /// Returns how much larger the variance of a mean is than that of as many pairs without correlation.
    fn inflation(&self) -> f64 {
        inflation(&self.correlations())
    }

    /// Returns the correlations of pairs at lags 1, 2 and so on, as far as they exceed chance.
    fn correlations(&self) -> Vec<f64> {
        let count = self.logs.len();
        if count < ENOUGH_FOR_LAGS {
            return Vec::new();
        }
        let (centre, unit) = (self.centre(), self.spread());
        let at = |log: &f64| ((log - centre) / unit).clamp(-CLIP, CLIP);
        let amounts: Vec<f64> = self.logs.iter().map(at).collect();
        let squares: f64 = amounts.iter().map(|amount| amount * amount).sum();
        let of = |lag: usize| {
            let pairs = amounts.iter().zip(&amounts[lag..]);
            pairs.map(|(one, other)| one * other).sum::<f64>() / squares
        };
        let chance = 2.0 / (count as f64).sqrt();
        (1..=MOST_LAGS).map(of).take_while(|&correlation| correlation > chance).collect()
    }
}

/// Returns how much larger the variance of a mean is with these correlations than without.
fn inflation(lags: &[f64]) -> f64 {
    let next = (lags.len() + 1) as f64;
    let weighted = lags.iter().enumerate().map(|(at, lag)| lag * (1.0 - (at + 1) as f64 / next));
    1.0 + 2.0 * weighted.sum::<f64>()
}

/// The logarithm of the lowest ratio that still counts as [`Verdict::NoWorse`].
fn tolerated() -> f64 {
    (-TOLERANCE).ln_1p()
}

/// A difference that operators care about.
const TWO_PERCENT: f64 = 0.02;
const LN_4: f64 = 2.0 * std::f64::consts::LN_2;
/// The factor on the number of pairs from the mean growth, because the stake does not grow evenly.
const MARGIN: f64 = 1.2;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logs: &[f64]) -> Sequence {
        let mut sequence = Sequence::new(1.005);
        logs.iter().for_each(|&log| sequence.push(log));
        sequence
    }

    #[test]
    fn odd_figures_are_harmless() {
        assert_eq!(of(&[]).interval(), Interval { estimate: None, low: None, high: None });
        let odd = of(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        assert_eq!(
            (odd.pairs(), odd.last_verdict(), odd.forecast()),
            (0, Verdict::Undecided, None)
        );
        let same = of(&[0.0; 200]);
        assert_eq!(same.verdict(), Some(Verdict::NoWorse));
        assert_eq!(same.standard_error(), None);
        let huge = of(&[1e300, -1e300].repeat(30));
        assert_eq!(huge.last_verdict(), Verdict::Undecided);
        assert!(huge.interval().low.is_none_or(|low| low < 1.0), "{:?}", huge.interval());
    }

    #[test]
    fn a_coin_is_tossed_often_enough() {
        // Ten heads in a row have a chance of 1 in 1024. The allowed chance is 1 in 200, for all readings and parts
        // together.
        let ten = of(&[0.1; 10]);
        assert_eq!((ten.verdict(), ten.interval().low), (None, None));
        let sequence = of(&[0.1; 14]);
        assert_eq!(sequence.verdict(), Some(Verdict::Better));
        assert_eq!(of(&[-0.1; 14]).verdict(), Some(Verdict::Worse));
        let Interval { estimate, low, high } = sequence.interval();
        let near = |end: Option<f64>| (end.unwrap().ln() - 0.1).abs() < 1e-3;
        assert!(near(estimate) && near(low) && near(high), "{:?}", sequence.interval());
    }

    #[test]
    fn one_wild_pair_decides_nothing() {
        let usual = |at: u32| 0.05 + 0.01 * f64::from(at % 5);
        let mut logs: Vec<f64> = (0..40).map(usual).collect();
        let before = of(&logs).interval();
        logs[20] = -50.0;
        let wild = of(&logs);
        assert_eq!(wild.verdict(), Some(Verdict::Better));
        let moved = wild.interval().estimate.unwrap() - before.estimate.unwrap();
        assert!(moved.abs() < 0.01, "{moved}");
    }

    #[test]
    fn neighbours_that_agree_make_blocks() {
        // Twenty pairs up and twenty pairs down have a mean of zero for any coin.
        let waves: Vec<f64> =
            (0..480).map(|at| if at / 20 % 2 == 0 { 0.03 } else { -0.03 }).collect();
        let sequence = of(&waves);
        assert!(sequence.next.0 >= 9, "{:?}", sequence.next);
        assert!(sequence.inflation() > 5.0, "{}", sequence.inflation());
    }

    #[test]
    fn the_time_is_foretold() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut noise = || (0..12).map(|_| random.f64() - 0.5).sum::<f64>();
        let logs: Vec<f64> = (0..2000).map(|_| 0.03 + 0.04 * noise()).collect();
        assert_eq!(of(&logs[..5]).forecast(), None);
        let mut sequence = of(&logs[..20]);
        let foretold = sequence.forecast().unwrap();
        let mut more = 0;
        while sequence.verdict().is_none() {
            sequence.push(logs[20 + more]);
            more += 1;
        }
        let verdict = foretold.verdict.unwrap();
        assert!(verdict > more / 3 && verdict < more * 3, "{foretold:?}, in truth {more}");
        assert!(foretold.two_percent.unwrap() > verdict, "{foretold:?}");
        assert_eq!(Sequence::new(1.03).forecast(), None);
    }
}
