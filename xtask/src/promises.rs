//! The pages whose rows name the tests that keep them true: SECURITY.md, the guide's page of what others can see, and the criteria of version
//! 1.0 in SUPPORT.md (`crate::criteria`).
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
