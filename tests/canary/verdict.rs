//! A canary ends as soon as the verdict is known. It keeps copies that are better, and reverts others.

use serde_json::Value;

use support::attaching::{json, small, switched};
use support::child::eventually;
use support::page::{PAGE, assert_in_browser, of_json};
use support::smaps::{children, stat_field};
use support::{Held, Kind, Run, is_root, journal, require};

use crate::{Server, export, started};

#[test]
fn what_is_better_is_kept_by_all_processes() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(300, 2);
    let exe = server.copy.path().display().to_string();
    let done = server.canary(&["--json", "--exe", &exe]);
    done.assert_code(0);
    let found = json(&done);
    assert_eq!((&found["schema"], &found["kind"]), (&2.into(), &"canary".into()), "{found}");
    assert_eq!(
        (&found["verdict"], &found["ended"]),
        (&"better".into(), &"known".into()),
        "{found}"
    );
    assert_eq!(found["kept"], true, "{found}");
    let low = found["per_cpu_second"]["low"].as_f64().expect("an interval");
    assert!(low > 1.005, "{found}");
    let family: Vec<i32> = children(server.pid()).into_iter().chain([server.pid()]).collect();
    assert_eq!(family.len(), 3);
    assert_page(&done.out(), &found);
    for pid in family {
        assert!(switched(pid) > 0, "{pid} is on copies");
    }
    assert!(!server.state().join("canary.json").exists(), "nothing is left to be reverted");
    let kept = &export(&server)["verdicts"][0];
    assert_eq!(
        (&kept["verdict"], &kept["exe"]),
        (&"better".into(), &exe.as_str().into()),
        "{kept}"
    );
    assert_eq!((&kept["backing"], &kept["edges"]), (&"image".into(), &"conservative".into()));
    for key in ["build_id", "text", "cpu", "kernel"] {
        assert!(kept[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {kept}");
    }
    // If there are copies already, there is nothing to compare.
    let again = server.canary(&[]);
    again.assert_code(1);
    assert!(again.err().contains("by tiexec already; fix: tiexecctl revert "), "{again}");
    server.finish();
}

/// The process that used the most processor time may be a worker, which ends while its service goes on.
#[test]
fn the_end_of_the_busiest_process_does_not_lose_it() {
    require!(is_root(), "files in a directory of root's");
    let eldest = small("hold", Kind::DynamicNoPie);
    let eldest = Run::new(eldest.path(), ["7"]).plain().hold();
    let server = Server::start(300, 0);
    let count = server.public.path().join("other").display().to_string();
    let busiest = Run::new(server.copy.path(), [&count, "300", "0"]).plain().hold();
    server.held.signal(libc::SIGSTOP);
    let used = |held: &Held| stat_field(held.pid(), 14) + stat_field(held.pid(), 15);
    eventually("it is the busiest", || used(&busiest) > used(&server.held) + 20);
    server.held.signal(libc::SIGCONT);
    let pids = [&eldest, &busiest].map(|held| held.pid().to_string());
    let mut canary = started(&server.args(&["--json", &pids[0], &pids[1]]));
    server.eventually_on_copies(&mut canary);
    busiest.finish().assert_code(7);
    let done = canary.finish();
    done.assert_code(0);
    assert_eq!(json(&done)["verdict_kept"], true, "{done}");
    assert_eq!(export(&server)["verdicts"][0]["verdict"], "better");
    eldest.finish().assert_code(7);
    server.finish();
}

/// A canary switches each process many times. The journal has the first attach to each, and when it begins and ends.
#[test]
fn the_journal_has_a_line_for_each_process_and_none_for_each_slice() {
    require!(is_root(), "a /run of our own");
    let log = journal::listen();
    let server = Server::start(300, 1);
    let exe = server.copy.path().display().to_string();
    let done = server.canary(&["--json", "--exe", &exe]);
    done.assert_code(0);
    assert!(json(&done)["switches"].as_u64() > Some(4), "{done}");
    let records: Vec<String> = (0..4).map(|_| journal::record(&log)).collect();
    journal::assert_empty(&log);
    let says = |at: usize, what: &str| assert!(records[at].contains(what), "{what}: {records:#?}");
    says(0, "alternates between copies and base pages from now on\n");
    says(1, "MESSAGE=attach by uid 0: pid ");
    says(2, "MESSAGE=attach by uid 0: pid ");
    says(3, "no longer alternates, and keeps the copies: better after ");
    for at in [0, 3] {
        says(at, "MESSAGE=canary by uid 0: process ");
        says(at, "\nTIEXEC_ACTION=canary\n");
    }
    for pid in children(server.pid()).into_iter().chain([server.pid()]) {
        let of_it = |record: &&String| record.contains(&format!("\nTIEXEC_PID={pid}\n"));
        let attaches = records[1..3].iter().filter(of_it).count();
        assert_eq!(attaches, 1, "{pid}: {records:#?}");
    }
    server.finish();
}

/// Checks the page that `report` makes of this JSON.
fn assert_page(text: &str, found: &Value) {
    let (html, dir) = of_json(text, 8);
    // The interval became narrower with each pair.
    let history = found["history"].as_array().expect("the history");
    assert_eq!(Some(history.len() as u64), found["pairs"].as_u64(), "{found}");
    assert_eq!(history.last().expect("a pair")["low"], found["per_cpu_second"]["low"], "{found}");
    for part in
        ["<p class=\"verdict\">better", "class=\"band\"", "Memory: the copies take ", "Next: "]
    {
        assert!(html.contains(part), "{part}: {html}");
    }
    let undo = found["next"]["command"].as_str().expect("a command");
    assert!(undo.starts_with("tiexecctl revert --exe ") && html.contains(undo), "{undo}: {html}");
    assert_in_browser(&dir.path().join(PAGE));
}

#[test]
fn what_is_worse_is_taken_back() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(30, 0);
    let before = support::attaching::joined(server.pid());
    let done = server.canary(&[]);
    done.assert_code(6);
    let out = done.out();
    assert!(out.contains(": worse\n  work per CPU second: 0."), "{done}");
    assert!(!out.contains("are kept"), "{done}");
    // Without a terminal, lines show the progress and the remaining time.
    assert!(done.err().contains(" more pairs ("), "{done}");
    server.eventually_plain();
    assert_eq!(support::attaching::joined(server.pid()), before);
    assert_eq!(export(&server)["verdicts"][0]["verdict"], "worse");
    server.finish();
}

#[test]
fn what_is_not_known_at_the_end_is_taken_back() {
    require!(is_root(), "files in a directory of root's");
    let server = Server::start(100, 0);
    let done = server.canary(&["--max=8s", "--json"]);
    done.assert_code(6);
    let found = json(&done);
    assert_eq!(found["ended"], "time", "{found}");
    // The few pairs may already rule out that it is worse.
    assert!(found["verdict"] == "undecided" || found["verdict"] == "no_worse", "{found}");
    assert!(found["pairs"].as_u64().is_some_and(|pairs| pairs >= 1), "{found}");
    assert_eq!(switched(server.pid()), 0);
    server.finish();
}

#[test]
fn text_that_is_huge_already_is_refused() {
    require!(is_root(), "files in a directory of root's");
    require!(support::fresh::huge_folios(), "{}", support::fresh::NO_HUGE_FOLIOS);
    let counts = support::program("counts", support::Kind::DynamicNoPie);
    let copy = support::Fresh::copy(&counts);
    let public = support::Public::new();
    let count = public.path().join("count").display().to_string();
    let held = support::Run::new(copy.path(), [&count]).plain().hold();
    let huge = held.coverage().is_full();
    let state = public.path().join("state").display().to_string();
    let counter = format!("cat '{count}'");
    let pid = held.pid().to_string();
    let args =
        ["canary", "--max=1s", "--slice=100ms", "--counter", &counter, "--state-dir", &state];
    let done = support::attaching::ctl([&args[..], &[&pid]].concat());
    // A fault maps a huge folio by one entry only if the mapping is congruent with the file.
    if huge {
        done.assert_code(1);
        assert!(done.err().contains("which cannot be taken back"), "{done}");
        assert!(done.err().contains("; fix: "), "{done}");
    }
    held.finish().assert_code(7);
}
