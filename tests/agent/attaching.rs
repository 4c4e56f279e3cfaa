//! The agent makes a matching program huge, whether the program or the agent starts first, and touches no other
//! program.

use std::ffi::OsString;

use support::attaching::{Before, assert_switched, assert_untouched, revert, switched};
use support::child::eventually;
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::store::tmpfs;
use support::{Fresh, Kind, Run, is_root, program, require, warm};

use crate::watching::run_with;
use crate::{Files, attach_rule, eventually_switched, has_guard, hold, stop};

#[test]
fn what_matches_becomes_huge_and_nothing_else_does() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let (copy, other) = (files.program("hold", 6, "a/hold"), files.program("hold", 6, "b/hold"));
    files.attach_below("ours", "a");
    let (before, unmatched) = (hold(&copy), hold(&other));
    let untouched = Before::of(unmatched.pid());
    let agent = files.agent();
    eventually_switched(&before);
    let after = hold(&copy);
    eventually_switched(&after);
    for held in [&before, &after] {
        assert_switched(held.pid());
    }
    // A program of another user is treated too, by workers with that user's rights.
    let foreign = Run::new(&copy, ["7"]).plain();
    let foreign = foreign.behind(["setpriv", "--reuid=1717", "--regid=1717", "--clear-groups"]);
    let foreign = foreign.hold();
    eventually_switched(&foreign);
    assert_untouched(unmatched.pid(), &untouched);
    // The end of the agent changes no program.
    let said = stop(agent);
    assert!(said.contains("attach done"), "{said}");
    for held in [before, after, foreign] {
        assert!(switched(held.pid()) > 0);
        held.finish().assert_code(7);
    }
    unmatched.finish().assert_code(7);
}

#[test]
fn too_young_too_small_and_switched_off() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    tmpfs(std::path::Path::new("/etc"), "mode=0755");
    std::fs::create_dir("/etc/tiexec").expect("a directory");
    std::fs::write("/etc/tiexec/disabled", "").expect("a file");
    let copies: Vec<_> =
        ["a/hold", "b/hold", "c/hold"].iter().map(|to| files.program("hold", 6, to)).collect();
    files.attach_below("off", "a");
    let rule = |name: &str, at: usize| attach_rule(name, &copies[at]);
    files.write("small.toml", &(rule("small", 1) + "min-text = \"1GiB\"\n"));
    files.write("young.toml", &rule("young", 2).replace("100ms", "1000s"));
    let helds: Vec<_> = copies.iter().map(|copy| hold(copy)).collect();
    let pids: Vec<i32> = helds.iter().map(support::Held::pid).collect();
    let before: Vec<Before> = pids.iter().map(|&pid| Before::of(pid)).collect();
    let mut agent = files.agent();
    eventually("the agent sees the switch", || agent.err_text().contains("/etc/tiexec/disabled"));
    eventually("the check knows why", || {
        let done = files.check(&pids);
        done.out().matches(": observe instead of attach: disabled\n").count() == 3
    });
    std::fs::remove_file("/etc/tiexec/disabled").expect("an own file");
    eventually_switched(&helds[0]);
    let out = files.check(&pids).out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[1].ends_with("observe instead of attach: too_small"), "{out}");
    assert!(lines[2].ends_with("observe instead of attach: too_young"), "{out}");
    for at in [1, 2] {
        assert_untouched(pids[at], &before[at]);
    }
    let said = stop(agent);
    assert!(said.contains("/etc/tiexec/disabled"), "{said}");
    for held in helds {
        held.finish().assert_code(7);
    }
}

/// The agent checks programs with text on huge pages of the page cache again after ten minutes, and must not undo a
/// revert.
#[test]
fn a_program_that_somebody_reverts_stays_so() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let dir = warm::directory();
    let files = Files::new();
    let library = support::objects::late_library(dir.path());
    let copy = Fresh::copy(&program("late", Kind::DynamicNoPie));
    let rule = attach_rule("late", copy.path()).replace("\"image\"", "\"auto\"");
    files.write("late.toml", &rule);
    let held = Run::new(copy.path(), ["busy".as_ref(), library.as_os_str()]).plain();
    let mut held = held.start();
    held.wait_line("loaded");
    let pid = held.pid();
    let ahead = files.public.path().join("ahead");
    let mut agent = run_with(&files, "clock_ahead").env("CLOCK_AHEAD", &ahead).start();
    eventually_switched(&held);
    // The stop switches to copies first.
    eventually("its own text is huge by the page cache", || held.coverage().huge > 0);
    // The agent may still be at work.
    eventually("it is reverted", || revert(pid).end().0 == Some(0) && switched(pid) == 0);
    std::fs::write(&ahead, "").expect("a file");
    eventually("the agent leaves it alone", || agent.err_text().contains("reverted"));
    assert_eq!(switched(pid), 0);
    stop(agent);
    held.write(b"\n");
    held.finish().assert_code(7);
}

/// What the scripts below have in common. `drain` reverts all processes that it sees, so each script runs in a PID namespace
/// of its own.
const DRAINS: &str = r#"
    ctl=$1 program=$2 dir=$3
    shift 3
    begin() { "$@" 2>>"$dir/log" & agent=$!; }
    end() { kill -TERM $agent; wait $agent; }
    run() {
        mkfifo "$dir/$1.input"
        "$program" 7 <>"$dir/$1.input" >/dev/null &
        pid=$!
    }
    finish() { echo >"$dir/$1.input"; wait $2 && true; echo "$1 ended with $?"; }
    is_huge() { grep -q memfd: /proc/$1/maps; }
    until_huge() { until is_huge $1; do sleep 0.1; done; }
    until_said() { until grep -q "$1" "$dir/log"; do sleep 0.1; done; }
    quietly() { "$@" >/dev/null 2>&1; }
    # The agent may still be at work.
    until_reverted() { while is_huge $1; do quietly "$ctl" revert $1 || sleep 0.1; done; }
    is_plain() { ! is_huge $1 || echo "$1 is huge: $2"; }
    left_alone="left as it is: reverted: somebody has reverted it; fix: tiexecctl attach"
"#;

/// Runs a script with drains. The program is copied to `a/hold`, which the agent's only rule matches.
fn drains(script: &str) -> String {
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    files.attach_below("a", "a");
    let script = format!("{DRAINS}{script}");
    let words =
        ["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec", script.as_str(), "sh"];
    let mut words: Vec<OsString> = words.map(Into::into).into();
    words.extend([support::tiexecctl().into(), program.into(), files.public.path().into()]);
    words.push(support::tiexecd().into());
    words.extend(files.args().into_iter().map(Into::into));
    let done = Run::new("unshare", words).plain().output();
    let log = std::fs::read_to_string(files.public.path().join("log")).unwrap_or_default();
    println!("{done}\n{log}");
    done.out()
}

/// An operator's revert lasts over drains and agents, until an operator attaches. The agent's own drain ends at `resume`, in
/// the same agent and in the next one.
#[test]
fn a_drain_ends_at_resume_and_a_revert_does_not() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let said = drains(
        r#"
        run drained; drained=$pid
        run reverted; reverted=$pid
        begin "$@"
        until_huge $drained
        until_huge $reverted
        until_reverted $reverted
        for next in "" 1; do
            quietly "$ctl" agent drain
            is_plain $drained drain
            if [ -n "$next" ]; then end; begin "$@"; fi
            : >"$dir/log"
            quietly "$ctl" agent resume
            until_huge $drained
            until_said "$left_alone"
            is_plain $reverted resume
        done
        until quietly "$ctl" attach --backing=image $reverted; do sleep 0.1; done
        is_huge $reverted || echo "it is not attached to"
        quietly "$ctl" agent drain
        is_plain $reverted drain
        quietly "$ctl" agent resume
        until_huge $drained
        until_huge $reverted
        end
        finish drained $drained
        finish reverted $reverted
        "#,
    );
    assert_eq!(said, "drained ended with 7\nreverted ended with 7\n");
}

/// An operator who reverts while the agent is drained means it, although there is nothing to revert.
#[test]
fn a_revert_during_a_drain_lasts() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let said = drains(
        r#"
        run it
        begin "$@"
        until_huge $pid
        quietly "$ctl" agent drain
        is_plain $pid drain
        quietly "$ctl" revert $pid
        quietly "$ctl" agent resume
        until_said "$left_alone"
        is_plain $pid resume
        end
        finish it $pid
        "#,
    );
    assert_eq!(said, "it ended with 7\n");
}

/// Wherever a drain is killed, the agent attaches again after `resume`.
#[test]
fn a_drain_that_is_killed_is_no_revert() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let said = drains(
        r#"
        run it
        begin "$@"
        for point in die-after-setregs die-after-stop die-after-write die-after-setmask; do
            place=1
            until_huge $pid
            until quietly env TIEXEC_FAULT=$point:$place "$ctl" agent drain; do
                is_huge $pid || gone=1
                quietly "$ctl" agent resume
                until_huge $pid
                place=$((place + 3))
            done
            quietly "$ctl" agent resume
        done
        until_huge $pid
        ! grep "left as it is: reverted" "$dir/log" || true
        echo "${gone-none was reverted}"
        end
        finish it $pid
        "#,
    );
    assert_eq!(said, "1\nit ended with 7\n");
}

#[test]
fn copies_have_a_ceiling() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let (one, two) = (files.program("hold", 6, "a/one"), files.program("hold", 8, "b/two"));
    files.attach_below("a", "a");
    files.attach_below("b", "b");
    files.write("limit.toml", "[agent]\nmax-copies = \"1MiB\"\n");
    let first = hold(&one);
    let agent = files.agent();
    eventually_switched(&first);
    let second = hold(&two);
    let third = hold(&one);
    // The first copy uses up the limit for all copies, so there is no second one.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((switched(second.pid()), switched(third.pid())), (0, 0));
    let said = stop(agent);
    assert!(said.contains("memory_headroom"), "{said}");
    for held in [first, second, third] {
        held.finish().assert_code(7);
    }
}
