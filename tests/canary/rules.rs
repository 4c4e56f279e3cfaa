//! A rule with `canary = "required"` attaches only where a canary on this machine has found that it helps.

use support::attaching::{ctl, switched};
use support::machine::Groups;
use support::{Done, is_root, require};

use crate::{Server, export, started};

pub(crate) fn check(server: &Server) -> Done {
    let words = ["rules", "check"].map(str::to_owned);
    ctl(words.into_iter().chain(server.files()).chain([server.pid().to_string()]))
}

pub(crate) fn write_rule(server: &Server, more: &str) {
    let conf = server.public.path().join("conf");
    let _there = std::fs::create_dir(&conf);
    let exe = server.copy.path().display();
    let rule = format!(
        "[[rule]]\nname = \"r\"\nexe = \"{exe}\"\naction = \"attach\"\nmin-age = \"100ms\"\n{more}\n"
    );
    std::fs::write(conf.join("r.toml"), rule).expect("a file");
    support::chmod(&conf.join("r.toml"), 0o644);
}

#[test]
fn a_verdict_is_asked_for_and_obeyed() {
    require!(is_root(), "rules of root's");
    let server = Server::start(300, 0);
    write_rule(&server, "canary = \"required\"");
    support::child::eventually("it is old enough", || !check(&server).out().contains("too_young"));
    let before = check(&server);
    before.assert_code(0).assert_silent();
    require!(!before.out().contains("no_crash_guard"), "Linux 6.15");
    let says = "canary_required; fix: tiexecctl canary --rule r --counter CMD";
    assert!(before.out().trim_end().ends_with(says), "{before}");
    server.canary(&[]).assert_code(0);
    // The agent would respect a lasting revert.
    ctl(["revert", "--temporary", &server.pid().to_string()]).assert_code(0);
    assert!(check(&server).out().ends_with(": rule r: attach\n"), "{}", check(&server));
    // A verdict with other edges does not count.
    write_rule(&server, "canary = \"required\"\nedges = \"aggressive\"");
    assert!(check(&server).out().contains("canary_required"), "{}", check(&server));
    write_rule(&server, "canary = \"required\"");
    let agent = server.agent();
    let pid = server.pid();
    support::child::eventually("the agent attaches", || support::attaching::switched(pid) > 0);
    agent.signal(libc::SIGTERM);
    agent.finish().assert_code(0);
    ctl(["revert", &pid.to_string()]).assert_code(0);
    // Earlier versions kept the verdict of a few pairs.
    let pairs = export(&server)["verdicts"][0]["pairs"].to_string();
    let file = server.state().join("verdicts.json");
    let text = std::fs::read_to_string(&file).expect("the verdicts");
    let few = text.replace(&format!("\"pairs\": {pairs}"), "\"pairs\": 3");
    assert_ne!(few, text);
    std::fs::write(&file, few).expect("a file");
    assert!(check(&server).out().contains("canary_required"), "{}", check(&server));
    std::fs::write(&file, text).expect("a file");
    // A verdict for another kernel does not count.
    let file = server.state().join("verdicts.json");
    let text = std::fs::read_to_string(&file).expect("the verdicts");
    let kernel = export(&server)["verdicts"][0]["kernel"].as_str().expect("a kernel").to_owned();
    std::fs::write(&file, text.replace(&kernel, "0.0.1-other")).expect("a file");
    assert!(check(&server).out().contains("canary_required"), "{}", check(&server));
    server.finish();
}

/// Ten pairs of such slices take more than nine seconds.
#[test]
fn a_canary_of_too_few_pairs_blocks_nothing() {
    require!(is_root(), "rules of root's");
    let server = Server::start(100, 0);
    write_rule(&server, "canary = \"required\"");
    support::child::eventually("it is old enough", || !check(&server).out().contains("too_young"));
    require!(!check(&server).out().contains("no_crash_guard"), "Linux 6.15");
    let done = server.canary(&["--max=6s"]);
    done.assert_code(6);
    assert!(done.out().contains("the verdict is not kept: it takes 10 pairs; fix: "), "{done}");
    assert_eq!(export(&server)["verdicts"], serde_json::json!([]), "{done}");
    assert!(check(&server).out().contains("canary_required"), "{}", check(&server));
    server.finish();
}

/// Another rule may take a process out by its pod. Where the pods are not known, the canary changes no process of a pod.
#[test]
fn a_process_of_an_unknown_pod_is_left_alone() {
    require!(is_root(), "rules of root's");
    let server = Server::start(300, 0);
    write_rule(&server, "canary = \"required\"");
    let mut groups = Groups::new();
    let slice = groups.slice_of_units();
    let pod = slice.and_then(|slice| groups.pod(&slice, "8f14e45f-ceea-467f-a7d4-1a2b3c4d5e6f"));
    require!(pod.is_some(), "no cgroup can be made");
    let pod = pod.expect("just looked");
    std::fs::write(pod.join("cgroup.procs"), server.pid().to_string()).expect("it may be moved");
    let by_rule = || {
        let mut args = ["canary", "--slice=400ms", "--rule", "r"].map(str::to_owned).to_vec();
        args.extend(server.files());
        args.extend(["--counter".to_owned(), server.counter()]);
        started(&args).finish()
    };
    // Nothing asks for pods, so that the process may be one of any pod.
    by_rule().assert_code(0);
    ctl(["revert", "--temporary", &server.pid().to_string()]).assert_code(0);
    let first = server.public.path().join("conf/a.toml");
    let never = "[[rule]]\nname = \"out\"\npod = { \"tiexec.io/enable\" = \"false\" }\naction = \"never\"\n";
    std::fs::write(&first, never).expect("a file");
    support::chmod(&first, 0o644);
    let done = by_rule();
    done.assert_code(1);
    assert!(
        done.err().contains("which is in a pod: cannot list the pods of this node: "),
        "{done}"
    );
    assert_eq!(switched(server.pid()), 0, "{done}");
    server.finish();
}

#[test]
fn verdicts_that_are_torn_count_for_nothing() {
    require!(is_root(), "rules of root's");
    let server = Server::start(100, 0);
    write_rule(&server, "canary = \"required\"");
    std::fs::create_dir(server.state()).expect("a directory");
    let file = server.state().join("verdicts.json");
    std::fs::write(&file, "{\"version\":1,\"findings\":[{\"verdict\":\"better\"").expect("a file");
    let done = check(&server);
    done.assert_code(5);
    assert!(done.err().contains("cannot tell the verdicts of canaries: it is torn"), "{done}");
    // The next canary sets the damaged verdicts aside.
    let done = server.canary(&["--max=6s", "--keep-above=2"]);
    assert!(done.err().contains("set aside as verdicts.json.aside"), "{done}");
    server.finish();
}

#[test]
fn page_cache_cannot_be_required_to_be_proved() {
    require!(is_root(), "rules of root's");
    let server = Server::start(100, 0);
    write_rule(&server, "canary = \"required\"\nbacking = \"pagecache\"");
    let done = check(&server);
    done.assert_code(1);
    assert!(done.err().contains("cannot be taken back"), "{done}");
    write_rule(&server, "canary = \"maybe\"");
    assert!(check(&server).err().contains("is not off or required"), "{}", check(&server));
    for (keys, says) in [
        ("canary-counter = \"echo 1\"", "need action = \"attach\" and canary = \"required\""),
        ("canary = \"required\"\ncanary-guard = \"true\"", "has either canary-counter, or"),
        ("canary = \"required\"\ncanary-query = \"up\"", "has either canary-counter, or"),
        ("canary = \"required\"\ncanary-counter = \"echo 1\"\ncanary-slice = \"soon\"", "soon"),
    ] {
        write_rule(&server, keys);
        assert!(check(&server).err().contains(says), "{keys}: {}", check(&server));
    }
    server.finish();
}

/// For a missing directory there is one message. A rule of a file with a mistake is not called missing.
#[test]
fn a_rule_that_cannot_be_found() {
    require!(is_root(), "rules of root's");
    let public = support::Public::new();
    let missing = public.path().join("missing").display().to_string();
    let done = ctl(["canary", "--rule", "r", "--conf-dir", &missing]);
    done.assert_code(2);
    assert_eq!(done.err().lines().count(), 1, "{done}");
    assert!(done.err().contains("no such directory; fix: mkdir -p "), "{done}");
    let conf = public.path().join("conf");
    std::fs::create_dir(&conf).expect("a directory");
    let conf = conf.display().to_string();
    let none = ctl(["canary", "--rule", "r", "--conf-dir", &conf]);
    none.assert_code(2);
    let fix = format!("; fix: tiexecctl rules check --conf-dir {conf}\n");
    assert!(none.err().starts_with("tiexecctl: cannot begin a canary: there is no rule 'r' in "));
    assert!(none.err().ends_with(&fix), "{none}");
    let rule = "[[rule]]\nname = \"r\"\nexe = \"/r\"\naction = \"atach\"\n";
    std::fs::write(format!("{conf}/r.toml"), rule).expect("a file");
    let done = ctl(["canary", "--rule", "r", "--conf-dir", &conf]);
    done.assert_code(2);
    assert!(
        done.err().contains("there is no rule 'r' in the files that can be used of "),
        "{done}"
    );
}

#[test]
fn verdicts_where_there_is_no_directory() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let done = ctl(["canary", "export", "--state-dir", &file.path().to_string_lossy()]);
    done.assert_code(1);
    assert!(done.err().contains("is not a directory; fix: "), "{done}");
}

#[test]
fn verdicts_in_a_directory_that_a_user_may_not_make_or_read() {
    require!(is_root(), "another user needs root");
    let public = support::Public::new();
    let ctl = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let own = public.path().join("own");
    std::fs::create_dir(&own).expect("a directory");
    support::chmod(&own, 0o700);
    let file = public.path().join("verdicts.json");
    std::fs::write(&file, r#"{"schema":2,"kind":"canary_verdicts","verdicts":[]}"#)
        .expect("a file");
    let file = file.display().to_string();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for (directory, status) in [("missing", 5), ("own", 5), ("own/missing", 5), ("no/missing", 1)] {
        let state = public.path().join(directory).display().to_string();
        let words = ["canary", "merge", "--keep", "--state-dir", &state, &file];
        let done = support::Run::new(&ctl, words).plain().behind(nobody).output();
        done.assert_code(status);
        assert!(done.err().contains("tiexecctl: cannot open the verdicts: "), "{done}");
    }
}

#[test]
fn a_backing_that_makes_nothing_is_not_called_lasting() {
    for (backing, why) in [("off", "it makes no huge page"), ("pagecache", "be taken back")] {
        let done = ctl(["canary", "--backing", backing, "--counter", "echo 1", "1"]);
        done.assert_code(2);
        let begins = format!("tiexecctl: cannot alternate --backing {backing}: ");
        assert!(done.err().starts_with(&begins), "{done}");
        assert!(
            done.err().contains(why) && done.err().contains("; fix: --backing image"),
            "{done}"
        );
    }
}
