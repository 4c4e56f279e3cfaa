//! A command that a message names as its fix, or as the undo, does what the message says.

use std::ffi::OsString;
use std::path::Path;

use support::attaching::{
    Before, assert_untouched, attach, ctl, ctl_behind, ctl_named, held, is_switched, ok, small,
};
use support::child::tool;
use support::fresh::huge_folios;
use support::{Done, Fresh, Kind, Public, Run, installed, is_root, program, require, tiexecctl};

/// Runs the command after the word, up to the end of the line.
fn run_named(done: &Done, word: &str) -> Done {
    let said = done.out() + &done.err();
    let (_, named) = said.split_once(word).unwrap_or_else(|| panic!("no {word:?} in {said}"));
    ctl_named(named.lines().next().unwrap_or_default())
}

#[test]
fn an_attach_names_its_undo() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let done = ctl(["attach", "--backing=image", &held.pid().to_string()]);
    assert!(is_switched(held.pid()), "{}", done.err());
    ok(&run_named(&done, "undo: "));
    assert!(!is_switched(held.pid()));
    held.finish().assert_code(7);
}

#[test]
fn a_bench_of_huge_text_names_its_fix() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    ok(&attach(held.pid()));
    let pid = held.pid().to_string();
    let bench = ["bench", "--metric", "echo 1", "--attach", &pid];
    let refused = ctl(bench);
    refused.assert_code(1);
    ok(&run_named(&refused, "fix: "));
    assert!(!is_switched(held.pid()));
    held.finish().assert_code(7);
}

#[test]
fn a_screen_without_a_terminal_names_its_fix() {
    let refused = ctl(["top"]);
    refused.assert_code(2);
    let table = run_named(&refused, "fix: ");
    assert!(ok(&table).out().starts_with("UNIT"), "{}", table.out());
}

#[test]
fn an_advice_on_a_thread_names_its_process() {
    require!(installed("node").is_some(), "node");
    let busy = "console.log('begun'); for (;;) Math.sqrt(Date.now())";
    let mut node = Run::new("node", ["-e", busy]).plain().start();
    node.wait_line("begun");
    let threads = std::fs::read_dir(format!("/proc/{}/task", node.pid())).expect("its threads");
    let threads = threads.map(|entry| entry.expect("a thread").file_name());
    let other = threads.map(|name| name.to_string_lossy().into_owned());
    let other = other.max_by_key(|name| *name != node.pid().to_string()).expect("a thread");
    let refused = ctl(["advise", &other]);
    refused.assert_code(2);
    let advice = run_named(&refused, "fix: ");
    assert!(ok(&advice).out().contains("\nnext  "), "{advice}");
}

/// Runs `command` by the shell, with `$1` and `$2` for the arguments, our programs on PATH, and its own `/run` and
/// `/etc/tiexec`. The command prints a fix. Runs the fix, and then the command again, which must not print the fix any
/// more.
fn mends(before: &str, command: &str, arguments: &[OsString]) -> String {
    let programs = support::tiexecctl().parent().expect("a directory").display().to_string();
    let script = format!(
        r#"
        mount -t tmpfs -o mode=755 tmpfs /run
        mkdir /run/etc /run/work
        mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work none /etc || mount -t tmpfs none /etc
        rm -rf /etc/tiexec; mkdir /etc/tiexec
        PATH="{programs}:$PATH"
        {before}
        said=$({{ {command}; }} 2>&1 | grep -m1 '; fix: ') || {{ echo "no fix"; exit 1; }}
        fix=${{said#*; fix: }}
        # This takes the first way that a line names; a sentence may follow the command.
        fix=${{fix%%, or *}}
        fix=${{fix//SIZE/256M}}
        case $fix in
        *', then '*) fix="${{fix%%, then *}} && ${{fix#*, then }}" ;;
        esac
        echo "$said"
        sh -ec "$fix" || {{ echo "the fix fails: $fix"; exit 1; }}
        again=$({{ {command}; }} 2>&1) || true
        case $again in *"${{said%%; fix: *}}"*) echo "again: $again"; exit 1 ;; esac
        "#
    );
    let front = ["unshare", "-m", "--propagation", "private", "bash", "-c", &script, "sh"];
    let words = front.map(OsString::from);
    let run = Run::new(&words[0], words[1..].iter().chain(arguments)).plain();
    let done = run.output();
    done.assert_code(0);
    done.out()
}

fn may_mount() -> bool {
    is_root() && installed("unshare").is_some()
}

#[test]
fn of_what_is_switched_off() {
    require!(may_mount(), "another /run needs root");
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = [OsString::from(held.pid().to_string())];
    let off = "touch /etc/tiexec/disabled";
    let said = mends(off, "tiexecctl attach --backing=image $1 || false", &pid);
    assert!(said.contains("fix: rm /etc/tiexec/disabled"), "{said}");
    mends(off, "tiexecctl doctor | grep switch", &[]);
    ok(&ctl(["revert", &held.pid().to_string()]));
    let drained = "mkdir /run/tiexec; touch /run/tiexec/drained";
    assert!(mends(drained, CANARY, &pid).contains("tiexecctl agent resume"));
    held.finish().assert_code(7);
}

#[test]
fn of_a_configuration_file_that_cannot_be_read() {
    require!(may_mount(), "another /etc/tiexec needs root");
    let hidden = "echo off >/etc/tiexec/config; chmod 600 /etc/tiexec/config";
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let says = "cannot read /etc/tiexec/config: permission denied (EACCES)";
    for command in ["tiexec true", "tiexecctl doctor | grep switch"] {
        let said = mends(hidden, &format!("{nobody} {command}"), &[]);
        assert!(said.contains(says), "{said}");
    }
    // Whether the directory has a configuration, and the kill switch, nobody but root can tell.
    let says = "fix: chmod a+x /etc/tiexec";
    for command in ["tiexec true", "tiexecctl doctor | grep switch"] {
        let said = mends("chmod 700 /etc/tiexec", &format!("{nobody} {command}"), &[]);
        assert!(said.contains(says) && !said.contains("is there: every"), "{said}");
    }
    let said = mends("mkdir /etc/tiexec/config", "tiexec true", &[]);
    assert!(said.contains("is a directory (EISDIR); fix: rmdir /etc/tiexec/config"), "{said}");
}

#[test]
fn of_a_canary_where_the_environment_or_the_file_says_off() {
    require!(may_mount(), "another /etc/tiexec needs root");
    let held = held(&small("hold", Kind::DynamicNoPie));
    let pid = held.pid().to_string();
    let front = "mount -t tmpfs none /etc; mkdir /etc/tiexec; $1; shift; exec \"$@\"";
    let before = Before::of(held.pid());
    let counter =
        ["canary", "--max=1s", "--slice=100ms", "--state-dir=/etc/state", "--counter=date +%s%N"];
    for say in ["echo off >/etc/tiexec/config", "export TIEXEC=off", "mkdir /etc/tiexec/config"] {
        let script = front.replace("$1; shift", say);
        let done = ctl_behind(
            &["unshare", "-m", "sh", "-ec", &script, "sh"],
            counter.iter().copied().chain([&*pid]),
        );
        done.assert_code(1);
        assert!(
            done.err().contains("cannot begin a canary: ") && done.err().contains("; fix: "),
            "{done}"
        );
        assert_untouched(held.pid(), &before);
    }
    held.finish().assert_code(7);
}

/// A canary that ends at once.
const CANARY: &str =
    "tiexecctl canary --max 1s --slice 100ms --state-dir /run --counter 'date +%s%N' $1";

#[test]
fn of_a_canary_that_has_nothing_to_compare() {
    require!(may_mount(), "another /run needs root");
    let held_by_copy = held(&small("hold", Kind::DynamicNoPie));
    ok(&attach(held_by_copy.pid()));
    let said = mends("", CANARY, &[OsString::from(held_by_copy.pid().to_string())]);
    assert!(said.contains("by tiexec already; fix: tiexecctl revert "), "{said}");
    held_by_copy.finish().assert_code(7);

    require!(huge_folios(), "no large folios on this file system");
    let mut copy = Fresh::copy(&program("hold", Kind::DynamicNoPie));
    let state = tempfile::tempdir().expect("a directory");
    let state = state.path().display().to_string();
    let canary = |pid: i32| {
        let options = ["--max", "1s", "--slice", "100ms", "--counter", "date +%s%N"];
        let words = ["canary", "--state-dir", &state].into_iter().chain(options);
        ctl(words.chain([pid.to_string().as_str()]))
    };
    let cannot = "which cannot be taken back";
    let running = held(&copy);
    let refused = canary(running.pid());
    refused.assert_code(1);
    let said = refused.err();
    assert!(said.contains(cannot), "{refused}");
    let (_, fix) = said.split_once("; fix: stop it, ").expect("the first step");
    let (evict, _) = fix.split_once(", start it").expect("the last step");
    copy.let_go();
    running.finish().assert_code(7);
    assert!(tool(&["sh", "-c", evict]).status.success(), "{evict}");
    let running = held(&copy);
    let done = canary(running.pid());
    assert!(!done.err().contains(cannot), "{done}");
    running.finish().assert_code(7);
}

#[test]
fn of_an_image_store() {
    require!(may_mount(), "another /run needs root");
    mends("", "tiexecctl doctor | grep '  store '", &[]);
    let public = Public::new();
    let file = public.add(&program("hold", Kind::DynamicPie), "hold", 0o755);
    let full = "tiexecctl store setup --size=64K";
    let said = mends(full, "tiexecctl store add \"$1\"", &[file.into_os_string()]);
    assert!(said.contains("store_full") && said.contains("--size=SIZE"), "{said}");
}

/// A shell of `su -` often lacks both variables.
#[test]
fn of_a_runtime_directory_that_is_not_set() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    const USER: &str = "64322";
    let public = Public::new();
    let ctl = public.add(tiexecctl(), "tiexecctl", 0o755);
    let front = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "env"];
    let unset = ["-u", "XDG_RUNTIME_DIR", "-u", "DBUS_SESSION_BUS_ADDRESS", "HOME=/tmp"];
    let front: Vec<&str> = front.into_iter().chain(unset).collect();
    let not_set = format!(
        "XDG_RUNTIME_DIR is not set, and there is no /run/user/{USER}; \
         fix: loginctl enable-linger {USER}, as root, then export XDG_RUNTIME_DIR=/run/user/{USER}"
    );
    for (words, status, says) in [
        (&["enable", "--user", "x"][..], 1, not_set.as_str()),
        (&["enable", "--user", "--runtime", "x"], 1, &not_set),
        (&["disable", "--user", "x"], 1, &not_set),
        (&["store", "path"], 1, "XDG_RUNTIME_DIR is not set; fix: tiexecctl store setup"),
    ] {
        // If the system has a store, this user has one too.
        if words[0] == "store" && Path::new("/run/tiexec/images").exists() {
            continue;
        }
        let done = Run::new(&ctl, words).plain().behind(&front).output();
        done.assert_code(status);
        assert!(done.err().contains(says) && done.err().lines().count() == 1, "{done}");
    }
}

#[test]
fn of_a_proc_that_is_not_mounted() {
    require!(may_mount(), "another /proc needs root");
    let copy = small("hold", Kind::DynamicNoPie);
    let launch = "tiexec --backing=image \"$1\" 7 </dev/null";
    let said = mends("mount -t tmpfs none /proc", launch, &[copy.path().into()]);
    assert!(said.contains("proc_unavailable") && said.contains("fix: mount -t proc "), "{said}");
}

#[test]
fn of_a_file_in_small_folios() {
    require!(may_mount(), "another /run needs root");
    require!(huge_folios(), "no large folios on this file system");
    let copy = Fresh::copy(&program("hold", Kind::DynamicNoPie));
    let fresh = copy.dir().join("fresh");
    let arguments = [copy.path().into(), fresh.into_os_string()];
    // The new file is not on the disk yet.
    let said = mends("cp \"$1\" \"$2\"", "tiexecctl warm \"$2\"", &arguments);
    assert!(said.contains("fix: sync "), "{said}");
    // A program that runs keeps the file in small folios until the launch is over.
    let small = r#"cp "$1" "$2.2"; sync "$2.2"; mkfifo "$2.go"
        "$2.2" 7 <"$2.go" >"$2.said" & running=$!
        exec 9>"$2.go"
        until grep -qx ready "$2.said"; do sleep 0.01; done"#;
    let launch = r#"tiexec --backing pagecache "$2.2" 7 </dev/null
        if rm "$2.go" 2>/dev/null; then echo >&9; while [ -e /proc/$running/exe ]; do sleep 0.01; done; fi"#;
    let said = mends(small, launch, &arguments);
    assert!(said.contains("small_folios; fix: tiexecctl warm "), "{said}");
}
