//! perf names the functions of a launched program always if its text is the file's own. For a copy, perf names them
//! only if the recording began before the launch.

use std::path::{Path, PathBuf};

use support::child::{eventually, tool};
use support::objects::{Made, WithObject};
use support::traced::{By, Traced};
use support::{Report, Run, installed, require};

/// The number of samples in a program's own text by the name that perf gives them: spin_inner, another name, or no
/// name.
#[derive(Debug, Default, Clone, Copy)]
struct Samples {
    right: u32,
    other: u32,
    nameless: u32,
}

impl Samples {
    /// Asserts that nearly all samples have the name of the loop, because the program does little else.
    fn assert_named(self, what: &str) {
        assert!(self.right >= 100, "{what}: {self:?}");
        assert!((self.other + self.nameless) * 5 < self.right, "{what}: {self:?}");
    }
}

/// A home directory, where perf keeps its cache of build IDs, for all recordings of a test.
struct Perf {
    home: tempfile::TempDir,
}

impl Perf {
    fn new() -> Option<Perf> {
        let perf = Perf { home: tempfile::tempdir().expect("a directory") };
        let data = perf.data();
        let trial =
            ["perf", "record", "-q", "-e", "cpu-clock", "-o", &data.to_string_lossy(), "true"];
        (installed("perf").is_some() && tool(&trial).status.success()).then_some(perf)
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("perf.data")
    }

    fn record(&self) -> Vec<std::ffi::OsString> {
        let data = self.data();
        let words = ["perf", "record", "-q", "-F", "1000", "-e", "cpu-clock:u", "-o"];
        words.map(Into::into).into_iter().chain([data.into()]).collect()
    }

    /// Records a whole launch.
    fn of_launch(&self, run: &Run) -> Samples {
        let mut held = run.clone().behind(self.record()).env("HOME", self.home.path()).hold();
        held.write(b"spin\n");
        held.wait_line("done");
        held.finish().assert_code(7);
        self.samples()
    }

    /// Records a running program.
    fn of_running(&self, traced: &Traced) -> Samples {
        let mut held = traced.hold();
        let mut front = self.record();
        front.extend(["-p".into(), held.pid().to_string().into(), "--".into()]);
        let record = Run::new("sh", ["-c", "echo ready; cat"]).plain().behind(front);
        let recording = record.env("HOME", self.home.path()).hold();
        held.write(b"spin\n");
        held.wait_line("done");
        recording.finish().assert_code(0);
        held.finish().assert_code(7).assert_silent();
        self.samples()
    }

    fn samples(&self) -> Samples {
        let done = Run::new("perf", ["script", "-F", "comm,ip,sym,dso", "-i"])
            .plain()
            .with_arg(self.data())
            .env("HOME", self.home.path())
            .output();
        done.assert_code(0);
        let mut samples = Samples::default();
        for line in done.out().lines().filter(|l| l.trim_start().starts_with("traced")) {
            // The line contains the path of the mapping. The name of the process is cut off before this word.
            if !line.contains("traced-onesegment") {
                continue;
            }
            if line.contains(" spin_inner ") {
                samples.right += 1;
            } else if line.contains("[unknown]") {
                samples.nameless += 1;
            } else {
                samples.other += 1;
            }
        }
        samples
    }

    /// Returns the line that a person sees.
    fn report(&self) -> String {
        let done = Run::new("perf", ["report", "--stdio", "--sort", "sym,dso", "-i"])
            .plain()
            .with_arg(self.data())
            .env("HOME", self.home.path())
            .output();
        let out = done.out();
        let top = out.lines().find(|line| !line.starts_with('#') && !line.trim().is_empty());
        top.unwrap_or_default().to_owned()
    }
}

fn named(by: By) {
    let perf = Perf::new();
    require!(perf.is_some(), "no perf, or it may not record");
    let perf = perf.expect("just looked");
    let traced = by.traced();
    require!(traced.is_some(), "no {by:?} on this machine");
    let mut traced = traced.expect("just looked");
    traced.copy = traced.copy.without_blanks();
    let (plain, launch) = (traced.run().plain(), traced.run());
    // The test records the original before and after the launch, with one cache of build IDs. perf must not mix up
    // names.
    perf.of_launch(&plain).assert_named("plain, before");
    perf.of_launch(&launch).assert_named("recorded from before the launch");
    let top = perf.report();
    assert!(top.contains("spin_inner") && !top.contains("memfd"), "{top}");
    let later = perf.of_running(&traced);
    if by.is_the_file() {
        later.assert_named("recorded from after the launch");
    } else {
        // perf reads the mappings from /proc, and finds no symbols for a memfd.
        assert!(later.nameless >= 100 && later.right == 0, "{by:?}: {later:?}");
    }
    perf.of_launch(&plain).assert_named("plain, after");
}

#[test]
fn moved_text() {
    named(By::Rebase);
}

#[test]
fn the_page_cache() {
    named(By::Pagecache);
}

#[test]
fn an_image() {
    named(By::Image);
}

#[test]
fn hugetlb_pages() {
    named(By::Hugetlb);
}

/// The processor time of a process, in clock ticks of 10 ms.
fn ticks_used(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let after_name = stat.rsplit_once(") ").expect("a name").1;
    after_name
        .split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn a_shared_object() {
    let perf = Perf::new();
    require!(perf.is_some(), "no perf, or it may not record");
    let perf = perf.expect("just looked");
    let (with, report) = (WithObject::new(Made::Gnu), Report::new());
    let run = report.of(&with.run(&["7"])).behind(perf.record()).env("HOME", perf.home.path());
    let held = run.hold();
    // The program's threads run through the object until its input ends. perf takes a sample each millisecond.
    let pid = held.said_pid();
    eventually("it has used a second of processors", || ticks_used(pid) >= 120);
    held.finish().assert_code(7);
    assert_eq!(report.read()["outcome"], "switched");
    let words = ["script", "-F", "comm,ip,sym,dso", "-i"];
    let done = Run::new("perf", words).plain().with_arg(perf.data()).env("HOME", perf.home.path());
    let done = done.output();
    done.assert_code(0);
    let out = done.out();
    // The mapping stands in brackets. TiExec is recorded, too, and has functions with "memfd" in their names.
    let of_object = |line: &&str| line.contains("/libbig_object.so)") || line.contains("(/memfd:");
    let lines: Vec<&str> = out.lines().filter(of_object).collect();
    let named = lines.iter().filter(|line| line.contains(" big_middle ")).count();
    let nameless = lines.iter().filter(|line| line.contains("[unknown]")).count();
    assert!(
        named >= 50 && nameless * 5 < named,
        "{named} named, {nameless} not, of {}",
        lines.len()
    );
    let others: Vec<_> = lines.iter().filter(|line| line.contains("(/memfd:")).collect();
    assert!(others.is_empty(), "all of it is the object's: {others:?}");
}

#[test]
fn inspect_says_so() {
    for by in [By::Pagecache, By::Image] {
        let traced = by.traced();
        require!(traced.is_some(), "no {by:?} on this machine");
        let traced = traced.expect("just looked");
        let held = traced.hold();
        let output = tool(&[
            &Path::new(support::tiexecctl()).to_string_lossy(),
            "inspect",
            &held.pid().to_string(),
        ]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let limited = said.contains("only if recording began before");
        assert_eq!(limited, !by.is_the_file(), "{by:?}: {said}");
        assert_eq!(said.contains("uprobes lost"), !by.is_the_file(), "{by:?}: {said}");
        held.finish().assert_code(7);
    }
}
