//! A running `felt`: one thread that makes one call over and over, and counts what it would not see without a stop.

use std::collections::HashMap;

use support::attaching::{attach_run, json, revert_run};
use support::child::Done;
use support::extent::is_whole;
use support::{Held, Kind, Run, program};

/// The signals that come to the program at random moments: SIGALRM, SIGCHLD, and SIGSTOP with SIGCONT.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signals {
    /// None.
    No,
    /// Their handlers have SA_RESTART.
    Restart,
    /// Their handlers have no SA_RESTART.
    Interrupt,
    /// Only those that the test sends. Their handlers have no SA_RESTART.
    Quiet,
}

/// All that come at random moments, and none.
pub(crate) const ALL_SIGNALS: [Signals; 3] = [Signals::No, Signals::Restart, Signals::Interrupt];

/// Returns all kinds in `make soak`. `make test` gets one of them, so that the rows together have all kinds.
pub(crate) fn in_turn<T: Copy>(row: &str, kinds: &[T]) -> Vec<T> {
    if is_whole() {
        return kinds.to_vec();
    }
    let sum: usize = row.bytes().map(usize::from).sum();
    vec![kinds[(sum / kinds.len() + sum) % kinds.len()]]
}

impl Signals {
    fn argument(self) -> &'static str {
        match self {
            Signals::No => "none",
            Signals::Restart => "restart",
            Signals::Interrupt => "interrupt",
            Signals::Quiet => "quiet",
        }
    }
}

/// The program in its loop.
pub(crate) struct Looping {
    held: Held,
    row: &'static str,
    signals: Signals,
    /// What the program and TiExec are started by.
    front: &'static [&'static str],
    turns: Turns,
    _dir: tempfile::TempDir,
}

/// How often TiExec did its work, how often it said that the program may have seen an interruption, and how often it found no
/// thread to stop.
#[derive(Default, Debug)]
pub(crate) struct Turns {
    done: usize,
    told: usize,
    declined: usize,
}

impl Looping {
    /// Starts the program. Its row is an entry of the table in `felt.c`.
    pub(crate) fn new(row: &'static str, signals: Signals) -> Looping {
        Looping::behind(&[], row, signals)
    }

    /// Starts the program, and later TiExec, by a command that changes their rights.
    pub(crate) fn behind(
        front: &'static [&'static str],
        row: &'static str,
        signals: Signals,
    ) -> Looping {
        let dir = tempfile::tempdir().expect("a directory");
        let run = Run::new(program("felt", Kind::DynamicPie), [row, signals.argument()]);
        let held = run.plain().cwd(dir.path()).limit(600).behind(front).hold();
        Looping { held, row, signals, front, turns: Turns::default(), _dir: dir }
    }

    /// Returns what the kernel lacks for this row.
    pub(crate) fn lacks(&self) -> Option<String> {
        self.held.said("unsupported")
    }

    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.held.pid()
    }

    /// Sends the program a signal.
    pub(crate) fn signal(&self, signal: i32) {
        self.held.signal(signal);
    }

    /// An attach to the program, not yet started.
    pub(crate) fn attach_run(&self) -> Run {
        attach_run(self.pid()).behind(self.front)
    }

    /// A revert of the program, not yet started.
    pub(crate) fn revert_run(&self) -> Run {
        revert_run(self.pid()).behind(self.front)
    }

    /// Attaches and reverts by turns.
    pub(crate) fn turns(&mut self, times: usize) {
        for _ in 0..times {
            self.did(&self.attach_run().output());
            self.did(&self.revert_run().output());
        }
    }

    /// Counts an attach or a revert. To find no thread to stop is allowed, because nothing has happened then.
    pub(crate) fn did(&mut self, done: &Done) {
        if done.status.code() == Some(0) {
            self.turns.done += 1;
            self.turns.told += usize::from(interrupted(done));
        } else {
            assert!(done.err().contains("no_thread"), "{}: {done}", self.row);
            self.turns.declined += 1;
        }
    }

    /// How often TiExec said that the program may have seen an interruption.
    pub(crate) fn told(&self) -> usize {
        self.turns.told
    }

    /// Ends the program. Panics if it has seen more than `allowed` interruptions that it would not have seen without
    /// TiExec, or any loss.
    pub(crate) fn end(self, allowed: usize) {
        let Looping { held, row, signals, front: _, turns, _dir: _ } = self;
        let done = held.finish();
        done.assert_code(7);
        let line = done.out().lines().find(|line| line.starts_with("saw ")).map(str::to_owned);
        let line = line.unwrap_or_else(|| panic!("{row}: {done}"));
        let shown = format!("{row} {signals:?}: {line} {turns:?}");
        println!("{shown}");
        let saw = Saw::parse(&line);
        assert!(saw.of("calls") > 0, "{shown}");
        for loss in ["early", "wrong"] {
            assert_eq!(saw.of(loss), 0, "{loss}: {shown}");
        }
        // A pseudo-terminal itself hands over up to 4 KiB twice now and then, without TiExec, too.
        if row != "write_pty" {
            assert_eq!(saw.of("corrupt"), 0, "{shown}");
            assert_eq!(saw.of("sent"), saw.of("got"), "bytes: {shown}");
        }
        assert_eq!(saw.of("other_sent"), saw.of("other_got"), "{shown}");
        let felt = saw.of("short") + saw.of("eintr") + saw.of("other");
        assert!(felt <= allowed, "{felt} interruptions were felt: {shown}");
    }
}

/// Returns whether TiExec says that a thread may have seen an interruption.
fn interrupted(done: &Done) -> bool {
    let object = json(done);
    let [attach, revert] = [&object["attach"]["interrupted"], &object["interrupted"]];
    attach.as_bool().or(revert.as_bool()).unwrap_or(false)
}

/// The figures of the program's last line.
struct Saw(HashMap<String, usize>);

impl Saw {
    fn parse(line: &str) -> Saw {
        let pairs = line.split(' ').filter_map(|word| word.split_once('='));
        Saw(pairs.map(|(key, n)| (key.to_owned(), n.parse().expect("a number"))).collect())
    }

    fn of(&self, key: &str) -> usize {
        self.0[key]
    }
}

/// Processes that compete with the program for the processors.
pub(crate) struct Busy(Vec<Held>);

impl Busy {
    /// Starts that many.
    pub(crate) fn new(count: usize) -> Busy {
        let run = Run::new(program("felt", Kind::DynamicPie), ["busy"]).plain().limit(600);
        Busy((0..count).map(|_| run.hold()).collect())
    }

    /// Ends them.
    pub(crate) fn end(self) {
        for held in self.0 {
            held.finish().assert_code(7);
        }
    }
}
