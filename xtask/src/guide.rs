//! Generates the page of reasons in the guide, and the lists of reasons in tiexec(1), from the list in the code
//! (`crates/core/src/skip.rs`).

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tiexec_core::skip::Reason;

use crate::repository;

/// Returns the reasons in the order of their names, either the failures or the others.
fn reasons(failures: bool) -> Vec<Reason> {
    let mut reasons: Vec<Reason> =
        Reason::all().filter(|reason| reason.is_failure() == failures).collect();
    reasons.sort_by_key(|reason| reason.as_str());
    reasons
}

/// The page of the guide.
pub(crate) fn page() -> Result<PathBuf> {
    Ok(repository()?.join("docs/guide/src/reasons.md"))
}

/// Writes the page of the guide.
pub(crate) fn write() -> Result<()> {
    let page = page()?;
    fs::write(&page, text()).with_context(|| format!("cannot write {}", page.display()))
}

/// Returns the page of the guide.
pub(crate) fn text() -> String {
    let mut text = String::from(
        "# Reasons\n\n\
         <!-- Made by `cargo xtask guide` from crates/core/src/skip.rs. Do not edit. -->\n\n\
         A reason says why text is on base pages. Messages, tables, JSON and metrics use the same words. A word never changes its\n\
         meaning. `FILE` in a fix is the file that the message names.\n",
    );
    for (failures, title, introduction) in [
        (
            true,
            "Something was in the way",
            "`tiexec` prints one line with such a reason, and the text in question stays on base pages. A few reasons are shown\n\
             only by `tiexec --report`; their entries say so. With `--strict` `tiexec` refuses to start. Where no fix is\n\
             named, we know none that always helps.",
        ),
        (
            false,
            "Normal cases",
            "These are not errors. Tables show them under `REST BECAUSE`, and `tiexec -v` prints them.",
        ),
    ] {
        let _infallible = write!(text, "\n## {title}\n\n{introduction}\n");
        for reason in reasons(failures) {
            let meaning = reason.meaning().trim();
            let _infallible = write!(text, "\n### {reason}\n\n{meaning}\n");
            if let Some(fix) = reason.fix() {
                let _infallible = write!(text, "\n**Fix:** {}\n", shown(fix));
            }
        }
    }
    text
}

/// Returns a fix. A fix that begins with a command has that command as code, up to the first comma or parenthesis.
fn shown(fix: &str) -> String {
    if !fix.starts_with("tiexecctl ") && !fix.starts_with("mount ") {
        return format!("{fix}.");
    }
    let (command, rest) = fix.split_at(fix.find([',', '(']).unwrap_or(fix.len()));
    format!("`{}`{rest}.", command.trim_end())
}

/// Returns the reasons for a manual page.
pub(crate) fn manual(failures: bool) -> String {
    let mut text = String::new();
    for reason in reasons(failures) {
        let _infallible = write!(text, ".TP\n.B {reason}\n{}\n", roff(reason.meaning().trim()));
        if let Some(fix) = reason.fix() {
            let _infallible = writeln!(text, "Fix: {}.", roff(fix));
        }
    }
    text
}

/// Formats sentences for a manual page: code in bold, hyphens that can be copied, and each sentence on its own line.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace(". ", ".\n");
    let mut bold = false;
    text.chars().fold(String::new(), |mut page, letter| {
        if letter == '`' {
            bold = !bold;
            page.push_str(if bold { "\\fB" } else { "\\fR" });
        } else {
            page.push(letter);
        }
        page
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_page_is_what_the_code_says() {
        let page = fs::read_to_string(page().unwrap()).unwrap();
        assert!(page == text(), "fix: cargo xtask guide");
    }

    /// Fails if the script finds that a page is not what it would make.
    fn check(script: &str, args: &[&str]) {
        let script = repository().unwrap().join(script);
        let checked = Command::new(script).args(args).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }

    #[test]
    fn who_gains_is_what_the_traces_say() {
        check("bench/atlas", &["page", "--check", "git"]);
    }

    #[test]
    fn the_results_are_what_was_measured() {
        check("bench/run", &["--check"]);
    }

    #[test]
    fn a_claim_needs_every_run() {
        let bench = repository().unwrap().join("bench");
        let run = "import doctest, sys; from lib import claims; tests = doctest.testmod(claims); \
                   sys.exit(tests.failed or not tests.attempted)";
        let checked =
            Command::new("python3").args(["-B", "-c", run]).current_dir(bench).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }

    #[test]
    fn what_the_kernel_does_is_what_was_measured() {
        check("bench/kernel", &["page", "--check"]);
    }

    #[test]
    fn every_reason_is_in_both() {
        let (page, manual) = (text(), manual(true) + &manual(false));
        for reason in Reason::all() {
            assert!(page.contains(&format!("\n### {reason}\n")), "{reason}");
            assert!(manual.contains(&format!("\n.B {reason}\n")), "{reason}");
        }
        assert!(!manual.contains('`'), "{manual}");
    }
}
