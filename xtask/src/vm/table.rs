//! What the tests came to, and the table of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::build::{Built, repository};
use super::cache::Cache;
use super::guest::Guest;

/// What one test came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Ok,
    /// For what it says.
    Skipped(String),
    Failed,
}

/// All tests of one guest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    arch: String,
    release: String,
    disk: String,
    /// By test file, then by test. A file that did not come to its end has a failed test without a name.
    results: BTreeMap<String, BTreeMap<String, Outcome>>,
    /// What the kernel said of itself that it should not have to.
    complaints: Vec<String>,
}

impl Run {
    pub(crate) fn is_good(&self) -> bool {
        let all = || self.results.values().flat_map(BTreeMap::values);
        all().next().is_some()
            && !all().any(|outcome| *outcome == Outcome::Failed)
            && self.complaints.is_empty()
    }

    /// The numbers of the release; which one it is exactly changes with every update.
    fn column(&self) -> String {
        let mut numbers = self.release.split(['.', '-', '+']);
        let version: Vec<&str> = numbers.by_ref().take(2).collect();
        let pages = if self.release.ends_with("-16k") { ", 16 KiB pages" } else { "" };
        format!("{} {}{pages}, {}", version.join("."), self.arch, self.disk)
    }
}

/// Reads what the guest left in `out`, and keeps its logs in `logs`.
pub(crate) fn gather(guest: &Guest<'_>, out: &Path, logs: &Path, built: &Built) -> Result<Run> {
    let mut results = BTreeMap::new();
    for test in &built.tests {
        let log = fs::read(out.join(format!("{}.log", test.name))).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        fs::write(logs.join(format!("{}.log", test.name)), log.as_bytes())?;
        let status = fs::read_to_string(out.join(format!("{}.status", test.name)));
        let mut outcomes = outcomes(&log);
        let failed = outcomes.values().any(|outcome| *outcome == Outcome::Failed);
        let ended = status.is_ok_and(|status| status.trim() == "0");
        if !ended && !failed {
            outcomes.insert("(did not come to its end)".to_owned(), Outcome::Failed);
        }
        results.insert(test.name.clone(), outcomes);
    }
    let messages = fs::read(out.join("dmesg")).unwrap_or_default();
    let messages = String::from_utf8_lossy(&messages);
    fs::write(logs.join("dmesg"), messages.as_bytes())?;
    let bad = ["BUG: ", "WARNING: ", "Oops", "Bad page", "Bad rss", "INFO: task"];
    let complaints = messages
        .lines()
        .filter(|line| bad.iter().any(|bad| line.contains(bad)))
        .map(str::to_owned)
        .collect();
    Ok(Run {
        arch: guest.arch.to_string(),
        release: guest.kernel.release.clone(),
        disk: guest.disk.to_string(),
        results,
        complaints,
    })
}

/// Reads the lines of a test program's output: one a test, and one for each that skipped itself.
fn outcomes(log: &str) -> BTreeMap<String, Outcome> {
    let mut outcomes = BTreeMap::new();
    let mut skipped = BTreeMap::new();
    for line in log.lines() {
        // Written by another descriptor, it may stand in the middle of a line.
        if let Some((_, skip)) = line.split_once("SKIP ")
            && let Some((name, why)) = skip.split_once(": ")
        {
            skipped.entry(name.to_owned()).or_insert_with(|| why.to_owned());
        }
        let Some(rest) = line.strip_prefix("test ") else { continue };
        let Some((name, said)) = rest.split_once(" ... ") else { continue };
        let name = name.trim_end_matches(" - should panic");
        let outcome = match said.split_whitespace().next_back() {
            Some("FAILED") => Outcome::Failed,
            Some("ignored") => Outcome::Skipped("ignored".to_owned()),
            _ => Outcome::Ok,
        };
        outcomes.insert(name.to_owned(), outcome);
    }
    for (name, why) in skipped {
        if let Some(outcome) = outcomes.get_mut(&name)
            && *outcome == Outcome::Ok
        {
            *outcome = Outcome::Skipped(why);
        }
    }
    outcomes
}

/// Keeps a run for the table of all; it takes the place of an earlier one of the same tests there.
pub(crate) fn store(cache: &Cache, run: &Run) -> Result<()> {
    let path = cache.dir("results")?.join(run.column().replace([' ', ','], "_") + ".json");
    let mut whole = match fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
    {
        Some(Run { results, .. }) => results,
        None => BTreeMap::new(),
    };
    for (file, outcomes) in &run.results {
        whole.entry(file.clone()).or_default().extend(outcomes.clone());
    }
    let whole = Run {
        arch: run.arch.clone(),
        release: run.release.clone(),
        disk: run.disk.clone(),
        results: whole,
        complaints: run.complaints.clone(),
    };
    Ok(fs::write(path, serde_json::to_vec_pretty(&whole)?)?)
}

/// All runs that were kept.
pub(crate) fn stored(cache: &Cache) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(cache.dir("results")?)? {
        let path = entry?.path();
        let run: Run = serde_json::from_slice(&fs::read(&path)?)
            .with_context(|| path.display().to_string())?;
        runs.push(run);
    }
    let numbers = |run: &Run| -> Vec<u32> {
        let parts = run.release.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    runs.sort_by_key(|run| (run.arch != "x86_64", numbers(run), run.disk.clone()));
    Ok(runs)
}

/// Names what failed.
pub(crate) fn failures(run: &Run) -> String {
    let mut text = String::new();
    for (file, outcomes) in &run.results {
        for (name, outcome) in outcomes {
            if *outcome == Outcome::Failed {
                let _infallible = writeln!(text, "FAILED {file}::{name} on {}", run.column());
            }
        }
    }
    for complaint in &run.complaints {
        let _infallible = writeln!(text, "KERNEL {}: {complaint}", run.column());
    }
    text
}

/// The table: a row for each test file, with the promise that it begins with, a column for each run.
pub(crate) fn markdown(runs: &[Run]) -> String {
    let files: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.results.keys()).map(String::as_str).collect();
    let mut text = String::from("| test |");
    for run in runs {
        let _infallible = write!(text, " {} |", run.column());
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(runs.len()));
    text.push('\n');
    for file in &files {
        let _infallible = write!(text, "| `{file}`: {} |", promise(file));
        for run in runs {
            let cell = run.results.get(*file).map_or_else(|| "–".to_owned(), cell);
            let _infallible = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    let reasons = reasons(runs);
    if !reasons.is_empty() {
        text.push_str("\nSkipped for:\n\n");
        for (why, where_to) in reasons {
            let _infallible = writeln!(text, "- {why} ({})", where_to.join("; "));
        }
    }
    text
}

fn cell(outcomes: &BTreeMap<String, Outcome>) -> String {
    let count = |wanted: fn(&Outcome) -> bool| outcomes.values().filter(|&o| wanted(o)).count();
    let ok = count(|outcome| *outcome == Outcome::Ok);
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    let failed = count(|outcome| *outcome == Outcome::Failed);
    let parts = [("**", failed, " failed**"), ("", ok, " ok"), ("", skipped, " skipped")];
    let shown = parts.iter().filter(|(_, number, _)| *number > 0);
    let shown: Vec<String> = shown.map(|(a, number, b)| format!("{a}{number}{b}")).collect();
    shown.join(", ")
}

/// Why tests were skipped, and on which kernels.
fn reasons(runs: &[Run]) -> BTreeMap<String, Vec<String>> {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for run in runs {
        for outcome in run.results.values().flat_map(BTreeMap::values) {
            if let Outcome::Skipped(why) = outcome {
                let places = reasons.entry(why.clone()).or_default();
                if !places.contains(&run.column()) {
                    places.push(run.column());
                }
            }
        }
    }
    reasons
}

/// The first sentence of a test file.
fn promise(file: &str) -> String {
    let path = repository().map(|repository| repository.join(format!("tests/{file}.rs")));
    let text = path.ok().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let all: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let all = all.join(" ").replace('|', "\\|");
    all.split_once(". ").map_or(all.as_str(), |(first, _)| first).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_are_read() {
        let log = "running 4 tests\ntest a ... ok\nSKIP b: no musl-gcc\ntest b ... ok\n\
                   test c ... SKIP d: no go\nFAILED\ntest d ... ok\ntest e ... ignored\n\
                   test c ... FAILED\ntest result: FAILED. 1 passed\n";
        let outcomes = outcomes(log);
        assert_eq!(outcomes["a"], Outcome::Ok);
        assert_eq!(outcomes["b"], Outcome::Skipped("no musl-gcc".to_owned()));
        assert_eq!(outcomes["c"], Outcome::Failed);
        assert_eq!(outcomes["d"], Outcome::Skipped("no go".to_owned()));
        assert_eq!(outcomes.len(), 5);
    }
}
