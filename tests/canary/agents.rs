//! The agent itself runs the canaries that a rule requires, one at a time, and obeys their verdicts.

use std::path::{Path, PathBuf};

use support::attaching::{ctl, switched};
use support::child::eventually;
use support::smaps::child_with;
use support::{Held, Run, is_root, require, tiexecd};

use crate::rules::{check, write_rule};
use crate::{Server, export, started};

/// Starts an agent whose canary measures the server's build by its count.
fn agent(server: &Server) -> Held {
    let counter = server.counter();
    write_rule(
        server,
        &format!("canary = \"required\"\ncanary-counter = \"{counter}\"\ncanary-slice = \"400ms\""),
    );
    server.agent()
}

/// Returns false on a kernel where the agent attaches to nothing.
fn can_attach(server: &Server) -> bool {
    write_rule(server, "canary = \"required\"");
    eventually("it is old enough", || !check(server).out().contains("too_young"));
    !check(server).out().contains("no_crash_guard")
}

fn verdict(server: &Server) -> String {
    export(server)["verdicts"][0]["verdict"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_better_build_keeps_its_copies() {
    require!(is_root(), "rules of root's");
    let server = Server::start(300, 1);
    require!(can_attach(&server), "Linux 6.15");
    let mut agent = agent(&server);
    eventually("the canary has a verdict", || {
        server.state().join("verdicts.json").exists() && !verdict(&server).is_empty()
    });
    assert_eq!(verdict(&server), "better");
    let shown = server.copy.path().display().to_string();
    eventually("the agent tells it", || agent.err_text().contains("times the work per CPU second"));
    let said = agent.err_text();
    assert!(said.contains(&format!("canary of {shown} (rule r): begins")), "{said}");
    assert!(said.contains(&format!("canary of {shown} (rule r): better, ")), "{said}");
    assert!(said.contains("its copies are kept"), "{said}");
    agent.signal(libc::SIGTERM);
    agent.finish().assert_code(0);
    assert!(switched(server.pid()) > 0, "the copies are kept when the agent ends");
    ctl(["revert", &server.pid().to_string()]).assert_code(0);
    server.finish();
}

#[test]
fn a_worse_build_is_reverted_and_left_alone() {
    require!(is_root(), "rules of root's");
    let server = Server::start(50, 0);
    require!(can_attach(&server), "Linux 6.15");
    let mut agent = agent(&server);
    eventually("the agent tells the verdict", || agent.err_text().contains("(rule r): worse, "));
    assert_eq!(switched(server.pid()), 0);
    assert_eq!(verdict(&server), "worse");
    assert!(check(&server).out().contains("not_better"), "{}", check(&server));
    agent.signal(libc::SIGHUP);
    agent.signal(libc::SIGTERM);
    let done = agent.finish();
    done.assert_code(0);
    assert_eq!(done.err().matches("begins").count(), 1, "{done}");
    server.finish();
}

#[test]
fn its_processes_are_reverted_when_the_agent_ends_or_is_drained() {
    require!(is_root(), "rules of root's");
    support::store::own_run();
    let server = Server::start(100, 0);
    require!(can_attach(&server), "Linux 6.15");
    let mut agent = agent(&server);
    eventually("it is on copies", || switched(server.pid()) > 0);
    std::fs::create_dir_all("/run/tiexec").expect("a directory");
    std::fs::write("/run/tiexec/drained", "").expect("a file");
    eventually("the agent stops", || agent.err_text().contains("does nothing from now on"));
    assert_eq!(switched(server.pid()), 0, "{}", agent.err_text());
    let done = server.canary(&[]);
    done.assert_code(1);
    assert!(done.err().contains("fix: tiexecctl agent resume"), "{done}");
    std::fs::remove_file("/run/tiexec/drained").expect("a file");
    agent.signal(libc::SIGTERM);
    agent.finish().assert_code(0);

    let agent = self::agent(&server);
    eventually("it is on copies", || switched(server.pid()) > 0);
    agent.signal(libc::SIGTERM);
    let done = agent.finish();
    done.assert_code(0);
    assert_eq!(switched(server.pid()), 0, "{done}");
    assert!(!server.state().join("canary.json").exists(), "{done}");
    server.finish();
}

#[test]
fn a_crash_on_copies_ends_it_and_quarantines_the_build() {
    require!(is_root(), "rules of root's");
    let mut server = Server::start(0, 0);
    require!(can_attach(&server), "Linux 6.15");
    let mut agent = agent(&server);
    eventually("it crashes", || server.held.has_ended());
    server.held.finish().assert_signal(libc::SIGILL);
    eventually("the crash is seen", || agent.err_text().contains("is in quarantine"));
    eventually("the canary has ended", || agent.err_text().contains("no verdict"));
    // The agent leaves the next process of that build alone.
    let (count, public) = (server.public.path().join("count"), server.public);
    let again = Run::new(server.copy.path(), [count.display().to_string(), "0".to_owned()]);
    let again = again.plain().hold();
    let server = Server { copy: server.copy, held: again, public };
    eventually("it is old enough", || check(&server).out().contains("quarantined"));
    assert_eq!(switched(server.pid()), 0);
    agent.signal(libc::SIGTERM);
    agent.finish().assert_code(0);
    assert_eq!(export(&server)["verdicts"], serde_json::json!([]));
    server.finish();
}

#[test]
fn an_operator_makes_the_same_by_the_rule_s_name() {
    require!(is_root(), "rules of root's");
    let server = Server::start(300, 0);
    require!(can_attach(&server), "Linux 6.15");
    let by_rule = |more: &[&str]| {
        let mut args = ["canary", "--slice=400ms"].map(str::to_owned).to_vec();
        args.extend(server.files());
        args.extend(more.iter().map(|&word| word.to_owned()));
        started(&args).finish()
    };
    let counter = server.counter();
    let done = by_rule(&["--rule", "r"]);
    done.assert_code(2);
    assert!(done.err().contains("rule r does not say what to count; fix: --counter CMD"), "{done}");
    by_rule(&["--rule", "none"]).assert_code(2);
    by_rule(&["--rule", "r", "--counter", &counter]).assert_code(0);
    assert!(switched(server.pid()) > 0);
    ctl(["revert", &server.pid().to_string()]).assert_code(0);
    assert!(check(&server).out().ends_with(": rule r: attach\n"), "{}", check(&server));
    server.finish();
}

fn has_secret(process: &Path) -> bool {
    let environment = std::fs::read(process.join("environ")).expect("a process of root's");
    environment.split(|&byte| byte == 0).any(|variable| variable == b"PASSWORD=secret")
}

fn has_open(process: &Path, file: &str) -> bool {
    let all = std::fs::read_dir(process.join("fd")).expect("a process of root's").flatten();
    let mut files = all.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    files.any(|open| open == Path::new(file))
}

#[test]
fn a_canary_gets_nothing_of_the_agents_and_ends_with_it() {
    require!(is_root(), "rules of root's");
    let server = Server::start(100, 0);
    require!(can_attach(&server), "Linux 6.15");
    write_rule(
        &server,
        &format!("canary = \"required\"\ncanary-counter = \"{}\"", server.counter()),
    );
    let script = "exec 9</etc/shadow && exec \"$@\"";
    let front = ["env", "PASSWORD=secret", "sh", "-c", script, "sh"];
    let agent = Run::new(tiexecd(), server.files()).plain().behind(front).start();
    let process = |pid: i32| PathBuf::from(format!("/proc/{pid}"));
    let own = process(agent.pid());
    eventually("it is on copies", || switched(server.pid()) > 0);
    assert!(has_secret(&own) && has_open(&own, "/etc/shadow"), "the agent has the secrets");
    let canary = process(child_with(agent.pid(), "canary").expect("a canary"));
    assert!(!has_secret(&canary), "its environment");
    assert!(!has_open(&canary, "/etc/shadow"), "its descriptors");
    agent.signal(libc::SIGKILL);
    agent.finish().assert_signal(libc::SIGKILL);
    // An ended process that nobody has waited for has no command line.
    let has_ended = || std::fs::read(canary.join("cmdline")).is_ok_and(|line| line.is_empty());
    eventually("the canary ends", || !canary.exists() || has_ended());
    assert_eq!(switched(server.pid()), 0, "the canary has reverted its processes");
    server.finish();
}
