//! The tables of `docs/KERNELS.md`, made from the results of guests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use super::results::{Finding, Outcome, Run};
use crate::repository;

/// Lists the failures.
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

/// The table of tests: a row for each test file, with the first sentence of the file, and a column for each run.
pub(crate) fn tests(runs: &[Run]) -> String {
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

/// The reasons of skipped tests, and their kernels.
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

/// Returns the first sentence of a test file, which states its promise.
fn promise(file: &str) -> String {
    let path = repository()
        .map(|repository| repository.join(format!("tests/{}.rs", file.replace("::", "/"))));
    let text = path.ok().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let all: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let all = all.join(" ").replace('|', "\\|");
    all.split_once(". ").map_or(all.as_str(), |(first, _)| first).trim_end_matches('.').to_owned()
}

/// The probe for a feature of a kernel.
#[derive(Clone, Copy)]
enum Probe {
    /// The level of the doctor's finding on this thing.
    Doctor(&'static str),
    /// All tests of these files (`area::module`). With `area::module::part`, only the tests with that part in their
    /// names. A guest runs them only if its doctor finds the thing before them `ok`; for `image`, huge pages must have 2 MiB.
    Tests(&'static str, &'static [&'static str]),
    /// The doctor's finding on a thing, and the words before its yes or no.
    Says(&'static str, &'static str),
}

/// The features of TiExec, and the probe of each.
const FEATURES: &[(&str, Probe)] = &[
    (
        "launch on `image`",
        Probe::Tests(
            "image",
            &[
                "launch::becomes_exit::every_whole_huge_page",
                "launch::becomes_exit::many_launches_at_once",
                "launch::becomes_exit::forks_vforks_and_threads",
                "launch::report_and_dry_run::the_json_report",
            ],
        ),
    ),
    ("`image`: a memfd becomes huge", Probe::Doctor("image")),
    ("`pagecache`: a file becomes huge", Probe::Doctor("pagecache")),
    ("`pagecache`: shared, and found again", Probe::Tests("pages", &["pagecache::shared"])),
    ("`pagecache`: what nobody has cached", Probe::Tests("pages", &["pagecache::cold"])),
    ("`pagecache`: small folios collapsed", Probe::Tests("pages", &["pagecache::collapse"])),
    ("`tiexecctl warm`", Probe::Tests("pages", &["pagecache::warm_makes_huge::programs"])),
    ("`store`", Probe::Tests("image", &["store::build::programs_however_linked"])),
    ("`hugetlb`", Probe::Doctor("hugetlb")),
    ("PIE moved", Probe::Doctor("rebase")),
    (
        "PIE moved, in every layout",
        Probe::Tests("pages", &["layout::rebase::linked_by_gnu_ld", "layout::rebase::static"]),
    ),
    (
        "shared libraries at launch",
        Probe::Tests("image", &["dso::launch::the_program_and_its_object"]),
    ),
    (
        "launch: the helper killed anywhere",
        Probe::Tests("image", &["launch::helper_killed::after_each"]),
    ),
    (
        "attach and revert",
        Probe::Tests(
            "image",
            &[
                "attach::manual::attach_makes_text_huge",
                "attach::manual::where_the_kernel_can",
                "attach::manual::an_own_process",
            ],
        ),
    ),
    (
        "attach: restartable calls",
        Probe::Tests(
            "image",
            &[
                "attach::blocked::restart_syscall",
                "attach::blocked::futex",
                "attach::blocked::nanosleep",
                "attach::blocked::sigtimedwait",
                "attach::blocked::recv_timeout",
            ],
        ),
    ),
    (
        "attach: the tracer killed anywhere",
        Probe::Tests("image", &["attach::killed::while_the_thread_sleeps"]),
    ),
    ("a child may be traced", Probe::Doctor("ptrace")),
    ("fail-open", Probe::Tests("image", &["fail_open::resources"])),
    ("fail-open without any huge pages", Probe::Tests("", &["fail_open::without_huge_pages"])),
    (
        "THP `never`: copies are huge all the same",
        Probe::Tests("image", &["fail_open::hardened::thp_never"]),
    ),
    ("Yama scopes 0, 1 and 2", Probe::Tests("image", &["fail_open::hardened::yama"])),
    (
        "Yama scope 3: nothing is done, and said",
        Probe::Tests("image", &["fail_open::yama_forbids"]),
    ),
    (
        "`PR_SET_MDWE`: launch and attach",
        Probe::Tests("image", &["fail_open::hardened::writing_and_executing"]),
    ),
    ("`vm.memfd_noexec` 0, 1 and 2", Probe::Tests("image", &["fail_open::hardened::memory_files"])),
    (
        "sealed text (`mseal`) is left alone",
        Probe::Tests("image", &["fail_open::hardened::sealed"]),
    ),
    ("guarded text (BTI) stays guarded", Probe::Tests("image", &["pages::guarded_text"])),
    ("attach: scalable vectors and ZA", Probe::Tests("image", &["attach::vectors"])),
    (
        "huge pages however large, by launch and attach",
        Probe::Tests("hugetlb", &["pages::large_huge_pages"]),
    ),
    ("`--numa`", Probe::Tests("image", &["pages::numa"])),
    ("`--page-size`", Probe::Tests("hugetlb", &["pages::page_size"])),
    ("breakpoints in hugetlb text", Probe::Says("hugetlb", "breakpoints there: ")),
];

/// The tests that are probes of features, and the thing that each needs. What does not depend on the kernel is tested
/// natively only.
pub(super) fn tests_of_features() -> BTreeSet<(&'static str, &'static str)> {
    let of_tests = FEATURES.iter().filter_map(|(_, probe)| match probe {
        Probe::Tests(thing, tests) => Some(tests.iter().map(|test| (*test, *thing))),
        Probe::Doctor(_) | Probe::Says(..) => None,
    });
    of_tests.flatten().collect()
}

/// Splits a name into the file of tests (`area::module`) and the rest, a part of a test's name.
fn file_and_part(tests: &str) -> (&str, &str) {
    match tests.match_indices("::").nth(1) {
        Some((at, colons)) => (&tests[..at], &tests[at + colons.len()..]),
        None => (tests, ""),
    }
}

/// The table of features: a row for each feature with its probe, and a column for each run.
pub(crate) fn features(runs: &[Run]) -> String {
    let mut text = String::from("| feature | probe |");
    for run in runs {
        let _infallible = write!(text, " {} |", run.column());
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(runs.len()));
    text.push('\n');
    let pages = runs.iter().map(|run| {
        let of_root = run.doctor.get("root");
        let pages = of_root.and_then(|all| all.iter().find(|one| one.thing == "pages"));
        pages.map_or("–", |pages| &pages.finding)
    });
    let pages: Vec<&str> = pages.collect();
    let _infallible = writeln!(text, "| page sizes | `doctor`: pages | {} |", pages.join(" | "));
    for (feature, probe) in FEATURES {
        let shown = match probe {
            Probe::Doctor(thing) => format!("`doctor`: {thing}"),
            Probe::Says(thing, _) => format!("`doctor`: {thing}"),
            Probe::Tests(_, files) => format!("tests: `{}`", files.join("`, `")),
        };
        let _infallible = write!(text, "| {feature} | {shown} |");
        for run in runs {
            let cell = match probe {
                Probe::Doctor(thing) => found(run, thing),
                Probe::Says(thing, words) => says(run, thing, words).to_owned(),
                Probe::Tests(_, files) => passed(run, files),
            };
            let _infallible = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

/// Returns the doctor's finding on a thing, as root and as another user.
fn found(run: &Run, thing: &str) -> String {
    let level = |user: &str| {
        let mut all = run.doctor.get(user)?.iter();
        all.find(|one: &&Finding| one.thing == thing).map(|one| one.level.as_str())
    };
    match (level("root"), level("user")) {
        (None, None) => "–".to_owned(),
        (root, user) if root == user => root.unwrap_or("–").to_owned(),
        (root, user) => format!("root: {}, user: {}", root.unwrap_or("–"), user.unwrap_or("–")),
    }
}

/// Returns the yes or no after these words in the doctor's finding on a thing as root.
fn says(run: &Run, thing: &str, words: &str) -> &'static str {
    let of_root = run.doctor.get("root").and_then(|all| all.iter().find(|one| one.thing == thing));
    match of_root.and_then(|one| one.finding.split_once(words)) {
        Some((_, answer)) if answer.starts_with("yes") => "ok",
        Some(_) => "no",
        None => "–",
    }
}

/// Returns in words whether the tests of these files passed.
fn passed(run: &Run, files: &[&str]) -> String {
    let outcomes: Vec<&Outcome> = files
        .iter()
        .filter_map(|file| {
            let (file, part) = file_and_part(file);
            let all = run.results.get(file)?.iter();
            Some(all.filter(move |(name, _)| name.contains(part)).map(|(_, outcome)| outcome))
        })
        .flatten()
        .collect();
    let count =
        |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    let ok = count(|outcome| *outcome == Outcome::Ok);
    let failed = count(|outcome| *outcome == Outcome::Failed);
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    match (ok, failed, skipped) {
        (0, 0, 0) => "–".to_owned(),
        (0, 0, _) => "skipped".to_owned(),
        (_, 0, _) => "ok".to_owned(),
        _ => format!("**{failed} of {} fail**", ok + failed),
    }
}

/// The document with the tables. Each table stands between two marks.
const DOCUMENT: &str = "docs/KERNELS.md";

/// Puts the tables of `runs` into the document's `text`.
fn filled(text: &str, runs: &[Run]) -> Result<String> {
    let mut text = text.to_owned();
    for (name, table) in [("features", features(runs)), ("tests", tests(runs))] {
        let marks = [format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n")];
        let between = || Some((text.find(&marks[0])? + marks[0].len(), text.find(&marks[1])?));
        let (from, to) =
            between().with_context(|| format!("{DOCUMENT} has no marks for {name}"))?;
        text.replace_range(from..to, &table);
    }
    Ok(text)
}

/// Writes the tables of `runs` into the document.
pub(crate) fn write(runs: &[Run]) -> Result<()> {
    let path = repository()?.join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(fs::write(path, filled(&text, runs)?)?)
}

#[cfg(test)]
mod tests {
    use super::super::results::stored;
    use super::*;

    #[test]
    fn the_document_says_what_was_found() {
        let repository = repository().unwrap();
        let text = fs::read_to_string(repository.join(DOCUMENT)).unwrap();
        let runs = stored(&repository.join("docs/kernels")).unwrap();
        assert!(!runs.is_empty());
        assert!(
            text == filled(&text, &runs).unwrap(),
            "{DOCUMENT} is not made of docs/kernels: cargo xtask kernels"
        );
    }
}
