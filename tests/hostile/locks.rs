//! Only root can lock root out of a process, and only root and the user can lock a user out. No other user can take a
//! lock, or occupy a place for locks.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::ATTACKER;
use support::attaching::{assert_switched, ctl_behind, is_switched, started, switched, wait_call};
use support::child::tool;
use support::store::{names, own_run, tmpfs};
use support::{Done, Held, Kind, Public, Random, Run, installed, is_root, program, require};

/// The directory of root's locks.
const LOCKS: &str = "/run/tiexec/lock";

/// Returns whether this machine has what every test here needs.
fn can() -> bool {
    is_root()
        && ["setpriv", "flock", "unshare", "nsenter"].iter().all(|tool| installed(tool).is_some())
}

/// The attacker's program, and a `tiexecctl` that the attacker may run, in a directory that the attacker may enter.
struct Place {
    public: Public,
    program: PathBuf,
    ctl: PathBuf,
}

fn place() -> Place {
    own_run();
    let public = Public::new();
    let program = public.add(&program("hostile/locker", Kind::DynamicNoPie), "locker", 0o755);
    let ctl = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    Place { public, program, ctl }
}

impl Place {
    /// Starts the program as the attacker. The program locks these places if it can.
    fn attacker(&self, places: &[&str]) -> Held {
        Run::new(&self.program, places).plain().behind(ATTACKER).hold()
    }

    /// An attach by the attacker, with this environment.
    fn own_attach(&self, environment: &[&str], front: &[&str], pid: i32) -> Done {
        let front: Vec<&str> =
            ATTACKER.iter().chain(front).chain(&["env"]).chain(environment).copied().collect();
        started(&front, &self.ctl, ["attach", "--backing=image", &pid.to_string()]).finish()
    }
}

fn attach(front: &[&str], pid: i32) -> Done {
    ctl_behind(front, ["attach", "--backing=image", "-q", &pid.to_string()])
}

fn revert(pid: i32) -> Done {
    ctl_behind(&[], ["revert", "-q", &pid.to_string()])
}

/// The name of root's lock on a process.
fn lock_of(pid: i32) -> String {
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid")).expect("a namespace").ino();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let own = status.lines().find_map(|line| line.strip_prefix("NStgid:")).expect("Linux 4.1");
    let own = own.split_whitespace().last().expect("an id");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its stat");
    let begun = stat.rsplit_once(") ").expect("a name").1.split(' ').nth(19).expect("a time");
    format!("{LOCKS}/{namespace}-{own}-{begun}")
}

fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|e| panic!("{path}: {e}")).permissions().mode() & 0o7777
}

#[test]
fn a_user_locks_all_it_can_and_root_attaches() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    // The first attach makes root's directory, which the attacker can then attack.
    let first = place.attacker(&[]);
    attach(&[], first.pid()).assert_code(0).assert_silent();
    assert_eq!((mode("/run/tiexec"), mode(LOCKS)), (0o755, 0o700));
    let attacker = place.attacker(&["/run/tiexec", LOCKS, &lock_of(first.pid())]);
    let held: u32 = attacker.said("held").and_then(|n| n.parse().ok()).expect("a number");
    assert!(held > 20, "it locked {held} files only");
    attach(&[], attacker.pid()).assert_code(0).assert_silent();
    assert_switched(attacker.pid());
    // Root removes its lock file on release, because the attacker could not open it.
    assert_eq!(names(LOCKS), [".swept"]);
    revert(attacker.pid()).assert_code(0).assert_silent();
    // The record of the revert stays, and is root's.
    let record = lock_of(attacker.pid());
    let text = std::fs::read_to_string(&record).expect("root may read it");
    assert!(text.starts_with("reverted operator ") && mode(&record) == 0o600, "{text:?}");
    for held in [first, attacker] {
        held.finish().assert_code(7);
    }
}

#[test]
fn a_user_that_makes_roots_directory_first_gains_nothing() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let attacker = place.attacker(&[]);
    let elsewhere = place.public.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    std::os::unix::fs::chown(&elsewhere, Some(2001), Some(2001)).expect("chown");
    // As in some containers, all users can create names in this directory.
    let own = |path: &str| {
        std::fs::create_dir(path).expect("a directory");
        std::os::unix::fs::chown(path, Some(2001), Some(2001)).expect("chown");
    };
    let occupy: [(&str, &dyn Fn()); 5] = [
        ("belongs to user 2001", &|| own("/run/tiexec")),
        ("is a symbolic link", &|| symlink(&elsewhere, "/run/tiexec").expect("a link")),
        ("is not a directory", &|| std::fs::write("/run/tiexec", b"").expect("a file")),
        ("belongs to user 2001", &|| {
            std::fs::create_dir("/run/tiexec").expect("a directory");
            own(LOCKS);
        }),
        ("mode 0755", &|| std::fs::create_dir_all(LOCKS).expect("directories")),
    ];
    for (why, occupy) in occupy {
        tmpfs(Path::new("/run"), "mode=1777");
        occupy();
        let done = ctl_behind(&[], ["attach", "--backing=image", &attacker.pid().to_string()]);
        done.assert_code(0);
        assert!(done.err().contains(why) && done.err().lines().count() == 1, "{why}: {done}");
        assert_switched(attacker.pid());
        revert(attacker.pid()).assert_code(0).assert_silent();
        assert!(names(&elsewhere).is_empty(), "{why}: a lock in the attacker's directory");
    }
    attacker.finish().assert_code(7);
}

#[test]
fn where_nothing_can_be_made_it_works_all_the_same() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    tmpfs(Path::new("/run"), "mode=0755,ro");
    let attacker = place.attacker(&[]);
    let done = ctl_behind(&[], ["attach", "--backing=image", &attacker.pid().to_string()]);
    done.assert_code(0);
    assert!(done.err().contains("/run/tiexec mkdir: read-only file system (EROFS)"), "{done}");
    assert_switched(attacker.pid());
    // For root's own process a lock on the process's own file is enough.
    let hold = place.public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let own = Run::new(hold, ["7"]).plain().hold();
    attach(&[], own.pid()).assert_code(0).assert_silent();
    let file = format!("/proc/{}/auxv", own.pid());
    let busy = attach(&["flock", &file], own.pid());
    busy.assert_code(1);
    assert!(busy.err().contains("busy"), "{busy}");
    own.finish().assert_code(7);
    attacker.finish().assert_code(7);
}

/// The companion or the agent may look at a process at any moment. An operator's command does not fail because of that.
#[test]
fn a_command_waits_until_another_tiexec_has_done_its_work() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let hold = place.public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let held = Run::new(&hold, ["7"]).plain().hold();
    let pid = held.pid().to_string();
    attach(&[], held.pid()).assert_code(0).assert_silent();
    for command in [["revert", "-q", "--", &pid], ["attach", "-q", "--backing=image", &pid]] {
        let other = std::fs::File::create(lock_of(held.pid())).expect("root's own directory");
        other.lock().expect("nobody else has it");
        let tool = started(&[], support::tiexecctl(), command);
        wait_call(tool.pid(), &libc::SYS_clock_nanosleep.to_string());
        drop(other);
        tool.finish().assert_code(0).assert_silent();
        assert_eq!(is_switched(held.pid()), command[0] == "attach");
    }
    held.finish().assert_code(7);
}

#[test]
fn tracers_of_two_pid_namespaces_take_one_lock() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let hold = place.public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let held = Run::new(&hold, ["7"]).plain().behind(inside).hold();
    let unshare = held.pid();
    let children = tool(&["ps", "-o", "pid=", "--ppid", &unshare.to_string()]);
    let pid: i32 = String::from_utf8_lossy(&children.stdout).trim().parse().expect("one child");
    assert_eq!(held.said_pid(), 1, "it counts for itself");
    attach(&[], pid).assert_code(0).assert_silent();
    let lock = lock_of(pid);
    std::fs::write(&lock, b"").expect("root's own directory");
    let from = pid.to_string();
    let into = ["flock", &lock, "nsenter", "--target", &from, "--pid", "--mount"];
    for (front, pid) in [(&into[..2], pid), (&into[..], 1)] {
        let busy = attach(front, pid);
        busy.assert_code(1);
        assert!(busy.err().contains("busy"), "{front:?}: {busy}");
        let free = attach(&front[2..], pid);
        free.assert_code(0).assert_silent();
    }
    held.finish().assert_code(7);
}

#[test]
fn files_of_processes_that_have_ended_are_removed_and_no_others() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let first = place.attacker(&[]);
    let lives = place.attacker(&[]);
    attach(&[], first.pid()).assert_code(0).assert_silent();
    // These files look as if a record had been written, or the tracer had been killed.
    let (gone, there) = (lock_of(first.pid()), lock_of(lives.pid()));
    first.finish().assert_code(7);
    for file in [&gone, &there] {
        std::fs::write(file, b"record").expect("root's own directory");
    }
    let elsewhere = format!("{LOCKS}/4026530000-12-99");
    std::fs::write(&elsewhere, b"").expect("root's own directory");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let swept = std::fs::File::options().write(true).open(format!("{LOCKS}/.swept"));
    swept.and_then(|file| file.set_modified(long_ago)).expect("a mark of root's");
    attach(&[], lives.pid()).assert_code(0).assert_silent();
    assert_eq!(std::fs::read(&there).expect("it stays"), b"record");
    assert!(!Path::new(&gone).exists(), "the record of a process that has ended stays");
    // Only in the initial PID namespace is it certain that no such process exists.
    let initial = std::fs::metadata("/proc/self/ns/pid").expect("a namespace").ino() == 0xEFFF_FFFC;
    assert_eq!(Path::new(&elsewhere).exists(), !initial);
    lives.finish().assert_code(7);
}

#[test]
fn a_user_has_locks_of_its_own() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let attacker = place.attacker(&[]);
    let pid = attacker.pid();
    let runtime = place.public.path().join("runtime");
    std::fs::create_dir(&runtime).expect("a directory");
    std::os::unix::fs::chown(&runtime, Some(2001), Some(2001)).expect("chown");
    support::chmod(&runtime, 0o700);
    let variable = format!("XDG_RUNTIME_DIR={}", runtime.display());
    // The process holds a lock on its own auxv. Without a directory for locks this blocks its own user's attach.
    let busy = place.own_attach(&[], &[], pid);
    busy.assert_code(1);
    assert!(busy.err().contains("busy"), "{busy}");
    place.own_attach(&[&variable], &[], pid).assert_code(0).assert_silent();
    let locks = runtime.join("tiexec/lock");
    assert_eq!(mode(&locks.to_string_lossy()), 0o700);
    let own = lock_of(pid).replace(LOCKS, &locks.to_string_lossy());
    let busy = place.own_attach(&[&variable], &["flock", &own], pid);
    busy.assert_code(1);
    assert!(busy.err().contains("busy"), "{busy}");
    // The lock does not delay root.
    let free: Vec<&str> =
        ATTACKER.iter().copied().chain(["flock", &own, "sleep", "1000"]).collect();
    let _holds = started(&[], Path::new(free[0]), &free[1..]);
    revert(pid).assert_code(0).assert_silent();
    attacker.finish().assert_code(7);
}

/// Locks do not exclude root and the user from each other. ptrace decides, and both commands report the truth.
#[test]
fn root_and_the_user_at_once() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let runtime = place.public.path().join("runtime");
    std::fs::create_dir(&runtime).expect("a directory");
    std::os::unix::fs::chown(&runtime, Some(2001), Some(2001)).expect("chown");
    support::chmod(&runtime, 0o700);
    let variable = format!("XDG_RUNTIME_DIR={}", runtime.display());
    let attacker = place.attacker(&[]);
    let pid = attacker.pid().to_string();
    let own: Vec<&str> = ATTACKER.iter().copied().chain(["env", &variable]).collect();
    let mut random = Random::new();
    for round in 0..support::extent::rounds(16) {
        let both = ["attach", "revert"].map(|command| {
            let mut args = vec![command, "-q"];
            args.extend((command == "attach").then_some("--backing=image"));
            args.push(&pid);
            args.into_iter().map(str::to_owned).collect::<Vec<_>>()
        });
        let (mine, theirs) = (&both[random.below(2) as usize], &both[random.below(2) as usize]);
        let theirs = started(&own, &place.ctl, theirs);
        random.spin(20_000);
        let mine = started(&[], support::tiexecctl(), mine);
        for done in [mine.finish(), theirs.finish()] {
            let known = ["already_traced", "modified_text", "changed"];
            let why = done.err();
            println!("round {round}: {}", why.trim_end());
            assert!(
                done.status.success() || known.iter().any(|reason| why.contains(reason)),
                "round {round}: {done}"
            );
        }
    }
    revert(attacker.pid()).assert_code(0);
    attacker.finish().assert_code(7);
}

/// A child is forked with its parent's copies after `revert` has looked for processes, and before it reverts the parent. The lock on the
/// parent makes `revert` wait in between.
#[test]
fn a_revert_finds_a_child_that_was_forked_meanwhile() {
    require!(can(), "another user needs root, setpriv, flock, unshare, nsenter");
    let place = place();
    let brood = place.public.add(&program("brood", Kind::DynamicNoPie), "brood", 0o755);
    let exe = brood.display().to_string();
    let mut parent = Run::new(&brood, ["0"]).plain().hold();
    attach(&[], parent.pid()).assert_code(0).assert_silent();
    let children = |parent: &Held| parent.out_text().matches("child ").count();
    loop {
        let other = std::fs::File::create(lock_of(parent.pid())).expect("root's own directory");
        other.lock().expect("nobody else has it");
        let tool = started(&[], support::tiexecctl(), ["revert", "--json", "--exe", &exe]);
        wait_call(tool.pid(), &libc::SYS_clock_nanosleep.to_string());
        let before = children(&parent);
        parent.write(b"\n");
        while children(&parent) == before {
            parent.wait_more();
        }
        drop(other);
        let done = tool.finish();
        if done.status.code() == Some(0) {
            break;
        }
        // The wait for the lock was over before: a busy machine.
        assert!(done.err().contains("busy"), "{done}");
    }
    for pid in [vec![parent.pid()], support::smaps::children(parent.pid())].concat() {
        assert_eq!(switched(pid), 0, "{pid}: {:?}", support::attaching::joined(pid));
    }
    parent.finish().assert_code(7);
}
