//! Compares plain runs with runs under TiExec: computes a claim from the measurements of both ways in each round.
//!
//! One round measures each way once, so that slow changes of the machine are the same for both; the comparison takes
//! the ratio within the round. The location of the ratios is the 20 % trimmed mean of their logarithms (an outlier has
//! limited weight). Its interval is Tukey's and McLaughlin's (Wilcox, "Introduction to Robust Estimation and Hypothesis
//! Testing", chapter 4): Student's t by the winsorized error. With few rounds, the usual degrees of freedom give too
//! many false claims: 1.6 % instead of 1 % on normal figures. The degrees of freedom are therefore two thirds of the
//! number of rounds that are not trimmed. A difference is claimed only if the interval excludes "no difference".

use std::fmt;

use serde::{Deserialize, Serialize};
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::SCHEMA;

use crate::next::Next;

/// The confidence of an interval. It is high because several figures are compared at once and benchmarks are repeated.
pub const CONFIDENCE: f64 = 0.99;
/// With fewer rounds nothing is claimed.
pub const ENOUGH_ROUNDS: usize = 6;
const TRIMMED: f64 = 0.2;

/// The measurements of one way of running.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Each round's figure.
    pub values: Vec<f64>,
    /// The median.
    pub median: f64,
    /// The smallest.
    pub lowest: f64,
    /// The largest.
    pub highest: f64,
}

impl Sample {
    fn new(values: Vec<f64>) -> Self {
        let mut sorted = values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
        let median = f64::midpoint(at(low), at(high));
        Self { values, median, lowest: at(0), highest: at(sorted.len().saturating_sub(1)) }
    }
}

/// TiExec's figure over the plain one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// The estimate.
    pub estimate: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end of its interval.
    pub high: f64,
}

/// The claim that the measurements allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The figure is lower with TiExec.
    Less,
    /// The figure is higher with TiExec.
    More,
    /// No difference was seen, and the interval excludes a difference of a fifth or more.
    NoDifference,
    /// The rounds scatter so much that the interval says little.
    TooNoisy,
    /// A figure is not above zero, or nearly all rounds are the same, so no interval can be computed.
    CannotTell,
    /// There were too few rounds.
    TooFewRounds,
}

/// The direction in which a figure is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// A lower figure is better, such as a time.
    Less,
    /// A higher figure is better, such as a rate.
    More,
}

/// One figure, compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of the figure.
    pub name: String,
    /// The unit; empty for none.
    pub unit: String,
    /// Plain.
    pub plain: Sample,
    /// With TiExec.
    pub tiexec: Sample,
    /// The ratio; `None` where it cannot be computed, or with too few rounds.
    pub ratio: Option<Ratio>,
    /// The claim that the measurements allow.
    pub finding: Finding,
    /// The direction in which the figure is better; `None` where only the user knows.
    #[serde(default)]
    pub better: Option<Better>,
}

impl Comparison {
    /// Compares the measurements of each round, plain and with TiExec.
    pub fn new(name: &str, unit: &str, better: Option<Better>, rounds: &[(f64, f64)]) -> Self {
        let logs: Vec<f64> = rounds
            .iter()
            .filter(|(plain, tiexec)| *plain > 0.0 && *tiexec > 0.0)
            .map(|(plain, tiexec)| (tiexec / plain).ln())
            .filter(|log| log.is_finite())
            .collect();
        let whole = logs.len() == rounds.len();
        let ratio = (whole && logs.len() >= ENOUGH_ROUNDS).then(|| interval(&logs)).flatten();
        let finding = match ratio {
            None if rounds.len() < ENOUGH_ROUNDS => Finding::TooFewRounds,
            None => Finding::CannotTell,
            Some(ratio) if ratio.high < 1.0 => Finding::Less,
            Some(ratio) if ratio.low > 1.0 => Finding::More,
            Some(ratio) if ratio.high / ratio.low > WIDE => Finding::TooNoisy,
            Some(_) => Finding::NoDifference,
        };
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            plain: Sample::new(rounds.iter().map(|round| round.0).collect()),
            tiexec: Sample::new(rounds.iter().map(|round| round.1).collect()),
            ratio,
            finding,
            better,
        }
    }

    /// Returns whether TiExec's figure is better; `None` if there is no difference or no known direction.
    fn is_better(&self) -> Option<bool> {
        match (self.finding, self.better?) {
            (Finding::Less, better) => Some(better == Better::Less),
            (Finding::More, better) => Some(better == Better::More),
            _ => None,
        }
    }

    /// Returns the saved share of the processor time and its interval, if the figure is about processor time.
    fn saved(&self) -> Option<(f64, [f64; 2])> {
        let Ratio { estimate, low, high } = self.ratio?;
        Some(match self.better? {
            Better::Less => (1.0 - estimate, [1.0 - high, 1.0 - low]),
            Better::More => (saved_of(estimate), [saved_of(low), saved_of(high)]),
        })
    }

    /// Returns the number of rounds that would show a difference of [`SMALL`]; `None` if an option does not take so many.
    /// An interval from four times as many rounds is half as wide. The present estimate is not used, because it is only
    /// chance so far.
    fn rounds_needed(&self, Ratio { low, high, .. }: Ratio) -> Option<f64> {
        let reach = (high / low).ln() / 2.0;
        let rounds = self.plain.values.len() as f64 * (reach / SMALL.ln_1p()).powi(2) * MARGIN;
        // The number is rounded up to two digits.
        let step = 10.0_f64.powf((rounds.log10() - 1.0).floor().max(0.0));
        (rounds <= MOST_ROUNDS).then(|| (rounds / step).ceil() * step)
    }

    /// Returns whether the interval leaves room for a difference of [`SMALL`] in both directions.
    fn is_wide(ratio: Ratio) -> bool {
        ratio.high / ratio.low > (1.0 + SMALL).powi(2)
    }

    /// Describes [`Comparison::rounds_needed`] in words.
    fn enough_rounds(&self, ratio: Ratio, round_s: Option<f64>) -> String {
        let share = SMALL * 100.0;
        let Some(rounds) = self.rounds_needed(ratio) else {
            return format!("it would take more than {MOST_ROUNDS:.0} rounds to show {share:.0} %");
        };
        let lasts = round_s.map_or(String::new(), |each| format!(", {}", duration(rounds * each)));
        format!("about {rounds:.0} rounds (-r {rounds:.0}{lasts}) would show {share:.0} %")
    }

    /// Describes the claim in words. `round_s` is the length of a round in seconds, if known.
    pub fn words(&self, round_s: Option<f64>) -> String {
        let percent = |share: f64| format!("{:.1} %", share.abs() * 100.0);
        match (self.finding, self.ratio) {
            (Finding::TooFewRounds, _) => {
                format!("too few rounds to tell: it takes {ENOUGH_ROUNDS} (-r {ENOUGH_ROUNDS})")
            }
            (Finding::CannotTell, _) | (_, None) => {
                "cannot tell: a figure is zero, or nearly all rounds are the same".to_owned()
            }
            (Finding::NoDifference, Some(ratio)) => {
                let more = Self::is_wide(ratio)
                    .then(|| "; ".to_owned() + &self.enough_rounds(ratio, round_s));
                format!(
                    "no difference seen: between {} and {} times{}",
                    times(ratio.low),
                    times(ratio.high),
                    more.unwrap_or_default()
                )
            }
            (Finding::TooNoisy, Some(ratio)) => format!(
                "too noisy to tell: between {} and {} times; {}",
                times(ratio.low),
                times(ratio.high),
                self.enough_rounds(ratio, round_s)
            ),
            (finding, Some(Ratio { estimate, low, high })) => {
                let (word, near, far) = if finding == Finding::Less {
                    ("less", 1.0 - high, 1.0 - low)
                } else {
                    ("more", low - 1.0, high - 1.0)
                };
                let better = match self.is_better() {
                    Some(true) => ", which is better",
                    Some(false) => ", which is worse",
                    None => "",
                };
                format!(
                    "{} {word} by tiexec (between {} and {}){better}",
                    percent(estimate - 1.0),
                    percent(near),
                    percent(far)
                )
            }
        }
    }
}

/// Returns the saved share of the processor time, by the ratio of work per processor time.
pub fn saved_of(ratio: f64) -> f64 {
    1.0 - 1.0 / ratio
}

/// Describes a time, given in seconds, in a readable unit.
pub fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// The difference, as a share, for which rounds are counted.
const SMALL: f64 = 0.02;
/// The factor on the estimated number of rounds, because another run may scatter more.
const MARGIN: f64 = 1.2;
/// The most rounds that an option takes.
const MOST_ROUNDS: f64 = 10_000.0;

/// The ratio of the ends of an interval from which the interval is too wide.
const WIDE: f64 = 1.2;

/// Returns the ratio and its interval from these logarithms of ratios. `None` if all but a few are the same, which
/// shows nothing about the scatter of the others.
fn interval(logs: &[f64]) -> Option<Ratio> {
    let mut sorted = logs.to_vec();
    let whole = trimmed(&mut sorted);
    if whole.error == 0.0 && sorted[0] != sorted[sorted.len() - 1] {
        return None;
    }
    let reach = student(whole.inner * 2 / 3) * whole.error;
    Some(Ratio {
        estimate: whole.mean.exp(),
        low: (whole.mean - reach).exp(),
        high: (whole.mean + reach).exp(),
    })
}

/// The two-sided quantile of Student's t for [`CONFIDENCE`], by the degrees of freedom. The values are from any table
/// of the distribution. Between two rows the row above counts, which has the larger value.
fn student(freedom: usize) -> f64 {
    const WITHIN_99_PERCENT: [(usize, f64); 15] = [
        (2, 9.925),
        (3, 5.841),
        (4, 4.604),
        (5, 4.032),
        (6, 3.707),
        (7, 3.499),
        (8, 3.355),
        (9, 3.250),
        (10, 3.169),
        (12, 3.055),
        (15, 2.947),
        (20, 2.845),
        (30, 2.750),
        (60, 2.660),
        (120, 2.617),
    ];
    let row = WITHIN_99_PERCENT.iter().rev().find(|row| row.0 <= freedom);
    row.map_or(f64::INFINITY, |row| row.1)
}

/// A trimmed mean and its standard error.
struct Trimmed {
    mean: f64,
    error: f64,
    /// The number of values that are not trimmed.
    inner: usize,
}

/// Sorts the values and returns the trimmed mean, with the standard error from the winsorized variance.
fn trimmed(values: &mut [f64]) -> Trimmed {
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len();
    let off = (count as f64 * TRIMMED) as usize;
    let inner = &values[off..count - off];
    let mean = inner.iter().sum::<f64>() / inner.len() as f64;
    let (first, last) = (inner[0], inner[inner.len() - 1]);
    let pulled_in = |value: &f64| value.clamp(first, last);
    let centre = values.iter().map(pulled_in).sum::<f64>() / count as f64;
    let squares = values.iter().map(|value| (pulled_in(value) - centre).powi(2)).sum::<f64>();
    let kept = 1.0 - 2.0 * off as f64 / count as f64;
    let error = (squares / (count - 1) as f64).sqrt() / (kept * (count as f64).sqrt());
    Trimmed { mean, error, inner: inner.len() }
}

/// How the two ways were measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Each measurement has its own process.
    Process,
    /// Slices of the time of one process, so a finding is true only for that process.
    Slice,
}

/// A benchmark's result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bench {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `bench`.
    pub kind: String,
    /// The command, or the command line of the process.
    pub command: Vec<String>,
    /// The process that the bench attached to.
    pub pid: Option<u32>,
    /// The options for tiexec.
    pub options: Vec<String>,
    /// How the two ways were measured.
    pub unit: Unit,
    /// Rounds that count.
    pub rounds: usize,
    /// The length of a round, in seconds; `None` if an earlier version wrote the result.
    #[serde(default)]
    pub round_s: Option<f64>,
    /// The confidence of the intervals.
    pub confidence: f64,
    /// Bytes of text on huge pages in the plain runs; `None` if not measured.
    pub huge_plain_bytes: Option<u64>,
    /// Bytes of text on huge pages in the runs with TiExec; `None` if not measured.
    pub huge_tiexec_bytes: Option<u64>,
    /// The processor and the kernel.
    pub machine: String,
    /// The time when it ended (UTC); `None` if an earlier version wrote the result.
    #[serde(default)]
    pub date: Option<String>,
    /// The version of TiExec; `None` if an earlier version wrote the result.
    #[serde(default)]
    pub version: Option<String>,
    /// The name of the host; `None` if an earlier version wrote the result, as for the next two.
    #[serde(default)]
    pub host: Option<String>,
    /// The systemd unit of the process that the bench attached to.
    #[serde(default)]
    pub service: Option<String>,
    /// The options of the bench itself, except the number of rounds and those for the output.
    #[serde(default)]
    pub arguments: Option<Vec<String>>,
    /// The figures that were compared; the first is the subject of the bench.
    pub metrics: Vec<Comparison>,
}

impl Bench {
    /// The value of `kind` in JSON.
    pub const KIND: &'static str = "bench";

    /// Reads a result from JSON.
    ///
    /// # Errors
    /// The text is not a bench of a known schema. Schema 2 did not change the format of a bench.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let bench: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if bench.kind != Self::KIND || !(1..=SCHEMA).contains(&bench.schema) {
            return Err(format!("{} of schema {} is not known", bench.kind, bench.schema));
        }
        Ok(bench)
    }

    /// Returns the result as one line of JSON.
    ///
    /// # Panics
    /// Never: every value in it can be written as JSON.
    pub fn to_json(&self) -> String {
        escape::json(self)
    }

    /// Returns the figure about processor time: the work per CPU second or, if the subject is the time of a command, its
    /// time in user mode. `None` if the subject is a figure of the command's own: only the user knows what it is about.
    pub fn processor(&self) -> Option<&Comparison> {
        let first = self.metrics.first()?;
        match (first.unit.as_str(), first.name.as_str()) {
            ("/CPU s", _) => Some(first),
            (_, "wall time") => self.metrics.iter().find(|metric| metric.name == "user time"),
            _ => None,
        }
    }

    /// Returns the saved share of the processor time, and its interval.
    pub fn saved(&self) -> Option<(f64, [f64; 2])> {
        self.processor()?.saved()
    }

    /// Returns the next step for the first figure; `None` without a figure.
    pub fn next(&self) -> Option<Next> {
        let first = self.metrics.first()?;
        let use_it = || {
            let mut words =
                if self.pid.is_some() { vec!["tiexecctl", "attach"] } else { vec!["tiexec"] };
            words.extend(self.options.iter().map(String::as_str));
            let pid = self.pid.map(|pid| pid.to_string());
            match &pid {
                Some(pid) => words.push(pid),
                None => words.extend(std::iter::once("--").chain(self.command())),
            }
            escape::in_shell(words)
        };
        // An earlier version did not write its options down.
        let again = |words: String, rounds: Option<f64>| Next {
            words,
            command: rounds.and_then(|rounds| self.again(rounds)),
        };
        let longer = |ratio| {
            let words = format!("measure again: {}.", first.enough_rounds(ratio, self.round_s));
            again(words, first.rounds_needed(ratio))
        };
        Some(match (first.finding, first.is_better(), first.ratio) {
            (_, Some(true), _) => Next::command("use it:", use_it()),
            (_, Some(false), _) => Next::words("leave it plain."),
            (Finding::TooNoisy, _, Some(ratio)) => longer(ratio),
            (Finding::NoDifference, _, Some(ratio)) if Comparison::is_wide(ratio) => longer(ratio),
            (Finding::TooFewRounds, ..) => again(
                format!("measure again, with {ENOUGH_ROUNDS} rounds or more."),
                Some(ENOUGH_ROUNDS as f64),
            ),
            (Finding::NoDifference, ..) => Next::words("leave it plain: nothing is gained."),
            (Finding::Less | Finding::More, ..) => Next::command("if that is better:", use_it()),
            (Finding::CannotTell | Finding::TooNoisy, ..) => {
                Next::words("measure again, with another --metric.")
            }
        })
    }

    /// Returns the words of the command.
    fn command(&self) -> impl Iterator<Item = &str> {
        self.command.iter().map(String::as_str)
    }

    /// Returns the command that measures again, with another number of rounds.
    fn again(&self, rounds: f64) -> Option<String> {
        let rounds = format!("{rounds:.0}");
        let mut words = vec!["tiexecctl", "bench", "-r", &rounds];
        words.extend(self.arguments.as_ref()?.iter().map(String::as_str));
        if self.pid.is_none() {
            words.extend(std::iter::once("--").chain(self.command()));
        }
        Some(escape::in_shell(words))
    }
}

/// Formats a ratio with few digits. A few scattered rounds can give an interval with a huge end, which is shown as
/// `>1000`.
pub fn times(ratio: f64) -> String {
    if ratio < 1000.0 { format!("{ratio:.3}") } else { ">1000".to_owned() }
}

/// Formats a figure with few digits and its unit.
pub fn figure(value: f64, unit: &str) -> String {
    let Scale { factor, unit } = Scale::of(value, unit);
    format!("{} {unit}", digits(value * factor)).trim_end().to_owned()
}

/// The factor and the unit that make a figure readable.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Scale<'a> {
    factor: f64,
    unit: &'a str,
}

impl<'a> Scale<'a> {
    fn of(value: f64, unit: &'a str) -> Self {
        let (factor, unit) = match unit {
            "s" if value < 1.0 => (1e3, "ms"),
            "" if value >= 1e9 => (1e-9, "G"),
            "" if value >= 1e6 => (1e-6, "M"),
            "/s" if value >= 1e6 => (1e-6, "M/s"),
            "/CPU s" if value >= 1e6 => (1e-6, "M/CPU s"),
            unit => (1.0, unit),
        };
        Self { factor, unit }
    }
}

/// Formats a number with few digits.
fn digits(value: f64) -> String {
    if value.abs() >= 1e9 || value != 0.0 && value.abs() < 0.0005 {
        return format!("{value:.3e}");
    }
    let digits = if value >= 1000.0 || value.fract() == 0.0 {
        0
    } else if value >= 100.0 {
        1
    } else if value >= 10.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

impl Comparison {
    /// Returns the claim in a word or two.
    pub(crate) const fn word(&self) -> &'static str {
        match self.finding {
            Finding::Less => "less",
            Finding::More => "more",
            Finding::NoDifference => "no difference seen",
            Finding::TooNoisy => "too noisy",
            Finding::CannotTell => "cannot tell",
            Finding::TooFewRounds => "too few rounds",
        }
    }

    /// Returns the cells of its row in a table: the name with the unit of all figures, the median and the range of each
    /// way, the ratio, its interval, and the finding.
    fn cells(&self) -> [String; 8] {
        let Self { name, unit, plain, tiexec, ratio, .. } = self;
        let Scale { factor, unit } = Scale::of(plain.median, unit);
        // The names of rates say the rest of the unit.
        let unit = unit.trim_end_matches("/CPU s").trim_end_matches("/s").trim_end_matches("CPUs");
        let name = if unit.is_empty() { name.clone() } else { format!("{name}, {unit}") };
        let of = |value: f64| digits(value * factor);
        let range = |sample: &Sample| format!("({}–{})", of(sample.lowest), of(sample.highest));
        let word = self.word();
        let better = match self.is_better() {
            Some(true) => ", better",
            Some(false) => ", worse",
            None => "",
        };
        let (ratio, interval) = match ratio {
            None => ("–".to_owned(), String::new()),
            Some(Ratio { estimate, low, high }) => {
                (times(*estimate), format!("{}–{}", times(*low), times(*high)))
            }
        };
        let (plain, of_plain) = (of(plain.median), range(plain));
        let (tiexec, of_tiexec) = (of(tiexec.median), range(tiexec));
        let finding = format!("{word}{better}");
        [name, plain, of_plain, tiexec, of_tiexec, ratio, interval, finding]
    }
}

/// Formats rows of cells, each column as wide as its widest cell. The numbers of a column end at one place, and a range
/// stands close to the number before it.
fn table(rows: &[[String; 8]]) -> String {
    const NUMBERS: [bool; 8] = [false, true, false, true, false, true, false, false];
    const GAPS: [&str; 8] = ["", "  ", " ", "  ", " ", "  ", "  ", "  "];
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 8] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            line += GAPS[column];
            line += &if NUMBERS[column] { pad + cell } else { cell.clone() + &pad };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, rounds, unit, confidence, .. } = self;
        let how = match unit {
            Unit::Process => "each way in a process of its own, by turns",
            Unit::Slice => "slices of one process, by turns",
        };
        let rounds = if *rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
        writeln!(f, "{}   {rounds}, {how}; ratios are the rounds' own", command.join(" ").shown())?;
        if self.metrics.is_empty() {
            return Ok(());
        }
        if let (Some(plain), Some(tiexec)) = (self.huge_plain_bytes, self.huge_tiexec_bytes) {
            let mib = tiexec_core::addr::mib;
            writeln!(
                f,
                "text on huge pages   plain {} MiB, tiexec {} MiB",
                mib(plain),
                mib(tiexec)
            )?;
        } else {
            writeln!(f, "text on huge pages   not looked at: that takes a warm-up round (-w 1)")?;
        }
        let interval = format!("{:.0} % INTERVAL", confidence * 100.0);
        let head = ["MEDIAN (RANGE)", "PLAIN", "", "TIEXEC", "", "RATIO", &interval, ""];
        let head = head.map(str::to_owned);
        let rows = self.metrics.iter().map(Comparison::cells);
        write!(f, "{}", table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))?;
        if let Some(first) = self.metrics.first() {
            writeln!(f, "{}: {}", first.name, first.words(self.round_s))?;
        }
        if *unit == Unit::Slice {
            writeln!(
                f,
                "The result holds for this one process; another start of the program may differ."
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Draws with the scatter of run times: most differ a little, some are much larger.
    struct Scatter(Rng);

    impl Scatter {
        fn uniform(&mut self) -> f64 {
            self.0.f64()
        }

        fn time(&mut self) -> f64 {
            let spike = if self.uniform() < 0.1 { 0.4 * self.uniform() } else { 0.0 };
            // For its whole life, one process is faster or slower than another process of the same program.
            let layout = 0.08 * (self.uniform() - 0.5);
            1.0 + layout + 0.01 * -(1.0 - self.uniform()).ln() + spike
        }
    }

    #[test]
    fn figures_below_zero_allow_no_claim() {
        let pairs = [(-10.0, -12.0); ENOUGH_ROUNDS];
        let compared = Comparison::new("metric", "", None, &pairs);
        assert_eq!((compared.finding, compared.ratio), (Finding::CannotTell, None));
    }

    fn claims(rounds: usize, factor: f64, often: usize) -> usize {
        let mut scatter = Scatter(Rng::with_seed(42));
        (0..often)
            .filter(|_| {
                let pairs: Vec<(f64, f64)> =
                    (0..rounds).map(|_| (scatter.time(), factor * scatter.time())).collect();
                let finding = Comparison::new("wall", "s", None, &pairs).finding;
                finding == Finding::Less || finding == Finding::More
            })
            .count()
    }

    /// The interval must contain a ratio of 1 in 99 % of the comparisons of equal figures, for any number of rounds.
    /// The figures are normal, have heavy tails, or are run times. By chance the rate is 1.2 % in less than one test of
    /// a hundred.
    #[test]
    fn the_interval_covers_what_it_says() {
        const TIMES: usize = 20_000;
        type Draw<'a> = &'a dyn Fn(&mut Rng) -> f64;
        let normal = |random: &mut Rng| -> f64 {
            let (radius, angle) = (random.f64().max(1e-300), random.f64());
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
        };
        let heavy = |random: &mut Rng| {
            let squares: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
            normal(random) / (squares / 3.0).sqrt()
        };
        let time = |random: &mut Rng| {
            let mut scatter = Scatter(random.fork());
            (scatter.time() / scatter.time()).ln()
        };
        let figures = [("normal", &normal as Draw<'_>), ("heavy", &heavy), ("time", &time)];
        for (name, draw) in figures {
            for rounds in [6, 7, 8, 9, 10, 11, 12, 13, 15, 20, 30, 50] {
                let mut random = Rng::with_seed(rounds);
                let invented = (0..TIMES).filter(|_| {
                    let logs: Vec<f64> = (0..rounds).map(|_| draw(&mut random)).collect();
                    interval(&logs).is_some_and(|ratio| ratio.low > 1.0 || ratio.high < 1.0)
                });
                let invented = invented.count();
                assert!(
                    invented * 1000 <= TIMES * 12,
                    "{name}, {rounds} rounds: {invented} of {TIMES}"
                );
            }
        }
    }

    #[test]
    fn a_difference_of_five_percent_is_seen() {
        let seen = claims(30, 0.95, 100);
        assert!(seen >= 90, "{seen} of 100");
    }

    #[test]
    fn what_is_exact_is_exact() {
        let pairs = [(100.0, 95.0); 10];
        let Comparison { ratio, finding, plain, .. } = Comparison::new("x", "", None, &pairs);
        let ratio = ratio.unwrap();
        assert!((ratio.low - 0.95).abs() < 1e-9 && (ratio.high - 0.95).abs() < 1e-9, "{ratio:?}");
        assert_eq!((finding, plain.median), (Finding::Less, 100.0));
        assert_eq!(
            Comparison::new("x", "", None, &[(5.0, 5.0); 10]).finding,
            Finding::NoDifference
        );
    }

    #[test]
    fn what_cannot_be_told_is_not() {
        let few = Comparison::new("x", "s", None, &[(1.0, 2.0); ENOUGH_ROUNDS - 1]);
        assert_eq!((few.finding, few.ratio), (Finding::TooFewRounds, None));
        let zeros = Comparison::new("x", "", None, &[(0.0, 0.0); 10]);
        assert_eq!((zeros.finding, zeros.ratio), (Finding::CannotTell, None));
        assert_eq!(Comparison::new("x", "", None, &[]).finding, Finding::TooFewRounds);
        // Six figures from a coarse clock.
        let coarse =
            [(1.0, 1.0), (1e-6, 1.0), (1.0, 1.0), (1.0, 1e-6), (1.0, 1.0), (1.0, 1.0 + 1e-12)];
        let ratio = Comparison::new("x", "s", None, &coarse).ratio;
        assert!(ratio.is_none_or(|ratio| ratio.low > 0.0 && ratio.high.is_finite()), "{ratio:?}");
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            let mut pairs = vec![(1.0, 1.0); 10];
            pairs[3].0 = odd;
            assert_eq!(Comparison::new("x", "", None, &pairs).ratio, None);
        }
    }

    #[test]
    fn few_rounds_have_bounds() {
        // An infinite interval would be no answer, and a missing interval would look like one.
        let pairs =
            [(137.0, 9.0), (150.0, 8.0), (187.0, 15.6), (140.0, 7.9), (151.0, 9.5), (160.0, 8.8)];
        let apart = Comparison::new("x", "", None, &pairs);
        assert_eq!(apart.finding, Finding::Less, "{apart:?}");
        let counts = [
            (2161.0, 247.0),
            (2158.0, 247.0),
            (2163.0, 247.0),
            (2161.0, 247.0),
            (2161.0, 247.0),
            (2162.0, 247.0),
        ];
        assert_eq!(Comparison::new("x", "", None, &counts).finding, Finding::Less);
        let noisy = [(1.0, 1.2), (1.0, 0.8), (1.0, 1.0), (1.0, 1.5), (1.0, 1.02), (1.0, 0.99)];
        let noisy = Comparison::new("x", "", None, &noisy);
        let ratio = noisy.ratio.unwrap();
        assert_eq!(noisy.finding, Finding::TooNoisy);
        assert!(ratio.low > 0.4 && ratio.high < 2.5, "{ratio:?}");
        let words = noisy.words(Some(2.0));
        assert!(words.starts_with("too noisy to tell: between 0."), "{words}");
        let rounds = words.split_once("(-r ").and_then(|(_, rest)| rest.split_once(", "));
        let rounds: u32 = rounds.unwrap_or_else(|| panic!("{words}")).0.parse().unwrap();
        assert!(rounds > 6, "{words}");
        // One round differs from five equal ones.
        let mut pairs = [(100.0, 110.0); 6];
        pairs[2].1 = 100.0;
        let one = Comparison::new("x", "", None, &pairs);
        assert_eq!((one.finding, one.ratio), (Finding::CannotTell, None));
        assert!(one.words(None).starts_with("cannot tell"), "{}", one.words(None));
    }

    #[test]
    fn so_many_rounds_show_it() {
        // Each round scatters by some 30 %, and TiExec's figure is 5 % less.
        let mut scatter = Scatter(Rng::with_seed(7));
        let mut time = || scatter.time().powi(10);
        let mut pairs = |rounds: usize| -> Vec<(f64, f64)> {
            (0..rounds).map(|_| (time(), 0.95 * time())).collect()
        };
        let few = Comparison::new("x", "s", Some(Better::Less), &pairs(8));
        assert_eq!(few.finding, Finding::TooNoisy, "{few:?}");
        let words = few.words(None);
        assert!(words.contains(" rounds (-r ") || words.contains("more than 10000"), "{words}");
        let worse =
            Comparison::new("x", "/s", Some(Better::More), &[(10.0, 9.0), (20.0, 18.0)].repeat(5));
        assert!(worse.words(None).ends_with(", which is worse"), "{}", worse.words(None));
        let unknown = Comparison::new("x", "", None, &[(10.0, 9.0), (20.0, 18.0)].repeat(5));
        assert!(unknown.words(None).ends_with("10.0 %)"), "{}", unknown.words(None));
    }

    #[test]
    fn it_comes_back_from_json() {
        let pairs: Vec<(f64, f64)> = (1..10).map(|i| (f64::from(i), 0.9 * f64::from(i))).collect();
        let bench = Bench {
            schema: SCHEMA,
            kind: Bench::KIND.to_owned(),
            command: vec!["true".to_owned()],
            pid: None,
            options: Vec::new(),
            unit: Unit::Process,
            rounds: 9,
            round_s: Some(1.5),
            confidence: CONFIDENCE,
            huge_plain_bytes: Some(0),
            huge_tiexec_bytes: None,
            machine: "m".to_owned(),
            date: None,
            version: Some("1".to_owned()),
            host: None,
            service: None,
            arguments: None,
            metrics: vec![Comparison::new("wall", "s", Some(Better::Less), &pairs)],
        };
        assert_eq!(Bench::from_json(&bench.to_json()), Ok(bench.clone()));
        let other = bench.to_json().replace("\"kind\":\"bench\"", "\"kind\":\"advise\"");
        assert!(Bench::from_json(&other).is_err());
        // A result from an earlier version has fewer fields.
        let older = bench.to_json().replace(",\"date\":null,\"version\":\"1\"", "");
        let older = older.replace(",\"better\":\"less\"", "");
        let older = Bench::from_json(&older).unwrap();
        assert_eq!((older.version, older.metrics[0].better), (None, None));
        assert!(Bench::from_json("{}").is_err());
        assert!(
            bench.to_string().contains(
                "wall: 10.0 % less by tiexec (between 10.0 % and 10.0 %), which is better"
            ),
            "{bench}"
        );
    }

    fn of_figures(pid: Option<u32>, metrics: Vec<Comparison>) -> Bench {
        Bench {
            schema: SCHEMA,
            kind: Bench::KIND.to_owned(),
            command: ["a server", "--port=1"].map(str::to_owned).to_vec(),
            pid,
            options: Vec::new(),
            unit: if pid.is_some() { Unit::Slice } else { Unit::Process },
            rounds: metrics.first().map_or(0, |metric| metric.plain.values.len()),
            round_s: None,
            confidence: CONFIDENCE,
            huge_plain_bytes: None,
            huge_tiexec_bytes: None,
            machine: "m".to_owned(),
            date: None,
            version: None,
            host: None,
            service: None,
            arguments: Some(vec!["--metric=./count queries".to_owned()]),
            metrics,
        }
    }

    #[test]
    fn the_saved_time_is_that_of_the_processor() {
        let near = |(share, range): (f64, [f64; 2]), wanted: f64| {
            range.into_iter().chain([share]).all(|one| (one - wanted).abs() < 1e-9)
        };
        // A quarter more work in the same time takes a fifth less time for the same work.
        let rate =
            |unit: &str| Comparison::new("metric", unit, Some(Better::More), &[(4.0, 5.0); 10]);
        let bench = of_figures(Some(7), vec![rate("/CPU s"), rate("/s")]);
        assert!(near(bench.saved().unwrap(), 0.2), "{:?}", bench.saved());
        let time = |name: &str, tiexec: f64| {
            Comparison::new(name, "s", Some(Better::Less), &[(10.0, tiexec); 10])
        };
        let bench = of_figures(None, vec![time("wall time", 5.0), time("user time", 9.0)]);
        assert!(near(bench.saved().unwrap(), 0.1), "{:?}", bench.saved());
        // Only the user knows what another figure says about processor time.
        let own = Comparison::new("metric", "", None, &[(4.0, 5.0); 10]);
        assert_eq!(of_figures(None, vec![own, time("user time", 9.0)]).saved(), None);
        assert_eq!(of_figures(None, Vec::new()).saved(), None);
    }

    #[test]
    fn the_next_command_is_whole() {
        let less =
            |pairs: &[(f64, f64)]| Comparison::new("wall time", "s", Some(Better::Less), pairs);
        let next = |pid, pairs: &[(f64, f64)]| of_figures(pid, vec![less(pairs)]).next().unwrap();
        let better = next(None, &[(10.0, 9.0); 10]);
        assert_eq!(better.command.as_deref(), Some("tiexec -- 'a server' --port=1"));
        let attached = next(Some(7), &[(10.0, 9.0); 10]);
        assert_eq!(attached.command.as_deref(), Some("tiexecctl attach 7"));
        assert_eq!(next(None, &[(9.0, 10.0); 10]).command, None);
        let again = "tiexecctl bench -r 6 '--metric=./count queries'";
        assert_eq!(next(Some(7), &[(1.0, 1.0); 2]).command.as_deref(), Some(again));
        let again = format!("{again} -- 'a server' --port=1");
        assert_eq!(next(None, &[(1.0, 1.0); 2]).command, Some(again));
        // Only an interval without room for a gain says that nothing is gained.
        let uneven = [0.3, -0.3, 0.2, -0.2, 0.4, -0.4, 0.1, -0.1].map(|by| (10.0, 10.0 + by));
        let wide = of_figures(None, vec![less(&uneven)]);
        assert_eq!(wide.metrics[0].finding, Finding::NoDifference);
        let next_of_wide = wide.next().unwrap();
        assert!(next_of_wide.words.starts_with("measure again: about "), "{next_of_wide:?}");
        assert!(next_of_wide.command.is_some());
        let narrow = [0.01, -0.01, 0.02, -0.02, 0.015, -0.015].map(|by| (10.0, 10.0 + by));
        assert_eq!(next(None, &narrow).words, "leave it plain: nothing is gained.");
        // An earlier version did not write its options down.
        let mut older = of_figures(None, vec![less(&[(1.0, 1.0); 2])]);
        older.arguments = None;
        assert_eq!(older.next().unwrap().command, None);
    }

    #[test]
    fn figures_are_short() {
        for (value, unit, text) in [
            (0.0123, "s", "12.30 ms"),
            (2.5, "s", "2.500 s"),
            (123.45, "MiB", "123.5 MiB"),
            (42.0, "", "42"),
            (2_500_000.0, "", "2.500 M"),
            (2_500_000.0, "/s", "2.500 M/s"),
            (42.0, "/CPU s", "42 /CPU s"),
            (12_345.6, "", "12346"),
            (1e308, "", "1.000e299 G"),
            (0.000_012, "", "1.200e-5"),
            (0.0, "", "0"),
        ] {
            assert_eq!(figure(value, unit), text);
        }
        for (ratio, text) in [(1.05, "1.050"), (0.0, "0.000"), (4.8e7, ">1000")] {
            assert_eq!(times(ratio), text);
        }
    }
}
