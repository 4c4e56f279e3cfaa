//! A program may change after TiExec has examined it and before the switch. Some programs cannot be stopped.

use std::os::unix::fs::FileExt;
use std::path::Path;

use support::attaching::{
    Before, assert_switched, assert_untouched, attach, attach_run, ctl, eventually_untouched, json,
    ok, revert, revert_run, small, switched,
};
use support::child::{eventually, state};
use support::machine::{Groups, freezer};
use support::pty::Pty;
use support::smaps::status_field;
use support::{Done, Fresh, Held, Kind, Prep, Run, fresh, is_root, pmd_size, program, require};

/// A program whose first thread waits for a vforked child. The thread cannot be stopped until the child has read a
/// line.
fn in_vfork(copy: &Fresh) -> Held {
    Run::new(copy.path(), ["vfork", "untouched"]).plain().hold()
}

/// Waits until the command has staged everything and looks for a thread to stop. A separate thread of the command does
/// that.
fn wait_staged(tool: &Held) {
    let task = format!("/proc/{}/task", tool.pid());
    eventually("it looks for a thread", || {
        let threads = std::fs::read_dir(&task).into_iter().flatten().flatten();
        let mut names =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|name| name.trim() == "tiexec-stop")
    });
}

/// A byte of the text that nothing executes, in the middle.
fn filler(copy: &Fresh) -> u64 {
    let symbols = support::child::tool(&["nm", &copy.path().to_string_lossy()]);
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let line = symbols.lines().find(|line| line.ends_with(" big_middle")).expect("the symbol");
    u64::from_str_radix(line.split(' ').next().expect("its address"), 16).expect("hex") + 40
}

/// Changes a byte as a debugger does. Returns the new value.
fn poke(pid: i32, at: u64) -> u8 {
    let memory = std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    let memory = memory.expect("an own child's memory");
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at).expect("it is mapped");
    byte[0] ^= 0xff;
    memory.write_all_at(&byte, at).expect("it can be written");
    byte[0]
}

fn peek(pid: i32, at: u64) -> u8 {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at).expect("it is mapped");
    byte[0]
}

/// Runs the command, and changes a byte of the text after everything is staged and before the switch.
fn changed_meanwhile(held: &mut Held, tool: &Run, at: u64) -> (Done, u8) {
    let tool = tool.start();
    wait_staged(&tool);
    let byte = poke(held.pid(), at);
    // The program can be stopped only from now on.
    held.write(b"\n");
    (tool.finish(), byte)
}

#[test]
fn a_breakpoint_set_while_the_copy_was_made_stays() {
    let copy = small("situations", Kind::DynamicNoPie);
    let mut held = in_vfork(&copy);
    let (pid, at) = (held.pid(), filler(&copy));
    let (done, byte) = changed_meanwhile(&mut held, &attach_run(pid), at);
    done.assert_code(1);
    assert!(done.err().contains("modified_text"), "{done}");
    assert_eq!((peek(pid, at), switched(pid)), (byte, 0), "{done}");
    // A later attach switches the part that was not written to.
    ok(&attach(pid));
    assert_eq!(switched(pid), pmd_size());
    assert_eq!(peek(pid, at), byte);
    poke(pid, at);
    held.finish().assert_code(7);
}

#[test]
fn a_breakpoint_set_while_page_cache_text_was_looked_at_stays() {
    require!(fresh::huge_folios(), "{}", fresh::NO_HUGE_FOLIOS);
    let copy = Fresh::copy(&program("situations", Kind::OneSegmentNoPie));
    let mut held = in_vfork(&copy);
    let (pid, at) = (held.pid(), filler(&copy));
    let run = Run::new(
        support::tiexecctl(),
        ["attach", "--backing=pagecache", "--json", &pid.to_string()],
    );
    let (done, byte) = changed_meanwhile(&mut held, &run.plain(), at);
    assert!(json(&done).to_string().contains("modified_text"), "{done}");
    assert_eq!(peek(pid, at), byte, "{done}");
    poke(pid, at);
    held.finish().assert_code(7);
}

/// A server turns THP off for its heap as it starts. The switch must still map its text by huge pages.
#[test]
fn thp_turned_off_while_the_copy_was_made_is_on_for_the_switch() {
    let copy = small("situations", Kind::DynamicNoPie);
    let mut held = Run::new(copy.path(), ["vfork", "nothp"]).plain().hold();
    let pid = held.pid();
    let tool = attach_run(pid).start();
    wait_staged(&tool);
    assert_eq!(status_field(pid, "THP_enabled").as_deref(), Some("1"));
    // The child, which shares the program's memory, turns THP off and ends. Only then can the program be stopped.
    held.write(b"\n");
    tool.finish().assert_code(0);
    assert_switched(pid);
    assert_eq!(status_field(pid, "THP_enabled").as_deref(), Some("0"));
    held.finish().assert_code(7);
}

#[test]
fn a_breakpoint_set_while_a_revert_looks_for_its_moment_stays() {
    let copy = small("situations", Kind::DynamicNoPie);
    // The program gets its copy at launch, because an attach is impossible while it waits.
    let mut held = Run::new(copy.path(), ["vfork"]).options(["--backing=image"]).hold();
    let (pid, at) = (held.pid(), filler(&copy));
    assert_switched(pid);
    let (done, byte) = changed_meanwhile(&mut held, &revert_run(pid), at);
    done.assert_code(1);
    assert!(done.err().contains("modified_text"), "{done}");
    assert_eq!(peek(pid, at), byte, "{done}");
    poke(pid, at);
    // The bytes equal the file's again, although the page does not belong to the file.
    ok(&revert(pid));
    assert_eq!(switched(pid), 0);
    held.finish().assert_code(7);
}

/// Attach reports a frozen process in time, and leaves nothing in the program when it continues.
fn frozen(unified: bool) {
    require!(is_root(), "cgroups need root");
    let mut cgroups = Groups::new();
    let found = freezer(&mut cgroups, unified);
    require!(found.is_some(), "no freezer");
    let (group, [switch, state_file], [freeze, thaw, settled]) = found.expect("just looked");
    let copy = small("situations", Kind::DynamicNoPie);
    let script = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", group.display());
    let mut held = Run::new(copy.path(), ["plain"]).plain().behind_sh(&script).hold();
    let other = Run::new(copy.path(), ["plain"]).plain().hold();
    let pid = held.pid();
    let before = Before::of(pid);
    std::fs::write(&switch, freeze).expect("it freezes");
    eventually("it is frozen", || {
        std::fs::read_to_string(&state_file).is_ok_and(|now| now.contains(settled))
    });
    // Attach treats the next process nevertheless.
    let done = ctl(["attach", "-q", "--backing=image", &pid.to_string(), &other.pid().to_string()]);
    if switched(pid) == 0 {
        done.assert_code(3);
        assert!(done.err().contains("no_thread"), "{done}");
        assert_untouched(pid, &before);
    } else {
        done.assert_code(0);
    }
    assert_switched(other.pid());
    assert_eq!(status_field(pid, "TracerPid").as_deref(), Some("0"));
    std::fs::write(&switch, thaw).expect("it thaws");
    eventually("it waits again", || state(pid) == Some('S'));
    ok(&attach(pid));
    assert_switched(pid);
    held.write(b"\n");
    held.finish().assert_code(7).assert_silent();
    other.finish().assert_code(7);
}

#[test]
fn a_frozen_process() {
    frozen(false);
}

#[test]
fn a_process_frozen_by_cgroup_v2() {
    frozen(true);
}

/// The session that a process belongs to, and its terminal.
fn session(pid: i32) -> (i32, i32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("its name").1.split(' ').collect();
    let number = |index: usize| fields[index].parse().expect("a number");
    (number(3), number(4))
}

fn waiting_to_revert(pid: i32) -> Option<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|other| {
        let words = std::fs::read_to_string(format!("/proc/{other}/cmdline")).unwrap_or_default();
        words.contains("--after") && words.contains(&format!("\0{pid}\0"))
    })
}

/// The process of the scheduled revert does not belong to the terminal.
#[test]
fn for_a_while_and_the_terminal_is_closed() {
    require!(!Path::new("/run/systemd/system").exists(), "systemd has a timer instead");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    let pid = held.pid();
    let before = Before::of(pid);
    let mut pty = Pty::new();
    let slave = pty.slave_fd();
    // The shell does not read from the terminal, because the end of file may arrive before SIGHUP.
    let script = format!(
        "'{}' attach -q --backing=image --for 4s {pid}; echo attached; exec sleep 1000",
        support::tiexecctl().display()
    );
    let shell = Run::new("/bin/sh", ["-c", &script])
        .plain()
        .stdio([slave, slave, slave])
        .prep(Prep::Terminal)
        .start();
    pty.wait_for("attached");
    assert_switched(pid);
    let waits = waiting_to_revert(pid).expect("a process waits");
    assert_eq!(session(waits), (waits, 0), "a session of its own, without a terminal");
    assert_ne!(session(shell.pid()).1, 0);
    drop(pty);
    shell.finish().assert_signal(libc::SIGHUP);
    eventually_untouched(pid, &before);
    held.finish().assert_code(7);
}
