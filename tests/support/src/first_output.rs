//! Holds a program of the machine at its first output, where its main runs.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use super::child::eventually;
use super::fresh::Report;
use super::launch::Run;
use super::pty::pipe;
use super::smaps::{Coverage, coverage};

/// Runs a program with a full pipe as its output, so that it blocks in main at its first output. Reads the coverage of
/// its text there, and lets it continue. Returns the coverage and the output.
pub fn held_at_first_output(run: &Run) -> (Coverage, Vec<u8>) {
    held(run, coverage)
}

/// Does the same until tiexec has written the whole report, and returns the output. A program that ends at once may be gone before tiexec
/// looks at it.
pub fn reported_at_first_output(run: &Run, report: &Report) -> Vec<u8> {
    held(&report.of(run), |_| eventually("the report is whole", || report.complete())).1
}

fn held<T>(run: &Run, look: impl FnOnce(i32) -> T) -> (T, Vec<u8>) {
    let (mut read, write) = pipe();
    let (none, _keep) = pipe();
    // SAFETY: fcntl on own descriptors.
    let size = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    let mut filler = vec![0_u8; size as usize];
    (&write).write_all(&filler).expect("an empty pipe takes its size");
    let (_err_read, err) = pipe();
    let held = run.clone().stdio([none.as_raw_fd(), write.as_raw_fd(), err.as_raw_fd()]).start();
    drop(write);
    let pid = held.pid();
    eventually("the program writes", || writes(pid));
    let seen = look(pid);
    read.read_exact(&mut filler).expect("the filler comes first");
    let mut output = Vec::new();
    read.read_to_end(&mut output).expect("its output");
    held.finish().assert_code(0);
    (seen, output)
}

/// Returns whether some thread is in write(1, …) or writev(1, …).
fn writes(pid: i32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().any(|task| {
        let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        // SYS_write and SYS_writev, first argument 1.
        call.starts_with(&format!("{} 0x1 ", libc::SYS_write))
            || call.starts_with(&format!("{} 0x1 ", libc::SYS_writev))
    })
}
