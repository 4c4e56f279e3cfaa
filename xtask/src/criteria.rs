//! The criteria of version 1.0: the section "Before 1.0" of docs/SUPPORT.md has what we can show, and what only users can.

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::promises::{self, PAGES, quoted};
use crate::{Chore, k8s, tools, vm};

/// The page of the criteria.
pub(crate) const PAGE: &str = "docs/SUPPORT.md";
/// The heading of the table of what we can show.
const OURS: &str = "### What we can show";
/// The heading of the list of what only users can show.
const USERS: &str = "### What only users can show";

/// One criterion, and the tests, pages and commands that show it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Criterion<'a> {
    pub(crate) name: &'a str,
    shown_by: Vec<&'a str>,
}

/// The answer to the question whether a criterion is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Tests that exist, and runs that tested the committed sources.
    Ready(String),
    /// Also commands of which nothing is recorded.
    ByHand(String),
}

/// Returns the text below a heading, up to the next heading.
fn section<'a>(text: &'a str, heading: &str) -> Result<&'a str> {
    let (_, below) = text
        .split_once(&format!("\n{heading}\n"))
        .with_context(|| format!("{PAGE} has no heading `{heading}`"))?;
    Ok(below.split("\n#").next().unwrap_or(below).trim())
}

/// Returns the criteria of what we can show.
///
/// # Errors
/// The page has no such table, or a row names nothing that shows its criterion.
pub(crate) fn ours<'a>(text: &'a str) -> Result<Vec<Criterion<'a>>> {
    let rows = promises::rows(section(text, OURS)?);
    if rows.first().is_none_or(|head| *head != ["criterion", "shown by"]) {
        bail!("{PAGE} has no table `| criterion | shown by |` below `{OURS}`");
    }
    let criterion = |row: Vec<&'a str>| match row[..] {
        [name, shown_by] if shown_by.contains('`') => {
            Ok(Criterion { name, shown_by: quoted(shown_by).collect() })
        }
        _ => bail!("{PAGE}: a row names no test and no command: {}", row.join(" | ")),
    };
    rows.into_iter().skip(1).map(criterion).collect()
}

/// Returns what only users can show, as the list for the notes of a release.
///
/// # Errors
/// The page has no such list.
pub(crate) fn of_users(text: &str) -> Result<&str> {
    let section = section(text, USERS)?;
    Ok(section.split("\n\n<!-- shown by").next().unwrap_or(section))
}

impl Criterion<'_> {
    /// Looks for what shows the criterion. Runs nothing.
    ///
    /// # Errors
    /// A test or a command does not exist, or a recorded run tested other sources than those that are committed.
    pub(crate) fn check(&self) -> Result<Shown> {
        let (mut found, mut by_hand, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for by in &self.shown_by {
            match check(by) {
                Ok(Shown::Ready(what)) if found.contains(&what) => {}
                Ok(Shown::Ready(what)) => found.push(what),
                Ok(Shown::ByHand(command)) => by_hand.push(command),
                Err(fault) => faults.push(format!("{fault:#}")),
            }
        }
        if !faults.is_empty() {
            bail!("{}", faults.join("; "));
        }
        Ok(match by_hand.is_empty() {
            true => Shown::Ready(found.join(", ")),
            false => Shown::ByHand(by_hand.join(", ")),
        })
    }
}

/// The commands that record what they tested.
#[cfg(test)]
pub(crate) const RECORDED: [&str; 3] = ["make vm-test", "make k8s-test", "make tools-test"];

/// Looks for one test, page, recorded run or command.
pub(crate) fn check(by: &str) -> Result<Shown> {
    if promises::is_test(by)? {
        return Ok(Shown::Ready("its tests exist".to_owned()));
    }
    if PAGES.contains(&by) {
        return Ok(Shown::Ready(format!("its {} tests exist", promises::tests_of(by)?)));
    }
    match by {
        "make vm-test" => vm::check_recorded(),
        "make k8s-test" => k8s::check_recorded(),
        "make tools-test" => tools::check_recorded(),
        command if is_command(command)? => return Ok(Shown::ByHand(command.to_owned())),
        _ => bail!("`{by}` is not a test, a page of tests, or a command"),
    }
    .map(Shown::Ready)
}

/// Returns whether `make`, `cargo xtask` or `bench` has this command.
fn is_command(command: &str) -> Result<bool> {
    if command.starts_with("bench/") {
        let script = command.split(' ').next().unwrap_or_default();
        return Ok(promises::read(script).is_ok_and(|text| text.starts_with("#!")));
    }
    Ok(match command.strip_prefix("make ") {
        Some(target) => {
            promises::read("Makefile")?.lines().any(|line| line.starts_with(&format!("{target}:")))
        }
        None => {
            let words = command.strip_prefix("cargo ").unwrap_or_default().split(' ');
            command.starts_with("cargo xtask ") && Chore::try_parse_from(words).is_ok()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &str) -> String {
        format!(
            "## Before 1.0\n\n{OURS}\n\n| criterion | shown by |\n|---|---|\n{rows}\n{USERS}\n\n- A month.\n\n<!-- shown by nothing: x -->\n\n## More\n\n- No.\n"
        )
    }

    fn only(rows: &str) -> Result<Shown> {
        let page = page(rows);
        let criteria = ours(&page)?;
        assert_eq!(criteria.len(), 1);
        criteria[0].check()
    }

    fn fault(rows: &str) -> String {
        format!("{:#}", only(rows).unwrap_err())
    }

    #[test]
    fn every_test_and_command_of_the_page_exists() {
        let text = promises::read(PAGE).unwrap();
        let criteria = ours(&text).unwrap();
        assert!(criteria.len() > 10);
        for by in criteria.iter().flat_map(|criterion| &criterion.shown_by) {
            // The sources may be newer than a record, except in a release.
            if !RECORDED.contains(by) {
                check(by).unwrap();
            }
        }
        for record in RECORDED {
            assert!(criteria.iter().any(|criterion| criterion.shown_by.contains(&record)));
        }
        assert!(of_users(&text).unwrap().lines().any(|line| line.starts_with("- ")));
    }

    #[test]
    fn a_row_is_what_its_parts_are() {
        let exists = "`hostile::exec`<br>`hostile::exec::of_another_thread`";
        let ready = only(&format!("| No right. | {exists} |\n")).unwrap();
        assert_eq!(ready, Shown::Ready("its tests exist".to_owned()));
        let by_hand = only(&format!("| No right. | {exists}, `make soak` |\n")).unwrap();
        assert_eq!(by_hand, Shown::ByHand("make soak".to_owned()));
        assert!(check("bench/launch --runs 5").is_ok());
        let by_hand = only("| Packages. | `cargo xtask dist --check DIR` |\n").unwrap();
        assert_eq!(by_hand, Shown::ByHand("cargo xtask dist --check DIR".to_owned()));
        assert!(matches!(only("| No right. | `SECURITY.md` |\n").unwrap(), Shown::Ready(_)));
    }

    #[test]
    fn a_missing_test_or_command_is_a_fault() {
        assert_eq!(
            fault("| x | `hostile::exec::no_such`, `make soak`, `hostile::no_such` |\n"),
            "there is no test hostile::exec::no_such; there is no test hostile::no_such"
        );
        for none in [
            "make nothing",
            "cargo xtask nothing",
            "cargo xtask dist --nothing",
            "README.md",
            "bench/nothing",
            "bench/README.md",
        ] {
            let is_none = format!("`{none}` is not a test, a page of tests, or a command");
            assert_eq!(fault(&format!("| x | `{none}` |\n")), is_none);
        }
    }

    #[test]
    fn a_row_or_a_page_without_its_parts_is_a_fault() {
        assert!(fault("| x | we are sure |\n").contains("names no test and no command"));
        assert!(fault("| x | y | `make soak` |\n").contains("names no test and no command"));
        assert!(ours("## Before 1.0\n").is_err() && of_users("## Before 1.0\n").is_err());
        let without_head = page("").replace("| criterion | shown by |", "");
        assert!(ours(&without_head).is_err());
    }

    #[test]
    fn the_list_for_users_ends_with_its_section() {
        assert_eq!(of_users(&page("")).unwrap(), "- A month.");
    }
}
