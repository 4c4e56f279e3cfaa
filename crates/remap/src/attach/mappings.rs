//! Whether the kernel's limit allows the mappings that a switch adds to the process.

use tiexec_core::skip::FailureKind;
use tiexec_sys::kernel_file;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;

/// The mappings that one switch can add for good: it cuts a text into the switched part, the text below it and the
/// text above it.
const BY_EACH: usize = 2;
/// The mappings that must be free beside those: the staged mapping, and the five by which mremap(2)
/// wants to be below the limit (`mm/mremap.c`, "pre-compute if the whole operation has high chances to
/// success").
const BESIDE: usize = 6;

/// Checks that a process may have `parts` of its text switched. It had `before` mappings at the last look. They are counted
/// again if that was more than half of the limit. Without a readable limit the check passes.
///
/// # Errors
/// `map_count`; the maps of the process cannot be read.
pub(super) fn check(process: &ProcDir, before: usize, parts: usize) -> Result<(), Failure> {
    let limit = kernel_file::read("/proc/sys/vm/max_map_count");
    let Some(limit) = limit.ok().and_then(|text| text.trim().parse::<usize>().ok()) else {
        return Ok(());
    };
    let more = parts.saturating_mul(BY_EACH).saturating_add(BESIDE);
    if before.saturating_add(more) <= limit / 2 {
        return Ok(());
    }
    let maps = process.read("maps").map_err(Failure::unreadable)?;
    let now = maps.iter().filter(|&&byte| byte == b'\n').count();
    if now.saturating_add(more) > limit {
        let detail = format!(
            "it has {now} mappings, the switch takes up to {more} more, and vm.max_map_count is {limit}"
        );
        return Err(Failure::new(FailureKind::MapCount, detail));
    }
    Ok(())
}
