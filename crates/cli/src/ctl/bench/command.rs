//! A benchmark of a command, which is started again for each run.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use regex_lite::Regex;
use tiexec_advise::itlb::{Itlb, walk_event};
use tiexec_core::addr::Pages;
use tiexec_core::escape::AsShown;
use tiexec_engine::follow::tree::Tree;
use tiexec_engine::programs;
use tiexec_sys::counters::Counters;
use tiexec_sys::perf_sampler::Heirs;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas, interrupt, process, processor, thp};

use super::child::{self, Output};
use super::{Arm, Figure, Measured, Rounds, Subject, Workload};
use crate::exit;
use crate::options::Bench;
use crate::stdio::warn;

/// The pause between the first two readings of the bytes on huge pages. Each later pause is longer, because the
/// readings cost time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The most runs, and the time for them, until text is seen on huge pages.
const LOOKS: u32 = 20;
const SHORT: Duration = Duration::from_secs(1);
/// Most bytes of a command's last output that are shown.
const LAST_WORDS: usize = 1000;

struct Runs<'a> {
    options: &'a Bench,
    tiexec: PathBuf,
    metric: Option<Regex>,
    pages: Option<Pages>,
    /// True if tiexec's message has been shown, because tiexec repeats it in every run.
    said: bool,
}

/// Measures the command that the options name.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn measure(options: &Bench) -> Result<(Rounds, Workload), u8> {
    let metric = match options.metric.as_deref().map(Regex::new).transpose() {
        Ok(metric) => metric,
        Err(error) => {
            let metric = options.metric.as_deref().unwrap_or_default().shown();
            warn(format_args!(
                "cannot use --metric '{metric}': {error}; fix: name a regular expression"
            ));
            return Err(exit::USAGE);
        }
    };
    let own = std::env::current_exe().map_err(|error| {
        warn(format_args!("cannot find tiexec: {error}"));
        exit::FAILED
    })?;
    let tiexec = own.with_file_name("tiexec");
    let mut runs = Runs { options, tiexec, metric, pages: thp::pages(), said: false };
    interrupt::catch();
    let rounds = Rounds::measure(&mut runs, options)?;
    Ok((rounds, runs.workload()))
}

impl Subject for Runs<'_> {
    fn is_over(&self) -> bool {
        interrupt::asked()
    }

    fn workload(&self) -> Workload {
        let words = self.options.command.iter().map(|word| word.to_string_lossy().into_owned());
        Workload::Command(words.collect())
    }

    fn measure(&mut self, arm: Arm, warmup: bool) -> Result<Measured, u8> {
        let begun = Instant::now();
        let mut measured = self.run(arm, warmup)?;
        // A short run may end between two looks at its text.
        for _ in 1..LOOKS {
            let is_unseen = arm == Arm::Tiexec && measured.huge == Some(0);
            if !is_unseen || self.is_over() || begun.elapsed() >= SHORT {
                break;
            }
            measured = self.run(arm, warmup)?;
        }
        Ok(measured)
    }
}

impl Runs<'_> {
    /// Runs the command once.
    fn run(&mut self, arm: Arm, warmup: bool) -> Result<Measured, u8> {
        self.prepare()?;
        let refuse = |error: &dyn std::fmt::Display| {
            warn(format_args!("cannot run the command: {error}"));
            exit::FAILED
        };
        let output = Output::new("output").map_err(|error| refuse(&error))?;
        let errors = Output::new("errors").map_err(|error| refuse(&error))?;
        let mut command = self.command(arm);
        command.stdin(Stdio::null()).stderr(errors.of_command().map_err(|error| refuse(&error))?);
        // Without a metric nothing reads the output.
        let stdout = match &self.metric {
            Some(_) => output.of_command().map_err(|error| refuse(&error))?,
            None => Stdio::null(),
        };
        command.stdout(stdout);

        let counters = Counters::open(
            &[process::this()],
            Heirs::Processes,
            walk_event(&Itlb::of(&processor::read())),
        );
        let before = counters.read();
        let begun = Instant::now();
        let pid = child::start(&mut command).map_err(|error| {
            let program = command.get_program().shown();
            warn(format_args!("cannot run {program}: {error}"));
            exit::FAILED
        })?;
        let pages = self.pages.filter(|_| warmup);
        let mut outputs = [output, errors];
        let ((ended, lasted), huge) =
            watched(pid, pages, || (child::end(pid, &mut outputs), begun.elapsed()));
        let [output, errors] = &outputs;
        let (status, used) = ended.map_err(|error| refuse(&error))?;
        let counted = counters.read().since(&before);
        if interrupt::asked() {
            // The interrupt ended the command too, so this run does not count.
            return Ok(Measured::default());
        }

        let words = errors.text();
        self.say(arm, &errors.beginning());
        if !status.success() && !self.options.ignore_failure {
            self.say_failure(arm, status, &words);
            return Err(exit::FAILED);
        }
        let mut figures = Vec::new();
        if let Some(metric) = &self.metric {
            let text = output.text() + "\n" + &words;
            match figure(metric, &text) {
                Some(found) => figures.push(Figure::new("metric", "", found)),
                None => {
                    let (metric, program) = (metric.as_str().shown(), self.program());
                    warn(format_args!(
                        "cannot measure {program} by --metric '{metric}': no number where it matches the output; \
                         fix: name an expression that matches one"
                    ));
                    return Err(exit::FAILED);
                }
            }
        }
        figures.push(Figure::less("wall time", "s", lasted.as_secs_f64()));
        figures.push(Figure::less("user time", "s", used.user.as_secs_f64()));
        figures.push(Figure::less("system time", "s", used.system.as_secs_f64()));
        let faults = used.minor_faults + used.major_faults;
        figures.push(Figure::less("page faults", "", faults as f64));
        let of_pmu = [
            ("cycles", counted.cycles),
            ("instructions", counted.instructions),
            ("iTLB misses", counted.itlb_misses),
            ("walk cycles", counted.walk_cycles),
        ];
        let known = of_pmu.into_iter();
        figures
            .extend(known.filter_map(|(name, count)| Some(Figure::less(name, "", count? as f64))));
        Ok(Measured { figures, huge })
    }

    /// Runs the command of `--prepare`.
    fn prepare(&self) -> Result<(), u8> {
        let Some(prepare) = &self.options.prepare else { return Ok(()) };
        let mut command = programs::of_user("sh");
        // What it prints does not belong to the result.
        let beside = std::io::stderr().as_fd().try_clone_to_owned();
        let beside = beside.map_or_else(|_closed| Stdio::null(), Stdio::from);
        command.args(["-c", prepare]).stdin(Stdio::null()).stdout(beside);
        let done = child::run(&mut command, &mut []);
        if !done.as_ref().is_ok_and(ExitStatus::success) && !interrupt::asked() {
            let how = done.map_or_else(|error| error.to_string(), |status| status.to_string());
            let prepare = prepare.shown();
            warn(format_args!(
                "cannot run --prepare '{prepare}': it failed: {how}; fix: name a command that succeeds"
            ));
            return Err(exit::FAILED);
        }
        Ok(())
    }

    /// Says that the command has failed, with its last words.
    fn say_failure(&self, arm: Arm, status: ExitStatus, words: &str) {
        let tail = words.len().saturating_sub(LAST_WORDS);
        let tail = words.char_indices().map(|(at, _)| at).find(|&at| at >= tail).unwrap_or(0);
        let by = if arm == Arm::Tiexec { " by tiexec" } else { "" };
        // tiexec exits with this status if it does not start the program, mostly because of an option.
        let refused = arm == Arm::Tiexec
            && !self.options.option.is_empty()
            && status.code() == Some(exit::LAUNCH_FAILED.into());
        let fix = if refused {
            "leave out the --option that tiexec refuses"
        } else {
            "add --ignore-failure, if that is usual"
        };
        let (program, said) = (self.program(), words[tail..].trim_end());
        let said = if said.is_empty() { String::new() } else { format!("\n{said}") };
        warn(format_args!("cannot measure {program}: it failed{by}: {status}; fix: {fix}{said}"));
    }

    /// Returns the name of the program, for messages.
    fn program(&self) -> String {
        self.options.command.first().map(|word| word.shown().to_string()).unwrap_or_default()
    }

    fn command(&self, arm: Arm) -> Command {
        let mut words = self.options.command.iter();
        match arm {
            Arm::Plain => {
                let mut command = programs::of_user(words.next().cloned().unwrap_or_default());
                command.args(words);
                command
            }
            Arm::Tiexec => {
                // tiexec becomes the user's program, which gets the same as in the other arm.
                let mut command = programs::of_user(&self.tiexec);
                let options = &self.options.option;
                // A launch that evicts the file would also make the text of the plain runs huge.
                if !options.iter().any(|option| option.starts_with("--evict")) {
                    command.arg("--evict=never");
                }
                command.args(options).arg("--").args(words);
                command
            }
        }
    }

    /// Prints tiexec's message, once.
    fn say(&mut self, arm: Arm, words: &str) {
        if arm == Arm::Tiexec && !self.said {
            for line in words.lines().filter_map(|line| line.strip_prefix("tiexec: ")) {
                warn(format_args!("tiexec says: {line}"));
                self.said = true;
            }
        }
    }
}

/// Waits with `wait`. If the page sizes are given, measures meanwhile the greatest amount of text that the process and
/// its descendants have on huge pages.
fn watched<T>(pid: Pid, pages: Option<Pages>, wait: impl FnOnce() -> T) -> (T, Option<u64>) {
    let Some(pages) = pages else { return (wait(), None) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let (mut tree, mut most, mut pause) = (Tree::of(&[pid]), 0, FIRST_PAUSE);
            while !over.load(Ordering::Relaxed) {
                let of = |&pid: &Pid| {
                    let huge = ProcDir::of(pid).and_then(|of| areas::huge_text(&of, pages));
                    huge.unwrap_or_default().into_iter().map(|range| range.len()).sum::<u64>()
                };
                most = tree.walk(true).iter().map(of).max().unwrap_or(0).max(most);
                std::thread::park_timeout(pause);
                pause = (pause * 5 / 4).min(LONGEST_PAUSE);
            }
            most
        });
        let waited = wait();
        over.store(true, Ordering::Relaxed);
        looking.thread().unpark();
        (waited, looking.join().ok())
    })
}

/// Returns the figure: the first group of the pattern's last match, or the whole match if the pattern has no group.
fn figure(metric: &Regex, text: &str) -> Option<f64> {
    let last = metric.captures_iter(text).last()?;
    let found = last.get(1).or_else(|| last.get(0))?.as_str();
    found.trim().replace(',', "").parse().ok().filter(|found: &f64| found.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_last_match() {
        let of = |metric: &str, text: &str| figure(&Regex::new(metric).unwrap(), text);
        assert_eq!(of(r"tps = ([\d.]+)", "tps = 1.5\ntps = 2,5\ntps = 12.5 x"), Some(12.5));
        assert_eq!(of(r"[\d,]+", "1,234 things"), Some(1234.0));
        assert_eq!(of("tps", "tps"), None);
        assert_eq!(of("tps ([a-z]+)", "tps nan"), None);
        assert_eq!(of("none", "tps"), None);
    }
}
