//! The blocks of one page, one after the other in one machine: a systemd of its own, whose programs are the machine's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::systemd::Systemd;
use support::{Fresh, Run, files, install, installed, tiexecctl};

use crate::form::{difference, replaced};
use crate::page::{Block, Mark, Page, Step};

/// The end of a block.
pub(crate) enum Outcome {
    Pass,
    /// The page says that the block cannot run, with the reason.
    Skip(String),
    /// This machine lacks something.
    Lacking(String),
    /// With what was seen.
    Fail(String),
}

/// The functions that the marks name.
const STAND_INS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/docs/stand_ins.sh");
/// Their place in the session.
const INSIDE: &str = "/opt/stand_ins.sh";
/// The exit status of a stand-in that lacks something.
const LACKING: i32 = 77;
/// The script of a block has these letters before the output of each command, and between the output and the status.
const BEGIN: char = '\u{1e}';
const END: char = '\u{1f}';

/// Finds a file; `None` if this machine does not have it.
type Find = fn() -> Option<PathBuf>;

/// Programs of this machine whose text a page shows, and the words of a page that uses them. Such a page gets private copies in small
/// folios: the page cache may hold the machine's own files in any state, and no other process may see a warmed one.
const PRIVATE: [(&str, Find); 5] = [
    ("prometheus", || installed("prometheus")),
    ("node", || installed("node")),
    ("mariadb", || installed("mariadbd")),
    ("postgres", || installed("postgres")),
    ("java", || {
        Some(
            installed("java")?
                .canonicalize()
                .ok()?
                .parent()?
                .parent()?
                .join("lib/server/libjvm.so"),
        )
    }),
];

/// A page's systemd. Drop ends it with all processes.
struct Session {
    systemd: Systemd,
    /// The words of the page that stand for something else, and what they stand for.
    words: Vec<(String, String)>,
    _private: Vec<Fresh>,
    _own: tempfile::TempDir,
}

/// Runs the blocks of a page.
pub(crate) fn run(page: &Page) -> Vec<(&Block, Outcome)> {
    let mut session = None;
    let outcomes = page.blocks.iter().map(|block| {
        if let Some(why) = block.marks.iter().find_map(skipped) {
            return (block, Outcome::Skip(why.to_owned()));
        }
        let session = session.get_or_insert_with(|| Session::begin(page));
        (block, session.block(block).err().unwrap_or(Outcome::Pass))
    });
    outcomes.collect()
}

fn skipped(mark: &Mark) -> Option<&str> {
    match mark {
        Mark::Skip(why) => Some(why),
        _ => None,
    }
}

impl Session {
    fn begin(page: &Page) -> Session {
        let has = |block: &Block, word: &str| {
            block.text.contains(word) || format!("{:?}", block.marks).contains(word)
        };
        let uses = |word: &str| page.blocks.iter().any(|block| has(block, word));
        let wanted = PRIVATE.iter().filter(|(word, _)| uses(word));
        let found = wanted.filter_map(|(_, file)| file()?.canonicalize().ok());
        let mut private: Vec<(Fresh, PathBuf)> =
            found.map(|file| (Fresh::small(&file), file)).collect();
        if uses("warm") {
            // No process may have a file mapped that a command warms.
            private.iter_mut().for_each(|(copy, _)| copy.let_go());
        }
        // The pages' commands write to a disk, as on a usual machine.
        let own = tempfile::tempdir_in(files().canonicalize().expect("it is there"))
            .expect("a directory");
        let mut over: Vec<(PathBuf, PathBuf)> =
            private.iter().map(|(copy, file)| (copy.path().to_owned(), file.clone())).collect();
        for (name, mode) in [("root", 0o755), ("tmp", 0o1777)] {
            let directory = own.path().join(name);
            fs::create_dir(&directory).expect("a new directory");
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).expect("chmod");
            over.push((directory, Path::new("/").join(name)));
        }
        fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let programs = std::env::var_os("TIEXEC_TEST_PROGRAMS").map(PathBuf::from);
        let programs = programs.unwrap_or_else(|| tiexecctl().with_file_name(""));
        let systemd = Systemd::boot_over(&programs, &over);
        install(Path::new(STAND_INS), &systemd.path(INSIDE), 0o644);
        let unit = crate::repository().join("systemd/tiexecd.service");
        install(&unit, &systemd.path("/opt/tiexecd.service"), 0o644);
        let private = private.into_iter().map(|(copy, _)| copy).collect();
        Session { systemd, words: Vec::new(), _private: private, _own: own }
    }

    fn shell(&self, script: &str) -> Run {
        let script = format!(". {INSIDE}\n{script}");
        let run = self.systemd.command(["bash", "-c", &script]);
        run.env("HOME", "/root").limit(900)
    }

    /// Prepares and runs a block. `Err` has the outcome of a block that does not pass.
    fn block(&mut self, block: &Block) -> Result<(), Outcome> {
        for mark in &block.marks {
            match mark {
                Mark::With(command) => {
                    self.prepare(command)?;
                }
                Mark::Stands(word, command) => {
                    let value = self.prepare(command)?;
                    self.words.retain(|(known, _)| known != word);
                    self.words.push((word.clone(), value));
                }
                Mark::File(path) => {
                    let at = self.systemd.path(path);
                    fs::create_dir_all(at.parent().expect("a file")).expect("a directory inside");
                    fs::write(at, &block.text).expect("a file inside");
                }
                Mark::Skip(_) | Mark::Status(_) => {}
            }
        }
        if block.steps.is_empty() {
            return Ok(());
        }
        let commands: Vec<_> = block.steps.iter().map(|step| self.meant(&step.command)).collect();
        let calls = commands.iter().map(|command| format!("step {}\n", quoted(&quiet(command))));
        let done = self.shell(&calls.collect::<String>()).output();
        let out = done.out();
        let said: Vec<_> = out.split(BEGIN).skip(1).collect();
        for (at, step) in block.steps.iter().enumerate() {
            let Some((output, status)) = said.get(at).and_then(|said| said.rsplit_once(END)) else {
                return Err(Outcome::Fail(format!("line {}: the shell ended: {done}", step.line)));
            };
            let also = |mark: &Mark| *mark == Mark::Status(status.trim().to_owned());
            let status = if block.marks.iter().any(also) { "0" } else { status.trim() };
            check(step, output, status, block.has_output).map_err(Outcome::Fail)?;
        }
        Ok(())
    }

    /// Runs a command of a mark, and returns what it prints.
    fn prepare(&self, command: &str) -> Result<String, Outcome> {
        let done = self.shell(&self.meant(command)).output();
        let last = || done.err().lines().last().unwrap_or("no message").to_owned();
        match done.status.code() {
            Some(0) => Ok(done.out().trim().to_owned()),
            Some(LACKING) => Err(Outcome::Lacking(last())),
            _ => Err(Outcome::Fail(format!("the mark `{command}` failed: {done}"))),
        }
    }

    /// Returns the command with what the page's words stand for.
    fn meant(&self, command: &str) -> String {
        self.words
            .iter()
            .fold(command.to_owned(), |command, (word, value)| replaced(&command, word, value))
    }
}

fn check(step: &Step, output: &str, status: &str, has_output: bool) -> Result<(), String> {
    let lines: Vec<String> = output.trim_end().lines().map(str::to_owned).collect();
    let of_command = format!("line {}: {}", step.line, step.command);
    let difference =
        if has_output { difference(&step.output, &lines, step.line + 1) } else { None };
    match (status, difference) {
        ("0", None) => Ok(()),
        ("0", Some(difference)) => Err(format!("{of_command}{difference}")),
        (status, _) => Err(format!("{of_command}: status {status}\n{}", output.trim_end())),
    }
}

/// Drops the output of programs in the background: it comes at any moment, and no page shows it.
fn quiet(command: &str) -> String {
    const BACKGROUND: &str = " >/dev/null 2>&1 &";
    let inner = command.replace(" & ", &format!("{BACKGROUND} "));
    match inner.strip_suffix(" &") {
        Some(begun) => format!("{begun}{BACKGROUND}"),
        None => inner,
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[test]
fn words_and_background_programs_are_found() {
    assert_eq!(replaced("revert PID; PIDS x-PID (PID)", "PID", "7"), "revert 7; PIDS x-PID (7)");
    assert_eq!(quiet("a & b && c &"), "a >/dev/null 2>&1 & b && c >/dev/null 2>&1 &");
    assert_eq!(quiet("a && b"), "a && b");
}

#[test]
fn a_wrong_block_fails() {
    let step = |output: &str| Step {
        line: 3,
        command: "c".to_owned(),
        output: output.lines().map(str::to_owned).collect(),
    };
    assert_eq!(check(&step("a 1"), "a 2\n", "0", true), Ok(()));
    assert_eq!(check(&step(""), "a 2\n", "0", false), Ok(()));
    assert!(check(&step(""), "a 2\n", "0", true).unwrap_err().contains("+       a 2"));
    assert!(check(&step("a 1"), "a 2\n", "1", true).unwrap_err().contains("status 1"));
}
