//! `--exe` and `--unit` select only the processes that root means. No user can disguise their own program as root's by
//! its path, or their own unit by its name.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::attaching::{assert_switched, ctl, ctl_behind, ok, switched};
use support::child::{eventually, tool};
use support::machine::Groups;
use support::{Held, Kind, Public, Run, installed, is_root, program, require};

use super::ATTACKER;

/// Namespaces in which the attacker may mount.
const OWN_MOUNTS: [&str; 5] = ["unshare", "--user", "--map-root-user", "--mount", "--"];

fn needs() -> bool {
    is_root() && installed("setpriv").is_some() && installed("unshare").is_some()
}

/// Returns whether users may make their own mounts here.
fn may_mount() -> bool {
    let front: Vec<&str> = ATTACKER.iter().chain(&OWN_MOUNTS).copied().collect();
    tool(&[&front[..], &["mount", "-t", "tmpfs", "none", "/mnt"]].concat()).status.success()
}

/// `hold` at a path of root's, and a copy with which the attacker imitates it.
struct Place {
    _public: Public,
    /// Root's directory.
    system: PathBuf,
    /// The program in it.
    program: PathBuf,
    /// The attacker's directory, with a file of the same name.
    own: PathBuf,
}

fn place() -> Place {
    let public = Public::new();
    let hold = program("hold", Kind::DynamicNoPie);
    let [system, own] = ["system", "own"].map(|name| public.path().join(name));
    for directory in [&system, &own] {
        std::fs::create_dir(directory).expect("an own directory");
        support::chmod(directory, 0o755);
        support::install(&hold, &directory.join("server"), 0o755);
    }
    for path in [&own, &own.join("server")] {
        std::os::unix::fs::chown(path, Some(2001), Some(2001)).expect("chown");
    }
    Place { _public: public, program: system.join("server"), system, own }
}

fn attach_exe(path: &Path) -> support::Done {
    let options = ["attach", "-q", "--backing=image", "--exe"].map(AsRef::as_ref);
    ctl(options.into_iter().chain([path.as_os_str()]))
}

fn exe(pid: i32) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a live process");
    link.to_string_lossy().into_owned()
}

/// Starts the attacker's process by a script. The script reports when it runs the program.
fn attacker(front: &[&str], script: &str) -> Held {
    let front = ATTACKER.iter().chain(front).copied();
    Run::new("sh", ["-c", script]).plain().behind(front).hold()
}

/// Asserts that root's attach selects root's process, and not the attacker's, which has the same path.
fn assert_left_out(place: &Place, attacker: Held, link: &str) {
    let pid = attacker.said_pid();
    assert_eq!(exe(pid), link);
    attach_exe(&place.program).assert_code(4);
    assert_eq!(switched(pid), 0, "the attacker's program passes for {}", place.program.display());
    attacker.finish().assert_code(7);
}

#[test]
fn a_program_at_the_same_path_in_other_mounts() {
    require!(needs() && may_mount(), "users may have no mounts of their own");
    let place = place();
    let (own, system) = (place.own.display(), place.system.display());
    let path = place.program.display().to_string();
    let script = format!("mount --bind {own} {system} && exec {path} 7");
    let same = || attacker(&OWN_MOUNTS, &script);
    assert_left_out(&place, same(), &path);
    // Root's own process is found nevertheless.
    let (root, other) = (Run::new(&place.program, ["7"]).plain().hold(), same());
    ok(&attach_exe(&place.program));
    assert_switched(root.pid());
    assert_eq!(switched(other.pid()), 0);
    root.finish().assert_code(7);
    other.finish().assert_code(7);
}

/// A deleted file shows its earlier path, from any mount namespace.
#[test]
fn a_deleted_program_of_other_mounts() {
    require!(needs() && may_mount(), "users may have no mounts of their own");
    let place = place();
    let (own, system) = (place.own.display(), place.system.display());
    let path = place.program.display().to_string();
    let script = format!("mount -t tmpfs none {system} && cp {own}/server {path} && exec {path} 7");
    let inside = attacker(&OWN_MOUNTS, &script);
    let pid = inside.said_pid();
    // This process is in root's mount namespace, and its file comes from the attacker's namespace.
    let outside = attacker(&[], &format!("exec /proc/{pid}/root{path} 7"));
    assert_eq!(exe(outside.said_pid()), path);
    attach_exe(&place.program).assert_code(4);
    let removed = tool(&["nsenter", "--target", &pid.to_string(), "--mount", "rm", &path]);
    assert!(removed.status.success(), "{removed:?}");
    // The attacker's mounts end with the first process.
    for held in [outside, inside] {
        assert_left_out(&place, held, &format!("{path} (deleted)"));
    }
}

/// In a directory where all users can create files, a name may end like the kernel's mark for a deleted file.
#[test]
fn names_that_end_as_those_of_deleted_programs() {
    require!(needs(), "another user needs root");
    let place = place();
    std::fs::set_permissions(&place.system, PermissionsExt::from_mode(0o1777)).expect("chmod");
    let own = place.own.join("server").display().to_string();
    let path = place.program.display().to_string();
    let literal = format!("{path} (deleted)");
    let copy = format!("cp {own} '{literal}'");
    let held = attacker(&[], &format!("{copy}; exec '{literal}' 7"));
    assert_left_out(&place, held, &literal);
    std::fs::remove_file(&literal).expect("root may");
    // The file of another user was at the path before root's file.
    std::fs::rename(&path, place.own.join("kept")).expect("an own file");
    let held = attacker(&[], &format!("cp {own} {path}; exec {path} 7"));
    std::fs::remove_file(&path).expect("root may");
    std::fs::rename(place.own.join("kept"), &path).expect("an own file");
    assert_left_out(&place, held, &literal);
}

/// After an upgrade, processes that run the old file are found by the path of their start.
#[test]
fn programs_that_were_replaced_or_removed() {
    require!(needs(), "another user needs root");
    let place = place();
    let start = || Run::new(&place.program, ["7"]).plain().behind(ATTACKER).hold();
    let old = start();
    support::install(&place.own.join("server"), &place.system.join("server.new"), 0o755);
    std::fs::rename(place.system.join("server.new"), &place.program).expect("an own file");
    let new = start();
    ok(&attach_exe(&place.program));
    for held in [&old, &new] {
        assert_switched(held.pid());
    }
    std::fs::remove_file(&place.program).expect("an own file");
    let done = ctl(["revert", "-q", "--exe", &place.program.to_string_lossy()]);
    ok(&done);
    for held in [old, new] {
        assert_eq!(switched(held.pid()), 0);
        held.finish().assert_code(7);
    }
}

/// The unit's name alone proves nothing. The unit's place shows its owner.
#[test]
fn a_unit_of_the_same_name_of_a_users_own() {
    require!(needs(), "cgroups need root");
    let mut cgroups = Groups::new();
    let top = cgroups.slice_of_units();
    require!(top.is_some(), "no cgroup can be made where the names of units are taken from");
    let top = top.expect("just looked");
    let unit = format!("tiexec-test-{}.service", std::process::id());
    let user = "user-2001.slice/user@2001.service/app.slice";
    let places = [
        unit.clone(),
        format!("{user}/{unit}"),
        format!("docker-1.scope/system.slice/{unit}"),
        format!("session-1.scope/{unit}"),
    ];
    let start = |place: &String| {
        let group = top.join(place);
        std::fs::create_dir_all(&group).expect("a cgroup");
        let script = format!("echo $$ >'{}'/cgroup.procs; exec \"$@\"", group.display());
        Run::new(program("hold", Kind::DynamicNoPie), ["7"]).plain().behind_sh(&script).hold()
    };
    let all = places.each_ref().map(start);
    let switched = || all.each_ref().map(|held| switched(held.pid()) > 0);

    let done = ctl(["attach", "--json", "--backing=image", "--unit", &unit]);
    ok(&done);
    assert_eq!(switched(), [true, false, false, false], "{done}");
    assert!(done.out().contains(&format!("\"unit\":\"{unit}\"")), "{done}");
    ok(&ctl(["revert", "-q", "--unit", &unit]));
    let done = ctl(["attach", "--json", "--backing=image", "--user", &unit]);
    ok(&done);
    assert_eq!(switched(), [false, true, false, false], "{done}");
    assert!(done.out().contains(&format!("\"unit\":\"user@2001.service/{unit}\"")), "{done}");
    ok(&ctl(["revert", "-q", "--user", &unit]));
    assert_eq!(switched(), [false; 4]);

    all.into_iter().for_each(|held| {
        held.finish().assert_code(7);
    });
    for place in places {
        for group in top.join(place).ancestors().take_while(|group| **group != *top) {
            eventually("it is empty", || !group.exists() || std::fs::remove_dir(group).is_ok());
        }
    }
}

/// Attaches to a program for a second, ends it, and gives its ID to the next one, which is attached to for good. Prints how many
/// copies the second one has once the revert of the first is over.
const SAME_ID: &str = r#"
    mkfifo in
    exec 3<>in
    begin() {
        "$program" <&3 >out 2>&1 &
        until grep -q ready out; do sleep 0.05; done
    }
    begin
    first=$!
    "$tiexecctl" attach -q --backing=image --for=1s $first
    kill -9 $first
    wait $first || true
    : >out
    echo $((first - 1)) >/proc/sys/kernel/ns_last_pid
    begin
    [ $! = $first ]
    "$tiexecctl" attach -q --backing=image $!
    while grep -qs started-a[t] /proc/[0-9]*/cmdline; do sleep 0.05; done
    grep -c tiexec: /proc/$!/maps
    kill -9 $!"#;

/// A process that gets the ID of one whose revert is scheduled is another process.
#[test]
fn a_process_with_the_id_of_one_to_be_reverted() {
    let chooses = Path::new("/proc/sys/kernel/ns_last_pid").exists();
    require!(needs() && chooses, "root; a kernel with CONFIG_CHECKPOINT_RESTORE");
    let dir = tempfile::tempdir().expect("a directory");
    let front = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let run = Run::new("sh", ["-ec", SAME_ID]).plain().cwd(dir.path()).behind(front);
    let run = run.env("program", program("hold", Kind::DynamicNoPie));
    let done = run.env("tiexecctl", support::tiexecctl()).output();
    done.assert_code(0);
    assert_ne!(done.out().trim(), "0", "{done}");
}

/// A word in the place of a PID may come from anywhere. No shell and no option of `systemctl` ever gets it.
#[test]
fn a_word_in_the_place_of_a_pid() {
    require!(installed("strace").is_some(), "no strace");
    require!(installed("systemctl").is_some(), "no systemctl");
    let dir = tempfile::tempdir().expect("a directory");
    let (log, made) = (dir.path().join("log"), dir.path().join("made"));
    let log_name = log.to_string_lossy().into_owned();
    let strace = ["strace", "-f", "-s", "999", "-o", &log_name, "-e", "trace=execve"];
    // Returns the command lines of `systemctl`.
    let asked = |word: &str| {
        let done = ctl_behind(&strace, ["inspect", "--", word]);
        done.assert_code(2);
        assert!(done.out().is_empty() && done.err().lines().count() == 1, "{word:?}: {done}");
        assert!(!made.exists(), "{word:?}: {done}");
        let text = std::fs::read_to_string(&log).expect("strace's log");
        assert!(text.contains("tiexecctl"), "strace sees what is executed: {text}");
        assert!(!text.contains("/sh\""), "a shell: {text}");
        let of_it = text.lines().filter(|line| line.contains("[\"systemctl\""));
        of_it.map(str::to_owned).collect::<Vec<String>>()
    };
    let made_by = format!("touch {}", made.display());
    for word in [
        &*format!("$({made_by})"),
        &format!("`{made_by}`"),
        &format!("a;{made_by}"),
        "--root=/tmp",
        "a=b",
        "*",
        "[a-z]*",
        "../../x",
        "/x.service",
        "a,b",
        "\u{1b}[2J\n",
        "ünit",
        &"x".repeat(300),
    ] {
        assert_eq!(asked(word), [""; 0], "{word:?}");
    }
    for word in ["-H", "--user", "-h.service", "--", "no-such-unit-at-all", r"\x2d"] {
        let (unit, lines) = (format!("\"{word}"), asked(word));
        assert_eq!(lines.is_empty(), word == "--", "{word}: no letter is no name");
        for line in lines.iter().filter(|line| line.contains("\"show\"")) {
            let behind = line.split_once("\"--\", ").expect("an end of the options").1;
            // strace doubles a backslash.
            assert!(behind.replace(r"\\", r"\").starts_with(&unit), "{line}");
            assert!(!line.split_once("\"--\", ").expect("just seen").0.contains(&unit), "{line}");
        }
    }
}
