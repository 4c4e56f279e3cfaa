//! Where the host of the machine splits huge pages, each command does as told, and says once a day and program that huge text
//! gains little there.

use serde_json::Value;
use support::attaching::{small, switched};
use support::{Kind, Run, is_root, require, tiexecctl};

const SPLITS: (&str, &str) = ("TIEXEC_TEST_HOST", "splits");
const WARNING: &str =
    "the host of this machine splits huge pages: huge text gains little here, and can lose";

fn on_host<const N: usize>((name, value): (&str, &str), words: [&str; N]) -> support::Done {
    Run::new(tiexecctl(), words).plain().env(name, value).output()
}

#[test]
fn an_attach_says_so_once_a_day() {
    let copy = small("hold", Kind::DynamicNoPie);
    let start = || Run::new(copy.path(), ["7"]).plain().hold();
    let (one, quiet, again, whole) = (start(), start(), start(), start());
    let attach = |held: &support::Held, host, option| {
        let pid = held.pid().to_string();
        let done = on_host(host, ["attach", "--backing=image", "--json", option, &pid]);
        done.assert_code(0);
        assert!(switched(held.pid()) > 0);
        let json: Value = serde_json::from_str(&done.out()).expect("JSON");
        assert_eq!(json["host_splits"], host == SPLITS, "{json}");
        done.err()
    };
    assert_eq!(attach(&quiet, SPLITS, "--quiet"), "");
    assert_eq!(attach(&whole, ("TIEXEC_TEST_HOST", "whole"), "--each"), "");
    let said = attach(&one, SPLITS, "--each");
    let pid = one.pid();
    let measure = format!("; to measure it: tiexecctl revert {pid} && tiexecctl canary {pid}\n");
    assert!(said.contains(WARNING) && said.ends_with(&measure), "{said}");
    assert_eq!(attach(&again, SPLITS, "--each"), "");
    for held in [one, quiet, again, whole] {
        held.finish().assert_code(7);
    }
}

#[test]
fn a_launch_says_so_once_a_day() {
    let copy = small("hold", Kind::DynamicNoPie);
    let launch = || Run::new(copy.path(), ["7"]).options(["--backing=image"]);
    let said = launch().env(SPLITS.0, SPLITS.1).output();
    said.assert_code(7);
    assert!(said.err().contains(WARNING), "{said}");
    assert!(said.err().contains("; to measure it: tiexecctl bench -- COMMAND\n"), "{said}");
    for run in [launch().env(SPLITS.0, SPLITS.1), launch()] {
        run.output().assert_code(7).assert_silent();
    }
}

/// A change is not proposed there without a measurement.
#[test]
fn advice_proposes_a_canary() {
    require!(is_root(), "to sample takes root, or a setting");
    let copy = small("hotset", Kind::DynamicNoPie);
    let mut busy = Run::new(copy.path(), ["60", "600"]).plain().start();
    busy.wait_line("spinning");
    let pid = busy.pid().to_string();
    for (host, command) in [("splits", "canary"), ("whole", "attach")] {
        let done = on_host(
            ("TIEXEC_TEST_HOST", host),
            ["advise", "--json", "--duration=2s", "-F", "999", &pid],
        );
        done.assert_code(0);
        let json: Value = serde_json::from_str(&done.out()).expect("JSON");
        let next = json["next"].as_str();
        // The measured cost of a miss decides whether anything is proposed at all.
        let words = format!("tiexecctl {command} ");
        assert!(next.is_none_or(|next| next.starts_with(&words)), "{host}: {json}");
    }
}
