//! `tiexecctl attach` and `revert` on a process that runs, and what is to be seen of it from outside.

use std::path::Path;

use super::child::{Done, eventually};
use super::launch::Run;
use super::smaps::{pmd_size, vmas};

/// A command of `tiexecctl`, to be started.
pub(crate) fn ctl<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    Run::new(super::tiexecctl(), args).plain().limit(60)
}

/// Attaches with a copy of the text, which works whatever the page cache holds.
pub(crate) fn attach(pid: i32) -> Run {
    ctl(["attach", "--backing", "image", &pid.to_string()])
}

pub(crate) fn revert(pid: i32) -> Run {
    ctl(["revert", &pid.to_string()])
}

/// The mappings by what they are of, those that touch and continue each other joined, without the heap and the stack:
/// these grow by themselves.
pub(crate) fn map_lines(pid: i32) -> Vec<String> {
    let mut joined: Vec<super::smaps::Vma> = Vec::new();
    for mut vma in vmas(pid) {
        if vma.path == "[heap]" || vma.path == "[stack]" {
            continue;
        }
        // Another test may have built the program anew.
        vma.path = vma.path.trim_end_matches(" (deleted)").to_owned();
        match joined.last_mut() {
            Some(last)
                if last.end == vma.start
                    && last.path == vma.path
                    && last.perms == vma.perms
                    && (vma.path.is_empty()
                        || last.offset + (last.end - last.start) == vma.offset) =>
            {
                last.end = vma.end;
            }
            _ => joined.push(vma),
        }
    }
    let line = |vma: &super::smaps::Vma| {
        format!("{:x}-{:x} {} {:x} {}", vma.start, vma.end, vma.perms, vma.offset, vma.path)
    };
    joined.iter().map(line).collect()
}

/// Whether the text is all huge, in copies of TiExec's: the whole huge pages of the main executable.
pub(crate) fn is_switched(pid: i32) -> bool {
    vmas(pid).iter().any(|vma| vma.is_switched()) && super::coverage(pid).is_full()
}

/// No mapping is TiExec's.
pub(crate) fn is_clean(pid: i32) -> bool {
    !vmas(pid).iter().any(|vma| vma.path.contains("tiexec:"))
}

/// The numbers of the open descriptors.
pub(crate) fn descriptors(pid: i32) -> Vec<String> {
    let dir = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("an own child's descriptors");
    let mut all: Vec<String> = dir
        .flatten()
        .map(|entry| {
            let link = std::fs::read_link(entry.path()).unwrap_or_default();
            format!("{} {}", entry.file_name().to_string_lossy(), link.display())
        })
        .collect();
    all.sort_unstable();
    all
}

/// Waits until the process sleeps in the system call of this number.
pub(crate) fn wait_call(pid: i32, number: &str) {
    eventually(&format!("process {pid} sleeps in system call {number}"), || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        // Interrupted, some calls go on as restart_syscall.
        text.split(' ').next().is_some_and(|now| now == number || now == "219")
    });
}

/// The staged mappings that a dead TiExec left beside the text: such as lie at no text's place.
pub(crate) fn left_staged(pid: i32, exe: &Path) -> usize {
    let all = vmas(pid);
    let name = exe.to_string_lossy();
    let text = |vma: &&super::smaps::Vma| vma.path == name;
    let (from, to) = all
        .iter()
        .filter(text)
        .fold((u64::MAX, 0), |(from, to), vma| (from.min(vma.start), to.max(vma.end)));
    let aside = |vma: &&super::smaps::Vma| {
        (vma.is_switched()
            || vma.path == name && vma.is_text() && vma.end - vma.start >= pmd_size())
            && (vma.start >= to || vma.end <= from)
    };
    all.iter().filter(aside).count()
}

/// Asserts that the command did its work.
pub(crate) fn ok(done: &Done) -> &Done {
    done.assert_code(0).assert_silent()
}
