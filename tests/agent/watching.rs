//! The agent learns about programs and rules in several ways, and logs its work.

use std::process::Command;

use support::attaching::{ctl, switched};
use support::child::eventually;
use support::journal;
use support::machine::Groups;
use support::{Held, Kind, Run, is_root, program, require, tiexecd};

use crate::load::ticks;
use crate::{Files, attach_rule, eventually_switched, has_guard, hold, stop};

#[test]
fn rules_that_change_hold_for_what_runs() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    let held = hold(&copy);
    let agent = files.agent();
    eventually("it catches SIGHUP", || {
        let status = format!("/proc/{}/status", agent.pid());
        let status = std::fs::read_to_string(status).expect("a live process");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & 1 != 0
    });
    files.attach_below("a", "a");
    agent.signal(libc::SIGHUP);
    eventually_switched(&held);
    let row = || {
        let text = ctl(["status"]).out();
        let row = text.lines().find(|line| line.contains(&*copy.to_string_lossy()));
        row.map(str::to_owned).unwrap_or_default()
    };
    eventually("status tells the outcome", || row().contains("  a: ok, "));
    // The outcome of a rule goes with the rule. The text stays.
    std::fs::remove_file(files.conf().join("a.toml")).expect("an own file");
    agent.signal(libc::SIGHUP);
    eventually("status tells no outcome", || row().ends_with("  -"));
    assert!(switched(held.pid()) > 0);
    stop(agent);
    held.finish().assert_code(7);
}

/// A program causes records without end, so that most are lost.
#[test]
fn records_that_are_lost_cost_time_only() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let floods: Vec<Held> = (0..2)
        .map(|_| {
            let flood = Run::new(program("renames", Kind::DynamicPie), [] as [&str; 0]);
            let mut flood = flood.plain().start();
            flood.wait_line("ready");
            flood
        })
        .collect();
    let agent = files.agent();
    let helds: Vec<Held> = (0..5).map(|_| hold(&copy)).collect();
    helds.iter().for_each(eventually_switched);
    println!("the agent took {} clock ticks", ticks(agent.pid()));
    stop(agent);
    for held in helds {
        held.finish().assert_code(7);
    }
    for flood in floods {
        flood.finish().assert_code(0);
    }
}

/// The test runs in its own PID namespace, where it can choose the next PID.
#[test]
fn another_program_with_the_same_number_is_another() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    const SCRIPT: &str = r#"
        matched=$1 other=$2 ctl=$3
        shift 3
        "$@" &
        agent=$!
        mkfifo "$other.input"
        exec 3<>"$other.input"
        is_switched() { grep -q memfd: /proc/$pid/maps; }
        run() {
            [ -z "$pid" ] || echo $((pid - 1)) >/proc/sys/kernel/ns_last_pid
            "$1" 7 <&3 >/dev/null &
            [ -z "$pid" ] || [ "$pid" = $! ] || echo "not the number $pid: $!"
            pid=$!
        }
        end() { kill -KILL $pid; wait $pid; }
        until_switched() { until is_switched; do sleep 0.1; done; }
        for turn in 1 2 3; do
            run "$matched"
            until_switched
            end
            run "$other"
            # The agent does not know yet that the process is another one.
            "$ctl" status | grep -F "$other" | grep -F "ok, "
            sleep 2
            ! is_switched || echo "attached to another program"
            end
        done 2>/dev/null
        kill $agent
        wait $agent
        echo done
    "#;
    let files = Files::new();
    let matched = files.program("hold", 6, "a/hold");
    let other = files.program("hold", 6, "b/hold");
    files.attach_below("a", "a");
    let mut words: Vec<std::ffi::OsString> =
        ["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", SCRIPT, "sh"]
            .map(Into::into)
            .into();
    words.extend([matched.into(), other.into(), support::tiexecctl().into(), tiexecd().into()]);
    words.extend(files.args().into_iter().map(Into::into));
    let done = Run::new("unshare", words).plain().output();
    assert_eq!(done.out(), "done\n", "{done}");
}

/// Starts an agent with a library of the tests in it.
fn agent_with(files: &Files, library: &str) -> Held {
    run_with(files, library).start()
}

/// An agent with a library of the tests in it.
pub(crate) fn run_with(files: &Files, library: &str) -> Run {
    let source = support::sources().join(format!("{library}.c"));
    let library = files.public.path().join(format!("{library}.so"));
    let mut built = Command::new("cc");
    built.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(built.status().expect("cc").success());
    let agent = Run::new(tiexecd(), files.args()).plain();
    agent.env("LD_PRELOAD", &library)
}

#[test]
fn a_clock_that_jumps_changes_nothing() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let before = hold(&copy);
    let agent = agent_with(&files, "clock_jumps");
    eventually_switched(&before);
    let after = hold(&copy);
    eventually_switched(&after);
    // The agent must not attach a second time.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let said = stop(agent);
    assert_eq!(said.matches("attach done").count(), 2, "{said}");
    for held in [before, after] {
        held.finish().assert_code(7);
    }
}

/// The agent's clock runs at a tenth of its speed, so its next look at all processes is ten minutes away.
#[test]
fn a_daemon_is_found_before_the_next_look_at_all() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let (first, other) = (files.program("hold", 6, "a/hold"), files.program("brood", 6, "a/brood"));
    files.attach_below("a", "a");
    let held = hold(&first);
    let agent = agent_with(&files, "clock_slow");
    eventually_switched(&held);
    // The program forks at once, so the child inherits no copies.
    let mut brood = Run::new(&other, ["1"]).plain().start();
    brood.wait_line("ready");
    // More children follow until the agent has worked on the program: before its first look, and before its next read of events.
    let parent = brood.pid();
    eventually("the parent is switched", || {
        brood.write(b"\n");
        std::thread::sleep(std::time::Duration::from_millis(300));
        switched(parent) > 0
    });
    let said = brood.out_text();
    let children = said.lines().filter_map(|line| line.strip_prefix("child ")?.parse().ok());
    let children: Vec<i32> = children.collect();
    assert!(!children.is_empty(), "{said}");
    for child in children {
        eventually(&format!("{child} is switched"), || switched(child) > 0);
    }
    stop(agent);
    brood.finish().assert_code(7);
    held.finish().assert_code(7);
}

#[test]
fn without_perf_it_polls() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let agent = agent_with(&files, "no_perf");
    let held = hold(&copy);
    eventually_switched(&held);
    let said = stop(agent);
    assert!(said.contains("cannot learn of new programs from the kernel: "), "{said}");
    held.finish().assert_code(7);
}

/// As with systemd, the unit is in the name of the cgroup.
#[test]
fn a_unit_is_taken_by_its_cgroup() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let mut cgroups = Groups::new();
    let slice = cgroups.slice_of_units();
    require!(slice.is_some(), "no cgroup can be made where the names of units are taken from");
    let slice = slice.expect("just looked");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    let rule = attach_rule("unit", &copy) + "unit = \"tiexec-agent@*\"\n";
    files.write("unit.toml", &rule);
    let groups = ["tiexec-agent@a.service", "tiexec-other.service"].map(|name| slice.join(name));
    let [ours, other]: [Held; 2] = groups.each_ref().map(|group| {
        std::fs::create_dir_all(group).expect("a cgroup");
        let join = format!("echo $$ >'{}'/cgroup.procs; exec \"$@\"", group.display());
        Run::new(&copy, ["7"]).plain().behind_sh(&join).hold()
    });
    let agent = files.agent();
    eventually_switched(&ours);
    let check = files.check(&[other.pid()]);
    assert!(check.out().ends_with(": no rule: observe\n"), "{check}");
    assert_eq!(switched(other.pid()), 0);
    stop(agent);
    for held in [ours, other] {
        held.finish().assert_code(7);
    }
    for group in &groups {
        eventually("it is empty", || std::fs::remove_dir(group).is_ok());
    }
}

#[test]
fn a_crash_is_an_error_in_the_journal() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let bad = files.program("crasher", 6, "a/bad");
    files.attach_below("a", "a");
    let log = journal::listen();
    let agent = files.agent();
    let crashed = Run::new(&bad, [""; 0]).plain().hold();
    crashed.finish().assert_signal(libc::SIGSEGV);
    let record = loop {
        let record = journal::record(&log);
        if record.contains("TIEXEC_ACTION=crash") {
            break record;
        }
    };
    for line in ["PRIORITY=3\n", "TIEXEC_RULE=a\n", "SYSLOG_IDENTIFIER=tiexec\n", "MESSAGE_ID="] {
        assert!(record.contains(line), "{record}");
    }
    stop(agent);
}
