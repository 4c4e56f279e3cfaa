//! Tests the claims of a sequence of pairs on simulated services: how often a claim is false, how often a difference is
//! seen, and after how many pairs.

use fastrand::Rng;
use support::rounds;
use tiexec_advise::sequential::{Sequence, Verdict};

/// Four hours of pairs of 30 s.
const PAIRS: usize = 480;
const KEEP_ABOVE: f64 = 1.005;

/// How the figure of a service changes by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    /// 1 % of noise in each slice.
    Quiet,
    /// Noise that is correlated over slices, with heavy tails (Student's t with 3 degrees, 2 % and 2 %).
    Correlated,
    /// The same noise; the figure also falls by a fifth in four hours, with a daily rhythm of ±30 %.
    Drift,
    /// The same noise; in bursts of one to six slices the figure is also a third lower.
    Bursts,
    /// Noise without a variance (Cauchy, quartiles at ±2 %).
    Wild,
    /// The service is quiet, and the effect changes slowly (±2 % around the planted one).
    Effect,
}

const KINDS: [Kind; 6] =
    [Kind::Quiet, Kind::Correlated, Kind::Drift, Kind::Bursts, Kind::Wild, Kind::Effect];

struct Service {
    kind: Kind,
    random: Rng,
    slice: f64,
    level: f64,
    burst: u32,
    effect: f64,
    begun: f64,
}

impl Service {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let begun = random.f64();
        Self { kind, random, slice: 0.0, level: 0.0, burst: 0, effect: 0.0, begun }
    }

    fn normal(&mut self) -> f64 {
        let (one, other) = (1.0 - self.random.f64(), self.random.f64());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    }

    /// Student's t with 3 degrees of freedom, with a variance of 1.
    fn heavy(&mut self) -> f64 {
        let squares: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / squares.sqrt()
    }

    /// The logarithm of the figure of one slice on base pages.
    fn slice(&mut self) -> f64 {
        self.slice += 1.0;
        match self.kind {
            Kind::Quiet => return 0.01 * self.normal(),
            Kind::Effect => return 0.005 * self.normal(),
            Kind::Wild => {
                return 0.02 * (std::f64::consts::PI * (self.random.f64() - 0.5)).tan();
            }
            Kind::Correlated | Kind::Drift | Kind::Bursts => {}
        }
        self.level = 0.8 * self.level + 0.6 * 0.02 * self.heavy();
        let mut log = self.level + 0.02 * self.heavy();
        if self.kind == Kind::Drift {
            let day = self.begun + self.slice * 15.0 / 86400.0;
            log -= 0.223 * self.slice / (2 * PAIRS) as f64;
            log += 0.3 * (std::f64::consts::TAU * day).sin();
        }
        if self.kind == Kind::Bursts {
            if self.burst == 0 && self.random.f64() < 0.03 {
                self.burst = self.random.u32(1..=6);
            }
            if self.burst > 0 {
                self.burst -= 1;
                log -= 0.4;
            }
        }
        log
    }

    /// The logarithm of the ratio of one pair, in an order that a coin decides.
    fn pair(&mut self, planted: f64) -> f64 {
        let (first, second) = (self.slice(), self.slice());
        if self.kind == Kind::Effect {
            self.effect = 0.9 * self.effect + 0.436 * 0.02 * self.normal();
        }
        let noise = if self.random.bool() { first - second } else { second - first };
        planted.ln() + self.effect + noise
    }
}

/// Runs a canary. Returns the claim and the sequence of pairs.
fn run(kind: Kind, planted: f64, seed: u64) -> (Verdict, Sequence) {
    let mut service = Service::new(kind, seed);
    let mut sequence = Sequence::new(KEEP_ABOVE);
    for _ in 0..PAIRS {
        sequence.push(service.pair(planted));
        if let Some(verdict) = sequence.verdict() {
            return (verdict, sequence);
        }
    }
    (sequence.last_verdict(), sequence)
}

/// The outcomes of many services.
struct Runs {
    outcomes: Vec<(Verdict, usize)>,
    /// How often the final interval does not contain the planted ratio.
    missed: usize,
}

impl Runs {
    fn of(kind: Kind, planted: f64, often: usize) -> Self {
        let mut missed = 0;
        let outcomes = (0..often as u64).map(|seed| {
            let (verdict, sequence) = run(kind, planted, seed + 1);
            let interval = sequence.interval();
            let holds = interval.low.is_none_or(|low| low <= planted)
                && interval.high.is_none_or(|high| high >= planted);
            missed += usize::from(!holds);
            (verdict, sequence.pairs())
        });
        let outcomes = outcomes.collect();
        Self { outcomes, missed }
    }

    fn share(&self, wanted: Verdict) -> f64 {
        let found = self.outcomes.iter().filter(|(verdict, _)| *verdict == wanted).count();
        100.0 * found as f64 / self.outcomes.len() as f64
    }

    /// The median and the ninth decile of the pairs.
    fn pairs(&self) -> (usize, usize) {
        let mut pairs: Vec<usize> = self.outcomes.iter().map(|(_, pairs)| *pairs).collect();
        pairs.sort_unstable();
        (pairs[pairs.len() / 2], pairs[pairs.len() * 9 / 10])
    }
}

#[test]
fn false_claims_are_rare() {
    for kind in KINDS.into_iter().filter(|&kind| kind != Kind::Effect) {
        let runs = Runs::of(kind, 1.0, rounds(50));
        let (better, worse) = (runs.share(Verdict::Better), runs.share(Verdict::Worse));
        assert!(better + worse <= 1.0, "{kind:?}: {better} % better, {worse} % worse");
        // If the ratio is exactly the limit, "better" is false.
        let better = Runs::of(kind, KEEP_ABOVE, rounds(25)).share(Verdict::Better);
        assert!(better <= 1.0, "{kind:?} on the limit: {better} % better");
    }
}

#[test]
fn differences_are_seen() {
    for kind in KINDS {
        let five = Runs::of(kind, 1.05, 50);
        assert!(five.share(Verdict::Better) >= 95.0, "{kind:?}: {}", five.share(Verdict::Better));
        let less = Runs::of(kind, 0.95, 50);
        assert!(less.share(Verdict::Worse) >= 95.0, "{kind:?}: {}", less.share(Verdict::Worse));
    }
    let two = Runs::of(Kind::Quiet, 1.02, 50);
    assert!(two.share(Verdict::Better) >= 95.0 && two.pairs().1 <= 60, "{:?}", two.pairs());
}

/// Each run ends in one verdict. `TIEXEC_SIMULATIONS=2000 cargo test -p tiexec-advise --test sequential --release -- table
/// --nocapture` prints the table of docs/design/canary.md, in minutes.
#[test]
fn table() {
    let most = std::env::var("TIEXEC_SIMULATIONS").ok().and_then(|most| most.parse().ok());
    let most: usize = most.unwrap_or(4);
    println!(
        "| service | planted | better | worse | no worse | undecided | interval misses | pairs, median | ninth decile |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for kind in KINDS {
        for planted in [1.0, KEEP_ABOVE, 1.02, 1.05, 0.98] {
            let often = if planted < 1.01 && planted > 0.99 { most } else { most.div_ceil(4) };
            let runs = Runs::of(kind, planted, often);
            let share = |verdict| format!("{:.2} %", runs.share(verdict));
            let missed = 100.0 * runs.missed as f64 / often as f64;
            let (median, ninth) = runs.pairs();
            let verdicts = [Verdict::Better, Verdict::Worse, Verdict::NoWorse, Verdict::Undecided];
            let all: f64 = verdicts.iter().map(|&verdict| runs.share(verdict)).sum();
            assert!((all - 100.0).abs() < 1e-6, "{kind:?}, {planted}: {all} %");
            println!(
                "| {kind:?} | {planted:.3} | {} | {} | {} | {} | {missed:.2} % | {median} | {ninth} |",
                share(Verdict::Better),
                share(Verdict::Worse),
                share(Verdict::NoWorse),
                share(Verdict::Undecided)
            );
        }
    }
}
