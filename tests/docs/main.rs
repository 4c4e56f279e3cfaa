//! The command blocks of README.md and of the guide do what the pages say: each block runs on real programs, and the form of its output
//! is the form that the page shows. CONTRIBUTING.md explains the marks in the pages.
//!
//! `make test` runs README's blocks. `make docs-test` runs those of the guide, too.

mod form;
mod page;
mod session;

use std::path::{Path, PathBuf};

use support::systemd::{NEEDS, can_boot};
use support::{require, skip};

use self::page::Page;
use self::session::Outcome;

const GUIDE: &str = "docs/guide/src";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Reads a page by its path in the repository.
fn read(path: &str) -> Page {
    let text = std::fs::read_to_string(repository().join(path));
    let text = text.unwrap_or_else(|e| panic!("{path}: {e}"));
    Page::parse(path, &text).unwrap_or_else(|e| panic!("{e}"))
}

/// The pages of the guide, by their paths in the repository.
fn guide() -> Vec<String> {
    let entries = std::fs::read_dir(repository().join(GUIDE)).expect("the guide");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8"));
    let pages = names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"));
    let mut pages: Vec<_> = pages.map(|name| format!("{GUIDE}/{name}")).collect();
    pages.sort();
    pages
}

/// Runs the blocks of these pages, and prints the outcome of each block. Returns the names of those that failed.
fn run(pages: &[Page]) -> Vec<String> {
    let mut failed = Vec::new();
    let (mut passed, mut skipped) = (0, 0);
    for page in pages.iter().filter(|page| !page.blocks.is_empty()) {
        for (block, outcome) in session::run(page) {
            let name = format!("{}:{}", page.path, block.line);
            match outcome {
                Outcome::Pass => {
                    passed += 1;
                    println!("PASS {name}");
                }
                Outcome::Skip(why) => {
                    skipped += 1;
                    // Not in the form of a skipped test, which scripts/tests counts: the page wants it so.
                    println!("SKIP {name} ({why})");
                }
                Outcome::Lacking(why) => {
                    skipped += 1;
                    skip(&format!("{name}: {why}"));
                }
                Outcome::Fail(why) => {
                    println!("FAIL {name}: {why}");
                    failed.push(name);
                }
            }
        }
    }
    println!("blocks: {passed} passed, {} failed, {skipped} skipped", failed.len());
    failed
}

#[test]
fn the_readme_is_true() {
    require!(can_boot(), "{NEEDS}");
    let readme = read("README.md");
    for tool in ["prometheus", "mariadbd", "node", "clang++"] {
        require!(support::installed(tool).is_some(), "README's blocks run {tool}");
    }
    let failed = run(&[readme]);
    assert!(failed.is_empty(), "the page and the programs differ: {}", failed.join(", "));
}

/// The pages whose names `TIEXEC_TEST_PAGES` has, such as `systemd machine`; without it all pages.
#[test]
#[ignore = "takes half an hour: make docs-test"]
fn every_page_is_true() {
    if !can_boot() {
        return skip(NEEDS);
    }
    let wanted = std::env::var("TIEXEC_TEST_PAGES").unwrap_or_default();
    let wanted: Vec<_> = wanted.split_whitespace().collect();
    let name =
        |path: &str| Path::new(path).file_stem().map(|name| name.to_string_lossy().into_owned());
    let mut pages = guide();
    pages.insert(0, "README.md".to_owned());
    if !wanted.is_empty() {
        pages.retain(|path| name(path).is_some_and(|name| wanted.contains(&name.as_str())));
        assert_eq!(pages.len(), wanted.len(), "of {wanted:?} only these are pages: {pages:?}");
    }
    let pages: Vec<_> = pages.iter().map(|path| read(path)).collect();
    let failed = run(&pages);
    assert!(failed.is_empty(), "the page and the programs differ: {}", failed.join(", "));
}

#[test]
fn every_block_of_every_page_can_be_read() {
    let blocks: usize = guide().iter().map(|path| read(path).blocks.len()).sum();
    assert!(blocks > 40, "{blocks}");
}
