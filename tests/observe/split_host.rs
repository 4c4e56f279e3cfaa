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
        let done = on_host(host, ["attach", "--backing=image", option, &pid]);
        done.assert_code(0);
        assert!(switched(held.pid()) > 0);
        if option == "--json" {
            let json: Value = serde_json::from_str(&done.out()).expect("JSON");
            assert_eq!(json["host_splits"], host == SPLITS, "{json}");
        }
        done.err()
    };
    assert_eq!(attach(&quiet, SPLITS, "--quiet"), "");
    assert_eq!(attach(&whole, ("TIEXEC_TEST_HOST", "whole"), "--json"), "");
    // All is huge already, so there is nothing that a revert could undo.
    assert_eq!(attach(&whole, SPLITS, "--json"), "");
    let said = attach(&one, SPLITS, "--json");
    let pid = one.pid();
    let measure = format!(
        "; to measure it: tiexecctl revert {pid}, then tiexecctl canary --counter CMD {pid}\n"
    );
    assert!(said.contains(WARNING) && said.ends_with(&measure), "{said}");
    assert_eq!(attach(&again, SPLITS, "--json"), "");
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

/// A launch believes what its user has recorded within a day, and nobody else.
#[test]
fn a_launch_reads_the_record_of_its_user() {
    require!(is_root(), "another /run needs root");
    let copy = small("hold", Kind::DynamicNoPie);
    let cases = [
        ("0", "now", "huge_pages_split", true),
        ("0", "now", "huge_pages_whole", false),
        ("0", "2 days ago", "huge_pages_split", false),
        ("65534", "now", "huge_pages_split", false),
    ];
    for (owner, time, name, warns) in cases {
        let script = format!(
            "mount -t tmpfs none /run && mkdir /run/tiexec && mkdir -m 700 /run/tiexec/machine && \
             touch -d '{time}' /run/tiexec/machine/{name} && chown {owner} /run/tiexec/machine && \
             exec env -u TIEXEC_TEST_HOST \"$@\""
        );
        let run = Run::new(copy.path(), ["7"]).options(["--backing=image"]);
        let done = run.behind(["unshare", "--mount", "sh", "-ec", &script, "sh"]).output();
        done.assert_code(7);
        assert_eq!(done.err().contains(WARNING), warns, "{owner} {time} {name}: {done}");
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
        // The measured cost of a miss and the number of samples decide whether anything is proposed at all.
        let is_known = ["tiexecctl advise ", &format!("tiexecctl {command} ")];
        let is_known = |next: &str| is_known.iter().any(|words| next.starts_with(words));
        assert!(next.is_none_or(is_known), "{host}: {json}");
    }
}
