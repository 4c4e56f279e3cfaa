//! The results of the tests in a guest, and the findings of `tiexecctl doctor` there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use crate::covered::Covered;
use crate::repository;

/// The result of one test.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Ok,
    /// Skipped, for this reason.
    Skipped(String),
    Failed,
}

/// One finding of the doctor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) thing: String,
    pub(crate) level: String,
    pub(crate) finding: String,
}

/// The needed part of the doctor's answer.
#[derive(Deserialize)]
pub(super) struct Doctor {
    pub(super) findings: Vec<Finding>,
}

/// The name that stands for the tests of a file that did not finish.
pub(super) const UNFINISHED: &str = "(did not come to its end)";

/// The users that the doctor was run as.
pub(crate) const USERS: [&str; 2] = ["root", "user"];

/// All tests of one guest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) arch: String,
    pub(crate) release: String,
    pub(crate) disk: String,
    /// The doctor's findings, by [user](USERS).
    pub(crate) doctor: BTreeMap<String, Vec<Finding>>,
    /// The results by file, then by test. A file that did not finish has an additional failed test, [`UNFINISHED`].
    pub(crate) results: BTreeMap<String, BTreeMap<String, Outcome>>,
    /// Messages of the kernel that are complaints.
    pub(crate) complaints: Vec<String>,
    /// The sources that the last whole run tested.
    #[serde(default)]
    pub(crate) covered: Covered,
}

impl Run {
    pub(crate) fn is_good(&self) -> bool {
        let all = || self.results.values().flat_map(BTreeMap::values);
        all().next().is_some()
            && !all().any(|outcome| *outcome == Outcome::Failed)
            && self.complaints.is_empty()
    }

    /// Returns the main numbers of the release, because the full release changes with every update.
    pub(crate) fn column(&self) -> String {
        let mut numbers = self.release.split(['.', '-', '+']);
        let version: Vec<&str> = numbers.by_ref().take(2).collect();
        let has_none = |finding: &Finding| finding.thing == "pages" && finding.level == "fail";
        let kinds = [
            ("-16k", ", 16 KiB pages"),
            ("-64k", ", 64 KiB pages"),
            ("-rothp", ", READ_ONLY_THP_FOR_FS"),
        ];
        let pages = match kinds.iter().find(|(kind, _)| self.release.ends_with(kind)) {
            Some((_, pages)) => pages,
            None if self.doctor.values().flatten().any(has_none) => ", no huge pages",
            None => "",
        };
        format!("{} {}{pages}, {}", version.join("."), self.arch, self.disk)
    }
}

/// Reads a test program's output, which has a line for each test, and another line for each skipped test. Only names
/// after `prefix` count, because other tests belong to other files.
pub(super) fn outcomes(log: &str, prefix: &str) -> BTreeMap<String, Outcome> {
    let mut outcomes = BTreeMap::new();
    let mut skipped = BTreeMap::new();
    for line in log.lines() {
        // The skip line comes from another descriptor, and may start in the middle of a line.
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
    let own =
        |(name, outcome): (String, Outcome)| Some((name.strip_prefix(prefix)?.to_owned(), outcome));
    outcomes.into_iter().filter_map(own).collect()
}

/// Returns the directory of stored runs: for the document, or only for this machine.
pub(crate) fn place(cache: &Cache, in_the_document: bool) -> Result<PathBuf> {
    if in_the_document { Ok(repository()?.join("docs/kernels")) } else { cache.dir("results") }
}

/// Stores a run in `dir`. A whole run replaces all earlier results there; another one, those of the same tests.
pub(crate) fn store(dir: &Path, run: &Run) -> Result<()> {
    fs::create_dir_all(dir)?;
    let words: Vec<String> =
        run.column().split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let path = dir.join(words.join("-") + ".json");
    let (mut results, mut covered, mut doctor) = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice::<Run>(&bytes).map_or_else(
            |error| {
                eprintln!("{}: {error}; begun anew", path.display());
                Default::default()
            },
            |run| (run.results, run.covered, run.doctor),
        ),
        Err(_absent) => Default::default(),
    };
    if !run.covered.is_empty() {
        covered.clone_from(&run.covered);
        results.clear();
    }
    if !run.doctor.is_empty() {
        doctor.clone_from(&run.doctor);
    }
    for (file, outcomes) in &run.results {
        let known: &mut BTreeMap<_, _> = results.entry(file.clone()).or_default();
        // This entry may come from an earlier try.
        known.remove(UNFINISHED);
        known.extend(outcomes.clone());
    }
    let whole = Run {
        arch: run.arch.clone(),
        release: run.release.clone(),
        disk: run.disk.clone(),
        doctor,
        results,
        complaints: run.complaints.clone(),
        covered,
    };
    Ok(fs::write(path, serde_json::to_string_pretty(&whole)? + "\n")?)
}

/// Returns all stored runs in `dir`.
pub(crate) fn stored(dir: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(dir)? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_are_read() {
        let log = "running 4 tests\ntest m::a ... ok\nSKIP m::b: no musl-gcc\ntest m::b ... ok\n\
                   test m::c ... SKIP m::d: no go\nFAILED\ntest m::d ... ok\ntest m::e ... ignored\n\
                   test m::c ... FAILED\ntest n::a ... ok\ntest result: FAILED. 1 passed\n";
        let outcomes = outcomes(log, "m::");
        assert_eq!(outcomes["a"], Outcome::Ok);
        assert_eq!(outcomes["b"], Outcome::Skipped("no musl-gcc".to_owned()));
        assert_eq!(outcomes["c"], Outcome::Failed);
        assert_eq!(outcomes["d"], Outcome::Skipped("no go".to_owned()));
        assert_eq!(outcomes.len(), 5);
    }
}
