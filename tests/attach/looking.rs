//! TiExec examines a running process without delaying it: it reads neither smaps nor numa_maps, whose readers hold the
//! process's mmap lock while the kernel counts all pages.

use std::os::fd::AsRawFd;
use std::path::Path;

use support::attaching::{attach, ctl, ctl_behind, json, ok, revert, small};
use support::child::eventually;
use support::{Kind, Run, installed, is_root, require};

/// Returns whether this kernel can report huge pages without smaps.
fn kernel_scans() -> bool {
    /// `PAGEMAP_SCAN` (linux/fs.h), of a structure of 96 bytes.
    const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
    let pagemap = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
    let wrong = [0u64; 12];
    // SAFETY: the kernel reads a structure of that size, and refuses it.
    let returned = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw const wrong) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((returned, errno == Some(libc::ENOTTY)), (-1, errno != Some(libc::EINVAL)));
    errno == Some(libc::EINVAL)
}

/// Runs `tiexecctl` with these arguments. Returns the files that it opens whose reads block the process.
fn waited_for(args: &[&str], log: &Path) -> Vec<String> {
    let log_name = log.to_string_lossy();
    let strace = ["strace", "-f", "-o", &log_name, "-e", "trace=open,openat,openat2"];
    let done = ctl_behind(&strace, args);
    // On most machines the doctor reports a problem, and a second revert finds nothing to revert: both exit with 1.
    assert!(matches!(done.end().0, Some(0 | 1)), "{args:?} {done}");
    let text = std::fs::read_to_string(log).expect("strace's log");
    assert!(text.contains("\"status\""), "strace sees what is opened: {text}");
    let path = |line: &str| Some(line.split('"').nth(1)?.to_owned());
    let waits = |path: &String| {
        ["smaps", "smaps_rollup", "numa_maps", "clear_refs"].iter().any(|end| path.ends_with(end))
    };
    text.lines().filter_map(path).filter(waits).collect()
}

/// The commands that the test runs on a process, in this order.
const COMMANDS: [&[&str]; 16] = [
    &["inspect"],
    &["doctor"],
    &["attach", "--backing=image", "--dry-run"],
    &["attach", "--backing=image"],
    &["attach", "--backing=image"],
    &["inspect"],
    &["doctor"],
    &["revert", "--dry-run"],
    &["revert"],
    &["revert"],
    &["attach", "--backing=image", "--edges=aggressive", "--select=all"],
    &["revert"],
    &["attach", "--backing=image", "--max-huge-pages=1", "--settle=300ms"],
    &["revert"],
    &["attach"],
    &["revert"],
];

/// The commands that sample a process, which some users may not do.
const SAMPLING: [&[&str]; 3] = [
    &["advise", "--duration=200ms"],
    &["report", "--duration=200ms"],
    &["bench", "--runs=6", "--warmup=0", "--metric=echo 1", "--attach"],
];

/// Runs each command and asserts that it does not block the process.
fn assert_costs_nothing(pid: i32, commands: &[&[&str]]) {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let pid = pid.to_string();
    for args in commands {
        let args = [*args, &[pid.as_str()]].concat();
        assert_eq!(waited_for(&args, &log), [""; 0], "{args:?}");
    }
}

#[test]
fn nobody_reads_smaps_of_a_running_program() {
    require!(installed("strace").is_some(), "no strace");
    require!(kernel_scans(), "the kernel has no PAGEMAP_SCAN");
    let copy = small("hold", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    let pid = held.pid();
    assert_costs_nothing(pid, &COMMANDS);
    if is_root() {
        assert_costs_nothing(pid, &SAMPLING);
    }
    // The result must equal that of smaps.
    attach(pid).assert_code(0);
    let seen = json(ok(&ctl(["inspect", "--json", &pid.to_string()])));
    assert!(held.coverage().huge > 0 && seen["huge_bytes"] == held.coverage().huge, "{seen}");
    ok(&revert(pid));
    held.finish().assert_code(7).assert_silent();
}

#[test]
fn nor_of_one_that_has_locked_its_memory() {
    require!(installed("strace").is_some(), "no strace");
    require!(kernel_scans(), "the kernel has no PAGEMAP_SCAN");
    let copy = small("situations", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["locked"]).plain().hold();
    assert_costs_nothing(held.pid(), &COMMANDS);
    held.finish().assert_code(7);
}

#[test]
fn nor_of_one_that_is_followed() {
    require!(installed("strace").is_some(), "no strace");
    require!(kernel_scans(), "the kernel has no PAGEMAP_SCAN");
    let copy = small("hold", Kind::DynamicNoPie);
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let log_name = log.to_string_lossy();
    let strace = ["strace", "-f", "-o", &log_name, "-e", "trace=open,openat,openat2"];
    // The companion examines the process repeatedly. The launch itself may read any file, because the program does not
    // run yet.
    let held = Run::new(copy.path(), ["7"])
        .options(["--settle=1000s", "--select=all", "--backing=image"])
        .behind(strace)
        .hold();
    let launched = std::fs::read_to_string(&log).expect("strace's log").len();
    let ends = |text: &str| text.lines().filter(|line| line.contains("smaps\"")).count();
    eventually("the companion has looked", || {
        let text = std::fs::read_to_string(&log).expect("strace's log");
        text[launched..].matches("\"maps\"").count() > 3
    });
    held.finish().assert_code(7);
    let text = std::fs::read_to_string(&log).expect("strace's log");
    assert_eq!(ends(&text[launched..]), 0, "{}", &text[launched..]);
}
