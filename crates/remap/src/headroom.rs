//! Whether the memory cgroup has room for an image.
//!
//! Shared memory is charged to the cgroup of whoever touches it first and cannot be reclaimed
//! without swap: filling an image up to a limit would have the kernel kill somebody.

use std::path::{Path, PathBuf};

use tiexec_core::addr::mib;
use tiexec_core::proc::cgroup::{MemoryCgroup, memory_cgroup};
use tiexec_core::skip::SkipReason;
use tiexec_sys::procfs::ProcDir;

use crate::failure::Failure;

/// What must be left over beside the image, in bytes: the program has yet to begin.
const MARGIN: u64 = 64 << 20;

/// Checks that the memory cgroup of the process, and each one above it, has room for `bytes` more
/// and 64 MiB. What cannot be read is no limit.
///
/// # Errors
/// The cgroup that is too full, by its path.
pub fn check(process: &ProcDir, bytes: u64) -> Result<(), Failure> {
    let Ok((cgroup, mounts)) =
        process.read("cgroup").and_then(|cgroup| Ok((cgroup, process.read("mountinfo")?)))
    else {
        return Ok(());
    };
    let Some(memory) = memory_cgroup(&cgroup, &mounts) else { return Ok(()) };
    for directory in ancestors(&memory) {
        let Some(left) = left_in(&directory, memory.unified) else { continue };
        if left < bytes.saturating_add(MARGIN) {
            let detail = format!(
                "memory cgroup {} has {} MiB left, the image needs {} MiB and {} MiB to spare",
                directory.display(),
                mib(left),
                mib(bytes),
                mib(MARGIN)
            );
            return Err(Failure::new(SkipReason::MemcgHeadroom, detail));
        }
    }
    Ok(())
}

/// The cgroup's own directory and those above it, up to the mount.
fn ancestors(memory: &MemoryCgroup) -> impl Iterator<Item = PathBuf> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let mount = PathBuf::from(OsStr::from_bytes(&memory.mount));
    let below = PathBuf::from(OsStr::from_bytes(&memory.below));
    let own: Vec<PathBuf> = below.ancestors().map(|part| mount.join(part)).collect();
    own.into_iter()
}

/// Returns how many bytes a cgroup may still charge; `None` without a limit.
fn left_in(directory: &Path, unified: bool) -> Option<u64> {
    let (limit, usage) = if unified {
        ("memory.max", "memory.current")
    } else {
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
    };
    // "max" is no number, and so no limit; v1 writes a number beyond any memory instead.
    let read =
        |name| std::fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = read(limit)?;
    Some(limit.saturating_sub(read(usage)?))
}
