//! The result of a scan, for people: at most 80 columns, if names are not long.

use std::fmt;

use tiexec_advise::samples::are_many;
use tiexec_core::addr::mib;
use tiexec_core::report::percent;

use super::estimate::{Estimate, Way};
use super::{Found, IDLE, Row};
use crate::ctl::status::{counted, hidden, hidden_processes};

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy: Vec<&Row> = self.programs.iter().filter(|row| row.cpu >= IDLE).collect();
        let idle: Vec<&Row> = self.programs.iter().filter(|row| row.is_idle()).collect();
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
        if are_many(self.other_samples, sampling.samples) {
            let share = percent(self.other_samples, sampling.samples + self.other_samples);
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
            return match self.programs.iter().all(Row::is_idle) {
                true => "the programs with text of a huge page are idle; scan while they work",
                false => "the programs that could be sampled are idle",
            }
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
        if self.not_sampled > 0 {
            write!(f, " ({} not sampled)", self.not_sampled)?;
        }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tiexec_advise::advice::Sampling;
    use tiexec_advise::itlb::{Judgement, Verdict};
    use tiexec_advise::origin::Origin;

    use super::*;
    use crate::ctl::scan::group::Group;
    use crate::ctl::scan::rank;

    /// A program that uses that share of a processor, and saves that share of its time by an attach.
    fn row(exe: &str, cpu: f64, saving: f64) -> Row {
        let gains = saving > 0.0;
        let judgement = Judgement {
            verdict: if gains { Verdict::WorthIt } else { Verdict::NotWorthIt },
            saving,
            saving_range: [saving / 2.0, saving * 2.0],
            saved: 0.0,
            reasons: vec!["it has few misses".to_owned()],
        };
        let estimate = Estimate {
            judgement,
            way: if gains { Way::Attach } else { Way::Nothing },
            samples: 1000,
            few_samples: false,
            memory: BTreeMap::from([("image".to_owned(), 6 << 20)])
                .into_iter()
                .filter(|_| gains)
                .collect(),
            next: gains.then(|| format!("tiexecctl attach --unit {exe}")),
        };
        Row::new(Group::planted(exe, &[7]), (cpu * 1000.0) as u64, cpu, 0, Some(estimate))
    }

    fn table(programs: Vec<Row>, not_sampled: usize) -> String {
        let mut found = Found {
            schema: 1,
            kind: "scan",
            origin: Origin::default(),
            sampling: Some(Sampling {
                clock: "cpu_clock",
                frequency: 1000,
                duration_ms: 1000,
                samples: 3000,
                lost: 0,
                processes: programs.len(),
            }),
            other_samples: 0,
            host_splits: false,
            programs,
            not_sampled,
            not_permitted: 0,
            silent: 0,
        };
        rank(&mut found.programs);
        found.to_string()
    }

    #[test]
    fn what_saves_most_processor_time_is_the_first() {
        let idle = Row::new(Group::planted("/idle", &[8, 9]), 0, 0.0, 0, None);
        let hidden = Row::new(Group::planted("/hidden", &[10]), 0, 0.0, 1, None);
        let programs = vec![
            idle,
            row("/few", 0.1, 0.1),
            row("/none", 2.0, 0.0),
            row("/most", 0.9, 0.02),
            hidden,
        ];
        assert_eq!(
            table(programs, 1),
            "1.0 s   3000 samples of 5 processes (cpu_clock, user mode)\n\
             SAVES %     RANGE %  OF ITS TIME %  CPU %  HUGE %  WAY      PROGRAM\n\
             \x20   1.8     0.9-3.6            2.0   90.0      25  attach   most\n\
             \x20     /most, 1 process: worth it; memory 6.0 MiB image\n\
             \x20     next  tiexecctl attach --unit /most\n\
             \x20   1.0     0.5-2.0           10.0   10.0      25  attach   few\n\
             \x20     /few, 1 process: worth it; memory 6.0 MiB image\n\
             \x20     next  tiexecctl attach --unit /few\n\
             \x20   0.0     0.0-0.0            0.0  200.0      25  nothing  none\n\
             \x20     /none, 1 process: not worth it\n\
             and 1 program (2 processes) that used less than 0.5 % of a processor\n\
             1 process not sampled: too many threads for ulimit -n, or no right\n"
        );
    }

    #[test]
    fn what_could_not_be_sampled_is_not_idle() {
        let hidden = || Row::new(Group::planted("/hidden", &[10]), 0, 0.0, 1, None);
        let text = table(vec![hidden()], 1);
        assert!(
            text.contains("nothing gains: the programs that could be sampled are idle\n"),
            "{text}"
        );
        assert!(!text.contains("that used less than"), "{text}");
        let text = table(vec![Row::new(Group::planted("/idle", &[8]), 0, 0.0, 0, None)], 0);
        assert!(
            text.contains("nothing gains: the programs with text of a huge page are idle"),
            "{text}"
        );
        let text = table(vec![row("/none", 1.0, 0.0)], 0);
        assert!(text.contains("nothing gains: none: it has few misses\n"), "{text}");
    }
}
