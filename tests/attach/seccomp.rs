//! TiExec attaches to a program under seccomp filters if they allow every call. If a filter may forbid a call, TiExec
//! leaves the program unchanged.

use support::attaching::wait_call;
use support::attaching::{
    Before, assert_switched, assert_untouched, attach, ctl_behind, revert, small, switched,
};
use support::child::eventually;
use support::extent::{ALL, is_whole};
use support::smaps::status_field;
use support::{Done, Fresh, Held, Kind, Run, installed, is_root, program, require, write_program};

/// Starts a program that installs filters and then becomes `hold`.
fn behind(filter: &str, words: &[&str]) -> Held {
    let filter = program(filter, Kind::StaticNoPie);
    let copy = small("hold", Kind::StaticNoPie);
    let mut front = vec![filter.into_os_string()];
    front.extend(words.iter().map(Into::into));
    let held = Run::new(copy.path(), ["7"]).plain().behind(front).hold();
    assert_eq!(status_field(held.pid(), "Seccomp").as_deref(), Some("2"));
    held
}

fn works(held: Held, what: &str) {
    let pid = held.pid();
    println!("{what}: {pid}");
    let before = Before::of(pid);
    for _ in 0..2 {
        attach(pid).assert_code(0).assert_silent();
        assert_switched(pid);
        revert(pid).assert_code(0).assert_silent();
        assert_untouched(pid, &before);
    }
    attach(pid).assert_code(0);
    held.finish().assert_code(7);
}

fn refused(held: Held, what: &str) {
    let pid = held.pid();
    println!("{what}: {pid}");
    let before = Before::of(pid);
    assert_refused(&attach(pid));
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

fn assert_refused(done: &Done) {
    done.assert_code(1);
    assert_eq!(done.err().split(": ").nth(2), Some("seccomp"), "{done}");
}

#[test]
fn under_the_filters_of_a_container_and_of_a_service() {
    require!(is_root(), "only root may read filters");
    for profile in ["container", "service"] {
        works(behind("profile_exec", &[profile]), profile);
    }
}

#[test]
fn whatever_is_not_plainly_allowed_is_refused() {
    require!(is_root(), "only root may read filters");
    let actions = ["errno=1", "kill", "trap", "trace", "notify"];
    for (at, call) in
        (0..).zip(["mmap", "mremap", "madvise", "munmap", "socketpair", "recvmsg", "rt_sigreturn"])
    {
        let in_turn = |n: usize| is_whole() || n == at % actions.len();
        for (_, action) in actions.iter().enumerate().filter(|(n, _)| in_turn(*n)) {
            refused(behind("seccomp_exec", &[*action, call]), &format!("{action} {call}"));
        }
        works(behind("seccomp_exec", &["log", call]), &format!("log {call}"));
    }
    refused(behind("seccomp_exec", &["errno=9", "close"]), "close");
}

#[test]
fn what_is_known_of_the_arguments_decides() {
    require!(is_root(), "only root may read filters");
    // The first filters test known arguments: protection, flags, family, advice. The last ones test arguments that are
    // not known beforehand: an address, a descriptor.
    for call in
        ["mmap/2=5", "mremap/3=3", "socketpair/0=1", "madvise/2=22", "mmap/0=0", "recvmsg/0=77"]
    {
        refused(behind("seccomp_exec", &["kill", call]), call);
    }
    for call in ["mmap/2=7", "mremap/3=2", "socketpair/0=2", "madvise/2=9", "recvmsg/2=0"] {
        works(behind("seccomp_exec", &["kill", call]), call);
    }
}

#[test]
fn what_can_be_left_out_is() {
    require!(is_root(), "only root may read filters");
    for call in ["sched_setscheduler", "process_vm_readv", "mlock", "prctl"] {
        works(behind("seccomp_exec", &["kill", call]), call);
    }
}

#[test]
fn one_thread_is_filtered_and_another_is_not() {
    require!(is_root(), "only root may read filters");
    let copy = small("filtered", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["leader"]).plain().hold();
    let pid = held.pid();
    let before = Before::of(pid);
    // In the leader, the first call would kill the program.
    attach(pid).assert_code(0).assert_silent();
    assert_switched(pid);
    revert(pid).assert_code(0).assert_silent();
    assert_untouched(pid, &before);
    attach(pid).assert_code(0);
    assert_switched(pid);
    held.finish().assert_code(7);
}

/// The kernel would continue these calls by `restart_syscall`, for which the filter would kill the process.
#[test]
fn a_call_that_may_not_be_restarted_is_made_again() {
    require!(is_root(), "only root may read filters");
    let copy = small("filtered", Kind::DynamicNoPie);
    // The system call of poll(3).
    const POLL: i64 = if cfg!(target_arch = "x86_64") { 7 } else { libc::SYS_ppoll };
    for (name, number) in [("poll", POLL), ("nanosleep", libc::SYS_clock_nanosleep)] {
        let start = |args: &[&str]| {
            let mut held = Run::new(copy.path(), args).plain().start();
            held.wait_line("ready");
            wait_call(held.pid(), &number.to_string());
            held
        };
        let mut held = start(&[name]);
        let pid = held.pid();
        let before = Before::of(pid);
        for _ in 0..3 {
            attach(pid).assert_code(0);
            assert_switched(pid);
            revert(pid).assert_code(0);
            assert_untouched(pid, &before);
        }
        held.write(b"\n");
        held.finish().assert_code(7).assert_silent();
        // TiExec stops this thread to read its filters, and releases it.
        let mut held = start(&[name, &libc::SYS_mremap.to_string()]);
        let pid = held.pid();
        assert_refused(&attach(pid));
        assert_refused(&attach(pid));
        held.write(b"\n");
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn filters_that_cannot_be_read() {
    require!(is_root() && installed("setpriv").is_some(), "privileges need root");
    let held = behind("profile_exec", &["container"]);
    let pid = held.pid();
    let before = Before::of(pid);
    let filter = program("seccomp_exec", Kind::StaticNoPie);
    let filter = filter.to_str().expect("a path of letters");
    let without = ["setpriv", "--bounding-set=-sys_admin"];
    let filtered = [filter, "errno=1", "sendfile"];
    let elsewhere = ["unshare", "--user", "--map-root-user"];
    for front in [&without[..], &filtered[..], &elsewhere[..]] {
        let pid_text = pid.to_string();
        let done = ctl_behind(front, ["attach", "--backing=image", &pid_text]);
        assert!(matches!(done.status.code(), Some(1 | 5)), "{done}");
        if front != elsewhere {
            assert_refused(&done);
            assert!(done.err().contains("CAP_SYS_ADMIN"), "{done}");
        }
        assert_untouched(pid, &before);
    }
    works(held, "with all privileges");
}

/// An interpreter with a just-in-time compiler, as in a container.
#[test]
fn node_under_the_filters_of_a_container() {
    require!(is_root() && installed("node").is_some(), "no node");
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("busy.js");
    let text = "const {createHash} = require('crypto');
        let h = 'x', done = false;
        function round() {
            for (let i = 0; i < 2000; i++) h = createHash('sha1').update('x' + i).digest('hex');
            if (!done) setTimeout(round, 1); else process.exit(h.length == 40 ? 7 : 99);
        }
        process.stdin.on('data', () => { done = true; });
        console.log('ready'); round();";
    write_program(&script, text.as_bytes(), 0o644);
    let filter = program("profile_exec", Kind::StaticNoPie);
    // The copy is in small folios, because text that the page cache holds in huge folios is never switched.
    let node = Fresh::small(&installed("node").expect("just looked"));
    let run = Run::new(node.path(), [script.as_os_str()]).plain();
    let mut held = run.behind([filter.as_os_str(), "container".as_ref()]).hold();
    let pid = held.pid();
    for cycle in 0..10 {
        let done = attach(pid);
        done.assert_code(0);
        assert!(switched(pid) > 0, "cycle {cycle}: {done}");
        revert(pid).assert_code(0);
        assert_eq!(switched(pid), 0, "cycle {cycle}");
    }
    held.write(b"end\n");
    held.finish().assert_code(7);
}

/// If TiExec dies, the thread goes home through calls that its filters allow.
#[test]
fn killed_at_each_step() {
    require!(is_root(), "only root may read filters");
    let held = behind("profile_exec", &["service"]);
    let pid = held.pid();
    let fault = |command: &str, point: &str, n: u32| {
        let pid = pid.to_string();
        let run = Run::new(support::tiexecctl(), [command, pid.as_str()]).plain();
        let run = if command == "attach" { run.with_arg("--backing=image") } else { run };
        run.env("TIEXEC_FAULT", format!("{point}:{n}")).output()
    };
    for command in ["attach", "revert"] {
        if command == "revert" {
            attach(pid).assert_code(0);
        }
        for point in ["die-after-setregs", "die-after-write"] {
            ALL.sweep(4, &format!("{command}, {point}"), |n| {
                let done = fault(command, point, n);
                if done.end().1 != Some(libc::SIGKILL) {
                    return false;
                }
                eventually("it is let go", || {
                    status_field(pid, "TracerPid").as_deref() == Some("0")
                });
                let other = if command == "attach" { revert(pid) } else { attach(pid) };
                other.assert_code(0);
                true
            });
            (if command == "attach" { revert(pid) } else { attach(pid) }).assert_code(0);
        }
    }
    held.finish().assert_code(7);
}
