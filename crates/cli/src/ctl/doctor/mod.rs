//! `tiexecctl doctor [PID]`: reports what TiExec can do on this machine, or with one process.
//!
//! Findings come from tests: `doctor` collapses a memfd, seizes a child, and times jumps. No finding ever recommends to
//! change THP for the whole machine.

mod machine;
mod target;

use std::borrow::Cow;
use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::targets::{looked_at, targets, together};
use super::{print, print_styled};
use crate::exit;
use crate::options::Targets;
use tiexec_core::escape;
use tiexec_engine::locked_target::LOOKING;
use tiexec_sys::Pid;
use tiexec_sys::with_symbols;

/// The level of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Works.
    Ok,
    /// This machine or process does not have it; nothing is broken.
    No,
    /// Somebody switched it off.
    Off,
    /// Works, but the line names a drawback.
    Warn,
    /// Prevents work of TiExec.
    Fail,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::No => "no",
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

impl Level {
    const fn style(self) -> Style {
        match self {
            Self::Ok => AnsiColor::Green.on_default(),
            Self::No | Self::Off => Style::new().dimmed(),
            Self::Warn => AnsiColor::Yellow.on_default(),
            Self::Fail => AnsiColor::Red.on_default().bold(),
        }
    }
}

/// One line of the output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    level: Level,
    thing: &'static str,
    finding: String,
    /// A command, or a setting to change.
    fix: Option<String>,
}

impl Finding {
    fn new(level: Level, thing: &'static str, finding: impl fmt::Display) -> Self {
        Self { level, thing, finding: with_symbols(&finding.to_string()), fix: None }
    }

    fn fix(self, fix: impl fmt::Display) -> Self {
        Self { fix: Some(fix.to_string()), ..self }
    }
}

pub(super) fn run(selected: &Targets, measure: bool, json: bool) -> u8 {
    if selected.is_empty() {
        return tell(None, &machine::examine(measure), json);
    }
    let pids = match targets(selected) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let one = |pid: Pid| {
        let pid = pid.as_raw_nonzero().get();
        looked_at("examine", pid, LOOKING, || examine(pid, json))
    };
    together(pids.into_iter().map(one).collect(), selected)
}

fn examine(pid: i32, json: bool) -> u8 {
    target::examine(pid).map_or_else(|status| status, |findings| tell(Some(pid), &findings, json))
}

fn tell(pid: Option<i32>, findings: &[Finding], json: bool) -> u8 {
    let status = match json {
        true => print(&as_json(pid, findings)),
        false => print_styled(&as_text(findings), coloured),
    };
    let failed = findings.iter().any(|finding| finding.level == Level::Fail);
    if status == exit::OK && failed { exit::FAILED } else { status }
}

fn as_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.thing.len()).max().unwrap_or(0);
    findings.iter().fold(String::new(), |mut text, Finding { level, thing, finding, fix }| {
        let fix = fix.as_ref().map_or(String::new(), |fix| format!("; fix: {fix}"));
        let _infallible = writeln!(text, "{:<5} {thing:<width$}  {finding}{fix}", level.as_str());
        text
    })
}

/// Colours the level at the beginning of a line.
fn coloured(line: &str) -> Cow<'_, str> {
    let level = [Level::Ok, Level::No, Level::Off, Level::Warn, Level::Fail]
        .into_iter()
        .find(|level| line.strip_prefix(level.as_str()).is_some_and(|rest| rest.starts_with(' ')));
    let Some(level) = level else { return line.into() };
    let (style, word) = (level.style(), level.as_str());
    format!("{style}{word}{style:#}{}", &line[word.len()..]).into()
}

fn as_json(pid: Option<i32>, findings: &[Finding]) -> String {
    #[derive(Serialize)]
    struct Json<'a> {
        schema: u32,
        kind: &'static str,
        pid: Option<i32>,
        findings: &'a [Finding],
    }
    let json = Json { schema: tiexec_core::report::SCHEMA, kind: "doctor", pid, findings };
    escape::json(&json) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_has_its_colour() {
        assert_eq!(coloured("ok    image\n"), "\x1b[32mok\x1b[0m    image\n");
        assert_eq!(coloured("FAIL  ptrace\n"), "\x1b[1m\x1b[31mFAIL\x1b[0m  ptrace\n");
        for other in ["    nobody traces it", "nobody", ""] {
            assert_eq!(coloured(other), other);
        }
    }

    #[test]
    fn lines_are_aligned_and_end_in_the_fix() {
        let text = as_text(&[
            Finding::new(Level::Ok, "image", "a memfd is PMD-mapped"),
            Finding::new(Level::Fail, "ptrace", "denied").fix("sysctl kernel.yama.ptrace_scope=1"),
        ]);
        assert_eq!(
            text,
            "ok    image   a memfd is PMD-mapped\n\
             FAIL  ptrace  denied; fix: sysctl kernel.yama.ptrace_scope=1\n"
        );
    }
}
