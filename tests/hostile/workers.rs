//! Child processes of TiExec work on another user's process. That process can neither block nor rob nor charge them,
//! and their end harms no process.

use std::collections::BTreeSet;
use std::path::Path;

use support::attaching::{attach, attach_run, ctl, ctl_behind, is_switched, ok, revert, switched};
use support::child::state;
use support::machine::{Groups, inside, memory_controller, shared_memory};
use support::smaps::children;
use support::{Kind, Public, Run, installed, is_root, program, require, rounds};

use super::ATTACKER;
use super::files::silent;

/// These users are unique, because they would rob the processes of other tests.
const ROBBER: [&str; 4] = ["setpriv", "--reuid=2003", "--regid=2003", "--clear-groups"];
const KILLER: [&str; 4] = ["setpriv", "--reuid=2004", "--regid=2004", "--clear-groups"];
/// A user with the group `nogroup`.
const OF_NOBODY: [&str; 4] = ["setpriv", "--reuid=2005", "--regid=65534", "--clear-groups"];

fn needs() -> bool {
    is_root() && installed("setpriv").is_some()
}

/// Closing a copied descriptor of a silent file system blocks. No process on which a thread waits does it.
#[test]
fn a_descriptor_whose_copy_is_never_closed() {
    require!(needs() && Path::new("/dev/fuse").exists(), "FUSE and another user need root");
    let held = silent("descriptor");
    ok(&attach(held.said_pid()));
    held.finish().assert_code(7);
}

/// The names and command lines of a process's descendants, as far as they have set them yet.
fn called_below(pid: i32) -> Vec<String> {
    let mut names = Vec::new();
    for child in children(pid) {
        let text = |file| std::fs::read_to_string(format!("/proc/{child}/{file}"));
        let (name, line) = (text("comm").unwrap_or_default(), text("cmdline").unwrap_or_default());
        if !line.is_empty() && line.trim_end_matches('\0') == name.trim_end() {
            names.push(name.trim_end().to_owned());
        }
        names.extend(called_below(child));
    }
    names
}

#[test]
fn code_that_never_ends() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let copy = public.add(&program("hostile/spins", Kind::DynamicPie), "spins", 0o755);
    // On a busy machine most attaches are over before the attacker gets a processor.
    for round in 0..100 {
        let held = Run::new(&copy, [""; 0]).plain().behind(ATTACKER).hold();
        let mut attaching = attach_run(held.pid()).start();
        let mut names = BTreeSet::new();
        while !attaching.has_ended() {
            names.extend(called_below(attaching.pid()));
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // The command ends, and the thread runs again.
        let done = attaching.finish();
        assert!(matches!(done.status.code(), Some(0 | 1)), "{done}");
        assert_ne!(state(held.pid()), Some('t'));
        held.finish().assert_code(7);
        if done.err().contains(": deadline: ") {
            let of_ours = ["tiexec-fetcher", "tiexec-reader", "tiexec-tracer"];
            assert!(names.iter().map(String::as_str).eq(of_ours), "{names:?}");
            return;
        }
        println!("round {round}: the attach was faster than the attack");
    }
    panic!("the attack never came in time");
}

/// The kernel keeps an ended thread in its process until a debugger has waited for it, and without one for a moment. `tiexecctl`
/// reverts the first process by a thread of its own, and forks for the second one.
#[test]
fn after_a_thread_that_has_ended() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let own = Run::new(&copy, ["7"]).plain().hold();
    let theirs = Run::new(&copy, ["7"]).plain().behind(ATTACKER).hold();
    let unreaped = program("unreaped", Kind::DynamicPie);
    let both = [&own, &theirs].map(|held| held.pid().to_string());
    for command in ["attach", "revert"] {
        let option = if command == "attach" { "--backing=image" } else { "-q" };
        let front = [unreaped.to_str().expect("a path in UTF-8")];
        ok(&ctl_behind(&front, [command, option, &both[0], &both[1]]));
        assert_eq!([&own, &theirs].map(|held| is_switched(held.pid())), [command == "attach"; 2]);
    }
    own.finish().assert_code(7);
    theirs.finish().assert_code(7);
}

fn with_robbers(user: [&str; 4], how: &str, work: impl Fn(i32)) -> String {
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let robs = public.add(&program("hostile/robs", Kind::DynamicPie), "robs", 0o755);
    let held = Run::new(&copy, ["7"]).plain().behind(user).hold();
    let pid = held.pid();
    let spared = pid.to_string();
    let robber = Run::new(&robs, [how, &*spared]).plain();
    let robber = robber.behind(user).hold();
    for _ in 0..rounds(8) {
        work(pid);
        assert_ne!(state(pid), Some('t'), "it was left standing");
    }
    let said = robber.finish();
    said.assert_code(7);
    held.finish().assert_code(7);
    said.out()
}

#[test]
fn nothing_of_theirs_is_to_be_had() {
    require!(needs(), "another user needs root");
    for user in [ROBBER, OF_NOBODY] {
        let said = with_robbers(user, "robs", |pid| {
            ok(&attach(pid));
            assert!(switched(pid) > 0);
            ok(&revert(pid));
        });
        assert!(!said.contains("robbed"), "{said}");
        assert!(!said.contains("others 0\n"), "the robber saw nobody to rob");
    }
}

#[test]
fn the_user_kills_what_works_for_it() {
    require!(needs(), "another user needs root");
    with_robbers(KILLER, "kill", |pid| {
        for done in [attach(pid), revert(pid)] {
            assert!(matches!(done.status.code(), Some(0 | 1 | 3)), "{done}");
        }
    });
}

#[test]
fn copies_are_charged_to_the_process_and_bounded_by_its_limit() {
    require!(needs(), "cgroups need root");
    let mut cgroups = Groups::new();
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (parent, limit) = controller.expect("just looked");
    let group = cgroups.group(&parent).expect("a cgroup");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let held = inside(&group, Run::new(&copy, ["7"]).plain()).behind(ATTACKER).hold();
    let before = shared_memory(&group);
    ok(&attach(held.pid()));
    let bytes = switched(held.pid());
    assert!(bytes > 0);
    assert!(shared_memory(&group) >= before + bytes, "its cgroup pays");
    ok(&revert(held.pid()));

    // The cgroup is nearly full, so the program is left alone, and no process is killed.
    std::fs::write(group.join(limit), (48_u64 << 20).to_string()).expect("a limit");
    let done = attach(held.pid());
    done.assert_code(1);
    assert!(done.err().contains("memcg_headroom"), "{done}");
    held.finish().assert_code(7);
}

/// A tracer in a container also charges the copies to the process. If the machine's cgroups are not mounted there, it
/// makes no copies, because its own container would be charged.
#[test]
fn copies_are_charged_from_a_container_too() {
    require!(needs() && installed("unshare").is_some(), "cgroups need root");
    let mut cgroups = Groups::new();
    let controller = memory_controller();
    require!(controller.is_some(), "no memory controller");
    let (top, _) = controller.expect("just looked");
    // The groups do not lie directly below the hierarchy's root, from which all paths would be valid.
    let parent = cgroups.group(&top).expect("a cgroup");
    let unified = parent.join("cgroup.subtree_control");
    if unified.exists() {
        std::fs::write(unified, "+memory").expect("an own cgroup");
    }
    let [theirs, ours] = [(); 2].map(|()| cgroups.group(&parent).expect("a cgroup"));
    let public = Public::new();
    public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let before = [shared_memory(&theirs), shared_memory(&ours)];
    let words = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec", NODE];
    let run = Run::new("unshare", words).plain().with_arg("sh").with_arg(public.path());
    let run = run.with_arg(&top).with_arg(&theirs).with_arg(&ours);
    let mut held = run.with_arg(support::tiexecctl()).start();
    held.wait_line("attached");
    let charged = [shared_memory(&theirs), shared_memory(&ours)];
    let done = held.finish();
    done.assert_code(7);
    let said = done.err();
    assert!(said.contains("memcg_headroom") && said.contains("fix: mount"), "{done}");
    assert!(charged[0] >= before[0] + (2 << 20), "its cgroup pays: {charged:?}");
    assert!(charged[1] < before[1] + (2 << 20), "the container's own does not: {charged:?}");
}

/// The script of process 1 of a PID namespace, as on a node. The tracer's container sees first only its own part of the
/// cgroups, then all.
const NODE: &str = r#"cd "$1"; top=$2 theirs=$3 ours=$4 attach=$5
    mkfifo input
    mkdir own
    exec 3<>input
    sh -c 'echo $$ >"$0/cgroup.procs"; exec setpriv --reuid=2001 --regid=2001 --clear-groups ./hold 7' "$theirs" \
        <input >output 3>&- &
    pod=$!
    until grep -q ready output; do sleep 0.1; done
    contained() {
        sh -c 'echo $$ >"$0/cgroup.procs"; exec unshare --cgroup --mount sh -ec "$@"' "$ours" "$@" "$attach" attach --backing=image "$pod"
    }
    ! contained 'mount --bind "$1" own; umount -l "$0"; mount --move own "$0"; shift; exec "$@"' "$top" "$ours"
    contained 'shift; exec "$@"' "$top" "$ours"
    echo attached
    read line || true
    echo >&3
    wait "$pod" || exit $?"#;

#[test]
fn a_sparse_file_costs_nothing() {
    require!(needs(), "another user needs root");
    let public = Public::new();
    let copy = public.add(&program("hostile/sparse", Kind::DynamicPie), "sparse", 0o755);
    let file = tempfile::tempdir_in("/dev/shm").expect("a tmpfs");
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("an own directory");
    let path = file.path().join("sparse");
    let held = Run::new(&copy, [&path]).plain().behind(ATTACKER).hold();
    let used = || {
        let text = std::fs::read_to_string("/proc/meminfo").expect("/proc");
        let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.expect("a number") << 10
    };
    let before = used();
    for backing in ["--backing=image", "--backing=pagecache", "--backing=auto"] {
        let done = ctl(["attach", backing, &held.pid().to_string()]);
        assert!(matches!(done.status.code(), Some(0 | 1 | 3)), "{done}");
        // Other processes also use shared memory.
        assert!(used() < before + (1 << 30), "{backing}: {} MiB", (used() - before) >> 20);
    }
    held.finish().assert_code(7);
}
