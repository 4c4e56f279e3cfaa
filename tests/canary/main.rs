//! `tiexecctl canary`: a server alternates between base pages and copies under its own load, and keeps copies only if they help.
//!
//! The server counts its own processor time, and counts it more, or less, while its text is on huge pages. This planted
//! difference gives the tests a known result, however fast or busy the machine is. A simulation tests the rate of false
//! claims (`crates/advise/tests/sequential.rs`).

mod agents;
mod before;
mod cgroups;
mod contained;
mod counters;
mod ends;
mod leaving;
mod merge;
mod rules;
mod verdict;

use std::path::PathBuf;

use serde_json::Value;

use support::attaching::{ctl, small, switched};
use support::child::eventually;
use support::{Done, Fresh, Held, Kind, Public, Run, tiexecctl, tiexecd};

/// A server, and the place for the canary's files.
struct Server {
    copy: Fresh,
    held: Held,
    public: Public,
}

impl Server {
    /// Starts the server. While its text is on huge pages, a round counts `worth` percent.
    fn start(worth: u32, children: u32) -> Server {
        let (copy, public) = (small("counts", Kind::DynamicNoPie), Public::new());
        let count = public.path().join("count").display().to_string();
        let args = [count, worth.to_string(), children.to_string()];
        let held = Run::new(copy.path(), args).plain().hold();
        Server { copy, held, public }
    }

    fn pid(&self) -> i32 {
        self.held.pid()
    }

    fn state(&self) -> PathBuf {
        self.public.path().join("state")
    }

    /// The options that name the rules and the state.
    fn files(&self) -> [String; 4] {
        let conf = self.public.path().join("conf").display().to_string();
        let state = self.state().display().to_string();
        ["--conf-dir".to_owned(), conf, "--state-dir".to_owned(), state]
    }

    /// Starts an agent with these directories, which may have no rules.
    fn agent(&self) -> Held {
        let _there = std::fs::create_dir(self.public.path().join("conf"));
        Run::new(tiexecd(), self.files()).plain().start()
    }

    /// A command that prints the count.
    fn counter(&self) -> String {
        format!("cat '{}'", self.public.path().join("count").display())
    }

    /// The arguments of a canary with the server's counter and short slices.
    fn args(&self, more: &[&str]) -> Vec<String> {
        let own = ["--counter".to_owned(), self.counter()];
        [self.with_counter(more), own.to_vec()].concat()
    }

    fn with_counter(&self, more: &[&str]) -> Vec<String> {
        let state = self.state().display().to_string();
        let mut args =
            ["canary", "--slice=400ms", "--state-dir", &state].map(str::to_owned).to_vec();
        args.extend(more.iter().map(|&word| word.to_owned()));
        if !more.contains(&"--exe") && !more.contains(&"--user") {
            args.push(self.pid().to_string());
        }
        args
    }

    fn canary(&self, more: &[&str]) -> Done {
        started(&self.args(more)).finish()
    }

    /// Starts a canary without an end, and waits until the server is on copies.
    fn in_a_canary(&self, more: &[&str]) -> Held {
        let args = self.args(&[&["--keep-above=2"], more].concat());
        let mut canary = started(&args);
        self.eventually_on_copies(&mut canary);
        canary
    }

    fn eventually_on_copies(&self, canary: &mut Held) {
        let pid = self.pid();
        eventually(&format!("{pid} is on copies"), || {
            assert!(!canary.has_ended(), "it has ended: {}", canary.err_text());
            switched(pid) > 0
        });
    }

    fn eventually_plain(&self) {
        let pid = self.pid();
        eventually(&format!("{pid} is on base pages"), || switched(pid) == 0);
    }

    /// Ends the server, and checks that its text was right all the time.
    fn finish(self) {
        self.held.finish().assert_code(7);
    }
}

fn started(args: &[String]) -> Held {
    Run::new(tiexecctl(), args).plain().start()
}

fn export(server: &Server) -> Value {
    let state = server.state().display().to_string();
    let done = ctl(["canary", "export", "--state-dir", &state]);
    done.assert_code(0).assert_silent();
    support::attaching::json(&done)
}
