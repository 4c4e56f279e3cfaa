//! The agent does not switch a program again that crashed soon after its switch. No user can switch the agent off for
//! others.

use std::path::Path;

use support::attaching::{json, switched};
use support::child::{Done, eventually, state};
use support::programs::{Cgo, build_go, java_of};
use support::{Held, Run, installed, is_root, require};

use crate::{Files, attach_rule, eventually_switched, has_guard, hold, stop};

const OTHER_USER: [&str; 4] = ["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"];

fn crasher(path: &Path, args: &[&str], front: &[&str]) -> Held {
    Run::new(path, args.iter()).plain().behind(front).hold()
}

fn eventually_in_quarantine(files: &Files, builds: usize) {
    eventually(&format!("{builds} builds in quarantine"), || {
        files.quarantine(&[]).out().lines().count() == builds
    });
}

fn eventually_instead(files: &Files, held: &Held, reason: &str) {
    let says = format!(": observe instead of attach: {reason}\n");
    eventually(reason, || files.check(&[held.pid()]).out().ends_with(&says));
}

#[test]
fn a_crash_after_the_switch_is_the_last() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let (first, second) =
        (files.program("crasher", 6, "a/one"), files.program("crasher", 8, "a/two"));
    let third = files.program("crasher", 10, "b/three");
    let (well, also) = (files.program("hold", 6, "a/well"), files.program("hold", 6, "b/well"));
    files.attach_below("a", "a");
    files.attach_below("b", "b");
    let agent = files.agent();
    crasher(&first, &[], &[]).finish().assert_signal(libc::SIGSEGV);
    eventually_in_quarantine(&files, 1);
    let said = stop(agent);
    assert!(said.contains("crashed by SIGSEGV") && said.contains("quarantine --release"), "{said}");

    // This also holds after a restart: the agent attaches to other builds of the rule, but not to this one.
    let agent = files.agent();
    let again = crasher(&first, &[], &[]);
    let held = hold(&well);
    eventually_switched(&held);
    eventually_instead(&files, &again, "quarantined");
    assert_eq!(switched(again.pid()), 0);

    // The second build switches this rule off, but not the other rule.
    crasher(&second, &["6"], &[]).finish().assert_signal(libc::SIGABRT);
    eventually_in_quarantine(&files, 2);
    let (late, other) = (hold(&well), hold(&also));
    eventually_switched(&other);
    eventually_instead(&files, &late, "rule_off");
    assert_eq!(switched(late.pid()), 0);

    // After the third build the agent only observes.
    crasher(&third, &[], &[]).finish().assert_signal(libc::SIGSEGV);
    eventually_in_quarantine(&files, 3);
    let last = hold(&also);
    eventually_instead(&files, &last, "observe_only");

    // After the release of all builds, the agent attaches again.
    let list = files.quarantine(&[]).out();
    let told = json(files.quarantine(&["--json"]).assert_code(0));
    let builds = told["builds"].as_array().expect("the builds");
    assert_eq!((&told["kind"], builds.len()), (&"quarantine".into(), 3), "{told}");
    for (line, build) in list.lines().zip(builds) {
        let id = line.split(' ').next().expect("a digest");
        assert_eq!(build["text"], id, "{told}");
        let done = files.quarantine(&["--json", "--release", id]);
        done.assert_code(0).assert_silent();
        assert_eq!(json(&done)["released"], serde_json::json!([build]), "{done}");
    }
    files.quarantine(&["--release", "none"]).assert_code(4);
    eventually_switched(&last);
    eventually_switched(&late);
    let said = stop(agent);
    assert!(said.contains("rule a is off") && said.contains("only observes"), "{said}");
    assert_eq!(again.finish().end().1, Some(libc::SIGSEGV), "it was attached to after its release");
    for held in [held, late, other, last] {
        held.finish().assert_code(7);
    }
}

#[test]
fn a_users_crashes_are_the_users_own() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let builds = [6, 8, 10, 12].map(|mib| files.program("crasher", mib, &format!("a/{mib}")));
    let well = files.program("hold", 6, "a/well");
    files.attach_below("a", "a");
    let agent = files.agent();
    for (done, build) in builds.iter().enumerate() {
        crasher(build, &[], &OTHER_USER).finish().assert_signal(libc::SIGSEGV);
        eventually_in_quarantine(&files, done + 1);
    }
    assert!(files.quarantine(&[]).out().lines().all(|line| line.ends_with("for user 1717)")));
    // Four builds of the user crashed. The rule stays on for all users, and the builds stay on for other users.
    let held = hold(&well);
    eventually_switched(&held);
    let mine = crasher(&builds[0], &[], &OTHER_USER);
    eventually_instead(&files, &mine, "quarantined");
    crasher(&builds[0], &[], &[]).finish().assert_signal(libc::SIGSEGV);
    eventually_in_quarantine(&files, 5);
    stop(agent);
    mine.signal(libc::SIGKILL);
    held.finish().assert_code(7);
}

#[test]
fn roots_crashes_in_a_container_are_not_the_machines() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let builds = [6, 8, 10].map(|mib| files.program("crasher", mib, &format!("a/{mib}")));
    let well = files.program("hold", 6, "a/well");
    files.attach_below("a", "a");
    let agent = files.agent();
    // The shell is the first process of the namespace, which a signal from inside does not end.
    let container =
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "\"$@\"; exit 0", "sh"];
    for (done, build) in builds.iter().enumerate() {
        let held = crasher(build, &[], &container);
        eventually_in_quarantine(&files, done + 1);
        held.finish().assert_code(0);
    }
    assert!(files.quarantine(&[]).out().lines().all(|line| line.ends_with("for user 0)")));
    // Three builds crashed in the container. The rule stays on, and the agent does not fall back to observing.
    let held = hold(&well);
    eventually_switched(&held);
    stop(agent);
    held.finish().assert_code(7);
}

/// A start script that the agent attached to executes a server, and that crashes by itself.
#[test]
fn the_crash_of_another_program_in_the_same_process() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("crasher", 6, "a/starts");
    files.attach_below("a", "a");
    let mut agent = files.agent();
    let script = ["exec", "/bin/sh", "-c", "kill -SEGV $$"];
    let mut starts = crasher(&copy, &script, &[]);
    eventually_switched(&starts);
    eventually("the agent has taken it in", || agent.err_text().contains("attach done"));
    starts.write(b"\n");
    starts.finish().assert_signal(libc::SIGSEGV);
    // The agent goes on, and sees this later crash first.
    crasher(&copy, &[], &[]).finish().assert_signal(libc::SIGSEGV);
    eventually_in_quarantine(&files, 1);
    let said = stop(agent);
    assert_eq!(said.matches("crashed by SIGSEGV").count(), 1, "{said}");
}

#[test]
fn an_end_that_is_no_crash_is_none() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let (copy, bad) = (files.program("hold", 6, "a/hold"), files.program("crasher", 6, "a/bad"));
    files.attach_below("a", "a");
    let agent = files.agent();
    let killed = hold(&copy);
    eventually_switched(&killed);
    killed.signal(libc::SIGKILL);
    killed.finish().assert_signal(libc::SIGKILL);
    let ended = hold(&copy);
    eventually_switched(&ended);
    ended.finish().assert_code(7);
    // A death by SIGTERM is no crash either.
    crasher(&bad, &["15"], &[]).finish().assert_signal(libc::SIGTERM);
    let last = hold(&copy);
    eventually_switched(&last);
    assert_eq!(files.quarantine(&[]).out(), "");
    stop(agent);
    last.finish().assert_code(7);
}

/// Returns whether agents can learn the sender of a signal: tracefs reports PIDs of the initial PID namespace.
fn tells_senders() -> bool {
    let tracepoint = "/sys/kernel/tracing/events/signal/signal_generate/id";
    let namespace = std::fs::read_link("/proc/self/ns/pid").expect("its namespace");
    Path::new(tracepoint).exists() && namespace == Path::new("pid:[4026531836]")
}

#[test]
fn a_signal_that_somebody_sends_is_no_crash() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    require!(tells_senders(), "no tracefs, or another PID namespace");
    let files = Files::new();
    let (copy, bad) = (files.program("hold", 6, "a/hold"), files.program("crasher", 6, "b/bad"));
    files.attach_below("a", "a");
    files.attach_below("b", "b");
    let agent = files.agent();
    for signal in [libc::SIGABRT, libc::SIGSEGV] {
        let held = hold(&copy);
        eventually_switched(&held);
        held.signal(signal);
        held.finish().assert_signal(signal);
    }
    // A signal that the program sends to itself, as abort(3) does, is a crash.
    crasher(&bad, &["6"], &[]).finish().assert_signal(libc::SIGABRT);
    eventually_in_quarantine(&files, 1);
    let last = hold(&copy);
    eventually_switched(&last);
    let list = files.quarantine(&[]).out();
    assert!(list.lines().count() == 1 && list.contains("/b/bad"), "{list}");
    let said = stop(agent);
    let own = std::process::id();
    for signal in ["SIGABRT", "SIGSEGV"] {
        assert!(said.contains(&format!("process {own} sent the {signal} that ended it")), "{said}");
    }
    last.finish().assert_code(7);
}

/// A Go program handles SIGSEGV, and ends with exit status 2 as after a wrong option.
#[test]
fn a_go_program_that_faults_has_crashed() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    require!(tells_senders(), "no tracefs, or another PID namespace");
    require!(installed("go").is_some(), "no go");
    let files = Files::new();
    let built = files.public.path().join("built");
    build_go(&support::sources().join("go_crash"), Cgo::With, &[], &built)
        .expect("go builds the test program");
    let copies = ["a/crash", "b/never"].map(|to| {
        let dir = files.public.path().join(to).parent().expect("a directory").to_owned();
        std::fs::create_dir_all(&dir).expect("a directory");
        support::chmod(&dir, 0o755);
        files.public.add(&built, to, 0o755)
    });
    files.attach_below("a", "a");
    let mut agent = files.agent();
    let begin = |path: &Path| {
        let mut held = Run::new(path, [""; 0]).plain().start();
        held.wait_line("ready");
        held
    };
    let end = |mut held: Held, line: &str, status: i32| {
        held.write(line.as_bytes());
        held.finish().assert_code(status);
    };
    // Without a switch, no crash counts.
    end(begin(&copies[1]), "fault\n", 2);
    for (line, status) in [("end\n", 2), ("\n", 7)] {
        let held = begin(&copies[0]);
        eventually_switched(&held);
        end(held, line, status);
    }
    // The agent has heard of those ends once it has attached to the next process.
    let held = begin(&copies[0]);
    eventually_switched(&held);
    assert_eq!(files.quarantine(&[]).out(), "", "{}", agent.err_text());
    // SIGSEGV of another process ends it with status 2, too, and is no fault.
    held.signal(libc::SIGSEGV);
    // At the end of its input the program would end by itself, perhaps before one of its threads takes the signal.
    eventually("the signal ends it", || state(held.pid()) == Some('Z'));
    held.finish().assert_code(2);
    let held = begin(&copies[0]);
    eventually_switched(&held);
    assert_eq!(files.quarantine(&[]).out(), "", "{}", agent.err_text());
    end(held, "fault\n", 2);
    eventually_in_quarantine(&files, 1);
    let again = begin(&copies[0]);
    eventually_instead(&files, &again, "quarantined");
    end(again, "\n", 7);
    let said = stop(agent);
    assert!(said.contains("crashed by SIGSEGV") && said.contains("/a/crash"), "{said}");
}

/// Starts a program again and again: it crashes without a switch, ends with each of these exit statuses after a switch, and
/// crashes after a switch. Only the last end counts. `begin` starts the program, which says `ready` and reads a line:
/// the word of `crash`, upon which it ends as the function asserts, or the number of a status.
fn ends_of_a_runtime(
    exe: &Path,
    (crash, crashed): (&str, &dyn Fn(&Done)),
    statuses: &[i32],
    begin: &dyn Fn() -> Held,
) {
    let files = Files::new();
    let rule = attach_rule("runtime", exe);
    let end = |mut held: Held, line: &str| {
        held.write(format!("{line}\n").as_bytes());
        held.finish()
    };
    let ready = || {
        let mut held = begin();
        held.wait_line("ready");
        held
    };
    let switched_one = || {
        let held = ready();
        eventually_switched(&held);
        held
    };
    // The agent would switch this one in an hour.
    files.write("runtime.toml", &rule.replace("\"100ms\"", "\"1h\""));
    let agent = files.agent();
    let own = ready();
    assert_eq!(switched(own.pid()), 0);
    crashed(&end(own, crash));
    let said = stop(agent);
    assert!(!said.contains("crashed by"), "{said}");
    assert_eq!(files.quarantine(&[]).out(), "", "{said}");

    files.write("runtime.toml", &rule);
    let mut agent = files.agent();
    for &status in statuses {
        end(switched_one(), &status.to_string()).assert_code(status);
    }
    // The agent has heard of those ends once it has attached to the next process.
    let last = switched_one();
    assert_eq!(files.quarantine(&[]).out(), "", "{}", agent.err_text());
    crashed(&end(last, crash));
    eventually_in_quarantine(&files, 1);
    let again = ready();
    eventually_instead(&files, &again, "quarantined");
    assert_eq!(switched(again.pid()), 0);
    end(again, "7").assert_code(7);
    let said = stop(agent);
    let exe = exe.display().to_string();
    assert!(said.contains("crashed by SIGABRT") && said.contains(&exe), "{said}");
}

/// Asserts the end by SIGABRT.
fn aborted(done: &Done) {
    done.assert_signal(libc::SIGABRT);
}

/// A JVM with an option faults in its directory, and ends as `crashed` asserts. Its exit statuses 134, which a shell shows
/// for SIGABRT, and 1, which is also that of an uncaught exception, are no crashes. `reports` is how the names of its
/// reports begin.
fn a_jvm_faults(option: &str, crashed: &dyn Fn(&Done), reports: &str) {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let java = java_of("Dies", include_str!("../programs/Dies.java"));
    require!(java.is_some(), "no JDK");
    let (java, dir) = java.expect("just looked");
    let path = dir.path().display().to_string();
    let begin = || {
        let there = ["env", "-C", &path, "prlimit", "--core=0"];
        Run::new(&java, [option, "-cp", &path, "Dies"]).plain().behind(there).start()
    };
    ends_of_a_runtime(&java, ("fault", crashed), &[134, 1], &begin);
    let files = std::fs::read_dir(dir.path())
        .expect("a directory")
        .map(|file| file.expect("a file").file_name());
    let written = files.filter(|name| name.to_string_lossy().starts_with(reports)).count();
    assert_eq!(written, 2, "the JVM wrote its reports");
}

#[test]
fn a_jvm_that_faults_has_crashed() {
    a_jvm_faults("-XX:ErrorFile=report_of_%p", &aborted, "report_of_");
}

/// A JVM that may not dump core ends with exit status 1 after its report.
#[test]
fn a_jvm_that_faults_and_dumps_no_core_has_crashed() {
    let exited = |done: &Done| {
        done.assert_code(1);
    };
    a_jvm_faults("-XX:-CreateCoredumpOnCrash", &exited, "hs_err_pid");
}

/// node has no handler for the signals of a crash. A script may choose the statuses that a shell shows for them.
#[test]
fn a_node_that_aborts_has_crashed() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let node = support::Fresh::installed("node");
    require!(node.is_some(), "no node");
    let node = node.expect("just looked");
    let script = "console.log('ready'); process.stdin.once('data', (line) => {
        const word = String(line).trim();
        if (word === 'abort') process.abort();
        process.exit(Number(word));
    });";
    let begin = || {
        let no_core = ["prlimit", "--core=0"];
        Run::new(node.path(), ["-e", script]).plain().behind(no_core).start()
    };
    ends_of_a_runtime(node.path(), ("abort", &aborted), &[132, 133, 134], &begin);
}
