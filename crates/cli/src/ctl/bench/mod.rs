//! `tiexecctl bench`: compares a command, or a running process, with and without huge pages in alternation.

mod child;
mod command;
mod slices;

pub(super) use slices::last_number;

use std::time::{Duration, Instant};

use tiexec_advise::compare::{Bench, Better, CONFIDENCE, Comparison, ENOUGH_ROUNDS, Unit};
use tiexec_core::escape::AsShown;
use tiexec_core::report::SCHEMA;
use tiexec_engine::output::Output;
use tiexec_sys::interrupt;

use super::alternate::Arm;
use super::date;
use super::progress::{self, Progress};
use super::{host, machine, not_written, print, write};
use crate::exit;
use crate::options;
use crate::stdio::warn;

/// Returns the order of the arms in a round. The order alternates, so that neither arm is always second.
fn order(round: u32) -> [Arm; 2] {
    if round.is_multiple_of(2) { [Arm::Plain, Arm::Tiexec] } else { [Arm::Tiexec, Arm::Plain] }
}

/// One figure.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    /// The direction in which the figure is better, if known.
    better: Option<Better>,
    value: f64,
}

impl Figure {
    /// Makes a figure of which less is better.
    fn less(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self { name, unit, better: Some(Better::Less), value }
    }

    /// Makes a figure of which more is better.
    fn more(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self { name, unit, better: Some(Better::More), value }
    }

    /// Makes a figure for which only the user knows the better direction.
    fn new(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self { name, unit, better: None, value }
    }
}

/// The figures of one run or slice.
#[derive(Clone, PartialEq, Debug, Default)]
struct Measured {
    /// The figures. The first is the subject of the benchmark.
    figures: Vec<Figure>,
    /// Bytes of text on huge pages; `None` if not measured.
    huge: Option<u64>,
}

/// Something that can be measured both ways.
trait Subject {
    /// Measures once. With `warmup` the figures do not count.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    fn measure(&mut self, arm: Arm, warmup: bool) -> Result<Measured, u8>;

    /// Returns the command or the process.
    fn workload(&self) -> Workload;

    /// Returns whether the benchmark should end before all rounds are done.
    fn is_over(&self) -> bool {
        false
    }
}

/// The measured rounds, each plain and with tiexec.
#[derive(Default)]
struct Rounds {
    counted: Vec<[Measured; 2]>,
    huge: [Option<u64>; 2],
    /// The length of a round, in seconds.
    round_s: Option<f64>,
    /// The exit status if a failure ended the rounds early. The message is on stderr already.
    failed: Option<u8>,
}

impl Rounds {
    /// Measures, and writes the rounds so far into the file of `--export-json`.
    ///
    /// # Errors
    /// The exit status: a failure before the first round was over, or no text was put onto huge pages. The message is on
    /// stderr already.
    fn measure(subject: &mut impl Subject, options: &options::Bench) -> Result<Self, u8> {
        let mut rounds = Self::default();
        let mut export = Export::new(options);
        let mut progress = Progress::default();
        let (all, begun) = (options.warmup + options.runs, Instant::now());
        progress.now(|| line(0, 2 * all as usize, begun));
        for round in 0..all {
            let warmup = round < options.warmup;
            let mut both = [Measured::default(), Measured::default()];
            for (done, arm) in order(round).into_iter().enumerate() {
                progress.at(|| line(2 * round as usize + done, 2 * all as usize, begun));
                let measured = subject.measure(arm, warmup);
                // Ctrl-C also ends the running command. The command has not failed, so the benchmark reports no error.
                if subject.is_over() {
                    return Ok(rounds);
                }
                let measured = measured.and_then(|measured| {
                    if arm == Arm::Tiexec && measured.huge == Some(0) {
                        say_nothing_huge(&subject.workload());
                        return Err(exit::FAILED);
                    }
                    Ok(measured)
                });
                match measured {
                    Ok(measured) => both[arm as usize] = measured,
                    Err(status) if rounds.counted.is_empty() => return Err(status),
                    // The measured rounds are kept, because they may have taken hours.
                    Err(status) => return Ok(Self { failed: Some(status), ..rounds }),
                }
            }
            for (seen, measured) in rounds.huge.iter_mut().zip(&both) {
                *seen = (*seen).max(measured.huge);
            }
            if !warmup {
                rounds.counted.push(both);
            }
            rounds.round_s = Some(begun.elapsed().as_secs_f64() / f64::from(round + 1));
            if !rounds.counted.is_empty() {
                export.keep(|| rounds.bench(subject.workload(), options));
            }
        }
        Ok(rounds)
    }

    /// Returns the result of the rounds so far.
    fn bench(&self, workload: Workload, options: &options::Bench) -> Bench {
        let (pid, command, unit, service) = match workload {
            Workload::Command(command) => (None, command, Unit::Process, None),
            Workload::Process { pid, command, service } => {
                (Some(pid), command, Unit::Slice, service)
            }
        };
        Bench {
            schema: SCHEMA,
            kind: Bench::KIND.to_owned(),
            command,
            pid,
            options: options.option.clone(),
            unit,
            rounds: self.counted.len(),
            round_s: self.round_s,
            confidence: CONFIDENCE,
            huge_plain_bytes: self.huge[Arm::Plain as usize],
            huge_tiexec_bytes: self.huge[Arm::Tiexec as usize],
            machine: machine(),
            date: Some(date::now()),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            host: Some(host()),
            service,
            arguments: Some(arguments(options)),
            metrics: self.compared(),
        }
    }

    fn compared(&self) -> Vec<Comparison> {
        let names = self.counted.first().map(|[plain, _]| plain.figures.clone());
        let compare = |Figure { name, unit, better, .. }: Figure| {
            let of = |measured: &Measured| {
                let mut figures = measured.figures.iter();
                figures.find(|figure| figure.name == name).map(|figure| figure.value)
            };
            let pairs = self.counted.iter().map(|[plain, tiexec]| Some((of(plain)?, of(tiexec)?)));
            let pairs: Option<Vec<(f64, f64)>> = pairs.collect();
            Some(Comparison::new(name, unit, better, &pairs?))
        };
        names.into_iter().flatten().filter_map(compare).collect()
    }
}

/// Returns the progress line: the rounds done and the remaining time.
fn line(done: usize, all: usize, begun: Instant) -> String {
    const WIDTH: usize = 30;
    let filled = WIDTH * done / all.max(1);
    let bar = "#".repeat(filled) + &"-".repeat(WIDTH - filled);
    format!("[{bar}] {done} of {all} runs{}", progress::left(done, all, begun))
}

/// The file of `--export-json` while the rounds go on. If the benchmark is killed, the file has the rounds so far.
struct Export {
    /// The file that each round replaces. `None` without a file, and for another kind of file, such as a pipe: its reader
    /// gets the result at the end.
    output: Option<Output>,
    written: Option<Instant>,
}

impl Export {
    /// The least time between two writes.
    const PAUSE: Duration = Duration::from_secs(1);
    /// More bytes than the figures of a round have in the file, and than everything else has.
    const ROUND: usize = 400;
    const REST: usize = 16 << 10;

    fn new(options: &options::Bench) -> Self {
        let path = options.export_json.as_deref();
        let output = path.and_then(|path| Output::at(path).ok()).filter(Output::is_replaced);
        Self { output, written: None }
    }

    /// Checks that the result can be written, and that the disk has room for it.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    fn check(options: &options::Bench) -> Result<(), u8> {
        let Some(path) = options.export_json.as_deref() else { return Ok(()) };
        let rounds = usize::try_from(options.runs).unwrap_or(usize::MAX);
        let most = rounds.saturating_mul(Self::ROUND).saturating_add(Self::REST);
        // While the file is written anew, the one before is still there.
        let checked = Output::at(path).and_then(|output| output.has_room(most.saturating_mul(2)));
        checked.map_err(|why| not_written(path, &why))
    }

    /// Writes the result so far, if the last write was some time ago. The write at the end reports a failure.
    fn keep(&mut self, bench: impl FnOnce() -> Bench) {
        let Some(output) = &self.output else { return };
        if self.written.is_none_or(|written| written.elapsed() >= Self::PAUSE) {
            let _told_at_the_end = output.write((bench().to_json() + "\n").as_bytes());
            self.written = Some(Instant::now());
        }
    }
}

/// Runs `bench`; returns the exit status.
pub(super) fn run(options: &options::Bench) -> u8 {
    let (rounds, enough) = (options.runs, ENOUGH_ROUNDS);
    if usize::try_from(rounds).is_ok_and(|rounds| rounds < enough) {
        let s = if rounds == 1 { "" } else { "s" };
        warn(format_args!(
            "cannot compare by {rounds} round{s}: it takes {enough}; fix: use -r {enough} or more"
        ));
        return exit::USAGE;
    }
    if let Err(status) = Export::check(options) {
        return status;
    }
    let measured = match options.attach {
        Some(pid) => slices::measure(pid, options),
        None => command::measure(options),
    };
    let (rounds, what) = match measured {
        Ok(measured) => measured,
        Err(status) => return status,
    };
    let whole = match rounds.counted.len() {
        1 => "1 whole round".to_owned(),
        count => format!("{count} whole rounds"),
    };
    // The signal is set only where this process catches it. Elsewhere it would have ended this process.
    let interrupted = interrupt::signal().map(exit::of_signal);
    if interrupted.is_some() {
        warn(format_args!("interrupted after {whole}"));
    } else if rounds.failed.is_some() {
        warn(format_args!("ended after {whole}, which count"));
    }
    let bench = rounds.bench(what, options);
    let mut status = rounds.failed.or(interrupted).unwrap_or(exit::OK);
    say_if_plain_is_huge(&bench);
    let json = bench.to_json() + "\n";
    if options.export_json.is_some() && write(&json, options.export_json.as_deref()) != exit::OK {
        status = status.max(exit::FAILED);
        // The rounds may have taken hours.
        if !options.json {
            warn("the figures follow on standard output, as JSON");
            status = status.max(print(&json));
        }
    }
    let text = if options.json { json } else { bench.to_string() };
    status.max(print(&text))
}

/// The subject of the measurement: a command, or a process with its command line and its systemd unit.
#[derive(Clone)]
enum Workload {
    Command(Vec<String>),
    Process { pid: u32, command: Vec<String>, service: Option<String> },
}

/// Returns the options as words of a command, except the number of rounds and those for the output.
fn arguments(options: &options::Bench) -> Vec<String> {
    let options::Bench {
        runs: _,
        warmup,
        prepare,
        ignore_failure,
        metric,
        attach,
        counter,
        slice,
        option,
        export_json: _,
        json: _,
        command: _,
    } = options;
    let flag = |is_set: bool, name: &str| is_set.then(|| name.to_owned());
    let slice = slice.map(|slice| format!("--slice={slice:?}"));
    let words = [
        (*warmup != 1).then(|| format!("--warmup={warmup}")),
        prepare.as_ref().map(|command| format!("--prepare={command}")),
        flag(*ignore_failure, "--ignore-failure"),
        metric.as_ref().map(|metric| format!("--metric={metric}")),
        flag(*counter, "--counter"),
        slice,
        attach.map(|pid| format!("--attach={pid}")),
    ];
    let option = option.iter().map(|option| format!("--option={option}"));
    words.into_iter().flatten().chain(option).collect()
}

/// Reports that TiExec puts no text onto huge pages, so that there is nothing to compare.
fn say_nothing_huge(workload: &Workload) {
    let (what, by, fix) = match workload {
        Workload::Process { pid, .. } => {
            let fix = format!("tiexecctl inspect {pid} says why");
            (format!("process {pid}"), "tiexecctl attach", fix)
        }
        Workload::Command(command) => {
            let program = command.first().map_or("", String::as_str);
            let fix = format!(
                "run tiexec --report -- {}, which says why, or measure what it starts (--option=--follow)",
                program.word()
            );
            (program.shown().to_string(), "tiexec", fix)
        }
    };
    warn(format_args!(
        "cannot compare the ways of {what}: by {by} no text was seen on huge pages; fix: {fix}"
    ));
}

/// Warns if the plain runs had their text on huge pages, too.
fn say_if_plain_is_huge(bench: &Bench) {
    let (plain, tiexec) = (bench.huge_plain_bytes, bench.huge_tiexec_bytes);
    if plain.zip(tiexec).is_some_and(|(plain, tiexec)| plain >= tiexec / 2) {
        warn(
            "the plain runs had their text on huge pages too, because its page cache is in huge folios; fix: \
             use a fresh copy of the program, with --option=--backing=image",
        );
    }
}
