//! The result of `warm`, as a table or as JSON.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tiexec_core::addr::mib;
use tiexec_core::coverage::{Rest, small_files};
use tiexec_core::escape::{self, AsShown};
use tiexec_core::report::{SCHEMA, percent};
use tiexec_core::skip::{Reason, SkipReason};
use tiexec_remap::warm::Warmth;

use crate::exit;

/// One file.
#[derive(Serialize)]
pub(super) struct Row {
    path: String,
    text_bytes: u64,
    huge_bytes: u64,
    rest: Vec<Rest>,
    /// The reason why the rest did not become huge.
    reason: Option<Reason>,
    detail: Option<String>,
    #[serde(skip)]
    missing_bytes: u64,
}

impl Row {
    pub(super) fn new(path: &Path, warmth: Warmth) -> Self {
        let missing_bytes = warmth.missing();
        let obstacle = warmth.obstacle.filter(|_| missing_bytes > 0);
        Self {
            path: path.to_string_lossy().into_owned(),
            text_bytes: warmth.text_bytes,
            huge_bytes: warmth.huge_bytes,
            rest: warmth.rest,
            reason: obstacle.as_ref().map(|obstacle| obstacle.reason),
            detail: obstacle.map(|obstacle| obstacle.detail),
            missing_bytes,
        }
    }

    fn status(&self) -> u8 {
        let told = |rest: &Rest| rest.reason == SkipReason::NotOwner;
        match (self.missing_bytes, self.huge_bytes) {
            (0, _) => exit::OK,
            (_, 0)
                if self.reason.is_some_and(|why| why == SkipReason::NotOwner)
                    || self.rest.iter().any(told) =>
            {
                exit::NOT_PERMITTED
            }
            (_, 0) => exit::FAILED,
            _ => exit::PARTIAL,
        }
    }

    fn state(&self) -> String {
        let rest: Vec<String> = self
            .rest
            .iter()
            .filter(|rest| rest.bytes == self.text_bytes || mib(rest.bytes) != "0.0")
            .map(|rest| match rest.bytes == self.text_bytes {
                true => rest.reason.to_string(),
                false => format!("{} {}", rest.reason, mib(rest.bytes)),
            })
            .collect();
        if rest.is_empty() { "-".to_owned() } else { rest.join(", ") }
    }
}

/// A file that could not be examined.
#[derive(Serialize)]
struct Failed {
    path: String,
    error: String,
    #[serde(skip)]
    status: u8,
}

/// All files.
#[derive(Serialize)]
pub(super) struct Rows {
    schema: u32,
    kind: &'static str,
    /// True if the files were only checked, not warmed.
    check: bool,
    files: Vec<Row>,
    failed: Vec<Failed>,
}

impl Rows {
    pub(super) fn new(check: bool) -> Self {
        Self { schema: SCHEMA, kind: "warm", check, files: Vec::new(), failed: Vec::new() }
    }

    pub(super) fn done(&mut self, row: Row) {
        self.files.push(row);
    }

    pub(super) fn failed(&mut self, path: &Path, error: &str, status: u8) {
        let path = path.to_string_lossy().into_owned();
        self.failed.push(Failed { path, error: error.to_owned(), status });
    }

    /// Returns the exit status of the files if they all have the same, and otherwise "partial".
    pub(super) fn status(&self) -> u8 {
        let files = self.files.iter().map(Row::status);
        let mut all = files.chain(self.failed.iter().map(|failed| failed.status));
        let first = all.next().unwrap_or(exit::OK);
        if all.all(|status| status == first) { first } else { exit::PARTIAL }
    }

    /// Returns a line for each file.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|row| {
            let (path, huge, text) = (row.path.shown(), mib(row.huge_bytes), mib(row.text_bytes));
            format!("{path}: {huge} of {text} MiB on huge pages; rest: {}\n", row.state())
        })
    }

    pub(super) fn to_json(&self) -> String {
        escape::json(self) + "\n"
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Most of a program's libraries have too little text for their own row, so one row sums them.
        let small = |row: &&Row| row.missing_bytes == 0 && row.huge_bytes == 0;
        let summed = self.files.iter().filter(small).count() > 2;
        let (small, shown): (Vec<&Row>, Vec<&Row>) =
            self.files.iter().partition(|row| summed && small(row));
        if self.files.is_empty() {
            return Ok(());
        }
        let name = |row: &Row| row.path.shown().to_string();
        let width = shown.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max(16);
        writeln!(f, "{:<width$} {:>7} {:>7} {:>4}  REST BECAUSE", "FILE", "TEXT", "HUGE", "%")?;
        let mut line = |name: &str, text: u64, huge: u64, state: &str| {
            let percent = percent(huge, text);
            writeln!(f, "{name:<width$} {:>7} {:>7} {percent:>4}  {state}", mib(text), mib(huge))
        };
        for row in shown {
            line(&name(row), row.text_bytes, row.huge_bytes, &row.state())?;
        }
        if !small.is_empty() {
            let text = small.iter().map(|row| row.text_bytes).sum();
            line(&small_files(small.len()), text, 0, SkipReason::TooSmall.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiexec_core::skip::FailureKind;

    fn row(path: &str, huge: u64, rest: &[(impl Into<Reason> + Copy, u64)]) -> Row {
        let rest: Vec<Rest> = rest
            .iter()
            .map(|&(reason, mib)| Rest { reason: reason.into(), bytes: mib << 20 })
            .collect();
        let text_bytes = (huge << 20) + rest.iter().map(|rest| rest.bytes).sum::<u64>();
        let warmth = Warmth { text_bytes, huge_bytes: huge << 20, rest, obstacle: None };
        Row::new(Path::new(path), warmth)
    }

    fn status(rows: Vec<Row>) -> u8 {
        Rows { files: rows, ..Rows::new(false) }.status()
    }

    #[test]
    fn the_status_is_that_of_all_or_partial() {
        use FailureKind::InUse;
        use SkipReason::{Edges, NotOwner, TooSmall};
        let all = || row("/a", 4, &[(Edges, 1)]);
        let none = || row("/b", 0, &[(InUse, 4)]);
        assert_eq!(status(vec![]), exit::OK);
        assert_eq!(status(vec![all(), row("/s", 0, &[(TooSmall, 1)])]), exit::OK);
        assert_eq!(status(vec![row("/p", 2, &[(InUse, 4)])]), exit::PARTIAL);
        assert_eq!(status(vec![none()]), exit::FAILED);
        assert_eq!(status(vec![all(), none()]), exit::PARTIAL);
        assert_eq!(status(vec![row("/n", 0, &[(NotOwner, 4)])]), exit::NOT_PERMITTED);
        let mut rows = Rows { files: vec![all()], ..Rows::new(true) };
        rows.failed(Path::new("/x"), "no such file", exit::FAILED);
        assert_eq!(rows.status(), exit::PARTIAL);
    }

    #[test]
    fn small_libraries_are_summed_up() {
        let mut files = vec![row("/usr/bin/node", 24, &[(SkipReason::Edges, 1)])];
        files.extend((0..3).map(|at| row(&format!("/lib/{at}"), 0, &[(SkipReason::TooSmall, 1)])));
        let table = Rows { files, ..Rows::new(false) }.to_string();
        assert_eq!(
            table,
            "FILE                TEXT    HUGE    %  REST BECAUSE\n\
             /usr/bin/node       25.0    24.0   96  edges 1.0\n\
             and 3 files with text below a huge page     3.0     0.0    0  too_small\n"
        );
    }
}
