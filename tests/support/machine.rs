//! State of the whole machine: a test that changes it holds the lock, and what it changed goes back when it ends.

use std::fs::File;
use std::path::{Path, PathBuf};

thread_local! {
    /// Whether the test on this thread holds the machine.
    static HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Held by the one test that may change the machine. Every child of every other test holds the lock
/// shared, so none sees the change.
pub(crate) struct Machine {
    _lock: File,
    undo: Vec<(PathBuf, String)>,
    groups: Vec<PathBuf>,
}

fn lock_file() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine.lock");
    File::options().create(true).append(true).open(path).expect("the lock file")
}

/// Shared: nobody changes the machine while this is held. None for the test that holds it.
pub(crate) fn quiet() -> Option<File> {
    if HELD.get() {
        return None;
    }
    let file = lock_file();
    file.lock_shared().expect("flock");
    Some(file)
}

impl Machine {
    /// Waits for every other test that changes the machine.
    pub(crate) fn lock() -> Machine {
        let file = lock_file();
        file.lock().expect("flock");
        HELD.set(true);
        Machine { _lock: file, undo: Vec::new(), groups: Vec::new() }
    }

    /// Writes a knob; false if it does not take the value. It goes back on drop.
    pub(crate) fn set(&mut self, knob: impl AsRef<Path>, value: &str) -> bool {
        let knob = knob.as_ref();
        let Ok(was) = std::fs::read_to_string(knob) else { return false };
        // "always [madvise] never" is set by the word in brackets.
        let was = was
            .split_once('[')
            .and_then(|(_, r)| r.split_once(']'))
            .map_or(was.trim(), |(w, _)| w)
            .to_owned();
        if std::fs::write(knob, value).is_err() {
            return false;
        }
        self.undo.push((knob.to_owned(), was));
        true
    }

    /// Makes the hugetlb pool hold `pages`; false if the kernel has not got them, or does not move them.
    pub(crate) fn pool(&mut self, pages: u64) -> bool {
        let kib = super::pmd_size() / 1024;
        let knob = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
        self.set(&knob, &pages.to_string())
            && std::fs::read_to_string(&knob).is_ok_and(|s| s.trim() == pages.to_string())
            && !super::attaching::ctl(["doctor"]).out().contains("moves no pages of the pool")
    }

    /// A new cgroup below `parent`; none if it cannot be made.
    pub(crate) fn group(&mut self, parent: &Path) -> Option<PathBuf> {
        let group =
            parent.join(format!("tiexec-test-{}-{}", std::process::id(), self.groups.len()));
        std::fs::create_dir(&group).ok()?;
        self.groups.push(group.clone());
        Some(group)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        HELD.set(false);
        for group in &self.groups {
            // Children that were just reaped may be counted a moment longer.
            for _ in 0..200 {
                if std::fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        for (knob, was) in self.undo.drain(..).rev() {
            if let Err(e) = std::fs::write(&knob, &was) {
                eprintln!("{} stays changed (was {was}): {e}", knob.display());
            }
        }
    }
}

/// Yama's knob.
pub(crate) const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// What it is set to; `None` in a kernel without Yama.
pub(crate) fn yama_scope() -> Option<u32> {
    std::fs::read_to_string(YAMA).ok()?.trim().parse().ok()
}

/// The directory of the memory controller (v2 or v1) and the name of its limit file.
pub(crate) fn memory_controller() -> Option<(PathBuf, &'static str)> {
    let unified = Path::new("/sys/fs/cgroup");
    if std::fs::read_to_string(unified.join("cgroup.subtree_control"))
        .is_ok_and(|s| s.contains("memory"))
    {
        return Some((unified.to_owned(), "memory.max"));
    }
    let v1 = unified.join("memory");
    v1.join("memory.limit_in_bytes").exists().then_some((v1, "memory.limit_in_bytes"))
}

/// The cgroup v2 directory where the hugetlb controller can be handed to children.
pub(crate) fn hugetlb_controller(machine: &mut Machine) -> Option<PathBuf> {
    let dir =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().map(PathBuf::from).find(|d| {
            std::fs::read_to_string(d.join("cgroup.controllers"))
                .is_ok_and(|s| s.contains("hugetlb"))
        })?;
    let control = dir.join("cgroup.subtree_control");
    if !std::fs::read_to_string(&control).ok()?.contains("hugetlb") {
        std::fs::write(&control, "+hugetlb").ok()?;
        machine.undo.push((control, "-hugetlb".to_owned()));
    }
    Some(dir)
}
