//! The guide's page of tools.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::cases::Case;
use super::{Answers, Said, WAYS, Way};
use crate::repository;

/// The page of the guide.
fn page() -> Result<PathBuf> {
    Ok(repository()?.join("docs/guide/src/tools.md"))
}

/// Writes the page.
pub(super) fn write(rows: &[(&Case, Answers)]) -> Result<()> {
    let page = page()?;
    fs::write(&page, text(rows)).with_context(|| format!("cannot write {}", page.display()))
}

/// Returns the cells of a row, in the order of [`WAYS`].
pub(super) fn cells(case: &Case, answers: &Answers) -> Vec<String> {
    let plain = match answers.get(&Way::Plain).map(Vec::as_slice) {
        Some([(_, Said::Lines(lines))]) => lines.as_slice(),
        _ => &[],
    };
    WAYS.into_iter()
        .map(|way| {
            let of_way = answers.get(&way).map(Vec::as_slice).unwrap_or_default();
            let shown: Vec<_> =
                of_way.iter().map(|(mode, said)| (*mode, cell(case, way, plain, said))).collect();
            match shown.as_slice() {
                [] => "–".to_owned(),
                [(_, one)] => one.clone(),
                [(_, first), rest @ ..] if rest.iter().all(|(_, one)| one == first) => {
                    first.clone()
                }
                several => {
                    let each: Vec<_> =
                        several.iter().map(|(mode, one)| format!("{mode}: {one}")).collect();
                    each.join("; ")
                }
            }
        })
        .collect()
}

/// Returns what one cell says.
fn cell(case: &Case, way: Way, plain: &[String], said: &Said) -> String {
    let unit = case.unit;
    match said {
        Said::Lines(lines) if way == Way::Plain && lines.len() == 1 => {
            format!("1 {}", unit.trim_end_matches('s'))
        }
        Said::Lines(lines) if way == Way::Plain => format!("{} {unit}", lines.len()),
        Said::Lines(_) if case.varies && matches!(way, Way::Store | Way::Memfd) => {
            "differs".to_owned()
        }
        Said::Lines(lines) if lines == plain => "as plain".to_owned(),
        Said::Lines(lines) => {
            // A name that plain has twice counts twice.
            let mut left = lines.clone();
            let same = plain.iter().filter(|line| {
                let at = left.iter().position(|other| other == *line);
                at.map(|at| left.swap_remove(at)).is_some()
            });
            match same.count() {
                0 => format!("no {unit}"),
                same if same == plain.len() => format!("{unit} beside others"),
                same => format!("{same} of {} {unit}", plain.len()),
            }
        }
        Said::Lacking(_) => "not tried".to_owned(),
        Said::Failed(_) => "failed".to_owned(),
    }
}

const INTRODUCTION: &str = "# Debuggers, profilers and crash handlers

<!-- Made by `make tools-test`, which asks the real tools. Do not edit: the texts are in xtask/src/tools. -->

TiExec changes which memory holds a program's code. A tool that looks for the program's file may notice it. In huge pages of the page cache the
code still is the file, and no tool notices anything. A *copy* is another file: an image of the store, or a memfd. `tiexecctl inspect PID` shows
in the column `BACKING` what a process has.

Each row of the table is one tool, asked about a program with 6 MiB of code (or about node, the JVM and the others themselves). The column *plain* has
what the tool found without TiExec: so many names of functions, for example. The other columns compare:

| column | the code |
|---|---|
| page cache | is the file, in huge pages of the page cache |
| store | is an image of the store ([`tiexecctl store setup`](tuning.md)) |
| memfd | is a private copy, which TiExec makes if there is no store (`image` in the column `BACKING`) |
| revert | was in a memfd, and `tiexecctl revert` has undone that |

A cell names both the start with TiExec and the attach to the running program if they differ. `–`: the test does not ask the tool in this way.
*not tried*: the tool is not on the machine of the test.

## The table

";

const END: &str = "
## Not in the table

- valgrind runs a program's code as its data. `tiexecctl attach` refuses its processes (`no_thread`).
- abrt is not in Debian. It reads core dumps through elfutils, as `eu-stack --core` does.

## The backtrace of a core dump with copies

A core dump does not hold the code, because the kernel leaves out what a file has. Name the *program* beside the core: then gdb and elfutils take the
code and the names from the program's file, wherever the process had the code from.

<!-- docs-test: skip it needs a core dump, of which make tools-test asks gdb and eu-stack -->
```console
$ gdb -batch -ex bt PROGRAM core
$ eu-stack -e PROGRAM --core core
```

systemd-coredump names the program by itself, and so does `coredumpctl debug`. Without `-e`, `eu-stack` looks for the files that the core
names, and finds a copy in the place of the code.
";

/// Returns the page.
fn text(rows: &[(&Case, Answers)]) -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str(
        "| tool | plain | page cache | store | memfd | revert |\n|---|---|---|---|---|---|\n",
    );
    let (mut reasons, mut lacking) = (String::new(), String::new());
    for (case, answers) in rows {
        if let Some([(_, Said::Lacking(reason))]) = answers.get(&Way::Plain).map(Vec::as_slice) {
            let _infallible = writeln!(text, "| {} | not tried | | | | |", case.tool);
            let _infallible = writeln!(lacking, "- {}: {reason}.", case.tool);
            continue;
        }
        let cells = cells(case, answers);
        let _infallible = writeln!(text, "| {} | {} |", case.tool, cells.join(" | "));
        let is_other = |said: &Said| {
            let plain = answers.get(&Way::Plain).map(Vec::as_slice);
            !matches!(said, Said::Lacking(_))
                && matches!(plain, Some([(_, plain)]) if plain != said)
        };
        let differs = case.varies || answers.values().flatten().any(|(_, said)| is_other(said));
        if differs && !case.why.is_empty() {
            let _infallible = writeln!(reasons, "- {}: {}", case.tool, case.why);
        }
    }
    let _infallible = write!(text, "\n## Why a copy differs\n\n{reasons}");
    if !lacking.is_empty() {
        let _infallible = write!(
            text,
            "\n## Not tried\n\nThe last run lacked these tools, or did not ask them.\n\n{lacking}"
        );
    }
    text.push_str(END);
    text
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::*;

    #[test]
    fn the_page_has_a_row_for_each_case() {
        let page = fs::read_to_string(page().unwrap()).unwrap();
        let (_, table) = page.split_once("\n| tool |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with("| "));
        let tools: Vec<&str> = rows.map(|row| row[2..].split(" | ").next().unwrap()).collect();
        let wanted: Vec<&str> = CASES.iter().map(|case| case.tool).collect();
        assert_eq!(tools, wanted, "fix: make tools-test");
        assert!(page.starts_with(INTRODUCTION) && page.ends_with(END), "fix: make tools-test");
    }

    #[test]
    fn cells_count_what_is_the_same() {
        let lines =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut case = CASES[0];
        case.unit = "names";
        let plain = lines(&["f", "f", "main"]);
        let shown = |words: &[&str]| cell(&case, Way::Memfd, &plain, &Said::Lines(lines(words)));
        assert_eq!(shown(&["f", "f", "main"]), "as plain");
        assert_eq!(shown(&["f", "main"]), "2 of 3 names");
        assert_eq!(shown(&[]), "no names");
        assert_eq!(shown(&["main", "f", "f", "g"]), "names beside others");
    }
}
