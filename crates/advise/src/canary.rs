//! The verdicts of canaries: the subject of each, and the combined verdict of several hosts.
//!
//! A verdict is about one build of a program on one processor model and one kernel, with one backing and one way to
//! take the edges. The verdict says nothing about any other combination.
//!
//! The estimates of several hosts differ by more than chance. The combined estimate is therefore one of random effects
//! (DerSimonian and Laird, "Meta-analysis in clinical trials", 1986), and its interval is that of Hartung and Knapp ("A
//! refined method for the meta-analysis of controlled clinical trials with binary outcome", 2001), by Student's t with
//! one degree of freedom less than hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::next::Next;
use crate::origin::Origin;
use crate::sequential::{CONFIDENCE, Interval, TOLERANCE, Verdict};

/// With fewer hosts the combined verdict claims nothing.
pub const ENOUGH_HOSTS: usize = 3;

/// The subject of a verdict.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Subject {
    /// The build ID of the program, in hexadecimal digits; `none` for a file without one.
    pub build_id: String,
    /// The digest of its text, in hexadecimal digits.
    pub text: String,
    /// The model of the processor.
    pub cpu: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The backing of the copies.
    pub backing: String,
    /// The policy for the edges of the text.
    pub edges: String,
}

/// The finding of a canary.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The build and the kind of machine.
    #[serde(flatten)]
    pub subject: Subject,
    /// The claim.
    pub verdict: Verdict,
    /// The ratio above which the verdict is "better".
    pub keep_above: f64,
    /// The ratio, and its interval.
    #[serde(flatten)]
    pub ratio: Interval,
    /// The standard error of the logarithm of the estimate; `None` where it cannot be computed.
    pub standard_error: Option<f64>,
    /// The pairs that counted.
    pub pairs: usize,
    /// The number of hosts; 1 unless the finding was merged.
    pub hosts: usize,
    /// The path of the program.
    pub exe: String,
    /// The machine-id(5) of the host, so that each host counts once.
    pub machine: String,
    /// The user whose process it was, if it was not one of the machine's own. Findings of one user take no room of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// The time of the finding, in seconds since 1970.
    pub when: u64,
}

/// The ratio after a pair.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct AtPair {
    /// The pairs so far.
    pub pairs: usize,
    /// The ratio, and its interval.
    #[serde(flatten)]
    pub ratio: Interval,
}

/// The ratios after the pairs of a canary. Its length is limited, however long a canary lasts: of a long canary, it has
/// every second pair, or every fourth, and so on, and always the last pair.
#[derive(Clone, PartialEq, Debug)]
pub struct History {
    points: Vec<AtPair>,
    /// Every so many pairs count.
    every: usize,
}

impl Default for History {
    fn default() -> Self {
        Self { points: Vec::new(), every: 1 }
    }
}

impl History {
    /// Most points, except the last one.
    pub const MOST: usize = 512;

    /// Adds the ratio after a further pair.
    pub fn push(&mut self, point: AtPair) {
        let every = self.every;
        // The last point stands for now. It stays only if its pair counts.
        self.points.pop_if(|last| last.pairs % every != 0);
        self.points.push(point);
        if self.points.len() > Self::MOST {
            self.every *= 2;
            let every = self.every;
            self.points.retain(|kept| kept.pairs % every == 0 || *kept == point);
        }
    }

    /// Returns the ratios, the first pair first.
    pub fn points(&self) -> &[AtPair] {
        &self.points
    }
}

/// The account of one canary: the JSON of `tiexecctl canary`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Account {
    /// [`tiexec_core::report::SCHEMA`].
    pub schema: u32,
    /// `canary`.
    pub kind: String,
    /// The path of the program.
    pub exe: String,
    /// The claim.
    pub verdict: Verdict,
    /// Why it ended, in a word.
    pub ended: String,
    /// Why the guard objected, why the verdict is not kept, or why a pair was left out last.
    pub reason: Option<String>,
    /// True if the copies are kept.
    pub kept: bool,
    /// True if the verdict is kept.
    pub verdict_kept: bool,
    /// The ratio above which the verdict is "better".
    pub keep_above: f64,
    /// The confidence of the intervals.
    pub confidence: f64,
    /// The ratio of work per processor time.
    pub per_cpu_second: Interval,
    /// The ratio of work per wall-clock time.
    pub per_second: Interval,
    /// The source of the processor time: `cgroup` or `processes`.
    pub cpu_time: String,
    /// The pairs that count.
    pub pairs: usize,
    /// The pairs that could not be measured.
    pub pairs_left_out: usize,
    /// How many more pairs a verdict would take.
    pub more_pairs: Option<usize>,
    /// How many more pairs would show a ratio of 1.02.
    pub more_pairs_for_2_percent: Option<usize>,
    /// The length of a slice, in seconds.
    pub slice_s: f64,
    /// The length of the canary, in seconds.
    pub lasted_s: f64,
    /// How often the processes switched.
    pub switches: usize,
    /// The time of all switches, in seconds.
    pub switching_s: f64,
    /// The time of the longest switch, in seconds.
    pub longest_switch_s: f64,
    /// The subject of the verdict.
    pub subject: Subject,
    /// The text of the process that used most processor time, which the copies hold, in bytes; `None` if an earlier
    /// version wrote the account, as for all that follows.
    #[serde(default)]
    pub copied_bytes: Option<u64>,
    /// True if there were copies, and no process is left on them. False also if an earlier version wrote the account.
    #[serde(default)]
    pub given_back: bool,
    /// [`Account::per_cpu_second`] after each pair; see [`History`].
    #[serde(default)]
    pub history: Vec<AtPair>,
    /// Where, when and by which version it was measured.
    #[serde(flatten)]
    pub origin: Origin,
    /// The systemd unit, where there is one.
    #[serde(default)]
    pub unit: Option<String>,
    /// The command line of the process that used most processor time.
    #[serde(default)]
    pub command: Vec<String>,
    /// The next step.
    #[serde(default)]
    pub next: Option<Next>,
}

impl Account {
    /// The value of `kind` in JSON.
    pub const KIND: &'static str = "canary";
}

/// Combines the findings of several hosts, by subject. If one machine has two findings about the same subject, the
/// later one counts. Findings that are merged already do not count.
pub fn merge(findings: &[Finding]) -> Vec<Finding> {
    let mut groups: BTreeMap<&Subject, BTreeMap<&str, &Finding>> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.hosts == 1) {
        let machines = groups.entry(&finding.subject).or_default();
        let known = machines.entry(&finding.machine).or_insert(finding);
        if known.when < finding.when {
            *known = finding;
        }
    }
    groups
        .into_values()
        .filter_map(|machines| together(&machines.into_values().collect::<Vec<_>>()))
        .collect()
}

/// Combines the findings of different hosts about one subject; `None` if none of them has an estimate.
fn together(findings: &[&Finding]) -> Option<Finding> {
    let known: Vec<(f64, f64)> = findings
        .iter()
        .filter_map(|finding| {
            let (log, error) = (finding.ratio.estimate?.ln(), finding.standard_error?);
            (log.is_finite() && error.is_finite() && error > 0.0).then_some((log, error * error))
        })
        .collect();
    let newest = findings.iter().max_by_key(|finding| finding.when)?;
    let keep_above = findings.iter().map(|finding| finding.keep_above).fold(0.0, f64::max);
    let pairs = findings.iter().map(|finding| finding.pairs).sum();
    let (log, variance) = random_effects(&known)?;
    let reach = student(known.len().saturating_sub(1)) * variance.sqrt();
    let end =
        |sign: f64| Some((log + sign * reach).exp()).filter(|end| end.is_finite() && *end > 0.0);
    let ratio = Interval { estimate: Some(log.exp()), low: end(-1.0), high: end(1.0) };
    let above = |limit: f64| ratio.low.is_some_and(|low| low > limit);
    let verdict = if known.len() < ENOUGH_HOSTS {
        Verdict::Undecided
    } else if above(keep_above) {
        Verdict::Better
    } else if ratio.high.is_some_and(|high| high < 1.0) {
        Verdict::Worse
    } else if above(1.0 - TOLERANCE) {
        Verdict::NoWorse
    } else {
        Verdict::Undecided
    };
    Some(Finding {
        verdict,
        keep_above,
        ratio,
        standard_error: Some(variance.sqrt()),
        pairs,
        hosts: known.len(),
        owner: None,
        ..(*newest).clone()
    })
}

/// Returns the mean and its variance, of estimates with their variances; `None` without any.
fn random_effects(known: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mean = |weights: &[f64]| {
        let sum: f64 = weights.iter().sum();
        let weighted = known.iter().zip(weights).map(|((log, _), weight)| log * weight);
        (weighted.sum::<f64>() / sum, sum)
    };
    let count = known.len() as f64;
    let fixed: Vec<f64> = known.iter().map(|(_, variance)| 1.0 / variance).collect();
    if known.is_empty() {
        return None;
    }
    let (centre, sum) = mean(&fixed);
    let apart = |centre: f64, weights: &[f64]| {
        let squares =
            known.iter().zip(weights).map(|((log, _), weight)| weight * (log - centre).powi(2));
        squares.sum::<f64>()
    };
    let squares: f64 = fixed.iter().map(|weight| weight * weight).sum();
    let denominator = sum - squares / sum;
    let between = if denominator > 0.0 {
        ((apart(centre, &fixed) - (count - 1.0)) / denominator).max(0.0)
    } else {
        0.0
    };
    let weights: Vec<f64> = known.iter().map(|(_, variance)| 1.0 / (variance + between)).collect();
    let (centre, sum) = mean(&weights);
    // Hosts may agree by chance. The interval is therefore never narrower than their own errors allow.
    let scatter = if known.len() > 1 { apart(centre, &weights) / (count - 1.0) } else { 1.0 };
    Some((centre, scatter.max(1.0) / sum))
}

/// Returns the two-sided quantile of Student's t for [`CONFIDENCE`]. Between two rows of the table the row above
/// counts, which has the larger value.
fn student(freedom: usize) -> f64 {
    const ROWS: [(usize, f64); 12] = [
        (1, 63.657),
        (2, 9.925),
        (3, 5.841),
        (4, 4.604),
        (5, 4.032),
        (6, 3.707),
        (8, 3.355),
        (10, 3.169),
        (15, 2.947),
        (20, 2.845),
        (30, 2.750),
        (60, 2.660),
    ];
    const { assert!(CONFIDENCE == 0.99, "the table is of 99 %") };
    ROWS.iter().rev().find(|row| row.0 <= freedom).map_or(f64::INFINITY, |row| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(machine: u32, ratio: f64, error: f64) -> Finding {
        Finding {
            subject: Subject {
                build_id: "ab".to_owned(),
                text: "cd".to_owned(),
                cpu: "c".to_owned(),
                kernel: "k".to_owned(),
                backing: "image".to_owned(),
                edges: "conservative".to_owned(),
            },
            verdict: Verdict::Better,
            keep_above: 1.005,
            ratio: Interval { estimate: Some(ratio), low: None, high: None },
            standard_error: Some(error),
            pairs: 20,
            hosts: 1,
            exe: "/x".to_owned(),
            machine: machine.to_string(),
            owner: None,
            when: 1,
        }
    }

    #[test]
    fn a_history_is_short_and_has_the_last_pair() {
        let mut history = History::default();
        for pairs in 1..=100_000 {
            let ratio = Interval { estimate: Some(pairs as f64), low: None, high: None };
            history.push(AtPair { pairs, ratio });
            assert!(history.points().len() <= History::MOST + 1, "{pairs}");
            assert_eq!(history.points().last().map(|point| point.pairs), Some(pairs));
        }
        let points = history.points();
        assert!(points.len() > History::MOST / 4, "{}", points.len());
        assert!(points.is_sorted_by(|one, other| one.pairs < other.pairs));
    }

    #[test]
    fn hosts_that_agree_are_surer_than_each() {
        let hosts: Vec<Finding> = (0..8).map(|at| finding(at, 1.05, 0.01)).collect();
        let all = merge(&hosts);
        let [all] = &all[..] else { panic!("{all:?}") };
        assert_eq!((all.verdict, all.hosts, all.pairs), (Verdict::Better, 8, 160));
        let error = all.standard_error.unwrap();
        assert!((error - 0.01 / 8f64.sqrt()).abs() < 1e-9, "{error}");
    }

    #[test]
    fn hosts_that_differ_are_less_sure() {
        // Each host has a narrow interval, and the hosts contradict each other.
        let ratios = [1.20, 0.90, 1.15, 0.95];
        let hosts: Vec<Finding> =
            ratios.iter().zip(0..).map(|(&ratio, at)| finding(at, ratio, 0.001)).collect();
        let all = &merge(&hosts)[0];
        assert_eq!(all.verdict, Verdict::Undecided);
        assert!(all.ratio.low.unwrap() < 0.9 && all.ratio.high.unwrap() > 1.2, "{:?}", all.ratio);
    }

    #[test]
    fn two_hosts_are_too_few_and_one_machine_counts_once() {
        let two = [finding(1, 1.05, 0.001), finding(2, 1.05, 0.001)];
        assert_eq!(merge(&two)[0].verdict, Verdict::Undecided);
        let again: Vec<Finding> = (0..9).map(|_| finding(1, 1.05, 0.001)).collect();
        assert_eq!(merge(&again)[0].hosts, 1);
        let merged = merge(&two);
        assert_eq!(merge(&merged), []);
    }

    #[test]
    fn other_kernels_are_other_subjects() {
        let mut other = finding(2, 1.05, 0.001);
        other.subject.kernel = "l".to_owned();
        assert_eq!(merge(&[finding(1, 1.05, 0.001), other]).len(), 2);
    }

    #[test]
    fn it_is_the_textbooks() {
        // By hand: weights 1/0.01, 1/0.04, 1/0.04; the mean 0.1667; Q = 1.3333; no variance between.
        let (mean, variance) = random_effects(&[(0.1, 0.01), (0.3, 0.04), (0.3, 0.04)]).unwrap();
        assert!((mean - 0.166_666_7).abs() < 1e-6, "{mean}");
        assert!((variance - 1.0 / 150.0).abs() < 1e-9, "{variance}");
        // Q = 50, C = 100: the variance between the two is 0.48, and the scatter agrees with it.
        let (mean, variance) = random_effects(&[(0.0, 0.01), (1.0, 0.01)]).unwrap();
        assert!((mean - 0.5).abs() < 1e-9 && (variance - 0.25).abs() < 0.01, "{mean} {variance}");
    }

    #[test]
    fn errors_of_nothing_do_not_count() {
        let odd = [finding(1, f64::NAN, 0.1), finding(2, 1.0, 0.0), finding(3, 1.0, f64::INFINITY)];
        assert_eq!(merge(&odd), []);
        let text = serde_json::to_string(&finding(1, 1.05, 0.01)).unwrap();
        assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding(1, 1.05, 0.01));
    }
}
