//! The reports for people and for programs: one value, printed as a table or as JSON.

use std::fmt;

use serde::Serialize;

use crate::addr::{AddrRange, mib, short};
use crate::area::SmapsFor;
use crate::budget::Choice;
use crate::coverage::{
    ByBacking, FileCoverage, apart_from_small, backings_in_words, by_backing, cost_in_words,
    small_files,
};
use crate::escape::{self, AsShown};
use crate::numa;
use crate::order;
use crate::plan::{Backing, Span};
use crate::skip::Reason;

/// The version of the JSON form. A new field does not change it; a new meaning of a field increases it.
pub const SCHEMA: u32 = 2;

/// The subject of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A launch, at the program's first instruction.
    Launch,
    /// A running process whose text was put onto huge pages.
    Attach,
    /// A running process that was only examined.
    Inspect,
}

/// How a launch went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All planned text is PMD-mapped.
    Switched,
    /// Some of the planned text is PMD-mapped.
    Partial,
    /// No planned text is PMD-mapped.
    Skipped,
}

impl Outcome {
    /// Returns the outcome where `huge` bytes of the `planned` ones are PMD-mapped.
    pub const fn of(huge: u64, planned: u64) -> Self {
        match huge {
            0 => Self::Skipped,
            _ if huge < planned => Self::Partial,
            _ => Self::Switched,
        }
    }
}

/// The cost of a launch or of an attach, counted by the process that did the work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cost {
    /// The backing of most of what was planned.
    pub backing: Option<Backing>,
    /// The thread that an attach stopped; the other threads ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// Microseconds for which that thread stood, or for which a launch held the program before its first instruction.
    pub stop_us: u64,
    /// The second stop of a launch.
    #[serde(flatten)]
    pub linked: Option<LinkedStop>,
    /// System calls that the process made for TiExec, those on its way home included.
    pub remote_syscalls: u32,
    /// Bytes copied from files into images.
    pub bytes_copied: u64,
    /// Whether a launch moved the program to where its text is congruent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebased: Option<bool>,
    /// Why something was done in a worse way than could be.
    pub setback: Option<String>,
    /// Whether the thread that an attach stopped may have seen that a system call of its own was interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<bool>,
    /// The parts that were planned to be huge.
    pub spans: Vec<Span>,
}

/// The stop of a launched program after `ld.so` was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LinkedStop {
    /// Microseconds for which the program was held; `None` if it was not held then.
    pub linked_stop_us: Option<u64>,
}

/// An area of code that a process makes itself: anonymous executable memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct JitArea {
    /// Its addresses.
    #[serde(flatten)]
    pub range: AddrRange,
    /// Bytes of the huge pages of it that are populated to at least a half.
    pub populated_bytes: u64,
    /// Bytes of it that are huge, as the kernel says.
    pub huge_bytes: u64,
    /// Bytes of it that were not huge before.
    pub made_bytes: u64,
    /// The kernel's first refusal.
    pub refused: Option<String>,
    /// The huge pages of it that are populated to at least a half.
    #[serde(skip)]
    pub populated: Vec<AddrRange>,
}

impl JitArea {
    /// Returns how many bytes of the areas are huge, and how many are populated; `None` if there are no areas.
    pub fn sums(areas: &[Self]) -> Option<(u64, u64)> {
        let sum = |bytes: fn(&Self) -> u64| areas.iter().map(bytes).sum();
        let sums = (sum(|area| area.huge_bytes), sum(|area| area.populated_bytes));
        (!areas.is_empty()).then_some(sums)
    }
}

/// A start by `tiexec` that would put more of the program's own text on huge pages than is possible where the text
/// lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Restart {
    /// The program, as maps shows it, lossy UTF-8.
    pub path: String,
    /// Bytes of its text.
    pub text_bytes: u64,
    /// Bytes of it that are huge, or can be where it lies.
    pub here_bytes: u64,
    /// Bytes of it that a launch puts on huge pages.
    pub launch_bytes: u64,
    /// The command of that launch, without the program: `tiexec`, or `tiexec --backing=image --edges=pad`.
    pub command: String,
}

/// One process's text and what it is made of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The subject of this report.
    pub kind: Kind,
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub comm: String,
    /// Its systemd unit, where it has one.
    pub unit: Option<String>,
    /// How the launch went; for `inspect`, what the kernel shows.
    pub outcome: Outcome,
    /// Why text that could be huge is not.
    pub reason: Option<Reason>,
    /// The detail of `reason`, in words.
    pub detail: Option<String>,
    /// Bytes of text, of all files.
    pub text_bytes: u64,
    /// Bytes of it that are PMD-mapped or in hugetlb pages.
    pub huge_bytes: u64,
    /// Bytes that are not text, but became executable because they share a huge page with text.
    pub widened_bytes: u64,
    /// The huge text of each backing, and the memory that its copies take.
    pub by_backing: ByBacking,
    /// Each file.
    pub files: Vec<FileCoverage>,
    /// The cost of the launch.
    pub launch: Option<Cost>,
    /// The cost of the attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<Cost>,
    /// The huge pages that a budget took, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Choice>,
    /// Code that the process makes itself, if there is any; after an attach, only if it was selected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jit: Vec<JitArea>,
    /// The huge text after a start by `tiexec`, if that would be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// True if the host of this machine splits huge pages, so that huge text gains little; `None` if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_splits: Option<bool>,
    /// Why TiExec read smaps, if it did. Reading smaps keeps a process from mapping memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaps_for: Option<SmapsFor>,
}

impl Report {
    /// Makes the report of a process from its files' coverage; the outcome is what the coverage shows.
    pub fn new(kind: Kind, pid: u32, comm: String, files: Vec<FileCoverage>) -> Self {
        let huge_bytes = files.iter().map(|file| file.huge_bytes).sum();
        Self {
            schema: SCHEMA,
            kind,
            pid,
            comm,
            unit: None,
            outcome: if huge_bytes > 0 { Outcome::Switched } else { Outcome::Skipped },
            reason: None,
            detail: None,
            text_bytes: files.iter().map(|file| file.text_bytes).sum(),
            huge_bytes,
            widened_bytes: files.iter().map(|file| file.widened_bytes).sum(),
            by_backing: by_backing(&files),
            files,
            launch: None,
            attach: None,
            budget: None,
            jit: Vec::new(),
            restart: None,
            host_splits: None,
            smaps_for: None,
        }
    }

    /// Returns the report as one line of JSON.
    ///
    /// # Panics
    /// Never: a report holds nothing that JSON cannot.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            #[serde(flatten)]
            report: &'a Report,
            perf: Option<&'static str>,
            uprobes: Option<&'static str>,
            maps: Option<&'static str>,
        }
        let (perf, uprobes, maps) = (self.perf(), self.uprobes(), self.maps());
        escape::json(&Json { report: self, perf, uprobes, maps })
    }

    /// Returns whether a file has huge text by this backing.
    fn uses(&self, backing: Backing) -> bool {
        self.by_backing.contains_key(&backing)
    }
}

/// Returns `part` of `whole` in percent, rounded down, so that 100 means all of it.
pub fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        0
    } else {
        u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(100)
    }
}

/// Files with less text than this share of all text are summed up in one line of the table.
const SMALL_SHARE_PERCENT: u64 = 2;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.to_string();
        self.write(f, &pid, &pid)
    }
}

/// A report about several processes that are all alike.
#[derive(Debug)]
pub struct OfFamily<'a> {
    /// The report of one of them.
    pub report: &'a Report,
    /// Stands in the place of the PID.
    pub who: &'a str,
    /// The arguments of `tiexecctl revert` for all of them.
    pub undo: &'a str,
}

impl fmt::Display for OfFamily<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.write(f, self.who, self.undo)
    }
}

impl Report {
    fn write(&self, f: &mut fmt::Formatter<'_>, who: &str, undo: &str) -> fmt::Result {
        write!(f, "{} {who}", self.comm.shown())?;
        if let Some(unit) = &self.unit {
            write!(f, "  {}", unit.shown())?;
        }
        writeln!(
            f,
            "   text {} MiB   huge {} MiB ({} %)",
            mib(self.text_bytes),
            mib(self.huge_bytes),
            percent(self.huge_bytes, self.text_bytes)
        )?;
        let (others, small) = apart_from_small(&self.files);
        let (shown, rest): (Vec<&FileCoverage>, Vec<&FileCoverage>) =
            others.into_iter().partition(|file| {
                file.huge_bytes > 0
                    || file.is_small()
                    || percent(file.text_bytes, self.text_bytes) >= SMALL_SHARE_PERCENT
            });
        let name = |file: &FileCoverage| {
            format!("{}{}", file.path.shown(), if file.deleted { " (deleted)" } else { "" })
        };
        let mut rows: Vec<(String, Vec<FileCoverage>)> =
            shown.into_iter().map(|file| (name(file), vec![file.clone()])).collect();
        if !rest.is_empty() {
            rows.push((format!("({} more)", rest.len()), rest.into_iter().cloned().collect()));
        }
        if !small.is_empty() {
            rows.push((small_files(small.len()), small.into_iter().cloned().collect()));
        }
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(16);
        writeln!(
            f,
            "{:<width$} {:>7} {:>7} {:>4}  BACKING    REST BECAUSE",
            "FILE", "TEXT", "HUGE", "%"
        )?;
        for (name, files) in &rows {
            line(f, width, name, files)?;
        }
        if let Some((huge, populated)) = JitArea::sums(&self.jit) {
            let (huge, populated, percent) = (mib(huge), mib(populated), percent(huge, populated));
            let s = if self.jit.len() == 1 { "" } else { "s" };
            let areas = self.jit.len();
            writeln!(f, "jit   huge {huge} of {populated} MiB ({percent} %) in {areas} area{s}")?;
        }
        if let Some(Restart { path, text_bytes, here_bytes, launch_bytes, command }) = &self.restart
        {
            let [here, text, launch] = [here_bytes, text_bytes, launch_bytes].map(|&sum| mib(sum));
            let path = path.shown();
            writeln!(
                f,
                "start {here} of {text} MiB of {path} can be huge where it lies; a start by {command} gives {launch}"
            )?;
        }
        if let Some(reason) = self.reason {
            write!(f, "why   {reason}")?;
            match &self.detail {
                Some(detail) => writeln!(f, ": {detail}")?,
                None => writeln!(f)?,
            }
        }
        if let Some(choice) = &self.budget {
            writeln!(f, "budget {}: {choice}", choice.budget)?;
        }
        self.nodes(f)?;
        self.costs(f, undo)?;
        if let Some(why) = self.smaps_for {
            writeln!(
                f,
                "note  smaps was read to tell {why}; meanwhile the process could map no memory, for 20 ms per GiB \
                 that it has"
            )?;
        }
        Ok(())
    }

    /// Returns whether `perf record` of this process works for the huge text, in words; `None` if no text is
    /// huge, or if the huge text is private memory of the program.
    fn perf(&self) -> Option<&'static str> {
        if self.uses(Backing::Image) || self.uses(Backing::Hugetlb) {
            Some("only if recording began before")
        } else if self.uses(Backing::Store) || self.uses(Backing::Pagecache) {
            Some("ok")
        } else {
            None
        }
    }

    /// Returns what happens to uprobes in the huge text: they belong to the file.
    fn uprobes(&self) -> Option<&'static str> {
        self.perf()?;
        Some(if self.copied_bytes() > 0 { "lost" } else { "ok" })
    }

    /// Returns what readers of this process's maps, itself included, find for the huge text: a copy has its own name
    /// and offsets.
    fn maps(&self) -> Option<&'static str> {
        self.perf()?;
        Some(if self.copied_bytes() > 0 { "show the copy" } else { "ok" })
    }

    /// Says on which NUMA nodes the text lies, unless all of it lies on the first node, as on a machine with one.
    fn nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = numa::sum(self.files.iter().flat_map(|file| file.nodes.iter().copied()));
        if nodes.iter().all(|on| on.node == 0) {
            return Ok(());
        }
        let nodes = nodes.iter().map(|on| format!("N{} {} MiB", on.node, mib(on.bytes)));
        writeln!(f, "nodes {}", nodes.collect::<Vec<_>>().join("   "))
    }

    fn copied_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.copied_bytes).sum()
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>, undo: &str) -> fmt::Result {
        if self.huge_bytes == 0 && self.launch.is_none() {
            return Ok(());
        }
        if let Some(words) =
            backings_in_words(&self.by_backing).filter(|_| self.by_backing.len() > 1)
        {
            writeln!(f, "by    {words}")?;
        }
        let mut parts = vec![format!("cost  {}", cost_in_words(&self.by_backing))];
        let copied = self.copied_bytes();
        if self.widened_bytes > 0 {
            parts.push(format!("widened {} MiB", mib(self.widened_bytes)));
        }
        if let Some(launch) = &self.launch {
            parts.push(format!(
                "stop {}.{:02} ms",
                launch.stop_us / 1000,
                launch.stop_us % 1000 / 10
            ));
            if let Some(us) = launch.linked.and_then(|linked| linked.linked_stop_us) {
                parts.push(format!("entry stop {}.{:02} ms", us / 1000, us % 1000 / 10));
            }
            parts.push(format!("{} remote syscalls", launch.remote_syscalls));
        }
        parts.extend(self.perf().map(|perf| format!("perf {perf}")));
        parts.extend(self.uprobes().map(|uprobes| format!("uprobes {uprobes}")));
        parts.extend(self.maps().map(|maps| format!("maps {maps}")));
        if copied > 0 {
            parts.push(format!("undo: tiexecctl revert {undo}"));
        }
        writeln!(f, "{}", parts.join("   "))
    }
}

/// Writes one line of the table for `files` together.
fn line(
    f: &mut fmt::Formatter<'_>,
    width: usize,
    name: &str,
    files: &[FileCoverage],
) -> fmt::Result {
    let text: u64 = files.iter().map(|file| file.text_bytes).sum();
    let huge: u64 = files.iter().map(|file| file.huge_bytes).sum();
    let mut backings: Vec<String> = by_backing(files).keys().map(ToString::to_string).collect();
    // Sizes of the pool's pages that are not the usual huge page.
    let mut sizes: Vec<u64> = files
        .iter()
        .flat_map(|file| &file.sizes)
        .filter(|of| !of.pmd_mapped)
        .map(|of| of.page_size)
        .collect();
    order::by(&mut sizes, Ord::cmp);
    sizes.dedup();
    if let Some(pool) = backings.iter_mut().find(|name| **name == Backing::Hugetlb.to_string()) {
        sizes.iter().for_each(|&size| pool.push_str(&format!(" {}", short(size))));
    }
    let mut rest: Vec<(Reason, u64)> = Vec::new();
    for part in files.iter().flat_map(|file| &file.rest) {
        match rest.iter_mut().find(|(reason, _)| *reason == part.reason) {
            Some((_, bytes)) => *bytes += part.bytes,
            None => rest.push((part.reason, part.bytes)),
        }
    }
    // A figure that would be printed as 0.0 is left out: the other figures of the line imply it.
    rest.retain(|&(_, bytes)| bytes == text || mib(bytes) != "0.0");
    let rest: Vec<String> = match &rest[..] {
        [] => vec!["-".to_owned()],
        // A file that is wholly on base pages for one reason needs no figure.
        [(reason, bytes)] if *bytes == text => vec![reason.to_string()],
        several => {
            several.iter().map(|(reason, bytes)| format!("{reason} {}", mib(*bytes))).collect()
        }
    };
    writeln!(
        f,
        "{name:<width$} {:>7} {:>7} {:>4}  {:<9}  {}",
        mib(text),
        mib(huge),
        percent(huge, text),
        if backings.is_empty() { "-".to_owned() } else { backings.join("+") },
        rest.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::coverage::{OfBacking, Rest};
    use crate::skip::SkipReason;

    fn file(path: &str, text_bytes: u64, huge_bytes: u64) -> FileCoverage {
        let rest =
            vec![Rest { reason: SkipReason::TooSmall.into(), bytes: text_bytes - huge_bytes }];
        let image = (Backing::Image, OfBacking { huge_bytes, cost_bytes: huge_bytes });
        let by_backing = if huge_bytes > 0 { [image].into() } else { BTreeMap::new() };
        FileCoverage {
            path: path.to_owned(),
            deleted: false,
            text_bytes,
            huge_bytes,
            copied_bytes: huge_bytes,
            cost_bytes: huge_bytes,
            copies: BTreeMap::new(),
            widened_bytes: 0,
            by_backing,
            sizes: Vec::new(),
            nodes: Vec::new(),
            rest,
        }
    }

    #[test]
    fn a_percentage_is_100_only_where_nothing_is_missing() {
        assert_eq!(percent(0, 0), 0);
        assert_eq!(percent(999_999, 1_000_000), 99);
        assert_eq!(percent(7, 7), 100);
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
        assert_eq!(percent(u64::MAX - 1, u64::MAX), 99);
    }

    #[test]
    fn a_report_adds_its_files_up() {
        let files = vec![file("/a", 10 << 20, 8 << 20), file("/b", 1 << 20, 0)];
        let report = Report::new(Kind::Inspect, 1, "init".to_owned(), files);
        assert_eq!((report.text_bytes, report.huge_bytes), (11 << 20, 8 << 20));
        assert_eq!(report.outcome, Outcome::Switched);
        let none = Report::new(Kind::Inspect, 1, "init".to_owned(), vec![file("/b", 1 << 20, 0)]);
        assert_eq!(none.outcome, Outcome::Skipped);
    }

    #[test]
    fn a_small_file_has_a_line_of_its_own_once_it_is_huge() {
        let files = vec![file("/big", 1 << 30, 0), file("/small", 2 << 20, 0)];
        let table = |files: Vec<FileCoverage>| {
            Report::new(Kind::Inspect, 1, "p".to_owned(), files).to_string()
        };
        let all = table(files);
        assert!(!all.contains("/small") && all.contains("/big"), "{all}");
        assert!(all.contains("and 1 file with text below a huge page"), "{all}");
        let huge = table(vec![file("/big", 1 << 30, 0), file("/small", 2 << 20, 2 << 20)]);
        assert!(huge.contains("/small") && !huge.contains("/big"), "{huge}");
        assert!(huge.contains("and 1 file with text below"), "{huge}");
        // A file that could be huge and is not has its own reason, and is summed up only with files of the same reason.
        let reason = SkipReason::BasePages.into();
        let rest = |bytes| vec![Rest { reason, bytes }];
        let could = |path: &str, bytes| FileCoverage { rest: rest(bytes), ..file(path, bytes, 0) };
        let some = table(vec![could("/big", 1 << 30), could("/some", 2 << 20), file("/x", 99, 0)]);
        for part in ["/big", "(1 more)", "base_pages", "and 1 file with text below a huge page"] {
            assert!(some.contains(part), "{part}: {some}");
        }
    }

    #[test]
    fn json_is_one_line_whatever_the_names_hold() {
        let mut report =
            Report::new(Kind::Launch, 1, "a\n\"b\"".to_owned(), vec![file("/x\ny", 4096, 0)]);
        report.detail = Some("two\nlines".to_owned());
        let json = report.to_json();
        assert!(!json.contains('\n'), "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["comm"], "a\n\"b\"");
        assert_eq!(value["files"][0]["path"], "/x\ny");
        assert_eq!(value["detail"], "two\nlines");
    }
}
