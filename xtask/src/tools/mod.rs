//! `cargo xtask tools-test`: what debuggers, profilers and crash handlers say of a program whose text is on huge pages.
//!
//! Each [case](cases) asks one real tool about a real program, first about a plain one and then on each [`Way`]. The scripts are in
//! `xtask/tools`. `--record` makes the guide's page of the answers.

mod cases;
mod page;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use self::cases::{CASES, Case};
use crate::vm::cache::Cache;
use crate::vm::{Arch, Lacking, forbids_skips};
use crate::{covered, repository};

/// Asks debuggers, profilers and crash handlers about programs on huge pages
#[derive(Args, Debug)]
pub(crate) struct ToolsTest {
    /// Test the programs in this directory, and build none
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Make the guide's page of tools anew, of what the tools say
    #[arg(long, conflicts_with = "cases")]
    record: bool,
    /// Only cases whose names begin so (default: all)
    cases: Vec<String>,
}

/// The source of a program's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Plain,
    PageCache,
    Store,
    Memfd,
    Revert,
}

const WAYS: [Way; 5] = [Way::Plain, Way::PageCache, Way::Store, Way::Memfd, Way::Revert];

impl Way {
    /// The name for the scripts.
    fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::PageCache => "pagecache",
            Self::Store => "store",
            Self::Memfd => "memfd",
            Self::Revert => "revert",
        }
    }

    /// Returns whether the text is the file's own, so that no tool may say anything else than of a plain program.
    fn is_the_file(self) -> bool {
        matches!(self, Self::Plain | Self::PageCache | Self::Revert)
    }

    /// The moments at which a program comes onto this way.
    fn modes(self, case: &Case) -> &'static [&'static str] {
        match (self, case.attach) {
            (Self::Plain, _) | (Self::PageCache | Self::Store | Self::Memfd, false) => &["launch"],
            (Self::PageCache | Self::Store | Self::Memfd, true) => &["launch", "attach"],
            (Self::Revert, true) => &["attach"],
            (Self::Revert, false) => &[],
        }
    }
}

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    /// The lines of the script: names of functions, or other facts.
    Lines(Vec<String>),
    /// The tool or the way cannot be had, for this reason.
    Lacking(String),
    /// The case failed before the tool gave its answer.
    Failed(String),
}

/// The answers of one tool. For each way there is one for each mode.
type Answers = BTreeMap<Way, Vec<(&'static str, Said)>>;

impl ToolsTest {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
            let lacking = Lacking("only root can mount an own /run for a case".to_owned());
            if forbids_skips() {
                bail!(lacking);
            }
            println!("SKIP tools-test: {lacking}");
            return Ok(ExitCode::SUCCESS);
        }
        let programs = match &self.programs {
            Some(programs) => programs.clone(),
            None => crate::context::programs(Arch::of_this_machine())?,
        };
        let machine = Machine {
            programs: programs
                .canonicalize()
                .with_context(|| format!("cannot find {}", programs.display()))?,
            tools: repository()?.join("xtask/tools"),
            work: tempfile::Builder::new().prefix("tools-test-").tempdir_in("/var/tmp")?,
        };
        // A store only holds files that everybody may read.
        fs::set_permissions(machine.work.path(), fs::Permissions::from_mode(0o755))?;
        let covered =
            if self.record { Some(covered::to_record(&covered::BY_TOOLS)?) } else { None };
        let is_wanted = |case: &&Case| {
            self.cases.is_empty() || self.cases.iter().any(|part| case.name.starts_with(part))
        };
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        let mut rows = Vec::new();
        for case in CASES.iter().filter(is_wanted) {
            let begun = Instant::now();
            let answers = machine.ask(case)?;
            let took = begun.elapsed().as_secs_f64();
            let verdict = verdict(case, &answers);
            let figures = page::cells(case, &answers).join(" | ");
            let (word, more) = match &verdict {
                Verdict::Pass => ("PASS", String::new()),
                Verdict::Skip(reason) => ("SKIP", reason.clone()),
                Verdict::Fail(reason) => ("FAIL", format!("; {reason}")),
            };
            match verdict {
                Verdict::Pass => passed += 1,
                Verdict::Skip(_) if !forbids_skips() => skipped += 1,
                Verdict::Skip(_) | Verdict::Fail(_) => failed += 1,
            }
            let figures = if word == "SKIP" { String::new() } else { figures };
            println!("{word} {}: {figures}{more} ({took:.1} s)", case.name);
            rows.push((case, answers));
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if rows.is_empty() {
            bail!("no case has such a name");
        }
        if let Some(covered) = covered {
            page::write(&rows)?;
            if failed == 0 {
                covered::record(RECORD, &covered)?;
            }
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The record of the last run of all cases in which none failed: the sources that it tested.
const RECORD: &str = "docs/tools-test.json";

/// Checks that the recorded run tested the committed sources.
pub(crate) fn check_recorded() -> Result<String> {
    covered::check_record(RECORD, &covered::BY_TOOLS, "make tools-test")
}

/// The directories that the cases use.
struct Machine {
    programs: PathBuf,
    tools: PathBuf,
    work: tempfile::TempDir,
}

/// Runs a case: `/run` is the case's own, because TiExec has its store there, and the settings of an installed TiExec are hidden.
const IN_OWN_RUN: &str = "mount -t tmpfs -o mode=0755 tools-test /run || exit
if [ -d /etc/tiexec ]; then mount -t tmpfs -o mode=0755 tools-test /etc/tiexec || exit; fi
exec timeout --kill-after=5 300 bash \"$TOOLS/cases.sh\" \"$1\"";
/// The exit status of a script that lacks something.
const LACKING: i32 = 77;

impl Machine {
    fn ask(&self, case: &Case) -> Result<Answers> {
        let mut answers = Answers::new();
        for way in WAYS {
            let mut of_way = Vec::new();
            for mode in way.modes(case) {
                of_way.push((*mode, self.run(case, way, mode)?));
            }
            let goes_on = way != Way::Plain || matches!(of_way[..], [(_, Said::Lines(_))]);
            answers.insert(way, of_way);
            if !goes_on {
                break;
            }
        }
        Ok(answers)
    }

    fn run(&self, case: &Case, way: Way, mode: &str) -> Result<Said> {
        let shared = self.work.path().join("shared");
        fs::create_dir_all(&shared)?;
        let own = self.work.path().join(format!("{}-{}-{mode}", case.name, way.as_str()));
        fs::create_dir(&own)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", IN_OWN_RUN, "sh", case.name]);
        command.env("WAY", way.as_str()).env("MODE", mode).env("PROGRAMS", &self.programs);
        command.env("SHARED", &shared).env("TOOLS", &self.tools).env_remove("TIEXEC");
        command.env("CACHE", Cache::open()?.path());
        let output = command.current_dir(&own).stdin(Stdio::null()).output().context("unshare")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let last = || {
            let errors = text(&output.stderr);
            errors.lines().last().unwrap_or("no message").trim().to_owned()
        };
        let said = match output.status.code() {
            Some(0) => Said::Lines(text(&output.stdout).lines().map(str::to_owned).collect()),
            Some(LACKING) => Said::Lacking(last()),
            Some(124 | 137) => Said::Failed("took longer than 300 s".to_owned()),
            _ => Said::Failed(last()),
        };
        remove(&own)?;
        Ok(said)
    }
}

fn remove(directory: &Path) -> Result<()> {
    fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))
}

/// The end of a case.
enum Verdict {
    Pass,
    Skip(String),
    Fail(String),
}

fn verdict(case: &Case, answers: &Answers) -> Verdict {
    let plain = match answers.get(&Way::Plain).and_then(|said| said.first()) {
        Some((_, Said::Lines(lines))) if lines.is_empty() => {
            return Verdict::Fail("plain: the tool says nothing".to_owned());
        }
        Some((_, Said::Lines(lines))) => lines,
        Some((_, Said::Lacking(reason))) => return Verdict::Skip(reason.clone()),
        Some((_, Said::Failed(reason))) => return Verdict::Fail(format!("plain: {reason}")),
        None => return Verdict::Fail("plain: not run".to_owned()),
    };
    let mut faults = Vec::new();
    for (way, of_way) in answers {
        for (mode, said) in of_way {
            let fault = match said {
                Said::Lines(lines) if lines == plain => continue,
                Said::Lines(_) if way.is_the_file() => "differs from plain".to_owned(),
                Said::Lines(_) if case.why.is_empty() => "differs without a reason".to_owned(),
                Said::Failed(reason) => reason.clone(),
                Said::Lines(_) | Said::Lacking(_) => continue,
            };
            faults.push(format!("{} {mode}: {fault}", way.as_str()));
        }
    }
    if faults.is_empty() { Verdict::Pass } else { Verdict::Fail(faults.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(of: &[(Way, &[&str])]) -> Answers {
        let lines =
            |lines: &[&str]| Said::Lines(lines.iter().map(|line| (*line).to_owned()).collect());
        of.iter().map(|(way, said)| (*way, vec![("launch", lines(said))])).collect()
    }

    #[test]
    fn only_a_copy_with_a_reason_may_differ() {
        let mut case = CASES[0];
        let differs = |case: &Case, way| {
            let answers = answers(&[(Way::Plain, &["a", "b"]), (way, &["a"])]);
            matches!(verdict(case, &answers), Verdict::Fail(_))
        };
        case.why = "because";
        assert!(differs(&case, Way::PageCache) && differs(&case, Way::Revert));
        assert!(!differs(&case, Way::Store) && !differs(&case, Way::Memfd));
        case.why = "";
        assert!(differs(&case, Way::Store) && differs(&case, Way::Memfd));
        assert!(matches!(verdict(&case, &answers(&[(Way::Plain, &[])])), Verdict::Fail(_)));
    }

    #[test]
    fn each_case_has_its_script() {
        let script = repository().unwrap().join("xtask/tools/cases.sh");
        let script = fs::read_to_string(script).unwrap();
        for case in CASES {
            assert!(script.contains(&format!("\n{}() {{\n", case.name)), "{}", case.name);
        }
    }
}
