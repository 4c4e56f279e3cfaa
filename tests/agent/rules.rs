//! Rule files decide, and the first matching rule counts. The agent reports a file with a mistake, and the others stay
//! in force.

use std::path::Path;

use support::attaching::{ctl, ctl_behind, json, switched};
use support::child::eventually;
use support::machine::{Groups, inside};
use support::{Run, is_root, require};

use crate::{Files, attach_rule, eventually_switched, has_guard, hold, stop};

#[test]
fn the_first_rule_that_matches_decides() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    let (one, other) = (files.program("hold", 6, "a/one"), files.program("hold", 6, "a/other"));
    let dir = files.public.path();
    files.write("20-all.toml", &attach_rule("all", &dir.join("a/*")));
    let never =
        format!("[[rule]]\nname = \"not\"\nexe = \"{}\"\naction = \"never\"\n", other.display());
    files.write("10-not.toml", &never);
    let (one, other) = (hold(&one), hold(&other));
    let done = files.check(&[one.pid(), other.pid()]);
    done.assert_code(0).assert_silent();
    let lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    assert!(lines[0].contains(": rule all: "), "{done}");
    assert!(lines[1].ends_with(": rule not: never"), "{done}");
    // Without a list, the output has every process that a rule matches, and no other.
    let all = files.check(&[]);
    all.assert_code(0);
    let pids: Vec<String> = [one.pid(), other.pid()].iter().map(ToString::to_string).collect();
    let mut shown: Vec<String> =
        all.out().lines().map(|line| line.split(' ').next().unwrap_or("").to_owned()).collect();
    shown.sort_unstable();
    let mut wanted = pids.clone();
    wanted.sort_unstable();
    assert_eq!(shown, wanted, "{all}");
    // The agent says the same, and does nothing.
    let mut args = files.args();
    args.extend(["--once".to_owned(), "--dry-run".to_owned()]);
    let dry = Run::new(support::tiexecd(), args).plain().output();
    dry.assert_code(0).assert_silent();
    assert_eq!(dry.out().lines().count(), 2, "{dry}");
    // If the user names a process that no rule matches, the output says that it is left alone.
    let own = i32::try_from(std::process::id()).expect("a process id");
    let done = files.check(&[own]);
    assert!(done.out().ends_with(": no rule: observe\n"), "{done}");
    for held in [one, other] {
        held.finish().assert_code(7);
    }
}

/// A rule that takes a program out holds, also while the kernel cannot read its file.
#[test]
fn a_file_that_cannot_be_read_for_the_moment_still_counts() {
    require!(is_root() && has_guard(), "rules of root's; Linux 6.15");
    let files = Files::new();
    let out = files.program("hold", 6, "a/out");
    files.write("20-all.toml", &attach_rule("all", &files.public.path().join("a/*")));
    let never =
        format!("[[rule]]\nname = \"not\"\nexe = \"{}\"\naction = \"never\"\n", out.display());
    files.write("10-not.toml", &never);
    let mut agent = files.agent();
    eventually("the agent has rules", || agent.err_text().contains("rules: 2;"));
    let pid = rustix::process::Pid::from_raw(agent.pid()).expect("a process ID");
    let nofile = rustix::process::Resource::Nofile;
    // The agent has the same hard limit as this process.
    let maximum = rustix::process::getrlimit(nofile).maximum;
    let limit = |current: Option<u64>| {
        let limit = rustix::process::Rlimit { current, maximum };
        rustix::process::prlimit(Some(pid), nofile, limit).expect("the limit of a child")
    };
    let before = limit(Some(3));
    agent.signal(libc::SIGHUP);
    eventually("the agent says it", || agent.err_text().contains("the rules stay as they were: "));
    limit(before.current);
    agent.signal(libc::SIGHUP);
    let (out, other) = (hold(&out), hold(&files.program("hold", 6, "a/other")));
    eventually_switched(&other);
    assert_eq!(switched(out.pid()), 0, "{}", agent.err_text());
    assert_eq!(agent.err_text().matches("rules: ").count(), 1, "{}", agent.err_text());
    stop(agent);
    for held in [out, other] {
        held.finish().assert_code(7);
    }
}

#[test]
fn a_relative_directory_begins_where_the_user_is() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    files.write("broken.toml", "[[rule");
    let dir = files.public.path();
    let there = |words: &[&str]| Run::new(support::tiexecctl(), words).plain().cwd(dir).output();
    let done = there(&["rules", "check", "--conf-dir", "conf", "--state-dir", "state"]);
    done.assert_code(1);
    let says = format!("cannot use {}: ", files.conf().join("broken.toml").display());
    assert!(done.err().contains(&says), "{done}");
    std::fs::write(files.state().join("state.json"), "torn").expect("a file");
    there(&["quarantine", "--state-dir", "./state"]).assert_code(1);
}

#[test]
fn a_named_directory_must_be_there() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    let none = files.public.path().join("none").display().to_string();
    let state = files.state().display().to_string();
    let says = format!("cannot read {none}: no such directory; fix: mkdir -p {none}");
    for words in [&["rules", "check"][..], &["rules", "check", "1"], &["rules", "warm"]] {
        let done = ctl([words, &["--conf-dir", &none]].concat());
        done.assert_code(1);
        assert!(done.err().contains(&says), "{done}");
    }
    let args = ["--conf-dir", &none, "--state-dir", &state];
    let done = Run::new(support::tiexecd(), args).plain().output();
    done.assert_code(1);
    assert!(done.err().contains(&says), "{done}");
    // A directory without files is no mistake.
    let done = files.check(&[]);
    done.assert_code(0);
    assert!(done.err().contains("there are no rules: "), "{done}");
    let done = files.quarantine(&[]);
    done.assert_code(0);
    assert!(done.out().is_empty() && done.err().contains("no build is in quarantine"), "{done}");
    let done = files.quarantine(&["--json"]);
    done.assert_code(0).assert_silent();
    assert_eq!(json(&done)["builds"], serde_json::json!([]), "{done}");
}

/// `rules warm` finds programs by the path of a rule, running or not, and by the processes of a rule without a path.
#[test]
fn the_programs_of_rules_are_warmed() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    let named = files.program("hold", 6, "a/named");
    let kept = files.program("hold", 6, "a/kept");
    let foreign = files.program("hold", 6, "a/foreign");
    std::os::unix::fs::chown(&foreign, Some(65534), None).expect("chown");
    // Root's file in a directory in which another user may put other files, such as one whose reads do not end.
    let movable = files.program("hold", 6, "theirs/movable");
    let theirs = movable.parent().expect("a directory");
    std::os::unix::fs::chown(theirs, Some(65534), None).expect("chown");
    let runs = files.program("hold", 6, "b/runs");
    let rests = files.program("hold", 6, "b/rests");
    let dir = files.public.path();
    support::write_program(&dir.join("a/script"), b"#!/bin/sh\n", 0o755);
    std::os::unix::fs::symlink(&rests, dir.join("a/link")).expect("a link");
    let never =
        format!("[[rule]]\nname = \"not\"\nexe = \"{}\"\naction = \"never\"\n", kept.display());
    files.write("10-not.toml", &never);
    files.write("20-all.toml", &attach_rule("all", &dir.join("a/*")));
    files.write("25-theirs.toml", &attach_rule("theirs", &dir.join("theirs/*")));
    // Only the process that runs `runs` has this user ID on the machine.
    files.write("30-user.toml", "[[rule]]\nname = \"user\"\nuser = 64321\naction = \"warm\"\n");
    files.write(
        "40-seen.toml",
        &format!(
            "[[rule]]\nname = \"seen\"\nexe = \"{}\"\naction = \"observe\"\n",
            rests.display()
        ),
    );
    let as_user = ["setpriv", "--reuid", "64321", "--regid", "64321", "--clear-groups"];
    let held = Run::new(&runs, ["7"]).plain().behind(as_user).hold();
    let conf = files.conf();
    let warm = || {
        let done =
            support::attaching::ctl(["rules", "warm", "--conf-dir", conf.to_str().expect("UTF-8")]);
        assert!(done.err().is_empty(), "{done}");
        done.out()
    };
    let said = warm();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    let not_owner = |file: &Path| format!("{}: not_owner", file.display());
    assert!(lines[0].starts_with(&not_owner(&foreign)), "{said}");
    let belongs = format!(": {} belongs to user 65534; fix: chown root ", theirs.display());
    assert!(lines[3].starts_with(&(not_owner(&movable) + &belongs)), "{said}");
    for (line, program) in lines[1..3].iter().zip([&named, &runs]) {
        assert!(line.starts_with(&format!("{}: ", program.display())), "{line}");
        assert!(line.contains(" MiB on huge pages; rest: "), "{line}");
    }
    // The members of a group may put other files there.
    std::os::unix::fs::chown(theirs, Some(0), None).expect("chown");
    support::chmod(theirs, 0o775);
    let fix = " is writable by others (mode 0775); fix: chmod go-w ";
    assert!(warm().contains(fix), "{}", warm());
    // After an upgrade the process runs the old file, and the new file must be warmed.
    std::fs::remove_file(&runs).expect("the old one");
    files.program("hold", 6, "b/runs");
    assert!(warm().contains(&format!("{}: ", runs.display())));
    held.finish().assert_code(7);
}

/// The quarantine and the verdicts lie in one directory: one line says that it cannot be read.
#[test]
fn a_state_that_cannot_be_read_takes_one_line() {
    require!(is_root(), "root's state, and another user");
    let files = Files::new();
    files.attach_below("a", "a");
    support::chmod(&files.state(), 0o700);
    let ctl = files.public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let script = "exec \"$@\" $$";
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script, "sh"];
    let words = words.into_iter().map(str::to_owned).chain([ctl.display().to_string()]);
    let words = words.chain(["rules".to_owned(), "check".to_owned()]).chain(files.args());
    let done = Run::new("setpriv", words).plain().output();
    done.assert_code(5);
    let err = done.err();
    assert_eq!(err.lines().count(), 1, "{done}");
    assert!(err.contains("what is in quarantine, and the verdicts of canaries: "), "{done}");
    assert!(done.out().contains(": no rule: observe"), "{done}");
}

#[test]
fn a_file_with_a_mistake_is_named_and_the_others_stay() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("good", "a");
    files.write("0-garbage.toml", "\u{1b}[31m[[rule");
    files.write("1-action.toml", "[[rule]]\nname = \"x\"\nexe = \"/**\"\naction = \"atach\"\n");
    files.write("2-open.toml", "[[rule]]\nname = \"y\"\nexe = \"/**\"\naction = \"never\"\n");
    support::chmod(&files.conf().join("2-open.toml"), 0o666);
    files.write("3-new.toml", "[[rule]]\nname = \"z\"\nexe = \"/none\"\npheasant = \"required\"\n");
    files.write("4-not-a-rule.txt", "[[rule");
    let held = hold(&copy);
    let done = files.check(&[held.pid()]);
    done.assert_code(1);
    let told: Vec<String> = done.err().lines().map(str::to_owned).collect();
    assert_eq!(told.len(), 4, "{done}");
    for (line, (file, says)) in told.iter().zip([
        ("0-garbage.toml", "fix: "),
        ("1-action.toml", "\"atach\" is not observe, warm, attach or never"),
        ("2-open.toml", "writable by others (mode 0666); fix: chmod go-w /"),
        ("3-new.toml", "ignored in part: no such key: pheasant"),
    ]) {
        assert!(line.contains(file) && line.contains(says), "{line}");
    }
    assert!(!done.err().contains('\u{1b}'), "{done}");
    assert!(done.out().contains(": rule good: "), "{done}");
    held.finish().assert_code(7);
}

/// The exit status is that of all processes together, as with other commands.
#[test]
fn a_named_process_that_has_ended_is_one_of_several() {
    let files = Files::new();
    let held = hold(&files.program("hold", 6, "hold"));
    // No process has this ID (`PID_MAX_LIMIT` of include/linux/threads.h).
    let none = 4_194_304;
    files.check(&[held.pid(), none]).assert_code(3);
    files.check(&[none, held.pid()]).assert_code(3);
    files.check(&[none]).assert_code(4);
    files.check(&[held.pid()]).assert_code(0);
    held.finish().assert_code(7);
}

/// A label on a Deployment does not reach its pods. The project's own manifest has no mistake.
#[test]
fn labels_in_manifests() {
    let files = Files::new();
    let pods = "[[rule]]\nname = \"pods\"\npod = { \"tiexec.io/enable\" = \"true\" }\naction = \"attach\"\n";
    files.write("pods.toml", pods);
    let manifest = files.public.path().join("deployment.yaml");
    let check = |own: &str, pods: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\napiVersion: apps/v1\nkind: Deployment\n\
             metadata:\n  name: db\n  labels: {{{own}}}\nspec:\n  template:\n    metadata:\n      labels: {{{pods}}}\n    \
             spec:\n      containers: [{{name: db, image: mariadb}}]\n"
        );
        std::fs::write(&manifest, text).expect("a file");
        let path = manifest.to_str().expect("UTF-8").to_owned();
        ctl(["rules".into(), "check".into(), "-f".into(), path].into_iter().chain(files.args()))
    };
    let done = check("tiexec.io/enable: 'true'", "app: db");
    done.assert_code(1);
    assert!(done.err().contains("fix: move it to spec.template.metadata.labels"), "{done}");
    let done = check("app: db", "tiexec.io/enable: 'true'");
    done.assert_code(0);
    assert!(
        done.out().contains("pods of Deployment db have tiexec.io/enable=true; rule pods: attach"),
        "{done}"
    );
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/tiexec.yaml");
    ctl(["rules", "check", "-f", own]).assert_code(0);
}

/// Each machine decides by its name. The agent of an excluded machine does not attach; the agent of an included one
/// does.
#[test]
fn a_rule_acts_on_its_share_of_the_machines() {
    require!(is_root() && has_guard(), "the agent attaches for root, from Linux 6.15");
    let files = Files::new();
    let program = files.program("hold", 6, "a/hold");
    let rule = attach_rule("share", &files.public.path().join("a/*"));
    files.write("share.toml", &format!("{rule}nodes = \"50%\"\n"));
    let held = hold(&program);
    let names: Vec<String> = (0..20).map(|number| format!("NODE_NAME=node-{number}")).collect();
    let is_left_out = |name: &&String| {
        let mut args = vec!["rules".to_owned(), "check".to_owned()];
        args.extend(files.args());
        args.push(held.pid().to_string());
        let done = ctl_behind(&["env", name], args);
        done.assert_code(0);
        done.out().contains("held_out")
    };
    let (out, within): (Vec<_>, Vec<_>) = names.iter().partition(is_left_out);
    assert!(out.len() >= 3 && within.len() >= 3, "{} of {}", within.len(), names.len());
    let agent = |name: &str| {
        let (key, value) = name.split_once('=').expect("a pair");
        Run::new(support::tiexecd(), files.args()).plain().env(key, value).start()
    };
    // Once the agent has attached to another rule's program, it has decided about this one too.
    files.attach_below("whole", "b");
    let beside = hold(&files.program("hold", 7, "b/hold"));
    let without = agent(out[0]);
    eventually_switched(&beside);
    stop(without);
    assert_eq!(switched(held.pid()), 0, "{} is left out", out[0]);
    let with = agent(within[0]);
    eventually_switched(&held);
    stop(with);
    for held in [held, beside] {
        held.finish().assert_code(7);
    }
}

#[test]
fn where_the_host_splits_huge_pages_a_rule_must_say_that_it_attaches() {
    require!(is_root(), "rules of root's");
    require!(has_guard(), "Linux 6.15");
    for host in ["splits", "whole"] {
        without_a_decision_on(host);
    }
}

/// Lets an agent look at a rule that says nothing of canaries, and at one that does, on this host.
fn without_a_decision_on(host: &str) {
    let splits = host == "splits";
    let there = |run: Run| run.plain().env("TIEXEC_TEST_HOST", host);
    let files = Files::new();
    let (copy, other) = (files.program("hold", 6, "a/one"), files.program("hold", 6, "b/other"));
    files.write("2-silent.toml", &attach_rule("silent", &copy).replace("canary = \"off\"\n", ""));
    files.attach_below("3-decided", "b");
    let (held, decided) = (hold(&copy), hold(&other));
    let pid = held.pid();
    support::child::eventually("it is old enough", || {
        !files.check(&[pid]).out().contains("too_young")
    });
    let args = ["rules".into(), "check".into()].into_iter().chain(files.args());
    let check = Run::new(support::tiexecctl(), args.chain([pid.to_string()]));
    let says = there(check).output().out();
    let left = says.ends_with(
        ": rule silent: observe instead of attach: host_splits; fix: write canary = \"required\" or \"off\" into the rule \
         silent\n",
    );
    assert_eq!(left, splits, "{host}\n{says}");
    let agent = there(Run::new(support::tiexecd(), files.args())).start();
    eventually_switched(&decided);
    if !splits {
        eventually_switched(&held);
    }
    assert_eq!(switched(pid) == 0, splits, "{host}");
    let status = ctl(["status"]).out();
    assert_eq!(
        status.contains("; the host splits huge pages: rules without a key canary"),
        splits,
        "{status}"
    );
    files.write("2-silent.toml", &attach_rule("silent", &copy));
    agent.signal(libc::SIGHUP);
    eventually_switched(&held);
    let said = stop(agent);
    let warning = "rule silent attaches to nothing: the host of this machine splits huge pages";
    assert_eq!(said.contains(warning), splits, "{said}");
    held.finish().assert_code(7);
    decided.finish().assert_code(7);
}

#[test]
fn a_file_that_is_no_toml_is_named_by_its_line() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    files.write("a.toml", "# ours\n[[rule]\n");
    let done = files.check(&[]);
    done.assert_code(1);
    assert!(done.err().contains("a.toml: line 2 is no TOML: unclosed array table"), "{done}");
    assert!(!done.err().contains(" | "), "{done}");
}

#[test]
fn a_manifest_that_cannot_be_read_is_not_to_be_edited() {
    let files = Files::new();
    for (path, why) in [("/nonexistent.yaml", "no such file"), ("/", "it is not a regular file")] {
        let words = ["rules", "check", "-f", path].map(str::to_owned);
        let done = ctl(words.into_iter().chain(files.args()));
        done.assert_code(1);
        assert!(done.err().contains(why) && !done.err().contains("fix: edit it"), "{done}");
        assert!(done.err().contains("; fix: name a manifest that can be read"), "{done}");
    }
    let broken = files.public.path().join("broken.yaml");
    std::fs::write(&broken, "a: [").expect("a file");
    let words = ["rules", "check", "-f", broken.to_str().expect("UTF-8")].map(str::to_owned);
    assert!(ctl(words.into_iter().chain(files.args())).err().contains("; fix: edit it"));
}

/// A mistyped unit or path is told with the rule's name and line, and `--strict` makes it an error. So it does with an
/// unknown key.
#[test]
fn a_rule_that_matches_nothing_is_told() {
    require!(is_root(), "rules of root's");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    files.attach_below("good", "a");
    let strict = || {
        let words = ["rules", "check", "--strict"].map(str::to_owned);
        ctl(words.into_iter().chain(files.args()))
    };
    let held = hold(&copy);
    strict().assert_code(0).assert_silent();
    let wrong = format!(
        "# ours\n[[rule]]\nname = \"path\"\nexe = \"{0}x\"\naction = \"never\"\n\n[[rule]]\nname = \"unit\"\n\
         exe = \"{0}\"\nunit = \"mistyped\"\naction = \"attach\"\n",
        copy.display()
    );
    files.write("wrong.toml", &wrong);
    for (done, status) in [(files.check(&[]), 0), (strict(), 1)] {
        done.assert_code(status);
        let (err, file) = (done.err(), files.conf().join("wrong.toml"));
        let path =
            format!("rule path ({}, line 2) matches no process, and no file", file.display());
        let unit = format!(
            "rule unit ({}, line 7) matches no process, and no process is in a unit mistyped.service; \
             fix: edit unit there",
            file.display()
        );
        assert!(err.contains(&path) && err.contains(&unit), "{done}");
        assert_eq!(err.lines().count(), 2, "{done}");
    }
    let as_json = || {
        let words = ["rules", "check", "--json"].map(str::to_owned);
        let done = ctl(words.into_iter().chain(files.args()));
        done.assert_code(0);
        assert_eq!(done.out().lines().count(), 1, "{done}");
        json(&done)
    };
    let told = as_json();
    assert_eq!((&told["kind"], &told["rules"]), (&"rules".into(), &3.into()), "{told}");
    let process = &told["processes"][0];
    assert_eq!(process["pid"], held.pid(), "{told}");
    assert_eq!(
        (&process["rule"], &process["action"]),
        (&"good".into(), &"attach".into()),
        "{told}"
    );
    let path = files.conf().join("wrong.toml").display().to_string();
    let unmatched = |rule: &str, line: u32, no_such_file: bool| serde_json::json!({"rule": rule, "file": path, "line": line, "no_such_file": no_such_file});
    let wanted = [unmatched("path", 2, true), unmatched("unit", 7, false)];
    assert_eq!(told["unmatched"], serde_json::json!(wanted), "{told}");
    assert_eq!(told["defects"], serde_json::json!([]), "{told}");
    // Only all processes show that a rule matches nothing.
    files.check(&[held.pid()]).assert_code(0).assert_silent();
    files.write("wrong.toml", "[agent]\nmax-coppies = \"1GiB\"\n");
    files.check(&[]).assert_code(0);
    let done = strict();
    done.assert_code(1);
    assert!(done.err().contains("no such key: agent.max-coppies"), "{done}");
    let defect = &as_json()["defects"][0];
    assert_eq!((&defect["file"], &defect["ignored"]), (&path.into(), &false.into()), "{defect}");
    assert!(defect["defect"].as_str().is_some_and(|it| it.contains("max-coppies")), "{defect}");
    held.finish().assert_code(7);
}

/// A user that may not look at the programs of others sees their units.
#[test]
fn a_unit_of_others_is_not_called_missing() {
    require!(is_root(), "another user, and a cgroup");
    let mut cgroups = Groups::new();
    let slice = cgroups.slice_of_units();
    require!(slice.is_some(), "no cgroup can be made where the names of units are taken from");
    let group = slice.expect("just looked").join("tiexec-others.service");
    std::fs::create_dir_all(&group).expect("a cgroup");
    let files = Files::new();
    let copy = files.program("hold", 6, "a/hold");
    let rule = |unit: &str| {
        let exe = copy.display();
        format!(
            "[[rule]]\nname = \"{unit}\"\nexe = \"{exe}\"\nunit = \"tiexec-{unit}\"\naction = \"never\"\n"
        )
    };
    files.write("units.toml", &(rule("others") + &rule("mistyped")));
    let held = inside(&group, Run::new(&copy, ["7"]).plain()).hold();
    let ctl = files.public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let words = ["rules", "check"].map(str::to_owned).into_iter().chain(files.args());
    let done = Run::new(&ctl, words).plain().behind(nobody).output();
    let told = |name: &str| {
        let err = done.err();
        let line = err.lines().find(|line| line.contains(&format!("rule {name} ")));
        line.expect("a line about the rule").to_owned()
    };
    let others = told("others");
    assert!(
        others.contains("matches no process that this user may look at; fix: run it as root, or"),
        "{done}"
    );
    let mistyped = told("mistyped");
    assert!(mistyped.contains(", and no process is in a unit tiexec-mistyped.service"), "{done}");
    held.finish().assert_code(7);
    eventually("it is empty", || std::fs::remove_dir(&group).is_ok());
}
