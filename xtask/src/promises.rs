//! The pages whose rows name the tests that keep them true: SECURITY.md, the guide's page of what others can see, and the criteria of version
//! 1.0 in SUPPORT.md (`crate::criteria`). In README.md and in the other pages of the guide, each section names them in a comment
//! `<!-- shown by: TEST, COMMAND -->`, or has a command block, which `tests/docs` runs.
//!
//! `AREA::MODULE::NAME` is the function `NAME` in `tests/AREA/MODULE.rs`, `CRATE::MODULE::tests::NAME` the one in
//! `crates/CRATE/src/MODULE.rs`, and `xtask::MODULE::NAME` one of `xtask`. `AREA::MODULE` is all tests of a file.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::repository;

/// The pages of which each row of a table names its tests.
pub(crate) const PAGES: [&str; 2] = ["SECURITY.md", "docs/guide/src/seen.md"];

/// Returns the text of a file of the repository.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository()?.join(path)).with_context(|| format!("cannot read {path}"))
}

/// Returns the texts between backquotes.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the parts of a path of names, such as `hostile::exec::of_another_thread`; none of another text.
fn path(text: &str) -> Option<Vec<&str>> {
    let letters = |part: &&str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let parts: Vec<&str> = text.split("::").collect();
    (parts.len() > 1 && parts.iter().all(letters)).then_some(parts)
}

/// Returns the paths of names between backquotes.
fn named(text: &str) -> BTreeSet<Vec<&str>> {
    quoted(text).filter_map(path).collect()
}

/// Returns whether the path names a test, or the module of an area's tests.
fn exists(path: &[&str]) -> bool {
    let has = |file: &str, test: &str| {
        let Ok(code) = read(file) else { return false };
        let test = format!("fn {test}(");
        let mut found = code.match_indices(&test);
        found.any(|(at, _)| code[..at].trim_end().ends_with("#[test]"))
    };
    match *path {
        [name, ref modules @ .., "tests", test] => {
            let source = if name == "xtask" { "xtask" } else { &format!("crates/{name}") };
            has(&format!("{source}/src/{}.rs", modules.join("/")), test)
        }
        // A module that is tests only, or a file of `xtask/tests`.
        ["xtask", module, test] => {
            ["src", "tests"].iter().any(|of| has(&format!("xtask/{of}/{module}.rs"), test))
        }
        [area, module, test] => has(&format!("tests/{area}/{module}.rs"), test),
        [area, module] => {
            read(&format!("tests/{area}/{module}.rs")).is_ok_and(|code| code.contains("#[test]"))
        }
        _ => false,
    }
}

/// Returns whether the text is the name of tests, such as `hostile::exec::of_another_thread`.
///
/// # Errors
/// There is no such test.
pub(crate) fn is_test(text: &str) -> Result<bool> {
    let Some(path) = path(text) else { return Ok(false) };
    if !exists(&path) {
        bail!("there is no test {text}");
    }
    Ok(true)
}

/// Returns how many tests a page names.
///
/// # Errors
/// A test does not exist.
pub(crate) fn tests_of(page: &str) -> Result<usize> {
    let text = read(page)?;
    let (there, missing): (Vec<_>, Vec<_>) =
        named(&text).into_iter().partition(|path| exists(path));
    if !missing.is_empty() {
        let missing: Vec<String> = missing.iter().map(|path| path.join("::")).collect();
        bail!("{page} names tests that do not exist: {}", missing.join(", "));
    }
    Ok(there.len())
}

/// Returns the rows of the tables.
pub(crate) fn rows(text: &str) -> Vec<Vec<&str>> {
    let cells = |line| Some(str::strip_suffix(str::strip_prefix(line, "| ")?, " |")?.split(" | "));
    text.lines().filter_map(cells).map(Iterator::collect).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::criteria::{self, RECORDED};
    use crate::docs;

    use super::*;

    /// The columns of the tables of [`PAGES`]. The last column names the tests.
    const COLUMNS: [&[&str]; 2] =
        [&["threat", "what stops it", "test"], &["what", "who sees it", "how long", "test"]];

    #[test]
    fn every_test_that_a_page_names_exists() {
        for page in PAGES {
            assert!(tests_of(page).unwrap() > 20, "{page}");
        }
    }

    #[test]
    fn every_row_names_a_test() {
        for (page, columns) in PAGES.into_iter().zip(COLUMNS) {
            let text = read(page).unwrap();
            let (heads, rows): (Vec<_>, Vec<_>) =
                rows(&text).into_iter().partition(|row| row == columns);
            assert!(!heads.is_empty() && rows.len() > 20, "{page}: {rows:?}");
            for row in rows {
                assert_eq!(row.len(), columns.len(), "{page}: {row:?}");
                assert!(row.iter().all(|cell| !cell.trim().is_empty()), "{page}: {row:?}");
                let tests = named(row[row.len() - 1]);
                let is_one = |path: &Vec<&str>| path.len() > 2;
                assert!(
                    !tests.is_empty() && tests.iter().all(is_one),
                    "{page}: no test: {}",
                    row[0]
                );
            }
        }
    }

    /// The pages of the guide that name their tests or commands in another way, or claim nothing.
    const OTHERWISE: [&str; 8] = [
        "SUMMARY.md",
        "glossary.md",
        // Rows of tables (`PAGES`).
        "seen.md",
        // The head of the page, or the text, names the command that makes it.
        "reasons.md",
        "RESULTS.md",
        "tools.md",
        "who-gains.md",
        "comparison.md",
    ];

    /// Returns the tests and commands of a comment `<!-- shown by: TEST, COMMAND -->`; none of `<!-- shown by nothing: REASON -->`.
    fn shown_by(comment: &str) -> Vec<&str> {
        match comment.split_once(':').map(|(kind, rest)| (kind, rest.trim())) {
            Some(("", named)) if !named.is_empty() => named.split(',').map(str::trim).collect(),
            Some((" nothing", reason)) if !reason.is_empty() => Vec::new(),
            _ => panic!("not `shown by: TEST` or `shown by nothing: REASON`: {comment}"),
        }
    }

    /// Returns the sections that have text, but neither a comment that names what shows it nor a block of commands that runs; and what
    /// the comments name.
    fn unshown(text: &str) -> (Vec<&str>, BTreeSet<&str>) {
        let (mut unshown, mut named) = (Vec::new(), BTreeSet::new());
        let mut sections = vec![0];
        let mut in_block = false;
        for (at, _) in text.match_indices('\n') {
            let line = text[at + 1..].lines().next().unwrap_or_default();
            in_block ^= line.trim_start().starts_with("```");
            if !in_block && line.starts_with('#') {
                sections.push(at + 1);
            }
        }
        sections.push(text.len());
        for ends in sections.windows(2) {
            let (heading, below) =
                text[ends[0]..ends[1]].split_once('\n').unwrap_or((&text[ends[0]..ends[1]], ""));
            let comments: Vec<&str> = below
                .split("<!-- shown by")
                .skip(1)
                .map(|rest| rest.split_once("-->").expect("an end of the comment").0)
                .collect();
            named.extend(comments.iter().flat_map(|comment| shown_by(comment)));
            let runs = ["\n```\n", "\n```console\n"].iter().any(|begin| below.contains(begin))
                && !below.contains("<!-- docs-test: skip ");
            if comments.is_empty() && !runs && !below.trim().is_empty() {
                unshown.push(heading);
            }
        }
        (unshown, named)
    }

    #[test]
    fn every_section_names_what_shows_it() {
        let guide = Path::new("docs/guide/src");
        let mut pages = docs::files(guide, "md");
        pages.retain(|path, _| !OTHERWISE.iter().any(|name| path.ends_with(name)));
        let mut faults = Vec::new();
        let mut count = 0;
        for (mut path, mut text) in pages.into_iter().chain([("README.md".into(), String::new())]) {
            if let Some(included) = text.strip_prefix("{{#include ../../") {
                path = Path::new("docs").join(included.trim_end().trim_end_matches("}}"));
            }
            let page = path.display().to_string();
            text = read(&page).unwrap();
            let (unshown, named) = unshown(&text);
            faults.extend(unshown.iter().map(|heading| format!("{page}: nothing: {heading}")));
            for by in named.into_iter().filter(|by| !RECORDED.contains(by)) {
                count += 1;
                faults.extend(criteria::check(by).err().map(|fault| format!("{page}: {fault}")));
            }
        }
        assert!(count > 100, "{count}");
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn a_section_that_names_nothing_is_found() {
        let text = "# A\n\nText.\n\n<!-- shown by: a::b,\n make x -->\n## B\n\n## C\n\nText.\n\n```console\n# no heading\n```\n\
                    ## D\n\nText.\n## E\nText.\n<!-- shown by nothing: advice -->\n\
                    ## F\n\n<!-- docs-test: skip it is long -->\n```\nx\n```\n";
        let (unshown, named) = unshown(text);
        assert_eq!(unshown, ["## D", "## F"]);
        assert_eq!(named, BTreeSet::from(["a::b", "make x"]));
        for wrong in [" a", ":", " nothing", " nothing:"] {
            assert!(std::panic::catch_unwind(|| shown_by(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_test_is_found() {
        for test in [
            "hostile::exec::of_another_thread",
            "hostile::exec",
            "agent::pods::tests::hostile_annotations_never_get_more",
            "xtask::promises::tests::what_is_no_test_is_found",
            "xtask::architecture::only_one_file_makes_files",
        ] {
            assert!(is_test(test).unwrap(), "{test}");
        }
        for none in [
            "hostile::exec::of_no_thread",
            // A function that is not a test, and the beginning of a test's name.
            "hostile::written::needs",
            "hostile::exec::of_another",
            "hostile::none",
            // A file without tests.
            "felt::looping",
            "hostile::exec::of::another",
            "xtask::promises::tests::exists",
        ] {
            assert_eq!(is_test(none).unwrap_err().to_string(), format!("there is no test {none}"));
        }
        assert!(!is_test("make soak").unwrap());
    }

    #[test]
    fn every_attacker_is_named() {
        let (text, modules) =
            (read("SECURITY.md").unwrap(), read("tests/hostile/main.rs").unwrap());
        let named = named(&text);
        let modules =
            modules.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        for module in modules {
            let is_named = |path: &Vec<&str>| path.starts_with(&["hostile", module]);
            assert!(named.iter().any(is_named), "SECURITY.md names no test of hostile::{module}");
        }
    }
}
