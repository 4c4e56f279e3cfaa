//! `tiexecd` and its rules: the programs that it attaches to, its refusals, and its reaction to crashes.

mod attaching;
mod budgets;
mod crashes;
mod daily;
mod killed;
mod launches;
mod load;
mod rules;
mod seen;
mod shares;
mod state;
mod told;
mod watching;

use std::path::{Path, PathBuf};

use support::attaching::{ctl, switched};
use support::child::eventually;
use support::{Done, Held, Kind, Public, Run, program_big, tiexecd};

/// The directories of one agent, with rules that match only the test's own programs.
struct Files {
    public: Public,
}

impl Files {
    fn new() -> Files {
        let files = Files { public: Public::new() };
        for dir in [files.conf(), files.state()] {
            std::fs::create_dir(&dir).expect("a directory");
        }
        files
    }

    fn conf(&self) -> PathBuf {
        self.public.path().join("conf")
    }

    fn state(&self) -> PathBuf {
        self.public.path().join("state")
    }

    /// Writes a rule file with a mode that the agent trusts.
    fn write(&self, name: &str, text: &str) {
        let path = self.conf().join(name);
        std::fs::write(&path, text).expect("a file");
        support::chmod(&path, 0o644);
    }

    /// Writes a rule that attaches at once to the programs of this test in that directory.
    fn attach_below(&self, name: &str, dir: &str) {
        let rule = attach_rule(name, &self.public.path().join(dir).join("*"));
        self.write(&format!("{name}.toml"), &rule);
    }

    /// A copy of a test program below the directory.
    fn program(&self, name: &str, mib: u32, to: &str) -> PathBuf {
        let copy = self.public.path().join(to);
        let dir = copy.parent().expect("a directory");
        std::fs::create_dir_all(dir).expect("a directory");
        support::chmod(dir, 0o755);
        self.public.add(&program_big(name, Kind::DynamicNoPie, mib), to, 0o755)
    }

    fn args(&self) -> Vec<String> {
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        vec!["--conf-dir".into(), text(self.conf()), "--state-dir".into(), text(self.state())]
    }

    /// Starts an agent.
    fn agent(&self) -> Held {
        Run::new(tiexecd(), self.args()).plain().start()
    }

    /// Shows the decision about these processes, or about all.
    fn check(&self, pids: &[i32]) -> Done {
        let mut args = vec!["rules".to_owned(), "check".to_owned()];
        args.extend(self.args());
        args.extend(pids.iter().map(ToString::to_string));
        ctl(args)
    }

    fn quarantine(&self, more: &[&str]) -> Done {
        let state = self.state();
        let mut args = vec!["quarantine", "--state-dir", state.to_str().expect("UTF-8")];
        args.extend(more);
        ctl(args)
    }
}

/// Returns a rule that attaches at once to all programs that the pattern matches. It uses copies, which work with every
/// state of the page cache, also on a host that splits huge pages.
fn attach_rule(name: &str, exe: &Path) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nexe = \"{}\"\naction = \"attach\"\ncanary = \"off\"\nbacking = \"image\"\n\
         min-age = \"100ms\"\n",
        exe.display()
    )
}

/// Returns whether the process handles or blocks SIGTERM. Before that, the signal would end it by default.
fn takes_sigterm(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let has = |line: &str| {
        let set = line.strip_prefix("SigCgt:").or_else(|| line.strip_prefix("SigBlk:"));
        let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        set.is_some_and(|set| set & 1 << (libc::SIGTERM - 1) != 0)
    };
    status.lines().any(has)
}

/// Ends an agent as systemd does. Returns its output.
fn stop(agent: Held) -> String {
    let pid = agent.pid();
    eventually("the agent has begun", || takes_sigterm(pid));
    agent.signal(libc::SIGTERM);
    let done = agent.finish();
    done.assert_code(0);
    done.err()
}

/// A `hold`, started without TiExec. It ends with 7 if its text is right to the end.
fn hold(path: &Path) -> Held {
    Run::new(path, ["7"]).plain().hold()
}

fn eventually_switched(held: &Held) {
    let pid = held.pid();
    eventually(&format!("{pid} is switched"), || switched(pid) > 0);
}

/// Returns whether agents can attach here, because the kernel reports how programs end.
fn has_guard() -> bool {
    let files = Files::new();
    let copy = files.program("hold", 6, "guard/hold");
    files.attach_below("guard", "guard");
    let held = hold(&copy);
    let pid = held.pid();
    let done = files.check(&[pid]);
    held.finish().assert_code(7);
    !done.out().contains("no_crash_guard")
}
