//! A benchmark of a running process, which attaches and reverts in alternation, with one slice of time for each arm.

use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Parser;
use tiexec_core::escape::AsShown;
use tiexec_core::proc::stat;
use tiexec_engine::locked_target::{LOOKING, Lasts, has_text_of_ours};
use tiexec_engine::programs;
use tiexec_remap::{systemd_units, workers};
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::{Pid, areas, interrupt, process, thp};

use super::child::{self, Output};
use super::{Figure, Measured, Rounds, Subject, Workload};
use crate::ctl::alternate::{self, Arm, must_be_as_switched, must_be_plain};
use crate::ctl::{attach, command_line_apart, failed, has_text};
use crate::exit;
use crate::options::{Attach, Bench, Common, Ctl, CtlCommand, Revert};
use crate::stdio::{self, warn};

/// The default length of a slice with a counter.
const USUAL: Duration = Duration::from_secs(5);

struct Slices<'a> {
    options: &'a Bench,
    pid: Pid,
    process: ProcDir,
    /// The attach that makes the copies.
    attach: Attach,
    metric: &'a str,
    /// True once the bench has attached to the process.
    switched: bool,
    workload: Workload,
}

/// Measures the process.
///
/// # Errors
/// The exit status. The message is on stderr already.
pub(super) fn measure(pid: i32, options: &Bench) -> Result<(Rounds, Workload), u8> {
    let pid = Pid::from_raw(pid).ok_or(exit::USAGE)?;
    let refuse = |error| failed("measure", pid.as_raw_nonzero().get(), error);
    has_text("measure", pid.as_raw_nonzero().get())?;
    let process = ProcDir::of(pid).map_err(refuse)?;
    let workload = Workload::Process {
        pid: pid.as_raw_nonzero().get().unsigned_abs(),
        command: command_line_apart(&process).map_err(refuse)?,
        service: systemd_units::shown(&process),
    };
    let metric = options.metric.as_deref().unwrap_or_default();
    let attach = attach_of(options, pid)?;
    let mut slices = Slices { options, pid, process, attach, metric, switched: false, workload };
    // Huge pages of the file's page cache exist in both arms, so they do not count.
    must_be_plain("measure", pid, &slices.process)?;
    // An interrupt must not leave the process changed.
    interrupt::catch();
    slices.note("alternates between copies and base pages from now on");
    let measured = Rounds::measure(&mut slices, options);
    // A second Ctrl-C must not end the revert. The child that reverts inherits the ignored signal.
    process::ignore_interrupts();
    let reverted = slices.switch(Arm::Plain);
    let mut left = forked_on_copies(pid);
    for _ in 0..LOOKS {
        if left.is_empty() {
            break;
        }
        let _said = attach::switch(&left, None, Lasts::UntilUndone, None);
        left = forked_on_copies(pid);
    }
    if has_text_of_ours(&slices.process) {
        left.insert(0, pid);
    }
    slices.note(match left.is_empty() {
        true => "no longer alternates, and is on base pages",
        false => "no longer alternates, and is left on copies, or children of it are",
    });
    for pid in &left {
        warn(format_args!(
            "process {} is left with text on huge pages; fix: tiexecctl revert {0}",
            pid.as_raw_nonzero()
        ));
    }
    let measured = measured?;
    reverted?;
    if left.is_empty() { Ok((measured, slices.workload)) } else { Err(exit::PARTIAL) }
}

/// How often the descendants are looked at in the end: one may fork while it is on copies.
const LOOKS: u32 = 3;

/// The descendants of the process that are on copies.
fn forked_on_copies(pid: Pid) -> Vec<Pid> {
    let mut found = alternate::on_copies(&[pid]);
    found.retain(|&child| child != pid);
    found
}

impl Subject for Slices<'_> {
    fn measure(&mut self, arm: Arm, _warmup: bool) -> Result<Measured, u8> {
        self.switch(arm)?;
        let huge = Some(self.huge());
        let ours = has_text_of_ours(&self.process);
        let (begun, used) = (Instant::now(), self.used()?);
        let counted_from = if self.options.counter {
            let before = self.ask()?;
            interrupt::sleep(self.options.slice.unwrap_or(USUAL));
            Some(before)
        } else {
            None
        };
        let now = self.ask()?;
        let figure = now - counted_from.unwrap_or(0.0);
        let seconds = begun.elapsed().as_secs_f64();
        let used = (self.used()? - used) as f64 / process::ticks(Duration::from_secs(1)) as f64;
        must_be_as_switched(self.pid, Some(has_text_of_ours(&self.process)), ours)?;
        if let Some(before) = counted_from.filter(|_| figure <= 0.0) {
            return Err(self.has_not_grown(before, now));
        }
        let mut figures = if self.options.counter {
            vec![
                Figure::more("metric per CPU s", "/CPU s", figure / used),
                Figure::more("metric per s", "/s", figure / seconds),
            ]
        } else {
            vec![Figure::new("metric", "", figure)]
        };
        // A division by zero work gives a figure that is not finite.
        figures.retain(|figure| figure.value.is_finite());
        figures.push(Figure::new("CPU s per s", "CPUs", used / seconds));
        Ok(Measured { figures, huge })
    }

    fn workload(&self) -> Workload {
        self.workload.clone()
    }

    fn is_over(&self) -> bool {
        interrupt::asked()
    }
}

impl Slices<'_> {
    /// Attaches or reverts, as `tiexecctl attach` and `revert` do.
    fn switch(&mut self, arm: Arm) -> Result<(), u8> {
        let touched = self.switched || has_text_of_ours(&self.process);
        if arm == Arm::Plain && (!touched || self.process.read("stat").is_err()) {
            // There is nothing to revert, or the process has ended.
            return Ok(());
        }
        let status = match arm {
            Arm::Plain => {
                let Attach { targets, common, .. } = self.attach.clone();
                attach::run_revert(&Revert { targets, common, ..Revert::default() })
            }
            Arm::Tiexec => attach::run(&self.attach),
        };
        self.switched = true;
        if status != exit::OK {
            return Err(status);
        }
        // The journal has the first attach, whose addresses the later ones repeat.
        self.attach.common.lasts = Lasts::OneSlice;
        Ok(())
    }

    /// Writes into the journal what happens to the process.
    fn note(&self, what: &str) {
        let subject = format!("process {}", self.pid.as_raw_nonzero());
        alternate::note("bench", &subject, self.pid, what);
    }

    /// Runs the metric's command and reads its number.
    fn ask(&self) -> Result<f64, u8> {
        let mut command = programs::of_user("sh");
        command.args(["-c", self.metric]).stdin(Stdio::null());
        let refuse = |why: &dyn std::fmt::Display| {
            // An interrupt also ends the command. The command has not failed, so this prints no warning.
            if !interrupt::asked() {
                let (pid, metric) = (self.pid.as_raw_nonzero(), self.metric.shown());
                warn(format_args!(
                    "cannot measure process {pid} by --metric '{metric}': {why}; \
                     fix: name a command that succeeds and prints a number"
                ));
            }
            exit::FAILED
        };
        let output = Output::new("output").map_err(|error| refuse(&error))?;
        command.stdout(output.of_command().map_err(|error| refuse(&error))?);
        let mut outputs = [output];
        let status = child::run(&mut command, &mut outputs).map_err(|error| refuse(&error))?;
        if !status.success() {
            return Err(refuse(&status));
        }
        last_number(&outputs[0].text()).ok_or_else(|| refuse(&"it printed no number"))
    }

    /// Reports that the counter has not grown in a slice, so that the slice has no figure. Returns the exit status.
    fn has_not_grown(&self, before: f64, now: f64) -> u8 {
        let (pid, metric) = (self.pid.as_raw_nonzero(), self.metric.shown());
        let slice = self.options.slice.unwrap_or(USUAL);
        // Ctrl-C ends the slice early, so the counter may have had no time to grow.
        if interrupt::asked() {
            return exit::FAILED;
        }
        if now < before {
            warn(format_args!(
                "cannot measure process {pid} by --metric '{metric}': it fell from {before} to {now}; \
                 fix: name a counter that only grows"
            ));
        } else {
            warn(format_args!(
                "cannot measure process {pid} by --metric '{metric}': it did not grow in {slice:?}, and was {now}; \
                 fix: name a counter that grows with the work, or use a longer --slice"
            ));
        }
        exit::FAILED
    }

    /// Returns the processor time that the process has used, in clock ticks.
    fn used(&self) -> Result<u64, u8> {
        let refuse = |error| failed("measure", self.pid.as_raw_nonzero().get(), error);
        let text = self.process.read("stat").map_err(refuse)?;
        Ok(stat::run_time(&text).unwrap_or(0))
    }

    fn huge(&self) -> u64 {
        let huge = || {
            let huge = thp::pages().and_then(|pages| areas::huge_text(&self.process, pages).ok());
            huge.unwrap_or_default().into_iter().map(|range| range.len()).sum::<u64>()
        };
        if !workers::is_of_others(&self.process) {
            return huge();
        }
        workers::apart(LOOKING, huge).unwrap_or_default()
    }
}

/// Returns the attach that makes the copies, with the options of `--option`.
///
/// # Errors
/// The exit status. The message is on stderr already: `tiexecctl attach` has no such option.
fn attach_of(options: &Bench, pid: Pid) -> Result<Attach, u8> {
    let pid = pid.as_raw_nonzero().to_string();
    let words =
        ["tiexecctl", "attach"].into_iter().chain(options.option.iter().map(String::as_str));
    let parsed = Ctl::try_parse_from(words.chain([pid.as_str()]));
    let CtlCommand::Attach(attach) =
        parsed.map_err(|error| stdio::answer(error, exit::USAGE, exit::FAILED))?.command
    else {
        return Err(exit::USAGE);
    };
    let stays = ["follow", "settle"].into_iter().any(|key| attach.settings.say(key));
    if stays || attach.for_.is_some() || attach.wait_exec {
        warn(
            "cannot alternate with an attach that waits, follows or reverts by itself; fix: leave out --follow, --settle, \
             --for and --wait-exec",
        );
        return Err(exit::USAGE);
    }
    // Huge page cache would stay after a revert, so the bench uses copies.
    let copies = (!attach.settings.say("backing")).then(|| ("backing", Some("image".to_owned())));
    Ok(Attach {
        settings: attach.settings.and(copies),
        common: Common { quiet: true, lasts: Lasts::UntilUndone, ..Common::default() },
        ..attach
    })
}

/// Returns the last word of a text that is a number.
pub(crate) fn last_number(text: &str) -> Option<f64> {
    let number = |word: &str| {
        let word =
            word.trim_matches(|letter: char| !letter.is_ascii_digit() && !"+-.".contains(letter));
        word.replace(',', "").parse().ok().filter(|number: &f64| number.is_finite())
    };
    text.split_whitespace().filter_map(number).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        for (text, number) in [
            ("12\n", Some(12.0)),
            ("Questions\t1234\n", Some(1234.0)),
            ("tps = 1,234.5 (without)", Some(1234.5)),
            ("1e3 ms", Some(1000.0)),
            ("none", None),
            ("", None),
        ] {
            assert_eq!(last_number(text), number, "{text}");
        }
    }
}
