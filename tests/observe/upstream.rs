//! The reproducers of the drafts for other projects (`contrib/upstream`) still show what the drafts say.
//!
//! A reproducer ends with 1 if it has seen the fault. If it has not, the kernel or the tool is newer than the draft, and the test is skipped.

use std::path::PathBuf;

use support::child::tool;
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::{Run, installed, require, require_of_machine};

fn drafts() -> PathBuf {
    support::places::sources().join("../../contrib/upstream")
}

/// A reproducer, compiled on the file system of the target directory.
struct Reproducer {
    name: &'static str,
    _dir: tempfile::TempDir,
    program: PathBuf,
}

impl Reproducer {
    /// Compiles the source as the comment at its head says.
    fn new(name: &'static str) -> Reproducer {
        let dir = tempfile::tempdir_in(support::files()).expect("a directory");
        let source = drafts().join(name);
        let text = std::fs::read_to_string(&source).expect("a source");
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix("cc "));
        let command = line.and_then(|line| line.split(" && ").next()).expect("a command");
        let mut words: Vec<&str> = command.split(' ').collect();
        // The command names the program and the source, as they are called in the directory of the source.
        let is_file = |word: &str| word.ends_with(".c");
        assert!(words.iter().filter(|word| is_file(word)).count() == 1, "{command}");
        let to = 1 + words.iter().position(|word| *word == "-o").expect("the program's name");
        let program = dir.path().join(words[to]);
        words[to] = program.to_str().expect("UTF-8");
        let source = source.to_str().expect("UTF-8");
        let words = words.iter().map(|word| if is_file(word) { source } else { word });
        let done = tool(
            &["cc", "-Wall", "-Wextra", "-Werror"].into_iter().chain(words).collect::<Vec<_>>(),
        );
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Reproducer { name, _dir: dir, program }
    }

    fn run(&self, words: &[&str]) -> Run {
        Run::new(&self.program, words).plain()
    }

    /// The output that the drafts show for it: the block below the line with its link.
    fn shown(&self) -> String {
        let page = std::fs::read_to_string(drafts().join("README.md")).expect("the drafts");
        let (_, below) = page.split_once(&format!("]({})", self.name)).expect("a link");
        let block = below.split("```\n").nth(1).expect("a block");
        block.to_owned()
    }
}

/// The text, with one sign for each number and each build ID.
fn form(text: &str) -> String {
    let is_number = |word: &&str| word.contains(|sign: char| sign.is_ascii_digit());
    let is_hex = |word: &&str| word.chars().all(|sign| sign.is_ascii_hexdigit());
    let of_line = |line: &str| {
        let words = line.split(' ').map(|word| {
            let bare = word.trim_end_matches([',', ':']);
            if is_number(&bare) && is_hex(&bare) { "N" } else { word }
        });
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(of_line).collect::<Vec<_>>().join("\n")
}

/// Runs a reproducer, which needs nothing else. `form` leaves out what is not the same each time.
fn shows_its_fault(name: &'static str, form: impl Fn(&str) -> String) {
    let reproducer = Reproducer::new(name);
    let done = reproducer.run(&[]).output();
    require!(
        done.end() != (Some(0), None),
        "this machine does not show the fault of {name}: {done}"
    );
    done.assert_code(1).assert_silent();
    assert_eq!(form(&done.out()), form(&reproducer.shown()), "{done}");
}

#[test]
fn recvmmsg() {
    shows_its_fault("kernel/recvmmsg_512.c", str::to_owned);
}

#[test]
fn cached_text() {
    require_of_machine!(huge_folios(), NO_HUGE_FOLIOS);
    shows_its_fault("kernel/file_text.c", str::to_owned);
}

#[test]
fn position_independent_programs() {
    shows_its_fault("kernel/pie_start.c", form);
}

#[test]
fn build_ids_of_memfds() {
    shows_its_fault("symbols/memfd_text.c", form);
}

/// Attaches the tool again and again, until a write is short.
fn shortens_a_write(tracer: impl Fn(&str) -> Vec<String>) {
    let reproducer = Reproducer::new("tracers/short_write.c");
    let mut held = reproducer.run(&["300"]).start();
    let pid = held.pid().to_string();
    while !held.has_ended() {
        let argv = tracer(&pid);
        tool(&argv.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let done = held.finish();
    require!(done.end() != (Some(0), None), "this tool shortens no write: {done}");
    done.assert_code(1);
    let shown = form(&reproducer.shown());
    assert!(shown.lines().all(|line| line == form(done.out().trim_end())), "{shown}\n{done}");
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn gdb_shortens_a_write() {
    require!(installed("gdb").is_some(), "no gdb");
    shortens_a_write(|pid| words(&["gdb", "-nx", "-p", pid, "-batch", "-ex", "detach"]));
}

#[test]
fn strace_shortens_a_write() {
    require!(installed("strace").is_some(), "no strace");
    shortens_a_write(|pid| words(&["timeout", "1", "strace", "-o", "/dev/null", "-p", pid]));
}

/// elfutils names no function of a program whose text is in a memfd.
#[test]
fn eu_stack() {
    require!(installed("eu-stack").is_some(), "no eu-stack (elfutils)");
    let reproducer = Reproducer::new("symbols/memfd_text.c");
    let names = |words: &[&str]| {
        let mut held = reproducer.run(words).start();
        held.wait_more();
        support::child::eventually("it waits", || support::child::state(held.pid()) == Some('S'));
        let done = tool(&["eu-stack", "-p", &held.pid().to_string()]);
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        held.signal(libc::SIGKILL);
        ["innermost", "outer", "main"].map(|name| {
            said.lines().any(|line| line.ends_with(name) || line.contains(&format!(" {name} ")))
        })
    };
    assert_eq!(names(&["wait", "plain"]), [true; 3]);
    require!(names(&["wait"]) != [true; 3], "this eu-stack names the functions in a memfd");
}
