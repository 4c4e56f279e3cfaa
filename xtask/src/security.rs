//! SECURITY.md and the tests that it names.

use std::collections::BTreeSet;
use std::path::Path;

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

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_promise_names_tests_that_exist() {
    let text = read("SECURITY.md");
    let named = named(&text);
    assert!(named.len() > 20, "{named:?}");
    for path in named {
        let &[area, module, ref test @ ..] = &path[..] else { panic!("{path:?} has no module") };
        if let ["tests", test] = test {
            let code = read(format!("crates/{area}/src/{module}.rs"));
            assert!(code.contains(&format!("#[test]\n        fn {test}(")), "{path:?} is no test");
            continue;
        }
        let tests = read(format!("tests/{area}/{module}.rs"));
        if let [test] = test {
            assert!(tests.contains(&format!("#[test]\nfn {test}()")), "{path:?} is no test");
        }
    }
}

/// Returns the rows of the tables: a threat, the defence, and the tests.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let cells = |line| Some(str::strip_suffix(str::strip_prefix(line, "| ")?, " |")?.split(" | "));
    text.lines().filter_map(cells).map(Iterator::collect).collect()
}

#[test]
fn every_threat_has_a_test() {
    let text = read("SECURITY.md");
    let rows: Vec<Vec<&str>> = rows(&text).into_iter().filter(|row| row[0] != "threat").collect();
    assert!(rows.len() > 20, "{rows:?}");
    for row in rows {
        let &[threat, stops, tests] = &row[..] else { panic!("{row:?} has not three cells") };
        assert!(!threat.is_empty() && !stops.is_empty(), "{row:?}");
        assert!(!named(tests).is_empty(), "no test: {threat}");
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
