//! The result of a scan, for people: at most 80 columns, if names are not long.

use std::fmt;

use tiexec_core::addr::mib;
use tiexec_core::report::percent;

use super::estimate::{Estimate, Way};
use super::{Found, IDLE, Row};
use crate::ctl::status::{counted, hidden, hidden_processes};

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (busy, idle): (Vec<&Row>, Vec<&Row>) =
            self.programs.iter().partition(|row| row.cpu >= IDLE);
        self.heading(f)?;
        if !busy.is_empty() {
            writeln!(f, "SAVES %     RANGE %  OF ITS TIME %  CPU %  HUGE %  WAY      PROGRAM")?;
        }
        busy.iter().try_for_each(|row| row.write(f))?;
        if !idle.is_empty() {
            let processes = idle.iter().map(|row| row.group.pids.len()).sum();
            writeln!(
                f,
                "and {} ({}) that used less than {:.1} % of a processor",
                counted(idle.len(), "program", "programs"),
                counted(processes, "process", "processes"),
                IDLE * 100.0
            )?;
        }
        if !self.programs.iter().any(Row::gains) {
            writeln!(f, "nothing gains: {}", self.why_nothing(&busy))?;
        }
        f.write_str(&hidden(
            self.not_sampled,
            "not sampled: too many threads for ulimit -n, or no right",
        ))?;
        f.write_str(&hidden_processes(self.not_permitted, self.silent))
    }
}

impl Found {
    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(sampling) = &self.sampling else { return Ok(()) };
        let seconds = sampling.duration_ms as f64 / 1000.0;
        let samples = samples(sampling.samples);
        let processes = counted(sampling.processes, "process", "processes");
        writeln!(f, "{seconds:.1} s   {samples} of {processes} ({}, user mode)", sampling.clock)?;
        let all = sampling.samples + self.other_samples;
        if self.other_samples > all / 20 {
            let share = percent(self.other_samples, all);
            writeln!(f, "others {share} % of all samples: other processes, or begun meanwhile")?;
        }
        if sampling.lost > 0 {
            writeln!(f, "lost  {} records: the shares may be off", sampling.lost)?;
        }
        Ok(())
    }

    /// Returns why no program gains.
    fn why_nothing(&self, busy: &[&Row]) -> String {
        let estimates: Vec<(&Row, &Estimate)> =
            busy.iter().filter_map(|row| Some((*row, row.estimate.as_ref()?))).collect();
        let is_done = |(_, estimate): &(&Row, &Estimate)| estimate.way == Way::Done;
        if self.programs.is_empty() {
            return "no process that you may look at has text of a huge page".to_owned();
        }
        if busy.is_empty() {
            return "the programs with text of a huge page are idle; scan while they work"
                .to_owned();
        }
        let Some((row, estimate)) = estimates.iter().find(|it| !is_done(it)) else {
            return match estimates.is_empty() {
                true => "the busy programs ended, or could not be looked at in time".to_owned(),
                false => "the busy programs are on huge pages".to_owned(),
            };
        };
        if self.host_splits {
            return "the host of this machine splits huge pages".to_owned();
        }
        let why =
            estimate.judgement.reasons.first().map_or("no saving is expected", String::as_str);
        format!("{}: {why}", row.group.name())
    }
}

impl Row {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let huge = percent(self.group.huge_bytes, self.group.text_bytes);
        let (name, cpu) = (self.group.name(), self.cpu * 100.0);
        let tenths = |share: f64| (share * 1000.0).round() / 10.0 + 0.0;
        let (saves, range, gain, way) = match (&self.estimate, self.saves_range) {
            (Some(estimate), Some([least, most])) => (
                format!("{:.1}", tenths(self.saves.unwrap_or(0.0))),
                format!("{:.1}-{:.1}", tenths(least), tenths(most)),
                format!("{:.1}", tenths(estimate.judgement.saving)),
                estimate.way.as_str(),
            ),
            _ => ("-".to_owned(), "-".to_owned(), "-".to_owned(), "-"),
        };
        writeln!(
            f,
            "{saves:>7}  {range:>10}  {gain:>13}  {cpu:>5.1}  {huge:>6}  {way:<7}  {name}"
        )?;
        write!(f, "      {}", self.group.unit.as_deref().unwrap_or(&self.group.exe))?;
        write!(f, ", {}", counted(self.group.pids.len(), "process", "processes"))?;
        let Some(estimate) = &self.estimate else {
            return writeln!(f, ": ended, or not looked at in time");
        };
        write!(f, ": {}", estimate.judgement.verdict)?;
        if estimate.few_samples {
            write!(f, ", only {}", samples(estimate.samples))?;
        }
        for (index, (backing, bytes)) in estimate.memory.iter().enumerate() {
            let begin = if index == 0 { "; memory" } else { "," };
            write!(f, "{begin} {} MiB {backing}", mib(*bytes))?;
        }
        writeln!(f)?;
        estimate.next.as_ref().map_or(Ok(()), |next| writeln!(f, "      next  {next}"))
    }
}

fn samples(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "sample", "samples")
}
