//! Attaches to programs in odd situations. Either the text is switched, or nothing changes and attach reports the
//! reason. No program is harmed.

use std::process::{Command, Stdio};

use support::attaching::{
    Before, assert_switched, assert_untouched, attach, ctl, held, json, revert, small, started,
    switched,
};
use support::child::{eventually, state};
use support::smaps::{status_field, vmas};
use support::{Done, Fresh, Held, Kind, Run, installed, is_root, pmd_size, program, require};

/// Starts the program in this situation.
fn situation(copy: &Fresh, args: &[&str]) -> Held {
    Run::new(copy.path(), args).plain().hold()
}

fn copy() -> Fresh {
    small("situations", Kind::DynamicNoPie)
}

/// Asserts that attach and revert work, and that the program notices neither.
fn works(held: Held, pid: i32) {
    let before = Before::of(pid);
    attach(pid).assert_code(0).assert_silent();
    assert_switched(pid);
    revert(pid).assert_code(0).assert_silent();
    assert_untouched(pid, &before);
    attach(pid).assert_code(0);
    held.finish().assert_code(7);
}

/// Asserts that attach refuses with one of these reasons and leaves the program unchanged.
fn refused(held: Held, pid: i32, code: i32, reasons: &[&str]) {
    let before = Before::of(pid);
    assert_refused(&attach(pid), code, reasons);
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

fn assert_refused(done: &Done, code: i32, reasons: &[&str]) {
    done.assert_code(code);
    let reason = done.err().split(": ").nth(2).unwrap_or_default().to_owned();
    assert!(reasons.contains(&reason.as_str()), "{reason:?} is not of {reasons:?}: {done}");
}

#[test]
fn in_order() {
    let held = situation(&copy(), &["plain"]);
    let pid = held.pid();
    works(held, pid);
}

#[test]
fn stopped_by_a_signal_it_stays_so() {
    let copy = copy();
    let mut held = situation(&copy, &["plain"]);
    let pid = held.pid();
    held.signal(libc::SIGSTOP);
    assert_eq!(held.wait_stopped(), libc::SIGSTOP);
    let before = Before::of(pid);
    attach(pid).assert_code(0);
    // The program is stopped again before it runs its own code. On a busy machine that takes a moment.
    eventually("it is stopped again", || state(pid) == Some('T'));
    assert_switched(pid);
    revert(pid).assert_code(0);
    // The program is stopped again before it runs its own code. On a busy machine that takes a moment.
    eventually("it is stopped again", || state(pid) == Some('T'));
    assert_untouched(pid, &before);
    attach(pid).assert_code(0);
    held.write(b"\n");
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(state(pid), Some('T'), "it does not go on by itself");
    held.signal(libc::SIGCONT);
    held.finish().assert_code(7);
}

/// Attaches to a program whose leader has exited, and reverts it.
fn works_without_its_leader(name: &str) {
    without_its_leader(situation(&copy(), &[name]));
}

fn without_its_leader(held: Held) {
    let pid = held.pid();
    eventually("the leader's end", || state(pid) == Some('Z'));
    // /proc/PID shows no mappings if the leader has exited, but the directories of other threads do.
    let tid = std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("its threads")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|&tid| tid != pid)
        .expect("the thread that is left");
    let before = Before::of(tid);
    attach(pid).assert_code(0).assert_silent();
    assert_switched(tid);
    revert(pid).assert_code(0).assert_silent();
    assert_untouched(tid, &before);
    held.finish().assert_code(7);
}

#[test]
fn a_leader_that_has_exited() {
    works_without_its_leader("leader");
}

/// The kernel notes the ID of the process, not of the living thread, for the sockets that the thread makes.
#[test]
fn a_leader_of_another_user_that_has_exited() {
    require!(is_root(), "not root");
    let public = support::Public::new();
    let program = public.add(&program("situations", Kind::DynamicPie), "situations", 0o755);
    let run = Run::new(program, ["leader"]).plain();
    let front = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    without_its_leader(run.behind(front).hold());
}

/// A signal handler runs on an alternate stack that is a local variable. TiExec's frames fit there, or they lie
/// nowhere; the variables below it stay as they are.
#[test]
fn on_an_alternate_stack_among_local_variables() {
    let held = situation(&copy(), &["local_stack"]);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = attach(pid);
    if done.end().0 == Some(0) {
        assert_switched(pid);
        revert(pid).assert_code(0);
    } else {
        assert_refused(&done, 1, &["no_thread"]);
    }
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

/// Valgrind runs a program on stacks of its own, on which TiExec lays nothing.
#[test]
fn under_valgrind() {
    require!(installed("valgrind").is_some(), "no valgrind");
    let valgrind = installed("valgrind").expect("just looked");
    let copy = copy();
    let args = ["-q".as_ref(), copy.path().as_os_str(), "plain".as_ref()];
    let held = Run::new(valgrind, args).plain().hold();
    let done = attach(held.pid());
    done.assert_code(1);
    assert!(
        done.err().contains("no_thread: a thread that could be stopped was on a stack"),
        "{done}"
    );
    held.finish().assert_code(7);
}

/// Returns whether the kernel makes guards inside mappings (`MADV_GUARD_INSTALL`), and shows them.
fn guards_are_seen() -> bool {
    let (anywhere, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which nothing refers to; it stays.
    let page = unsafe { libc::mmap(anywhere, 4096, libc::PROT_READ, flags, -1, 0) };
    // SAFETY: the range is the mapping just made.
    let installed = unsafe { libc::madvise(page, 4096, 102) } == 0;
    let mut word = [0; 8];
    let pagemap = std::fs::File::open("/proc/self/pagemap").expect("an own file");
    let at = page as u64 / 4096 * 8;
    std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut word, at).expect("one word");
    installed && u64::from_ne_bytes(word) >> 58 & 1 == 1
}

#[test]
fn a_stack_whose_guard_is_no_mapping() {
    require!(guards_are_seen(), "the kernel shows no guards in pagemap (Linux 6.15)");
    works_without_its_leader("guard_regions");
}

#[test]
fn waiting_for_a_vforked_child() {
    let held = situation(&copy(), &["vfork"]);
    let pid = held.pid();
    refused(held, pid, 1, &["no_thread"]);
}

#[test]
fn what_has_no_text_any_more_or_never_had() {
    let held = situation(&copy(), &["zombie"]);
    let child: i32 = held.said("child").and_then(|pid| pid.parse().ok()).expect("its child");
    assert_eq!(state(child), Some('Z'));
    assert_refused(&attach(child), 4, &["target_gone"]);
    assert_eq!(state(child), Some('Z'));
    held.finish().assert_code(7);
    // PID 2 is the kernel's thread daemon.
    if status_field(2, "Kthread").is_some_and(|is| is == "1") {
        assert_refused(&attach(2), 1, &["not_selected"]);
    }
}

#[test]
fn seccomp_strict() {
    let held = situation(&copy(), &["strict"]);
    let pid = held.pid();
    eventually("strict mode", || status_field(pid, "Seccomp").is_some_and(|mode| mode == "1"));
    refused(held, pid, 1, &["seccomp"]);
}

#[test]
fn system_calls_sent_to_a_handler() {
    let mut held = Run::new(copy().path(), ["dispatch", "2000"]).plain().start();
    held.wait_line("ready");
    let pid = held.pid();
    eventually("a running thread", || state(pid) == Some('R'));
    let done = attach(pid);
    if done.status.code() != Some(4) {
        assert_refused(&done, 1, &["syscall_dispatch"]);
    }
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn under_a_tracer() {
    let copy = copy();
    for tool in ["gdb", "strace"] {
        require!(installed(tool).is_some(), "no {tool}");
        let held = situation(&copy, &["plain"]);
        let pid = held.pid();
        let mut tracer = Command::new(tool);
        match tool {
            "gdb" => tracer.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]).args([
                "-p",
                &pid.to_string(),
                "-ex",
                "continue",
            ]),
            _ => tracer.args(["-q", "-p", &pid.to_string()]),
        };
        let tracer = tracer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut tracer = tracer.spawn().expect("the tracer");
        let traced = || status_field(pid, "TracerPid").is_some_and(|tracer| tracer != "0");
        eventually("a tracer, and the program asleep", || traced() && state(pid) == Some('S'));
        let before = Before::of(pid);
        assert_refused(&attach(pid), 1, &["already_traced"]);
        assert_untouched(pid, &before);
        // SAFETY: an own child, not reaped yet.
        unsafe { libc::kill(tracer.id() as i32, libc::SIGTERM) };
        if tool == "gdb" {
            held.signal(libc::SIGINT);
        }
        eventually("the tracer's leave", || !traced());
        let _status = tracer.wait();
        if tool == "strace" {
            works(held, pid);
        }
    }
}

#[test]
fn not_dumpable() {
    require!(is_root(), "only root may trace what is not dumpable");
    let held = situation(&copy(), &["undumpable"]);
    let pid = held.pid();
    works(held, pid);
}

/// For its own user, a process that is not dumpable is like another user's process.
#[test]
fn not_dumpable_for_its_own_user() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root and setpriv");
    const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let public = support::Public::new();
    let binary = public.add(support::tiexecctl(), "tiexecctl", 0o755);
    let copy = public.add(&program("situations", Kind::DynamicNoPie), "situations", 0o755);
    let held = Run::new(&copy, ["undumpable"]).plain().behind(NOBODY).hold();
    let pid = held.pid();
    let before = Before::of(pid);
    for command in ["attach", "revert"] {
        let done = started(&NOBODY, &binary, [command, &pid.to_string()]).finish();
        assert_refused(&done, 5, &["ptrace_denied"]);
    }
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

/// Text that mprotect(2) has cut in pieces fills no huge page any more. Attach distinguishes it from text that never
/// filled one.
#[test]
fn text_that_is_cut_in_pieces() {
    let held = situation(&copy(), &["patched"]);
    let args = ["attach", "--dry-run", "--json", "--backing=image", &held.pid().to_string()];
    let plan = json(&ctl(args));
    let rests = plan["texts"]
        .as_array()
        .expect("texts")
        .iter()
        .flat_map(|text| text["rest"].as_array().cloned().unwrap_or_default());
    let cut: u64 = rests
        .filter(|rest| rest["reason"] == "cut_in_pieces")
        .filter_map(|rest| rest["bytes"].as_u64())
        .sum();
    // The other huge page is still in one piece.
    assert_eq!(cut, pmd_size(), "{plan}");
    held.finish().assert_code(7);
}

#[test]
fn in_namespaces_of_its_own() {
    require!(is_root() && installed("unshare").is_some(), "namespaces need root");
    let copy = copy();
    for (what, front, then) in [
        (
            "with its own /proc",
            &["--mount", "--pid", "--user", "--map-root-user", "--fork", "--mount-proc"][..],
            "exec \"$@\"",
        ),
        (
            "without a /proc",
            &["--mount", "--pid", "--fork"][..],
            "mount -t tmpfs none /proc; exec \"$@\"",
        ),
        ("in a user namespace", &["--user"][..], "exec \"$@\""),
        (
            "in a user namespace without a /proc",
            &["--mount", "--pid", "--user", "--map-root-user", "--fork"][..],
            "mount -t tmpfs none /proc; exec \"$@\"",
        ),
    ] {
        let mut words = vec!["unshare"];
        words.extend(front);
        let run = Run::new(copy.path(), ["plain"]).plain().behind(words).behind_sh(then);
        let held = run.hold();
        let mut pid = held.pid();
        while let Some(&child) = support::smaps::children(pid).first() {
            pid = child;
        }
        println!("{what}: {pid}");
        works(held, pid);
    }
}

#[test]
fn in_a_directory_that_is_its_root() {
    require!(is_root() && installed("chroot").is_some(), "chroot needs root");
    let copy = small("situations", Kind::StaticNoPie);
    let dir = copy.dir().to_string_lossy().into_owned();
    let name = format!("/{}", copy.path().file_name().expect("a name").display());
    let held = Run::new(&name, ["plain"]).plain().behind(["chroot", &dir]).hold();
    let pid = held.pid();
    works(held, pid);
}

#[test]
fn as_many_mappings_as_it_may_have() {
    let copy = copy();
    let held = situation(&copy, &["mappings", "4"]);
    let pid = held.pid();
    refused(held, pid, 1, &["map_count"]);
    // The limit leaves room for these mappings, and little more.
    let held = situation(&copy, &["mappings", "40"]);
    let pid = held.pid();
    works(held, pid);
}

#[test]
fn locked_in_memory_it_stays_so() {
    let held = situation(&copy(), &["locked"]);
    let pid = held.pid();
    let unlocked = |pid| {
        let all = vmas(pid).into_iter().filter(|vma| vma.is_text());
        all.filter(|vma| !vma.flags.iter().any(|flag| flag == "lo")).collect::<Vec<_>>()
    };
    let locked = status_field(pid, "VmLck");
    assert!(unlocked(pid).is_empty());
    attach(pid).assert_code(0);
    assert_switched(pid);
    assert!(unlocked(pid).is_empty(), "{:?}", unlocked(pid));
    assert_eq!(status_field(pid, "VmLck"), locked);
    revert(pid).assert_code(0);
    assert!(unlocked(pid).is_empty(), "{:?}", unlocked(pid));
    assert_eq!((switched(pid), status_field(pid, "VmLck")), (0, locked));
    held.finish().assert_code(7);
}

#[test]
fn text_that_it_patched_itself_is_left() {
    let held = situation(&copy(), &["patched"]);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = attach(pid);
    done.assert_code(0);
    let report = json(&done);
    // The patch lies in one of the two whole huge pages, which mprotect has also cut in pieces.
    assert_eq!(switched(pid), pmd_size(), "{report}");
    revert(pid).assert_code(0);
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

#[test]
fn a_breakpoint_that_a_debugger_left() {
    require!(installed("gdb").is_some(), "no gdb");
    let copy = copy();
    let held = situation(&copy, &["plain"]);
    let pid = held.pid();
    // An int3 in a filler byte, written by ptrace, is what a killed debugger leaves.
    let address = Command::new("nm").arg(copy.path()).output().expect("nm");
    let address = String::from_utf8_lossy(&address.stdout).into_owned();
    let line = address.lines().find(|line| line.ends_with(" big_middle")).expect("the symbol");
    let at = u64::from_str_radix(line.split(' ').next().expect("its address"), 16).expect("hex");
    let poke = format!("set var *(unsigned char*)({at:#x}+40) = *(unsigned char*)({at:#x}+40)");
    let output = Command::new("gdb")
        .args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", &pid.to_string()])
        .args(["-ex", &poke, "-ex", "detach"])
        .output()
        .expect("gdb");
    let own = |pid| {
        let all = vmas(pid).into_iter().filter(|vma| vma.start <= at && at < vma.end);
        all.map(|vma| vma.counter("Anonymous")).sum::<u64>()
    };
    assert!(own(pid) > 0, "gdb wrote: {output:?}");
    let done = attach(pid);
    done.assert_code(0);
    assert_eq!(switched(pid), pmd_size(), "{done}");
    assert!(json(&done).to_string().contains("modified_text"), "{done}");
    assert!(own(pid) > 0, "its page is still there");
    held.finish().assert_code(7);
}

#[test]
fn no_descriptor_left() {
    let copy = copy();
    for left in ["0", "1"] {
        let held = situation(&copy, &["files", left]);
        let pid = held.pid();
        refused(held, pid, 1, &["fd_limit"]);
    }
    let held = situation(&copy, &["files", "4"]);
    let pid = held.pid();
    works(held, pid);
}

#[test]
fn no_address_space_left() {
    let held = situation(&copy(), &["address-space"]);
    let pid = held.pid();
    refused(held, pid, 1, &["address_space"]);
}

#[test]
fn no_memory_left_to_lock() {
    require!(is_root(), "another user's process needs root");
    let held = situation(&copy(), &["locked_to_the_limit"]);
    let pid = held.pid();
    let before = Before::of(pid);
    let done = ctl(["attach", "--backing=image", &pid.to_string()]);
    assert_refused(&done, 1, &["locked_memory"]);
    assert!(done.err().contains("; fix: raise the limit on locked memory (ulimit -l"), "{done}");
    assert_untouched(pid, &before);
    held.finish().assert_code(7);
}

/// As runc executes itself. No path leads to such a program, so no start can be recommended.
#[test]
fn executed_in_a_memfd() {
    let held = situation(&copy(), &["executed_in_memory"]);
    let pid = held.pid();
    let said = ctl(["attach", &pid.to_string()]);
    said.assert_code(0);
    assert!(said.out().ends_with("nothing to do: not_selected\n"), "{said}");
    let reports = [attach(pid), ctl(["inspect", "--json", &pid.to_string()])].map(|one| json(&one));
    for report in &reports {
        let own = &report["files"][0];
        assert!(own["path"].as_str().is_some_and(|path| path.contains("memfd:inner")), "{report}");
        let rest = own["rest"].to_string();
        assert!(rest.contains("not_selected") && !rest.contains("base_pages"), "{report}");
        assert!(report["restart"].is_null(), "{report}");
    }
    let doctor = ctl(["doctor", &pid.to_string()]).out();
    let line =
        doctor.lines().find(|line| line.contains("of it huge")).expect("a line for the text");
    assert!(line.ends_with("; nothing to add"), "{doctor}");
    assert_eq!(reports[0]["files"][0]["rest"], reports[1]["files"][0]["rest"]);
    held.finish().assert_code(7);
}

/// As a tool such as Frida leaves text that it patches.
#[test]
fn text_that_stays_writable() {
    let held = situation(&copy(), &["writable"]);
    let pid = held.pid();
    for command in ["attach", "inspect"] {
        let report = json(&ctl([command, "--json", &pid.to_string()]));
        let rest = report["files"][0]["rest"].to_string();
        assert!(rest.contains("modified_text"), "{report}");
    }
    held.finish().assert_code(7);
}

#[test]
fn nothing_is_left_of_the_ones_that_were_attached_to() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid();
    attach(pid).assert_code(0);
    assert_switched(pid);
    held.finish().assert_code(7);
    assert_refused(&ctl(["attach", &pid.to_string()]), 4, &["target_gone"]);
}
