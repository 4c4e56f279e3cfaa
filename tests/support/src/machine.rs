//! Changes to the state of the whole machine. A test that makes one holds the lock, and drop undoes the change.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::launch::Run;

thread_local! {
    /// True if the test on this thread holds the machine.
    static HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Counts the values of [`Quiet`] in this process.
static QUIET: AtomicU32 = AtomicU32::new(0);

/// The exclusive lock of the test that may change the machine. Every child of the other tests holds the lock shared, so
/// that no child sees a change. A test that only needs cgroups uses [`Groups`].
pub struct Machine {
    _lock: File,
    undo: Vec<Guard>,
    groups: Groups,
}

/// The shared lock: no test changes the machine meanwhile.
pub struct Quiet {
    _lock: File,
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock_file(name: &str) -> File {
    let path = super::files().join(name);
    File::options().create(true).append(true).open(path).expect("the lock file")
}

/// Takes a lock behind the gate. Whoever waits for the lock holds the gate, so that no later test overtakes: flock(2)
/// gives a shared lock also while another process waits for an exclusive one, which would then wait for a pause of all
/// tests.
fn behind_the_gate(lock: impl FnOnce(&File) -> std::io::Result<()>) -> File {
    let gate = lock_file("machine.gate");
    gate.lock().expect("flock");
    let file = lock_file("machine.lock");
    lock(&file).expect("flock");
    file
}

/// Takes the lock shared, so that no test changes the machine meanwhile. Returns `None` in a test that holds the lock
/// exclusively.
pub fn quiet() -> Option<Quiet> {
    if HELD.get() {
        return None;
    }
    let file = if QUIET.fetch_add(1, Ordering::Relaxed) == 0 {
        behind_the_gate(File::lock_shared)
    } else {
        // A test that waits at the gate may wait for this process, which therefore does not queue again.
        let file = lock_file("machine.lock");
        file.lock_shared().expect("flock");
        file
    };
    Some(Quiet { _lock: file })
}

/// Returns whether the kernel moves pages of the hugetlb pool (`mremap`), as it does from Linux 5.16 on.
pub fn moves_pages_of_the_pool() -> bool {
    !super::attaching::ctl(["doctor"]).out().contains("moves no pages of the pool")
}

impl Machine {
    /// Waits for every other test that changes the machine. The caller has no child yet, which would hold the lock.
    pub fn lock() -> Machine {
        let file = behind_the_gate(File::lock);
        HELD.set(true);
        Machine { _lock: file, undo: Vec::new(), groups: Groups::new() }
    }

    /// Writes a knob. Returns false if the knob does not take the value. Drop restores the old value. The setting
    /// affects the whole machine, so such a test begins with `require_of_machine!(is_throwaway(), FELT)` and runs in
    /// guests.
    pub fn set(&mut self, knob: impl AsRef<Path>, value: &str) -> bool {
        assert!(is_throwaway(), "{}: {FELT}", knob.as_ref().display());
        self.write(knob.as_ref(), value)
    }

    fn write(&mut self, knob: &Path, value: &str) -> bool {
        let Ok(was) = std::fs::read_to_string(knob) else { return false };
        // "always [madvise] never" is set by the word in brackets.
        let was = was
            .split_once('[')
            .and_then(|(_, r)| r.split_once(']'))
            .map_or(was.trim(), |(w, _)| w)
            .to_owned();
        let guard = Guard::new(knob, &was);
        let taken = std::fs::write(knob, value).is_ok();
        self.undo.push(guard);
        taken
    }

    /// Adds `pages` to the hugetlb pool. Returns false if the kernel cannot find them, or cannot move pages of the
    /// pool.
    pub fn pool(&mut self, pages: u64) -> bool {
        let kib = super::pmd_size() / 1024;
        self.reserve(format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"), pages)
            && moves_pages_of_the_pool()
    }

    /// Adds `pages` to the pool whose size this knob sets. Returns false if the kernel cannot find them. Pages that
    /// others have reserved or use stay theirs.
    pub fn reserve(&mut self, knob: impl AsRef<Path>, pages: u64) -> bool {
        let held = || std::fs::read_to_string(&knob).ok()?.trim().parse::<u64>().ok();
        let Some(wanted) = held().map(|held| held + pages) else { return false };
        self.write(knob.as_ref(), &wanted.to_string()) && held() == Some(wanted)
    }

    /// Makes the kernel overcommit no memory. Root has plenty left, other users have `left` MiB, so that only the
    /// test's own programs reach the limit. Returns false if the kernel refuses the setting.
    pub fn no_overcommit(&mut self, left: u64) -> bool {
        /// In KiB.
        const PLENTY: u64 = 8 << 20;
        let vm = |name| format!("/proc/sys/vm/{name}");
        let limit = committed() + PLENTY;
        let ratio = std::fs::read_to_string(vm("overcommit_ratio")).unwrap_or_default();
        self.set(vm("admin_reserve_kbytes"), &(PLENTY - (left << 10)).to_string())
            // Writing one of these two knobs clears the other, so the original one is restored last.
            && self.set(vm("overcommit_ratio"), ratio.trim())
            && self.set(vm("overcommit_kbytes"), &limit.to_string())
            && self.set(vm("overcommit_memory"), "2")
    }

    /// Makes a cgroup below `parent`; none if it cannot be made.
    pub fn group(&mut self, parent: &Path) -> Option<PathBuf> {
        self.groups.group(parent)
    }
}

/// Cgroups of a test, which affect no other test. Drop removes them.
#[derive(Default)]
pub struct Groups(Vec<PathBuf>);

impl Groups {
    /// Has no cgroup yet.
    pub fn new() -> Groups {
        Groups::default()
    }

    /// Like [`slice`](Self::slice), in the hierarchy from which the names of units are read; `None` if there is no such
    /// hierarchy.
    pub fn slice_of_units(&mut self) -> Option<PathBuf> {
        let parents = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let parent = parents.iter().map(Path::new).find(|at| at.join("cgroup.procs").exists());
        self.slice(parent?)
    }

    /// Makes a cgroup below `parent`; none if it cannot be made.
    pub fn group(&mut self, parent: &Path) -> Option<PathBuf> {
        self.called(parent, "")
    }

    /// Makes a cgroup for units below `parent`, like systemd's slices; none if it cannot be made.
    pub fn slice(&mut self, parent: &Path) -> Option<PathBuf> {
        self.called(parent, ".slice")
    }

    /// Makes the cgroup of a pod below `parent`, as a kubelet does; none if it cannot be made.
    pub fn pod(&mut self, parent: &Path, uid: &str) -> Option<PathBuf> {
        let group = parent.join(format!("pod{uid}"));
        std::fs::create_dir(&group).ok()?;
        self.0.push(group.clone());
        Some(group)
    }

    fn called(&mut self, parent: &Path, end: &str) -> Option<PathBuf> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (own, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let group = parent.join(format!("tiexec-test-{own}-{count}{end}"));
        std::fs::create_dir(&group).ok()?;
        self.0.push(group.clone());
        Some(group)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // The innermost first.
        for group in self.0.iter().rev() {
            // The kernel may count reaped children for a moment longer.
            for _ in 0..200 {
                if std::fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        HELD.set(false);
        self.groups = Groups::new();
        while let Some(last) = self.undo.pop() {
            drop(last);
        }
    }
}

/// The message of `require_of_machine!` if a setting would affect others.
pub const FELT: &str =
    "the whole machine would feel the setting (TIEXEC_TEST_THROWAWAY=1 allows it, as in guests)";

/// Returns whether the machine is discarded after the tests, as a guest is, so that a setting affects no user.
pub fn is_throwaway() -> bool {
    std::env::var_os("TIEXEC_TEST_THROWAWAY").is_some_and(|value| value == "1")
}

/// `Committed_AS` of `/proc/meminfo`, in KiB.
fn committed() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let value = text.lines().find_map(|line| line.strip_prefix("Committed_AS:"));
    value.and_then(|v| v.trim().strip_suffix(" kB")?.trim().parse().ok()).expect("a number")
}

/// A process that restores the value of a knob on drop, and also if the test is killed, because it waits for the end of
/// its standard input.
struct Guard {
    knob: PathBuf,
    process: Child,
}

impl Guard {
    fn new(knob: &Path, was: &str) -> Guard {
        let script = "trap '' HUP INT TERM; cat >/dev/null; printf %s \"$1\" >\"$2\"";
        let process = Command::new("sh")
            .args(["-c", script, "sh", was])
            .arg(knob)
            .process_group(0)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        Guard { knob: knob.to_owned(), process }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes the standard input of the process first.
        if !self.process.wait().is_ok_and(|status| status.success()) {
            eprintln!("{} stays changed", self.knob.display());
        }
    }
}

/// Yama's knob.
pub const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Returns the knob's value; `None` in a kernel without Yama.
pub fn yama_scope() -> Option<u32> {
    std::fs::read_to_string(YAMA).ok()?.trim().parse().ok()
}

/// The directory of the memory controller (v2 or v1) and the name of its limit file.
pub fn memory_controller() -> Option<(PathBuf, &'static str)> {
    let unified = Path::new("/sys/fs/cgroup");
    if std::fs::read_to_string(unified.join("cgroup.subtree_control"))
        .is_ok_and(|s| s.contains("memory"))
    {
        return Some((unified.to_owned(), "memory.max"));
    }
    let v1 = unified.join("memory");
    v1.join("memory.limit_in_bytes").exists().then_some((v1, "memory.limit_in_bytes"))
}

/// Runs the command as a member of the cgroup.
pub fn inside(group: &Path, run: Run) -> Run {
    run.behind_sh(&format!("echo $$ >'{}'/cgroup.procs; exec \"$@\"", group.display()))
}

/// Bytes of shared memory that the memory cgroup has been charged for.
pub fn shared_memory(group: &Path) -> u64 {
    let stat = std::fs::read_to_string(group.join("memory.stat")).expect("its counters");
    let shmem = stat.lines().find_map(|line| line.strip_prefix("shmem ")?.trim().parse().ok());
    shmem.expect("the kernel counts shared memory")
}

/// Makes a cgroup whose members can be frozen. Returns the group, the file that freezes it and the file that shows its
/// state, and the words that freeze it, thaw it, and show it frozen.
pub fn freezer(
    groups: &mut Groups,
    unified: bool,
) -> Option<(PathBuf, [PathBuf; 2], [&'static str; 3])> {
    let base = Path::new("/sys/fs/cgroup");
    let (parents, kind, files, words) = if unified {
        let parents = vec![base.to_owned(), base.join("unified")];
        let files = ["cgroup.freeze", "cgroup.events"];
        (parents, "cgroup.controllers", files, ["1", "0", "frozen 1"])
    } else {
        let words = ["FROZEN", "THAWED", "FROZEN"];
        (vec![base.join("freezer")], "tasks", ["freezer.state"; 2], words)
    };
    let parent = parents.into_iter().find(|parent| parent.join(kind).exists())?;
    let group = groups.group(&parent)?;
    let files = files.map(|file| group.join(file));
    files[0].exists().then_some((group, files, words))
}

/// Returns the cgroup v2 directory that can delegate the hugetlb controller to its children.
pub fn hugetlb_controller(machine: &mut Machine) -> Option<PathBuf> {
    let dir =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().map(PathBuf::from).find(|d| {
            std::fs::read_to_string(d.join("cgroup.controllers"))
                .is_ok_and(|s| s.contains("hugetlb"))
        })?;
    let control = dir.join("cgroup.subtree_control");
    if !std::fs::read_to_string(&control).ok()?.contains("hugetlb") {
        let guard = Guard::new(&control, "-hugetlb");
        std::fs::write(&control, "+hugetlb").ok()?;
        machine.undo.push(guard);
    }
    Some(dir)
}
