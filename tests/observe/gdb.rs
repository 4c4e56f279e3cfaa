//! gdb finds names and frames and sets breakpoints in a launched program as in a plain one, on every backing.

use support::traced::{ALL, By};
use support::{Done, Run, installed, require};

/// Starts gdb with these commands on a running process.
fn gdb(pid: i32, commands: &[&str]) -> Run {
    let mut args: Vec<String> = ["-nx", "-batch", "-p"].map(str::to_owned).into();
    args.push(pid.to_string());
    for command in ["set debuginfod enabled off", "set confirm off", "set pagination off"]
        .iter()
        .chain(commands)
    {
        args.extend(["-ex".to_owned(), (*command).to_owned()]);
    }
    Run::new("gdb", args).plain()
}

/// The frames of a backtrace, innermost first.
fn frames(done: &Done) -> Vec<String> {
    let out = done.out();
    let name = |line: &str| {
        let line = line.strip_prefix('#')?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = words.iter().position(|w| *w == "in").map_or(1, |at| at + 1);
        words.get(at).map(|w| (*w).to_owned())
    };
    out.lines().filter_map(name).collect()
}

fn names_the_functions(by: By) {
    require!(installed("gdb").is_some(), "no gdb");
    let traced = by.traced();
    require!(traced.is_some(), "no {by:?} on this machine");
    let traced = traced.expect("just looked");
    let held = traced.hold();
    let done = gdb(held.pid(), &["bt"]).output();
    done.assert_code(0);
    let frames = frames(&done);
    let from = frames.iter().position(|f| f == "wait_inner").unwrap_or_else(|| panic!("{done}"));
    assert_eq!(frames[from..], ["wait_inner", "wait_outer", "main"], "{done}");
    assert!(done.out().contains("traced.c:"), "no lines: {done}");
    held.finish().assert_code(7).assert_silent();
}

fn stops_at_breakpoints(by: By) {
    require!(installed("gdb").is_some(), "no gdb");
    let traced = by.traced();
    require!(traced.is_some(), "no {by:?} on this machine");
    let traced = traced.expect("just looked");
    let mut held = traced.hold();
    let commands = [
        "break probed",
        "echo armed\\n",
        "continue",
        "bt",
        "print n",
        "finish",
        "delete",
        "print probed(13) % 3",
        "detach",
    ];
    let mut debugger = gdb(held.pid(), &commands).start();
    debugger.wait_line("armed");
    held.write(b"call\n");
    let done = debugger.finish();
    done.assert_code(0);
    assert_eq!(frames(&done)[..2], ["probed", "main"], "{done}");
    assert!(done.out().contains("$1 = 1\n"), "the argument: {done}");
    assert!(done.out().contains("$3 = 0\n"), "a call from gdb: {done}");
    held.wait_line("done");
    // The breakpoint has left no change in the text, all of which the program checks.
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn names_in_moved_text() {
    names_the_functions(By::Rebase);
}

#[test]
fn names_in_the_page_cache() {
    names_the_functions(By::Pagecache);
}

#[test]
fn names_in_an_image() {
    names_the_functions(By::Image);
}

#[test]
fn names_in_hugetlb_pages() {
    names_the_functions(By::Hugetlb);
}

#[test]
fn breakpoints_in_moved_text() {
    stops_at_breakpoints(By::Rebase);
}

#[test]
fn breakpoints_in_the_page_cache() {
    stops_at_breakpoints(By::Pagecache);
}

#[test]
fn breakpoints_in_an_image() {
    stops_at_breakpoints(By::Image);
}

/// Returns whether the kernel lets a debugger write to private text in hugetlb pages, which kernels from 6.1.2 to 6.13
/// do not (`check_vma_flags` in `mm/gup.c`).
fn hugetlb_takes_breakpoints() -> bool {
    use std::os::unix::fs::FileExt;
    let len = support::pmd_size() as usize;
    let size = len.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
    let (anywhere, protection) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: a new mapping, which nothing else refers to.
    let page = unsafe { libc::mmap(anywhere, len, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED, "a page of the pool");
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").expect("an own file");
    let written = memory.write_at(&[0xcc], page as u64);
    // SAFETY: the mapping just made, whole.
    unsafe { libc::munmap(page, len) };
    written.is_ok()
}

#[test]
fn breakpoints_in_hugetlb_pages() {
    require!(installed("gdb").is_some(), "no gdb");
    let traced = By::Hugetlb.traced();
    require!(traced.is_some(), "no pages for the hugetlb pool");
    let able = hugetlb_takes_breakpoints();
    let said = support::attaching::ctl(["doctor"]).out();
    let said = said.lines().find(|line| line.contains("hugetlb")).expect("a line for it");
    let shown = if able { "breakpoints there: yes" } else { "breakpoints there: no" };
    assert!(said.contains(shown), "{said}");
    drop(traced);
    if able {
        return stops_at_breakpoints(By::Hugetlb);
    }
    // gdb reports that it cannot insert the breakpoint. The program continues with its text unharmed.
    let traced = By::Hugetlb.traced().expect("as just before");
    let mut held = traced.hold();
    let commands = ["break probed", "echo armed\\n", "continue", "detach"];
    let done = gdb(held.pid(), &commands).output();
    assert!(done.err().contains("Cannot insert breakpoint"), "{done}");
    held.write(b"call\n");
    held.wait_line("done");
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn a_breakpoint_costs_one_page_of_the_page_cache_and_leaves_the_file_alone() {
    require!(installed("gdb").is_some(), "no gdb");
    let traced = By::Rebase.traced();
    require!(traced.is_some(), "no huge folios");
    let traced = traced.expect("just looked");
    let before = std::fs::read(traced.copy.path()).expect("the program");
    let mut one = traced.hold();
    let other = traced.hold();
    let mut debugger =
        gdb(one.pid(), &["break probed", "echo armed\\n", "continue", "delete", "detach"]).start();
    debugger.wait_line("armed");
    traced.assert_huge(other.pid(), &other);
    assert_eq!(std::fs::read(traced.copy.path()).expect("the program"), before);
    one.write(b"call\n");
    debugger.finish().assert_code(0);
    for held in [one, other] {
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn started_by_gdb() {
    require!(installed("gdb").is_some(), "no gdb");
    for by in ALL.into_iter().filter(|by| *by != By::Hugetlb) {
        let traced = by.traced();
        require!(traced.is_some(), "no {by:?} on this machine");
        let traced = traced.expect("just looked");
        let mut args: Vec<String> = ["-nx", "-batch"].map(str::to_owned).into();
        for command in [
            "set debuginfod enabled off",
            "set breakpoint pending on",
            // The breakpoint is not at `main`, because tiexec has a `main` too.
            "tbreak wait_outer",
            "run",
            "bt",
            "continue",
        ] {
            args.extend(["-ex".to_owned(), command.to_owned()]);
        }
        args.push("--args".to_owned());
        args.extend(traced.run().argv().iter().map(|a| a.to_string_lossy().into_owned()));
        let done = Run::new("gdb", args).plain().output();
        assert_eq!(frames(&done)[..2], ["wait_outer", "main"], "{by:?}: {done}");
        assert!(done.out().contains("exited with code 07]"), "{by:?}: {done}");
    }
}
