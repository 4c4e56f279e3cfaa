//! Checks that an image has room, on the machine and in the memory cgroup.
//!
//! Shared memory is charged to the cgroup that touches it first, and cannot be reclaimed without swap. If an image
//! were filled up to a limit, the kernel would kill a process. The program's headers and mappings say how much
//! there is to fill, and may claim anything.

use std::path::{Path, PathBuf};

use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_core::proc::cgroup::memory_cgroup;
use tiexec_core::proc::meminfo;
use tiexec_core::skip::FailureKind;
use tiexec_sys::cgroup_namespace;
use tiexec_sys::kernel_file;
use tiexec_sys::procfs::ProcDir;

use tiexec_tracee::Failure;

/// The memory that must be left beside the image, in bytes: the program has yet to begin.
const MARGIN: u64 = 64 << 20;

/// Checks that the machine, the memory cgroup of the process, and each cgroup above it have room for `bytes` more
/// and 64 MiB. A limit that cannot be read counts as no limit.
///
/// # Errors
/// `memory_headroom`; `memcg_headroom`, with the path of the cgroup that is too full.
pub fn check(process: &ProcDir, bytes: u64) -> Result<(), Failure> {
    check_machine(bytes)?;
    check_cgroups(process, bytes)
}

/// Checks that `bytes` of text are at most a quarter of the memory, so that they do not fill the page cache.
///
/// # Errors
/// `memory_headroom`.
pub(crate) fn check_cache(bytes: u64) -> Result<(), Failure> {
    let most = total_memory() / 4;
    if bytes <= most {
        return Ok(());
    }
    let (text, most) = (mib(bytes), mib(most));
    let detail = format!("{text} MiB of text are more than a quarter of the memory ({most} MiB)");
    Err(Failure::new(FailureKind::MemoryHeadroom, detail))
}

/// Checks that this many bytes of text are not more than all of the machine's memory.
///
/// # Errors
/// `memory_headroom`.
pub(crate) fn check_length(bytes: u64) -> Result<(), Failure> {
    let most = total_memory();
    if bytes <= most {
        return Ok(());
    }
    let detail = format!("{} MiB of text are more than the memory ({} MiB)", mib(bytes), mib(most));
    Err(Failure::new(FailureKind::MemoryHeadroom, detail))
}

/// Returns how much memory the machine has, in bytes.
pub(crate) fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

fn check_machine(bytes: u64) -> Result<(), Failure> {
    let needed = bytes.saturating_add(MARGIN);
    let info = rustix::system::sysinfo();
    // Free memory counts as available, and reading it is faster.
    if info.freeram.saturating_mul(info.mem_unit.into()) >= needed {
        return Ok(());
    }
    let Ok(text) = std::fs::read("/proc/meminfo") else { return Ok(()) };
    match meminfo::available(&text) {
        Some(available) if available < needed => {
            let detail = format!(
                "the machine has {} MiB available, the text needs {} MiB and {} MiB to spare",
                mib(available),
                mib(bytes),
                mib(MARGIN)
            );
            Err(Failure::new(FailureKind::MemoryHeadroom, detail))
        }
        _ => Ok(()),
    }
}

fn check_cgroups(process: &ProcDir, bytes: u64) -> Result<(), Failure> {
    // Read the mount points of cgroups from this process's mounts. Another process's mounts may name any path, with
    // any file there.
    let mounts = ProcDir::this_process().and_then(|this| this.read("mountinfo"));
    let Ok((cgroup, mounts)) = process.read("cgroup").and_then(|cgroup| Ok((cgroup, mounts?)))
    else {
        return Ok(());
    };
    let Some(memory) = memory_cgroup(&cgroup, &mounts) else { return Ok(()) };
    for directory in memory.directories() {
        let Some(left) = left_in(&directory, memory.unified) else { continue };
        if left < bytes.saturating_add(MARGIN) {
            let detail = format!(
                "memory cgroup {} has {} MiB left, the text needs {} MiB and {} MiB to spare",
                directory.shown(),
                mib(left),
                mib(bytes),
                mib(MARGIN)
            );
            return Err(Failure::new(FailureKind::MemcgHeadroom, detail));
        }
    }
    Ok(())
}

/// Returns the directory of the memory cgroup that pays for `process`, as this process sees it. `None` if that is
/// this process's own cgroup, or if none is found.
///
/// # Errors
/// - `memcg_headroom`: the kernel would kill all of the cgroup's processes when it is full (`memory.oom.group`).
/// - `memcg_headroom`: the cgroup is not mounted where this process sees it, so its limits are not known and
///   nothing can be charged to it.
/// - `no_thread`: the cgroup is frozen, and a process that joins it would freeze too (cgroup v2).
pub(crate) fn charged_to(process: &ProcDir) -> Result<Option<PathBuf>, Failure> {
    let find = || {
        let this = ProcDir::this_process().ok()?;
        let mounts = this.read("mountinfo").ok()?;
        let theirs = memory_cgroup(&process.read("cgroup").ok()?, &mounts)?;
        let ours = memory_cgroup(&this.read("cgroup").ok()?, &mounts)?;
        (theirs.path != ours.path).then_some(theirs)
    };
    let mut found = find();
    if found.as_ref().is_some_and(|memory| memory.outside) {
        // A container sees the machine's cgroups by paths that begin with `/..`.
        let _no_right = cgroup_namespace::enter_that_of_init();
        found = find();
    }
    let Some(memory) = found else { return Ok(None) };
    if memory.outside {
        let what = format!(
            "its memory cgroup {} is not mounted here, so that this process's own would pay for its copies; \
             fix: mount the machine's /sys/fs/cgroup into this container",
            memory.path.shown()
        );
        return Err(Failure::new(FailureKind::MemcgHeadroom, what));
    }
    let Some(directory) = memory.directories().next() else { return Ok(None) };
    let events = std::fs::read_to_string(directory.join("cgroup.events"));
    if events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1")) {
        let what = format!("{} is frozen", directory.shown());
        return Err(Failure::new(FailureKind::NoThread, what));
    }
    for directory in memory.directories() {
        let group = std::fs::read_to_string(directory.join("memory.oom.group"));
        if group.is_ok_and(|group| group.trim() == "1") {
            let what = format!(
                "{0} has memory.oom.group set, so the kernel kills all of its processes when it is full; \
                 fix: write 0 to {0}/memory.oom.group (systemd: OOMPolicy=stop)",
                directory.shown()
            );
            return Err(Failure::new(FailureKind::MemcgHeadroom, what));
        }
    }
    Ok(Some(directory))
}

/// Returns how many bytes a cgroup may still charge; `None` without a limit.
fn left_in(directory: &Path, unified: bool) -> Option<u64> {
    let (limit, usage) = if unified {
        ("memory.max", "memory.current")
    } else {
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
    };
    // "max" does not parse, and counts as no limit. cgroup v1 writes a number beyond any memory instead.
    let read = |name| kernel_file::read(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = read(limit)?;
    Some(limit.saturating_sub(read(usage)?))
}
