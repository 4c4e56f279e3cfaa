//! `tiexecctl advise` finds the places where a program executes, predicts the effect of huge pages, and disturbs no
//! process.

use std::sync::mpsc::channel;

use serde_json::Value;

use support::attaching::{
    Before, assert_untouched, attach, ctl, ctl_behind, json, small, started, switched,
};
use support::child::eventually;
use support::smaps::{children, pmd_size, stat_field, status_field};
use support::{
    Done, Fresh, Held, Kind, Public, Run, installed, is_root, program, require, tiexecctl,
};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// The advice on one file.
fn of_file<'a>(advice: &'a Value, path: &str) -> &'a Value {
    let files = advice["files"].as_array().expect("files");
    files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}: {advice}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn share(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a share"))
}

/// Starts `hotset`, which executes in this many pages for longer than a test takes.
fn spinning(copy: &Fresh, pages: u64) -> Held {
    let mut held = Run::new(copy.path(), [pages.to_string(), "600".to_owned()]).plain().start();
    held.wait_line("spinning");
    held
}

fn on(pid: i32) -> Done {
    ctl(["advise", "--json", "-F", "3999", "--duration", "1s", &pid.to_string()])
}

/// Starts this command of `tiexecctl`, and waits until it samples.
fn sampling(args: &[&str]) -> Held {
    let advise = started(&[], support::tiexecctl(), args);
    eventually("it samples", || {
        // A child samples the processes of other users.
        let mut pids = children(advise.pid());
        pids.push(advise.pid());
        pids.iter().any(|pid| {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
            maps.unwrap_or_default().contains("perf_event")
        })
    });
    advise
}

#[test]
fn a_known_hot_set_is_found() {
    for pages in [1_u64, 48, 300] {
        let hot = program("hotset", Kind::DynamicNoPie);
        let path = hot.canonicalize().expect("a path").to_string_lossy().into_owned();
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("advice").to_string_lossy().into_owned();
        let pages_word = pages.to_string();
        let done =
            ctl(["advise", "--json", "-F", "4999", "-o", &out, "--", &path, &pages_word, "1"]);
        done.assert_code(0).assert_silent();
        assert!(done.out().contains("spinning\n"), "the command's output: {done}");
        let text = std::fs::read_to_string(&out).expect("the advice");
        let advice: Value = serde_json::from_str(&text).expect("JSON");
        let file = of_file(&advice, &path);
        // The loop itself lies in a page or two more.
        let all = number(&file["base_pages"]["all"]);
        assert!((pages..pages + 8).contains(&all), "{pages} pages: {file}");
        // A second gives 5000 samples, most of which lie in the pages.
        assert!(number(&file["samples"]) > 1000, "{advice}");
        let p99 = number(&file["base_pages"]["p99"]);
        assert!(p99 + pages / 10 + 1 >= pages && p99 <= all, "{pages} pages: {file}");
        let huge = number(&file["huge_pages"]["all"]);
        assert!(huge <= number(&file["base_pages"]["all"]), "{file}");
        if pages > 1 {
            // 6 MiB of text lie on three huge pages, and on the ends of two more.
            let whole = (6 << 20) / pmd_size();
            assert!((whole.max(1)..=whole + 2).contains(&huge), "{file}");
        }
        assert!(share(&file["share"]) > 0.9, "{file}");
        assert_eq!(advice["sampling"]["lost"], 0, "{advice}");
    }
}

#[test]
fn what_is_huge_is_seen_before_and_after_an_attach() {
    let copy = small("hotset", Kind::DynamicNoPie);
    let held = spinning(&copy, 1500);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = on(pid);
    done.assert_code(0).assert_silent();
    assert_untouched(pid, &before);
    let advice = json(&done);
    let path = copy.path().to_string_lossy().into_owned();
    let file = of_file(&advice, &path);
    assert_eq!(share(&file["on_huge_now"]), 0.0, "{file}");
    assert!(share(&file["on_huge_then"]) > 0.3, "{file}");
    let missing = |file: &Value, when: &str| {
        share(&file["model"][when]["second"]) + share(&file["model"][when]["walk"])
    };
    assert!(missing(file, "now") > 0.0, "1500 pages fit nowhere: {file}");
    assert!(missing(file, "then") < missing(file, "now"), "{file}");

    attach(pid).assert_code(0);
    assert!(switched(pid) > 0);
    let done = on(pid);
    done.assert_code(0);
    let after = json(&done);
    let treated = of_file(&after, &path);
    let (now, possible) = (share(&treated["on_huge_now"]), share(&file["on_huge_then"]));
    assert!(now > 0.2 && now < possible + 0.1, "{after}");
    assert!(missing(&after["text"], "now") < missing(&advice["text"], "now"), "{after}");
}

#[test]
fn the_json_has_what_the_manual_says() {
    let copy = small("hotset", Kind::DynamicPie);
    let held = spinning(&copy, 40);
    let done = on(held.pid());
    done.assert_code(0).assert_silent();
    let advice = json(&done);
    assert_eq!(advice["schema"], 2);
    assert_eq!(advice["kind"], "advise");
    assert_eq!(advice["pid"], held.pid());
    assert!(advice["comm"].as_str().is_some_and(|comm| comm.starts_with("hotset")), "{advice}");
    for key in ["clock", "frequency", "duration_ms", "samples", "lost", "processes"] {
        assert_ne!(advice["sampling"][key], Value::Null, "{key}: {advice}");
    }
    for key in ["source", "first", "second", "second_holds_data"] {
        assert_ne!(advice["itlb"][key], Value::Null, "{key}: {advice}");
    }
    assert!(
        ["worth_it", "maybe", "not_worth_it"]
            .iter()
            .any(|word| advice["judgement"]["verdict"] == *word)
    );
    assert!(!advice["judgement"]["reasons"].as_array().expect("reasons").is_empty(), "{advice}");
    let text = &advice["text"];
    assert_eq!(text["samples"], advice["sampling"]["samples"]);
    for when in ["now", "then"] {
        let of = |key: &str| share(&text["model"][when][key]);
        assert!((of("first") + of("second") + of("walk") - 1.0).abs() < 1e-9, "{text}");
    }
    let table = ctl(["advise", "--duration", "1s", &held.pid().to_string()]);
    table.assert_code(0).assert_silent();
    let (out, path) = (table.out(), copy.path().to_string_lossy().into_owned());
    for words in ["samples in", &path, "iTLB", "worth", "misses"] {
        assert!(out.contains(words) || words == "worth" && out.contains("maybe"), "{words}: {out}");
    }
}

/// The jumps are timed once for each boot and user, and once a day where they are unclear. A user trusts nobody else's record.
#[test]
fn jumps_are_timed_once() {
    require!(is_root(), "another /run needs root");
    let copy = small("hotset", Kind::DynamicPie);
    let held = spinning(&copy, 40);
    // No processor takes 5 microseconds for a jump.
    let unclear = "8192 4 5000 10 -\n".to_owned();
    let cases = [
        (&unclear, "0", "now", true),
        (&unclear, "0", "2 days ago", false),
        (&clear(), "0", "2 days ago", true),
        (&clear(), "65534", "now", false),
    ];
    for (record, owner, time, is_used) in cases {
        let script = format!(
            "mount -t tmpfs none /run; mkdir /run/tiexec; mkdir -m 700 /run/tiexec/machine; cd /run/tiexec/machine; \
             printf %s '{record}' > jumps; touch -d '{time}' jumps; chown {owner} .; \
             \"$@\"; cat jumps >&2"
        );
        let pid = held.pid().to_string();
        let run = Run::new(tiexecctl(), ["advise", "--json", "--duration=1s", &pid]).plain();
        let run = run.env("TIEXEC_TEST_HOST", "whole");
        let done = run.behind(["unshare", "--mount", "sh", "-ec", &script, "sh"]).output();
        done.assert_code(0);
        let advice = json(&done);
        let cost = advice["miss_time"]["walk_ns"].as_f64().expect("a time");
        assert_eq!(cost > 4000.0, is_used, "{owner} {time}: {done}");
        let is_kept = done.err().contains(record);
        assert_eq!(is_kept, is_used || owner != "0", "{owner} {time}: {done}");
        if is_used && *record == clear() {
            let measured = &advice["itlb"]["measured"]["base"];
            let about = |level: &str, entries: f64| {
                let found = measured[level].as_f64().expect("a number");
                assert!((0.75..1.33).contains(&(found / entries)), "{level}: {advice}");
            };
            about("first", 100.0);
            about("second", 1000.0);
            assert!(advice["itlb"]["second"]["shared"] == measured["second"], "{advice}");
        }
    }
}

/// A record that shows a TLB of 100 and 1000 entries, and walks that no processor has.
fn clear() -> String {
    let missed = |places: f64, entries: f64| (1.0 - entries / places).max(0.0);
    let point = |places: &f64| {
        let base = 4.0 + 500.0 * missed(*places, 100.0) + 6000.0 * missed(*places, 1000.0);
        format!("{places} 4.00 {base:.2} 4.00 -\n")
    };
    let copy: String = [8.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0]
        .iter()
        .map(point)
        .collect();
    [copy.clone(), copy].join("\n")
}

#[test]
fn who_is_idle_gives_nothing_to_sample() {
    let held = Run::new("sleep", ["600"]).plain().start();
    eventually("sleep sleeps", || support::child::state(held.pid()) == Some('S'));
    let pid = held.pid().to_string();
    let done = ctl(["advise", "--duration", "500ms", &pid]);
    done.assert_code(1);
    let err = done.err();
    assert!(err.starts_with(&format!("tiexecctl: cannot advise on process {pid}: ")), "{done}");
    assert!(err.contains(&format!("; fix: `tiexecctl advise --duration 6s {pid}` ")), "{done}");
    assert!(done.out().is_empty(), "{done}");
}

#[test]
fn pids_that_are_none() {
    for word in ["0", "-5", "x", "99999999999", ""] {
        ctl(["advise", "--", word]).assert_code(1);
        ctl(["advise", word]).assert_code(2);
    }
    ctl(["advise"]).assert_code(2);
    ctl(["advise", "1", "--", "true"]).assert_code(2);
    ctl(["advise", "-F", "0", "1"]).assert_code(2);
    let ended = Run::new("/bin/true", [""; 0]).plain().start();
    let pid = ended.pid();
    ended.finish();
    let done = ctl(["advise", &pid.to_string()]);
    done.assert_code(4);
    // A kernel thread, where this PID namespace shows one.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd") {
        ctl(["advise", "2"]).assert_code(1);
    }
}

#[test]
fn the_process_may_end_while_it_is_sampled() {
    let copy = small("hotset", Kind::StaticNoPie);
    let held = Run::new(copy.path(), ["30", "0.3"]).plain().start();
    let done = ctl(["advise", "--json", "--duration", "30s", &held.pid().to_string()]);
    done.assert_code(0);
    assert!(number(&json(&done)["sampling"]["duration_ms"]) < 30_000, "{done}");
    held.finish().assert_code(0);
}

/// The report counts samples as lost if they do not fit into the buffers before they are read.
#[test]
fn lost_samples_are_reported() {
    let copy = small("hotset", Kind::StaticNoPie);
    let held = spinning(&copy, 30);
    let pid = held.pid().to_string();
    let args = ["advise", "--json", "-F", "19997", "--duration", "10m", &pid];
    let advise = sampling(&args);
    let ticks = || stat_field(held.pid(), 14);
    let runs_for = |more: u64| {
        let before = ticks();
        eventually("it has run for long enough", || ticks() > before + more);
    };
    advise.signal(libc::SIGSTOP);
    // A buffer of 128 KiB for each processor holds some 4000 samples: two buffers hold less than half a second of the
    // program's time. The kernel may take fewer samples than requested (perf_cpu_time_max_percent), so the program runs
    // four times as long.
    runs_for(200);
    let sleeps = || {
        let count = status_field(advise.pid(), "voluntary_ctxt_switches");
        count.and_then(|count| count.parse().ok()).unwrap_or(0_u64)
    };
    let before = sleeps();
    advise.signal(libc::SIGCONT);
    // The kernel reports lost samples with the next sample that has room. So `advise` reads the buffers, the program runs on,
    // and only then does `advise` end.
    eventually("it has read the buffers", || sleeps() > before + 3);
    runs_for(20);
    advise.signal(libc::SIGINT);
    let done = advise.finish();
    done.assert_code(0);
    assert!(number(&json(&done)["sampling"]["lost"]) > 0, "{done}");
}

#[test]
fn a_command_that_does_little_or_is_not_there() {
    let done = ctl(["advise", "--", "sleep", "0.2"]);
    // A few samples may lie in the start of the command.
    assert!(matches!(done.end().0, Some(0 | 1)), "{done}");
    let done = ctl(["advise", "--", "/nonexistent/program"]);
    done.assert_code(1);
    assert!(done.err().contains("/nonexistent/program"), "{done}");
}

#[test]
fn children_are_sampled_with_follow_only() {
    let hot = program("hotset", Kind::DynamicNoPie);
    let path = hot.canonicalize().expect("a path").to_string_lossy().into_owned();
    let script = format!("'{path}' 20 0.4; '{path}' 20 0.4; exit 0");
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("advice").to_string_lossy().into_owned();
    let done = ctl(["advise", "--json", "-f", "-o", &out, "--", "sh", "-c", &script]);
    done.assert_code(0);
    let text = std::fs::read_to_string(&out).expect("the advice");
    let advice: Value = serde_json::from_str(&text).expect("JSON");
    let file = of_file(&advice, &path);
    // Each run is a separate process with its own pages: 20, and some of the start. A busy machine samples not all of them.
    let all = number(&file["base_pages"]["all"]);
    assert!((30..40 + 16).contains(&all), "{file}");
    assert!(number(&advice["sampling"]["processes"]) >= 2, "{advice}");
    // sh itself uses almost no time.
    let done = ctl(["advise", "--json", "-o", &out, "--", "sh", "-c", &script]);
    if done.end().0 == Some(0) {
        let text = std::fs::read_to_string(&out).expect("the advice");
        let advice: Value = serde_json::from_str(&text).expect("JSON");
        assert!(!advice["files"].to_string().contains("hotset"), "{text}");
    }
}

#[test]
fn an_ordinary_user_and_their_processes() {
    require!(is_root(), "needs root to be another user");
    let public = Public::new();
    let tool = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let hot = public.add(&program("hotset", Kind::DynamicNoPie), "hotset", 0o755);
    let own = Run::new(&hot, ["30", "600"]).plain().behind(NOBODY).start();
    let others = Run::new(&hot, ["30", "600"]).plain().start();
    let is = |pid: i32| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
        exe.is_ok_and(|exe| exe.file_name() == hot.file_name())
    };
    eventually("both run", || is(own.pid()) && is(others.pid()));
    let advise = |pid: i32| {
        let pid = pid.to_string();
        let args = ["advise", "--json", "-F", "9999", "--duration", "2s", &pid];
        started(&NOBODY, &tool, args).finish()
    };
    let done = advise(own.pid());
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid: i32 = paranoid.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(2);
    if paranoid <= 2 {
        done.assert_code(0);
        let file = of_file(&json(&done), &hot.to_string_lossy()).clone();
        assert!(number(&file["base_pages"]["all"]) >= 30, "{file}");
    } else {
        done.assert_code(5);
        assert!(done.err().contains("perf_event_paranoid"), "{done}");
    }
    let done = advise(others.pid());
    done.assert_code(5);
    assert!(done.out().is_empty(), "{done}");
}

#[test]
fn ctrl_c_ends_it_early_and_it_tells_what_it_saw() {
    let copy = small("hotset", Kind::StaticNoPie);
    ctrl_c_ends_it_early(&spinning(&copy, 30));
    require!(is_root() && installed("setpriv").is_some(), "another user needs root");
    let public = Public::new();
    let hot = public.add(copy.path(), "hotset", 0o755);
    let mut others = Run::new(&hot, ["30", "600"]).plain().behind(NOBODY).start();
    others.wait_line("spinning");
    ctrl_c_ends_it_early(&others);
}

/// Signals the process group of the command, as a terminal does.
fn ctrl_c_ends_it_early(held: &Held) {
    let pid = held.pid().to_string();
    let advise = sampling(&["advise", "--json", "--duration", "10m", &pid]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    // SAFETY: kill has no memory conditions.
    assert_eq!(unsafe { libc::kill(-advise.pid(), libc::SIGINT) }, 0);
    let done = advise.finish();
    done.assert_code(0);
    let advice = json(&done);
    assert!(number(&advice["sampling"]["duration_ms"]) < 600_000, "{advice}");
    assert!(number(&advice["sampling"]["samples"]) > 0, "{advice}");
}

#[test]
fn a_thread_is_no_process() {
    let process = std::process::id();
    let (say, said) = channel();
    let (end, ended) = channel::<()>();
    let thread = std::thread::spawn(move || {
        let link = std::fs::read_link("/proc/thread-self").expect("/proc is mounted");
        say.send(link).expect("the test waits for it");
        let _ends_with_the_test = ended.recv();
    });
    let link = said.recv().expect("the thread says who it is");
    let tid = link.file_name().expect("a number").to_string_lossy();
    let done = ctl(["advise", "--duration", "1s", &tid]);
    done.assert_code(2);
    assert!(done.err().contains(&format!("a thread of process {process}")), "{done}");
    drop(end);
    thread.join().expect("it waits, and ends");
}

#[test]
fn a_filter_that_forbids_sampling_is_named() {
    let copy = small("hotset", Kind::StaticNoPie);
    let held = spinning(&copy, 30);
    let filter = program("seccomp_exec", Kind::StaticNoPie);
    let front = [filter.to_str().expect("a path of letters"), "errno=1", "perf_event_open"];
    let done = ctl_behind(&front, ["advise", &held.pid().to_string()]);
    done.assert_code(5);
    assert!(done.err().contains("seccomp filter"), "{done}");
}

/// No process has this id (`PID_MAX_LIMIT` of include/linux/threads.h).
const NONE: &str = "4194304";

#[test]
fn processes_that_cannot_be_sampled_are_named_once() {
    let copy = small("hold", Kind::DynamicNoPie);
    let idle = Run::new(copy.path(), ["7"]).plain().hold();
    let pid = idle.pid().to_string();
    let done = ctl(["advise", "--duration=200ms", NONE, &pid]);
    done.assert_code(1);
    assert!(done.err().contains(&format!("cannot advise on process {pid}: there was nothing")));
    assert!(done.err().contains(&format!("fix: `tiexecctl advise --duration 6s {pid}`")), "{done}");
    assert_eq!(done.err().matches(NONE).count(), 1, "{done}");
    let done = ctl(["report", "--duration=200ms", &pid]);
    done.assert_code(1);
    assert!(done.err().starts_with(&format!("tiexecctl: cannot report on process {pid}: ")));
    let fix = format!("fix: `tiexecctl report --duration 6s {pid}` while it is busy\n");
    assert!(done.err().ends_with(&fix), "{done}");
    idle.finish().assert_code(7);

    let busy = Run::new("sh", ["-c", "echo begun; while :; do :; done"]).plain();
    let mut busy = busy.start();
    busy.wait_line("begun");
    let done = ctl(["advise", "--duration=300ms", NONE, &busy.pid().to_string()]);
    done.assert_code(3);
    assert!(done.out().contains("\nnext  ") && !done.out().contains(NONE), "{done}");
}

#[test]
fn a_page_of_a_file_that_is_no_benchmark() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("x.json");
    std::fs::write(&file, "{}").expect("a file");
    let done = ctl(["report", &file.to_string_lossy()]);
    done.assert_code(1);
    let begins = format!("tiexecctl: cannot read {}: it is not a benchmark: ", file.display());
    assert!(done.err().starts_with(&begins), "{done}");
    assert!(done.err().contains("; fix: name a PID, a file of tiexecctl bench"), "{done}");
}
