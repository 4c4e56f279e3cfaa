//! `tiexecctl advise` compares the ways to get text onto huge pages, and ends with the command to run. Its prediction
//! for a way must match the result of that way.

use serde_json::Value;

use support::attaching::{attach, ctl, ctl_named, json, small, switched};
use support::child::soon;
use support::smaps::pmd_size;
use support::{Done, Fresh, Held, Kind, Run, program, require};

fn share(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a share"))
}

/// Starts `hotset`, which executes all over its text for longer than a test takes.
fn spinning(copy: &Fresh) -> Held {
    let mut held = Run::new(copy.path(), ["1500", "600"]).plain().start();
    held.wait_line("spinning");
    held
}

fn advise(args: &[&str]) -> Done {
    let done = ctl([&["advise", "-F", "3999", "--duration", "1s"], args].concat());
    done.assert_code(0).assert_silent();
    done
}

fn ways(advice: &Value) -> Vec<(String, f64)> {
    let ways = advice["ways"].as_array().unwrap_or_else(|| panic!("{advice}"));
    let way = |way: &Value| {
        (way["command"].as_str().expect("a command").to_owned(), share(&way["on_huge"]))
    };
    ways.iter().map(way).collect()
}

/// Runs a command that the advice names, by the binaries of this test.
fn follow(command: &str) {
    ctl_named(command).assert_code(0).assert_silent();
}

#[test]
fn an_attach_and_its_edges() {
    let copy = small("hotset", Kind::DynamicNoPie);
    // The start of the heap is random, and may lie in the huge page of the text's tail.
    let mut tried = (0..8).map(|_| {
        let held = spinning(&copy);
        let advice = json(&advise(&["--json", &held.pid().to_string()]));
        (held, advice)
    });
    let (held, advice) =
        tried.find(|(_, advice)| ways(advice).len() == 2).expect("free edges in one of eight");
    let pid = held.pid().to_string();
    let ways = ways(&advice);
    let commands: Vec<&str> = ways.iter().map(|(command, _)| command.as_str()).collect();
    let edges = format!("tiexecctl attach --edges=pad {pid}");
    assert_eq!(commands, [&format!("tiexecctl attach {pid}"), &edges], "{advice}");
    assert!(ways[0].1 + 0.1 < ways[1].1, "{advice}");
    // The figures belong to the recommended way.
    let reached = share(&advice["text"]["on_huge_then"]);
    assert!(ways.iter().any(|(_, on_huge)| *on_huge == reached), "{advice}");
    // The result matches the prediction, within the difference of two samplings of a busy machine.
    follow(&edges);
    let after = json(&advise(&["--json", &pid]));
    let now = share(&after["text"]["on_huge_now"]);
    let differs = |way: &(String, f64)| (now - way.1).abs();
    assert!(differs(&ways[1]) < differs(&ways[0]), "{now}: {advice}");
}

/// Text in an image counts for the original file.
#[test]
fn a_treated_process_has_one_row_for_its_text() {
    let copy = small("hotset", Kind::DynamicNoPie);
    let held = spinning(&copy);
    attach(held.pid()).assert_code(0);
    assert!(switched(held.pid()) > 0);
    let advice = json(&advise(&["--json", &held.pid().to_string()]));
    let path = copy.path().to_string_lossy();
    let files = advice["files"].as_array().expect("files");
    let named = |part: &str| -> Vec<&Value> {
        files.iter().filter(|f| f["path"].as_str().is_some_and(|p| p.contains(part))).collect()
    };
    assert_eq!((named(&path).len(), named("memfd").len()), (1, 0), "{advice}");
    let (now, of) = (share(&named(&path)[0]["on_huge_now"]), share(&named(&path)[0]["share"]));
    assert!(now > 0.3 && now < 1.0 && of > 0.9, "{advice}");
    // The advice names the share that is huge already, and the saving by it, from the measured time of a walk.
    let judgement = &advice["judgement"];
    let reasons = judgement["reasons"].to_string();
    assert!(reasons.contains("is on huge pages already"), "{advice}");
    let (saved, saving) = (share(&judgement["saved"]), share(&judgement["saving"]));
    assert!(saved >= 0.0, "{advice}");
    if judgement["verdict"] == "done" {
        assert!(saved >= 0.003 && saving < 0.003 && advice["next"].is_null(), "{advice}");
    }
    // If no way reaches more, the advice recommends nothing.
    follow(&format!("tiexecctl attach --edges=pad {}", held.pid()));
    let mut text = String::new();
    // On a busy machine, one sampling may have too few samples for that.
    let told = soon(|| {
        text = advise(&[&held.pid().to_string()]).out();
        text.ends_with("\nnext  nothing: leave it as it is\n")
    });
    assert!(told, "{text}");
}

/// A start by tiexec moves a position-independent program to an address where most of its text fills huge pages.
#[test]
fn a_start_where_that_gives_more() {
    require!(pmd_size() <= 2 << 20, "{}", support::smaps::NO_TEXT_FOR_LARGE);
    let copy = small("hotset", Kind::DynamicPie);
    // One of 30 addresses within a huge page is as good without a move.
    let mut told = (0..5).map(|_| {
        let held = spinning(&copy);
        json(&advise(&["--json", &held.pid().to_string()]))
    });
    let start = |advice: &Value| ways(advice).iter().any(|(way, _)| way.starts_with("tiexec hot"));
    assert!(told.any(|advice| start(&advice)));
}

#[test]
fn a_command_ends_with_itself_by_tiexec() {
    let hot = program("hotset", Kind::DynamicNoPie).to_string_lossy().into_owned();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("advice").to_string_lossy().into_owned();
    ctl(["advise", "--json", "-F", "1999", "-o", &out, "--", &hot, "1500", "1"]).assert_code(0);
    let advice: Value =
        serde_json::from_str(&std::fs::read_to_string(&out).expect("the advice")).expect("JSON");
    let ways = ways(&advice);
    // A path with a blank stands in quotes.
    let shown = if hot.contains(' ') { format!("'{hot}'") } else { hot.clone() };
    assert_eq!(ways[0].0, format!("tiexec {shown} 1500 1"), "{advice}");
    assert_eq!(ways[1].0, format!("tiexec --edges=pad {shown} 1500 1"), "{advice}");
    // If there are too few samples, the advice is to sample again.
    ctl(["advise", "-F", "50", "-o", &out, "--", &hot, "1500", "0.2"]).assert_code(0);
    let text = std::fs::read_to_string(&out).expect("the advice");
    let again = format!("next  tiexecctl advise --output {out} -F 500 -- {shown} 1500 0.2\n");
    assert!(text.ends_with(&again) && text.contains("\nmaybe: "), "{text}");
}

/// Code that a program generates lies on huge pages only with `--select`.
#[test]
fn code_that_a_program_makes_itself() {
    let mut held = Run::new(program("jit", Kind::DynamicPie), ["spin"]).plain().hold();
    let pid = held.pid().to_string();
    let advice = json(&advise(&["--json", &pid]));
    let ways = ways(&advice);
    let take = format!("tiexecctl attach --select=all {pid}");
    let reached = ways.iter().find(|(way, _)| *way == take).unwrap_or_else(|| panic!("{advice}")).1;
    assert!(
        reached > ways[0].1 + 0.1 && ways[0].0 == format!("tiexecctl attach {pid}"),
        "{advice}"
    );
    follow(&take);
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
}
