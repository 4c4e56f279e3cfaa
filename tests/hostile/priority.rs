//! A stop grants no lasting priority. A thread of another user never gets a raised priority. A thread of the tracer's
//! own user neither keeps the priority nor passes it to children.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::attaching::{ctl, started};
use support::child::eventually;
use support::{Held, Kind, Public, Run, installed, is_root, program, require};

use super::ATTACKER;

/// Most attaches until a program's own threads have looked at a stop: on a busy machine they miss many.
const MOST: usize = 200;
/// Most attaches to each program that need not make its own call in a stop.
const FEW: usize = 20;

fn can() -> bool {
    is_root()
        && installed("setpriv").is_some()
        && support::child::tool(&["chrt", "--fifo", "1", "true"]).status.success()
}

const CANNOT: &str = "needs root, setpriv, and real-time scheduling";

/// A copy of the program that all users can run.
fn attacker() -> (Public, PathBuf) {
    let public = Public::new();
    let file = program("hostile/priority", Kind::DynamicNoPie);
    let path = public.add(&file, "priority", 0o755);
    (public, path)
}

fn started_as(front: &[&str], path: &PathBuf, mode: &str) -> Held {
    Run::new(path, [mode]).plain().behind(front).limit(600).hold()
}

/// Attaches and reverts, while the program's threads race with the stops, until it has also said each of these words, or `most`
/// times. Each command may fail, because the program interferes.
fn race(held: &mut Held, words: &[&str], most: usize) {
    let least = support::rounds(6);
    for round in 1..=most.max(least) {
        for command in ["attach", "revert"] {
            ctl([command, "-q", &held.pid().to_string()]);
        }
        if round >= least && words.iter().all(|word| held.has_said(word)) {
            return;
        }
    }
}

/// The word that ends the race. On x86-64 the program makes the stopped thread fork, and says that it has a child. It has no
/// such code for other architectures, and only says that the thread was stopped.
const FORKED: &str = if cfg!(target_arch = "x86_64") { "forked" } else { "stopped" };

/// The program's observations, which it prints at its end.
struct Seen {
    stops: u64,
    children: u64,
    thread: u64,
    child: u64,
}

fn end(mut held: Held) -> Seen {
    held.write(b"\n");
    let done = held.finish();
    done.assert_code(7);
    let number = |word| {
        let text = support::child::said(&done.out(), word);
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{word}: {done}"))
    };
    println!("{}", done.out());
    assert_eq!(number("policy"), 0, "it is not scheduled normally: {done}");
    Seen {
        stops: number("stops"),
        children: number("children"),
        thread: number("thread"),
        child: number("child"),
    }
}

fn assert_nothing_gained(seen: &Seen) {
    let Seen { stops, children, thread, child } = *seen;
    assert!(stops > 0, "it was never seen stopped");
    assert!(children > 0 || !cfg!(target_arch = "x86_64"), "it never made its own call");
    assert_eq!((thread, child), (0, 0), "scheduled before others");
}

#[test]
fn another_users_thread_is_never_scheduled_first() {
    require!(can(), "{CANNOT}");
    let (_public, path) = attacker();
    let mut held = started_as(&ATTACKER, &path, "fork");
    race(&mut held, &[FORKED], MOST);
    assert_nothing_gained(&end(held));
}

/// A program that has dropped a part of its rights, or has run a set-user-ID file, counts as another user.
#[test]
fn a_thread_with_fewer_rights_is_never_scheduled_first() {
    require!(can(), "{CANNOT}");
    let (public, path) = attacker();
    let owned = public.add(&path, "owned", 0o755);
    std::os::unix::fs::chown(&owned, Some(2001), Some(2001)).expect("chown");
    support::chmod(&owned, 0o6755);
    let fronts: [&[&str]; 5] = [
        &["setpriv", "--bounding-set=-sys_nice"],
        &["setpriv", "--groups=2001"],
        &["setpriv", "--egid=2001", "--keep-groups"],
        &["unshare", "--user", "--map-root-user"],
        &["env"],
    ];
    for front in fronts {
        let path = if front == ["env"] { &owned } else { &path };
        let mut held = started_as(front, path, "fork");
        race(&mut held, &[FORKED], FEW);
        let seen = end(held);
        assert!(seen.stops > 0, "{front:?}: it was never seen stopped");
        assert_eq!((seen.thread, seen.child), (0, 0), "{front:?}");
    }
}

/// TiExec may boost a thread of the tracer's own user, but the boost does not last and is not inherited.
#[test]
fn an_own_threads_priority_is_neither_kept_nor_inherited() {
    require!(can(), "{CANNOT}");
    let (_public, path) = attacker();
    let mut held = started_as(&[], &path, "fork");
    race(&mut held, &[FORKED, "first"], MOST);
    let seen = end(held);
    assert!(seen.stops > 0 && seen.thread > 0, "it was never seen scheduled first");
    assert_eq!(seen.child, 0, "children inherited it");
}

/// Neither a thread that never ends its call nor its tracer keeps other threads from the processors.
#[test]
fn priority_ends_while_the_stop_lasts() {
    require!(can(), "{CANNOT}");
    require!(cfg!(target_arch = "x86_64"), "the program has no code for this architecture");
    let (_public, path) = attacker();
    for front in [&[][..], &ATTACKER] {
        let mut held = started_as(front, &path, "spin");
        let pid = held.pid().to_string();
        // The program may miss a stop.
        let mut commands = ["attach", "revert"].iter().cycle().take(MOST);
        let tool = loop {
            let command = commands.next().expect("it never made its own call");
            let mut tool = started(&[], support::tiexecctl(), [command, "-q", pid.as_str()]);
            let mut spins = false;
            eventually("it spins, or the command ends", || {
                spins = held.has_said("spins");
                spins || tool.has_ended()
            });
            if spins {
                break tool;
            }
            tool.finish();
        };
        for pid in [held.pid(), tool.pid()] {
            eventually("all threads are scheduled normally", || all_normal(pid));
        }
        held.write(b"\n");
        drop(tool);
        let done = held.finish();
        done.assert_code(7);
        assert!(done.out().contains("\npolicy 0\n"), "{done}");
    }
}

/// Returns whether all threads of the process have normal priority, except the thread that ends the boost.
fn all_normal(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).all(|tid: i32| {
        let comm = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
        // SAFETY: the call takes a thread id.
        comm.trim() == "tiexec-boost"
            || unsafe { libc::sched_getscheduler(tid) } == libc::SCHED_OTHER
    })
}

/// `--follow` continues as root beside programs that have dropped their rights.
#[test]
fn what_a_followed_program_becomes_is_not_scheduled_first() {
    require!(can(), "{CANNOT}");
    let (_public, path) = attacker();
    let script = format!("{} {} fork; exit $?", ATTACKER.join(" "), path.display());
    let run = Run::new("sh", ["-c", &script]).options(["--follow", "--backing=image"]);
    // Each program is stopped once or twice, and may miss a stop.
    let forked = (0..MOST).any(|_| {
        let mut held = run.hold();
        let until = Instant::now() + support::child::patience(Duration::from_secs(2));
        while !held.has_said("forked") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let seen = end(held);
        assert_eq!((seen.thread, seen.child), (0, 0));
        seen.children > 0
    });
    assert!(forked || !cfg!(target_arch = "x86_64"), "it never made its own call");
}
