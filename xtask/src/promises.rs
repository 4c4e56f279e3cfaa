//! The pages whose rows name the tests that keep them true: SECURITY.md, and the guide's page of what others can see.

use std::collections::BTreeSet;
use std::path::Path;

/// Each page, and the columns of its tables. The last column names the tests.
const PAGES: [(&str, &[&str]); 2] = [
    ("SECURITY.md", &["threat", "what stops it", "test"]),
    ("docs/guide/src/seen.md", &["what", "who sees it", "how long", "test"]),
];

/// Returns the texts between backquotes that are paths of names, such as `hostile::exec::of_another_thread`.
fn named(text: &str) -> BTreeSet<Vec<&str>> {
    let word = |word: &&str| {
        let letters = |part: &str| {
            !part.is_empty()
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        word.contains("::") && word.split("::").all(letters)
    };
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(word).map(|path| path.split("::").collect()).collect()
}

/// Returns the text of a file of the repository; none if there is no such file.
fn text_of(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).ok()
}

fn read(path: &str) -> String {
    text_of(path).unwrap_or_else(|| panic!("cannot read {path}"))
}

/// Returns whether the path names a test, or the module of an area's tests.
fn exists(path: &[&str]) -> bool {
    let has = |file: &str, test: &str| text_of(file).is_some_and(|code| code.contains(test));
    match *path {
        [area, module] => text_of(&format!("tests/{area}/{module}.rs")).is_some(),
        [area, module, test] => {
            has(&format!("tests/{area}/{module}.rs"), &format!("#[test]\nfn {test}()"))
        }
        [name, module, "tests", test] => {
            has(&format!("crates/{name}/src/{module}.rs"), &format!("#[test]\n        fn {test}("))
        }
        _ => false,
    }
}

#[test]
fn every_test_that_a_page_names_exists() {
    let mut missing = Vec::new();
    for (page, _) in PAGES {
        let text = read(page);
        let named = named(&text);
        assert!(named.len() > 20, "{page}: {named:?}");
        let gone = named.iter().filter(|path| !exists(path));
        missing.extend(gone.map(|path| format!("{page}: there is no test {}", path.join("::"))));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Returns the rows of the tables.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let cells = |line| Some(str::strip_suffix(str::strip_prefix(line, "| ")?, " |")?.split(" | "));
    text.lines().filter_map(cells).map(Iterator::collect).collect()
}

#[test]
fn every_row_names_a_test() {
    for (page, columns) in PAGES {
        let text = read(page);
        let (heads, rows): (Vec<_>, Vec<_>) =
            rows(&text).into_iter().partition(|row| row == columns);
        assert!(!heads.is_empty() && rows.len() > 20, "{page}: {rows:?}");
        for row in rows {
            assert_eq!(row.len(), columns.len(), "{page}: {row:?}");
            assert!(row.iter().all(|cell| !cell.trim().is_empty()), "{page}: {row:?}");
            let tests = named(row[row.len() - 1]);
            let is_one = |path: &Vec<&str>| path.len() > 2;
            assert!(!tests.is_empty() && tests.iter().all(is_one), "{page}: no test: {}", row[0]);
        }
    }
}

#[test]
fn what_is_no_test_is_found() {
    assert!(exists(&["hostile", "exec", "of_another_thread"]));
    for none in ["hostile::exec::of_no_thread", "hostile::none", "hostile::exec::of::another"] {
        assert!(!exists(&none.split("::").collect::<Vec<_>>()), "{none}");
    }
}

#[test]
fn every_attacker_is_named() {
    let (text, modules) = (read("SECURITY.md"), read("tests/hostile/main.rs"));
    let named = named(&text);
    let modules = modules.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    for module in modules {
        let is_named = |path: &Vec<&str>| path.starts_with(&["hostile", module]);
        assert!(named.iter().any(is_named), "SECURITY.md names no test of hostile::{module}");
    }
}
