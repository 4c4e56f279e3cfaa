//! What the agent remembers for all outlives what users make it remember.

use std::path::PathBuf;

use serde_json::{Value, json};
use support::attaching::switched;
use support::child::eventually;
use support::{Held, Run, is_root, require};

use crate::{Files, eventually_switched, has_guard, hold, stop};

const OTHER_USER: [&str; 4] = ["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"];
/// The agent of version 0.1 read no more than this.
const MOST: usize = 4 << 20;

fn entry(build: &str, uid: Option<u32>, exe: &str) -> Value {
    json!({
        "build_id": build, "text": format!("{build}-text"), "uid": uid, "rule": "a", "signal": 11, "exe": exe, "when": 1,
    })
}

/// Four users have filled the state nearly up to what is read back: 64 builds each, whose paths are as long as paths can
/// be. One more crash of a fifth user made everybody's quarantine unreadable.
#[test]
fn users_crashes_do_not_push_out_what_counts_for_all() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let builds = (0..256).map(|at| (format!("{at:040x}"), 2001 + at / 64));
    let mut all = vec![entry("roots", None, "/usr/sbin/roots")];
    all.extend(builds.map(|(build, uid)| entry(&build, Some(uid), "")));
    let size = |all: &[Value]| {
        serde_json::to_vec_pretty(&json!({ "version": 1, "quarantine": all })).expect("JSON")
    };
    let room = MOST - 2048 - size(&all).len();
    for one in all.iter_mut().skip(1) {
        // TiExec shows a control character as four, and JSON escapes one of these.
        one["exe"] = "\\x01".repeat(room / 256 / 5).into();
    }
    let state = files.state().join("state.json");
    std::fs::write(&state, size(&all)).expect("an own file");
    support::chmod(&state, 0o600);
    let mut to = PathBuf::from("a");
    to.extend(std::iter::repeat_n("a".repeat(200), 16));
    let to = to.join("crasher");
    let bad = files.program("crasher", 6, to.to_str().expect("UTF-8"));
    files.attach_below("a", "a/**");
    let agent = files.agent();
    let held = Run::new(&bad, [""; 0]).plain().behind(OTHER_USER).hold();
    held.finish().assert_signal(libc::SIGSEGV);
    eventually("the crash counts", || files.quarantine(&[]).out().contains("for user 1717"));
    assert!(files.quarantine(&[]).out().contains("roots-text"), "{}", files.quarantine(&[]));
    stop(agent);
    assert!(std::fs::metadata(&state).expect("the state").len() < MOST as u64 / 2);
    // Another agent reads it back.
    let agent = files.agent();
    eventually("it runs", || crate::takes_sigterm(agent.pid()));
    let said = stop(agent);
    assert!(!said.contains("set aside"), "{said}");
    assert!(files.quarantine(&[]).out().contains("roots-text"));
}

/// The copies of a user's processes count as root's do, and so do those that an agent made which has ended.
#[test]
fn copies_of_all_users_count_and_outlast_the_agent() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let [one, two, three] = [("one", 4), ("two", 6), ("three", 8)]
        .map(|(name, mib)| files.program("hold", mib, &format!("a/{name}")));
    files.attach_below("a", "a");
    files.write("limit.toml", "[agent]\nmax-copies = \"1MiB\"\n");
    let mut agent = files.agent();
    let first = Run::new(&one, ["7"]).plain().behind(OTHER_USER).hold();
    eventually_switched(&first);
    let refused = |agent: &mut Held, held: &Held| {
        let says = format!(" {} (rule a): left as it is: memory_headroom", held.pid());
        eventually("it is refused", || {
            assert_eq!(switched(held.pid()), 0, "{}", agent.err_text());
            agent.err_text().contains(&says)
        });
    };
    let second = hold(&two);
    refused(&mut agent, &second);
    stop(agent);
    let mut agent = files.agent();
    let third = hold(&three);
    refused(&mut agent, &third);
    refused(&mut agent, &second);
    stop(agent);
    for held in [first, second, third] {
        held.finish().assert_code(7);
    }
}
