//! `tiexecctl bench` finds a planted difference, and leaves the process that it attaches to as it was.
//!
//! The figures here are planted, so that no result depends on the speed of the machine. That real times with their noise
//! give the right results, and no false ones, is tested on drawn figures (`crates/advise/src/compare.rs`).

use std::path::Path;

use serde_json::Value;

use support::attaching::{attach, ctl, joined, json, small, started, switched};
use support::child::{eventually, state};
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::pty::Pty;
use support::{Done, Fresh, Held, Kind, Prep, Run, is_root, program, require, tiexecctl};

/// A metric of `work`, which does not depend on time.
const COST: &str = "--metric=cost ([0-9]+)";

fn work() -> String {
    program("work", Kind::DynamicNoPie).to_string_lossy().into_owned()
}

fn metric(done: &Done) -> Value {
    done.assert_code(0);
    json(done)["metrics"][0].clone()
}

#[test]
fn a_difference_is_found_and_none_is_invented() {
    for (less, finding) in [("5", "less"), ("0", "no_difference")] {
        let args = ["bench", "--json", "-r", "8", "-w", "0", "--option=--backing=image", COST];
        let done = ctl([&args[..], &["--", &work(), "100", less]].concat());
        let (bench, found) = (json(&done), metric(&done));
        assert_eq!(found["finding"], finding, "{bench}");
        assert_eq!(found["plain"]["median"], 10_000.0, "{bench}");
        let planted = if less == "5" { 9_500.0 } else { 10_000.0 };
        assert_eq!(found["tiexec"]["median"], planted, "{bench}");
    }
}

/// The processes of the warm-up live long enough for a look at their text.
#[test]
fn huge_text_is_seen_in_the_warm_up() {
    let args = ["bench", "--json", "-r", "6", "-w", "2", "--option=--backing=image"];
    let done = ctl([&args[..], &["--", &work(), "3000000", "0"]].concat());
    done.assert_code(0);
    let bench = json(&done);
    assert_eq!(bench["huge_plain_bytes"], 0, "{bench}");
    assert!(bench["huge_tiexec_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{bench}");
}

#[test]
fn the_json_has_what_the_manual_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bench.json");
    let export = format!("--export-json={}", file.display());
    // On a busy machine, staging takes longer than the usual time.
    let option = "--option=--deadline=1m";
    let args = ["bench", "-r", "6", "-w", "0", option, &export, COST, "--", &work(), "2000", "0"];
    let done = ctl(args);
    done.assert_code(0).assert_silent();
    let text = std::fs::read_to_string(&file).expect("the figures");
    let bench: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&bench["schema"], &bench["kind"], &bench["unit"]),
        (&2.into(), &"bench".into(), &"process".into())
    );
    assert_eq!((&bench["rounds"], &bench["pid"]), (&6.into(), &Value::Null));
    let metrics = bench["metrics"].as_array().expect("metrics");
    let names: Vec<&str> = metrics.iter().filter_map(|metric| metric["name"].as_str()).collect();
    assert_eq!(names[..5], ["metric", "wall time", "user time", "system time", "page faults"]);
    for metric in metrics {
        for way in ["plain", "tiexec"] {
            let values = metric[way]["values"].as_array().expect("values");
            assert_eq!(values.len(), 6, "{metric}");
        }
    }
    for words in ["6 rounds", "PLAIN", "TIEXEC", "wall time", "page faults"] {
        assert!(done.out().contains(words), "{words}: {done}");
    }
    // Each row has its unit once, and the ranges begin at one place.
    let text = done.out();
    let rows = text.lines().skip_while(|line| !line.starts_with("MEDIAN")).skip(1);
    let rows: Vec<&str> = rows.take(metrics.len()).collect();
    let starts: Vec<usize> = rows
        .iter()
        .map(|row| row.chars().position(|letter| letter == '(').expect("a range"))
        .collect();
    assert!(starts.windows(2).all(|two| two[0] == two[1]), "{done}");
    let wall = rows.iter().find(|row| row.starts_with("wall time, ")).expect("the time");
    let figures = wall.split_once('(').expect("a range").1;
    let units = figures.split(['(', ')', '–', ' ']).filter(|word| ["s", "ms"].contains(word));
    assert_eq!(units.count(), 0, "{done}");
}

/// Scripts read the JSON from standard output.
#[test]
fn what_the_preparation_prints_is_not_in_the_json() {
    let args = ["bench", "--json", "-r", "6", "-w", "0", "--prepare", "echo prepared"];
    let done = ctl([&args[..], &["--", &work(), "2000", "0"]].concat());
    done.assert_code(0);
    assert_eq!(json(&done)["kind"], "bench");
    assert_eq!(done.err().matches("prepared\n").count(), 12, "{done}");
}

/// The command waits until the bench has given memory back. Of a long output the last figure counts, too.
#[test]
fn a_long_output_takes_little_memory() {
    let blocks = "$(stat -L -c %b /proc/self/fd/2)";
    let script = format!(
        "echo cost 1 >&2; head -c 8M /dev/zero >&2; while [ {blocks} -gt 8192 ]; do sleep 0.05; done; \
         echo >&2; exec \"$@\" >&2"
    );
    let args = ["bench", "--json", "-r", "6", "-w", "0", "--option=--backing=image", COST];
    let done = ctl([&args[..], &["--", "sh", "-c", &script, "sh", &work(), "100", "0"]].concat());
    assert_eq!(metric(&done)["plain"]["median"], 10_000.0, "{done}");
}

/// The kernel stops a command that asks the terminal, because it is in the background there.
#[test]
fn a_command_that_asks_the_terminal_ends_with_the_bench() {
    let mut pty = Pty::new();
    let args = ["bench", "--prepare", "echo asks; read answer </dev/tty", "--", "true"];
    let run = Run::new(tiexecctl(), args).plain().stdio([pty.slave_fd(); 3]).prep(Prep::Terminal);
    let bench = run.start();
    pty.wait_for("asks\r\n");
    eventually("it is stopped", || {
        support::smaps::children(bench.pid()).iter().any(|&pid| state(pid) == Some('T'))
    });
    pty.type_keys("\x03");
    bench.finish().assert_code(128 + libc::SIGINT);
}

#[test]
fn too_few_rounds_are_not_begun() {
    let dir = tempfile::tempdir().expect("a directory");
    let ran = dir.path().join("ran").display().to_string();
    for (rounds, says) in
        [("5", "cannot compare by 5 rounds: "), ("1", "cannot compare by 1 round: ")]
    {
        let done = ctl(["bench", "-r", rounds, "--", "touch", &ran]);
        done.assert_code(2);
        assert!(done.err().contains(says), "{done}");
        assert!(done.err().contains("it takes 6; fix: use -r 6 or more"), "{done}");
    }
    assert!(!dir.path().join("ran").exists());
}

/// The second run is the first one by TiExec.
#[test]
fn without_huge_text_it_ends_after_the_first_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let count = dir.path().join("runs");
    let args = ["bench", "--option=--backing=off", "--", "sh", "-c", "echo >>\"$0\"; sleep 1.1"];
    let done = ctl([&args[..], &[&count.to_string_lossy()]].concat());
    done.assert_code(1);
    assert!(done.err().contains("by tiexec no text was seen on huge pages; fix: "), "{done}");
    assert_eq!(done.out(), "", "{done}");
    assert_eq!(std::fs::read(&count).expect("the count").len(), 2, "{done}");
    // Neither its text nor that of a library fills a huge page.
    let held = Run::new("/bin/sleep", ["1000"]).plain().start();
    eventually("it sleeps", || support::child::state(held.pid()) == Some('S'));
    let pid = held.pid().to_string();
    let done = ctl(["bench", "--metric=echo 1", "--attach", &pid]);
    done.assert_code(1);
    assert!(done.err().contains("by tiexecctl attach no text was seen on huge pages"), "{done}");
    assert_eq!((done.out(), switched(held.pid())), (String::new(), 0), "{done}");
}

/// The metric of one way is at times several times that of the other. The bench claims nothing, and says how many
/// rounds would suffice.
#[test]
fn a_metric_that_scatters_asks_for_more_rounds() {
    let dir = tempfile::tempdir().expect("a directory");
    let count = dir.path().join("count");
    // The figures come in this order, whichever way a round begins with.
    let script = "echo >>\"$0\"; set -- 3 5 9 2 1 7 4 4 6 1 8 9 2 5 7 3; shift $(($(wc -l <\"$0\") - 1)); echo cost $1";
    let args =
        ["bench", "-r", "8", "-w", "0", "--option=--backing=off", COST, "--", "sh", "-c", script];
    let done = ctl([&args[..], &[&count.to_string_lossy()]].concat());
    done.assert_code(0);
    let out = done.out();
    assert!(out.contains("too noisy to tell: between 0."), "{done}");
    // "(-r 3500, 26 s)"; the time is omitted if it is not known.
    let rounds = out.rsplit_once("(-r ").and_then(|(_, rest)| rest.split([',', ')']).next());
    let more = out.contains("it would take more than 10000 rounds");
    assert!(
        more || rounds.is_some_and(|rounds| rounds.parse::<u32>().is_ok_and(|it| it > 8)),
        "{done}"
    );
    assert!(out.contains("  too noisy\n"), "{done}");
}

/// A lower time is better. The direction of a metric is known only to the user. The findings are those of real times,
/// so that only their words are known here.
#[test]
fn which_way_is_better() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bench.json");
    let export = format!("--export-json={}", file.display());
    let args = ["bench", "-r", "8", "-w", "0", &export, "--option=--backing=off", COST];
    let done = ctl([&args[..], &["--", "sh", "-c", "echo cost 5"]].concat());
    done.assert_code(0);
    let bench: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the figures")).expect("JSON");
    let metrics = bench["metrics"].as_array().expect("metrics");
    for (name, better) in
        [("wall time", "less".into()), ("page faults", "less".into()), ("metric", Value::Null)]
    {
        let metric = metrics.iter().find(|metric| metric["name"] == name).expect("a metric");
        assert_eq!(metric["better"], better, "{name}: {bench}");
        let row = done.out().lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
        let words = match (metric["finding"].as_str().expect("a finding"), better.is_null()) {
            ("less", false) => "  less, better",
            ("more", false) => "  more, worse",
            ("no_difference", _) => "  no difference seen",
            ("too_noisy", _) => "  too noisy",
            ("cannot_tell", _) => "  cannot tell",
            other => panic!("{other:?}: {bench}"),
        };
        assert!(row.ends_with(words), "{words}: {row}");
    }
    let date = bench["date"].as_str().expect("a date");
    assert!(date.ends_with(" UTC") && bench["version"].is_string(), "{bench}");
    // A proposed command measures in the same way, and does not replace this file.
    let again = serde_json::json!(["--warmup=0", COST, "--option=--backing=off"]);
    assert_eq!(bench["arguments"], again, "{bench}");
    // The page shows these values and the next step.
    let page = ctl(["report", &file.to_string_lossy()]).out();
    for part in [date, "Linux ", "Next: "] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn commands_that_fail() {
    let failing = ["--", "sh", "-c", "echo its last words >&2; exit 3"];
    let done = ctl([&["bench", "-r", "6"][..], &failing].concat());
    done.assert_code(1);
    for words in ["cannot measure sh: ", "exit status: 3", "its last words", "--ignore-failure"] {
        assert!(done.err().contains(words), "{words}: {done}");
    }
    let silent = ctl(["bench", "-r", "6", "--", "false"]);
    assert_eq!(silent.err().lines().count(), 1, "{silent}");
    // `--ignore-failure` does not help if tiexec refuses an option.
    let own = std::process::id().to_string();
    for option in ["--follow", "--settle=5s", "--for=5s"] {
        let option = format!("--option={option}");
        let words = ["bench", "-r", "6", &option, "--metric", "echo 1", "--attach", &own];
        let refused = ctl(words);
        refused.assert_code(2);
        assert!(refused.err().contains("fix: leave out --follow"), "{refused}");
    }
    let refused = ctl(["bench", "-r", "6", "--option=--nonsense", "--", "true"]);
    refused.assert_code(1);
    assert!(refused.err().contains("; fix: leave out the --option that tiexec refuses"));
    assert!(!refused.err().contains("--ignore-failure"), "{refused}");
    ctl([&["bench", "-r", "6", "-w", "0", "-i"][..], &failing].concat()).assert_code(0);
    let done = ctl(["bench", "-r", "6", "--", "/nonexistent/program"]);
    done.assert_code(1);
    assert!(done.err().contains("cannot run /nonexistent/program: "), "{done}");
    let done = ctl(["bench", "-r", "6", "--prepare", "exit 1", "--", "true"]);
    done.assert_code(1);
    let says = "cannot run --prepare 'exit 1': it failed: exit status: 1; fix: name a command";
    assert!(done.err().contains(says), "{done}");
    let done = ctl(["bench", "-r", "6", "--metric=(", "--", "true"]);
    done.assert_code(2);
    assert!(done.err().starts_with("tiexecctl: cannot use --metric '(': "), "{done}");
    let done = ctl(["bench", "-r", "6", "--metric=no such", "--", "echo", "42"]);
    done.assert_code(1);
    let says =
        "cannot measure echo by --metric 'no such': no number where it matches the output; fix: ";
    assert!(done.err().contains(says), "{done}");
    let done = ctl(["bench", "-r", "6", "-w", "1", "--", "true"]);
    done.assert_code(1);
    let says = "no text was seen on huge pages; fix: run tiexec --report -- true, which says why";
    assert!(done.err().contains(says), "{done}");
}

#[test]
fn a_metric_of_a_process_that_prints_no_number() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    let pid = held.pid().to_string();
    for (metric, why) in [("echo x", "it printed no number"), ("false", "exit status: 1")] {
        let done = ctl(["bench", "-r", "6", "--metric", metric, "--attach", &pid]);
        done.assert_code(1);
        let says = format!("cannot measure process {pid} by --metric '{metric}': {why}; fix: ");
        assert!(done.err().contains(&says), "{done}");
    }
    held.finish().assert_code(7);
}

#[test]
fn a_failure_loses_no_round_that_was_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, count) = (dir.path().join("bench.json"), dir.path().join("count"));
    let export = format!("--export-json={}", file.display());
    let script = "echo >> \"$0\"; test $(wc -l < \"$0\") -lt 6";
    let args = ["bench", "-r", "10", "-w", "0", &export, "--", "sh", "-c", script];
    let done = ctl([&args[..], &[&count.to_string_lossy()]].concat());
    done.assert_code(1);
    assert!(done.err().contains("ended after 2 whole rounds"), "{done}");
    let bench: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the figures")).expect("JSON");
    assert_eq!(bench["rounds"], 2, "{bench}");
    // If the result could not be written, the bench does not start.
    let nowhere = format!("--export-json={}", dir.path().join("missing/bench.json").display());
    let done =
        ctl(["bench", &nowhere, "--", "touch", &file.with_extension("run").to_string_lossy()]);
    done.assert_code(1);
    assert!(done.err().contains("missing/bench.json: no such file"), "{done}");
    assert!(!file.with_extension("run").exists());
}

/// The file has whole rounds at any time, not only at the end.
#[test]
fn a_kill_loses_no_round_of_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bench.json");
    let export = format!("--export-json={}", file.display());
    let args = ["bench", "-r", "1000", "-w", "0", &export, "--", "sleep", "0.2"];
    let mut bench = started(&[], tiexecctl(), args);
    eventually("the first round is written", || {
        assert!(!bench.has_ended(), "{}", bench.err_text());
        file.exists()
    });
    bench.signal(libc::SIGKILL);
    bench.finish().assert_signal(libc::SIGKILL);
    let bench: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the figures")).expect("JSON");
    assert!(bench["rounds"].as_u64().is_some_and(|rounds| rounds >= 1), "{bench}");
    let page = ctl(["report", &file.to_string_lossy()]);
    page.assert_code(0);
}

/// The command removes the directory of the file.
#[test]
fn figures_that_cannot_be_written_are_printed() {
    let dir = tempfile::tempdir().expect("a directory");
    let to = dir.path().join("to");
    std::fs::create_dir(&to).expect("a directory");
    let export = format!("--export-json={}", to.join("bench.json").display());
    let args = ["bench", "-r", "6", "-w", "0", &export, "--", "rm", "-rf", &to.to_string_lossy()];
    let done = ctl(args);
    done.assert_code(1);
    assert!(done.err().contains("bench.json: no such file or directory (ENOENT)"), "{done}");
    assert!(done.err().contains("the figures follow on standard output, as JSON"), "{done}");
    let text = done.out();
    let bench: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!(bench["rounds"], 6, "{bench}");
}

#[test]
fn a_full_disk_is_seen_before_the_first_run() {
    require!(is_root(), "a mount");
    support::store::own_run();
    let dir = Path::new("/run/full");
    std::fs::create_dir(dir).expect("a directory");
    support::store::tmpfs(dir, "size=128k");
    let ran = Path::new("/run/ran");
    let export = format!("--export-json={}", dir.join("bench.json").display());
    // The new file, for which 24 KiB may be needed, is written beside the one before.
    for free in [4 << 10, 32 << 10] {
        std::fs::write(dir.join("other"), vec![1; (128 << 10) - free]).expect("a file");
        let done = ctl(["bench", &export, "-r", "20", "--", "touch", &ran.to_string_lossy()]);
        done.assert_code(1);
        assert!(done.err().contains("bench.json: no space left on device (ENOSPC)"), "{done}");
        assert!(!ran.exists(), "{done}");
        let left: Vec<_> = std::fs::read_dir(dir).expect("a directory").flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
fn bad_usage() {
    for args in [
        &["bench"][..],
        &["bench", "-r", "0", "--", "true"],
        &["bench", "--metric=(", "--", "true"],
        &["bench", "--attach", "1"],
        &["bench", "--attach", "0", "--metric=x"],
        &["bench", "--attach", "1", "--metric=x", "--", "true"],
        &["bench", "--counter", "--metric=x", "--", "true"],
    ] {
        ctl(args).assert_code(2);
    }
    let ended = Run::new("/bin/true", [""; 0]).plain().start();
    let pid = ended.pid().to_string();
    ended.finish();
    ctl(["bench", "--attach", &pid, "--metric=echo 1"]).assert_code(4);
}

/// A `work` that never ends, and a metric that prints its count.
fn counting(copy: &Fresh, dir: &tempfile::TempDir) -> (Held, String) {
    let file = dir.path().join("count").to_string_lossy().into_owned();
    let held = Run::new(copy.path(), ["20000", "60", &file]).plain().start();
    let counts = || std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'));
    eventually("it counts", counts);
    (held, format!("--metric=cat '{file}'"))
}

/// A metric that waits until the count has grown, and prints it: on a busy machine a slice may be too short for that.
const GROWN: &str = "
    until [ $(cat \"$1\") -gt $(cat \"$2\" 2>/dev/null || echo 0) ]; do sleep 0.02; done
    cat \"$1\" | tee \"$2\"";

#[test]
fn slices_of_a_running_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = small("work", Kind::DynamicNoPie);
    let (held, _cat) = counting(&copy, &dir);
    let pid = held.pid().to_string();
    let before = joined(held.pid());
    let [script, count, mark] = ["grown", "count", "mark"].map(|name| dir.path().join(name));
    std::fs::write(&script, GROWN).expect("a file");
    let metric =
        format!("--metric=sh '{}' '{}' '{}'", script.display(), count.display(), mark.display());
    // The program may get no processor in a shorter slice. The slice then has no figure for each second of processor time.
    let args =
        ["bench", "--json", "-r", "6", "--attach", &pid, "--counter", "--slice=300ms", &metric];
    let done = Run::new(tiexecctl(), args).plain().limit(600).output();
    done.assert_code(0);
    let bench = json(&done);
    assert_eq!((&bench["unit"], &bench["pid"]), (&"slice".into(), &held.pid().into()));
    let metrics = bench["metrics"].as_array().expect("metrics");
    assert_eq!(metrics[0]["name"], "metric per CPU s", "{bench}");
    for (name, unit, better) in [
        ("metric per CPU s", "/CPU s", "more".into()),
        ("metric per s", "/s", "more".into()),
        ("CPU s per s", "", Value::Null),
    ] {
        let metric = metrics.iter().find(|metric| metric["name"] == name);
        let metric = metric.unwrap_or_else(|| panic!("{name}: {bench}"));
        assert_eq!(metric["better"], better, "{name}: {bench}");
        assert!(unit.is_empty() || metric["unit"] == unit, "{name}: {bench}");
        for way in ["plain", "tiexec"] {
            let values = metric[way]["values"].as_array().expect("values");
            let is_figure = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
            assert!(values.len() == 6 && values.iter().all(is_figure), "{name}: {bench}");
        }
    }
    assert_eq!(bench["huge_plain_bytes"], 0, "{bench}");
    assert!(bench["huge_tiexec_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{bench}");
    assert_eq!(joined(held.pid()), before);
}

/// A counter that stands still or falls gives no figure to compare.
#[test]
fn a_counter_that_does_not_grow() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = small("work", Kind::DynamicNoPie);
    let (held, _cat) = counting(&copy, &dir);
    let pid = held.pid().to_string();
    let before = joined(held.pid());
    let count = dir.path().join("falls");
    let falls = format!("echo x >>\"{0}\"; expr 9 - $(wc -l <\"{0}\")", count.display());
    for (metric, says) in [
        ("echo 3 done", "did not grow in 20ms, and was 3; fix: name a counter that grows"),
        (&falls, "fell from 8 to 7; fix: name a counter that only grows"),
    ] {
        let metric = format!("--metric={metric}");
        let args = ["bench", "-r", "6", "--attach", &pid, "--counter", "--slice=20ms", &metric];
        let done = ctl(args);
        done.assert_code(1);
        assert!(done.err().contains(says) && done.err().lines().count() == 1, "{done}");
        let quoted = metric.replacen("--metric=", "by --metric '", 1) + "': it ";
        assert!(done.err().contains(&quoted), "{done}");
        assert_eq!(done.out(), "", "{done}");
        assert_eq!(joined(held.pid()), before);
    }
}

#[test]
fn interrupted_or_failing_it_leaves_the_process_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = small("work", Kind::DynamicNoPie);
    let (held, cat) = counting(&copy, &dir);
    let pid = held.pid().to_string();
    let before = joined(held.pid());
    let args = ["bench", "--attach", &pid, "--counter", "--slice=20s", &cat];
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT] {
        let bench = started(&[], tiexecctl(), args);
        // The bench catches signals only after it has examined the process.
        eventually("it has begun", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", bench.pid()));
            let caught = status.unwrap_or_default();
            let caught = caught
                .lines()
                .find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:\t")?, 16).ok());
            caught.is_some_and(|caught| caught >> (signal - 1) & 1 == 1)
        });
        bench.signal(signal);
        let done = bench.finish();
        done.assert_code(128 + signal);
        assert!(done.err().contains("interrupted"), "{done}");
        assert_eq!(joined(held.pid()), before);
    }
    // This metric fails once the process has been switched.
    let image = format!(
        "--metric=if grep -q /memfd:tiexec: /proc/{pid}/maps; then exit 1; else echo 1; fi"
    );
    let done = ctl(["bench", "-r", "6", "--attach", &pid, &image]);
    done.assert_code(1);
    assert!(done.err().contains("exit status: 1"), "{done}");
    assert_eq!(joined(held.pid()), before);
    // The benchmark also fails if another process switches the text meanwhile.
    let ctl_path = tiexecctl().display();
    let attached = format!("--metric='{ctl_path}' attach -q --backing=image {pid}; echo 1");
    let done = ctl(["bench", "-r", "6", "--attach", &pid, &attached]);
    done.assert_code(1);
    assert!(done.err().contains("somebody else"), "{done}");
    assert_eq!(joined(held.pid()), before);
    // The benchmark does not treat text that another process has switched as plain.
    attach(held.pid()).assert_code(0);
    let done = ctl(["bench", "-r", "6", "--attach", &pid, "--metric=echo 1"]);
    done.assert_code(1);
    assert!(done.err().contains("already") && switched(held.pid()) > 0, "{done}");
}

/// A signal that ends a benchmark also ends its commands.
#[test]
fn told_to_end_it_ends_what_it_runs() {
    let copy = small("work", Kind::DynamicNoPie);
    let dir = tempfile::tempdir().expect("a directory");
    let (held, _cat) = counting(&copy, &dir);
    let (pid, before) = (held.pid().to_string(), joined(held.pid()));
    let mark = dir.path().join("began").to_string_lossy().into_owned();
    let long = format!("echo > '{mark}'; sleep 1000 & wait");
    let metric = format!("--metric={long}");
    let command = ["bench", "--", "sh", "-c", &long];
    for args in [&command[..], &["bench", "--attach", &pid, &metric][..]] {
        let bench = started(&[], tiexecctl(), args);
        eventually("it runs something", || std::fs::exists(&mark).is_ok_and(|it| it));
        let shells = support::smaps::children(bench.pid());
        bench.signal(libc::SIGTERM);
        let done = bench.finish();
        done.assert_code(128 + libc::SIGTERM);
        assert!(done.err().contains("interrupted after 0 whole rounds"), "{done}");
        assert_eq!(shells.len(), 1);
        // SAFETY: kill with signal 0 has no effect at all.
        eventually("its group is gone", || unsafe { libc::kill(-shells[0], 0) } == -1);
        std::fs::remove_file(&mark).expect("the mark");
    }
    assert_eq!(joined(held.pid()), before);
}

/// Ctrl-C reaches every process in a terminal's foreground, also the metric's command. Users press it again if nothing
/// seems to happen.
#[test]
fn ctrl_c_again_and_again_leaves_the_process_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = small("work", Kind::DynamicNoPie);
    let (held, cat) = counting(&copy, &dir);
    let pid = held.pid().to_string();
    let before = joined(held.pid());
    let slow = format!("{cat}; sleep 0.3; echo 1");
    let args = ["bench", "-r", "100", "-w", "0", "--attach", &pid, &slow];
    for again in [1, 40] {
        let bench = started(&[], tiexecctl(), args);
        eventually("it is switched", || switched(held.pid()) > 0);
        for _ in 0..again {
            // SAFETY: kill has no memory conditions; the child is not reaped, so the number is still its own.
            unsafe { libc::kill(-bench.pid(), libc::SIGINT) };
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let done = bench.finish();
        done.assert_code(128 + libc::SIGINT);
        assert!(done.err().contains("interrupted after "), "{done}");
        assert_eq!(joined(held.pid()), before, "{again}: {done}");
    }
}

/// A revert does not change such text, which is huge in both arms. The bench compares the part that an attach adds.
#[test]
fn a_process_whose_page_cache_is_huge_can_be_measured() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let dir = tempfile::tempdir().expect("a directory");
    let copy = Fresh::copy(&program("work", Kind::DynamicNoPie));
    let (held, _cat) = counting(&copy, &dir);
    let before = joined(held.pid());
    let args = ["bench", "--json", "-r", "6", "-w", "0", "--metric=echo 1", "--attach"];
    let done = ctl([&args[..], &[&held.pid().to_string()]].concat());
    done.assert_code(0);
    assert!(done.err().contains("on huge pages too"), "{done}");
    assert!(json(&done)["huge_plain_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{done}");
    assert_eq!(joined(held.pid()), before);
}

#[test]
fn ctrl_c_ends_the_rounds_of_a_command_and_tells_of_those_that_were() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bench.json");
    let export = format!("--export-json={}", file.display());
    let (count, runs) = (dir.path().join("runs"), "echo >> \"$0\"; sleep 0.1");
    let count = count.to_string_lossy().into_owned();
    let args = ["bench", "-r", "1000", "-w", "0", &export, "--", "sh", "-c", runs, &count];
    let bench = started(&[], tiexecctl(), args);
    eventually("two rounds are done", || std::fs::read(&count).is_ok_and(|lines| lines.len() >= 5));
    // SAFETY: kill has no memory conditions; the child is not reaped, so the number is still its own.
    unsafe { libc::kill(-bench.pid(), libc::SIGINT) };
    let done = bench.finish();
    done.assert_code(128 + libc::SIGINT);
    assert!(done.err().contains("interrupted after ") && !done.err().contains("failed"), "{done}");
    let bench: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the figures")).expect("JSON");
    assert!(bench["rounds"].as_u64().is_some_and(|rounds| rounds >= 2), "{bench}");
}

#[test]
fn an_option_that_would_measure_something_else_is_refused() {
    for option in ["true", "--dry-run", "-p", "--help", "--version"] {
        let done = ctl(["bench", &format!("--option={option}"), "--", "false"]);
        done.assert_code(2);
        assert!(done.err().contains("; fix: "), "{done}");
    }
}
