//! If a program executes another one, or ends, during an attach, the report names that cause and not a symptom.

use std::collections::BTreeMap;

use support::attaching::{attach, attach_run, ok, revert_run};
use support::extent::{met, rounds};
use support::{Done, Kind, Public, Random, Run, installed, is_root, program, require};

use super::ATTACKER;

/// Returns the reason why nothing, or not everything, was done; `-` without a message.
fn reason(done: &Done) -> String {
    let line = done.err();
    let mut words =
        line.split(": ").skip_while(|word| !word.starts_with("cannot ") && *word != "in part");
    words.nth(1).unwrap_or("-").to_owned()
}

/// Makes the program do that at a random moment of an attach or a revert, as root and as another user.
fn leaves(what: &str, signal: i32, reasons: &[&str]) {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root");
    let public = Public::new();
    let leaver = public.add(&program("leaver", Kind::DynamicPie), "leaver", 0o755);
    let mut random = Random::new();
    let mut heard: BTreeMap<(String, Option<i32>), u32> = BTreeMap::new();
    let mut wrong = Vec::new();
    let rounds = rounds(24);
    for round in 0..rounds {
        let run = Run::new(&leaver, [what]).plain();
        let run = if round / 2 % 2 == 0 { run } else { run.behind(ATTACKER) };
        let held = run.hold();
        let tool = if round % 2 == 0 {
            attach_run(held.pid())
        } else {
            ok(&attach(held.pid()));
            revert_run(held.pid())
        };
        let tool = tool.start();
        random.spin(30_000);
        held.signal(signal);
        let done = tool.finish();
        let (code, why) = (done.status.code(), reason(&done));
        *heard.entry((why.clone(), code)).or_default() += 1;
        if !reasons.contains(&&*why) || (why == "-") != (code == Some(0)) {
            wrong.push(done.to_string());
        }
        held.finish();
    }
    println!("{what}: {heard:?}");
    assert!(wrong.is_empty(), "{heard:?}: {}", wrong.join("\n"));
    met(heard.len() - 1, rounds, "other outcomes");
}

#[test]
fn it_is_killed() {
    leaves("", libc::SIGKILL, &["-", "target_gone"]);
}

#[test]
fn it_ends() {
    leaves("exit", libc::SIGUSR1, &["-", "target_gone"]);
}

/// The new program also ends soon.
#[test]
fn another_thread_of_it_executes_a_program() {
    leaves("exec", libc::SIGUSR1, &["-", "changed", "target_gone"]);
}

#[test]
fn its_first_thread_executes_a_program() {
    leaves("exec_first", libc::SIGUSR1, &["-", "changed", "target_gone"]);
}
